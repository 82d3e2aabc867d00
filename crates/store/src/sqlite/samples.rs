//! `lease_resource_snapshots`: the resource use of each sandbox, with a bounded number of rows each.

use atoll_model::SandboxId;
use rusqlite::{Connection, params};

use super::leases::{from_json, to_json};
use crate::{ResourceSample, StoreError};

pub(crate) fn put(
    conn: &Connection,
    samples: &[(SandboxId, ResourceSample)],
    keep: u32,
) -> Result<(), StoreError> {
    for (sandbox, sample) in samples {
        // A sandbox that was deleted during the measurement gets no row.
        conn.prepare_cached(
            "INSERT INTO lease_resource_snapshots (sandbox, at_ms, sample)
             SELECT id, ?2, ?3 FROM sandbox_leases WHERE id = ?1 AND observed <> 'deleted'",
        )?
        .execute(params![sandbox.as_str(), sample.at_ms, to_json(sample)?])?;
        conn.prepare_cached(
            "DELETE FROM lease_resource_snapshots WHERE sandbox = ?1 AND n <=
               (SELECT n FROM lease_resource_snapshots WHERE sandbox = ?1 ORDER BY n DESC LIMIT 1 OFFSET ?2)",
        )?
        .execute(params![sandbox.as_str(), keep])?;
    }
    Ok(())
}

pub(crate) fn list(
    conn: &Connection,
    sandbox: &SandboxId,
    since_ms: i64,
    limit: u32,
) -> Result<Vec<ResourceSample>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT sample FROM
           (SELECT n, sample FROM lease_resource_snapshots WHERE sandbox = ?1 AND at_ms >= ?2 ORDER BY n DESC LIMIT ?3)
         ORDER BY n",
    )?;
    let rows =
        statement.query_map(params![sandbox.as_str(), since_ms, limit], |row| row.get::<_, String>(0))?;
    rows.map(|text| from_json("lease_resource_snapshots", &text?)).collect()
}
