//! The queue of an upload's chunks between the connection and the disk. One worker at a time empties it.
//!
//! ```text
//! connection ──push──▶ queue (bounded) ──turn of a worker──▶ sink
//! ```
//!
//! A worker writes until the queue is empty or its turn is over, so that the disk does not wait for a hand-over between
//! two chunks. A worker never waits for the network: it ends when the queue is empty, and another turn starts with the
//! next bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::error::AgentError;
use crate::identity::{RunningJob, Workers};
use crate::setup::give_back_heap;
use crate::users::Ids;

/// LIMIT: bytes and chunks of one upload in the queue; above it the client waits.
const HELD_MAX: usize = 1 << 20;
const CHUNKS_MAX: usize = 64;
/// A worker is started when this much is queued, and the client continues when this much is left.
const WORTHWHILE: usize = HELD_MAX / 4;
/// LIMIT: bytes of one turn, so that other uploads get their turns.
const TURN_MAX: usize = 8 << 20;

/// The destination of chunks.
pub(super) trait Sink: Send + 'static {
    fn write(&mut self, chunk: &[u8]) -> Result<(), AgentError>;
}

/// Feeds one sink. If it is dropped before [`Feed::end`], the sink is dropped on the worker that has it.
pub(super) struct Feed<'a, S> {
    workers: &'a Workers,
    ids: &'a Ids,
    queue: Arc<ChunkQueue>,
    stage: FeedStage<S>,
    /// Bytes so far.
    pushed: usize,
}

enum FeedStage<S> {
    Idle(S),
    Writing(RunningJob<S>),
    /// The sink is gone: a write failed, or the worker was lost.
    Broken,
}

impl<'a, S: Sink> Feed<'a, S> {
    pub(super) fn new(workers: &'a Workers, ids: &'a Ids, sink: S) -> Self {
        Self { workers, ids, queue: Arc::default(), stage: FeedStage::Idle(sink), pushed: 0 }
    }

    /// Adds a chunk; waits while the queue is full.
    pub(super) async fn push(&mut self, chunk: Bytes) -> Result<(), AgentError> {
        self.pushed = self.pushed.saturating_add(chunk.len());
        let held = self.queue.push(chunk);
        if let FeedStage::Writing(begun) = &mut self.stage
            && let Some(answer) = begun.answer_now()
        {
            self.settle(answer)?;
        }
        if held >= WORTHWHILE {
            self.start()?;
        }
        while self.queue.is_full() {
            self.start()?;
            let FeedStage::Writing(begun) = &mut self.stage else { continue };
            let answer = tokio::select! {
                () = self.queue.room.notified() => None,
                answer = begun.answer() => Some(answer),
            };
            if let Some(answer) = answer {
                self.settle(answer)?;
            }
        }
        Ok(())
    }

    /// Writes the rest and returns the sink.
    pub(super) async fn end(mut self) -> Result<S, AgentError> {
        loop {
            match self.stage {
                FeedStage::Writing(mut begun) => self.stage = FeedStage::Idle(begun.answer().await?),
                FeedStage::Idle(sink) if self.queue.is_empty() => {
                    if self.pushed > HELD_MAX {
                        give_back_heap();
                    }
                    return Ok(sink);
                }
                FeedStage::Idle(_) => self.start()?,
                FeedStage::Broken => return Err(lost()),
            }
        }
    }

    fn settle(&mut self, answer: Result<S, AgentError>) -> Result<(), AgentError> {
        self.stage = FeedStage::Broken;
        self.stage = FeedStage::Idle(answer?);
        Ok(())
    }

    /// Starts a worker unless one is running.
    fn start(&mut self) -> Result<(), AgentError> {
        match std::mem::replace(&mut self.stage, FeedStage::Broken) {
            FeedStage::Idle(mut sink) => {
                let queue = Arc::clone(&self.queue);
                let turn = move || queue.empty_into(&mut sink).map(|()| sink);
                self.stage = FeedStage::Writing(self.workers.begin(self.ids, turn)?);
            }
            writing @ FeedStage::Writing(_) => self.stage = writing,
            FeedStage::Broken => return Err(lost()),
        }
        Ok(())
    }
}

fn lost() -> AgentError {
    AgentError::Internal("the file of the upload was removed".into())
}

#[derive(Default)]
struct ChunkQueue {
    held: Mutex<QueuedChunks>,
    /// Notified each time that enough has been taken from a full queue.
    room: Notify,
}

#[derive(Default)]
struct QueuedChunks {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    /// The client waits for space.
    full: bool,
}

impl QueuedChunks {
    fn is_low(&self) -> bool {
        self.bytes <= WORTHWHILE && self.chunks.len() <= CHUNKS_MAX / 4
    }
}

impl ChunkQueue {
    /// Adds a chunk; returns the number of bytes in the queue.
    fn push(&self, chunk: Bytes) -> usize {
        let mut held = self.lock();
        held.bytes += chunk.len();
        held.chunks.push_back(chunk);
        held.bytes
    }

    fn is_full(&self) -> bool {
        let mut held = self.lock();
        held.full = match held.full {
            // A full queue stays marked as full until a good part is gone: otherwise every chunk would cost a wake-up.
            true => !held.is_low(),
            false => held.bytes >= HELD_MAX || held.chunks.len() >= CHUNKS_MAX,
        };
        held.full
    }

    fn is_empty(&self) -> bool {
        self.lock().chunks.is_empty()
    }

    fn pop(&self) -> Option<Bytes> {
        let mut held = self.lock();
        let chunk = held.chunks.pop_front()?;
        held.bytes -= chunk.len();
        if held.full && held.is_low() {
            self.room.notify_one();
        }
        Some(chunk)
    }

    fn empty_into(&self, sink: &mut impl Sink) -> Result<(), AgentError> {
        let mut written = 0;
        while written < TURN_MAX
            && let Some(chunk) = self.pop()
        {
            sink.write(&chunk)?;
            written += chunk.len();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, QueuedChunks> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Stores the bytes, slowly if requested, and fails above a limit, as a full disk does.
    struct SlowSink {
        got: Vec<u8>,
        room: usize,
        pause: Duration,
    }

    impl Sink for SlowSink {
        fn write(&mut self, chunk: &[u8]) -> Result<(), AgentError> {
            std::thread::sleep(self.pause);
            if self.got.len() + chunk.len() > self.room {
                return Err(AgentError::Invalid("full".into()));
            }
            self.got.extend_from_slice(chunk);
            Ok(())
        }
    }

    fn slow(room: usize, pause: Duration) -> SlowSink {
        SlowSink { got: Vec::new(), room, pause }
    }

    #[tokio::test]
    async fn every_byte_arrives_in_order_over_many_turns_and_little_is_held() {
        let (workers, ids) = (Workers::new(), Ids::ROOT);
        let mut feed = Feed::new(&workers, &ids, slow(usize::MAX, Duration::ZERO));
        let mut sent = Vec::new();
        for n in 0..1_500_usize {
            let chunk: Vec<u8> = (0..n * 97 % 30_000).map(|i| (n + i) as u8).collect();
            sent.extend_from_slice(&chunk);
            feed.push(chunk.into()).await.unwrap();
            assert!(feed.queue.lock().bytes < HELD_MAX);
        }
        assert!(sent.len() > 2 * TURN_MAX);
        assert!(feed.end().await.unwrap().got == sent);
    }

    #[tokio::test]
    async fn tiny_chunks_are_held_in_bounded_number() {
        let (workers, ids) = (Workers::new(), Ids::ROOT);
        let mut feed = Feed::new(&workers, &ids, slow(usize::MAX, Duration::from_micros(50)));
        for _ in 0..1_000 {
            feed.push(Bytes::from_static(b"x")).await.unwrap();
            assert!(feed.queue.lock().chunks.len() < CHUNKS_MAX);
        }
        assert_eq!(feed.end().await.unwrap().got.len(), 1_000);
    }

    #[tokio::test]
    async fn a_full_disk_ends_the_upload_while_it_is_sent() {
        let (workers, ids) = (Workers::new(), Ids::ROOT);
        let mut feed = Feed::new(&workers, &ids, slow(1 << 20, Duration::ZERO));
        let chunk = Bytes::from(vec![0; 64 * 1024]);
        let mut refused = None;
        for _ in 0..1_000 {
            if let Err(refusal) = feed.push(chunk.clone()).await {
                refused = Some(refusal);
                break;
            }
        }
        assert!(matches!(refused, Some(AgentError::Invalid(_))));
        assert!(feed.end().await.is_err());
    }

    #[tokio::test]
    async fn an_empty_upload_needs_no_worker() {
        let (workers, ids) = (Workers::new(), Ids::ROOT);
        assert!(Feed::new(&workers, &ids, slow(0, Duration::ZERO)).end().await.unwrap().got.is_empty());
    }
}
