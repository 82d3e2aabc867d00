//! `events`. They are numbered in the order of commits, whichever server writes them (see [`super::feed`]), so a reader
//! that asks for the events after the last one it has misses none and gets none twice.

use atoll_model::{SandboxEvent, SandboxId, TenantId};
use rusqlite::{Connection, OptionalExtension, params};

use super::keys::parse_id;
use super::leases::{from_json, int, to_json};
use crate::{EventQuery, NewEvent, StoreError};

pub(crate) fn append(
    conn: &Connection,
    tenant: &TenantId,
    sandbox: &SandboxId,
    event: &NewEvent,
) -> Result<(), StoreError> {
    conn.prepare_cached(
        "INSERT INTO events (tenant, sandbox, instance, at, what, author, hidden) VALUES (?1, ?2, ?3, ?4, ?5, ?6,
           EXISTS (SELECT 1 FROM sandbox_leases WHERE id = ?2 AND build IS NOT NULL))",
    )?
    .execute(params![
        tenant.as_str(),
        sandbox.as_str(),
        event.instance.as_ref().map(|instance| instance.as_str()),
        to_json(&event.at)?,
        to_json(&event.what)?,
        event.by.as_ref().map(to_json).transpose()?
    ])?;
    Ok(())
}

pub(crate) fn list(conn: &Connection, query: &EventQuery) -> Result<Vec<SandboxEvent>, StoreError> {
    // A separate statement per case, so that each uses its own index.
    let which = match (&query.sandbox, &query.tenant) {
        (Some(_), Some(_)) => "sandbox = ?1 AND tenant = ?2",
        (Some(_), None) => "sandbox = ?1 AND ?2 IS NULL",
        (None, Some(_)) => "?1 IS NULL AND tenant = ?2 AND NOT hidden",
        (None, None) => "?1 IS NULL AND ?2 IS NULL AND NOT hidden",
    };
    let order = if query.newest { "seq DESC" } else { "seq" };
    let mut statement = conn.prepare_cached(&format!(
        "SELECT seq, tenant, sandbox, instance, at, what, author FROM events
         WHERE {which} AND seq > ?3 ORDER BY {order} LIMIT ?4"
    ))?;
    let mut rows = statement.query(params![
        query.sandbox.as_ref().map(SandboxId::as_str),
        query.tenant.as_ref().map(TenantId::as_str),
        int(query.after_seq),
        query.limit
    ])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (instance, by): (Option<String>, Option<String>) = (row.get(3)?, row.get(6)?);
        found.push(SandboxEvent {
            seq: row.get::<_, i64>(0)?.unsigned_abs(),
            tenant: parse_id("events", &row.get::<_, String>(1)?)?,
            sandbox: parse_id("events", &row.get::<_, String>(2)?)?,
            instance: instance.map(|text| parse_id("events", &text)).transpose()?,
            at: from_json("events", &row.get::<_, String>(4)?)?,
            what: from_json("events", &row.get::<_, String>(5)?)?,
            by: by.map(|text| from_json("events", &text)).transpose()?,
        });
    }
    if query.newest {
        found.reverse();
    }
    Ok(found)
}

/// The highest number ever assigned, even if its event is removed.
pub(crate) fn head(conn: &Connection) -> rusqlite::Result<u64> {
    let seq: Option<i64> = conn
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'events'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(seq.unwrap_or(0).unsigned_abs())
}

pub(crate) fn sweep(conn: &Connection, kept: u64) -> Result<(), StoreError> {
    let last = int(head(conn)?.saturating_sub(kept));
    // LIMIT: ten thousand at a time keep the writer responsive; the next sweep removes the rest.
    conn.execute(
        "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE seq <= ?1 ORDER BY seq LIMIT 10000)",
        [last],
    )?;
    Ok(())
}
