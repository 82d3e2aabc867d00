//! Output of one process: a bounded tail for late readers and a bounded queue per reader.
//!
//! A reader is *patient* or *lossy*. The patient reader is the one that started the process: the process waits for it
//! while it makes progress, so that it gets every byte. All other readers are lossy: bytes that do not fit are counted
//! and lost. A patient reader that takes nothing for [`STALL_LIMIT`], or disconnects, becomes lossy. So no reader
//! blocks a process for ever.
//!
//! Every byte has a position: the number of bytes before it, from all sources. A patient reader whose connection breaks
//! (as in a checkpoint) may return within [`RETURN_LIMIT`] with its position, and loses nothing: the bytes in flight to
//! it fit the tail, and until then nothing leaves the tail.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Exit;
use crate::running;

/// LIMIT: bytes that a late reader sees of one process. This is more than can be in flight to a patient reader: its
/// queue, the connection's buffer, the socket's (see `serve`), and the other end's while that is small.
const TAIL_MAX: usize = 1 << 20;
/// LIMIT: the same when all tails together are above [`TAILS_BUDGET`].
const TAIL_MIN: usize = 16 * 1024;
const TAILS_BUDGET: usize = 16 << 20;
/// LIMIT: runs in a tail, so that alternating single bytes do not cost more than the bytes.
const RUNS_MAX: usize = 8192;
/// LIMIT: bytes in the queue of one reader. A pipe holds 64 KiB, so this is enough for full speed; lossy readers get
/// more.
const QUEUE_MAX: usize = 128 * 1024;
const LOSSY_QUEUE_MAX: usize = 256 * 1024;
/// LIMIT: the cost of a queue entry besides its bytes.
const ENTRY_COST: usize = 64;
/// LIMIT: readers of one process.
const READERS_MAX: usize = 64;
/// A reader that takes nothing for this long is ignored by the process: long enough for an overloaded host, short
/// enough that a build behind a hung terminal continues.
const STALL_LIMIT: Duration = Duration::from_secs(10);
/// How long a patient reader with a broken connection may take to return, once its process has filled the tail. It is
/// longer than a restored sandbox needs to be greeted, and a build whose reader does not return loses no more time than
/// that.
const RETURN_LIMIT: Duration = Duration::from_secs(3);
/// LIMIT: bytes per replayed chunk, like a live one.
const REPLAY_CHUNK: usize = 32 * 1024;

static TAILS_TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Whether ended processes should free their tails early.
pub(super) fn over_budget() -> bool {
    TAILS_TOTAL.load(Ordering::Relaxed) > TAILS_BUDGET
}

/// The source of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputSource {
    Stdout,
    Stderr,
    Pty,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadFrom {
    /// With the next output.
    Now,
    /// With everything that is kept.
    Tail,
    /// At this position.
    At(u64),
}

/// An item for a reader. `Exit` is the last.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Data(OutputSource, Bytes),
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
    returned: Notify,
}

#[derive(Debug, Default)]
struct HubState {
    tail: Tail,
    readers: Vec<Arc<OutputQueue>>,
    exit: Option<Exit>,
    /// Until when a patient reader that disconnected may return.
    expected: Option<Instant>,
}

impl HubState {
    /// Removes readers that are gone, and waits for the return of a patient one.
    fn sweep(&mut self) {
        let mut left_patient = false;
        self.readers.retain(|queue| {
            let entries = queue.lock();
            left_patient |= entries.gone && entries.patience == Patience::Patient;
            !entries.gone
        });
        if left_patient {
            self.expected = Some(Instant::now() + RETURN_LIMIT);
        }
    }
}

impl Hub {
    /// A new reader. Requested bytes that are no longer kept count as lost. After the end of the process it gets the
    /// exit at once.
    pub(crate) fn reader(&self, patience: Patience, begin: ReadFrom) -> Option<OutputReader> {
        let mut state = self.lock();
        state.sweep();
        if state.readers.len() >= READERS_MAX {
            return None;
        }
        let queue = Arc::new(OutputQueue::new(patience));
        let mut entries = queue.lock();
        let tail = &state.tail;
        let from = match begin {
            ReadFrom::Now => tail.written,
            ReadFrom::Tail => tail.begin(),
            // Beyond the end: the process was restored to an earlier moment, and continues from there.
            ReadFrom::At(from) => from.min(tail.written),
        };
        let lost = tail.begin().saturating_sub(from);
        if lost > 0 {
            entries.items.push_back(Item::Dropped(lost));
        }
        for (source, data) in tail.chunks(from) {
            entries.bytes += data.len() + ENTRY_COST;
            entries.items.push_back(Item::Data(source, data));
        }
        entries.exit = state.exit;
        drop(entries);
        if state.exit.is_none() {
            state.readers.push(Arc::clone(&queue));
        }
        if patience == Patience::Patient {
            state.expected = None;
            self.returned.notify_one();
        }
        Some(OutputReader { queue, from })
    }

    /// Sends bytes to all readers. Waits only for the patient one.
    pub(crate) async fn publish(&self, source: OutputSource, data: Bytes) {
        self.keep_for_return(data.len()).await;
        let waiting = {
            let mut state = self.lock();
            state.tail.push(source, &data);
            let full = state.readers.iter().filter(|queue| !queue.offer(source, &data));
            full.cloned().collect::<Vec<_>>()
        };
        for queue in waiting {
            queue.push_patiently(source, &data).await;
        }
    }

    /// Waits while more bytes would remove bytes from the tail that a returning reader has not received.
    async fn keep_for_return(&self, more: usize) {
        loop {
            let until = {
                let mut state = self.lock();
                state.sweep();
                match state.expected {
                    Some(until) if until <= Instant::now() => {
                        state.expected = None;
                        return;
                    }
                    Some(until) if state.tail.is_filled_by(more) => until,
                    _ => return,
                }
            };
            tokio::select! {
                () = self.returned.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Ends the output; each reader gets the exit after its queued items.
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

/// The receiving end of one reader. Dropping it unblocks the process at once.
#[derive(Debug)]
pub(crate) struct OutputReader {
    queue: Arc<OutputQueue>,
    /// The position of its first byte, or of the first lost one.
    pub(crate) from: u64,
}

impl OutputReader {
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

impl Drop for OutputReader {
    fn drop(&mut self) {
        let mut entries = self.queue.lock();
        entries.gone = true;
        entries.items.clear();
        drop(entries);
        self.queue.space.notify_one();
    }
}

#[derive(Debug)]
struct OutputQueue {
    entries: Mutex<Entries>,
    ready: Notify,
    space: Notify,
}

#[derive(Debug)]
struct Entries {
    /// Data and losses, in order.
    items: VecDeque<Item>,
    bytes: usize,
    exit: Option<Exit>,
    ended: bool,
    gone: bool,
    patience: Patience,
    taken_at: Instant,
}

impl OutputQueue {
    fn new(patience: Patience) -> Self {
        let entries = Entries {
            items: VecDeque::new(),
            bytes: 0,
            exit: None,
            ended: false,
            gone: false,
            patience,
            taken_at: Instant::now(),
        };
        Self { entries: Mutex::new(entries), ready: Notify::new(), space: Notify::new() }
    }

    /// Queues bytes or counts them as lost. False: the queue is full, and the reader is patient.
    fn offer(&self, source: OutputSource, data: &Bytes) -> bool {
        let mut entries = self.lock();
        let cost = data.len() + ENTRY_COST;
        let patient = entries.patience == Patience::Patient;
        if entries.bytes + cost <= if patient { QUEUE_MAX } else { LOSSY_QUEUE_MAX } {
            entries.bytes += cost;
            entries.items.push_back(Item::Data(source, data.clone()));
        } else if patient {
            return false;
        } else if let Some(Item::Dropped(lost)) = entries.items.back_mut() {
            *lost += data.len() as u64;
        } else {
            // The queue is full of data, so entries of this kind are never more numerous than data entries.
            entries.items.push_back(Item::Dropped(data.len() as u64));
        }
        drop(entries);
        self.ready.notify_one();
        true
    }

    async fn push_patiently(&self, source: OutputSource, data: &Bytes) {
        // Running time, in slices: a pause does not count as a stall.
        let mut waited = Duration::ZERO;
        while !self.offer(source, data) {
            let taken_at = self.lock().taken_at;
            tokio::select! {
                () = self.space.notified() => waited = Duration::ZERO,
                () = tokio::time::sleep(running::SLICE) => waited += running::SLICE,
            }
            let mut entries = self.lock();
            if entries.gone {
                return;
            }
            if entries.taken_at != taken_at {
                waited = Duration::ZERO;
            }
            if waited >= STALL_LIMIT {
                entries.patience = Patience::Lossy;
            }
        }
    }

    /// `None`: no item yet. `Some(None)`: the end.
    #[expect(clippy::option_option, reason = "not yet and never are two things")]
    fn take(&self) -> Option<Option<Item>> {
        let mut entries = self.lock();
        entries.taken_at = Instant::now();
        if let Some(item) = entries.items.pop_front() {
            if let Item::Data(_, data) = &item {
                entries.bytes -= data.len() + ENTRY_COST;
            }
            drop(entries);
            self.space.notify_one();
            return Some(Some(item));
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
    runs: VecDeque<(OutputSource, usize)>,
    /// Number of all bytes so far.
    written: u64,
}

impl Tail {
    fn max() -> usize {
        if over_budget() { TAIL_MIN } else { TAIL_MAX }
    }

    /// Whether so many more bytes remove others.
    fn is_filled_by(&self, more: usize) -> bool {
        self.bytes.len() + more > Self::max() || self.runs.len() >= RUNS_MAX
    }

    fn push(&mut self, source: OutputSource, data: &[u8]) {
        self.written += data.len() as u64;
        let (max, before) = (Self::max(), self.bytes.len());
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

    /// The position of the first byte that is kept.
    fn begin(&self) -> u64 {
        self.written - self.bytes.len() as u64
    }

    /// The kept bytes from a position on.
    fn chunks(&self, from: u64) -> Vec<(OutputSource, Bytes)> {
        let mut skip = usize::try_from(from.saturating_sub(self.begin())).unwrap_or(usize::MAX);
        let mut bytes = self.bytes.iter().skip(skip).copied();
        let mut chunks = Vec::new();
        for &(source, len) in &self.runs {
            let had = skip.min(len);
            skip -= had;
            let mut left = len - had;
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

    async fn drain(mut reader: OutputReader) -> (usize, u64, bool) {
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
            let reader = hub.reader(Patience::Lossy, ReadFrom::Now).unwrap();
            for _ in 0..100 {
                hub.publish(OutputSource::Stdout, Bytes::from(vec![0; 32 * 1024])).await;
            }
            hub.finish(DONE);
            let (bytes, dropped, ended) = drain(reader).await;
            assert_eq!(bytes as u64 + dropped, 100 * 32 * 1024);
            assert!(dropped > 0 && ended && bytes <= LOSSY_QUEUE_MAX);
        });
    }

    #[test]
    fn a_patient_reader_that_stalls_is_waited_for_ten_seconds_and_then_no_more() {
        runtime().block_on(async {
            let hub = Hub::default();
            let reader = hub.reader(Patience::Patient, ReadFrom::Now).unwrap();
            let start = Instant::now();
            for _ in 0..100 {
                hub.publish(OutputSource::Stdout, Bytes::from(vec![0; 32 * 1024])).await;
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
            hub.publish(OutputSource::Stdout, Bytes::from_static(b"out")).await;
            hub.publish(OutputSource::Stderr, Bytes::from_static(b"err")).await;
            hub.finish(DONE);
            let mut reader = hub.reader(Patience::Lossy, ReadFrom::Tail).unwrap();
            assert!(
                matches!(reader.next().await, Some(Item::Data(OutputSource::Stdout, data)) if data == "out")
            );
            assert!(
                matches!(reader.next().await, Some(Item::Data(OutputSource::Stderr, data)) if data == "err")
            );
            assert!(matches!(reader.next().await, Some(Item::Exit(_))));
            assert!(reader.next().await.is_none());
        });
    }

    #[test]
    fn a_reader_that_comes_back_gets_the_rest_and_nothing_twice() {
        runtime().block_on(async {
            let hub = Hub::default();
            let first = hub.reader(Patience::Patient, ReadFrom::Now).unwrap();
            hub.publish(OutputSource::Stdout, Bytes::from_static(b"one two")).await;
            hub.publish(OutputSource::Stderr, Bytes::from_static(b"oops")).await;
            drop(first);
            let mut second = hub.reader(Patience::Patient, ReadFrom::At(4)).unwrap();
            assert_eq!(second.from, 4);
            hub.publish(OutputSource::Stderr, Bytes::from_static(b"!")).await;
            hub.finish(DONE);
            assert!(
                matches!(second.next().await, Some(Item::Data(OutputSource::Stdout, data)) if data == "two")
            );
            assert!(
                matches!(second.next().await, Some(Item::Data(OutputSource::Stderr, data)) if data == "oops")
            );
            assert!(
                matches!(second.next().await, Some(Item::Data(OutputSource::Stderr, data)) if data == "!")
            );
            assert!(matches!(second.next().await, Some(Item::Exit(_))));
            let mut ahead = hub.reader(Patience::Patient, ReadFrom::At(90)).unwrap();
            assert_eq!(ahead.from, 12);
            assert!(matches!(ahead.next().await, Some(Item::Exit(_))));
        });
    }

    #[test]
    fn losses_come_in_their_place() {
        runtime().block_on(async {
            let hub = Hub::default();
            let mut reader = hub.reader(Patience::Lossy, ReadFrom::Now).unwrap();
            let (chunk, mut sent, mut position) = (32 * 1024u64, 0, 0);
            let mut see = |item: &Item| match item {
                Item::Data(_, data) => {
                    assert_eq!(u64::from(data[0]) * chunk, position);
                    position += data.len() as u64;
                }
                Item::Dropped(n) => position += n,
                Item::Exit(_) => {}
            };
            for round in 0..40u8 {
                hub.publish(OutputSource::Stdout, Bytes::from(vec![round; 32 * 1024])).await;
                sent += chunk;
                if round % 3 == 0 {
                    see(&reader.next().await.unwrap());
                }
            }
            hub.finish(DONE);
            while let Some(item) = reader.next().await {
                see(&item);
            }
            assert_eq!(position, sent);
        });
    }

    #[test]
    fn what_is_no_longer_kept_is_counted_first() {
        runtime().block_on(async {
            let hub = Hub::default();
            let all = TAIL_MAX + 1000;
            for _ in 0..all / 1000 {
                hub.publish(OutputSource::Pty, Bytes::from(vec![0; 1000])).await;
            }
            hub.finish(DONE);
            let mut reader = hub.reader(Patience::Patient, ReadFrom::At(0)).unwrap();
            let written = all / 1000 * 1000;
            let lost = (written - TAIL_MAX) as u64;
            assert_eq!(reader.from, 0);
            assert!(matches!(reader.next().await, Some(Item::Dropped(n)) if n == lost));
            assert_eq!(drain(reader).await, (TAIL_MAX, 0, true));
        });
    }

    #[test]
    fn a_process_waits_a_while_for_a_patient_reader_to_come_back() {
        runtime().block_on(async {
            let hub = Arc::new(Hub::default());
            let start = Instant::now();
            drop(hub.reader(Patience::Patient, ReadFrom::Now).unwrap());
            let writer = Arc::clone(&hub);
            let writing = tokio::spawn(async move {
                for _ in 0..100 {
                    writer.publish(OutputSource::Stdout, Bytes::from(vec![0; 32 * 1024])).await;
                }
                writer.finish(DONE);
            });
            tokio::time::sleep(RETURN_LIMIT / 2).await;
            let back = hub.reader(Patience::Patient, ReadFrom::At(0)).unwrap();
            assert_eq!(drain(back).await, (100 * 32 * 1024, 0, true), "not a byte is missing");
            writing.await.unwrap();
            assert!(start.elapsed() < RETURN_LIMIT);
        });
    }

    #[test]
    fn a_process_whose_reader_is_gone_for_good_waits_once_and_then_no_more() {
        runtime().block_on(async {
            let hub = Hub::default();
            drop(hub.reader(Patience::Patient, ReadFrom::Now).unwrap());
            let start = Instant::now();
            for _ in 0..100 {
                hub.publish(OutputSource::Stdout, Bytes::from(vec![0; 32 * 1024])).await;
            }
            assert!(start.elapsed() >= RETURN_LIMIT && start.elapsed() < RETURN_LIMIT * 2);
        });
    }

    proptest! {
        #[test]
        fn the_tail_is_the_end_of_what_was_written(pieces in prop::collection::vec((any::<bool>(), 0usize..90_000), 0..12)) {
            let mut tail = Tail::default();
            let mut all: Vec<(bool, u8)> = Vec::new();
            for (n, (err, len)) in pieces.iter().enumerate() {
                let data = vec![n as u8; *len];
                tail.push(if *err { OutputSource::Stderr } else { OutputSource::Stdout }, &data);
                all.extend(data.iter().map(|b| (*err, *b)));
            }
            let shown = |from| tail.chunks(from).iter()
                .flat_map(|(source, data)| data.iter().map(move |b| (*source == OutputSource::Stderr, *b)).collect::<Vec<_>>())
                .collect::<Vec<(bool, u8)>>();
            let kept = shown(0);
            let from = tail.begin() + kept.len() as u64 / 3;
            prop_assert_eq!(&shown(from)[..], &all[usize::try_from(from).unwrap()..]);
            prop_assert!(kept.len() <= TAIL_MAX);
            prop_assert_eq!(&kept[..], &all[all.len() - kept.len()..]);
            prop_assert!(kept.len() == all.len().min(TAIL_MAX) || all.len() > TAIL_MIN);
        }
    }
}
