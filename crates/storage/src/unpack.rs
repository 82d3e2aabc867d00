//! Makes a layer from a stream that [`super::pack`] wrote, possibly on another machine, or that an attacker forged.
//!
//! No path is ever followed: an entry is made by its last name in a folder that this reader has made itself and still
//! holds, and a stream whose entries are in another order is refused. The one exception, the target of a hard link, is
//! looked up without following links and without leaving the layer.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::format::{self, EntryType, PIECES_MOST, PackedEntry, ReadError, Record, Records, damaged, record};
use super::pack::PARTS;
use super::walk::{PATH_MOST, open_folder};

const BUFFER: usize = 256 << 10;
/// Marks a folder as one whose origin in the layers below is unknown. Without this mark, an overlay determines the
/// origin at the first lookup and writes it down, and in a full layer that lookup fails with the write.
const ORIGIN: (&str, &[u8]) = ("trusted.overlay.origin", b"");
/// The kernel's bound for one lookup.
const LOOKUP_MOST: usize = 4_000;

/// Fills the empty folder of a layer.
pub(crate) fn read(layer: &Path, input: &mut impl Read) -> Result<(), ReadError> {
    read_with(layer, &PARTS, input)
}

/// Fills an empty folder with some of these parts, among them the first.
pub(crate) fn read_with(layer: &Path, parts: &[&str], input: &mut impl Read) -> Result<(), ReadError> {
    read_parts(layer, parts, OriginMark::Set, input)
}

/// The same for folders that are no upper layer of an overlay.
pub(crate) fn read_plain(folder: &Path, parts: &[&str], input: &mut impl Read) -> Result<(), ReadError> {
    read_parts(folder, parts, OriginMark::None, input)
}

/// Whether folders are marked for an overlay; see [`ORIGIN`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum OriginMark {
    Set,
    None,
}

fn read_parts(
    layer: &Path,
    parts: &[&str],
    mark: OriginMark,
    input: &mut impl Read,
) -> Result<(), ReadError> {
    let root = open_folder(CWD, layer)?;
    let here = root.try_clone()?;
    let mut unpacker =
        Unpacker { input, parts, mark, root, here, levels: Vec::new(), buffer: vec![0; BUFFER] };
    match format::read_head(unpacker.input)? {
        Some((about, records))
            if about.kind == EntryType::XGlobalHeader && format::is_beginning(&records) => {}
        _ => return Err(damaged("it is not an Atoll archive, or it is from a later version")),
    }
    let mut has_first = false;
    while let Some((about, records)) = format::read_head(unpacker.input)? {
        has_first |= about.path.strip_suffix(b"/") == parts.first().map(|part| part.as_bytes());
        unpacker.entry(about, &records)?;
    }
    unpacker.leave_to(0)?;
    if has_first { Ok(()) } else { Err(damaged("it contains no files")) }
}

struct Unpacker<'a, R> {
    input: &'a mut R,
    parts: &'a [&'a str],
    mark: OriginMark,
    root: OwnedFd,
    /// The innermost open folder.
    here: OwnedFd,
    /// The open folders, from the root on. Their attributes are set when the reader leaves them.
    levels: Vec<UnpackLevel>,
    buffer: Vec<u8>,
}

struct UnpackLevel {
    name: Vec<u8>,
    about: PackedEntry,
    attributes: Records,
}

impl<R: Read> Unpacker<'_, R> {
    fn entry(&mut self, mut about: PackedEntry, records: &Records) -> Result<(), ReadError> {
        let is_sparse = match (record(records, b"GNU.sparse.major"), record(records, b"GNU.sparse.minor")) {
            (None, None) => false,
            (Some(b"1"), Some(b"0")) if about.kind == EntryType::Regular => true,
            _ => return Err(damaged("a sparse file of an unknown kind")),
        };
        if is_sparse {
            let name = record(records, b"GNU.sparse.name").ok_or_else(|| damaged("a file without a name"))?;
            about.path = name.to_vec();
        }
        if about.kind == EntryType::Directory && about.path.last() == Some(&b'/') {
            about.path.pop();
        }
        let attributes = attributes(records)?;
        let name = self.enter_folder_of(&about)?;
        if about.size > 0 && about.kind != EntryType::Regular {
            return Err(damaged("an entry without content has data"));
        }
        match about.kind {
            EntryType::Directory => self.folder(name, about, attributes),
            EntryType::Regular if is_sparse => self.sparse(&name, &about, &attributes, records),
            EntryType::Regular => self.file(&name, &about, &attributes),
            EntryType::Link => self.link(&name, &about),
            EntryType::Symlink => {
                made(rustix::fs::symlinkat(about.link.as_slice(), &self.here, name.as_slice()))?;
                self.finish_node(&name, &about, &attributes)
            }
            EntryType::Fifo => self.node(&name, &about, &attributes, FileType::Fifo),
            EntryType::Char if about.device == (0, 0) => {
                self.node(&name, &about, &attributes, FileType::CharacterDevice)
            }
            _ => Err(damaged(format!("{} has a type that a layer cannot contain", shown(&about.path)))),
        }
    }

    /// Leaves folders until the parent of the entry is the innermost one; returns the entry's own name.
    fn enter_folder_of(&mut self, about: &PackedEntry) -> Result<Vec<u8>, ReadError> {
        // The bound of a walk applies below the part's folder, so the name of the part may come on top.
        if about.path.len() > PATH_MOST + 16 {
            return Err(damaged("a path is too long"));
        }
        let mut parts: Vec<&[u8]> = about.path.split(|byte| *byte == b'/').collect();
        if parts.iter().any(|part| matches!(*part, b"" | b"." | b"..") || part.contains(&0)) {
            return Err(damaged(format!("{} is not a path in a layer", shown(&about.path))));
        }
        let name = parts.pop().unwrap_or_default();
        let same = self.levels.iter().zip(&parts).take_while(|(level, part)| level.name == **part).count();
        if same != parts.len() {
            return Err(damaged(format!("{} comes before its folder or after its end", shown(&about.path))));
        }
        let is_part =
            self.parts.iter().any(|part| part.as_bytes() == name) && about.kind == EntryType::Directory;
        if parts.is_empty() && !is_part {
            return Err(damaged(format!("{} is not part of a layer", shown(&about.path))));
        }
        self.leave_to(same)?;
        Ok(name.to_vec())
    }

    fn leave_to(&mut self, depth: usize) -> Result<(), ReadError> {
        while self.levels.len() > depth {
            let Some(level) = self.levels.pop() else { break };
            // No other process knows this tree, so `..` is the folder that the reader came from.
            let above = open_folder(&self.here, c"..")?;
            let folder = std::mem::replace(&mut self.here, above);
            finish(&folder, &level.about, &level.attributes)?;
        }
        Ok(())
    }

    fn folder(&mut self, name: Vec<u8>, about: PackedEntry, attributes: Records) -> Result<(), ReadError> {
        made(rustix::fs::mkdirat(&self.here, name.as_slice(), Mode::from_raw_mode(0o700)))?;
        self.here = open_folder(&self.here, name.as_slice())?;
        if self.mark == OriginMark::Set {
            made(rustix::fs::fsetxattr(self.here.as_fd(), ORIGIN.0, ORIGIN.1, XattrFlags::empty()))?;
        }
        self.levels.push(UnpackLevel { name, about, attributes });
        Ok(())
    }

    fn create(&self, name: &[u8]) -> Result<File, ReadError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(made(rustix::fs::openat(&self.here, name, flags, Mode::from_raw_mode(0o600)))?.into())
    }

    fn file(&mut self, name: &[u8], about: &PackedEntry, attributes: &[Record]) -> Result<(), ReadError> {
        let mut file = self.create(name)?;
        self.data(&mut file, about.size)?;
        self.skip_padding(about.size)?;
        finish(&file.into(), about, attributes)
    }

    fn sparse(
        &mut self,
        name: &[u8],
        about: &PackedEntry,
        attributes: &[Record],
        records: &Records,
    ) -> Result<(), ReadError> {
        let size: u64 = record(records, b"GNU.sparse.realsize")
            .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
            .filter(|size| i64::try_from(*size).is_ok())
            .ok_or_else(|| damaged("a size is malformed"))?;
        let (pieces, map_bytes) = read_map(self.input)?;
        let mut file = self.create(name)?;
        let (mut at, mut stored) = (0, map_bytes);
        for (offset, length) in pieces {
            let stop = offset.checked_add(length).filter(|stop| offset >= at && *stop <= size);
            at = stop.ok_or_else(|| damaged("pieces of a file overlap"))?;
            stored += length;
            if stored > about.size {
                return Err(damaged("pieces of a file are longer than it"));
            }
            file.seek(SeekFrom::Start(offset))?;
            self.data(&mut file, length)?;
        }
        if stored != about.size {
            return Err(damaged("pieces of a file are shorter than it"));
        }
        self.skip_padding(stored)?;
        file.set_len(size)?;
        finish(&file.into(), about, attributes)
    }

    fn data(&mut self, file: &mut File, mut left: u64) -> Result<(), ReadError> {
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            let got = self.input.read(&mut self.buffer[..most])?;
            if got == 0 {
                return Err(damaged("it is truncated"));
            }
            file.write_all(&self.buffer[..got])?;
            left -= got as u64;
        }
        Ok(())
    }

    fn skip_padding(&mut self, length: u64) -> Result<(), ReadError> {
        format::read_all(self.input, &mut self.buffer[..format::padding(length)])
    }

    fn link(&mut self, name: &[u8], about: &PackedEntry) -> Result<(), ReadError> {
        let target = self.look_up(&about.link)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) == FileType::Directory {
            return Err(damaged(format!("{} is a hard link to a folder", shown(&about.path))));
        }
        made(rustix::fs::linkat(&target, c"", &self.here, name, AtFlags::EMPTY_PATH))
    }

    /// Opens a path from the layer's root, without following a link of any kind.
    fn look_up(&self, path: &[u8]) -> Result<OwnedFd, ReadError> {
        let gone = || damaged(format!("{} is a hard link without a target", shown(path)));
        if path.len() > PATH_MOST + 16 || path.contains(&0) {
            return Err(gone());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = self.root.try_clone()?;
        let mut rest = path;
        loop {
            let cut = match rest.get(..LOOKUP_MOST) {
                Some(head) => head.iter().rposition(|byte| *byte == b'/').ok_or_else(gone)?,
                None => rest.len(),
            };
            at = rustix::fs::openat2(&at, &rest[..cut], flags, Mode::empty(), resolve).map_err(|_| gone())?;
            match rest.get(cut + 1..) {
                Some(after) => rest = after,
                None => return Ok(at),
            }
        }
    }

    fn node(
        &mut self,
        name: &[u8],
        about: &PackedEntry,
        attributes: &[Record],
        kind: FileType,
    ) -> Result<(), ReadError> {
        made(rustix::fs::mknodat(&self.here, name, kind, Mode::from_raw_mode(0o600), 0))?;
        self.finish_node(name, about, attributes)
    }

    /// Like [`finish`], for an entry that cannot be opened.
    fn finish_node(
        &mut self,
        name: &[u8],
        about: &PackedEntry,
        attributes: &[Record],
    ) -> Result<(), ReadError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = rustix::fs::openat(&self.here, name, flags, Mode::empty())?;
        let (user, group) = (Uid::from_raw(about.uid), Gid::from_raw(about.gid));
        rustix::fs::chownat(&node, c"", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        let path = format!("/proc/self/fd/{}", node.as_raw_fd());
        if about.kind != EntryType::Symlink {
            rustix::fs::chmod(&path, Mode::from_raw_mode(about.mode))?;
        }
        for (name, value) in attributes {
            made(rustix::fs::setxattr(&path, name.as_slice(), value, XattrFlags::empty()))?;
        }
        Ok(rustix::fs::utimensat(&self.here, name, &times(about), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Sets owner, mode, attributes and time, in this order: a change of owner removes privileges of a file, and all
/// changes but the last one update its time.
fn finish(file: &OwnedFd, about: &PackedEntry, attributes: &[Record]) -> Result<(), ReadError> {
    rustix::fs::fchown(file, Some(Uid::from_raw(about.uid)), Some(Gid::from_raw(about.gid)))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(about.mode))?;
    for (name, value) in attributes {
        made(rustix::fs::fsetxattr(file.as_fd(), name.as_slice(), value, XattrFlags::empty()))?;
    }
    Ok(rustix::fs::futimens(file, &times(about))?)
}

fn times(about: &PackedEntry) -> Timestamps {
    let time = Timespec { tv_sec: about.seconds, tv_nsec: about.nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Reports errors that only a forged stream can cause as damage of the stream.
fn made<T>(outcome: rustix::io::Result<T>) -> Result<T, ReadError> {
    outcome.map_err(|error| match error {
        Errno::EXIST => damaged("two entries have the same name"),
        Errno::NAMETOOLONG
        | Errno::INVAL
        | Errno::RANGE
        | Errno::TOOBIG
        | Errno::NOTSUP
        | Errno::PERM
        | Errno::NOENT => damaged(format!("the kernel refuses this entry: {error}")),
        other => ReadError::Io(other.into()),
    })
}

/// The attributes among the records. Attributes that a layer must not hold are refused.
fn attributes(records: &Records) -> Result<Records, ReadError> {
    let mut attributes = Vec::new();
    for (key, value) in records {
        let name = match (key.strip_prefix(format::XATTR), key.strip_prefix(format::XATTR_HEX)) {
            (Some(name), _) => name.to_vec(),
            (None, Some(text)) => hex::decode(text).map_err(|_| damaged("an attribute has no name"))?,
            (None, None) => continue,
        };
        let leads_away = name == b"trusted.overlay.redirect"
            && value.split(|byte| *byte == b'/').any(|part| part == b"..");
        if !format::is_kept(&name) || name.contains(&0) || leads_away {
            return Err(damaged(format!("a layer cannot contain the attribute {}", shown(&name))));
        }
        attributes.push((name, value.clone()));
    }
    Ok(attributes)
}

/// Reads the map before the data of a sparse file; returns it with its size in bytes.
fn read_map(input: &mut impl Read) -> Result<(Vec<(u64, u64)>, u64), ReadError> {
    let mut map = MapReader { input, block: [0; format::BLOCK], at: format::BLOCK, blocks: 0 };
    let count = usize::try_from(map.number()?).ok().filter(|count| *count <= PIECES_MOST);
    let count = count.ok_or_else(|| damaged("a file has too many pieces"))?;
    let mut pieces = Vec::with_capacity(count);
    for _ in 0..count {
        pieces.push((map.number()?, map.number()?));
    }
    Ok((pieces, map.blocks * format::BLOCK as u64))
}

struct MapReader<'a, R> {
    input: &'a mut R,
    block: [u8; format::BLOCK],
    at: usize,
    blocks: u64,
}

impl<R: Read> MapReader<'_, R> {
    /// The next number, up to the end of its line.
    fn number(&mut self) -> Result<u64, ReadError> {
        let mut number: u64 = 0;
        for position in 0..21 {
            if self.at == format::BLOCK {
                format::read_all(self.input, &mut self.block)?;
                (self.at, self.blocks) = (0, self.blocks + 1);
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' if position > 0 => return Ok(number),
                b'0'..=b'9' => {
                    let next = number.checked_mul(10).and_then(|ten| ten.checked_add(u64::from(byte - b'0')));
                    number = next.ok_or_else(|| damaged("a piece of a file is malformed"))?;
                }
                _ => break,
            }
        }
        Err(damaged("a piece of a file is malformed"))
    }
}

/// A path for an error message.
fn shown(path: &[u8]) -> String {
    let most = path.len().min(200);
    String::from_utf8_lossy(&path[..most]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_map_of_a_sparse_file_is_read_or_refused() {
        atoll_robustness::check("sparse_map", |bytes| {
            if let Ok((pieces, size)) = read_map(&mut &bytes[..]) {
                assert!(pieces.len() <= PIECES_MOST && size <= bytes.len() as u64);
            }
        });
    }
}
