//! The file: a head that anyone can read, one zstd stream, and a hash of everything before it.
//!
//! ```text
//! ATOLL-BACKUP 1\n  {header}\n  zstd( sections, manifest )  ATOLLEND  length (8 bytes, little endian)  BLAKE3 (32 bytes)
//! ```
//!
//! The length and the hash cover every byte before them, so a file that was cut short or changed anywhere is recognised, without
//! decompressing it where it can be read twice, otherwise at its end.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender};

use serde::{Deserialize, Serialize};

use crate::error::RestoreError;
use crate::keys::SealedKeys;

const FIRST_LINE: &[u8] = b"ATOLL-BACKUP 1\n";
const ANY_VERSION: &[u8] = b"ATOLL-BACKUP ";
const END: &[u8; 8] = b"ATOLLEND";
const TRAILER: usize = 8 + 8 + 32;
/// LIMIT: the head with the sealed keys.
const HEADER_MAX: u64 = 4 << 20;
/// zstd's own default, and that of `tar --zstd`.
const LEVEL: i32 = 3;
/// What passes between the threads at once, and how many of them wait.
pub(crate) const PIECE: usize = 1 << 20;
pub(crate) const PIECES: usize = 4;

/// What can be read without the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the server that made it.
    pub version: String,
    /// The schema version of its database.
    pub schema: i64,
    /// When it was made.
    pub made_at: String,
    /// The name of the server's node.
    pub node: String,
    /// What the right sealing key derives.
    pub key_check: Option<String>,
    /// The keys, encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<SealedKeys>,
}

/// A piece of the uncompressed stream, or its proper end.
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    Complete,
}

/// A backup whose head has been read.
pub struct BackupFile<R> {
    pub header: Header,
    /// The head as it is in the file, for the hash.
    head: Vec<u8>,
    input: R,
}

impl<R: BufRead> BackupFile<R> {
    /// Reads and checks the head.
    pub fn open(mut input: R) -> Result<Self, RestoreError> {
        let mut head = Vec::new();
        let most = FIRST_LINE.len() as u64 + 16;
        (&mut input).take(most).read_until(b'\n', &mut head).map_err(RestoreError::Read)?;
        if head != FIRST_LINE {
            return Err(match head.strip_prefix(ANY_VERSION) {
                Some(version) if version.ends_with(b"\n") => {
                    RestoreError::TooNew(format!("{} of the format", String::from_utf8_lossy(version).trim()))
                }
                _ => RestoreError::NotABackup,
            });
        }
        (&mut input).take(HEADER_MAX).read_until(b'\n', &mut head).map_err(RestoreError::Read)?;
        let header = serde_json::from_slice(&head[FIRST_LINE.len()..])
            .map_err(|_| RestoreError::Damaged("its head is malformed".into()))?;
        Ok(Self { header, head, input })
    }

    /// Decompresses it into pieces, and checks its hash at the end. It ends early when the receiver of the pieces is gone.
    pub(crate) fn decompress(self, pieces: &SyncSender<Result<Piece, RestoreError>>) {
        let end = self.decompress_pieces(pieces).map(|()| Piece::Complete);
        // Without a reader nothing can be told to it.
        let _ = pieces.send(end);
    }

    fn decompress_pieces(self, pieces: &SyncSender<Result<Piece, RestoreError>>) -> Result<(), RestoreError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.head);
        let input = HashingReader { inner: self.input, hasher, length: self.head.len() as u64 };
        let mut decoder = zstd::Decoder::with_buffer(input).map_err(RestoreError::Read)?.single_frame();
        loop {
            let mut bytes = vec![0; PIECE];
            let filled = fill(&mut decoder, &mut bytes)?;
            if filled == 0 {
                break;
            }
            bytes.truncate(filled);
            if pieces.send(Ok(Piece::Bytes(bytes))).is_err() {
                return Ok(());
            }
        }
        let HashingReader { mut inner, hasher, length } = decoder.finish();
        check_trailer(&mut inner, length, &hasher)
    }
}

/// Reads until the buffer is full or the frame ends.
fn fill(decoder: &mut impl Read, bytes: &mut [u8]) -> Result<usize, RestoreError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match decoder.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(truncated()),
            // zstd's own errors have no number.
            Err(error) if error.raw_os_error().is_none() => return Err(changed()),
            Err(error) => return Err(RestoreError::Read(error)),
        }
    }
    Ok(filled)
}

/// Reads a whole file and says whether it is as it was written.
pub fn check_file(file: &mut File) -> Result<(), RestoreError> {
    let length = file.metadata().map_err(RestoreError::Read)?.len();
    let body = length.saturating_sub(TRAILER as u64);
    let mut hasher = blake3::Hasher::new();
    let mut input = &*file;
    let mut buffer = vec![0; PIECE];
    let mut left = body;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let got = input.read(&mut buffer[..most]).map_err(RestoreError::Read)?;
        if got == 0 {
            return Err(truncated());
        }
        hasher.update(&buffer[..got]);
        left -= got as u64;
    }
    check_trailer(&mut input, body, &hasher)?;
    io::Seek::rewind(file).map_err(RestoreError::Read)
}

fn check_trailer(input: &mut impl Read, length: u64, hasher: &blake3::Hasher) -> Result<(), RestoreError> {
    let mut trailer = [0; TRAILER];
    match input.read_exact(&mut trailer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(truncated()),
        read => read.map_err(RestoreError::Read)?,
    }
    if trailer[..8] != *END {
        return Err(truncated());
    }
    if trailer[8..16] != length.to_le_bytes() || trailer[16..] != *hasher.finalize().as_bytes() {
        return Err(changed());
    }
    match input.read(&mut [0]).map_err(RestoreError::Read)? {
        0 => Ok(()),
        _ => Err(RestoreError::Damaged("data follows its end".into())),
    }
}

fn changed() -> RestoreError {
    RestoreError::Damaged("it was changed after it was made".into())
}

pub(crate) fn truncated() -> RestoreError {
    RestoreError::Damaged("it is truncated".into())
}

/// Compresses the pieces into `out`; returns the length of the file. Without [`Piece::Complete`] it has no end.
pub(crate) fn compress(
    out: impl Write,
    header: &Header,
    pieces: &Receiver<Piece>,
) -> io::Result<Option<u64>> {
    let mut out = Hashing { inner: out, hasher: blake3::Hasher::new(), length: 0 };
    out.write_all(FIRST_LINE)?;
    serde_json::to_writer(&mut out, header)?;
    out.write_all(b"\n")?;
    let mut encoder = zstd::Encoder::new(out, LEVEL)?;
    let mut is_complete = false;
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => encoder.write_all(&bytes)?,
            Piece::Complete => is_complete = true,
        }
    }
    if !is_complete {
        return Ok(None);
    }
    let Hashing { mut inner, hasher, length } = encoder.finish()?;
    inner.write_all(END)?;
    inner.write_all(&length.to_le_bytes())?;
    inner.write_all(hasher.finalize().as_bytes())?;
    inner.flush()?;
    Ok(Some(length + TRAILER as u64))
}

/// Hashes and counts what is written.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    length: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.length += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Hashes what its user consumes, and not what is in the buffer.
struct HashingReader<R> {
    inner: R,
    hasher: blake3::Hasher,
    length: u64,
}

impl<R: BufRead> Read for HashingReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(bytes)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for HashingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // The buffer is filled already: this reads nothing.
        if let Ok(buffer) = self.inner.fill_buf() {
            let used = &buffer[..count.min(buffer.len())];
            self.hasher.update(used);
            self.length += used.len() as u64;
        }
        self.inner.consume(count);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Seek;
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn header() -> Header {
        Header {
            version: "0.1.0".into(),
            schema: 13,
            made_at: "2026-11-19T00:00:00Z".into(),
            node: "a".into(),
            key_check: None,
            keys: None,
        }
    }

    fn written(bytes: &[u8]) -> Vec<u8> {
        let (sender, pieces) = sync_channel(PIECES);
        let mut out = Vec::new();
        sender.send(Piece::Bytes(bytes.to_vec())).unwrap();
        sender.send(Piece::Complete).unwrap();
        drop(sender);
        let length = compress(&mut out, &header(), &pieces).unwrap().unwrap();
        assert_eq!(length, out.len() as u64);
        out
    }

    fn read(file: &[u8]) -> Result<Vec<u8>, RestoreError> {
        let backup = BackupFile::open(file)?;
        let (sender, pieces) = sync_channel(PIECES);
        std::thread::scope(|scope| {
            scope.spawn(move || backup.decompress(&sender));
            let mut whole = Vec::new();
            for piece in pieces {
                match piece? {
                    Piece::Bytes(bytes) => whole.extend(bytes),
                    Piece::Complete => return Ok(whole),
                }
            }
            Err(truncated())
        })
    }

    fn check(file: &[u8]) -> Result<(), RestoreError> {
        let mut on_disk = tempfile::tempfile().unwrap();
        on_disk.write_all(file).unwrap();
        on_disk.rewind().unwrap();
        check_file(&mut on_disk)
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_seen() {
        let content: Vec<u8> = (0..4_000u32).flat_map(u32::to_le_bytes).collect();
        let file = written(&content);
        assert_eq!(read(&file).unwrap(), content);
        check(&file).unwrap();
        for length in (0..file.len()).step_by(37).chain([file.len() - 1]) {
            assert!(read(&file[..length]).is_err(), "{length}");
            assert!(check(&file[..length]).is_err(), "{length}");
        }
        for at in (0..file.len()).step_by(11) {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "{at}");
            assert!(check(&changed).is_err(), "{at}");
        }
        assert!(read(&[&file[..], b"x"].concat()).is_err());
    }

    #[test]
    fn an_incomplete_stream_has_no_end() {
        let (sender, pieces) = sync_channel(PIECES);
        sender.send(Piece::Bytes(b"half".to_vec())).unwrap();
        drop(sender);
        let mut out = Vec::new();
        assert_eq!(compress(&mut out, &header(), &pieces).unwrap(), None);
        assert!(read(&out).is_err());
    }

    #[test]
    fn another_version_is_named() {
        let error = read(b"ATOLL-BACKUP 2\n{}\n").unwrap_err();
        assert!(matches!(&error, RestoreError::TooNew(version) if version == "2 of the format"), "{error}");
        assert!(matches!(read(b"PK").unwrap_err(), RestoreError::NotABackup));
    }

    #[test]
    fn any_file_is_read_or_refused() {
        atoll_robustness::check("backup_file", |bytes| {
            let _ = read(bytes);
        });
    }
}
