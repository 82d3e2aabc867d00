//! A folder on its way to the target: digested, with the owners that it has there, and never more than the target may hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_agentapi::AgentError;
use atoll_disk::{Purpose, Reserve};
use atoll_model::Code;
use atoll_provider::Provider;
use bytes::Bytes;
use futures::{Stream, StreamExt};

use super::{Teller, unreadable};
use crate::ServiceError;
use crate::agent::{AgentOperation, refusal};
use crate::moving::MovePlan;
use crate::moving::manifest::{FolderDigest, Manifest};
use crate::moving::owners::{OwnerMapping, OwnerRewriter};

/// After so many more bytes the target is asked again how much space it has.
const ASK_EVERY: u64 = 32 << 20;
/// LIMIT: space at the target that a copy leaves free.
const LEAST_FREE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// LIMIT: bytes of a stream that belong to no file: a stream of nothing must end too.
const PASSED_MAX: u64 = 64 << 20;
/// LIMIT: bytes of headers and padding for each byte that an entry is counted with.
const PASSED_PER_ENTRY_BYTE: u64 = 8;

/// How much of a folder was read.
#[derive(Debug, Clone, Copy)]
struct StreamCounts {
    /// Bytes of data in the headers.
    announced: u64,
    /// What the entries themselves take.
    entries: u64,
    /// Bytes of data.
    sent: u64,
    /// All bytes of the stream.
    passed: u64,
}

/// What is known of a folder while its stream passes.
pub(super) struct SentFolder {
    manifest: Manifest,
    /// `None`: owners do not change.
    rewriter: Option<OwnerRewriter>,
    teller: Teller,
    /// All bytes of the stream.
    passed: u64,
    failure: Option<ServiceError>,
}

/// The space for the files of the sandbox at the target. Not every target limits a sandbox by itself: the files of `local` and
/// `docker` are on a disk that others need too.
pub(super) struct TargetRoom {
    target: Arc<dyn Provider>,
    disk_mib: u32,
    /// Bytes of the folders that were copied before.
    copied_bytes: u64,
    /// What stays free, where the target does not account for that by itself.
    reserve: u64,
    /// The announced bytes when the target was asked last; `None`: it was not yet.
    asked_at: Option<u64>,
}

impl TargetRoom {
    pub(super) fn new(plan: &MovePlan, disk: &Reserve, copied_bytes: u64) -> Self {
        let reserve = if plan.target.capabilities().limits_disk { 0 } else { disk.floor(Purpose::Data) };
        let (target, disk_mib) = (Arc::clone(&plan.target), plan.after.limits.disk_mib);
        Self { target, disk_mib, copied_bytes, reserve, asked_at: None }
    }

    /// Refuses a file by the size of its data in its header, before the data is sent.
    async fn check(&mut self, counts: StreamCounts) -> Result<(), ServiceError> {
        let StreamCounts { announced, entries, sent, passed } = counts;
        if passed
            > announced
                .saturating_add(PASSED_MAX)
                .saturating_add(entries.saturating_mul(PASSED_PER_ENTRY_BYTE))
        {
            return Err(unreadable());
        }
        let bytes = self.copied_bytes.saturating_add(announced).saturating_add(entries);
        if bytes > u64::from(self.disk_mib) * MIB {
            let message = format!(
                "the files have at least {} MiB, and the disk limit of the sandbox is {} MiB",
                bytes.div_ceil(MIB),
                self.disk_mib
            );
            return Err(ServiceError::new(Code::DiskFull, message).hint(
                "remove files, or give the sandbox a larger disk_mib; holes of sparse files do not count, but of a file with more \
                 than 65,536 pieces the small ones are sent as data",
            ));
        }
        if self.asked_at.is_some_and(|asked_at| announced < asked_at.saturating_add(ASK_EVERY)) {
            return Ok(());
        }
        self.asked_at = Some(announced);
        let free = self.target.node().await?.disk_free_mib.saturating_mul(MIB);
        let kept = self.reserve.saturating_add(LEAST_FREE);
        let missing = announced.saturating_sub(sent);
        if free >= kept.saturating_add(missing) {
            return Ok(());
        }
        let message = format!(
            "the disk of provider {} has {} MiB free, of which {} MiB stay free; the files need {} MiB more",
            self.target.name(),
            free / MIB,
            kept / MIB,
            missing.div_ceil(MIB)
        );
        Err(ServiceError::new(Code::DiskFull, message)
            .hint("free space on that disk, or move the sandbox to another provider"))
    }
}

impl SentFolder {
    pub(super) fn new(manifest: Manifest, mapping: OwnerMapping, teller: Teller) -> Arc<Mutex<Self>> {
        let rewriter = OwnerRewriter::new(mapping);
        Arc::new(Mutex::new(Self { manifest, rewriter, teller, passed: 0, failure: None }))
    }

    /// What the move reports, if the stream was broken off.
    pub(super) fn failure(&mut self) -> Option<ServiceError> {
        self.failure.take()
    }

    /// The digest, if the stream was complete.
    pub(super) fn finish(&mut self) -> Result<FolderDigest, ServiceError> {
        std::mem::take(&mut self.manifest).finish().map_err(|cause| unreadable().caused_by(cause))
    }

    fn pass(&mut self, chunk: Result<Bytes, AgentError>) -> std::io::Result<Bytes> {
        let passed = chunk.map_err(|error| refusal(AgentOperation::File, error)).and_then(|chunk| {
            self.passed += chunk.len() as u64;
            self.manifest.push(&chunk).map_err(|cause| unreadable().caused_by(cause))?;
            match &mut self.rewriter {
                Some(rewriter) => rewriter.push(&chunk).map_err(|cause| unreadable().caused_by(cause)),
                None => Ok(chunk),
            }
        });
        self.teller.count(self.manifest.counts());
        self.or_broken(passed)
    }

    /// What follows the last bytes of the source.
    fn end(&mut self) -> std::io::Result<Bytes> {
        let ended = self.rewriter.as_ref().map_or_else(|| Ok(Bytes::new()), OwnerRewriter::finish);
        self.or_broken(ended.map_err(|cause| unreadable().caused_by(cause)))
    }

    /// The target gets no more; the failure is what the move reports.
    fn or_broken<T>(&mut self, passed: Result<T, ServiceError>) -> std::io::Result<T> {
        passed.map_err(|failure| {
            self.failure.get_or_insert(failure);
            std::io::ErrorKind::BrokenPipe.into()
        })
    }

    fn counts(&self) -> StreamCounts {
        StreamCounts {
            announced: self.manifest.announced_bytes(),
            entries: self.manifest.entry_bytes(),
            sent: self.manifest.counts().1,
            passed: self.passed,
        }
    }
}

/// The stream for the target. What it may not hold is not sent.
pub(super) fn stream(
    source: impl Stream<Item = Result<Bytes, AgentError>> + Send + 'static,
    sent: &Arc<Mutex<SentFolder>>,
    room: TargetRoom,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    let (passing, ending, checking) = (Arc::clone(sent), Arc::clone(sent), Arc::clone(sent));
    let content = source.map(move |chunk| lock(&passing).pass(chunk));
    let content = content.chain(futures::stream::once(async move { lock(&ending).end() }));
    futures::stream::unfold((Box::pin(content), room), move |(mut content, mut room)| {
        let sent = Arc::clone(&checking);
        async move {
            let mut chunk = content.next().await?;
            if chunk.is_ok() {
                let counts = lock(&sent).counts();
                if let Err(failure) = room.check(counts).await {
                    chunk = lock(&sent).or_broken(Err(failure));
                }
            }
            Some((chunk, (content, room)))
        }
    })
}

pub(super) fn lock(sent: &Mutex<SentFolder>) -> MutexGuard<'_, SentFolder> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}
