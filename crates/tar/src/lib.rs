//! The tar format: one reader for files, one for streams, one writer. It opens no file and makes no decisions.
//!
//! Supported are ustar, GNU's long names and sparse files, and PAX records.
//!
//! | module | for |
//! |---|---|
//! | [`read`] | archives that can be read on demand: strict, resolves sparse files |
//! | [`stream`] | archives that arrive in pieces: skips entries of unknown types, takes sparse files in one form |
//! | [`write`] | archives of files; the same entries give the same bytes |
//! | [`sparse`] | the holes of files: how they are found, written and read |
//! | [`header`], [`pax`] | one block and its records, for a custom dialect (layers in object storage) |
//!
//! Archives are untrusted: every number is checked and every buffer is bounded. Names are returned as they are in the
//! archive; the caller decides which ones it accepts.

mod concat;
pub mod header;
pub mod pax;
pub mod read;
pub mod sparse;
pub mod stream;
pub mod write;

pub use concat::concat;

/// The block size of the format.
pub const BLOCK: usize = 512;

/// How many bytes fill the last block of so much data.
#[must_use]
pub const fn padding(size: u64) -> usize {
    (size.wrapping_neg() % BLOCK as u64) as usize
}

/// Names and values of extended attributes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TarKind {
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
pub struct TarEntry {
    /// As in the archive: any bytes but NUL.
    pub name: Vec<u8>,
    pub kind: TarKind,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Permissions only.
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Bytes of the file, including holes.
    pub size: u64,
    /// The positions of data in the file (offset, length), in order; `None`: all of it, from the start.
    pub map: Option<Vec<(u64, u64)>>,
    pub xattrs: Xattrs,
}

impl TarEntry {
    /// Bytes of data, without holes.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        match &self.map {
            Some(map) => map.iter().fold(0, |sum: u64, (_, length)| sum.saturating_add(*length)),
            None => self.size,
        }
    }
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// An entry has an unsupported type, or is inconsistent.
    #[error("the entry {} of the archive is refused: {why}", shown(.entry))]
    Refused {
        /// Its name.
        entry: Vec<u8>,
        /// The problem.
        why: String,
    },
    /// The bytes are not an archive.
    #[error("the archive is damaged at byte {at}: {why}")]
    Damaged {
        /// The position in the archive.
        at: u64,
        /// The problem.
        why: String,
    },
    /// The archive is longer than the caller allows.
    #[error("the archive holds more than {limit} bytes")]
    TooLong {
        /// The maximal length.
        limit: u64,
    },
    /// The source of the bytes failed.
    #[error("the archive could not be read to its end")]
    Source(#[source] std::io::Error),
}

impl TarError {
    pub(crate) fn refused(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Refused { entry: entry.to_owned(), why: why.into() }
    }
}

/// The name of an entry for display: no control characters, and no longer than a line.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    const LONG: usize = 200;
    let text: String = String::from_utf8_lossy(&name[..name.len().min(LONG)])
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect();
    if name.len() > LONG { format!("{text:?}…") } else { format!("{text:?}") }
}
