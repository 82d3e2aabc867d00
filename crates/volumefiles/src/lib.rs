//! The files of volumes that are folders of this machine, as providers offer them.
//!
//! [`VolumeFolder`] does the work, by descriptors and without leaving the volume; here it is run on blocking threads, and
//! bytes are streamed. A provider says by [`RemovalRoom`] where folders that are being removed are put.

use std::io::{self, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use atoll_provider::{Packed, VolumeEntry, VolumeEntryKind, VolumeFiles, VolumeOwner};
use atoll_storage::{EntryAttributes, OpenedEntry, VolumeFolder};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

const PIECE: usize = 256 << 10;

/// Where folders of a volume are put to be removed: beside the files of the volume, on the same file system, where no sandbox
/// sees them.
pub trait RemovalRoom: Send + Sync + 'static {
    /// The folder. What is left in it after a crash, the provider removes.
    fn folder(&self) -> PathBuf;

    /// Runs a step of a removal. A volume with a limit raises it if the step fails for lack of space, and tries again.
    fn with_space(&self, step: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        step()
    }
}

/// The files of one volume.
pub struct LocalVolumeFiles {
    folder: Arc<VolumeFolder>,
    room: Arc<dyn RemovalRoom>,
}

impl LocalVolumeFiles {
    /// The files in this folder.
    pub fn new(folder: VolumeFolder, room: impl RemovalRoom) -> Self {
        Self { folder: Arc::new(folder), room: Arc::new(room) }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&VolumeFolder) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let folder = Arc::clone(&self.folder);
        blocking(move || work(&folder)).await
    }

    async fn entry(
        &self,
        work: impl FnOnce(&VolumeFolder) -> io::Result<OpenedEntry> + Send + 'static,
    ) -> io::Result<VolumeEntry> {
        self.run(work).await.map(entry)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(io::Error::other("work on the files of a volume panicked")))
}

#[async_trait]
impl VolumeFiles for LocalVolumeFiles {
    async fn stat(&self, path: &str) -> io::Result<VolumeEntry> {
        let path = path.to_owned();
        self.entry(move |folder| folder.stat(&path)).await
    }

    async fn list(&self, path: &str, depth: u32, most: usize) -> io::Result<Vec<VolumeEntry>> {
        let path = path.to_owned();
        let all = self.run(move |folder| folder.list(&path, depth, most)).await?;
        Ok(all.into_iter().map(entry).collect())
    }

    async fn read(&self, path: &str) -> io::Result<(VolumeEntry, Packed)> {
        let path = path.to_owned();
        let (found, file) = self.run(move |folder| folder.read(&path)).await?;
        let entry = entry(found);
        let bytes = FileBytes { left: entry.size, file: tokio::fs::File::from_std(file) };
        Ok((entry, Box::new(bytes)))
    }

    async fn write(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
        mut bytes: Packed,
    ) -> io::Result<VolumeEntry> {
        let (path, wanted) = (path.to_owned(), wanted(owner));
        let mut draft = self.run(move |folder| folder.begin(&path, wanted, parents)).await?;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            while piece.len() < PIECE && bytes.read_buf(&mut piece).await? > 0 {}
            if piece.is_empty() {
                break;
            }
            draft = blocking(move || {
                draft.file.write_all(&piece)?;
                Ok(draft)
            })
            .await?;
        }
        blocking(move || draft.publish()).await.map(entry)
    }

    async fn make_folder(&self, path: &str, owner: VolumeOwner, parents: bool) -> io::Result<VolumeEntry> {
        let (path, wanted) = (path.to_owned(), wanted(owner));
        self.entry(move |folder| folder.make_folder(&path, wanted, parents)).await
    }

    async fn change(&self, path: &str, owner: VolumeOwner) -> io::Result<VolumeEntry> {
        let (path, wanted) = (path.to_owned(), wanted(owner));
        self.entry(move |folder| folder.change(&path, wanted)).await
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<VolumeEntry> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.entry(move |folder| folder.rename(&from, &to)).await
    }

    async fn remove(&self, path: &str) -> io::Result<()> {
        let (path, room) = (path.to_owned(), Arc::clone(&self.room));
        self.run(move |folder| remove(folder, &path, room.as_ref())).await
    }
}

fn remove(folder: &VolumeFolder, path: &str, room: &dyn RemovalRoom) -> io::Result<()> {
    let place = room.folder();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let aside = rustix::fs::openat(CWD, &place, flags, Mode::empty())?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let name = format!("removed-{}", hex::encode(random));
    let mut is_folder = false;
    room.with_space(&mut || {
        is_folder = folder.take_away(path, &aside, &name)?;
        Ok(())
    })?;
    if is_folder {
        room.with_space(&mut || atoll_storage::remove_tree(&place.join(&name)))?;
    }
    Ok(())
}

/// The bytes of a file up to the size that was announced for it.
struct FileBytes {
    left: u64,
    file: tokio::fs::File,
}

impl AsyncRead for FileBytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.remaining());
        if most == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.file).poll_read(context, &mut part))?;
        let got = part.filled().len();
        if got == 0 {
            let shrank = io::Error::new(io::ErrorKind::UnexpectedEof, "the file shrank while it was read");
            return Poll::Ready(Err(shrank));
        }
        buffer.advance(got);
        self.left -= got as u64;
        Poll::Ready(Ok(()))
    }
}

fn wanted(owner: VolumeOwner) -> EntryAttributes {
    EntryAttributes { uid: owner.uid, gid: owner.gid, mode: owner.mode }
}

fn entry(found: OpenedEntry) -> VolumeEntry {
    let ms = |seconds: i64, nanoseconds: u64| {
        seconds.saturating_mul(1_000).saturating_add(i64::try_from(nanoseconds / 1_000_000).unwrap_or(0))
    };
    let kind = match found.kind() {
        FileType::RegularFile => VolumeEntryKind::File,
        FileType::Directory => VolumeEntryKind::Folder,
        FileType::Symlink => VolumeEntryKind::Link,
        _ => VolumeEntryKind::Other,
    };
    let OpenedEntry { path, stat, target } = found;
    VolumeEntry {
        path,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        accessed_ms: ms(stat.st_atime, stat.st_atime_nsec),
        modified_ms: ms(stat.st_mtime, stat.st_mtime_nsec),
        changed_ms: ms(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;

    struct Beside(PathBuf);

    impl RemovalRoom for Beside {
        fn folder(&self) -> PathBuf {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn a_file_that_shrinks_while_it_is_read_is_an_error_and_a_removal_leaves_nothing() {
        let top = tempfile::tempdir().unwrap();
        let files = top.path().join("files");
        std::fs::create_dir_all(files.join("a/b")).unwrap();
        std::fs::write(files.join("a/b/c"), vec![7; 8 << 20]).unwrap();
        let root = File::open(&files).unwrap();
        let volume = LocalVolumeFiles::new(VolumeFolder::new(root.into()), Beside(top.path().to_owned()));
        let (about, mut bytes) = volume.read("/a/b/c").await.unwrap();
        assert_eq!(about.size, 8 << 20);
        File::options().write(true).open(files.join("a/b/c")).unwrap().set_len(10).unwrap();
        let mut all = Vec::new();
        let outcome = bytes.read_to_end(&mut all).await;
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(all.len(), 10);
        volume.remove("/a").await.unwrap();
        let names: Vec<_> =
            std::fs::read_dir(top.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["files"]);
    }
}
