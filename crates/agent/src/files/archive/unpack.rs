//! Unpacks a tar stream into the sandbox: where entries go, and in which order folders are finished.
//!
//! ```text
//! dest ─▶ root ─▶ stack of folders that the stream is in ─▶ file
//! ```
//!
//! Folders get their modes and times when the stream leaves them. No path of an entry is resolved as text: each
//! component is opened relative to the previous one.

use std::os::fd::OwnedFd;

use atoll_tar::sparse::DataCursor;
use atoll_tar::stream::Receiver;
use atoll_tar::{TarEntry, TarKind};
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::extract_entry::UnpackOptions;
use crate::error::AgentError;
use crate::files::upload::final_path;
use crate::files::{open, open_at, open_parent, refuse, shown};

/// LIMIT: levels of folders; each holds a descriptor.
const DEPTH_MAX: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct UnpackRequest {
    pub(super) dest: Vec<u8>,
    pub(super) into: Into,
    pub(super) rules: Rules,
    pub(super) owner: OwnerRule,
    pub(super) mode: Option<u32>,
    pub(super) strip: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    Folder,
    FileOrFolder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    /// A file does not replace a folder, nor the other way round.
    Copy,
    /// An entry in the way is removed.
    Archive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerRule {
    Caller,
    Kept,
    To { uid: u32, gid: u32 },
}

/// An unpack in progress.
pub(super) struct Unpacker {
    ask: UnpackRequest,
    manner: UnpackOptions,
    root: Option<Root>,
    stack: Vec<UnpackLevel>,
    writing: Option<Writing>,
    entries: u64,
    bytes: u64,
}

enum Root {
    Folder(OwnedFd),
    /// The only entry of the stream gets this name in this folder.
    Single {
        dir: OwnedFd,
        name: Vec<u8>,
        taken: bool,
    },
}

struct UnpackLevel {
    name: Vec<u8>,
    folder: OwnedFd,
    /// `None`: the folder has no entry.
    entry: Option<TarEntry>,
}

struct Writing {
    file: OwnedFd,
    entry: TarEntry,
    cursor: DataCursor,
}

impl Unpacker {
    pub(super) fn new(ask: UnpackRequest) -> Self {
        let manner = UnpackOptions { rules: ask.rules, owner: ask.owner, mode: ask.mode };
        Self { ask, manner, root: None, stack: Vec::new(), writing: None, entries: 0, bytes: 0 }
    }

    /// Finishes the folders; returns the number of entries and bytes.
    pub(super) fn finish(mut self) -> Result<(u64, u64), AgentError> {
        self.leave(0)?;
        if self.root.is_none() && self.ask.into == Into::Folder {
            self.root_folder(OwnedFolders::Last)?;
        }
        Ok((self.entries, self.bytes))
    }

    fn root_folder(&self, new: OwnedFolders) -> Result<OwnedFd, AgentError> {
        let dest = &self.ask.dest;
        make_way(dest, self.manner.owner, new)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        open(dest, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR => AgentError::Invalid(format!("'{}' is not a folder", shown(dest))),
            other => refuse(other, dest),
        })
    }

    /// Determines the destination from the first entry of the stream.
    fn place(&mut self, first: &TarEntry, is_top: bool) -> Result<(), AgentError> {
        let folder = self.ask.into == Into::Folder || is_top || self.ask.dest == b"/";
        let root = if folder || is_folder(&self.ask.dest) {
            let dir = self.root_folder(if is_top { OwnedFolders::Last } else { OwnedFolders::All })?;
            match (folder, parts(&first.name)?.last()) {
                (false, Some(name)) => Root::Single { dir, name: name.to_vec(), taken: false },
                _ => Root::Folder(dir),
            }
        } else {
            let dest = &self.ask.dest;
            let cut = dest.iter().rposition(|b| *b == b'/').unwrap_or(0);
            make_way(&dest[..cut.max(1)], self.manner.owner, OwnedFolders::All)?;
            let path = final_path(dest)?;
            let (dir, name) = open_parent(&path)?;
            Root::Single { dir, name: name.to_vec(), taken: false }
        };
        self.root = Some(root);
        Ok(())
    }

    /// Leaves folders until `keep` are left.
    fn leave(&mut self, keep: usize) -> Result<(), AgentError> {
        while self.stack.len() > keep
            && let Some(level) = self.stack.pop()
        {
            if let Some(entry) = &level.entry {
                self.manner
                    .settle_folder(&level.folder, entry)
                    .map_err(|errno| refuse(errno, &entry.name))?;
            }
        }
        Ok(())
    }

    /// Enters the folder with these components; makes those without an entry.
    fn enter(&mut self, above: &[&[u8]], entry: &TarEntry) -> Result<(), AgentError> {
        if above.len() >= DEPTH_MAX {
            let text = format!("'{}' is deeper than {DEPTH_MAX} folders", shown(&entry.name));
            return Err(AgentError::Invalid(text));
        }
        let same = self.stack.iter().zip(above).take_while(|(level, name)| level.name == **name).count();
        self.leave(same)?;
        for name in &above[same..] {
            let here = self.here()?;
            let folder = self.manner.implied(here, name).map_err(|errno| refuse(errno, &entry.name))?;
            self.stack.push(UnpackLevel { name: name.to_vec(), folder, entry: None });
        }
        Ok(())
    }

    fn here(&self) -> Result<&OwnedFd, AgentError> {
        match (self.stack.last(), &self.root) {
            (Some(level), _) => Ok(&level.folder),
            (None, Some(Root::Folder(dir) | Root::Single { dir, .. })) => Ok(dir),
            (None, None) => Err(AgentError::Internal("an entry is out of order".into())),
        }
    }

    fn put(&mut self, name: &[u8], entry: TarEntry) -> Result<(), AgentError> {
        let manner = self.manner;
        let here = self.here()?;
        match entry.kind {
            TarKind::Folder => {
                // The descriptor of a folder that is still open is given up first: a tar may name one twice.
                let folder = manner.folder(here, name, &entry)?;
                self.stack.push(UnpackLevel { name: name.to_vec(), folder, entry: Some(entry) });
            }
            TarKind::File => {
                let file = manner.file(here, name, &entry)?;
                self.writing = Some(Writing { file, cursor: DataCursor::new(&entry), entry });
            }
            TarKind::Symlink => manner.symlink(here, name, &entry)?,
            TarKind::Fifo => manner.fifo(here, name, &entry)?,
            TarKind::HardLink => {
                let target = parts(&entry.link)?;
                let target = target.get(self.ask.strip..).unwrap_or_default();
                let Some(Root::Folder(root)) = &self.root else {
                    let text =
                        format!("'{}' is a link to a file that is not in the stream", shown(&entry.name));
                    return Err(AgentError::Invalid(text));
                };
                manner.hardlink(root, target, here, name, &entry)?;
            }
            TarKind::CharDevice | TarKind::BlockDevice => {
                return Err(AgentError::Invalid(format!("'{}' is a device", shown(&entry.name))));
            }
        }
        Ok(())
    }
}

impl Receiver for Unpacker {
    type Error = AgentError;

    fn sparse(&mut self, entry: &TarEntry) -> Result<(), AgentError> {
        // Skipped, as every entry whose whole name is stripped.
        if parts(&entry.name)?.len() <= self.ask.strip {
            return Ok(());
        }
        let name = shown(&entry.name);
        let text = format!(
            "'{name}' is stored with holes in an older form; pack it with --format=pax, or without --sparse"
        );
        Err(AgentError::Invalid(text))
    }

    fn begin(&mut self, entry: TarEntry) -> Result<(), AgentError> {
        let path = entry.name.clone();
        let all = parts(&path)?;
        let is_top = all.is_empty() && entry.kind == TarKind::Folder;
        let Some(parts) = all.get(self.ask.strip..).filter(|parts| is_top || !parts.is_empty()) else {
            return Ok(());
        };
        if self.root.is_none() {
            self.place(&entry, is_top)?;
        }
        let Some((name, above)) = parts.split_last() else { return Ok(()) };
        self.entries += 1;
        if let Some(Root::Single { name, taken, .. }) = &mut self.root {
            if *taken || !above.is_empty() || entry.kind == TarKind::Folder {
                let text = format!(
                    "'{}' is one of several: the destination must be a folder, and end with '/'",
                    shown(&path)
                );
                return Err(AgentError::Invalid(text));
            }
            *taken = true;
            let name = name.clone();
            return self.put(&name, entry);
        }
        self.enter(above, &entry)?;
        self.put(name, entry)
    }

    fn content(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        let Some(Writing { file, entry, cursor }) = &mut self.writing else { return Ok(()) };
        self.bytes += bytes.len() as u64;
        let mut left = bytes;
        while !left.is_empty()
            && let Some((at, now, rest)) = cursor.next(left)
        {
            write_all_at(file, now, at).map_err(|errno| refuse(errno, &entry.name))?;
            left = rest;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), AgentError> {
        let Some(Writing { file, entry, .. }) = self.writing.take() else { return Ok(()) };
        let settle = || {
            if entry.map.is_some() {
                rustix::fs::ftruncate(&file, entry.size)?;
            }
            self.manner.settle_file(&file, &entry)
        };
        settle().map_err(|errno| refuse(errno, &entry.name))
    }
}

fn write_all_at(file: &OwnedFd, mut data: &[u8], mut at: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, at) {
            Ok(written) => (data, at) = (&data[written..], at + written as u64),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The components of an entry's name. `..` is refused: valid archives do not contain it.
fn parts(path: &[u8]) -> Result<Vec<&[u8]>, AgentError> {
    let parts: Vec<&[u8]> =
        path.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    match parts.contains(&&b".."[..]) {
        true => Err(AgentError::Invalid(format!("'{}' points outside the archive", shown(path)))),
        false => Ok(parts),
    }
}

/// Whether the path leads to a folder, also through symbolic links.
fn is_folder(path: &[u8]) -> bool {
    let stat = open(path, OFlags::PATH, Mode::empty()).and_then(|handle| rustix::fs::fstat(&handle));
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Which of the new folders belong to the new owner; the others belong to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnedFolders {
    All,
    /// The destination of a folder's content, and not its parents, as in Docker.
    Last,
}

/// Makes a folder and its missing parents.
fn make_way(path: &[u8], owner: OwnerRule, new: OwnedFolders) -> Result<(), AgentError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let bad = |errno| refuse(errno, path);
    match open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        found => return found.map(|_| ()).map_err(bad),
    }
    let mut dir = open(b"/", flags, Mode::empty()).map_err(bad)?;
    let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let resolve = rustix::fs::ResolveFlags::NO_MAGICLINKS;
        dir = match open_at(&dir, name, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755)).map_err(bad)?;
                let made = open_at(&dir, name, flags, Mode::empty(), resolve).map_err(bad)?;
                if let OwnerRule::To { uid, gid } = owner
                    && (new == OwnedFolders::All || names.peek().is_none())
                {
                    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                    rustix::fs::chownat(&made, c"", uid, gid, rustix::fs::AtFlags::EMPTY_PATH)
                        .map_err(bad)?;
                }
                made
            }
            found => found.map_err(bad)?,
        };
    }
    Ok(())
}
