//! Space set aside for the database, deletes and the start of the server: a file that is removed when the disk is full.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FallocateFlags;

use crate::free_bytes;

const FILE: &str = "headroom";
/// LIMIT: enough for tens of thousands of deletes; a write-ahead log is folded in every 8 MiB.
const MOST: u64 = 64 << 20;
const LEAST: u64 = 8 << 20;
/// Below this much free space the file is removed.
const FULL_BELOW: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Headroom {
    data: PathBuf,
    file: PathBuf,
    bytes: u64,
    /// Whether the file exists.
    is_held: Mutex<bool>,
}

impl Headroom {
    pub(crate) fn new(data: &Path, reserve: u64) -> Self {
        let file = data.join(FILE);
        let is_held = Mutex::new(file.exists());
        Self { data: data.to_owned(), file, bytes: (reserve / 16).clamp(LEAST, MOST), is_held }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn give_up_if_full(&self) {
        let mut is_held = self.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_held || free_bytes(&self.data).is_ok_and(|free| free >= FULL_BELOW) {
            return;
        }
        match std::fs::remove_file(&self.file) {
            Ok(()) => tracing::error!(
                folder = %self.data.display(), bytes = self.bytes,
                "the disk is full: the space set aside for deletes is used now; free some space"
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return tracing::error!(%error, "the space set aside for deletes cannot be freed"),
        }
        *is_held = false;
    }

    /// Makes the file if at least `floor` bytes are free afterwards.
    pub(crate) fn keep(&self, floor: u64) {
        let mut is_held = self.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = free_bytes(&self.data).is_ok_and(|free| free >= floor.saturating_add(self.bytes));
        if *is_held || !has_room {
            return;
        }
        match self.make() {
            Ok(()) => *is_held = true,
            Err(error) => {
                let _ = std::fs::remove_file(&self.file);
                tracing::warn!(%error, "no space could be set aside for deletes on a full disk");
            }
        }
    }

    fn make(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.file)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            // A file system without this call: zeros take the same space.
            Err(rustix::io::Errno::OPNOTSUPP) => {
                io::copy(&mut io::Read::take(io::repeat(0), self.bytes), &mut &file)?;
                file.sync_all()
            }
            other => Ok(other?),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn it_takes_real_blocks_and_stays_while_there_is_room() {
        let data = tempfile::tempdir().unwrap();
        let headroom = Headroom::new(data.path(), 0);
        headroom.keep(u64::MAX);
        assert!(!headroom.file.exists(), "there was no room");
        headroom.keep(0);
        assert!(headroom.file.metadata().unwrap().blocks() * 512 >= LEAST);
        headroom.give_up_if_full();
        assert!(headroom.file.exists());
        assert!(*Headroom::new(data.path(), 0).is_held.lock().unwrap(), "found again");
    }
}
