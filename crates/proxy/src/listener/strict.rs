//! Strict HTTP/1: what can be read in two ways is refused before anybody reads it.
//!
//! The parser behind this one is lenient where RFC 9112 lets it be: it takes a bare line feed for the end of a line, and
//! a length beside chunks for nothing. So every byte of a connection passes here first, in place and without a copy; this
//! only follows where heads and bodies begin and end. The first byte that must not pass is replaced by a NUL and is the
//! last one: the parser answers 400 to that, after the requests before it, and closes.
//!
//! ```text
//! request line ─ fields ─┬─ no body ───────────────────────► next request line
//!                        ├─ Content-Length ─ bytes ────────►   "  (or opaque, where the head asked to change protocol)
//!                        └─ chunked ─ size, bytes, … ─ trailers ─► "
//! ```
//!
//! Never: buffers a body, or decides by what it does not understand that something is fine.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use atoll_relay::stream::{poll_read_at_most, read_ahead};
use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use super::strangers::HeadMeter;

/// LIMIT: a line that is split over reads is kept until its end; the parser's own limits come first and answer 431.
const LINE_MAX: usize = 512 << 10;
/// LIMIT: how much of a head is read at a time; more is read when there is room for it.
pub(super) const HEAD_STEP: usize = 4 << 10;
/// LIMIT: of the line before a chunk; extensions mean nothing to us.
const CHUNK_LINE_MAX: usize = 256;
/// What no head may hold, so that the parser refuses it.
const POISON: u8 = 0;

/// A connection of which only unambiguous requests can be read.
#[derive(Debug)]
pub(crate) struct Strict<I> {
    io: I,
    /// What was read to find out which protocol this is.
    first: Bytes,
    framing: Framing,
    /// Counts heads that are not whole.
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

/// Where in the stream of requests the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserPosition {
    RequestLine,
    Field,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// No HTTP any more: after an upgrade. Whoever does not upgrade closes.
    Opaque,
    Refused,
}

/// Must not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ambiguous;

#[derive(Debug)]
struct Framing {
    at: ParserPosition,
    /// The beginning of a line whose end was not read yet.
    begun: Vec<u8>,
    head: Head,
    /// Of a head that is not whole.
    head_bytes: usize,
}

/// What the fields so far say of what follows.
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
    /// Follows these bytes; the error is the first one that must not pass.
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

    /// Takes one line, or the beginning of one. An error points at its last byte, so that the line never ends.
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
        // Some clients send an empty line behind a body; a server passes over it.
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
        // By length first: nearly every field is told apart by that alone.
        match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = decimal(value).ok_or(Ambiguous)?;
                // Twice the same is not harmless either: others may add them up or take the list for one.
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
                // HTTP/2 is never changed to in this way, and what follows stays HTTP/1.
                head.changes |= !value.get(..2).is_some_and(|two| two.eq_ignore_ascii_case(b"h2"));
            }
            _ => {}
        }
        Ok(ParserPosition::Field)
    }

    /// What follows a head.
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

    /// After a message.
    fn next(&self) -> ParserPosition {
        if self.head.changes { ParserPosition::Opaque } else { ParserPosition::RequestLine }
    }
}

/// The length of a chunk, in hexadecimal; an extension behind it is passed over.
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

/// `name: value`; no space in or behind the name, so no folded line either.
fn name_and_value(line: &[u8]) -> Result<(&[u8], &[u8]), Ambiguous> {
    let colon = memchr::memchr(b':', line).ok_or(Ambiguous)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if is_token(name) { Ok((name, trim(value))) } else { Err(Ambiguous) }
}

/// Without spaces and tabs around it; other white space is part of the value.
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
