//! Parses the first TLS message as far as the gate needs it: the requested name, and whether another one may be hidden.
//!
//! ```text
//! record: 16 03 xx len ┐
//! record: 16 03 xx len ┴─► handshake: 01 len24 ─► version random session suites compression extensions
//! ```
//!
//! A message may be split into several records. Everything is bounded, lengths must match exactly, and ambiguous input
//! (an extension twice, two names, data after the message) is refused. Nothing is decrypted.

use std::collections::BTreeSet;

use atoll_model::is_host_name;

/// LIMIT: bytes of a hello with its record headers. Hellos with post-quantum key shares and long tickets need less than
/// a third.
pub(crate) const LONGEST: usize = 24 << 10;
/// LIMIT: records of one hello.
const MOST_RECORDS: usize = 32;
const RECORD_HEADER: usize = 5;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const LONGEST_RECORD: usize = 1 << 14;

const SERVER_NAME: u16 = 0;
/// Encrypted ClientHello, its drafts, and the encrypted SNI before it.
const HIDDEN: [u16; 7] = [0xfe0d, 0xfe0c, 0xfe0b, 0xfe0a, 0xfe09, 0xfe08, 0xffce];

/// The content of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The requested name, in lower case.
    pub(crate) name: Option<String>,
    /// Another name may be hidden inside. A client may also send a dummy extension, which cannot be distinguished.
    pub(crate) hides: bool,
    /// The end of the hello's last record.
    pub(crate) end: usize,
}

/// Why bytes are not a valid hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tls: {0}")]
pub(crate) struct BadHello(pub(crate) &'static str);

type Parsed<T> = Result<T, BadHello>;

impl Hello {
    /// Parses the hello at the beginning of `bytes`; `None` while more bytes are needed.
    pub(crate) fn parse(bytes: &[u8]) -> Parsed<Option<Self>> {
        let Some((message, end)) = gather(bytes)? else { return Ok(None) };
        let (name, hides) = read_message(&message)?;
        Ok(Some(Self { name, hides, end }))
    }
}

/// The end of the last complete record, up to the maximal number of records.
pub(crate) fn whole_records(bytes: &[u8]) -> usize {
    let mut at = 0;
    for _ in 0..=MOST_RECORDS {
        let Some(&[_, _, _, a, b]) = bytes[at..].first_chunk::<RECORD_HEADER>() else { break };
        let end = at + RECORD_HEADER + usize::from(u16::from_be_bytes([a, b]));
        if end > bytes.len() {
            break;
        }
        at = end;
    }
    at
}

/// Assembles the handshake message from its records: the message without its header, and the end of the records.
fn gather(bytes: &[u8]) -> Parsed<Option<(Vec<u8>, usize)>> {
    let mut message = Vec::new();
    let mut at = 0;
    for _ in 0..MOST_RECORDS {
        let rest = &bytes[at..];
        if !could_be_record(rest) {
            return Err(BadHello("not a handshake record"));
        }
        let Some(header) = rest.first_chunk::<RECORD_HEADER>() else { return wait(bytes) };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if len == 0 || len > LONGEST_RECORD {
            return Err(BadHello("a record of a wrong length"));
        }
        let part = &rest[RECORD_HEADER..rest.len().min(RECORD_HEADER + len)];
        message.extend_from_slice(part);
        let whole = message_len(&message)?;
        if part.len() < len {
            return wait(bytes);
        }
        at += RECORD_HEADER + len;
        match whole {
            Some(whole) if message.len() == whole => return Ok(Some((message.split_off(4), at))),
            Some(whole) if message.len() > whole => return Err(BadHello("something after the hello")),
            Some(_) | None => {}
        }
    }
    Err(BadHello("a hello in too many records"))
}

/// Whether the bytes can be the beginning of a handshake record.
fn could_be_record(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|kind| *kind == HANDSHAKE)
        && bytes.get(1).is_none_or(|major| *major == 3)
        && bytes.get(2).is_none_or(|minor| *minor <= 4)
}

fn wait<T>(bytes: &[u8]) -> Parsed<Option<T>> {
    if bytes.len() < LONGEST { Ok(None) } else { Err(BadHello("a hello that is too long")) }
}

/// The length of the message with its header, as soon as it is known.
fn message_len(message: &[u8]) -> Parsed<Option<usize>> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(BadHello("not a client hello"));
    }
    let Some(&[_, a, b, c]) = message.first_chunk::<4>() else { return Ok(None) };
    let len = 4 + (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c));
    if len > LONGEST { Err(BadHello("a hello that is too long")) } else { Ok(Some(len)) }
}

fn read_message(message: &[u8]) -> Parsed<(Option<String>, bool)> {
    let mut rest = Bytes(message);
    let version = rest.u16()?;
    if !(0x0301..=0x0303).contains(&version) {
        return Err(BadHello("a version that is not TLS"));
    }
    rest.take(32)?;
    if rest.short()?.0.len() > 32 {
        return Err(BadHello("a session id that is too long"));
    }
    let suites = rest.long()?.0.len();
    if suites == 0 || suites % 2 == 1 {
        return Err(BadHello("cipher suites of a wrong length"));
    }
    if rest.short()?.0.is_empty() {
        return Err(BadHello("no compression method"));
    }
    if rest.0.is_empty() {
        return Ok((None, false));
    }
    let extensions = rest.long()?;
    rest.end()?;
    read_extensions(extensions)
}

fn read_extensions(mut rest: Bytes<'_>) -> Parsed<(Option<String>, bool)> {
    let (mut name, mut hides, mut seen) = (None, false, BTreeSet::new());
    while !rest.0.is_empty() {
        let kind = rest.u16()?;
        let body = rest.long()?;
        if !seen.insert(kind) {
            return Err(BadHello("an extension twice"));
        }
        if kind == SERVER_NAME {
            name = Some(read_name(body)?);
        }
        hides |= HIDDEN.contains(&kind);
    }
    Ok((name, hides))
}

/// The single host name of the extension. The format allows several names and types of names, but clients send only
/// one.
fn read_name(mut body: Bytes<'_>) -> Parsed<String> {
    let mut list = body.long()?;
    body.end()?;
    if list.take(1)?.0 != [0] {
        return Err(BadHello("a server name of an unknown kind"));
    }
    let name = list.long()?;
    list.end()?;
    let name = std::str::from_utf8(name.0).map_err(|_| BadHello("a server name that is no host name"))?;
    let name = name.to_ascii_lowercase();
    if is_host_name(&name) { Ok(name) } else { Err(BadHello("a server name that is no host name")) }
}

/// A reader of bytes from the front.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Parsed<Bytes<'a>> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BadHello("lengths that do not fit"))?;
        self.0 = rest;
        Ok(Bytes(taken))
    }

    fn u16(&mut self) -> Parsed<u16> {
        let taken = self.take(2)?;
        Ok(u16::from_be_bytes([taken.0[0], taken.0[1]]))
    }

    /// Reads a field with a one-byte length.
    fn short(&mut self) -> Parsed<Bytes<'a>> {
        let len = self.take(1)?.0[0];
        self.take(len.into())
    }

    /// Reads a field with a two-byte length.
    fn long(&mut self) -> Parsed<Bytes<'a>> {
        let len = self.u16()?;
        self.take(len.into())
    }

    fn end(self) -> Parsed<()> {
        if self.0.is_empty() { Ok(()) } else { Err(BadHello("lengths that do not fit")) }
    }
}

#[cfg(test)]
#[path = "hello/tests.rs"]
mod tests;
