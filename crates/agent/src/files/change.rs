//! Mode, owner and group of what a path leads to, with the rights of the caller.

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::entry::{FileEntry, stat};
use super::{open, proc_path, refuse};
use crate::error::AgentError;
use crate::users::Accounts;

/// What is to be; `None`: as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnerChange {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl OwnerChange {
    /// Names or numbers of the sandbox; empty: as it is.
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

/// Changes it. The owner first: the kernel takes special bits away when a file gets another one.
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
        // By its descriptor: no second walk, so nobody can put another in its place.
        rustix::fs::chmod(proc_path(&handle), Mode::from_raw_mode(mode & 0o7777))
            .map_err(|e| refuse(e, path))?;
    }
    stat(path)
}
