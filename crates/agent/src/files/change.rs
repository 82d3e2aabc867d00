//! Changes mode, owner and group of the file that a path leads to, with the permissions of the caller.

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::entry::{FileEntry, stat};
use super::{open, proc_path, refuse, refuse_mode};
use crate::error::AgentError;
use crate::users::Accounts;

/// The new owner and group; `None`: unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnerChange {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl OwnerChange {
    /// By name or number in the sandbox; empty: unchanged.
    pub(crate) fn find(owner: &str, group: &str) -> Result<Self, AgentError> {
        if owner.is_empty() && group.is_empty() {
            return Ok(Self::default());
        }
        let accounts = Accounts::read().map_err(|e| AgentError::from_errno(e, "users of the sandbox"))?;
        let missing = |what: &str, name: &str| {
            let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            AgentError::Invalid(format!("no {what} '{shown}' in this sandbox"))
        };
        let uid = match owner {
            "" => None,
            name => Some(accounts.find(name).ok_or_else(|| missing("user", name))?.ids.uid),
        };
        let gid = match group {
            "" => None,
            name => Some(accounts.group_id(name).ok_or_else(|| missing("group", name))?),
        };
        Ok(Self { uid, gid })
    }
}

/// Applies the change. The owner comes first, because the kernel removes special bits when the owner changes.
pub(crate) fn change(path: &[u8], mode: Option<u32>, owner: OwnerChange) -> Result<FileEntry, AgentError> {
    let handle = open(path, OFlags::PATH, Mode::empty()).map_err(|e| refuse(e, path))?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&handle).map_err(|e| refuse(e, path))?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(refuse(Errno::INVAL, path));
    }
    if owner.uid.is_some() || owner.gid.is_some() {
        let (uid, gid) = (owner.uid.map(Uid::from_raw), owner.gid.map(Gid::from_raw));
        rustix::fs::chownat(&handle, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(|e| refuse(e, path))?;
    }
    if let Some(mode) = mode {
        // By descriptor: the path is not walked again, so the file cannot be replaced in between.
        let mode = Mode::from_raw_mode(mode & 0o7777);
        rustix::fs::chmod(proc_path(&handle), mode).map_err(|e| refuse_mode(e, mode, path))?;
    }
    stat(path)
}
