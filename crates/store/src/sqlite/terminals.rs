//! `abstract_terminals`: at most one per sandbox and thread, and only in the running instance.

use atoll_model::SandboxId;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::keys::parse_id;
use crate::{StoreError, Terminal};

const COLUMNS: &str = "id, sandbox, instance, thread, pid, created_ms";
type Raw = (String, String, String, String, u32, i64);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
}

fn to_terminal((id, sandbox, instance, thread, pid, created_at_ms): Raw) -> Result<Terminal, StoreError> {
    let (sandbox, instance) =
        (parse_id("abstract_terminals", &sandbox)?, parse_id("abstract_terminals", &instance)?);
    Ok(Terminal { id, sandbox, instance, thread, pid, created_at_ms })
}

pub(crate) fn put(conn: &Connection, new: Terminal) -> Result<Terminal, StoreError> {
    let before = conn
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM abstract_terminals WHERE sandbox = ?1 AND thread = ?2"
        ))?
        .query_row(params![new.sandbox.as_str(), new.thread], raw)
        .optional()?
        .map(to_terminal)
        .transpose()?;
    match before {
        Some(before) if before.instance == new.instance => Ok(before),
        _ => {
            conn.prepare_cached(
                "INSERT OR REPLACE INTO abstract_terminals (id, sandbox, instance, thread, pid, created_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                new.id,
                new.sandbox.as_str(),
                new.instance.as_str(),
                new.thread,
                new.pid,
                new.created_at_ms
            ])?;
            Ok(new)
        }
    }
}

pub(crate) fn list(conn: &Connection, sandbox: &SandboxId) -> Result<Vec<Terminal>, StoreError> {
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM abstract_terminals WHERE sandbox = ?1 ORDER BY created_ms, id"
    ))?;
    let rows = statement.query_map([sandbox.as_str()], raw)?;
    rows.map(|row| to_terminal(row?)).collect()
}

pub(crate) fn delete(conn: &Connection, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError> {
    let gone = conn.execute(
        "DELETE FROM abstract_terminals WHERE sandbox = ?1 AND id = ?2",
        params![sandbox.as_str(), id],
    )?;
    Ok(gone > 0)
}
