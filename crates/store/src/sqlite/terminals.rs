//! `abstract_terminals`: at most one per sandbox and thread, and only in the running instance.

use atoll_model::{InstanceId, Lease, SandboxId, Source};
use rusqlite::{Connection, Row, params};

use super::keys::parse_id;
use super::leases;
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

/// The instance that the sandbox has in this transaction.
fn current_instance(conn: &Connection, sandbox: &SandboxId) -> Result<Option<InstanceId>, StoreError> {
    Ok(leases::by_id(conn, sandbox)?.and_then(|lease| lease.instance))
}

pub(crate) fn put(conn: &Connection, new: Terminal, most: u32) -> Result<Terminal, StoreError> {
    let no_instance = || StoreError::NoInstance { sandbox: new.sandbox.clone() };
    let instance = current_instance(conn, &new.sandbox)?.ok_or_else(no_instance)?;
    let known = list(conn, &new.sandbox)?;
    let count = known.len();
    if let Some(before) = known.into_iter().find(|terminal| terminal.thread == new.thread) {
        return Ok(before);
    }
    if count >= most as usize {
        return Err(StoreError::TooManyTerminals { most });
    }
    let new = Terminal { instance, ..new };
    // Replaces the terminal that the thread had in an earlier instance.
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

/// Copies the terminals of the parent's instance to a fork that has the same shells. Pids and tags are those of the parent.
pub(crate) fn copy_to_fork(conn: &Connection, fork: &Lease) -> Result<(), StoreError> {
    let (Source::Snapshot { memory: true, fork: true, .. }, Some(parent), Some(instance)) =
        (&fork.source, &fork.parent, &fork.instance)
    else {
        return Ok(());
    };
    let Some(from) = current_instance(conn, parent)? else { return Ok(()) };
    conn.prepare_cached(
        "INSERT INTO abstract_terminals (id, sandbox, instance, thread, pid, created_ms, settings)
         SELECT lower(hex(randomblob(10))), ?3, ?4, thread, pid, created_ms,
           json_set(settings, '$.forked_from', coalesce(json_extract(settings, '$.forked_from'), id))
         FROM abstract_terminals WHERE sandbox = ?1 AND instance = ?2",
    )?
    .execute(params![parent.as_str(), from.as_str(), fork.id.as_str(), instance.as_str()])?;
    Ok(())
}

/// Writes the shell and the settings of a terminal, if its shell is still the expected one.
pub(crate) fn update(
    conn: &Connection,
    terminal: &Terminal,
    expected_pid: Option<u32>,
) -> Result<bool, StoreError> {
    let changed = conn
        .prepare_cached(
            "UPDATE abstract_terminals SET pid = ?4, settings = ?5
             WHERE sandbox = ?1 AND id = ?2 AND pid = ?3",
        )?
        .execute(params![
            terminal.sandbox.as_str(),
            terminal.id,
            expected_pid.unwrap_or(NOT_STARTED),
            terminal.pid.unwrap_or(NOT_STARTED),
            settings(terminal)?
        ])?;
    Ok(changed > 0)
}

/// One query: the instance and its terminals may change between two.
pub(crate) fn list(conn: &Connection, sandbox: &SandboxId) -> Result<Vec<Terminal>, StoreError> {
    let mut statement = conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM abstract_terminals WHERE sandbox = ?1
           AND instance = (SELECT json_extract(lease, '$.instance') FROM sandbox_leases WHERE id = ?1)
         ORDER BY created_ms, id"
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

pub(crate) fn delete_unstarted(conn: &Connection, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError> {
    let gone = conn.execute(
        "DELETE FROM abstract_terminals WHERE sandbox = ?1 AND id = ?2 AND pid = ?3",
        params![sandbox.as_str(), id, NOT_STARTED],
    )?;
    Ok(gone > 0)
}
