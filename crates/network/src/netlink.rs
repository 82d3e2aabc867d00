//! Netlink: a socket in one namespace, messages built into one buffer, answers checked one by one.
//!
//! This module frames and sends messages and matches answers; their meaning is in [`route`] and [`nft`]. Every wait has
//! a deadline, and only messages from the kernel are accepted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::netns;

pub(crate) mod nft;
pub(crate) mod qdisc;
pub(crate) mod route;

pub(crate) const F_REQUEST: u16 = 0x1;
pub(crate) const F_ACK: u16 = 0x4;
pub(crate) const F_EXCL: u16 = 0x200;
pub(crate) const F_REPLACE: u16 = 0x100;
pub(crate) const F_CREATE: u16 = 0x400;
pub(crate) const F_APPEND: u16 = 0x800;
pub(crate) const F_DUMP: u16 = 0x300;
const F_DUMP_INTR: u16 = 0x10;

const MSG_ERROR: u16 = 2;
const MSG_DONE: u16 = 3;
const HEADER_LEN: usize = 16;
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;

/// LIMIT: the kernel answers while it handles the request; five seconds without an answer indicate a kernel problem.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// LIMIT: the kernel never sends more than 32 KiB per datagram of a dump.
const RECEIVE_LEN: usize = 64 * 1024;
/// A dump that was disturbed by a change is repeated this often.
const DUMP_TRIES: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    Route,
    Netfilter,
}

/// A netlink socket. It belongs permanently to the network namespace in which it was made.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    next_seq: u32,
    receive: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread.
    pub(crate) fn open(family: Family) -> io::Result<Self> {
        let protocol = match family {
            // NETLINK_ROUTE is protocol 0, which `None` stands for.
            Family::Route => None,
            Family::Netfilter => Some(netlink::NETFILTER),
        };
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        // Connected to port 0, so that no other process can inject an answer.
        rustix::net::connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(ANSWER_DEADLINE))?;
        Ok(Self { fd, next_seq: 1, receive: vec![0; RECEIVE_LEN] })
    }

    /// Opens a socket in another namespace; the calling thread enters it only for one `socket` call.
    pub(crate) fn open_in(family: Family, namespace: BorrowedFd<'_>) -> io::Result<Self> {
        netns::briefly_in(namespace, || Self::open(family))
    }

    /// Sends everything in `batch` with one call and collects one answer per message that requests one.
    ///
    /// The result has one entry per acknowledged message, in order.
    pub(crate) fn call(&mut self, batch: &mut Batch) -> io::Result<Vec<io::Result<()>>> {
        let first = self.number(batch);
        self.send(batch)?;
        let mut answers: Vec<Option<io::Result<()>>> = Vec::with_capacity(batch.starts.len());
        answers.resize_with(batch.starts.len(), || None);
        let mut missing = batch.acks;
        while missing > 0 {
            let len = self.receive_datagram()?;
            for message in Messages::new(&self.receive[..len]).filter(|message| message.kind == MSG_ERROR) {
                let at = message.seq.wrapping_sub(first) as usize;
                let Some(place) = answers.get_mut(at).filter(|place| place.is_none()) else { continue };
                if !batch.wants_ack(at) {
                    // An error for the frame of a transaction: the whole transaction failed, and no further answer
                    // follows.
                    message.error()?;
                    continue;
                }
                *place = Some(message.error());
                missing -= 1;
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Sends `batch` and fails with the first error the kernel reports for any of its messages.
    pub(crate) fn call_all(&mut self, batch: &mut Batch) -> io::Result<()> {
        self.call(batch)?.into_iter().collect()
    }

    /// Sends one dump request and passes every message of the answer to `visit`.
    pub(crate) fn dump(
        &mut self,
        batch: &mut Batch,
        mut visit: impl FnMut(&Message<'_>),
    ) -> io::Result<DumpEnd> {
        let seq = self.number(batch);
        self.send(batch)?;
        let mut end = DumpEnd::Complete;
        loop {
            let len = self.receive_datagram()?;
            for message in Messages::new(&self.receive[..len]).filter(|message| message.seq == seq) {
                if message.flags & F_DUMP_INTR != 0 {
                    end = DumpEnd::Interrupted;
                }
                match message.kind {
                    MSG_DONE => return Ok(end),
                    MSG_ERROR => return message.error().map(|()| end),
                    _ => visit(&message),
                }
            }
        }
    }

    /// Repeats a dump until it was not disturbed by a change; `collect` starts again each time.
    pub(crate) fn dump_steady<T>(
        &mut self,
        mut request: impl FnMut() -> Batch,
        mut collect: impl FnMut(&Message<'_>, &mut Vec<T>),
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            let mut found = Vec::new();
            if self.dump(&mut request(), |message| collect(message, &mut found))? == DumpEnd::Complete {
                return Ok(found);
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "the kernel's table kept changing while it was read"))
    }

    fn number(&mut self, batch: &mut Batch) -> u32 {
        let first = self.next_seq;
        for &start in &batch.starts {
            batch.bytes[start + 8..start + 12].copy_from_slice(&self.next_seq.to_ne_bytes());
            self.next_seq = self.next_seq.wrapping_add(1);
        }
        first
    }

    fn send(&self, batch: &Batch) -> io::Result<()> {
        let sent = rustix::net::send(&self.fd, &batch.bytes, SendFlags::empty())?;
        if sent == batch.bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn receive_datagram(&mut self) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.fd, &mut self.receive[..], RecvFlags::empty()) {
                Ok((len, _)) => return Ok(len),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the table was unchanged during the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpEnd {
    Complete,
    Interrupted,
}

/// Several netlink messages in one buffer, sent with one call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    acks: usize,
}

/// The start of a nested attribute, to be closed by [`Batch::close`].
#[must_use]
pub(crate) struct Nest(usize);

impl Batch {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::with_capacity(512), starts: Vec::with_capacity(6), acks: 0 }
    }

    /// Starts a message; `header` is the fixed part that follows the netlink header.
    pub(crate) fn message(&mut self, kind: u16, flags: u16, header: &[u8]) {
        self.pad();
        self.starts.push(self.bytes.len());
        self.acks += usize::from(flags & F_ACK != 0);
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.bytes.extend_from_slice(header);
        self.pad();
        self.set_len();
    }

    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(4 + value.len()).expect("attributes of this crate are short");
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self.set_len();
    }

    /// A string with its final zero, as the kernel expects names.
    pub(crate) fn attr_name(&mut self, kind: u16, name: &str) {
        let mut value = [0u8; 64];
        let len = name.len().min(63);
        value[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.attr(kind, &value[..=len]);
    }

    pub(crate) fn open(&mut self, kind: u16) -> Nest {
        let start = self.bytes.len();
        self.attr(kind | NESTED, &[]);
        Nest(start)
    }

    /// A fixed header within a nested attribute, as in a veth peer.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self.set_len();
    }

    pub(crate) fn close(&mut self, nest: Nest) {
        let len = u16::try_from(self.bytes.len() - nest.0).expect("nests of this crate are short");
        self.bytes[nest.0..nest.0 + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// Requests an answer to the last message.
    pub(crate) fn acknowledge_last(&mut self) {
        let Some(start) = self.starts.last() else { return };
        let flags = u16_at(&self.bytes, start + 6).unwrap_or_default();
        if flags & F_ACK == 0 {
            self.bytes[start + 6..start + 8].copy_from_slice(&(flags | F_ACK).to_ne_bytes());
            self.acks += 1;
        }
    }

    fn wants_ack(&self, number: usize) -> bool {
        let flags = self.starts.get(number).and_then(|start| u16_at(&self.bytes, start + 6));
        flags.is_some_and(|flags| flags & F_ACK != 0)
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn set_len(&mut self) {
        let start = *self.starts.last().expect("a message was started");
        let len = u32::try_from(self.bytes.len() - start).expect("messages of this crate are short");
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }
}

/// One message of an answer.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    flags: u16,
    seq: u32,
    pub(crate) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes after a fixed header of `skip` bytes.
    pub(crate) fn attrs(&self, skip: usize) -> Attrs<'a> {
        Attrs(self.body.get(skip..).unwrap_or_default())
    }

    fn error(&self) -> io::Result<()> {
        match self.body.first_chunk::<4>().map(|bytes| i32::from_ne_bytes(*bytes)) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = u32_at(self.0, 0)? as usize;
        let whole = self.0.get(..len).filter(|whole| whole.len() >= HEADER_LEN)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            seq: u32_at(whole, 8)?,
            body: &whole[HEADER_LEN..],
        })
    }
}

/// Walks attributes; stops at the first malformed one.
#[derive(Clone, Debug)]
pub(crate) struct Attrs<'a>(pub(crate) &'a [u8]);

impl<'a> Attrs<'a> {
    pub(crate) fn find(&self, kind: u16) -> Option<&'a [u8]> {
        self.clone().find_map(|(found, value)| (found == kind).then_some(value))
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let len = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & KIND_MASK;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The text before the first zero byte.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_message_is_read_back_as_it_was_built() {
        let mut batch = Batch::new();
        batch.message(16, F_ACK, &[1, 2, 3, 4]);
        batch.attr_name(3, "eth0");
        let nest = batch.open(18);
        batch.attr(1, &7u32.to_ne_bytes());
        batch.close(nest);
        batch.message(17, 0, &[]);
        let messages: Vec<_> = Messages::new(&batch.bytes).collect();
        assert_eq!(messages.len(), 2);
        let attrs = messages[0].attrs(4);
        assert_eq!(text(attrs.find(3).unwrap()), Some("eth0"));
        assert_eq!(u32_at(Attrs(attrs.find(18).unwrap()).find(1).unwrap(), 0), Some(7));
    }

    #[test]
    fn malformed_answers_end_the_walk_and_never_panic() {
        for len in [0u32, 1, 15, 17, 4096, u32::MAX] {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&[0xff; 12]);
            assert_eq!(Messages::new(&bytes).count(), 0);
        }
        assert_eq!(Attrs(&[3, 0, 1, 0, 9, 9]).count(), 0);
        assert_eq!(Attrs(&[0xff, 0xff, 1, 0]).count(), 0);
    }
}
