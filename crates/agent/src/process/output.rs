//! Output of one process: a bounded tail for late comers and a bounded queue per reader.
//!
//! A reader is *patient* (the one that started the process: the process waits for it while it makes progress, so that
//! it gets every byte) or *lossy* (everybody else: what does not fit is counted and lost). A patient reader that takes
//! nothing for [`STALL_LIMIT`], or goes away, becomes lossy. So no reader ever blocks a process for good.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Exit;

/// LIMIT: what a late reader sees of one process.
const TAIL_MAX: usize = 256 * 1024;
/// LIMIT: and what it sees when all tails together are above [`TAILS_BUDGET`].
const TAIL_MIN: usize = 16 * 1024;
const TAILS_BUDGET: usize = 8 << 20;
/// LIMIT: pieces in a tail, so that alternating single bytes do not cost more than the bytes.
const RUNS_MAX: usize = 8192;
/// LIMIT: what waits for one reader. A pipe holds 64 KiB, so this is ample for full speed.
const QUEUE_MAX: usize = 256 * 1024;
/// LIMIT: what an entry in a queue costs besides its bytes.
const ENTRY_COST: usize = 64;
/// LIMIT: readers of one process.
const READERS_MAX: usize = 64;
/// A reader that takes nothing for so long is dead for the process: long enough for a starved host, short enough
/// that a build behind a hung terminal goes on.
const STALL_LIMIT: Duration = Duration::from_secs(10);
/// LIMIT: bytes per replayed chunk, like a live one.
const REPLAY_CHUNK: usize = 32 * 1024;

static TAILS_TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Whether ended processes should give up their tails early.
pub(super) fn over_budget() -> bool {
    TAILS_TOTAL.load(Ordering::Relaxed) > TAILS_BUDGET
}

/// Where bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Pty,
}

/// What a reader gets. `Exit` is the last.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Data(Source, Bytes),
    Dropped(u64),
    Exit(Exit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Patient,
    Lossy,
}

#[derive(Debug, Default)]
pub(crate) struct Hub {
    state: Mutex<HubState>,
}

#[derive(Debug, Default)]
struct HubState {
    tail: Tail,
    readers: Vec<Arc<Queue>>,
    exit: Option<Exit>,
}

impl Hub {
    /// A reader from now on; with `replay`, the tail comes first. After the end it gets the exit at once.
    pub(crate) fn reader(&self, patience: Patience, replay: bool) -> Option<Reader> {
        let mut state = self.lock();
        state.readers.retain(|queue| !queue.lock().gone);
        if state.readers.len() >= READERS_MAX {
            return None;
        }
        let queue = Arc::new(Queue::new(patience));
        if replay {
            let mut entries = queue.lock();
            for (source, data) in state.tail.chunks() {
                entries.bytes += data.len() + ENTRY_COST;
                entries.items.push_back((source, data));
            }
        }
        queue.lock().exit = state.exit;
        if state.exit.is_none() {
            state.readers.push(Arc::clone(&queue));
        }
        Some(Reader { queue })
    }

    /// Hands bytes to everybody. Waits for the patient reader only.
    pub(crate) async fn publish(&self, source: Source, data: Bytes) {
        let waiting = {
            let mut state = self.lock();
            state.tail.push(source, &data);
            state.readers.retain(|queue| !queue.lock().gone);
            let full = state.readers.iter().filter(|queue| !queue.offer(source, &data));
            full.cloned().collect::<Vec<_>>()
        };
        for queue in waiting {
            queue.push_patiently(source, data.clone()).await;
        }
    }

    /// No more output for readers; each gets the exit after what it has queued.
    pub(crate) fn finish(&self, exit: Exit) {
        let mut state = self.lock();
        state.exit = Some(exit);
        for queue in state.readers.drain(..) {
            queue.lock().exit = Some(exit);
            queue.ready.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receiving end of one reader. Dropping it frees the process at once.
#[derive(Debug)]
pub(crate) struct Reader {
    queue: Arc<Queue>,
}

impl Reader {
    /// The next item. Cancel-safe: an item is taken only when it is returned. `None` after the exit.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.queue.take() {
                return item;
            }
            self.queue.ready.notified().await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut entries = self.queue.lock();
        entries.gone = true;
        entries.items.clear();
        drop(entries);
        self.queue.space.notify_one();
    }
}

#[derive(Debug)]
struct Queue {
    entries: Mutex<Entries>,
    ready: Notify,
    space: Notify,
}

#[derive(Debug)]
struct Entries {
    items: VecDeque<(Source, Bytes)>,
    bytes: usize,
    dropped: u64,
    exit: Option<Exit>,
    ended: bool,
    gone: bool,
    patience: Patience,
    taken_at: Instant,
}

impl Queue {
    fn new(patience: Patience) -> Self {
        let entries = Entries {
            items: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            exit: None,
            ended: false,
            gone: false,
            patience,
            taken_at: Instant::now(),
        };
        Self { entries: Mutex::new(entries), ready: Notify::new(), space: Notify::new() }
    }

    /// Queues bytes or counts them as lost. False: full, and the reader is one to wait for.
    fn offer(&self, source: Source, data: &Bytes) -> bool {
        let mut entries = self.lock();
        let cost = data.len() + ENTRY_COST;
        if entries.bytes + cost <= QUEUE_MAX {
            entries.bytes += cost;
            entries.items.push_back((source, data.clone()));
        } else if entries.patience == Patience::Patient {
            return false;
        } else {
            entries.dropped += data.len() as u64;
        }
        drop(entries);
        self.ready.notify_one();
        true
    }

    async fn push_patiently(&self, source: Source, data: Bytes) {
        while !self.offer(source, &data) {
            let stalled_at = self.lock().taken_at + STALL_LIMIT;
            tokio::select! {
                () = self.space.notified() => {}
                () = tokio::time::sleep_until(stalled_at) => {
                    let mut entries = self.lock();
                    if entries.taken_at + STALL_LIMIT <= Instant::now() {
                        entries.patience = Patience::Lossy;
                    }
                }
            }
            if self.lock().gone {
                return;
            }
        }
    }

    /// `None`: nothing yet. `Some(None)`: the end.
    #[expect(clippy::option_option, reason = "not yet and never are two things")]
    fn take(&self) -> Option<Option<Item>> {
        let mut entries = self.lock();
        entries.taken_at = Instant::now();
        if let Some((source, data)) = entries.items.pop_front() {
            entries.bytes -= data.len() + ENTRY_COST;
            drop(entries);
            self.space.notify_one();
            return Some(Some(Item::Data(source, data)));
        }
        if entries.dropped > 0 {
            return Some(Some(Item::Dropped(std::mem::take(&mut entries.dropped))));
        }
        match entries.exit {
            Some(exit) if !entries.ended => {
                entries.ended = true;
                Some(Some(Item::Exit(exit)))
            }
            Some(_) => Some(None),
            None => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest bytes, as runs of one source each.
#[derive(Debug, Default)]
struct Tail {
    bytes: VecDeque<u8>,
    runs: VecDeque<(Source, usize)>,
}

impl Tail {
    fn push(&mut self, source: Source, data: &[u8]) {
        let total = TAILS_TOTAL.load(Ordering::Relaxed);
        let max = if total > TAILS_BUDGET { TAIL_MIN } else { TAIL_MAX };
        let before = self.bytes.len();
        let data = &data[data.len().saturating_sub(max)..];
        self.bytes.extend(data);
        match self.runs.back_mut() {
            Some((last, len)) if *last == source => *len += data.len(),
            _ => self.runs.push_back((source, data.len())),
        }
        while self.bytes.len() > max || self.runs.len() > RUNS_MAX {
            let many = self.runs.len() > RUNS_MAX;
            let Some((_, len)) = self.runs.front_mut() else { break };
            let cut = if many { *len } else { (self.bytes.len() - max).min(*len) };
            *len -= cut;
            let emptied = *len == 0;
            self.bytes.drain(..cut);
            if emptied {
                self.runs.pop_front();
            }
        }
        let after = self.bytes.len();
        TAILS_TOTAL.fetch_add(after, Ordering::Relaxed);
        TAILS_TOTAL.fetch_sub(before, Ordering::Relaxed);
    }

    fn chunks(&self) -> Vec<(Source, Bytes)> {
        let mut chunks = Vec::new();
        let mut bytes = self.bytes.iter().copied();
        for &(source, len) in &self.runs {
            let mut left = len;
            while left > 0 {
                let size = left.min(REPLAY_CHUNK);
                chunks.push((source, bytes.by_ref().take(size).collect::<Vec<u8>>().into()));
                left -= size;
            }
        }
        chunks
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        TAILS_TOTAL.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DONE: Exit = Exit { code: 0, signal: 0, core_dumped: false, timed_out: false };

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    async fn drain(mut reader: Reader) -> (usize, u64, bool) {
        let (mut bytes, mut dropped, mut ended) = (0, 0, false);
        while let Some(item) = reader.next().await {
            match item {
                Item::Data(_, data) => bytes += data.len(),
                Item::Dropped(n) => dropped += n,
                Item::Exit(_) => ended = true,
            }
        }
        (bytes, dropped, ended)
    }

    #[test]
    fn a_lossy_reader_that_never_reads_blocks_nobody_and_counts_its_loss() {
        runtime().block_on(async {
            let hub = Hub::default();
            let reader = hub.reader(Patience::Lossy, false).unwrap();
            for _ in 0..100 {
                hub.publish(Source::Stdout, Bytes::from(vec![0; 32 * 1024])).await;
            }
            hub.finish(DONE);
            let (bytes, dropped, ended) = drain(reader).await;
            assert_eq!(bytes as u64 + dropped, 100 * 32 * 1024);
            assert!(dropped > 0 && ended && bytes <= QUEUE_MAX);
        });
    }

    #[test]
    fn a_patient_reader_that_stalls_is_waited_for_ten_seconds_and_then_no_more() {
        runtime().block_on(async {
            let hub = Hub::default();
            let reader = hub.reader(Patience::Patient, false).unwrap();
            let start = Instant::now();
            for _ in 0..100 {
                hub.publish(Source::Stdout, Bytes::from(vec![0; 32 * 1024])).await;
            }
            assert!(start.elapsed() >= STALL_LIMIT && start.elapsed() < STALL_LIMIT * 2);
            hub.finish(DONE);
            assert!(drain(reader).await.1 > 0);
        });
    }

    #[test]
    fn a_late_reader_gets_the_tail_and_the_exit() {
        runtime().block_on(async {
            let hub = Hub::default();
            hub.publish(Source::Stdout, Bytes::from_static(b"out")).await;
            hub.publish(Source::Stderr, Bytes::from_static(b"err")).await;
            hub.finish(DONE);
            let mut reader = hub.reader(Patience::Lossy, true).unwrap();
            assert!(matches!(reader.next().await, Some(Item::Data(Source::Stdout, data)) if data == "out"));
            assert!(matches!(reader.next().await, Some(Item::Data(Source::Stderr, data)) if data == "err"));
            assert!(matches!(reader.next().await, Some(Item::Exit(_))));
            assert!(reader.next().await.is_none());
        });
    }

    proptest! {
        #[test]
        fn the_tail_is_the_end_of_what_was_written(pieces in prop::collection::vec((any::<bool>(), 0usize..90_000), 0..12)) {
            let mut tail = Tail::default();
            let mut all: Vec<(bool, u8)> = Vec::new();
            for (n, (err, len)) in pieces.iter().enumerate() {
                let data = vec![n as u8; *len];
                tail.push(if *err { Source::Stderr } else { Source::Stdout }, &data);
                all.extend(data.iter().map(|b| (*err, *b)));
            }
            let kept: Vec<(bool, u8)> = tail.chunks().iter()
                .flat_map(|(source, data)| data.iter().map(move |b| (*source == Source::Stderr, *b)).collect::<Vec<_>>()).collect();
            prop_assert!(kept.len() <= TAIL_MAX);
            prop_assert_eq!(&kept[..], &all[all.len() - kept.len()..]);
            prop_assert!(kept.len() == all.len().min(TAIL_MAX) || all.len() > TAIL_MIN);
        }
    }
}
