//! Maps of sparse files. A map is accepted only if it is in order and fits the file and the data.
//!
//! The form that is written is version 1.0 of PAX records: lines of decimal numbers before the data, padded to a block.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::SeekFrom;

use crate::{TarEntry, padding};

/// LIMIT: pieces of one sparse file; each costs a write.
pub const PIECES: usize = 1 << 16;
/// A shorter hole is treated as data.
const HOLE_LEAST: u64 = 4 << 10;
/// LIMIT: digits of a number, and the end of its line.
const LINE_MAX: usize = 21;

/// The pieces of an open file that contain data, as (offset, length). At most so many: small holes count as data. The file is at
/// its beginning afterwards.
pub fn pieces(file: impl AsFd, size: u64, most: usize) -> io::Result<Vec<(u64, u64)>> {
    let mut least = HOLE_LEAST;
    let found = loop {
        match pieces_apart(&file, size, least, most)? {
            Some(pieces) => break pieces,
            None => least *= 4,
        }
    };
    // The search moves the position, which belongs to the caller.
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    Ok(found)
}

/// The map of an entry for an open file, of at most so many pieces; `None`: it has no holes.
pub fn map(file: impl AsFd, size: u64, most: usize) -> io::Result<Option<Vec<(u64, u64)>>> {
    let pieces = pieces(file, size, most)?;
    Ok((size > 0 && pieces != [(0, size)]).then_some(pieces))
}

/// `None`: there are too many.
fn pieces_apart(
    file: &impl AsFd,
    size: u64,
    hole_least: u64,
    most: usize,
) -> io::Result<Option<Vec<(u64, u64)>>> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let stop = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if start >= stop {
            break;
        }
        match pieces.last_mut() {
            Some((offset, length)) if start - (*offset + *length) < hole_least => *length = stop - *offset,
            // A short hole at the beginning is treated as data too.
            None if start < hole_least => pieces.push((0, stop)),
            _ => pieces.push((start, stop - start)),
        }
        if pieces.len() > most {
            return Ok(None);
        }
        at = stop;
    }
    if let Some((offset, length)) = pieces.last_mut()
        && size - (*offset + *length) < hole_least
    {
        *length = size - *offset;
    }
    Ok(Some(pieces))
}

/// The bytes before the data of a sparse file.
#[must_use]
pub fn map_block(pieces: &[(u64, u64)]) -> Vec<u8> {
    let mut block = format!("{}\n", pieces.len()).into_bytes();
    for (offset, length) in pieces {
        block.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    block.resize(block.len() + padding(block.len() as u64), 0);
    block
}

/// Where the data of a file that arrives in chunks belongs.
#[derive(Debug)]
pub struct DataCursor {
    pieces: std::vec::IntoIter<(u64, u64)>,
    at: u64,
    left: u64,
}

impl DataCursor {
    /// The beginning of the data of an entry.
    #[must_use]
    pub fn new(entry: &TarEntry) -> Self {
        let pieces = entry.map.clone().unwrap_or_else(|| vec![(0, entry.size)]);
        Self { pieces: pieces.into_iter(), at: 0, left: 0 }
    }

    /// The offset of the next bytes in the file, those that belong there, and the rest of the chunk. `None`: the file has no more
    /// data.
    pub fn next<'a>(&mut self, chunk: &'a [u8]) -> Option<(u64, &'a [u8], &'a [u8])> {
        while self.left == 0 {
            (self.at, self.left) = self.pieces.next()?;
        }
        let most = usize::try_from(self.left).map_or(chunk.len(), |left| left.min(chunk.len()));
        let (now, rest) = chunk.split_at(most);
        let at = self.at;
        self.at += most as u64;
        self.left -= most as u64;
        Some((at, now, rest))
    }
}

/// Reads a map that arrives in chunks.
#[derive(Debug, Default)]
pub(crate) struct MapReader {
    numbers: Vec<u64>,
    line: Vec<u8>,
    bytes: u64,
}

impl MapReader {
    /// Takes bytes up to the end of the map; returns how many. `None`: they are no map.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Option<usize> {
        for (used, &byte) in chunk.iter().enumerate() {
            if self.is_complete() {
                return Some(used);
            }
            self.bytes += 1;
            match byte {
                // The padding after the last line.
                _ if self.has_all_numbers() => {
                    if byte != 0 {
                        return None;
                    }
                }
                b'\n' => {
                    self.numbers.push(crate::pax::decimal(&self.line)?);
                    self.line.clear();
                    if self.numbers[0] > PIECES as u64 {
                        return None;
                    }
                }
                b'0'..=b'9' if self.line.len() < LINE_MAX => self.line.push(byte),
                _ => return None,
            }
        }
        Some(chunk.len())
    }

    fn has_all_numbers(&self) -> bool {
        self.numbers.first().is_some_and(|count| self.numbers.len() as u64 == 1 + 2 * count)
    }

    /// Whether the map and its padding were read.
    pub(crate) fn is_complete(&self) -> bool {
        self.has_all_numbers() && padding(self.bytes) == 0
    }

    /// The checked map of a file of this size with so many bytes of data.
    pub(crate) fn finish(&self, size: u64, stored: u64) -> Option<Vec<(u64, u64)>> {
        checked(pairs(self.numbers.get(1..)?).ok()?, size, stored).ok()
    }
}

/// Checks a map and drops its empty pieces. `stored`: bytes of data in the archive.
pub(crate) fn checked(
    pieces: impl IntoIterator<Item = (u64, u64)>,
    size: u64,
    stored: u64,
) -> Result<Vec<(u64, u64)>, &'static str> {
    let (mut end, mut sum, mut map) = (0_u64, 0_u64, Vec::new());
    for (offset, length) in pieces {
        let after = offset.checked_add(length).ok_or("a sparse file's map overflows")?;
        if offset < end || after > size {
            return Err("a sparse file's map is out of order or longer than the file");
        }
        end = after;
        sum += length;
        if length > 0 {
            map.push((offset, length));
        }
        if map.len() > PIECES {
            return Err("a sparse file has too many pieces");
        }
    }
    if sum != stored {
        return Err("a sparse file's map does not fit its data");
    }
    Ok(map)
}

/// Offsets and lengths alternately.
pub(crate) fn pairs(numbers: &[u64]) -> Result<impl Iterator<Item = (u64, u64)>, &'static str> {
    match numbers.len() % 2 {
        0 => Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
        _ => Err("a sparse file's map has an odd number of numbers"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn the_data_of_a_file_is_found_and_holes_at_both_ends_are_left_out() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!((pieces(&file, 0, PIECES).unwrap(), map(&file, 0, PIECES).unwrap()), (vec![], None));
        file.set_len(1 << 40).unwrap();
        assert_eq!(map(&file, 1 << 40, PIECES).unwrap(), Some(vec![]));
        file.write_all_at(b"data", 1 << 30).unwrap();
        let found = map(&file, 1 << 40, PIECES).unwrap().unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].0 <= 1 << 30 && found[0].1 < 1 << 20, "{found:?}");
        for at in 0..9 {
            file.write_all_at(b"data", at << 24).unwrap();
        }
        assert_eq!(pieces(&file, 1 << 40, PIECES).unwrap().len(), 10);
        let few = pieces(&file, 1 << 40, 4).unwrap();
        assert!(few.len() <= 4 && few[0].0 == 0 && few.iter().any(|(at, _)| *at >= 1 << 29), "{few:?}");
        let mut whole = tempfile::tempfile().unwrap();
        whole.write_all_at(&[1; 9_000], 0).unwrap();
        assert_eq!(map(&whole, 9_000, PIECES).unwrap(), None);
        let mut read = Vec::new();
        whole.read_to_end(&mut read).unwrap();
        assert_eq!(read.len(), 9_000, "the file is at its beginning");
    }

    #[test]
    fn data_that_arrives_in_chunks_goes_where_the_map_says() {
        let entry = TarEntry { size: 100, map: Some(vec![(3, 2), (50, 4)]), ..TarEntry::default() };
        let mut cursor = DataCursor::new(&entry);
        assert_eq!(cursor.next(b"a"), Some((3, &b"a"[..], &b""[..])));
        assert_eq!(cursor.next(b"bcd"), Some((4, &b"b"[..], &b"cd"[..])));
        assert_eq!(cursor.next(b"cdefg"), Some((50, &b"cdef"[..], &b"g"[..])));
        assert_eq!(cursor.next(b"g"), None);
    }

    #[test]
    fn a_map_is_read_back_however_it_is_cut() {
        let map: Vec<_> = (0..200).map(|at| (at << 20, 5)).collect();
        let block = map_block(&map);
        for size in [1, 7, 512, block.len()] {
            let mut reader = MapReader::default();
            for chunk in block.chunks(size) {
                assert_eq!(reader.push(chunk), Some(chunk.len()));
            }
            assert!(reader.is_complete());
            assert_eq!(reader.push(b"data"), Some(0), "the map has ended");
            assert_eq!(reader.finish(1 << 30, 1_000).as_ref(), Some(&map));
            assert_eq!(reader.finish(1 << 30, 999), None);
        }
        for bad in [&b"\n"[..], b"x\n", b"-1\n", b"99999999\n", b"1\n1\n\0", b"111111111111111111111111"] {
            assert_eq!(MapReader::default().push(bad), None, "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn only_maps_that_fit_are_taken() {
        assert_eq!(checked([(0, 2), (10, 3), (20, 0)], 20, 5).unwrap(), [(0, 2), (10, 3)]);
        for (pieces, size, stored) in [
            (vec![(0, 2), (1, 3)], 20, 5),
            (vec![(10, 3), (0, 2)], 20, 5),
            (vec![(0, 30)], 20, 30),
            (vec![(0, 2)], 20, 3),
            (vec![(u64::MAX, 2)], u64::MAX, 2),
        ] {
            assert!(checked(pieces.clone(), size, stored).is_err(), "{pieces:?}");
        }
        assert!(checked((0..70_000).map(|at| (at * 2, 1)), 1 << 20, 70_000).is_err());
    }
}
