//! Output of the start command and of logged processes: one bounded ring, and bounded readers that lose output when
//! they are slow.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::process::{OutputSource, now_ms};

/// LIMIT: bytes of the log that are kept.
const RING_MAX: usize = 1 << 20;
/// LIMIT: the cost of an entry besides its bytes.
const ENTRY_COST: usize = 64;
/// LIMIT: bytes in the queue of one reader.
const QUEUE_MAX: usize = 512 * 1024;
const READERS_MAX: usize = 64;

/// A piece of output.
#[derive(Debug, Clone)]
pub(crate) struct LogChunk {
    pub(crate) pid: u32,
    pub(crate) source: OutputSource,
    pub(crate) at_ms: u64,
    pub(crate) data: Bytes,
    /// Bytes that this reader lost before this chunk.
    pub(crate) dropped: u64,
}

#[derive(Debug, Default)]
pub(crate) struct LogBuffer {
    state: Mutex<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    ring: VecDeque<LogChunk>,
    cost: usize,
    readers: Vec<Arc<ReaderQueue>>,
}

#[derive(Debug, Default)]
struct ReaderQueue {
    lines: Mutex<(VecDeque<LogChunk>, usize, u64)>,
    ready: Notify,
}

impl LogBuffer {
    pub(crate) fn append(&self, pid: u32, source: OutputSource, data: &Bytes) {
        let line = LogChunk { pid, source, at_ms: now_ms(), data: data.clone(), dropped: 0 };
        let mut state = self.lock();
        state.readers.retain(|queue| Arc::strong_count(queue) > 1);
        for queue in &state.readers {
            queue.offer(&line);
        }
        state.cost += data.len() + ENTRY_COST;
        state.ring.push_back(line);
        while state.cost > RING_MAX {
            let Some(old) = state.ring.pop_front() else { break };
            state.cost -= old.data.len() + ENTRY_COST;
        }
    }

    /// The kept output, at most the newest `tail_bytes`, and a reader of further output.
    pub(crate) fn read(&self, tail_bytes: u64) -> Option<(Vec<LogChunk>, LogReader)> {
        let mut state = self.lock();
        state.readers.retain(|queue| Arc::strong_count(queue) > 1);
        if state.readers.len() >= READERS_MAX {
            return None;
        }
        let mut left =
            if tail_bytes == 0 { usize::MAX } else { usize::try_from(tail_bytes).unwrap_or(usize::MAX) };
        let mut kept = Vec::new();
        for line in state.ring.iter().rev() {
            if left == 0 {
                break;
            }
            let mut line = line.clone();
            line.data = line.data.slice(line.data.len().saturating_sub(left)..);
            left -= line.data.len();
            kept.push(line);
        }
        kept.reverse();
        let queue = Arc::new(ReaderQueue::default());
        state.readers.push(Arc::clone(&queue));
        Some((kept, LogReader { queue }))
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderQueue {
    fn offer(&self, line: &LogChunk) {
        let mut guard = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, cost, dropped) = &mut *guard;
        if *cost + line.data.len() + ENTRY_COST > QUEUE_MAX {
            *dropped += line.data.len() as u64;
            return;
        }
        *cost += line.data.len() + ENTRY_COST;
        lines.push_back(LogChunk { dropped: std::mem::take(dropped), ..line.clone() });
        self.ready.notify_one();
    }
}

/// The reader of the output after [`LogBuffer::read`].
#[derive(Debug)]
pub(crate) struct LogReader {
    queue: Arc<ReaderQueue>,
}

impl LogReader {
    /// The next chunk. Cancel-safe.
    pub(crate) async fn next(&mut self) -> LogChunk {
        loop {
            {
                let mut guard = self.queue.lines.lock().unwrap_or_else(PoisonError::into_inner);
                let (lines, cost, _) = &mut *guard;
                if let Some(line) = lines.pop_front() {
                    *cost -= line.data.len() + ENTRY_COST;
                    return line;
                }
            }
            self.queue.ready.notified().await;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_and_a_tail_is_cut_to_the_byte() {
        let logs = LogBuffer::default();
        for n in 0..3000u32 {
            logs.append(n, OutputSource::Stdout, &Bytes::from(vec![b'x'; 1000]));
        }
        let (kept, _reader) = logs.read(0).unwrap();
        assert!(kept.len() < 1000 && kept.last().unwrap().pid == 2999);
        let (tail, _reader) = logs.read(1500).unwrap();
        assert_eq!(tail.iter().map(|line| line.data.len()).sum::<usize>(), 1500);
    }
}
