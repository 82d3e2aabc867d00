//! `threads`: the provider and the sandbox that a conversation is bound to.

use async_trait::async_trait;
use atoll_model::{Lease, Phase, SandboxId, Source, TRANSIENT_THREADS, TenantId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::keys::parse_id;
use super::leases::{by_id, cursor, parse_cursor};
use super::{SqliteStore, leases};
use crate::{Page, StoreError, ThreadQuery, ThreadRecord, ThreadStore};

const TABLE: &str = "threads";
/// LIMIT: more conversations than a tenant has at a time; each is a row of a few hundred bytes.
const PER_TENANT: u32 = 10_000;
/// A sandbox that is being deleted, or that left the thread, is the thread's no longer.
const SELECT: &str =
    "SELECT t.n, t.thread, t.tenant, t.provider, l.id, l.observed, t.created_ms FROM threads t
     LEFT JOIN sandbox_leases l ON l.id = t.sandbox AND l.thread = t.thread
       AND l.observed NOT IN ('deleting', 'deleted')";

#[async_trait]
impl ThreadStore for SqliteStore {
    async fn threads(&self, query: ThreadQuery) -> Result<Page<ThreadRecord>, StoreError> {
        self.read(move |conn| list(conn, &query)).await
    }

    async fn find_thread(
        &self,
        tenant: Option<&TenantId>,
        thread: &str,
    ) -> Result<Vec<ThreadRecord>, StoreError> {
        let (tenant, thread) = (tenant.cloned(), thread.to_owned());
        self.read(move |conn| find(conn, tenant.as_ref(), &thread)).await
    }

    async fn remove_unused_threads(&self, tenant: Option<&TenantId>, thread: &str) -> Result<(), StoreError> {
        let (tenant, thread) = (tenant.cloned(), thread.to_owned());
        self.write(move |conn| remove_unused(conn, tenant.as_ref(), &thread)).await
    }
}

/// Binds the thread of a new lease. Returns the sandbox that the thread has already; `None`: the new lease becomes its
/// sandbox. A fork stays in the thread of its parent without becoming its sandbox.
pub(super) fn bind(conn: &Connection, lease: &Lease) -> Result<Option<Lease>, StoreError> {
    let Some(thread) = lease.thread.as_deref().filter(|_| !is_fork(lease)) else { return Ok(None) };
    let bound = conn
        .prepare_cached("SELECT provider, sandbox FROM threads WHERE tenant = ?1 AND thread = ?2")?
        .query_row(params![lease.tenant.as_str(), thread], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    let Some((provider, sandbox)) = bound else {
        refuse_too_many(conn, &lease.tenant)?;
        conn.prepare_cached(
            "INSERT INTO threads (tenant, thread, provider, sandbox, created_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            lease.tenant.as_str(),
            thread,
            lease.provider,
            lease.id.as_str(),
            lease.created_at.wall_ms
        ])?;
        return Ok(None);
    };
    if provider != lease.provider {
        return Err(StoreError::ThreadBound { thread: thread.to_owned(), provider });
    }
    let current = by_id(conn, &parse_id::<SandboxId>(TABLE, &sandbox)?)?;
    let is_its = |current: &Lease| !current.phase.is_gone() && current.thread.as_deref() == Some(thread);
    if let Some(current) = current.filter(is_its) {
        return Ok(Some(current));
    }
    conn.prepare_cached("UPDATE threads SET sandbox = ?3 WHERE tenant = ?1 AND thread = ?2")?
        .execute(params![lease.tenant.as_str(), thread, lease.id.as_str()])?;
    Ok(None)
}

/// Forgets the thread that a sandbox left if it was the first one of the thread: then nothing ties the thread to its provider.
pub(super) fn release(conn: &Connection, lease: &Lease) -> Result<(), StoreError> {
    conn.prepare_cached("DELETE FROM threads WHERE tenant = ?1 AND sandbox = ?2 AND created_ms = ?3")?
        .execute(params![lease.tenant.as_str(), lease.id.as_str(), lease.created_at.wall_ms])?;
    Ok(())
}

/// The thread of a sandbox that was moved is bound to its new provider.
pub(super) fn follow(conn: &Connection, lease: &Lease) -> Result<(), StoreError> {
    let Some(thread) = &lease.thread else { return Ok(()) };
    conn.prepare_cached(
        "UPDATE threads SET provider = ?4 WHERE tenant = ?1 AND thread = ?2 AND sandbox = ?3",
    )?
    .execute(params![lease.tenant.as_str(), thread, lease.id.as_str(), lease.provider])?;
    Ok(())
}

const fn is_fork(lease: &Lease) -> bool {
    matches!(lease.source, Source::Snapshot { fork: true, .. })
}

fn refuse_too_many(conn: &Connection, tenant: &TenantId) -> Result<(), StoreError> {
    let used: u32 = conn
        .prepare_cached("SELECT count(*) FROM threads WHERE tenant = ?1")?
        .query_row([tenant.as_str()], |row| row.get(0))?;
    if used >= PER_TENANT { Err(StoreError::TooManyThreads { most: PER_TENANT }) } else { Ok(()) }
}

fn record(row: &Row<'_>) -> Result<ThreadRecord, StoreError> {
    let sandbox = match (row.get::<_, Option<String>>(4)?, row.get::<_, Option<String>>(5)?) {
        (Some(id), Some(phase)) => Some((parse_id(TABLE, &id)?, phase_named(&phase)?)),
        _ => None,
    };
    Ok(ThreadRecord {
        thread: row.get(1)?,
        tenant: parse_id(TABLE, &row.get::<_, String>(2)?)?,
        provider: row.get(3)?,
        sandbox,
        created_at_ms: row.get(6)?,
    })
}

fn phase_named(word: &str) -> Result<Phase, StoreError> {
    let known = Phase::ALL.into_iter().find(|phase| phase.as_str() == word);
    known.ok_or_else(|| StoreError::BadRow { table: "sandbox_leases", cause: "not a phase".into() })
}

fn list(conn: &Connection, query: &ThreadQuery) -> Result<Page<ThreadRecord>, StoreError> {
    let before = query.cursor.as_deref().map(parse_cursor).transpose()?.unwrap_or(i64::MAX);
    let mut statement = conn.prepare_cached(&format!(
        "{SELECT} WHERE t.n < ?2 AND (?1 IS NULL OR t.tenant = ?1) ORDER BY t.n DESC LIMIT ?3"
    ))?;
    let tenant = query.tenant.as_ref().map(TenantId::as_str);
    let mut rows = statement.query(params![tenant, before, i64::from(query.limit) + 1])?;
    let (mut items, mut last) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        if items.len() == query.limit as usize {
            return Ok(Page { items, next_cursor: Some(cursor(last)) });
        }
        last = row.get(0)?;
        items.push(record(row)?);
    }
    Ok(Page { items, next_cursor: None })
}

fn find(conn: &Connection, tenant: Option<&TenantId>, thread: &str) -> Result<Vec<ThreadRecord>, StoreError> {
    let mut statement = conn.prepare_cached(&format!(
        "{SELECT} WHERE t.thread = ?2 AND (?1 IS NULL OR t.tenant = ?1) ORDER BY t.n LIMIT 2"
    ))?;
    let mut rows = statement.query(params![tenant.map(TenantId::as_str), thread])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(record(row)?);
    }
    Ok(found)
}

fn remove_unused(conn: &Connection, tenant: Option<&TenantId>, thread: &str) -> Result<(), StoreError> {
    conn.prepare_cached(
        "DELETE FROM threads WHERE thread = ?2 AND (?1 IS NULL OR tenant = ?1) AND NOT EXISTS
           (SELECT 1 FROM sandbox_leases l WHERE l.thread = ?2 AND l.tenant = threads.tenant
              AND l.observed NOT IN ('deleting', 'deleted'))",
    )?
    .execute(params![tenant.map(TenantId::as_str), thread])?;
    Ok(())
}

/// Removes the threads of clients that come and go when they have no sandbox.
pub(super) fn sweep(conn: &Connection) -> Result<(), StoreError> {
    conn.prepare_cached(
        "DELETE FROM threads WHERE thread GLOB ?1 AND NOT EXISTS
           (SELECT 1 FROM sandbox_leases l WHERE l.thread = threads.thread AND l.tenant = threads.tenant
              AND l.observed NOT IN ('deleting', 'deleted'))",
    )?
    .execute([format!("{TRANSIENT_THREADS}*")])?;
    Ok(())
}

/// The sandbox with this id, else those of the thread with this name, else those whose id starts with the text; at most
/// two.
pub(super) fn find_session(
    conn: &Connection,
    tenant: Option<&TenantId>,
    provider: Option<&str>,
    ident: &str,
) -> Result<Vec<Lease>, StoreError> {
    let several = |condition: &str| -> Result<Vec<Lease>, StoreError> {
        let mut statement = conn.prepare_cached(&format!(
            "SELECT lease FROM sandbox_leases WHERE {condition} AND (?1 IS NULL OR tenant = ?1)
               AND (?2 IS NULL OR provider = ?2) AND observed <> 'deleted' AND build IS NULL ORDER BY n LIMIT 2"
        ))?;
        let rows = statement.query_map(params![tenant.map(TenantId::as_str), provider, ident], |row| {
            row.get::<_, String>(0)
        })?;
        rows.map(|text| leases::from_json("sandbox_leases", &text?)).collect()
    };
    for condition in ["id = ?3", "thread = ?3"] {
        let found = several(condition)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    if leases::is_prefix(ident) { several("id >= ?3 AND id < ?3 || '{'") } else { Ok(Vec::new()) }
}
