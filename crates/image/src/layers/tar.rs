//! The tar format as images use it: ustar, GNU's long names and sparse files, PAX records.
//!
//! [`read`] believes nothing: every number is checked, every buffer is bounded, and what it does not know it refuses.
//! [`write`] is deterministic. Neither touches a file.

mod header;
mod pax;
pub(crate) mod read;
mod sparse;
pub(crate) mod write;

/// The unit of the format.
pub(crate) const BLOCK: usize = 512;

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TarKind {
    #[default]
    File,
    Folder,
    Symlink,
    HardLink,
    Fifo,
    CharDevice,
    BlockDevice,
}

/// One entry, without its data.
#[derive(Debug, Clone, Default)]
pub(crate) struct TarEntry {
    /// As it is in the archive: any bytes but NUL.
    pub(crate) name: Vec<u8>,
    pub(crate) kind: TarKind,
    /// What a link points to.
    pub(crate) link: Vec<u8>,
    /// Permissions alone.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// Bytes of the file, holes included.
    pub(crate) size: u64,
    /// Where the data lies in the file (offset, length), in order; `None`: all of it, from the start.
    pub(crate) map: Option<Vec<(u64, u64)>>,
    pub(crate) xattrs: Xattrs,
}
