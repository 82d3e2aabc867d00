//! Decompresses an archive that `ADD` extracts. The format is detected from the first bytes, not from the name.

use std::io::{self, BufRead, Read};

/// LIMIT: the window of a zstd frame (64 MiB); the archive chooses how much of the server's memory it needs.
const ZSTD_WINDOW_LOG: u32 = 26;
/// LIMIT: the same for xz; its highest level needs 65 MiB.
const XZ_MEMORY: u64 = 128 << 20;

/// The uncompressed bytes.
pub(super) fn unzip<R: BufRead + Send + 'static>(mut from: R) -> io::Result<Box<dyn Read + Send>> {
    let head = from.fill_buf()?;
    Ok(match head {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(from)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(from)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Box::new(decoder)
        }
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Box::new(bzip2::bufread::MultiBzDecoder::new(from)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let stream =
                liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(from, stream))
        }
        _ => Box::new(from),
    })
}
