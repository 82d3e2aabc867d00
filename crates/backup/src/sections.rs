//! The uncompressed stream: sections, each with its own hash, and a manifest of all of them at the end.
//!
//! ```text
//! section   'S' length JSON   (length bytes)*  0  BLAKE3 of the bytes
//! manifest  'M' length JSON
//! ```
//!
//! Lengths are 4 bytes, little endian. The length of a section is not known when it begins, so its bytes come in pieces.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender};

use serde::{Deserialize, Serialize};

use crate::error::{RestoreError, of_stream};
use crate::format::{PIECE, Piece, truncated};
use crate::places;

const SECTION: u8 = b'S';
const MANIFEST: u8 = b'M';
/// LIMIT: the head of a section.
const HEAD_MAX: usize = 1 << 20;
/// LIMIT: the manifest; an entry has some 200 bytes.
const MANIFEST_MAX: usize = 256 << 20;
const BUFFER: usize = 256 << 10;

/// What a section has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "section", rename_all = "snake_case")]
pub(crate) enum SectionHead {
    /// The copy of the database.
    Database,
    /// Settings and keys of the server by path, sealed with its key.
    Settings,
    /// The files of a sandbox.
    Layer { sandbox: String, limit_mib: u32 },
    /// The memory of a paused sandbox.
    SandboxMemory { sandbox: String },
    /// The files of a volume.
    Volume { volume: String, size_mib: Option<u32> },
    /// The files of a snapshot. `images`: the hash of what describes its processes.
    Snapshot { snapshot: String, images: Option<String> },
    /// The memory of a snapshot.
    SnapshotMemory { snapshot: String },
    /// Folders with template versions of layers.
    Images { folders: Vec<String> },
    /// The folder of a built-in template.
    Template { name: String },
    /// A folder of the data folder: archives that lie there, or the agents that run in paused sandboxes.
    Folder { name: String },
}

impl SectionHead {
    /// The place that the progress tells while it is restored.
    pub(crate) fn restoring(&self) -> &'static str {
        match self {
            Self::Database | Self::Settings => places::RESTORING_RECORDS,
            Self::Images { .. } | Self::Template { .. } | Self::Folder { .. } => places::RESTORING_TEMPLATES,
            Self::Layer { .. } | Self::SandboxMemory { .. } => places::RESTORING_SANDBOXES,
            Self::Volume { .. } | Self::Snapshot { .. } | Self::SnapshotMemory { .. } => {
                places::RESTORING_VOLUMES
            }
        }
    }

    /// The sandbox whose files it has.
    pub(crate) fn files_of(&self) -> Option<&String> {
        if let Self::Layer { sandbox, .. } = self { Some(sandbox) } else { None }
    }

    /// The sandbox whose memory it has.
    pub(crate) fn memory_of(&self) -> Option<&String> {
        if let Self::SandboxMemory { sandbox } = self { Some(sandbox) } else { None }
    }
}

/// The contents of the backup by section, and the names of what it does not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) sections: Vec<ManifestEntry>,
    /// Sandboxes, volumes and snapshots that are at providers elsewhere, by provider.
    pub(crate) elsewhere: Vec<String>,
    /// Templates that can be made or pulled again.
    pub(crate) by_reference: Vec<String>,
    /// Sandboxes whose memory is not in the backup: they come back stopped.
    pub(crate) stopped: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestEntry {
    pub(crate) head: SectionHead,
    pub(crate) bytes: u64,
    pub(crate) blake3: String,
}

/// Writes sections into pieces.
pub(crate) struct SectionWriter<'a> {
    pieces: SyncSender<Piece>,
    buffer: Vec<u8>,
    entries: Vec<ManifestEntry>,
    bytes: u64,
    told: &'a (dyn Fn(u64) -> io::Result<()> + Sync),
}

impl<'a> SectionWriter<'a> {
    /// `told` hears of every piece, and may end the work by an error.
    pub(crate) fn new(pieces: SyncSender<Piece>, told: &'a (dyn Fn(u64) -> io::Result<()> + Sync)) -> Self {
        Self { pieces, buffer: Vec::with_capacity(PIECE), entries: Vec::new(), bytes: 0, told }
    }

    /// Writes one section; `fill` writes its bytes.
    pub(crate) fn section(
        &mut self,
        head: SectionHead,
        fill: impl FnOnce(&mut SectionBytes<'_, 'a>) -> io::Result<()>,
    ) -> io::Result<()> {
        let text = serde_json::to_vec(&head)?;
        self.put(&[SECTION])?;
        self.put(&length_of(&text)?)?;
        self.put(&text)?;
        let mut bytes = SectionBytes {
            to: self,
            buffer: Vec::with_capacity(BUFFER),
            hasher: blake3::Hasher::new(),
            bytes: 0,
        };
        fill(&mut bytes)?;
        bytes.send()?;
        let (hash, count) = (bytes.hasher.finalize(), bytes.bytes);
        self.put(&0u32.to_le_bytes())?;
        self.put(hash.as_bytes())?;
        self.bytes += count;
        self.entries.push(ManifestEntry { head, bytes: count, blake3: hash.to_hex().to_string() });
        Ok(())
    }

    /// Writes the manifest and the end; returns the bytes of all sections.
    pub(crate) fn finish(mut self, manifest: Manifest) -> io::Result<u64> {
        let manifest = Manifest { sections: std::mem::take(&mut self.entries), ..manifest };
        let text = serde_json::to_vec(&manifest)?;
        self.put(&[MANIFEST])?;
        self.put(&length_of(&text)?)?;
        self.put(&text)?;
        self.send()?;
        self.pieces.send(Piece::Complete).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(self.bytes)
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = PIECE - self.buffer.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == PIECE {
                self.send()?;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        (self.told)(piece.len() as u64)?;
        Ok(self.pieces.send(Piece::Bytes(piece)).map_err(|_| io::ErrorKind::BrokenPipe)?)
    }
}

/// The bytes of one section.
pub(crate) struct SectionBytes<'w, 'a> {
    to: &'w mut SectionWriter<'a>,
    buffer: Vec<u8>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl SectionBytes<'_, '_> {
    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.hasher.update(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.to.put(&length_of(&self.buffer)?)?;
        self.to.put(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for SectionBytes<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(BUFFER - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == BUFFER {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn length_of(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(length.to_le_bytes())
}

/// Reads sections from pieces.
pub(crate) struct SectionReader {
    pieces: Receiver<Result<Piece, RestoreError>>,
    piece: Vec<u8>,
    at: usize,
    is_complete: bool,
    entries: Vec<ManifestEntry>,
}

impl SectionReader {
    pub(crate) fn new(pieces: Receiver<Result<Piece, RestoreError>>) -> Self {
        Self { pieces, piece: Vec::new(), at: 0, is_complete: false, entries: Vec::new() }
    }

    /// The next section with its head; after the last one, the manifest, which has been compared with what was read.
    pub(crate) fn next(&mut self) -> Result<NextSection, RestoreError> {
        match self.exactly::<1>()?[0] {
            SECTION => {
                let head = self.json(HEAD_MAX)?;
                Ok(NextSection::Section(head))
            }
            MANIFEST => {
                let manifest: Manifest = self.json(MANIFEST_MAX)?;
                if manifest.sections != self.entries {
                    return Err(RestoreError::Damaged("its sections are not those of its manifest".into()));
                }
                if !self.fill()? { Ok(NextSection::End(manifest)) } else { Err(malformed()) }
            }
            _ => Err(malformed()),
        }
    }

    /// Hands the bytes of the section to `take`, which must read all of them, and checks their hash.
    pub(crate) fn read_section<T>(
        &mut self,
        head: SectionHead,
        take: impl FnOnce(&mut SectionInput<'_>) -> Result<T, RestoreError>,
    ) -> Result<T, RestoreError> {
        let mut input =
            SectionInput { from: self, left: 0, has_ended: false, hasher: blake3::Hasher::new(), bytes: 0 };
        let taken = take(&mut input)?;
        if io::copy(&mut input, &mut io::sink()).map_err(|cause| of_stream(cause, ""))? > 0 {
            return Err(RestoreError::Damaged("a section is longer than its content".into()));
        }
        let (hash, bytes) = (input.hasher.finalize(), input.bytes);
        if self.exactly::<32>()? != *hash.as_bytes() {
            return Err(RestoreError::Damaged("a section was changed".into()));
        }
        self.entries.push(ManifestEntry { head, bytes, blake3: hash.to_hex().to_string() });
        Ok(taken)
    }

    fn json<T: serde::de::DeserializeOwned>(&mut self, most: usize) -> Result<T, RestoreError> {
        let length = u32::from_le_bytes(self.exactly()?) as usize;
        if length > most {
            return Err(malformed());
        }
        let mut text = Vec::new();
        self.take(length as u64).read_to_end(&mut text).map_err(|cause| of_stream(cause, ""))?;
        serde_json::from_slice(&text).map_err(|_| malformed())
    }

    fn exactly<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let mut bytes = [0; N];
        match self.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(truncated()),
            read => read.map(|()| bytes).map_err(|cause| of_stream(cause, "")),
        }
    }

    /// Whether there are bytes left.
    fn fill(&mut self) -> Result<bool, RestoreError> {
        while self.at == self.piece.len() && !self.is_complete {
            match self.pieces.recv().map_err(|_| truncated())?? {
                Piece::Bytes(bytes) => (self.piece, self.at) = (bytes, 0),
                Piece::Complete => self.is_complete = true,
            }
        }
        Ok(self.at < self.piece.len())
    }
}

impl Read for SectionReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.fill().map_err(io::Error::other)? {
            return Ok(0);
        }
        let count = bytes.len().min(self.piece.len() - self.at);
        bytes[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// What comes next in a backup.
pub(crate) enum NextSection {
    Section(SectionHead),
    End(Manifest),
}

/// The bytes of a section that is being read.
pub(crate) struct SectionInput<'a> {
    from: &'a mut SectionReader,
    /// Of the current piece.
    left: usize,
    has_ended: bool,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Read for SectionInput<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.has_ended {
            let length = u32::from_le_bytes(self.from.exactly().map_err(io::Error::other)?);
            self.left = length as usize;
            self.has_ended = length == 0;
        }
        if self.has_ended || bytes.is_empty() {
            return Ok(0);
        }
        let most = bytes.len().min(self.left);
        let count = self.from.read(&mut bytes[..most])?;
        if count == 0 {
            return Err(io::Error::other(truncated()));
        }
        self.hasher.update(&bytes[..count]);
        self.left -= count;
        self.bytes += count as u64;
        Ok(count)
    }
}

fn malformed() -> RestoreError {
    RestoreError::Damaged("its sections are malformed".into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn written(parts: &[&[u8]]) -> Vec<u8> {
        let (sender, pieces) = sync_channel(64);
        let mut writer = SectionWriter::new(sender, &|_| Ok(()));
        for part in parts {
            let head = SectionHead::SandboxMemory { sandbox: "a".into() };
            writer.section(head, |out| out.write_all(part)).unwrap();
        }
        let bytes = writer.finish(Manifest::default()).unwrap();
        assert_eq!(bytes, parts.iter().map(|part| part.len() as u64).sum::<u64>());
        let whole = pieces.iter().filter_map(|piece| match piece {
            Piece::Bytes(bytes) => Some(bytes),
            Piece::Complete => None,
        });
        whole.flatten().collect()
    }

    fn read(stream: &[u8]) -> Result<Vec<Vec<u8>>, RestoreError> {
        let (sender, pieces) = sync_channel(2);
        sender.send(Ok(Piece::Bytes(stream.to_vec()))).unwrap();
        sender.send(Ok(Piece::Complete)).unwrap();
        let mut reader = SectionReader::new(pieces);
        let mut parts = Vec::new();
        loop {
            match reader.next()? {
                NextSection::Section(head) => parts.push(reader.read_section(head, |input| {
                    let mut part = Vec::new();
                    input.read_to_end(&mut part).map_err(|cause| of_stream(cause, ""))?;
                    Ok(part)
                })?),
                NextSection::End(_) => return Ok(parts),
            }
        }
    }

    #[test]
    fn sections_come_back_as_they_were() {
        let parts: [&[u8]; 3] = [b"", &[7; 3 * BUFFER + 5], b"end"];
        assert_eq!(read(&written(&parts)).unwrap(), parts.map(<[u8]>::to_vec));
    }

    #[test]
    fn any_stream_of_sections_is_read_or_refused() {
        atoll_robustness::check("backup_sections", |bytes| {
            let _ = read(bytes);
        });
    }
}
