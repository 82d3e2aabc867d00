//! Room for collected output: how much of it may wait in memory for its readers, in all. Knows bytes, nothing of commands.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// LIMIT: memory of all collected output together. A reader that is too slow keeps its part.
const ALL_KIB: usize = 512 << 10;
/// What every command may collect without asking.
const FREE: usize = 64 << 10;
/// Bytes that are asked for at a time, and what they cost: an answer holds them once more, and a control character takes
/// six bytes of JSON.
const STEP: usize = 64 << 10;
const STEP_KIB: u32 = 8 * 64;
/// How long room is waited for. Those that have it may be waiting too, so not for ever.
const WITHIN: Duration = Duration::from_secs(2);

/// The room there is.
#[derive(Debug, Clone)]
pub(crate) struct OutputRooms(Arc<Semaphore>);

impl Default for OutputRooms {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ALL_KIB)))
    }
}

impl OutputRooms {
    /// A part of it that grows with what is collected.
    pub(crate) fn take(&self) -> OutputRoom {
        OutputRoom { rooms: self.clone(), held: None, bytes: FREE, refused: false }
    }
}

/// The part of one command. Whoever answers holds it until the answer is written; dropping it gives it back.
#[derive(Debug)]
pub struct OutputRoom {
    rooms: OutputRooms,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
    refused: bool,
}

impl OutputRoom {
    /// Grows to `bytes`, or answers how many there is room for. Once refused, it never grows again.
    pub(crate) async fn grow(&mut self, bytes: usize) -> usize {
        while self.bytes < bytes && !self.refused {
            let more = Arc::clone(&self.rooms.0).acquire_many_owned(STEP_KIB);
            match tokio::time::timeout(WITHIN, more).await {
                Ok(Ok(permit)) => {
                    match &mut self.held {
                        Some(held) => held.merge(permit),
                        None => self.held = Some(permit),
                    }
                    self.bytes += STEP;
                }
                Ok(Err(_)) | Err(_) => self.refused = true,
            }
        }
        self.bytes.min(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn output_that_nobody_fetches_leaves_small_answers_alone_and_comes_back_when_dropped() {
        let rooms = OutputRooms::default();
        let mut greedy = Vec::new();
        loop {
            let mut room = rooms.take();
            let had = room.grow(16 << 20).await;
            greedy.push(room);
            if had < 16 << 20 {
                break;
            }
        }
        assert!(greedy.len() < 10, "{} held the most there is", greedy.len());
        let mut modest = rooms.take();
        assert_eq!(modest.grow(4_000).await, 4_000);
        assert_eq!(modest.grow(1 << 20).await, FREE);
        drop(greedy);
        assert_eq!(rooms.take().grow(16 << 20).await, 16 << 20);
    }
}
