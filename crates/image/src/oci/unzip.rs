//! Decompresses layers. The format is detected from the first bytes, not from the media type.

use std::io::{self, BufReader, Chain, Cursor, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use flate2::bufread::MultiGzDecoder;

/// LIMIT: the window of a zstd frame (64 MiB); the layer chooses how much of the server's memory it needs.
const ZSTD_WINDOW_LOG: u32 = 26;
/// Bytes that are passed between the threads at once, and how many such pieces may be queued.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zip {
    /// `1f 8b`.
    Gzip,
    /// A zstd frame, or a skippable frame.
    Zstd,
    /// Everything else.
    Plain,
}

impl Zip {
    /// The format of bytes that begin like this.
    fn of(head: &[u8]) -> io::Result<Self> {
        let unknown = |name| {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the layer is compressed with {name}, which images do not use"),
            ))
        };
        match head {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0] => unknown("xz"),
            [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A'] => unknown("bzip2"),
            _ => Ok(Self::Plain),
        }
    }

    /// The media type of a layer in this format.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
            Self::Plain => "application/vnd.oci.image.layer.v1.tar",
        }
    }
}

/// A reader of the uncompressed bytes.
pub struct Unzip<R: Read>(Decompressor<R>);

enum Decompressor<R: Read> {
    Gzip(Box<MultiGzDecoder<CompressedSource<R>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, CompressedSource<R>>>),
    Plain(Box<CompressedSource<R>>),
}

type CompressedSource<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

impl<R: Read> Unzip<R> {
    /// Detects the format from the first bytes.
    pub fn new(mut from: R) -> io::Result<Self> {
        let mut head = Vec::with_capacity(6);
        from.by_ref().take(6).read_to_end(&mut head)?;
        let zip = Zip::of(&head)?;
        let source = BufReader::with_capacity(PIECE, Cursor::new(head).chain(from));
        Ok(Self(match zip {
            Zip::Gzip => Decompressor::Gzip(Box::new(MultiGzDecoder::new(source))),
            Zip::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Decompressor::Zstd(Box::new(decoder))
            }
            Zip::Plain => Decompressor::Plain(Box::new(source)),
        }))
    }

    /// How the bytes are compressed.
    #[must_use]
    pub fn zip(&self) -> Zip {
        match &self.0 {
            Decompressor::Gzip(_) => Zip::Gzip,
            Decompressor::Zstd(_) => Zip::Zstd,
            Decompressor::Plain(_) => Zip::Plain,
        }
    }
}

impl<R: Read> Read for Unzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Decompressor::Gzip(reader) => reader.read(buf),
            Decompressor::Zstd(reader) => reader.read(buf),
            Decompressor::Plain(reader) => reader.read(buf),
        }
    }
}

/// Lets `work` read bytes that another thread has already decompressed: decompressing and unpacking then use two cores.
pub(crate) fn ahead<T>(from: impl Read + Send, work: impl FnOnce(&mut Ahead) -> T) -> T {
    let (full_in, full) = sync_channel(PIECES);
    let (empty_in, empty) = sync_channel(PIECES);
    std::thread::scope(|scope| {
        scope.spawn(move || fill(from, &full_in, &empty));
        let mut reader = Ahead { full, empty: empty_in, piece: Vec::new(), at: 0, is_over: false };
        // The reader is dropped before the scope waits: a thread without a reader ends.
        let done = work(&mut reader);
        drop(reader);
        done
    })
}

fn fill(mut from: impl Read, full: &SyncSender<io::Result<Vec<u8>>>, empty: &Receiver<Vec<u8>>) {
    loop {
        let mut piece = empty.try_recv().unwrap_or_else(|_| vec![0; PIECE]);
        piece.resize(PIECE, 0);
        let mut length = 0;
        let ended = loop {
            match from.read(&mut piece[length..]) {
                Ok(0) => break Some(None),
                Ok(more) => length += more,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => break Some(Some(cause)),
            }
            // The reader of a download must not wait for a full piece at the download's end.
            if length == PIECE {
                break None;
            }
        };
        piece.truncate(length);
        if (length > 0 || matches!(ended, Some(None))) && full.send(Ok(piece)).is_err() {
            return;
        }
        match ended {
            None => {}
            // An empty piece marks the end; the previous piece may have been the last with bytes.
            Some(None) if length > 0 => return drop(full.send(Ok(Vec::new()))),
            Some(None) => return,
            Some(Some(cause)) => return drop(full.send(Err(cause))),
        }
    }
}

/// The reading end of [`ahead`].
pub(crate) struct Ahead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
    is_over: bool,
}

impl Read for Ahead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            if self.is_over {
                return Ok(0);
            }
            let next =
                self.full.recv().unwrap_or_else(|_| Err(io::Error::other("decompression ended early")));
            let next = next.inspect_err(|_| self.is_over = true)?;
            self.is_over = next.is_empty();
            let used = std::mem::replace(&mut self.piece, next);
            self.at = 0;
            if used.capacity() > 0 {
                // If the queue is full, the piece is freed.
                let _ = self.empty.try_send(used);
            }
        }
        let taken = buf.len().min(self.piece.len() - self.at);
        buf[..taken].copy_from_slice(&self.piece[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    /// Returns one byte at a time, as a slow network does.
    struct SlowReader<'a>(&'a [u8]);
    impl Read for SlowReader<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let taken = self.0.len().min(1).min(buf.len());
            buf[..taken].copy_from_slice(&self.0[..taken]);
            self.0 = &self.0[taken..];
            Ok(taken)
        }
    }

    fn read(bytes: &[u8]) -> io::Result<(Zip, Vec<u8>)> {
        let unzip = Unzip::new(SlowReader(bytes))?;
        let zip = unzip.zip();
        let mut whole = Vec::new();
        ahead(unzip, |reader| reader.read_to_end(&mut whole))?;
        Ok((zip, whole))
    }

    #[test]
    fn layers_are_known_by_how_they_begin() {
        let text: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
        let two: Vec<u8> = [gzip(&text[..300_000]), gzip(&text[300_000..])].concat();
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7][..], &zstd].concat();
        for (bytes, zip) in [
            (gzip(&text), Zip::Gzip),
            (two, Zip::Gzip),
            (zstd, Zip::Zstd),
            (skippable, Zip::Zstd),
            (text.clone(), Zip::Plain),
        ] {
            let (found, whole) = read(&bytes).unwrap();
            assert!(found == zip && whole == text, "{zip:?}");
        }
        assert_eq!(read(b"").unwrap(), (Zip::Plain, Vec::new()));
        assert!(read(b"\xfd7zXZ\0more").is_err() && read(b"BZh91AY&SY").is_err());
    }

    #[test]
    fn what_is_cut_or_broken_is_an_error_and_not_an_end() {
        let text = vec![7; 100_000];
        let whole = gzip(&text);
        assert!(read(&whole[..whole.len() - 4]).is_err());
        let mut broken = whole.clone();
        let middle = broken.len() / 2;
        broken[middle] ^= 0xff;
        assert!(read(&broken).is_err());
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        assert!(read(&zstd[..zstd.len() - 2]).is_err());
    }

    #[test]
    fn a_frame_that_wants_too_much_memory_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.include_contentsize(false).unwrap();
        let piece = vec![1; 1 << 20];
        for _ in 0..130 {
            encoder.write_all(&piece).unwrap();
        }
        assert!(read(&encoder.finish().unwrap()).is_err());
    }

    #[test]
    fn who_stops_reading_stops_the_other_thread() {
        let endless = io::repeat(1);
        let got = ahead(endless, |reader| {
            let mut some = [0; 10];
            reader.read_exact(&mut some).map(|()| some)
        });
        assert_eq!(got.unwrap(), [1; 10]);
    }

    #[test]
    fn any_compressed_layer_is_read_or_refused() {
        atoll_robustness::check("compressed_layer", |bytes| {
            let Ok(unzip) = Unzip::new(bytes) else { return };
            let is_plain = unzip.zip() == Zip::Plain;
            let read = io::copy(&mut unzip.take(1 << 20), &mut io::sink());
            assert!(!is_plain || read.is_ok_and(|read| read == bytes.len() as u64));
        });
    }
}
