//! The folder of a sandbox, and the record of its instance.
//!
//! ```text
//! DATA/local/<sandbox>/owner           which server it belongs to; folders of others are never touched
//! DATA/local/<sandbox>/instance.json   the process of the live instance
//! DATA/local/<sandbox>/agent.sock      the agent
//! DATA/local/<sandbox>/workspace/      home and working directory of commands
//! /tmp/.atoll-<sandbox>/               TMPDIR of commands; the toolbox finds it by the id of the sandbox
//! ```

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::WALK_LIMIT;
use serde::{Deserialize, Serialize};

/// The name of the agent's socket in the folder of a sandbox.
pub(crate) const SOCKET: &str = "agent.sock";
pub(crate) const WORKSPACE: &str = "workspace";

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;
const OWNER: &str = "owner";
const RECORD: &str = "instance.json";
/// The beginnings of names of folders that are being made or removed. They are no names of sandboxes.
const MAKING: &str = ".new-";
const REMOVED: &str = ".removed-";

/// How a later server finds an instance. Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    pub(crate) instance: InstanceId,
    /// Pids are invalid after a reboot.
    pub(crate) boot_id: String,
    pub(crate) pid: i32,
    /// In clock ticks since boot: a process that reuses the pid has another value.
    pub(crate) started: u64,
    /// Whether the instance has control groups, named as the instance.
    pub(crate) has_cgroup: bool,
}

/// One folder of a sandbox: a later one of the same name is not equal to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedFolder {
    sandbox: SandboxId,
    inode: u64,
    /// `None`: the file system does not tell.
    made_at: Option<SystemTime>,
}

/// The folders of all sandboxes of one owner.
#[derive(Debug, Clone)]
pub(crate) struct SandboxFolders {
    pub(crate) root: PathBuf,
    pub(crate) owner: String,
}

impl SandboxFolders {
    /// Makes the folder of the provider, and removes what a crash left half made or half removed.
    pub(crate) fn open(root: &Path, owner: String) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let folders = Self { root: root.canonicalize()?, owner };
        for entry in fs::read_dir(&folders.root)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_left =
                name.to_str().is_some_and(|name| name.starts_with(MAKING) || name.starts_with(REMOVED));
            if is_left
                && folders.is_labelled(&entry.path())
                && let Err(cause) = remove_aside(&entry.path())
            {
                tracing::warn!(folder = %entry.path().display(), %cause, "a folder of a deleted sandbox is left");
            }
        }
        Ok(folders)
    }

    pub(crate) fn of(&self, sandbox: &SandboxId) -> PathBuf {
        self.root.join(sandbox.as_str())
    }

    fn is_labelled(&self, folder: &Path) -> bool {
        fs::read_to_string(folder.join(OWNER)).is_ok_and(|owner| owner == self.owner)
    }

    /// Whether there is a folder of this sandbox that belongs to this server.
    pub(crate) fn owns(&self, sandbox: &SandboxId) -> bool {
        self.is_labelled(&self.of(sandbox))
    }

    /// Makes the folder of a sandbox, with its label from the first moment on.
    pub(crate) fn make(&self, sandbox: &SandboxId) -> io::Result<()> {
        let making = self.root.join(format!("{MAKING}{sandbox}"));
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        missing_is_fine(fs::remove_dir_all(&making))?;
        private(&making)?;
        fs::write(making.join(OWNER), &self.owner)?;
        private(&making.join(WORKSPACE))?;
        private(&temporary(sandbox))?;
        // An existing folder is not empty, so it is never replaced.
        fs::rename(&making, self.of(sandbox))
    }

    /// Frees the name of a sandbox; returns the folder for [`remove_aside`]. `None` where it has none.
    pub(crate) fn put_aside(&self, sandbox: &SandboxId) -> io::Result<Option<PathBuf>> {
        if !self.owns(sandbox) {
            return Ok(None);
        }
        let name = format!("{REMOVED}{sandbox}-{}", crate::random_hex(8)?);
        let (temporary, temporary_aside) = (temporary(sandbox), removed_temporary(&name));
        missing_is_fine(fs::rename(&temporary, &temporary_aside))?;
        let aside = self.root.join(&name);
        match fs::rename(self.of(sandbox), &aside) {
            Ok(()) => Ok(Some(aside)),
            // The removal of an ended instance was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                remove_tree(&temporary_aside)?;
                Ok(None)
            }
            Err(error) => {
                // The next attempt takes both.
                missing_is_fine(fs::rename(&temporary_aside, &temporary))?;
                Err(error)
            }
        }
    }

    /// The folder that has the name of a sandbox now.
    pub(crate) fn named(&self, sandbox: &SandboxId) -> Option<NamedFolder> {
        let about = fs::metadata(self.of(sandbox)).ok()?;
        Some(NamedFolder { sandbox: sandbox.clone(), inode: about.ino(), made_at: about.created().ok() })
    }

    /// As [`SandboxFolders::put_aside`], unless another folder has the name by now.
    pub(crate) fn put_aside_named(&self, folder: &NamedFolder) -> io::Result<Option<PathBuf>> {
        match self.named(&folder.sandbox).is_some_and(|current| current == *folder) {
            true => self.put_aside(&folder.sandbox),
            false => Ok(None),
        }
    }

    /// Every sandbox of this server.
    pub(crate) fn list(&self) -> io::Result<Vec<SandboxId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let sandbox = name.to_str().and_then(|name| name.parse::<SandboxId>().ok());
            found.extend(sandbox.filter(|sandbox| self.owns(sandbox)));
        }
        Ok(found)
    }

    /// The last recorded instance of a sandbox.
    pub(crate) fn record(&self, sandbox: &SandboxId) -> Option<InstanceRecord> {
        let text = fs::read(self.of(sandbox).join(RECORD)).ok().filter(|_| self.owns(sandbox))?;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces the record whole, or not at all.
    pub(crate) fn write_record(&self, sandbox: &SandboxId, record: &InstanceRecord) -> io::Result<()> {
        let folder = self.of(sandbox);
        let next = folder.join("instance.json.new");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        drop(file);
        fs::rename(next, folder.join(RECORD))
    }

    /// Removes the record of an ended instance, and its socket.
    pub(crate) fn remove_record(&self, sandbox: &SandboxId) -> io::Result<()> {
        let folder = self.of(sandbox);
        missing_is_fine(fs::remove_file(folder.join(RECORD)))?;
        missing_is_fine(fs::remove_file(folder.join(SOCKET)))
    }
}

/// Where the temporary files of a removed sandbox are, by the name of its removed folder.
fn removed_temporary(name: &str) -> PathBuf {
    PathBuf::from(format!("{}{name}", atoll_agentapi::host_temporary_folder("")))
}

/// Removes a folder that was put aside, after its temporary files: while the folder is there, the next server finds both.
pub(crate) fn remove_aside(folder: &Path) -> io::Result<()> {
    if let Some(name) = folder.file_name().and_then(|name| name.to_str())
        && name.starts_with(REMOVED)
    {
        remove_tree(&removed_temporary(name))?;
    }
    remove_tree(folder)
}

/// The folder for temporary files of a sandbox.
pub(crate) fn temporary(sandbox: &SandboxId) -> PathBuf {
    PathBuf::from(atoll_agentapi::host_temporary_folder(sandbox.as_str()))
}

/// The bytes on disk of a folder with everything in it, a file with several names once. Other file systems are not entered. A
/// walk that takes longer than [`WALK_LIMIT`] ends with an error, because its caller has stopped waiting.
pub(crate) fn bytes_of(folder: &Path) -> io::Result<u64> {
    let begun = Instant::now();
    let top = fs::symlink_metadata(folder)?;
    let (mut bytes, mut several_names) = (top.blocks() * BLOCK, HashSet::new());
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Removed since.
            let Ok(about) = entry.metadata() else { continue };
            if begun.elapsed() > WALK_LIMIT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if about.dev() != top.dev() {
                continue;
            }
            if about.is_dir() {
                folders.push(entry.path());
            } else if about.nlink() > 1 && !several_names.insert(about.ino()) {
                continue;
            }
            bytes += about.blocks() * BLOCK;
        }
    }
    Ok(bytes)
}

/// Removes a folder with everything in it. Other file systems are not entered: a program of the sandbox may have mounted
/// anything there.
pub(crate) fn remove_tree(folder: &Path) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mut below =
        points.map(|point| point.replace("\\040", " ")).filter(|point| Path::new(point).starts_with(folder));
    match below.next() {
        Some(point) => {
            let text = format!("something is mounted at {point}; unmount it");
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
        None => missing_is_fine(fs::remove_dir_all(folder)),
    }
}

pub(crate) fn missing_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Unlike that of every other test: temporary folders are in one place.
    fn sandbox(byte: u8) -> SandboxId {
        let mut bytes = [byte; 20];
        bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        SandboxId::from_entropy(bytes)
    }

    #[test]
    fn folders_of_another_owner_are_not_seen_and_never_touched() {
        let root = tempfile::tempdir().unwrap();
        let ours = SandboxFolders::open(root.path(), "ours".into()).unwrap();
        let theirs = SandboxFolders::open(root.path(), "theirs".into()).unwrap();
        ours.make(&sandbox(1)).unwrap();
        theirs.make(&sandbox(2)).unwrap();
        let cleanup = || {
            for aside in [ours.put_aside(&sandbox(1)).unwrap(), theirs.put_aside(&sandbox(2)).unwrap()] {
                remove_aside(&aside.unwrap()).unwrap();
            }
        };
        assert_eq!(ours.list().unwrap(), [sandbox(1)]);
        assert!(!ours.owns(&sandbox(2)) && ours.put_aside(&sandbox(2)).unwrap().is_none());
        assert!(ours.make(&sandbox(2)).is_err(), "a folder is never replaced");
        assert!(theirs.owns(&sandbox(2)));
        cleanup();
    }

    #[test]
    fn a_folder_is_measured_with_what_is_below_it_and_links_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("workspace");
        fs::create_dir_all(folder.join("deep/er")).unwrap();
        let empty = bytes_of(&folder).unwrap();
        fs::write(folder.join("deep/er/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(folder.join("deep/er/file"), folder.join("same")).unwrap();
        std::os::unix::fs::symlink("/usr", folder.join("link")).unwrap();
        let grown = bytes_of(&folder).unwrap() - empty;
        assert!(((1 << 20)..(1 << 20) + 65_536).contains(&grown), "{grown}");
        assert!(bytes_of(&root.path().join("none")).is_err());
    }

    #[test]
    fn what_a_crash_left_is_removed_at_the_next_start() {
        let root = tempfile::tempdir().unwrap();
        let folders = SandboxFolders::open(root.path(), "ours".into()).unwrap();
        folders.make(&sandbox(3)).unwrap();
        fs::write(temporary(&sandbox(3)).join("file"), "content").unwrap();
        let aside = folders.put_aside(&sandbox(3)).unwrap().unwrap();
        let temporary_aside = removed_temporary(aside.file_name().unwrap().to_str().unwrap());
        assert!(aside.exists() && folders.list().unwrap().is_empty());
        assert!(temporary_aside.join("file").exists() && !temporary(&sandbox(3)).exists());
        SandboxFolders::open(root.path(), "ours".into()).unwrap();
        assert!(!aside.exists() && !temporary_aside.exists());
    }

    #[test]
    fn a_later_folder_of_the_same_name_is_not_put_aside() {
        let root = tempfile::tempdir().unwrap();
        let folders = SandboxFolders::open(root.path(), "ours".into()).unwrap();
        folders.make(&sandbox(4)).unwrap();
        let first = folders.named(&sandbox(4)).unwrap();
        let aside = folders.put_aside_named(&first).unwrap().unwrap();
        folders.make(&sandbox(4)).unwrap();
        assert!(folders.put_aside_named(&first).unwrap().is_none() && folders.owns(&sandbox(4)));
        let later = folders.put_aside(&sandbox(4)).unwrap().unwrap();
        for folder in [aside, later] {
            remove_aside(&folder).unwrap();
        }
    }
}
