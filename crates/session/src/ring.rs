//! Output that is not read yet, in a ring of fixed size.
//!
//! Every byte has a position: the number of bytes before it. A reader holds nothing but its position, so any number of readers that
//! never read cost no memory. One reader of a ring may be *patient*: its source waits while the ring is full of bytes that this
//! reader has not taken. A patient reader that takes nothing for [`STALL_LIMIT`] is patient no more, and like every other reader
//! it is told how many bytes it has lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_agentapi::ExitStatus;
use bytes::Bytes;
use tokio::sync::Notify;

use crate::error::SessionRefusal;

/// LIMIT: bytes of one ring.
pub(crate) const RING_MAX: usize = 256 * 1024;
/// LIMIT: bytes of one ring while all rings of an instance together are above [`RINGS_MAX`].
pub(crate) const RING_MIN: usize = 32 * 1024;
pub(crate) const RINGS_MAX: usize = 8 << 20;
/// LIMIT: bytes of one chunk.
const CHUNK: usize = 16 * 1024;
/// LIMIT: what a chunk costs beside its bytes.
const CHUNK_COST: usize = 64;
/// Long enough for a busy client, short enough that a build behind a hung terminal goes on.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(10);
const STALL_SLICE: Duration = Duration::from_millis(500);

/// How the output ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OutputEnd {
    Exit(ExitStatus),
    /// The provider lost the process.
    Failed(SessionRefusal),
}

/// An item for a reader. `End` is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RingItem<T> {
    Data(T, Bytes),
    /// So many bytes were lost because this reader was slow.
    Dropped(u64),
    End(OutputEnd),
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadPosition {
    Now,
    /// With at most so many of the kept bytes.
    Tail(u64),
    At(u64),
}

/// The bytes of one source. `T` says where each came from.
pub(crate) struct OutputRing<T> {
    state: Mutex<RingState<T>>,
    changed: Notify,
    /// What all rings of the instance cost.
    total: Arc<AtomicUsize>,
}

struct RingState<T> {
    chunks: VecDeque<RingChunk<T>>,
    cost: usize,
    written: u64,
    end: Option<OutputEnd>,
    patient: Option<PatientReader>,
    next_reader: u64,
}

struct RingChunk<T> {
    at: u64,
    source: T,
    data: Bytes,
}

struct PatientReader {
    id: u64,
    position: u64,
}

impl<T> RingChunk<T> {
    fn end(&self) -> u64 {
        self.at + self.data.len() as u64
    }

    fn cost(&self) -> usize {
        self.data.len() + CHUNK_COST
    }
}

impl<T> RingState<T> {
    /// The position of the first kept byte.
    fn begin(&self) -> u64 {
        self.chunks.front().map_or(self.written, |chunk| chunk.at)
    }

    /// Removes the oldest chunks until `more` fits. False: the patient reader has not taken them.
    fn make_room(&mut self, more: usize, limit: usize, total: &AtomicUsize) -> bool {
        while self.cost + more > limit {
            let Some(oldest) = self.chunks.front() else { return true };
            if self.patient.as_ref().is_some_and(|patient| patient.position < oldest.end()) {
                return false;
            }
            let cost = oldest.cost();
            self.chunks.pop_front();
            self.cost -= cost;
            total.fetch_sub(cost, Ordering::Relaxed);
        }
        true
    }
}

impl<T: Copy> OutputRing<T> {
    pub(crate) fn new(total: &Arc<AtomicUsize>) -> Arc<Self> {
        let state = RingState {
            chunks: VecDeque::new(),
            cost: 0,
            written: 0,
            end: None,
            patient: None,
            next_reader: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), total: Arc::clone(total) })
    }

    /// Adds bytes. Waits while a patient reader has to make room.
    pub(crate) async fn publish(&self, source: T, data: &[u8]) {
        for piece in data.chunks(CHUNK) {
            // A copy: a slice would keep all of the buffer that the provider cut it from.
            self.push(source, Bytes::copy_from_slice(piece)).await;
        }
    }

    async fn push(&self, source: T, data: Bytes) {
        let (mut waited, mut seen) = (Duration::ZERO, None);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                let position = state.patient.as_ref().map(|patient| patient.position);
                if position != seen {
                    (waited, seen) = (Duration::ZERO, position);
                }
                if waited >= STALL_LIMIT {
                    state.patient = None;
                }
                if self.try_push(&mut state, source, &data) {
                    break;
                }
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(STALL_SLICE) => waited += STALL_SLICE,
            }
        }
        self.changed.notify_waiters();
    }

    fn try_push(&self, state: &mut RingState<T>, source: T, data: &Bytes) -> bool {
        let limit = if self.total.load(Ordering::Relaxed) > RINGS_MAX { RING_MIN } else { RING_MAX };
        let chunk = RingChunk { at: state.written, source, data: data.clone() };
        let has_room = state.make_room(chunk.cost(), limit, &self.total);
        if has_room {
            state.written = chunk.end();
            state.cost += chunk.cost();
            self.total.fetch_add(chunk.cost(), Ordering::Relaxed);
            state.chunks.push_back(chunk);
        }
        has_room
    }

    /// Bytes that the provider or the vendor lost count as written.
    pub(crate) fn skip(&self, bytes: u64) {
        let mut state = self.lock();
        let kept: usize = state.chunks.drain(..).map(|chunk| chunk.cost()).sum();
        self.total.fetch_sub(kept, Ordering::Relaxed);
        state.cost = 0;
        state.written = state.written.saturating_add(bytes);
        drop(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn finish(&self, end: OutputEnd) {
        self.lock().end.get_or_insert(end);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lock().end.is_some()
    }

    pub(crate) fn reader(self: &Arc<Self>, begin: ReadPosition, is_patient: bool) -> RingReader<T> {
        let mut state = self.lock();
        let from = match begin {
            ReadPosition::Now => state.written,
            ReadPosition::Tail(bytes) => state.written.saturating_sub(bytes).max(state.begin()),
            ReadPosition::At(position) => position.min(state.written),
        };
        state.next_reader += 1;
        let id = state.next_reader;
        if is_patient {
            state.patient = Some(PatientReader { id, position: from });
        }
        drop(state);
        RingReader { ring: Arc::clone(self), id, from, position: from, is_done: false }
    }

    fn lock(&self) -> MutexGuard<'_, RingState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for OutputRing<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.total.fetch_sub(state.cost, Ordering::Relaxed);
    }
}

/// One reader of a ring. Dropping it frees a source that waits for it.
pub(crate) struct RingReader<T: Copy> {
    ring: Arc<OutputRing<T>>,
    id: u64,
    /// The position of its first byte.
    pub(crate) from: u64,
    position: u64,
    is_done: bool,
}

impl<T: Copy> RingReader<T> {
    /// The next item; `None` after the end. Cancel-safe: an item is taken only when it is returned.
    pub(crate) async fn next(&mut self) -> Option<RingItem<T>> {
        let ring = Arc::clone(&self.ring);
        while !self.is_done {
            let changed = ring.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(item) = self.take() {
                return Some(item);
            }
            changed.await;
        }
        None
    }

    /// What is there now; `None`: nothing yet, or nothing more.
    pub(crate) fn take(&mut self) -> Option<RingItem<T>> {
        if self.is_done {
            return None;
        }
        let mut state = self.ring.lock();
        let lost = state.begin().saturating_sub(self.position);
        let item = if lost > 0 {
            self.position += lost;
            RingItem::Dropped(lost)
        } else {
            let at = state.chunks.partition_point(|chunk| chunk.end() <= self.position);
            match (state.chunks.get(at), &state.end) {
                (Some(chunk), _) => {
                    let skip = usize::try_from(self.position - chunk.at).unwrap_or(0);
                    self.position = chunk.end();
                    RingItem::Data(chunk.source, chunk.data.slice(skip..))
                }
                (None, Some(end)) => {
                    self.is_done = true;
                    return Some(RingItem::End(end.clone()));
                }
                (None, None) => return None,
            }
        };
        if let Some(patient) = state.patient.as_mut().filter(|patient| patient.id == self.id) {
            patient.position = self.position;
            drop(state);
            self.ring.changed.notify_waiters();
        }
        Some(item)
    }
}

impl<T: Copy> Drop for RingReader<T> {
    fn drop(&mut self) {
        let was_patient = self.ring.lock().patient.take_if(|patient| patient.id == self.id).is_some();
        if was_patient {
            self.ring.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: ExitStatus = ExitStatus { code: Some(0), signal: None, timed_out: false, core_dumped: false };

    fn ring() -> (Arc<OutputRing<u8>>, Arc<AtomicUsize>) {
        let total = Arc::default();
        (OutputRing::new(&total), total)
    }

    async fn all(mut reader: RingReader<u8>) -> (Vec<u8>, u64) {
        let (mut bytes, mut lost) = (Vec::new(), 0);
        while let Some(item) = reader.next().await {
            match item {
                RingItem::Data(_, data) => bytes.extend_from_slice(&data),
                RingItem::Dropped(count) => lost += count,
                RingItem::End(_) => {}
            }
        }
        (bytes, lost)
    }

    #[tokio::test(start_paused = true)]
    async fn a_patient_reader_gets_every_byte_of_more_than_the_ring_holds() {
        let (ring, total) = ring();
        let sent: Vec<u8> = (0..3 * RING_MAX).map(|n| (n % 251) as u8).collect();
        let reader = ring.reader(ReadPosition::At(0), true);
        let (got, ()) = tokio::join!(all(reader), async {
            ring.publish(1, &sent).await;
            ring.finish(OutputEnd::Exit(EXIT));
        });
        assert_eq!(got, (sent, 0));
        assert!(total.load(Ordering::Relaxed) <= RING_MAX);
        drop(ring);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_never_reads_holds_the_source_and_then_no_memory() {
        let (ring, total) = ring();
        let (mut stuck, begun) = (ring.reader(ReadPosition::At(0), true), tokio::time::Instant::now());
        ring.publish(1, &vec![7; 4 * RING_MAX]).await;
        assert!(begun.elapsed() >= STALL_LIMIT && begun.elapsed() < 2 * STALL_LIMIT);
        assert!(total.load(Ordering::Relaxed) <= RING_MAX);
        let Some(RingItem::Dropped(lost)) = stuck.take() else { panic!("it is told what it lost") };
        assert!(lost as usize >= 3 * RING_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_waits_goes_on_when_its_reader_leaves() {
        let (ring, _) = ring();
        let (reader, begun) = (ring.reader(ReadPosition::At(0), true), tokio::time::Instant::now());
        let sent = vec![7; 2 * RING_MAX];
        tokio::join!(ring.publish(1, &sent), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(reader);
        });
        assert!(begun.elapsed() < STALL_LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn late_readers_get_what_is_kept_and_are_told_what_is_not() {
        let (ring, _) = ring();
        ring.publish(1, b"abc").await;
        ring.publish(2, b"def").await;
        ring.finish(OutputEnd::Exit(EXIT));
        assert_eq!(all(ring.reader(ReadPosition::At(0), false)).await.0, b"abcdef");
        assert_eq!(all(ring.reader(ReadPosition::At(4), false)).await.0, b"ef");
        assert_eq!(all(ring.reader(ReadPosition::Tail(2), false)).await.0, b"ef");
        assert_eq!(all(ring.reader(ReadPosition::Now, false)).await.0, b"");
        let lossy = ring.reader(ReadPosition::At(0), false);
        ring.skip(10);
        assert_eq!(all(lossy).await, (vec![], 16));
    }
}
