//! The folders of checkpoints: drafts, complete ones, spent ones. Every change from one kind to another is one rename
//! on disk.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::{InstanceId, SandboxId};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::manifest::{IMAGES, MANIFEST};
use crate::failpoint::FailPoint;

const DRAFT: &str = "tmp";
const SPENT: &str = "spent";
const RESTORED: &str = "restored.json";

/// All checkpoints of one server.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    root: PathBuf,
    failpoint: FailPoint,
}

/// A dump under way. It is locked as long as any process, for example CRIU alone, holds a copy of `images`.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) folder: PathBuf,
    pub(crate) images: OwnedFd,
}

/// The instance that the processes of a spent checkpoint became.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restored {
    pub(crate) instance: InstanceId,
    pub(crate) facts: serde_json::Value,
}

impl Draft {
    /// Makes an empty draft at `folder`; removes an earlier one.
    pub(crate) fn begin(folder: &Path) -> io::Result<Self> {
        remove_all(folder)?;
        DirBuilder::new().mode(0o700).create(folder)?;
        // Readable for all, below a folder that is not: a restore reads the images as root of the host and as root of
        // the sandbox, in both cases without the capabilities of root.
        DirBuilder::new().mode(0o755).create(folder.join(IMAGES))?;
        let images: OwnedFd = File::open(folder.join(IMAGES))?.into();
        rustix::fs::flock(&images, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { folder: folder.to_owned(), images })
    }
}

impl Checkpoints {
    /// Opens the folder of checkpoints; makes it when missing.
    pub(crate) fn open(pool: &Path, failpoint: FailPoint) -> io::Result<Self> {
        let root = pool.join("checkpoints");
        match DirBuilder::new().mode(0o700).create(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self { root, failpoint })
    }

    fn named(&self, sandbox: &SandboxId, state: &str) -> PathBuf {
        self.root.join(format!("{}.{state}", sandbox.as_str()))
    }

    /// The path of the complete checkpoint of a sandbox.
    pub(crate) fn path(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str())
    }

    /// Whether the sandbox has a complete checkpoint.
    pub(crate) fn exists(&self, sandbox: &SandboxId) -> bool {
        self.path(sandbox).join(MANIFEST).exists()
    }

    /// Begins a dump.
    pub(crate) fn draft(&self, sandbox: &SandboxId) -> io::Result<Draft> {
        Draft::begin(&self.named(sandbox, DRAFT))
    }

    /// Makes a sealed folder the checkpoint of the sandbox. When this returns, the checkpoint and the sandbox's files
    /// are on disk. The folder must be in the same pool. On an error there is no checkpoint, and the dumped processes
    /// continue.
    pub(crate) fn commit(&self, sandbox: &SandboxId, folder: &Path) -> io::Result<()> {
        remove_all(&self.path(sandbox))?;
        self.failpoint.reach("commit.cleared");
        let root = File::open(&self.root)?;
        // The images must not be on disk without the files that belong to them, so the whole pool is synced.
        rustix::fs::syncfs(&root)?;
        self.failpoint.reach("commit.synced");
        fs::rename(folder, self.path(sandbox))?;
        self.failpoint.reach("commit.renamed");
        if let Err(cause) = root.sync_all() {
            remove_all(&self.path(sandbox))?;
            return Err(cause);
        }
        // It names an earlier instance of the sandbox, so it has no effect, and the next spend removes it.
        if let Err(cause) = remove_all(&self.named(sandbox, SPENT)) {
            tracing::warn!(%sandbox, %cause, "a used checkpoint could not be removed");
        }
        Ok(())
    }

    /// Removes the complete checkpoint of a sandbox that is about to run: memory must never be restored over files that
    /// changed after it was written. Usually there is no checkpoint, and the call costs one check.
    pub(crate) fn discard(&self, sandbox: &SandboxId) -> io::Result<()> {
        if !self.exists(sandbox) {
            return Ok(());
        }
        tracing::warn!(%sandbox, "removing the checkpoint of a running instance");
        remove_all(&self.path(sandbox))?;
        File::open(&self.root)?.sync_all()
    }

    /// Records durably that the processes of the checkpoint live on as `restored`. The checkpoint can't be restored
    /// again.
    pub(crate) fn spend(&self, sandbox: &SandboxId, restored: &Restored) -> io::Result<()> {
        let (whole, spent) = (self.path(sandbox), self.named(sandbox, SPENT));
        remove_all(&spent)?;
        let mut file = File::create(whole.join(RESTORED))?;
        file.write_all(&serde_json::to_vec(restored)?)?;
        file.sync_all()?;
        self.failpoint.reach("spend.noted");
        fs::rename(&whole, &spent)?;
        self.failpoint.reach("spend.renamed");
        File::open(&self.root)?.sync_all()
    }

    /// Reverts a spend; none of the processes may have run. If the rename was not done, nothing is reverted.
    pub(crate) fn unspend(&self, sandbox: &SandboxId) -> io::Result<()> {
        let (whole, spent) = (self.path(sandbox), self.named(sandbox, SPENT));
        if self.exists(sandbox) || !spent.join(MANIFEST).exists() {
            return Ok(());
        }
        fs::rename(&spent, &whole)?;
        File::open(&self.root)?.sync_all()
    }

    /// The instance that a spent checkpoint became.
    pub(crate) fn restored(&self, sandbox: &SandboxId) -> Option<Restored> {
        serde_json::from_slice(&fs::read(self.named(sandbox, SPENT).join(RESTORED)).ok()?).ok()
    }

    /// Frees the disk space of a spent checkpoint; the record of its instance stays.
    pub(crate) fn free_spent(&self, sandbox: &SandboxId) -> io::Result<()> {
        remove_all(&self.named(sandbox, SPENT).join(IMAGES))
    }

    /// Removes the draft of a sandbox.
    pub(crate) fn drop_draft(&self, sandbox: &SandboxId) -> io::Result<()> {
        remove_all(&self.named(sandbox, DRAFT))
    }

    /// Removes every checkpoint folder of a sandbox. Missing folders are no error.
    pub(crate) fn remove(&self, sandbox: &SandboxId) -> io::Result<()> {
        [self.path(sandbox), self.named(sandbox, DRAFT), self.named(sandbox, SPENT)]
            .iter()
            .try_for_each(|folder| remove_all(folder))
    }

    /// Every sandbox that has a folder here.
    pub(crate) fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name.split_once('.').map_or(name.as_str(), |(first, _)| first).to_owned());
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Removes folders at adoption. `kept` keeps the complete checkpoint, `lives` keeps the record in the spent one.
    pub(crate) fn sweep_named(&self, name: &str, kept: bool, lives: bool) -> io::Result<()> {
        remove_all(&self.root.join(format!("{name}.{DRAFT}")))?;
        let spent = self.root.join(format!("{name}.{SPENT}"));
        remove_all(&if lives { spent.join(IMAGES) } else { spent })?;
        if kept { Ok(()) } else { remove_all(&self.root.join(name)) }
    }

    /// Waits until no CRIU process works on a sandbox. A server that died may have left one running, and until it ends,
    /// the sandbox's processes are neither frozen nor free.
    pub(crate) fn wait_for_criu(&self, sandbox: &SandboxId, at_most: Duration) -> io::Result<()> {
        let end = Instant::now() + at_most;
        let folders = [self.named(sandbox, DRAFT), self.path(sandbox), self.named(sandbox, SPENT)];
        folders.iter().try_for_each(|folder| wait_for_images(folder, end))
    }
}

/// Waits until no CRIU process works on the images of a folder.
pub(crate) fn wait_for_images(folder: &Path, end: Instant) -> io::Result<()> {
    let Ok(images) = File::open(folder.join(IMAGES)) else { return Ok(()) };
    while let Err(error) = rustix::fs::flock(images.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        if Instant::now() >= end {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Locks the images of a checkpoint for a restore. Several restores may use the same images at once. A CRIU process
/// that has just reported the end of its dump may need a moment to exit.
pub(crate) fn hold_images(folder: &Path) -> io::Result<OwnedFd> {
    /// LIMIT: the exit of a process that has finished its work.
    const WRITER_WITHIN: Duration = Duration::from_secs(5);
    let images = File::open(folder.join(IMAGES))?;
    let end = Instant::now() + WRITER_WITHIN;
    while let Err(error) = rustix::fs::flock(&images, FlockOperation::NonBlockingLockShared) {
        if error != rustix::io::Errno::WOULDBLOCK || Instant::now() >= end {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(images.into())
}

/// Removes a folder, its manifest first, so that a partly removed folder does not count as complete.
fn remove_all(folder: &Path) -> io::Result<()> {
    let gone = |outcome: io::Result<()>| match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    gone(fs::remove_file(folder.join(MANIFEST)))?;
    gone(fs::remove_dir_all(folder))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::CheckpointManifest;
    use super::*;

    fn id() -> SandboxId {
        SandboxId::from_entropy([7; 20])
    }

    #[test]
    fn a_draft_becomes_whole_and_is_spent_once() {
        let pool = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(pool.path(), FailPoint::default()).unwrap();
        let draft = checkpoints.draft(&id()).unwrap();
        fs::write(draft.folder.join("images/core-1.img"), b"x").unwrap();
        assert!(!checkpoints.exists(&id()));
        CheckpointManifest::new(&id(), "4.2.1").seal(&draft.folder).unwrap();
        checkpoints.commit(&id(), &draft.folder).unwrap();
        assert!(checkpoints.exists(&id()) && checkpoints.restored(&id()).is_none());
        let restored = Restored { instance: InstanceId::from_entropy([1; 20]), facts: 5.into() };
        checkpoints.spend(&id(), &restored).unwrap();
        assert!(!checkpoints.exists(&id()));
        checkpoints.unspend(&id()).unwrap();
        assert!(checkpoints.exists(&id()) && checkpoints.restored(&id()).is_none(), "as before the spend");
        checkpoints.spend(&id(), &restored).unwrap();
        assert!(!checkpoints.exists(&id()));
        assert_eq!(checkpoints.restored(&id()), Some(restored));
        assert_eq!(checkpoints.list().unwrap(), [id().as_str()]);
        checkpoints.remove(&id()).unwrap();
        assert!(checkpoints.list().unwrap().is_empty());
    }

    #[test]
    fn a_dump_under_way_is_waited_for() {
        let pool = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(pool.path(), FailPoint::default()).unwrap();
        let draft = checkpoints.draft(&id()).unwrap();
        assert!(checkpoints.wait_for_criu(&id(), Duration::from_millis(20)).is_err());
        let held = draft.images.try_clone().unwrap();
        drop(draft);
        assert!(
            checkpoints.wait_for_criu(&id(), Duration::ZERO).is_err(),
            "a copy of the descriptor keeps the lock"
        );
        drop(held);
        checkpoints.wait_for_criu(&id(), Duration::ZERO).unwrap();
    }
}
