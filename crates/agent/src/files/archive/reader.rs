//! A tar stream taken apart piece by piece, whatever the pieces. Holds one header and one entry's records at most.

use super::header::{BLOCK, EXTRA_MAX, Extra, TarEntry, TarKind};
use crate::error::AgentError;

/// Who gets what a stream holds.
pub(super) trait Receiver {
    fn begin(&mut self, entry: TarEntry) -> Result<(), AgentError>;
    fn content(&mut self, bytes: &[u8]) -> Result<(), AgentError>;
    fn end(&mut self) -> Result<(), AgentError>;
}

/// Where in a stream we are.
pub(super) struct ArchiveReader {
    stage: ReaderStage,
    block: [u8; BLOCK],
    filled: usize,
    extra: Extra,
    records: Vec<u8>,
    /// After the content of the entry that is read.
    padding: usize,
}

enum ReaderStage {
    Header,
    Content {
        left: u64,
    },
    Records {
        kind: TarKind,
        left: u64,
    },
    Skipped {
        left: u64,
    },
    /// Zeros up to the next block.
    Padding {
        left: usize,
    },
    Ended,
}

impl Default for ArchiveReader {
    fn default() -> Self {
        Self {
            stage: ReaderStage::Header,
            block: [0; BLOCK],
            filled: 0,
            extra: Extra::default(),
            records: Vec::new(),
            padding: 0,
        }
    }
}

impl ArchiveReader {
    pub(super) fn push(&mut self, mut bytes: &[u8], to: &mut impl Receiver) -> Result<(), AgentError> {
        while !bytes.is_empty() {
            bytes = match &mut self.stage {
                ReaderStage::Header => self.header(bytes, to)?,
                ReaderStage::Content { left } => {
                    let (now, rest) = split(bytes, *left);
                    to.content(now)?;
                    *left -= now.len() as u64;
                    if *left == 0 {
                        to.end()?;
                        self.pad();
                    }
                    rest
                }
                ReaderStage::Records { kind, left } => {
                    let (now, rest) = split(bytes, *left);
                    self.records.extend_from_slice(now);
                    *left -= now.len() as u64;
                    if *left == 0 {
                        let kind = *kind;
                        self.apply(kind)?;
                        self.pad();
                    }
                    rest
                }
                ReaderStage::Skipped { left } => {
                    let (now, rest) = split(bytes, *left);
                    *left -= now.len() as u64;
                    if *left == 0 {
                        self.pad();
                    }
                    rest
                }
                ReaderStage::Padding { left } => {
                    let (now, rest) = split(bytes, *left as u64);
                    *left -= now.len();
                    if *left == 0 {
                        self.stage = ReaderStage::Header;
                    }
                    rest
                }
                // Writers pad an archive to their own record size.
                ReaderStage::Ended => return Ok(()),
            };
        }
        Ok(())
    }

    /// Whether the stream ended where an archive may.
    pub(super) fn finish(&self) -> Result<(), AgentError> {
        match self.stage {
            ReaderStage::Ended => Ok(()),
            ReaderStage::Header if self.filled == 0 => Ok(()),
            _ => Err(AgentError::Invalid("the archive ends in the middle of an entry".into())),
        }
    }

    fn header<'a>(&mut self, bytes: &'a [u8], to: &mut impl Receiver) -> Result<&'a [u8], AgentError> {
        let (now, rest) = split(bytes, (BLOCK - self.filled) as u64);
        self.block[self.filled..self.filled + now.len()].copy_from_slice(now);
        self.filled += now.len();
        if self.filled < BLOCK {
            return Ok(rest);
        }
        self.filled = 0;
        let Some(entry) = TarEntry::read(&self.block)? else {
            self.stage = ReaderStage::Ended;
            return Ok(rest);
        };
        let (kind, size) = (entry.kind, entry.size);
        self.stage = match kind {
            TarKind::Pax | TarKind::LongName | TarKind::LongLink if size > EXTRA_MAX => {
                return Err(AgentError::Invalid("an entry's records are too long".into()));
            }
            TarKind::Pax | TarKind::LongName | TarKind::LongLink => {
                self.begin(ReaderStage::Records { kind, left: size }, size)
            }
            TarKind::Ignored => self.begin(ReaderStage::Skipped { left: size }, size),
            TarKind::File
            | TarKind::Folder
            | TarKind::Symlink
            | TarKind::Hardlink
            | TarKind::Fifo
            | TarKind::Device
            | TarKind::Sparse => {
                let entry = entry.with(std::mem::take(&mut self.extra));
                let size = entry.size;
                to.begin(entry)?;
                if size == 0 {
                    to.end()?;
                }
                self.begin(ReaderStage::Content { left: size }, size)
            }
        };
        Ok(rest)
    }

    /// What follows a header: nothing but the next header where an entry has no content.
    fn begin(&mut self, stage: ReaderStage, size: u64) -> ReaderStage {
        self.records.clear();
        self.padding = (size.wrapping_neg() % BLOCK as u64) as usize;
        if size == 0 { ReaderStage::Header } else { stage }
    }

    fn pad(&mut self) {
        self.stage = match self.padding {
            0 => ReaderStage::Header,
            left => ReaderStage::Padding { left },
        };
    }

    fn apply(&mut self, kind: TarKind) -> Result<(), AgentError> {
        let records = std::mem::take(&mut self.records);
        match kind {
            TarKind::LongName => self.extra.long_name(&records),
            TarKind::LongLink => self.extra.long_link(&records),
            _ => self.extra.pax(&records)?,
        }
        Ok(())
    }
}

fn split(bytes: &[u8], most: u64) -> (&[u8], &[u8]) {
    bytes.split_at(usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct RecordedEvents(Vec<(TarEntry, Vec<u8>, bool)>);

    impl Receiver for RecordedEvents {
        fn begin(&mut self, entry: TarEntry) -> Result<(), AgentError> {
            self.0.push((entry, Vec::new(), false));
            Ok(())
        }
        fn content(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
            self.0.last_mut().unwrap().1.extend_from_slice(bytes);
            Ok(())
        }
        fn end(&mut self) -> Result<(), AgentError> {
            self.0.last_mut().unwrap().2 = true;
            Ok(())
        }
    }

    fn file(path: &[u8], content: &[u8]) -> TarEntry {
        TarEntry {
            path: path.to_vec(),
            link: Vec::new(),
            kind: TarKind::File,
            mode: 0o640,
            uid: 7,
            gid: 5_000_000,
            size: content.len() as u64,
            modified_s: 1_700_000_000,
            xattrs: vec![(b"user.x".to_vec(), b"a=\n\0b".to_vec())],
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_the_pieces(
            files in prop::collection::vec(("[a-z/]{1,200}[a-z]", prop::collection::vec(any::<u8>(), 0..1500)), 0..5),
            piece in 1usize..1500,
        ) {
            let mut wire = Vec::new();
            for (path, content) in &files {
                file(path.as_bytes(), content).write(&mut wire);
                wire.extend_from_slice(content);
                wire.resize(wire.len().next_multiple_of(BLOCK), 0);
            }
            wire.resize(wire.len() + 2 * BLOCK, 0);
            let (mut reader, mut seen) = (ArchiveReader::default(), RecordedEvents::default());
            for piece in wire.chunks(piece) {
                reader.push(piece, &mut seen).unwrap();
            }
            reader.finish().unwrap();
            prop_assert_eq!(seen.0.len(), files.len());
            for ((entry, content, ended), (path, sent)) in seen.0.iter().zip(&files) {
                prop_assert!(*ended);
                prop_assert_eq!(&entry.path, path.as_bytes());
                prop_assert_eq!(content, sent);
                prop_assert_eq!((entry.uid, entry.gid, entry.mode), (7, 5_000_000, 0o640));
                prop_assert_eq!(&entry.xattrs, &file(b"", b"").xattrs);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000), keep in any::<bool>()) {
            let mut wire = bytes;
            if keep {
                // A good first header leads deeper into the parser.
                let mut good = Vec::new();
                file(b"x", &[0; 700]).write(&mut good);
                good.extend_from_slice(&wire);
                wire = good;
            }
            let mut reader = ArchiveReader::default();
            let _ = reader.push(&wire, &mut RecordedEvents::default());
            let _ = reader.finish();
        }
    }

    #[test]
    fn a_long_name_that_is_cut_behind_a_slash_is_still_a_file() {
        let path = format!("{}/name", "d".repeat(99));
        let mut wire = vec![0; 7];
        file(path.as_bytes(), b"hello").write(&mut wire);
        wire.extend_from_slice(b"hello");
        let (mut reader, mut seen) = (ArchiveReader::default(), RecordedEvents::default());
        reader.push(&wire[7..], &mut seen).unwrap();
        assert_eq!((seen.0[0].0.kind, &seen.0[0].1[..]), (TarKind::File, &b"hello"[..]));
    }

    #[test]
    fn an_archive_that_is_cut_or_none_is_refused() {
        let mut wire = Vec::new();
        file(b"a", b"hello").write(&mut wire);
        wire.extend_from_slice(b"hel");
        let mut reader = ArchiveReader::default();
        reader.push(&wire, &mut RecordedEvents::default()).unwrap();
        assert!(reader.finish().is_err());
        assert!(ArchiveReader::default().push(&[b'x'; 600], &mut RecordedEvents::default()).is_err());
    }

    #[test]
    fn endless_records_are_refused_before_memory_is_taken() {
        let mut entry = file(b"a", b"");
        entry.xattrs = vec![(b"user.x".to_vec(), vec![b'v'; 2 << 20])];
        let mut wire = Vec::new();
        entry.write(&mut wire);
        assert!(ArchiveReader::default().push(&wire, &mut RecordedEvents::default()).is_err());
    }

    #[test]
    fn any_stream_is_read_the_same_however_it_is_cut() {
        let read = |bytes: &[u8], piece: usize| {
            let (mut reader, mut seen) = (ArchiveReader::default(), RecordedEvents::default());
            let pushed = bytes.chunks(piece).try_for_each(|piece| reader.push(piece, &mut seen));
            let is_whole = pushed.is_ok() && reader.finish().is_ok();
            let entries = seen.0.into_iter().map(|(entry, content, ended)| (entry.path, content, ended));
            (is_whole, entries.collect::<Vec<_>>())
        };
        atoll_robustness::check!("tar_stream", |bytes| {
            let whole = read(bytes, bytes.len().max(1));
            assert!(whole.1.iter().map(|(_, content, _)| content.len()).sum::<usize>() <= bytes.len());
            assert_eq!(read(bytes, 7), whole);
        });
    }
}
