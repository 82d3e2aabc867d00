//! The folders of checkpoints: drafts, whole ones, spent ones. Every change of what a folder is, is one rename on disk.

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

/// A dump under way. Locked as long as somebody holds a copy of `images`, also when that is CRIU alone.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) folder: PathBuf,
    pub(crate) images: OwnedFd,
}

/// Whom the processes of a spent checkpoint became.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restored {
    pub(crate) instance: InstanceId,
    pub(crate) facts: serde_json::Value,
}

impl Draft {
    /// Makes an empty draft at `folder`; what was there is removed.
    pub(crate) fn begin(folder: &Path) -> io::Result<Self> {
        remove_all(folder)?;
        DirBuilder::new().mode(0o700).create(folder)?;
        // Open below a closed one: a restore reads them as root of the host and as root of the sandbox, in both cases without
        // the rights that go with it.
        DirBuilder::new().mode(0o755).create(folder.join(IMAGES))?;
        let images: OwnedFd = File::open(folder.join(IMAGES))?.into();
        rustix::fs::flock(&images, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { folder: folder.to_owned(), images })
    }
}

impl Checkpoints {
    /// Makes the folder or finds it again.
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

    /// Where the whole checkpoint of a sandbox is.
    pub(crate) fn path(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str())
    }

    /// Whether there is one.
    pub(crate) fn exists(&self, sandbox: &SandboxId) -> bool {
        self.path(sandbox).join(MANIFEST).exists()
    }

    /// Begins a dump.
    pub(crate) fn draft(&self, sandbox: &SandboxId) -> io::Result<Draft> {
        Draft::begin(&self.named(sandbox, DRAFT))
    }

    /// Makes a sealed folder the sandbox's checkpoint, for good: when this returns it and the sandbox's files are on disk.
    /// The folder lies in the same pool. On an error there is no checkpoint: the processes that it was made of go on.
    pub(crate) fn commit(&self, sandbox: &SandboxId, folder: &Path) -> io::Result<()> {
        remove_all(&self.path(sandbox))?;
        self.failpoint.reach("commit.cleared");
        let root = File::open(&self.root)?;
        // The images must not come to disk without the files that they go with, so it is all of the pool.
        rustix::fs::syncfs(&root)?;
        self.failpoint.reach("commit.synced");
        fs::rename(folder, self.path(sandbox))?;
        self.failpoint.reach("commit.renamed");
        if let Err(cause) = root.sync_all() {
            remove_all(&self.path(sandbox))?;
            return Err(cause);
        }
        // It names an instance that is not the sandbox's any more, so it says nothing, and the next spend removes it.
        if let Err(cause) = remove_all(&self.named(sandbox, SPENT)) {
            tracing::warn!(%sandbox, %cause, "a used checkpoint could not be removed");
        }
        Ok(())
    }

    /// Removes the whole checkpoint of a sandbox that is about to run, for good: memory must never meet files that were changed
    /// after it was written. Mostly there is none, and that costs one look.
    pub(crate) fn discard(&self, sandbox: &SandboxId) -> io::Result<()> {
        if !self.exists(sandbox) {
            return Ok(());
        }
        tracing::warn!(%sandbox, "removing the checkpoint of a running instance");
        remove_all(&self.path(sandbox))?;
        File::open(&self.root)?.sync_all()
    }

    /// Says, for good, that the processes of the checkpoint live on as `restored`. It can't be restored again.
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

    /// Takes a spend back: nothing of the processes has run. Without a rename that was done there is nothing to take back.
    pub(crate) fn unspend(&self, sandbox: &SandboxId) -> io::Result<()> {
        let (whole, spent) = (self.path(sandbox), self.named(sandbox, SPENT));
        if self.exists(sandbox) || !spent.join(MANIFEST).exists() {
            return Ok(());
        }
        fs::rename(&spent, &whole)?;
        File::open(&self.root)?.sync_all()
    }

    /// Whom a spent checkpoint became.
    pub(crate) fn restored(&self, sandbox: &SandboxId) -> Option<Restored> {
        serde_json::from_slice(&fs::read(self.named(sandbox, SPENT).join(RESTORED)).ok()?).ok()
    }

    /// Frees what a spent checkpoint takes; whom it became stays known.
    pub(crate) fn free_spent(&self, sandbox: &SandboxId) -> io::Result<()> {
        remove_all(&self.named(sandbox, SPENT).join(IMAGES))
    }

    /// Removes the draft of a sandbox.
    pub(crate) fn drop_draft(&self, sandbox: &SandboxId) -> io::Result<()> {
        remove_all(&self.named(sandbox, DRAFT))
    }

    /// Removes everything of a sandbox. Nothing there is fine.
    pub(crate) fn remove(&self, sandbox: &SandboxId) -> io::Result<()> {
        [self.path(sandbox), self.named(sandbox, DRAFT), self.named(sandbox, SPENT)]
            .iter()
            .try_for_each(|folder| remove_all(folder))
    }

    /// Every sandbox that has something here.
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

    /// At adoption: `kept` keeps a whole checkpoint, `lives` keeps whom a spent one became.
    pub(crate) fn sweep_named(&self, name: &str, kept: bool, lives: bool) -> io::Result<()> {
        remove_all(&self.root.join(format!("{name}.{DRAFT}")))?;
        let spent = self.root.join(format!("{name}.{SPENT}"));
        remove_all(&if lives { spent.join(IMAGES) } else { spent })?;
        if kept { Ok(()) } else { remove_all(&self.root.join(name)) }
    }

    /// Waits until no CRIU works on a sandbox any more. A server that died may have left one under way, and until it has ended
    /// the processes are neither frozen nor free.
    pub(crate) fn wait_for_criu(&self, sandbox: &SandboxId, at_most: Duration) -> io::Result<()> {
        let end = Instant::now() + at_most;
        let folders = [self.named(sandbox, DRAFT), self.path(sandbox), self.named(sandbox, SPENT)];
        folders.iter().try_for_each(|folder| wait_for_images(folder, end))
    }
}

/// Waits until no CRIU works on the images of a folder any more.
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

/// The images of a checkpoint, held for a restore. Several may restore the same at once. Whoever has just written them has said
/// so, but may need a moment more to end.
pub(crate) fn hold_images(folder: &Path) -> io::Result<OwnedFd> {
    /// LIMIT: the end of a process that has nothing more to do.
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

/// Removes a folder, its manifest first: what is half removed is not taken for whole.
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
        assert!(checkpoints.wait_for_criu(&id(), Duration::ZERO).is_err(), "whoever has a copy holds it");
        drop(held);
        checkpoints.wait_for_criu(&id(), Duration::ZERO).unwrap();
    }
}
