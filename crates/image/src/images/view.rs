//! Reads the files of a version as a sandbox would see them, without mounting: for users, homes, and permissions of
//! folders. No symbolic link is followed.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::ImageError;
use crate::layers::is_opaque;

/// Folders of layers, the top one first.
pub(super) struct View {
    folders: Vec<OwnedFd>,
}

/// A visible file or folder.
pub(super) struct ViewedEntry {
    pub(super) stat: Stat,
    /// The folder that contains it, in its layer.
    pub(super) folder: OwnedFd,
}

enum LookupStep {
    Found(ViewedEntry),
    /// Not in this layer; a lower one may have it.
    Absent,
    /// This layer hides it.
    Hidden,
}

impl View {
    pub(super) fn open<'a>(top_first: impl IntoIterator<Item = &'a Path>) -> Result<Self, ImageError> {
        let open =
            |path: &Path| open_folder(path).map_err(|errno| ImageError::io("open", path)(errno.into()));
        Ok(Self { folders: top_first.into_iter().map(open).collect::<Result<_, _>>()? })
    }

    /// The entry at this path (without a leading slash).
    pub(super) fn find(&self, path: &[u8]) -> Result<Option<ViewedEntry>, ImageError> {
        for layer in &self.folders {
            match step(layer, path) {
                Ok(LookupStep::Found(seen)) => return Ok(Some(seen)),
                Ok(LookupStep::Hidden) => return Ok(None),
                Ok(LookupStep::Absent) => {}
                Err(errno) => return Err(ImageError::io("read", "a layer")(errno.into())),
            }
        }
        Ok(None)
    }

    /// The content of a file, up to `most` bytes; `None` if it does not exist or is not a plain file.
    pub(super) fn read(&self, path: &[u8], most: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(seen) = self.find(path)? else { return Ok(None) };
        if FileType::from_raw_mode(seen.stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let failed = |cause| ImageError::io("read", String::from_utf8_lossy(path).as_ref())(cause);
        let file = rustix::fs::openat(&seen.folder, name, flags, Mode::empty())
            .map_err(|errno| failed(errno.into()))?;
        let mut bytes = Vec::new();
        std::fs::File::from(file).take(most).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }
}

fn step(layer: &OwnedFd, path: &[u8]) -> Result<LookupStep, Errno> {
    let mut folder = layer.try_clone().map_err(|_| Errno::MFILE)?;
    let mut below = LookupStep::Absent;
    let mut parts = path.split(|&byte| byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let stat = match rustix::fs::statat(&folder, part, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(below),
            Err(errno) => return Err(errno),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => return Ok(LookupStep::Hidden),
            _ if parts.peek().is_none() => return Ok(LookupStep::Found(ViewedEntry { stat, folder })),
            FileType::Directory => {}
            _ => return Ok(LookupStep::Hidden),
        }
        folder = rustix::fs::openat(&folder, part, folder_flags(), Mode::empty())?;
        if is_opaque(folder.as_fd())? {
            below = LookupStep::Hidden;
        }
    }
    Ok(below)
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, folder_flags(), Mode::empty())
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
