//! Messages with descriptors over a SOCK_SEQPACKET socket, independent of their meaning.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// LIMIT: the largest message; a spawn with many layers has a few kilobytes.
pub(crate) const MESSAGE_MAX: usize = 64 * 1024;
/// LIMIT: descriptors in one message.
pub(crate) const DESCRIPTORS_MAX: usize = 32;

/// The two ends of a channel.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one message into `buffer`; `None` when the other side is gone.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(buffer)];
        match rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            // The other side ended with unread data from this side. The kernel reports it once, before the data that
            // the other side has sent.
            Err(rustix::io::Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if message.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is longer than any of ours"));
    }
    // Empty messages are never sent, so an empty read means that the other side is gone.
    Ok((message.bytes > 0).then_some((message.bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_last_words_of_a_side_that_did_not_listen_are_heard() {
        let (a, b) = pair().unwrap();
        send(&a, b"unread", &[]).unwrap();
        send(&b, b"last words", &[]).unwrap();
        drop(b);
        let mut buffer = [0; 64];
        let (length, _) = receive(&a, &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"last words");
        assert!(receive(&a, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&a, b"hello", &[file.as_fd(), b.as_fd()]).unwrap();
        let mut buffer = [0; 64];
        let (length, descriptors) = receive(&b, &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..length], descriptors.len()), (&b"hello"[..], 2));
        drop(descriptors);
        drop(a);
        assert!(receive(&b, &mut buffer).unwrap().is_none());
    }
}
