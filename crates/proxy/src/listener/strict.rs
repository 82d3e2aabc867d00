//! Strict HTTP/1: ambiguous input is refused before the parser reads it.
//!
//! The parser behind this one is lenient where RFC 9112 allows it: it accepts a bare line feed as the end of a line,
//! and ignores a length beside chunks. So every byte of a connection passes here first, in place and without a copy;
//! this module only tracks where heads and bodies begin and end. The first forbidden byte is replaced by a NUL and is
//! the last one that passes: the parser answers 400 to it, after the earlier requests, and closes.
//!
//! ```text
//! request line ─ fields ─┬─ no body ───────────────────────► next request line
//!                        ├─ Content-Length ─ bytes ────────►   "  (or opaque, if the head requested an upgrade)
//!                        └─ chunked ─ size, bytes, … ─ trailers ─► "
//! ```
//!
//! It never buffers a body, and never accepts input that it does not understand.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use atoll_relay::stream::{poll_read_at_most, read_ahead};
use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use super::strangers::HeadMeter;

/// LIMIT: an incomplete line is kept until its end; the parser's own limits apply first and give 431.
const LINE_MAX: usize = 512 << 10;
/// LIMIT: how much of a head is read at a time; more is read when there is memory for it.
pub(super) const HEAD_STEP: usize = 4 << 10;
/// LIMIT: bytes of the line before a chunk; extensions are ignored.
const CHUNK_LINE_MAX: usize = 256;
/// A byte that no head may contain, so that the parser refuses it.
const POISON: u8 = 0;

/// A connection from which only unambiguous requests can be read.
#[derive(Debug)]
pub(crate) struct Strict<I> {
    io: I,
    /// Bytes that were read to detect the protocol.
    first: Bytes,
    framing: Framing,
    /// Counts incomplete heads.
    meter: HeadMeter,
}

impl<I> Strict<I> {
    pub(super) fn new(io: I, first: Bytes, meter: HeadMeter) -> Self {
        Self { io, first, framing: Framing::default(), meter }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Strict<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.framing.at == ParserPosition::Refused {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let is_head = this.framing.is_head();
        if this.first.is_empty() && is_head {
            let step = buf.remaining().min(HEAD_STEP);
            ready!(this.meter.poll_room(cx, this.framing.head_bytes + step));
            ready!(poll_read_at_most(Pin::new(&mut this.io), cx, buf, step))?;
        } else if this.first.is_empty() {
            ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        } else {
            read_ahead(&mut this.first, buf);
        }
        if let Err(bad) = this.framing.follow(&buf.filled()[before..]) {
            this.framing.at = ParserPosition::Refused;
            buf.filled_mut()[before + bad] = POISON;
            buf.set_filled(before + bad + 1);
        }
        if is_head && this.framing.head_bytes == 0 {
            this.meter.clear();
        }
        Poll::Ready(Ok(()))
    }
}

atoll_relay::delegate_write!(Strict, io);

/// The position of the next byte in the stream of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserPosition {
    RequestLine,
    Field,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// Not HTTP any more: after an upgrade. Without an upgrade the connection is closed.
    Opaque,
    Refused,
}

/// The input must be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ambiguous;

#[derive(Debug)]
struct Framing {
    at: ParserPosition,
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
    head: Head,
    /// Bytes of an incomplete head.
    head_bytes: usize,
}

/// What the fields so far say about the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Head {
    is_http_10: bool,
    length: Option<u64>,
    is_chunked: bool,
    changes: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self { at: ParserPosition::RequestLine, begun: Vec::new(), head: Head::default(), head_bytes: 0 }
    }
}

impl Framing {
    /// Tracks these bytes; the error is the position of the first forbidden one.
    fn follow(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            done += match self.at {
                ParserPosition::Opaque => return Ok(()),
                ParserPosition::Refused => return Err(done),
                ParserPosition::Body(left) => self.skip(rest, left, ParserPosition::Body),
                ParserPosition::Chunk(left) => self.skip(rest, left, ParserPosition::Chunk),
                ParserPosition::RequestLine | ParserPosition::Field => {
                    let taken = self.line(rest).map_err(|bad| done + bad)?;
                    let goes_on = self.at == ParserPosition::Field || !self.begun.is_empty();
                    self.head_bytes = if goes_on { self.head_bytes + taken } else { 0 };
                    taken
                }
                ParserPosition::ChunkSize | ParserPosition::ChunkEnd | ParserPosition::Trailer => {
                    self.line(rest).map_err(|bad| done + bad)?
                }
            };
        }
        Ok(())
    }

    fn skip(&mut self, rest: &[u8], left: u64, same: fn(u64) -> ParserPosition) -> usize {
        let taken = u64::try_from(rest.len()).unwrap_or(u64::MAX).min(left);
        self.at = match (left - taken, self.at) {
            (0, ParserPosition::Chunk(_)) => ParserPosition::ChunkEnd,
            (0, _) => self.next(),
            (left, _) => same(left),
        };
        usize::try_from(taken).unwrap_or(rest.len())
    }

    fn is_head(&self) -> bool {
        matches!(self.at, ParserPosition::RequestLine | ParserPosition::Field)
    }

    /// Takes one line, or the beginning of one. An error points to its last byte, so that the line never ends.
    fn line(&mut self, rest: &[u8]) -> Result<usize, usize> {
        let Some(end) = memchr::memchr(b'\n', rest) else {
            if self.begun.len() + rest.len() > LINE_MAX {
                return Err(rest.len() - 1);
            }
            self.begun.extend_from_slice(rest);
            return Ok(rest.len());
        };
        let checked = if self.begun.is_empty() {
            self.whole(&rest[..end])
        } else {
            let mut line = std::mem::take(&mut self.begun);
            line.extend_from_slice(&rest[..end]);
            self.whole(&line)
        };
        checked.map(|()| end + 1).map_err(|Ambiguous| end)
    }

    /// A line without its line feed.
    fn whole(&mut self, line: &[u8]) -> Result<(), Ambiguous> {
        let line = line.strip_suffix(b"\r").ok_or(Ambiguous)?;
        if memchr::memchr2(b'\r', POISON, line).is_some() {
            return Err(Ambiguous);
        }
        self.at = match self.at {
            ParserPosition::RequestLine => self.request_line(line)?,
            ParserPosition::Field => self.field(line)?,
            ParserPosition::ChunkSize => chunk_size(line)?,
            ParserPosition::ChunkEnd => {
                if line.is_empty() {
                    ParserPosition::ChunkSize
                } else {
                    return Err(Ambiguous);
                }
            }
            ParserPosition::Trailer => self.trailer(line)?,
            ParserPosition::Body(_)
            | ParserPosition::Chunk(_)
            | ParserPosition::Opaque
            | ParserPosition::Refused => return Err(Ambiguous),
        };
        Ok(())
    }

    fn request_line(&mut self, line: &[u8]) -> Result<ParserPosition, Ambiguous> {
        // Some clients send an empty line after a body; servers skip it.
        if line.is_empty() {
            return Ok(ParserPosition::RequestLine);
        }
        let mut words = line.split(|b| *b == b' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        if words.next().is_some() || target.is_none_or(<[u8]>::is_empty) || !method.is_some_and(is_token) {
            return Err(Ambiguous);
        }
        let is_http_10 = match version {
            Some(b"HTTP/1.1") => false,
            Some(b"HTTP/1.0") => true,
            Some(_) | None => return Err(Ambiguous),
        };
        self.head = Head { is_http_10, changes: method == Some(b"CONNECT"), ..Head::default() };
        Ok(ParserPosition::Field)
    }

    fn field(&mut self, line: &[u8]) -> Result<ParserPosition, Ambiguous> {
        if line.is_empty() {
            return self.body();
        }
        let (name, value) = name_and_value(line)?;
        let head = &mut self.head;
        // By length first, which distinguishes nearly all fields.
        match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = decimal(value).ok_or(Ambiguous)?;
                // Two equal values are not harmless either: other readers may add them or treat the list as one value.
                if head.length.replace(length).is_some() {
                    return Err(Ambiguous);
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                let is_plain = value.eq_ignore_ascii_case(b"chunked") && !head.is_http_10;
                if !is_plain || std::mem::replace(&mut head.is_chunked, true) {
                    return Err(Ambiguous);
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                // An upgrade to HTTP/2 is never made in this way, and the following requests stay HTTP/1.
                head.changes |= !value.get(..2).is_some_and(|two| two.eq_ignore_ascii_case(b"h2"));
            }
            _ => {}
        }
        Ok(ParserPosition::Field)
    }

    /// The position after a head.
    fn body(&mut self) -> Result<ParserPosition, Ambiguous> {
        match (self.head.length, self.head.is_chunked) {
            (Some(_), true) => Err(Ambiguous),
            (None, true) => Ok(ParserPosition::ChunkSize),
            (None | Some(0), false) => Ok(self.next()),
            (Some(length), false) => Ok(ParserPosition::Body(length)),
        }
    }

    fn trailer(&mut self, line: &[u8]) -> Result<ParserPosition, Ambiguous> {
        if line.is_empty() {
            return Ok(self.next());
        }
        let (name, _) = name_and_value(line)?;
        let frames = [&b"content-length"[..], b"transfer-encoding", b"host"];
        if frames.iter().any(|frame| name.eq_ignore_ascii_case(frame)) {
            return Err(Ambiguous);
        }
        Ok(ParserPosition::Trailer)
    }

    /// The position after a message.
    fn next(&self) -> ParserPosition {
        if self.head.changes { ParserPosition::Opaque } else { ParserPosition::RequestLine }
    }
}

/// The length of a chunk, in hexadecimal; an extension after it is skipped.
fn chunk_size(line: &[u8]) -> Result<ParserPosition, Ambiguous> {
    let end = memchr::memchr(b';', line).unwrap_or(line.len());
    let digits = &line[..end];
    let plain = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let is_text = line[end..].iter().all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f));
    if !plain || !is_text || line.len() > CHUNK_LINE_MAX {
        return Err(Ambiguous);
    }
    let text = std::str::from_utf8(digits).map_err(|_| Ambiguous)?;
    match u64::from_str_radix(text, 16).map_err(|_| Ambiguous)? {
        0 => Ok(ParserPosition::Trailer),
        size => Ok(ParserPosition::Chunk(size)),
    }
}

/// `name: value`; no space in or after the name, so no folded line either.
fn name_and_value(line: &[u8]) -> Result<(&[u8], &[u8]), Ambiguous> {
    let colon = memchr::memchr(b':', line).ok_or(Ambiguous)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if is_token(name) { Ok((name, trim(value))) } else { Err(Ambiguous) }
}

/// Without surrounding spaces and tabs; other white space is part of the value.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_token(name: &[u8]) -> bool {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !name.is_empty() && name.iter().all(plain)
}

fn decimal(value: &[u8]) -> Option<u64> {
    let plain = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    if plain { std::str::from_utf8(value).ok()?.parse().ok() } else { None }
}

#[cfg(test)]
#[path = "strict_tests.rs"]
mod tests;
