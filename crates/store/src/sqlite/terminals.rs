//! `abstract_terminals`: at most one per sandbox and thread, and only in the running instance.

use atoll_model::SandboxId;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::keys::parse_id;
use crate::{StoreError, Terminal};

const TABLE: &str = "abstract_terminals";
const COLUMNS: &str = "id, sandbox, instance, thread, pid, created_ms, settings";
/// The pid of a shell that was not started yet.
const NOT_STARTED: u32 = 0;
type Raw = (String, String, String, String, u32, i64, String);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
}

fn to_terminal(raw: Raw) -> Result<Terminal, StoreError> {
    let (id, sandbox, instance, thread, pid, created_at_ms, settings) = raw;
    let (sandbox, instance) = (parse_id(TABLE, &sandbox)?, parse_id(TABLE, &instance)?);
    let settings = serde_json::from_str(&settings).map_err(bad_row)?;
    let pid = Some(pid).filter(|pid| *pid != NOT_STARTED);
    Ok(Terminal { id, sandbox, instance, thread, pid, created_at_ms, settings })
}

fn settings(terminal: &Terminal) -> Result<String, StoreError> {
    serde_json::to_string(&terminal.settings).map_err(bad_row)
}

fn bad_row(cause: serde_json::Error) -> StoreError {
    StoreError::BadRow { table: TABLE, cause: Box::new(cause) }
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
            conn.prepare_cached(&format!(
                "INSERT OR REPLACE INTO abstract_terminals ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
            ))?
            .execute(params![
                new.id,
                new.sandbox.as_str(),
                new.instance.as_str(),
                new.thread,
                new.pid.unwrap_or(NOT_STARTED),
                new.created_at_ms,
                settings(&new)?
            ])?;
            Ok(new)
        }
    }
}

/// Writes the shell and the settings of a terminal, if its shell is still the expected one.
pub(crate) fn update(
    conn: &Connection,
    terminal: &Terminal,
    expected_pid: Option<u32>,
) -> Result<bool, StoreError> {
    let changed = conn
        .prepare_cached(
            "UPDATE abstract_terminals SET instance = ?4, pid = ?5, settings = ?6
             WHERE sandbox = ?1 AND id = ?2 AND pid = ?3",
        )?
        .execute(params![
            terminal.sandbox.as_str(),
            terminal.id,
            expected_pid.unwrap_or(NOT_STARTED),
            terminal.instance.as_str(),
            terminal.pid.unwrap_or(NOT_STARTED),
            settings(terminal)?
        ])?;
    Ok(changed > 0)
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
