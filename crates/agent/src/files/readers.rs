//! Bounds the memory that downloads hold together, also when no client reads.
//!
//! The first few downloads read ahead in large chunks. All others hold one small chunk each and read the next one when
//! the socket has taken it, so a client that does not read costs little. The number of downloads is bounded too: beyond
//! it, the download whose client has taken nothing for the longest time is ended with its connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::AgentError;

/// LIMIT: downloads at once. Each costs about 40 KiB with its connection, and what waits in its socket.
const READERS_MAX: usize = 128;
/// LIMIT: downloads with large chunks; each holds up to three of them.
const FAST_MAX: usize = 8;
/// LIMIT: bytes of a large chunk; below malloc's mmap threshold, so that the memory is reused.
const LARGE_CHUNK: usize = 128 * 1024;
/// LIMIT: bytes of a small chunk.
const SMALL_CHUNK: usize = 16 * 1024;
/// Chunks of a fast download: one is sent while the next is read.
const AHEAD: usize = 2;
/// LIMIT: bytes of all files that are held as a whole, such as those of /proc.
const WHOLE_MAX: usize = 8 << 20;
/// A client that has taken nothing for this long does not read, and its place may be given to another one.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// Ends a connection, whatever it is doing.
pub(crate) type ConnectionEnd = Arc<Notify>;

/// All downloads of the agent.
pub(crate) struct Readers {
    places: Arc<Mutex<PlaceTable>>,
    fast: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

#[derive(Default)]
struct PlaceTable {
    next: u64,
    taken: HashMap<u64, Place>,
}

struct Place {
    /// When the client last took a chunk.
    took_at: Instant,
    connection: ConnectionEnd,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            places: Arc::default(),
            fast: Arc::new(Semaphore::new(FAST_MAX)),
            whole: Arc::new(Semaphore::new(WHOLE_MAX)),
        }
    }
}

impl Readers {
    /// A place for a download over this connection.
    pub(crate) fn begin(&self, connection: &ConnectionEnd) -> Result<Reader, AgentError> {
        let id = {
            let mut places = lock(&self.places);
            places.make_room()?;
            places.next += 1;
            let id = places.next;
            places.taken.insert(id, Place { took_at: Instant::now(), connection: Arc::clone(connection) });
            id
        };
        let fast = Arc::clone(&self.fast).try_acquire_owned().ok();
        let chunks = if fast.is_some() { AHEAD + 1 } else { 1 };
        Ok(Reader { id, places: Arc::clone(&self.places), room: Arc::new(Semaphore::new(chunks)), fast })
    }

    /// A file that is held as a whole until the client has it.
    pub(crate) fn hold_whole(&self, content: Bytes) -> Result<Bytes, AgentError> {
        let bytes = u32::try_from(content.len()).unwrap_or(u32::MAX);
        match Arc::clone(&self.whole).try_acquire_many_owned(bytes) {
            Ok(permit) => Ok(Bytes::from_owner(HeldChunk { content, _room: permit })),
            Err(_) => Err(AgentError::Exhausted("too many downloads of kernel files at once".into())),
        }
    }
}

impl PlaceTable {
    /// Ends the download that has stalled for the longest time if all places are taken.
    fn make_room(&mut self) -> Result<(), AgentError> {
        if self.taken.len() < READERS_MAX {
            return Ok(());
        }
        let oldest = self.taken.iter().min_by_key(|(_, place)| place.took_at);
        match oldest.filter(|(_, place)| place.took_at.elapsed() >= STALLED_AFTER).map(|(id, _)| *id) {
            Some(id) => {
                if let Some(place) = self.taken.remove(&id) {
                    place.connection.notify_one();
                }
                Ok(())
            }
            None => Err(AgentError::Exhausted(format!(
                "{READERS_MAX} downloads are under way already; read them or close them"
            ))),
        }
    }
}

fn lock(places: &Mutex<PlaceTable>) -> MutexGuard<'_, PlaceTable> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of one download, until it is dropped.
pub(crate) struct Reader {
    id: u64,
    places: Arc<Mutex<PlaceTable>>,
    /// Chunks that may be in memory.
    room: Arc<Semaphore>,
    fast: Option<OwnedSemaphorePermit>,
}

impl Reader {
    /// Bytes per read.
    pub(crate) fn chunk(&self) -> usize {
        if self.is_fast() { LARGE_CHUNK } else { SMALL_CHUNK }
    }

    /// Reads in flight.
    pub(crate) fn ahead(&self) -> usize {
        if self.is_fast() { AHEAD } else { 1 }
    }

    pub(crate) fn is_fast(&self) -> bool {
        self.fast.is_some()
    }

    /// Waits until the client has taken enough of the earlier chunks.
    pub(crate) async fn room(&self) -> Result<ChunkRoom, AgentError> {
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.map_err(|_| AgentError::Internal("a download was lost".into()))?;
        if let Some(place) = lock(&self.places).taken.get_mut(&self.id) {
            place.took_at = Instant::now();
        }
        Ok(ChunkRoom(room))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.places).taken.remove(&self.id);
    }
}

/// Room for one chunk.
pub(crate) struct ChunkRoom(OwnedSemaphorePermit);

impl ChunkRoom {
    /// The chunk occupies its room until it is sent.
    pub(crate) fn hold(self, content: Bytes) -> Bytes {
        Bytes::from_owner(HeldChunk { content, _room: self.0 })
    }
}

struct HeldChunk {
    content: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for HeldChunk {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn a_few_read_ahead_and_the_others_hold_one_small_chunk() {
        let readers = Readers::default();
        let end = ConnectionEnd::default();
        let all: Vec<Reader> = (0..READERS_MAX).map(|_| readers.begin(&end).unwrap()).collect();
        assert_eq!(all.iter().filter(|reader| reader.is_fast()).count(), FAST_MAX);
        let slow = all.last().unwrap();
        let held = slow.room().await.unwrap().hold(Bytes::from_static(b"sent"));
        assert!(slow.room().now_or_never().is_none(), "the client has not taken the first one");
        drop(held);
        assert!(slow.room().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_taken_from_the_client_that_has_not_read_for_the_longest_time() {
        let readers = Readers::default();
        let ends: Vec<ConnectionEnd> = (0..READERS_MAX).map(|_| ConnectionEnd::default()).collect();
        let all: Vec<Reader> = ends.iter().map(|end| readers.begin(end).unwrap()).collect();
        let other = ConnectionEnd::default();
        assert!(matches!(readers.begin(&other), Err(AgentError::Exhausted(_))), "all of them may be reading");
        tokio::time::advance(STALLED_AFTER).await;
        // All but one read on.
        for reader in all.iter().filter(|reader| reader.id != all[3].id) {
            drop(reader.room().await.unwrap());
        }
        let new = readers.begin(&other).unwrap();
        ends[3].notified().now_or_never().expect("its connection is ended");
        assert!(ends[4].notified().now_or_never().is_none());
        assert!(matches!(readers.begin(&other), Err(AgentError::Exhausted(_))));
        // Its end does not free the place of another one.
        drop(all);
        assert_eq!(lock(&readers.places).taken.len(), 1);
        drop(new);
        assert!(lock(&readers.places).taken.is_empty());
    }

    #[test]
    fn files_without_a_size_are_bounded_together() {
        let readers = Readers::default();
        let file = Bytes::from(vec![7; WHOLE_MAX / 2]);
        let (first, _second) =
            (readers.hold_whole(file.clone()).unwrap(), readers.hold_whole(file.clone()).unwrap());
        assert!(matches!(readers.hold_whole(file.clone()), Err(AgentError::Exhausted(_))));
        // A part of a file keeps the whole of it.
        let part = first.slice(1..2);
        drop(first);
        assert!(readers.hold_whole(file.clone()).is_err());
        drop(part);
        readers.hold_whole(file).unwrap();
    }
}
