//! `changes`, and the thread that notices what other servers write.
//!
//! All writes of all servers are `BEGIN IMMEDIATE` transactions, of which SQLite runs one at a time. So numbers that are
//! taken inside of them (`changes.revision`, `events.seq`) are in the order of commits, and a reader that asks for all
//! after the last one it has misses none and gets none twice.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_model::NodeName;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::watch;

use super::keys::parse_id;
use super::leases::{from_json, int, to_json};
use super::{events, threads};
use crate::{FeedChange, FeedEntry, FeedPage, StoreError};

/// LIMIT: how late a change of another server is noticed. A look that finds nothing reads a few bytes of shared memory.
const EVERY: Duration = Duration::from_millis(200);
/// LIMIT: entries that are kept; a reader that is further behind forgets all that it has cached.
const KEPT: i64 = 10_000;

pub(super) fn append(conn: &Connection, node: &NodeName, change: &FeedChange) -> Result<(), StoreError> {
    conn.prepare_cached("INSERT INTO changes (node, what) VALUES (?1, ?2)")?
        .execute(params![node.as_str(), to_json(change)?])?;
    Ok(())
}

pub(super) fn after(conn: &Connection, revision: u64) -> Result<FeedPage, StoreError> {
    let oldest: Option<i64> = conn.query_row("SELECT min(revision) FROM changes", [], |row| row.get(0))?;
    let mut page =
        FeedPage { has_gap: oldest.is_some_and(|oldest| oldest > int(revision) + 1), entries: Vec::new() };
    let mut statement = conn
        .prepare_cached("SELECT revision, node, what FROM changes WHERE revision > ?1 ORDER BY revision")?;
    let mut rows = statement.query([int(revision)])?;
    while let Some(row) = rows.next()? {
        page.entries.push(FeedEntry {
            revision: row.get::<_, i64>(0)?.unsigned_abs(),
            node: parse_id("changes", &row.get::<_, String>(1)?)?,
            change: from_json("changes", &row.get::<_, String>(2)?)?,
        });
    }
    Ok(page)
}

/// The highest revision ever assigned.
pub(super) fn head(conn: &Connection) -> rusqlite::Result<u64> {
    let seq: Option<i64> = conn
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'changes'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(seq.unwrap_or(0).unsigned_abs())
}

pub(super) fn sweep(conn: &Connection) -> Result<(), StoreError> {
    conn.execute("DELETE FROM changes WHERE revision <= (SELECT max(revision) FROM changes) - ?1", [KEPT])?;
    Ok(())
}

/// The newest numbers, for readers that wait for more.
#[derive(Clone)]
pub(super) struct Heads {
    pub(super) events: watch::Sender<u64>,
    pub(super) changes: watch::Sender<u64>,
}

impl Heads {
    pub(super) fn read(conn: &Connection) -> rusqlite::Result<Self> {
        let (events, changes) = (events::head(conn)?, head(conn)?);
        Ok(Self { events: watch::channel(events).0, changes: watch::channel(changes).0 })
    }

    /// Wakes readers of events if there are more.
    pub(super) fn refresh_events(&self, conn: &Connection) {
        raise(&self.events, events::head(conn));
    }

    fn refresh(&self, conn: &Connection) {
        self.refresh_events(conn);
        raise(&self.changes, head(conn));
    }
}

/// Several threads call it; a number never goes back.
fn raise(head: &watch::Sender<u64>, now: rusqlite::Result<u64>) {
    let Ok(now) = now else { return };
    head.send_if_modified(|known| {
        let is_more = now > *known;
        *known = now.max(*known);
        is_more
    });
}

/// Looks for commits of other servers until it is dropped.
pub(super) struct Watcher {
    stop: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watcher {
    pub(super) fn start(db: &Path, heads: Heads) -> Result<Self, rusqlite::Error> {
        let conn = threads::open_reader(db)?;
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("store-feed".to_owned())
            .spawn(move || watch_until_closed(&conn, &stopped, &heads))
            .expect("the first threads of a server can be started");
        Ok(Self { stop: Mutex::new(Some(stop)), thread: Mutex::new(Some(thread)) })
    }

    pub(super) async fn stop(&self) {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        threads::join(thread).await;
    }
}

fn watch_until_closed(conn: &Connection, stopped: &Receiver<()>, heads: &Heads) {
    let mut seen = None;
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        // It differs from the last one if another connection has committed since.
        let version = conn.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0)).ok();
        if version != seen {
            heads.refresh(conn);
            seen = version;
        }
    }
}
