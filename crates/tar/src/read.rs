//! Reads an archive entry by entry, from any stream.
//!
//! ```text
//! [g: ignored]* [L: long name] [K: long link] [x: PAX records] header [sparse blocks] data padding … two blocks of zeros
//! ```

use std::io::{BufRead, ErrorKind};

use crate::header::{self, Dialect, Header};
use crate::pax::{self, Pax};
use crate::sparse;
use crate::{BLOCK, TarEntry, TarError, TarKind, padding, shown};

/// LIMIT: bytes of PAX records of one entry; attributes have at most 64 KiB each.
const PAX_MAX: u64 = 1 << 20;
/// LIMIT: bytes of a long name; the kernel allows 4,096.
const NAME_MAX: u64 = 16 << 10;

/// An archive being read.
pub struct Archive<R> {
    from: R,
    /// Bytes read so far.
    at: u64,
    /// Unread data of the current entry, and the padding after it.
    left: u64,
    padding: u64,
    /// No further entries.
    ended: bool,
}

/// Records before a header that belong to it.
#[derive(Default)]
struct PendingRecords {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Option<Pax>,
}

impl<R: BufRead> Archive<R> {
    pub fn new(from: R) -> Self {
        Self { from, at: 0, left: 0, padding: 0, ended: false }
    }

    /// Bytes read so far: the start of the current entry's data, as long as none of it was read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Reads the next entry into `entry`; `false`: there is none. Unread data is skipped.
    pub fn next(&mut self, entry: &mut TarEntry) -> Result<bool, TarError> {
        self.pass(self.left.saturating_add(self.padding))?;
        (self.left, self.padding) = (0, 0);
        let mut before = PendingRecords::default();
        let mut block = [0; BLOCK];
        while !self.ended {
            if !self.block(&mut block)? {
                return match (&before.name, &before.link, &before.pax) {
                    (None, None, None) => Ok(false),
                    _ => Err(self.bad("it ends where an entry should begin")),
                };
            }
            let Some(header) = Header::new(&block) else {
                return Err(self.bad("this is not a header of a tar archive"));
            };
            let size = header.size().ok_or_else(|| self.bad("an entry has an invalid size"))?;
            match header.kind() {
                b'g' => self.pass_padded(size, PAX_MAX)?,
                b'x' | b'X' => before.pax = Some(self.pax(size)?),
                b'L' => before.name = Some(self.long(size)?),
                b'K' => before.link = Some(self.long(size)?),
                // A volume label is not a file.
                b'V' => self.pass_padded(size, PAX_MAX)?,
                _ => {
                    self.fill(&header, size, before, entry)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The next piece of the current entry's data; empty at its end. Report the used bytes with [`Archive::took`].
    pub fn data(&mut self) -> Result<&[u8], TarError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let at = self.at;
        let piece = loop {
            match self.from.fill_buf() {
                Ok(_) => break self.from.fill_buf().map_err(TarError::Source)?,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(TarError::Source(cause)),
            }
        };
        if piece.is_empty() {
            return Err(TarError::Damaged { at, why: "it ends in the middle of a file".into() });
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len());
        Ok(&piece[..most])
    }

    /// Marks so many bytes of [`Archive::data`] as used.
    pub fn took(&mut self, bytes: usize) {
        self.from.consume(bytes);
        self.at += bytes as u64;
        self.left -= bytes as u64;
    }

    /// Reads the data after the last entry, which is part of the archive's digest. `most`: the maximal size of the
    /// whole archive.
    pub fn drain(&mut self, most: u64) -> Result<(), TarError> {
        loop {
            let bytes = self.piece()?.len();
            if bytes == 0 {
                return Ok(());
            }
            self.from.consume(bytes);
            self.at += bytes as u64;
            if self.at > most {
                return Err(TarError::TooLong { limit: most });
            }
        }
    }

    fn fill(
        &mut self,
        header: &Header<'_>,
        size: u64,
        before: PendingRecords,
        entry: &mut TarEntry,
    ) -> Result<(), TarError> {
        let pax = before.pax.unwrap_or_default();
        self.names(header, before.name, before.link, &pax, entry);
        let bad = |archive: &Self, what: &str| {
            archive.bad(&format!("{} has an invalid {what}", shown(&entry.name)))
        };
        entry.mode = u32::try_from(header.mode().ok_or_else(|| bad(self, "mode"))? & 0o7777).unwrap_or(0);
        entry.uid = pax.uid.or(header.uid()).ok_or_else(|| bad(self, "owner"))?;
        entry.gid = pax.gid.or(header.gid()).ok_or_else(|| bad(self, "group"))?;
        entry.mtime = pax.mtime.or_else(|| Some((header.mtime()?, 0))).ok_or_else(|| bad(self, "time"))?;
        let stored = pax.size.unwrap_or(size);
        entry.kind = match header.kind() {
            // Before the format had folders, a trailing slash meant one.
            0 | b'0' if header.dialect() == Dialect::Old && entry.name.ends_with(b"/") => TarKind::Folder,
            0 | b'0' | b'7' | b'S' => TarKind::File,
            b'1' => TarKind::HardLink,
            b'2' => TarKind::Symlink,
            b'3' => TarKind::CharDevice,
            b'4' => TarKind::BlockDevice,
            b'5' => TarKind::Folder,
            b'6' => TarKind::Fifo,
            other => {
                let why = format!("its type {:?} is unknown", char::from(other));
                return Err(TarError::refused(&entry.name, why));
            }
        };
        (entry.size, entry.map) = (0, None);
        if entry.kind == TarKind::File {
            (self.left, entry.size) = (stored, stored);
            self.padding = padding(stored) as u64;
            self.sparse(header, pax.sparse, entry)?;
        }
        entry.xattrs = pax.xattrs;
        Ok(())
    }

    fn names(
        &self,
        header: &Header<'_>,
        name: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
        pax: &Pax,
        entry: &mut TarEntry,
    ) {
        match pax.sparse.name.as_ref().or(pax.path.as_ref()).or(name.as_ref()) {
            Some(long) => entry.name.clone_from(long),
            None => header.name(&mut entry.name),
        }
        entry.link.clear();
        entry.link.extend_from_slice(match pax.link.as_ref().or(link.as_ref()) {
            Some(long) => long,
            None => header.link(),
        });
    }

    /// Reads the map of a sparse file, from the place that its dialect uses.
    fn sparse(
        &mut self,
        header: &Header<'_>,
        said: pax::Sparse,
        entry: &mut TarEntry,
    ) -> Result<(), TarError> {
        let refused = |why: &str| TarError::refused(&entry.name, why);
        let real = || said.real_size.ok_or_else(|| refused("a sparse file has no size"));
        let map = if header.kind() == b'S' {
            let (first, more, size) = header.sparse().ok_or_else(|| refused("a sparse file has no size"))?;
            entry.size = size;
            sparse::checked(self.gnu_map(first, more)?, size, self.left)
        } else if said.has_map_before_data() {
            entry.size = real()?;
            let map = self.map_before_data(&entry.name)?;
            sparse::checked(map, entry.size, self.left)
        } else if said.is_named && !said.numbers.is_empty() {
            entry.size = real()?;
            let pairs = sparse::pairs(&said.numbers).map_err(refused)?;
            sparse::checked(pairs, entry.size, self.left)
        } else {
            return Ok(());
        };
        entry.map = Some(map.map_err(|why| TarError::refused(&entry.name, why))?);
        Ok(())
    }

    /// GNU's own form: four pieces in the header, then blocks of twenty-one.
    fn gnu_map(&mut self, first: &[u8], mut more: bool) -> Result<Vec<(u64, u64)>, TarError> {
        let mut map = Vec::new();
        let mut add = |pieces: &[u8]| -> Option<()> {
            for piece in pieces.chunks_exact(24).take_while(|piece| piece[0] != 0 || piece[12] != 0) {
                map.push((header::number(&piece[..12])?, header::number(&piece[12..])?));
            }
            (map.len() <= sparse::PIECES).then_some(())
        };
        let mut right = add(first);
        let mut block = [0; BLOCK];
        while more && right.is_some() {
            if !self.block(&mut block)? {
                return Err(self.bad("it ends in the middle of a sparse file's map"));
            }
            right = add(&block[..504]);
            more = block[504] != 0;
        }
        match right {
            Some(()) => Ok(map),
            None => Err(self.bad("the map of a sparse file has invalid or too many numbers")),
        }
    }

    /// PAX version 1.0: lines of decimal numbers before the data, padded to a block.
    fn map_before_data(&mut self, name: &[u8]) -> Result<Vec<(u64, u64)>, TarError> {
        let begin = self.left;
        let wrong = || TarError::refused(name, "a sparse file's map cannot be read");
        let count = self.line()?.ok_or_else(wrong)?;
        if count > sparse::PIECES as u64 {
            return Err(TarError::refused(name, "a sparse file has too many pieces"));
        }
        let mut map = Vec::new();
        for _ in 0..count {
            map.push((self.line()?.ok_or_else(wrong)?, self.line()?.ok_or_else(wrong)?));
        }
        let pad = padding(begin - self.left) as u64;
        if pad > self.left {
            return Err(wrong());
        }
        self.pass(pad)?;
        self.left -= pad;
        Ok(map)
    }

    /// A decimal number up to the end of its line, from the current entry's data.
    fn line(&mut self) -> Result<Option<u64>, TarError> {
        let mut digits = Vec::with_capacity(20);
        while digits.len() <= 20 {
            let Some(&byte) = self.data()?.first() else { return Ok(None) };
            self.took(1);
            if byte == b'\n' {
                return Ok(pax::decimal(&digits));
            }
            digits.push(byte);
        }
        Ok(None)
    }

    fn pax(&mut self, size: u64) -> Result<Pax, TarError> {
        if size > PAX_MAX {
            return Err(self.bad("the PAX records of an entry are too long"));
        }
        let records = self.bytes(size)?;
        Pax::parse(&records).map_err(|why| self.bad(why))
    }

    fn long(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > NAME_MAX {
            return Err(self.bad("a name is too long"));
        }
        let mut name = self.bytes(size)?;
        name.truncate(header::text(&name).len());
        Ok(name)
    }

    /// So many bytes, and the padding after them.
    fn bytes(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        if !self.exactly(&mut bytes)? && size > 0 {
            return Err(self.bad("it ends in the middle of an entry"));
        }
        self.pass(padding(size) as u64)?;
        Ok(bytes)
    }

    /// The next block; `false`: the archive ended before it, by a block of zeros or by the end of the stream.
    fn block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, TarError> {
        if !self.exactly(block)? {
            self.ended = true;
            return Ok(false);
        }
        if block.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        self.ended = true;
        // Two blocks of zeros end an archive. With other data after the first one, one reader would stop and another
        // continue.
        if self.exactly(block)? && block.iter().any(|&byte| byte != 0) {
            return Err(self.bad("data follows a block of zeros"));
        }
        Ok(false)
    }

    /// Fills `into`; `false`: no byte was left.
    fn exactly(&mut self, into: &mut [u8]) -> Result<bool, TarError> {
        let mut filled = 0;
        while filled < into.len() {
            let piece = self.piece()?;
            if piece.is_empty() {
                return if filled == 0 {
                    Ok(false)
                } else {
                    Err(self.bad("it ends in the middle of a block"))
                };
            }
            let some = piece.len().min(into.len() - filled);
            into[filled..filled + some].copy_from_slice(&piece[..some]);
            self.from.consume(some);
            self.at += some as u64;
            filled += some;
        }
        Ok(true)
    }

    fn pass_padded(&mut self, size: u64, most: u64) -> Result<(), TarError> {
        if size > most {
            return Err(self.bad("an unused entry is too long"));
        }
        self.pass(size + padding(size) as u64)
    }

    fn pass(&mut self, mut bytes: u64) -> Result<(), TarError> {
        while bytes > 0 {
            let most = usize::try_from(bytes).unwrap_or(usize::MAX);
            let some = self.piece()?.len().min(most);
            if some == 0 {
                return Err(self.bad("it ends in the middle of an entry"));
            }
            self.from.consume(some);
            self.at += some as u64;
            bytes -= some as u64;
        }
        Ok(())
    }

    fn piece(&mut self) -> Result<&[u8], TarError> {
        loop {
            match self.from.fill_buf() {
                Ok(_) => return self.from.fill_buf().map_err(TarError::Source),
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(TarError::Source(cause)),
            }
        }
    }

    fn bad(&self, why: &str) -> TarError {
        TarError::Damaged { at: self.at, why: why.to_owned() }
    }
}
