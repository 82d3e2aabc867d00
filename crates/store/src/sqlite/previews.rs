//! `previews`: previews of single ports of sandboxes, each with the hash of its token. They are removed with the
//! sandbox.

use atoll_model::{PreviewId, SandboxId};
use rusqlite::{Connection, Row, params};

use super::keys::parse_id;
use crate::{Hash, PreviewRecord, StoreError};

type Raw = (String, String, u16, Hash, bool, i64, Option<i64>);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
}

fn to_preview(raw: Raw) -> Result<(PreviewRecord, Hash), StoreError> {
    let (id, sandbox, port, hash, public, created_at_ms, expires_at_ms) = raw;
    let (id, sandbox) = (parse_id("previews", &id)?, parse_id("previews", &sandbox)?);
    Ok((PreviewRecord { id, sandbox, port, public, created_at_ms, expires_at_ms }, hash))
}

pub(crate) fn put(conn: &Connection, new: &PreviewRecord, hash: &Hash, most: u32) -> Result<(), StoreError> {
    conn.prepare_cached("DELETE FROM previews WHERE sandbox = ?1 AND expires_ms <= ?2")?
        .execute(params![new.sandbox.as_str(), new.created_at_ms])?;
    let open: u32 = conn
        .prepare_cached("SELECT count(*) FROM previews WHERE sandbox = ?1")?
        .query_row([new.sandbox.as_str()], |row| row.get(0))?;
    if open >= most {
        return Err(StoreError::TooManyPreviews { sandbox: new.sandbox.clone(), most });
    }
    conn.prepare_cached("INSERT INTO previews VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(params![
        new.id.as_str(),
        new.sandbox.as_str(),
        new.port,
        hash,
        new.public,
        new.created_at_ms,
        new.expires_at_ms
    ])?;
    Ok(())
}

pub(crate) fn list(conn: &Connection, sandbox: &SandboxId) -> Result<Vec<(PreviewRecord, Hash)>, StoreError> {
    let mut statement = conn.prepare_cached(
        "SELECT id, sandbox, port, hash, public, created_ms, expires_ms FROM previews
         WHERE sandbox = ?1 ORDER BY created_ms, id",
    )?;
    let rows = statement.query_map([sandbox.as_str()], raw)?;
    rows.map(|row| to_preview(row?)).collect()
}

pub(crate) fn delete(conn: &Connection, sandbox: &SandboxId, id: &PreviewId) -> Result<bool, StoreError> {
    let gone = conn.execute(
        "DELETE FROM previews WHERE sandbox = ?1 AND id = ?2",
        params![sandbox.as_str(), id.as_str()],
    )?;
    Ok(gone > 0)
}
