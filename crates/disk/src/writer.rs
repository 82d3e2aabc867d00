//! A long write, granted piece by piece.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Purpose, Reserve, device};

/// LIMIT: how much is granted at once. A writer asks the file system once per piece.
const PIECE: u64 = 4 << 20;

/// The grant of one long write. Its unused part is returned when it is dropped.
#[derive(Debug)]
pub struct SpaceWriter {
    reserve: Arc<Reserve>,
    at: PathBuf,
    device: u64,
    purpose: Purpose,
    /// The last grant, counted until the next one.
    granted: u64,
    left: u64,
}

impl SpaceWriter {
    pub(crate) fn new(reserve: Arc<Reserve>, at: &Path, purpose: Purpose) -> io::Result<Self> {
        let device = device(at)?;
        Ok(Self { reserve, at: at.to_owned(), device, purpose, granted: 0, left: 0 })
    }

    /// Called before so many bytes are written.
    pub fn take(&mut self, bytes: u64) -> io::Result<()> {
        if bytes > self.left {
            self.grant(bytes.max(PIECE))?;
        }
        self.left -= bytes;
        Ok(())
    }

    /// Earlier grants are on disk by now, or counted by the file system.
    fn grant(&mut self, bytes: u64) -> io::Result<()> {
        let mut all = self.reserve.granted();
        give_back(&mut all, self.device, std::mem::take(&mut self.granted));
        self.left = 0;
        self.reserve.judge(&all, self.device, &self.at, self.purpose, bytes)?;
        *all.entry(self.device).or_default() += bytes;
        (self.granted, self.left) = (bytes, bytes);
        Ok(())
    }
}

impl Drop for SpaceWriter {
    fn drop(&mut self) {
        give_back(&mut self.reserve.granted(), self.device, self.granted);
    }
}

fn give_back(all: &mut std::collections::HashMap<u64, u64>, device: u64, bytes: u64) {
    if let Some(granted) = all.get_mut(&device) {
        *granted -= bytes;
    }
}

/// A writer that respects the reserve.
#[derive(Debug)]
pub struct Guarded<W> {
    to: W,
    space: SpaceWriter,
}

impl<W: Write> Guarded<W> {
    /// Checks `space` before every write.
    pub const fn new(to: W, space: SpaceWriter) -> Self {
        Self { to, space }
    }

    /// The inner writer.
    pub fn into_inner(self) -> W {
        self.to
    }
}

impl<W: Write> Write for Guarded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.space.take(bytes.len() as u64)?;
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{free_bytes, is_full};

    #[test]
    fn writers_at_once_share_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        // Space for about three pieces; other programs write to this disk too, so the count is not exact.
        let reserve = Reserve::new(free_bytes(folder.path()).unwrap() - 3 * PIECE - PIECE / 2);
        let mut writers = Vec::new();
        let refused = loop {
            let mut writer = reserve.writer(folder.path(), Purpose::Data).unwrap();
            match writer.take(1) {
                Ok(()) => writers.push(writer),
                Err(refused) => break refused,
            }
            assert!(writers.len() < 1_000, "grants are not counted");
        };
        assert!(is_full(&refused));
        drop(writers);
        assert_eq!(reserve.granted().values().sum::<u64>(), 0);
    }

    #[test]
    fn a_guarded_file_ends_at_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let space = Reserve::new(u64::MAX / 2).writer(folder.path(), Purpose::Data).unwrap();
        let mut guarded = Guarded::new(Vec::new(), space);
        assert!(is_full(&guarded.write_all(b"x").unwrap_err()));
        assert!(guarded.into_inner().is_empty());
    }
}
