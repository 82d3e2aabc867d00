//! The egress log: one record per decision, stored in files beside the store, read from the end, followed live.
//!
//! ```text
//! provider ──► one task: as many as wait ──► file of each sandbox ──► followers
//!                    │ too many at once: a record says how many are missing
//! ```
//!
//! A log has two generations of bounded size and outlives the server. What a learned policy needs from a removed
//! generation is kept separately. The log is removed with its sandbox.

mod file;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_disk::Reserve;
use atoll_model::policy::egress::learn::ObservedTargets;
use atoll_model::{
    Code, EgressRecord, EgressVerdict, EgressWhat, Lease, NetworkPolicy, Phase, Principal, SandboxId,
};
use atoll_provider::Egressed;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::sandboxes::{Sandboxes, SandboxesState};
use crate::{EgressQuery, ServiceError};
use file::LogFile;

/// LIMIT: records of a response by default, and at most.
const LINES: u32 = 100;
const LINES_MAX: u32 = 10_000;
/// LIMIT: records that a follower may be behind; after that it receives the number of missed ones.
const BEHIND: usize = 1_024;
/// LIMIT: records that are written at once.
const BATCH: usize = 1_024;

/// The logs of all sandboxes that are not deleted.
pub(crate) struct EgressLogs {
    dir: PathBuf,
    disk: Arc<Reserve>,
    logs: Mutex<HashMap<SandboxId, Arc<Log>>>,
}

/// Writing, reading and beginning to follow exclude each other: a follower has no gap and nothing twice.
struct Log {
    open: Mutex<Open>,
}

struct Open {
    file: LogFile,
    /// Exists only while there are followers, because its memory is allocated at once.
    news: Option<broadcast::Sender<EgressRecord>>,
}

impl EgressLogs {
    pub(crate) fn new(data: &std::path::Path, disk: &Arc<Reserve>) -> Self {
        let dir = data.join("egress");
        // If this fails, it is tried again with the first record.
        if let Err(error) = file::make_folder(&dir) {
            tracing::warn!(path = %dir.display(), %error, "the folder for egress logs cannot be created");
        }
        Self { dir, disk: Arc::clone(disk), logs: Mutex::default() }
    }

    fn of(&self, sandbox: &SandboxId) -> Arc<Log> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            Arc::new(Log {
                open: Mutex::new(Open { file: LogFile::new(&self.dir, sandbox, &self.disk), news: None }),
            })
        };
        Arc::clone(logs.entry(sandbox.clone()).or_insert_with(new))
    }

    fn all(&self) -> Vec<SandboxId> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Removes a sandbox's log; streams of followers end. Blocks.
    fn remove(&self, sandbox: &SandboxId) {
        let log = self.logs.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox);
        match log {
            Some(log) => log.open().file.remove(),
            None => LogFile::new(&self.dir, sandbox, &self.disk).remove(),
        }
    }
}

impl Log {
    /// Blocks.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn append(&mut self, records: Vec<EgressRecord>) {
        self.file.append(&records);
        self.news.take_if(|news| news.receiver_count() == 0);
        let Some(news) = &self.news else { return };
        for record in records {
            // A follower may disconnect at any moment.
            let _ = news.send(record);
        }
    }

    fn follow(&mut self) -> broadcast::Receiver<EgressRecord> {
        self.news.get_or_insert_with(|| broadcast::Sender::new(BEHIND)).subscribe()
    }
}

/// Writes down what a provider decides, from now on.
pub(crate) fn start(inner: &Arc<SandboxesState>, mut egressed: broadcast::Receiver<Egressed>) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        loop {
            let first = tokio::select! {
                () = own.closing.cancelled() => return,
                first = egressed.recv() => first,
            };
            let mut batch = Batch::default();
            match first {
                Ok(first) => batch.take(first),
                Err(RecvError::Lagged(missed)) => batch.missed += missed,
                Err(RecvError::Closed) => return,
            }
            while batch.count < BATCH {
                match egressed.try_recv() {
                    Ok(next) => batch.take(next),
                    Err(TryRecvError::Lagged(missed)) => batch.missed += missed,
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            write(&own, batch).await;
        }
    });
}

#[derive(Default)]
struct Batch {
    records: BTreeMap<SandboxId, Vec<EgressRecord>>,
    count: usize,
    missed: u64,
}

impl Batch {
    fn take(&mut self, egressed: Egressed) {
        self.records.entry(egressed.sandbox).or_default().push(egressed.record);
        self.count += 1;
    }
}

async fn write(inner: &Arc<SandboxesState>, mut batch: Batch) {
    let own = Arc::clone(inner);
    let now_ms = inner.clock.now().wall_ms;
    let written = tokio::task::spawn_blocking(move || {
        if batch.missed > 0 {
            tracing::warn!(missed = batch.missed, "egress records came faster than they could be written");
            // The sandboxes of the missed records are not known.
            for sandbox in own.logs.all() {
                batch
                    .records
                    .entry(sandbox)
                    .or_default()
                    .insert(0, lost(now_ms, batch.missed, "of all sandboxes"));
            }
        }
        for (sandbox, records) in batch.records {
            let log = own.logs.of(&sandbox);
            log.open().append(records);
            // A late record must not create the log of a deleted sandbox again.
            if own.registry.get(&sandbox).is_none() {
                own.logs.remove(&sandbox);
            }
        }
    });
    if let Err(error) = written.await {
        tracing::error!(%error, "egress records were not written");
    }
}

/// The record in place of missing ones.
fn lost(at_ms: i64, count: u64, whose: &str) -> EgressRecord {
    EgressRecord {
        at_ms,
        what: EgressWhat::Lost,
        verdict: EgressVerdict::Failed,
        rule: format!("{count} records {whose} were lost"),
        name: None,
        address: None,
        port: None,
        protocol: None,
        sent: 0,
        received: 0,
    }
}

/// Removes the logs of sandboxes that are deleted, in the background. A sandbox without a driver may belong to a provider that
/// is not configured: the store decides.
pub(crate) fn start_sweep(inner: &Arc<SandboxesState>) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        let dir = own.logs.dir.clone();
        let found = tokio::task::spawn_blocking(move || file::found(&dir)).await.unwrap_or_default();
        for sandbox in found.into_iter().filter(|sandbox| own.registry.get(sandbox).is_none()) {
            match own.store.lease(&sandbox).await {
                Ok(Some(lease)) if lease.phase != Phase::Deleted => {}
                Ok(_) if own.registry.get(&sandbox).is_none() => remove(&own, &sandbox).await,
                Ok(_) | Err(_) => {}
            }
        }
    });
}

/// Removes the log of a sandbox that is gone.
pub(crate) async fn remove(inner: &Arc<SandboxesState>, sandbox: &SandboxId) {
    let (own, sandbox) = (Arc::clone(inner), sandbox.clone());
    let _ = tokio::task::spawn_blocking(move || own.logs.remove(&sandbox)).await;
}

impl Sandboxes {
    /// The decisions about outgoing connections of a sandbox, newest last.
    pub async fn egress_log(
        &self,
        who: &Principal,
        ident: &str,
        query: EgressQuery,
    ) -> Result<Vec<EgressRecord>, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        self.with_log(&lease, move |log| log.open().file.newest(limit(&query), |record| fits(&query, record)))
            .await
    }

    /// The decisions so far, then new ones. Ends with the sandbox or the server.
    pub async fn follow_egress(
        &self,
        who: &Principal,
        ident: &str,
        query: EgressQuery,
    ) -> Result<BoxStream<'static, EgressRecord>, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        let asked = query.clone();
        let begun = self.with_log(&lease, move |log| {
            let mut open = log.open();
            Some((open.file.newest(limit(&asked), |record| fits(&asked, record)), open.follow()))
        });
        let Some((before, news)) = begun.await? else { return Ok(futures::stream::empty().boxed()) };
        let follower = Follower { inner: Arc::clone(&self.inner), query, news };
        let coming = futures::stream::unfold(follower, Follower::next);
        Ok(futures::stream::iter(before).chain(coming).boxed())
    }

    /// The smallest policy that would have allowed what was recorded.
    pub async fn learned(&self, who: &Principal, ident: &str) -> Result<NetworkPolicy, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        let seen = self.with_log(&lease, |log| log.open().file.seen()).await?;
        Ok(ObservedTargets::policy(&seen, lease.network.limits))
    }

    async fn with_log<T: Default + Send + 'static>(
        &self,
        lease: &Lease,
        look: impl FnOnce(&Log) -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        if lease.phase == Phase::Deleted {
            return Ok(T::default());
        }
        let (inner, sandbox) = (Arc::clone(&self.inner), lease.id.clone());
        let looked = tokio::task::spawn_blocking(move || look(&inner.logs.of(&sandbox))).await;
        looked.map_err(|error| {
            ServiceError::new(Code::Internal, "the egress log could not be read").caused_by(error)
        })
    }
}

fn limit(query: &EgressQuery) -> usize {
    let limit = if query.limit == 0 { LINES } else { query.limit.min(LINES_MAX) };
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Records about missing ones match every query.
fn fits(query: &EgressQuery, record: &EgressRecord) -> bool {
    let is_wanted = query.verdict.is_none_or(|verdict| verdict == record.verdict);
    query.since_ms.is_none_or(|since| record.at_ms > since) && (is_wanted || record.what == EgressWhat::Lost)
}

struct Follower {
    inner: Arc<SandboxesState>,
    query: EgressQuery,
    news: broadcast::Receiver<EgressRecord>,
}

impl Follower {
    async fn next(mut self) -> Option<(EgressRecord, Self)> {
        loop {
            let next = tokio::select! {
                () = self.inner.closing.cancelled() => return None,
                next = self.news.recv() => next,
            };
            let record = match next {
                Ok(record) => record,
                Err(RecvError::Lagged(missed)) => {
                    lost(self.inner.clock.now().wall_ms, missed, "of this sandbox")
                }
                Err(RecvError::Closed) => return None,
            };
            if fits(&self.query, &record) {
                return Some((record, self));
            }
        }
    }
}
