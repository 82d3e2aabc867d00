//! The threads that own connections: one writer with group commit, a few readers. Callers wait for an answer and may
//! give up; the work is done anyway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use atoll_disk::Reserve;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{mpsc, oneshot};

use super::feed::Heads;
use super::open::Claim;
use crate::StoreError;

/// LIMIT: further callers wait in their own task, so memory stays bounded.
const QUEUE: usize = 1_024;
/// LIMIT: one transaction stays below about 10 ms of work.
const BATCH: usize = 256;

/// Runs inside the transaction, or gets the reason why there is none; the returned function is called with the result
/// of the commit.
type Write = Box<dyn FnOnce(Result<&Connection, &str>) -> Box<dyn FnOnce(Option<&str>) + Send> + Send>;
type Read = Box<dyn FnOnce(&Connection) + Send>;

pub(crate) struct Writer {
    queue: Mutex<Option<mpsc::Sender<Write>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(crate) fn start(conn: Connection, claim: Claim, heads: Heads, disk: Arc<Reserve>) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                write_until_closed(&conn, jobs, &heads, &disk);
                disk.before_database_write();
                fold_and_close(conn, claim);
            })
            .expect("the first threads of a server can be started");
        Self { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)) }
    }

    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: Write = Box::new(move |conn| {
            let outcome = match conn {
                Ok(conn) => in_savepoint(conn, work).map_err(StoreError::named),
                Err(why) => Err(StoreError::NotCommitted { why: why.to_owned() }),
            };
            Box::new(move |failure: Option<&str>| {
                let outcome = match failure {
                    Some(why) if outcome.is_ok() => Err(StoreError::NotCommitted { why: why.to_owned() }),
                    _ => outcome,
                };
                // The caller may have gone away; the write stays.
                let _ = answer.send(outcome);
            })
        });
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue.ok_or(StoreError::Closed)?.send(job).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    /// Lets queued writes finish, folds the log in and ends the thread.
    pub(crate) async fn stop(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        join(thread).await;
    }
}

pub(super) async fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

fn in_savepoint<T>(
    conn: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    conn.execute_batch("SAVEPOINT one")?;
    // A panic must end neither the thread nor other writes.
    let outcome = catch_unwind(AssertUnwindSafe(|| work(conn)))
        .unwrap_or_else(|_| Err(StoreError::NotCommitted { why: "the write panicked".to_owned() }));
    conn.execute_batch(if outcome.is_ok() { "RELEASE one" } else { "ROLLBACK TO one; RELEASE one" })?;
    outcome
}

fn write_until_closed(conn: &Connection, mut jobs: mpsc::Receiver<Write>, heads: &Heads, disk: &Reserve) {
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(first) = jobs.blocking_recv() {
        batch.push(first);
        while batch.len() < BATCH {
            match jobs.try_recv() {
                Ok(job) => batch.push(job),
                Err(_) => break,
            }
        }
        disk.before_database_write();
        write_batch(conn, batch.drain(..));
        heads.refresh_events(conn);
    }
}

/// The order matters: the mark is removed when nothing is left to recover, the log file after the mark, the lock last.
/// A log that other servers use is theirs to fold in.
fn fold_and_close(conn: Connection, mut claim: Claim) {
    if !claim.is_last() {
        drop(conn);
        return;
    }
    match conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)) {
        Ok(0) => claim.release_cleanly(),
        Ok(_) => tracing::warn!("a reader prevented the checkpoint of the write-ahead log"),
        Err(error) => tracing::warn!(%error, "the write-ahead log could not be checkpointed at shutdown"),
    }
    drop(conn);
}

fn write_batch(conn: &Connection, batch: impl Iterator<Item = Write>) {
    if let Err(error) = conn.execute_batch("BEGIN IMMEDIATE") {
        // Without a transaction each savepoint would commit by itself: so nothing is done, and the error is reported.
        tracing::error!(%error, "a transaction could not be started");
        let why = error.to_string();
        batch.for_each(|job| job(Err(&why))(None));
        return;
    }
    let mut answers = Vec::new();
    for job in batch {
        // SQLite ends the whole transaction by itself if the disk is full or fails during it.
        let is_lost = conn.is_autocommit();
        answers.push(job(if is_lost { Err("the transaction was lost") } else { Ok(conn) }));
    }
    let failure = conn.execute_batch("COMMIT").err().map(|error| error.to_string());
    if let Some(why) = &failure {
        tracing::error!(why, writes = answers.len(), "writes could not be committed");
        if !conn.is_autocommit() && conn.execute_batch("ROLLBACK").is_err() {
            tracing::error!("a failed transaction could not be rolled back");
        }
    }
    for answer in answers {
        answer(failure.as_deref());
    }
}

/// A connection that only reads.
pub(super) fn open_reader(db: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(db, flags)?;
    conn.busy_timeout(std::time::Duration::from_secs(5))?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

pub(crate) struct Readers {
    queue: Mutex<Option<mpsc::Sender<Read>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    pub(crate) fn start(count: usize, db: &Path) -> Result<Self, rusqlite::Error> {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let jobs = Arc::new(Mutex::new(jobs));
        let mut threads = Vec::with_capacity(count);
        for at in 0..count {
            let conn = open_reader(db)?;
            let jobs = Arc::clone(&jobs);
            let thread = std::thread::Builder::new()
                .name(format!("store-reader-{at}"))
                .spawn(move || read_until_closed(&conn, &jobs))
                .expect("the first threads of a server can be started");
            threads.push(thread);
        }
        Ok(Self { queue: Mutex::new(Some(queue)), threads: Mutex::new(threads) })
    }

    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job: Read = Box::new(move |conn| {
            let _ = answer.send(in_one_snapshot(conn, work));
        });
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue.ok_or(StoreError::Closed)?.send(job).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    pub(crate) async fn stop(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            join(Some(thread)).await;
        }
    }
}

/// Runs a read in a transaction: all its statements see the same state of the database, whatever the writer commits
/// meanwhile.
fn in_one_snapshot<T>(
    conn: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let snapshot = conn.unchecked_transaction()?;
    work(&snapshot)
}

fn read_until_closed(conn: &Connection, jobs: &Mutex<mpsc::Receiver<Read>>) {
    loop {
        // Only the wait is under the lock; the work is not.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        let Some(job) = job else { return };
        if catch_unwind(AssertUnwindSafe(|| job(conn))).is_err() {
            tracing::error!("a read panicked");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_statements_of_a_read_see_one_state_of_the_database() {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("atoll.db");
        let writer = Connection::open(&db).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        writer.execute_batch("CREATE TABLE names (name TEXT); INSERT INTO names VALUES ('a')").unwrap();
        let readers = Readers::start(1, &db).unwrap();
        let count = |conn: &Connection| -> Result<i64, StoreError> {
            Ok(conn.query_row("SELECT count(*) FROM names", [], |row| row.get(0))?)
        };
        let read = readers.run(move |conn| {
            let before = count(conn)?;
            writer.execute("DELETE FROM names", [])?;
            Ok((before, count(conn)?))
        });
        assert_eq!(read.await.unwrap(), (1, 1));
        assert_eq!(readers.run(count).await.unwrap(), 0, "the next read sees the change");
        readers.stop().await;
    }
}
