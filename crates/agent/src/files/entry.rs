//! Describes a path: type, size, mode, owner, times, link target, metadata.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{open, proc_path, real_path, refuse};
use crate::error::AgentError;
use crate::users::Accounts;

/// Metadata from uploads is stored in extended attributes with this prefix, as in envd.
const ATTRIBUTE: &str = "user.e2b.";

/// LIMIT: names and values of all metadata of a file together.
const METADATA_MAX: usize = 4096;

/// Keys and values that a caller attached to a file.
pub(crate) type Metadata = BTreeMap<String, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Directory,
    Symlink,
    Other,
}

impl From<FileType> for FileKind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct FileEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) path: Vec<u8>,
    /// The type of the entry itself; symbolic links are not followed.
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    /// Including the type bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) owner: String,
    pub(crate) group: String,
    pub(crate) modified_s: i64,
    pub(crate) modified_ns: u32,
    pub(crate) link: Option<LinkTarget>,
    pub(crate) metadata: Metadata,
}

#[derive(Debug, Clone)]
pub(crate) struct LinkTarget {
    /// The text of the link.
    pub(crate) text: Vec<u8>,
    /// The path it leads to and what is there, if it exists.
    pub(crate) end: Option<(Vec<u8>, FileKind, Stat)>,
}

/// Describes a path.
pub(crate) fn stat(path: &[u8]) -> Result<FileEntry, AgentError> {
    let missing = |errno| match errno {
        // A path below a file cannot exist. A caller that checks for existence gets "not found" and not "invalid".
        Errno::NOTDIR => Errno::NOENT,
        other => other,
    };
    let handle = open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|errno| refuse(missing(errno), path))?;
    Accounts::read()
        .and_then(|accounts| describe(&handle, path.to_vec(), &accounts))
        .map_err(|e| refuse(e, path))
}

/// Describes the file of a descriptor (opened with PATH and NOFOLLOW), under the path it was reached by.
pub(super) fn describe(
    handle: &OwnedFd,
    path: Vec<u8>,
    accounts: &Accounts,
) -> rustix::io::Result<FileEntry> {
    let stat = rustix::fs::fstat(handle)?;
    let kind = FileKind::from(FileType::from_raw_mode(stat.st_mode));
    let link = if kind == FileKind::Symlink { Some(follow(handle, &path)?) } else { None };
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
    Ok(FileEntry {
        name: if name.is_empty() { b"/".to_vec() } else { name },
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        owner: accounts.user_name(stat.st_uid),
        group: accounts.group_name(stat.st_gid),
        modified_s: stat.st_mtime,
        modified_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        link,
        metadata: if kind == FileKind::File { read_metadata(handle) } else { Metadata::new() },
        path,
    })
}

fn follow(handle: &OwnedFd, path: &[u8]) -> rustix::io::Result<LinkTarget> {
    let text = rustix::fs::readlinkat(handle, c"", Vec::new())?.into_bytes();
    let end = open(path, OFlags::PATH, Mode::empty()).and_then(|target| {
        let stat = rustix::fs::fstat(&target)?;
        Ok((real_path(&target)?, FileKind::from(FileType::from_raw_mode(stat.st_mode)), stat))
    });
    match end {
        Err(errno) if AgentError::is_exhaustion(errno) => Err(errno),
        end => Ok(LinkTarget { text, end: end.ok() }),
    }
}

/// Checks the metadata of a request.
pub(super) fn check_metadata(metadata: &Metadata) -> Result<(), AgentError> {
    let printable = |text: &str| text.bytes().all(|b| (0x20..0x7f).contains(&b));
    let total: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if total > METADATA_MAX {
        return Err(AgentError::Invalid("metadata is larger than 4096 bytes".into()));
    }
    if metadata
        .iter()
        .any(|(key, value)| key.is_empty() || key.len() > 200 || !printable(key) || !printable(value))
    {
        return Err(AgentError::Invalid(
            "metadata is printable ASCII, with keys of 1 to 200 characters".into(),
        ));
    }
    Ok(())
}

/// Attaches metadata to a new file.
pub(super) fn write_metadata(file: &OwnedFd, metadata: &Metadata) -> Result<(), AgentError> {
    for (key, value) in metadata {
        let name = format!("{ATTRIBUTE}{key}");
        rustix::fs::fsetxattr(file, name, value.as_bytes(), rustix::fs::XattrFlags::empty()).map_err(
            |errno| match errno {
                Errno::OPNOTSUPP => AgentError::Conflict("the file system does not support metadata".into()),
                other => AgentError::from_errno(other, "metadata"),
            },
        )?;
    }
    Ok(())
}

/// Best effort: a file without readable attributes has no metadata.
fn read_metadata(handle: &OwnedFd) -> Metadata {
    // Through /proc, because a PATH descriptor gives no access to attributes.
    let path = proc_path(handle);
    let mut names = vec![0u8; 4096];
    let Ok(len) = rustix::fs::listxattr(&path, &mut names) else { return Metadata::new() };
    let mut metadata = Metadata::new();
    for name in names[..len].split(|b| *b == 0) {
        let Some(key) = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(ATTRIBUTE)) else {
            continue;
        };
        let mut value = vec![0u8; METADATA_MAX];
        if let Ok(len) = rustix::fs::getxattr(&path, name, &mut value) {
            value.truncate(len);
            metadata.insert(key.to_owned(), String::from_utf8_lossy(&value).into_owned());
        }
    }
    metadata
}
