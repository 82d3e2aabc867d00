//! The schema of the database: its check, its migrations, and the node of older rows.

use std::path::Path;

use atoll_model::NodeName;
use rusqlite::{Connection, TransactionBehavior};

use crate::OpenError;

/// Each entry raises the schema version by one. Released entries never change.
const MIGRATIONS: &[&str] = &[
    include_str!("0001.sql"),
    include_str!("0002.sql"),
    include_str!("0003.sql"),
    include_str!("0004.sql"),
    include_str!("0005.sql"),
    include_str!("0006.sql"),
    include_str!("0007.sql"),
    include_str!("0009.sql"),
    include_str!("0010.sql"),
    include_str!("0011.sql"),
    include_str!("0012.sql"),
    include_str!("0013.sql"),
    include_str!("0014.sql"),
    include_str!("0015.sql"),
];

/// The row of `meta` with the version of the server that wrote the schema.
const WRITER: &str = "schema_writer";

/// Gives rows of a time before nodes the node of the server that opens them first.
const TAKE_OLDER_ROWS: [&str; 6] = [
    "UPDATE sandbox_leases SET node = ?1, lease = json_set(lease, '$.node', ?1) WHERE node = ''",
    "UPDATE sandbox_instances SET node = ?1 WHERE node = ''",
    "UPDATE snapshots SET node = ?1, snapshot = json_set(snapshot, '$.node', ?1) WHERE node = ''",
    "UPDATE volumes SET node = ?1, volume = json_set(volume, '$.node', ?1) WHERE node = ''",
    "UPDATE builds SET node = ?1, build = json_set(build, '$.node', ?1) WHERE node = ''",
    "UPDATE template_copies SET node = ?1 WHERE node = ''",
];

pub(super) fn check(conn: &Connection, db: &Path) -> Result<(), OpenError> {
    let damaged = |detail| OpenError::Corrupt { db: db.to_owned(), detail };
    let mut said = Vec::new();
    conn.pragma_query(None, "quick_check", |row| {
        said.push(row.get::<_, String>(0)?);
        Ok(())
    })
    .map_err(|e| damaged(e.to_string()))?;
    if said == ["ok"] { Ok(()) } else { Err(damaged(said.join("; "))) }
}

pub(super) fn version(conn: &Connection, db: &Path) -> Result<i64, OpenError> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|cause| OpenError::Database {
        action: "read",
        db: db.to_owned(),
        cause,
    })
}

/// Brings the schema up to date. Refused while other servers use the database: they know only the older schema.
pub(super) fn migrate(
    conn: &mut Connection,
    db: &Path,
    node: &NodeName,
    is_alone: bool,
) -> Result<(), OpenError> {
    let failed = |cause| OpenError::Database { action: "migrate", db: db.to_owned(), cause };
    let known = known();
    let found = version(conn, db)?;
    if found > known {
        return Err(OpenError::Newer { db: db.to_owned(), found, known, writer: writer(conn).into() });
    }
    if found == known {
        return Ok(());
    }
    if !is_alone {
        return Err(OpenError::OlderServers { db: db.to_owned() });
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    for (at, sql) in (0..).zip(MIGRATIONS) {
        if at >= found {
            tx.execute_batch(sql).map_err(failed)?;
        }
    }
    for sql in TAKE_OLDER_ROWS {
        tx.execute(sql, [node.as_str()]).map_err(failed)?;
    }
    tx.execute(
        "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        [WRITER, env!("CARGO_PKG_VERSION")],
    )
    .map_err(failed)?;
    tx.pragma_update(None, "user_version", known).map_err(failed)?;
    tx.commit().map_err(failed)?;
    // An older server looks at the database alone, see `newer`. A backup that reads it now only delays that.
    if let Err(error) = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
        tracing::debug!(%error, "the new schema is only in the write-ahead log yet");
    }
    Ok(())
}

/// The newest schema of this server.
pub(super) fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("a handful of migrations")
}

/// The version of the server that wrote the schema; `None` if it did not record that yet.
pub(super) fn writer(conn: &Connection) -> Option<String> {
    conn.query_row("SELECT value FROM meta WHERE key = ?1", [WRITER], |row| row.get(0)).ok()
}
