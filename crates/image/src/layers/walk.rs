//! Reads the folder of a layer: its names and marks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::tree::OPAQUE;
use atoll_tar::Xattrs;

/// LIMIT: bytes of one attribute's value and of the list of names, as in the kernel.
const XATTR_MAX: usize = 64 << 10;

/// Names in a folder, sorted by their bytes.
pub(crate) fn names(folder: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a subfolder; never follows a symbolic link.
pub(crate) fn open_folder(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Whether a folder hides the one below it.
pub(crate) fn is_opaque(folder: BorrowedFd<'_>) -> Result<bool, Errno> {
    has_mark(folder, OPAQUE)
}

/// Whether a folder has an attribute with the value `y`.
pub(super) fn has_mark(folder: BorrowedFd<'_>, mark: &str) -> Result<bool, Errno> {
    let mut value = [0; 4];
    match rustix::fs::fgetxattr(folder, mark, &mut value[..]) {
        Ok(1) => Ok(value[0] == b'y'),
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The attributes that belong to a file's content: not the marks of overlays, nor attributes for the host.
pub(super) fn xattrs(file: impl AsFd) -> Result<Xattrs, Errno> {
    let mut list = [0; 1024];
    let list = match rustix::fs::flistxattr(&file, &mut list[..]) {
        Ok(length) => list[..length].to_vec(),
        Err(Errno::RANGE) => {
            let mut long = vec![0; XATTR_MAX];
            let length = rustix::fs::flistxattr(&file, &mut long[..])?;
            long.truncate(length);
            long
        }
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let mut found = Vec::new();
    for name in list.split(|&byte| byte == 0).filter(|name| super::unpack::is_kept(name)) {
        let mut value = vec![0; XATTR_MAX];
        let length = rustix::fs::fgetxattr(&file, name, &mut value[..])?;
        value.truncate(length);
        found.push((name.to_owned(), value));
    }
    found.sort_unstable();
    Ok(found)
}
