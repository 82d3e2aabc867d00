//! After a restore: closes, on both sides, the TCP connections whose other end is not in the sandbox.
//!
//! Their peers (hosts outside, and the server's own connections) have not been restored. Without this, a reader would
//! wait for ever. When the kernel closes the connection, the reader gets an error at once, and the peer gets a reset if
//! it still exists. Connections within the sandbox stay.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const TCP: u8 = 6;
const HEADER: usize = 16;
/// Family, protocol, extensions, padding, states; then the socket's id.
const ASK: usize = 8;
/// Ports, addresses, interface and cookie.
const ID: usize = 48;
/// States of a connection that can carry data: established, and both sides of opening and closing.
const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// The other end sends nothing more: close wait, last ack, closing.
const ENDED: u32 = 1 << 8 | 1 << 9 | 1 << 11;

/// One connected socket as the kernel names it.
struct ConnectedSocket {
    family: u8,
    state: u8,
    id: [u8; ID],
    local: SocketAddr,
    remote: SocketAddr,
}

/// Closes every connection that has only one end in the network namespace; returns how many. The processes must be
/// frozen.
pub(crate) fn close_halves(namespace: BorrowedFd<'_>) -> io::Result<usize> {
    close_where(namespace, |_, is_half| is_half)
}

/// Closes every connection to a port of the sandbox whose other end is gone or has ended; returns how many. The other
/// end of such a connection is in the same namespace and belongs to a process of the sandbox or to a server that
/// connected to it.
pub(crate) fn close_abandoned(namespace: BorrowedFd<'_>, port: u16) -> io::Result<usize> {
    close_where(namespace, |one, is_half| {
        let is_ours =
            one.local.port() == port && one.local.ip().is_loopback() && one.remote.ip().is_loopback();
        is_ours && (is_half || 1 << one.state & ENDED != 0)
    })
}

/// The second argument of `which` says whether the other end is missing in the namespace.
fn close_where(
    namespace: BorrowedFd<'_>,
    which: impl Fn(&ConnectedSocket, bool) -> bool + Sync,
) -> io::Result<usize> {
    atoll_network::netns::run_in(namespace, || {
        let socket = open()?;
        let mut found = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            found.extend(list(&socket, family)?);
        }
        let ends: HashSet<(SocketAddr, SocketAddr)> =
            found.iter().map(|one| (one.local, one.remote)).collect();
        let is_half = |one: &ConnectedSocket| !ends.contains(&(one.remote, one.local));
        let mut closed = 0;
        for one in found.iter().filter(|one| which(one, is_half(one))) {
            destroy(&socket, one)?;
            closed += 1;
        }
        Ok(closed)
    })?
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

fn request(kind: u16, flags: u16, family: u8, id: Option<&[u8; ID]>) -> Vec<u8> {
    let length = (HEADER + ASK + ID) as u32;
    let mut message = Vec::with_capacity(HEADER + ASK + ID);
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&1u32.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(&[family, TCP, 0, 0]);
    message.extend_from_slice(&CONNECTED.to_ne_bytes());
    message.extend_from_slice(id.unwrap_or(&[0; ID]));
    message
}

fn list(socket: &OwnedFd, family: u8) -> io::Result<Vec<ConnectedSocket>> {
    rustix::net::send(socket, &request(BY_FAMILY, DUMP, family, None), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let (length, _) = rustix::net::recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((kind, body, after)) = next(rest) {
            match kind {
                DONE => return Ok(found),
                ERROR => return Err(failure(body).err().unwrap_or_else(|| io::ErrorKind::Other.into())),
                _ => found.extend(read(body)),
            }
            rest = after;
        }
    }
}

fn destroy(socket: &OwnedFd, one: &ConnectedSocket) -> io::Result<()> {
    rustix::net::send(socket, &request(DESTROY, ACK, one.family, Some(&one.id)), SendFlags::empty())?;
    let mut buffer = vec![0; 8 * 1024];
    let (length, _) = rustix::net::recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())?;
    match next(&buffer[..length]) {
        Some((ERROR, body, _)) => match failure(body) {
            // The socket has been closed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The kind and body of the first message, and the bytes after it.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn failure(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(libc::EIO, i32::from_ne_bytes);
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}

fn read(body: &[u8]) -> Option<ConnectedSocket> {
    let (family, state) = (*body.first()?, *body.get(1)?);
    let id: [u8; ID] = body.get(4..4 + ID)?.try_into().ok()?;
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    Some(ConnectedSocket {
        family,
        state,
        id,
        local: SocketAddr::new(address(family, &id[4..20])?, port(0)),
        remote: SocketAddr::new(address(family, &id[20..36])?, port(2)),
    })
}

/// An IPv4 address that is mapped into IPv6 counts as the IPv4 address.
fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    if i32::from(family) == libc::AF_INET {
        return Some(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[..4]).ok()?).into());
    }
    Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)).to_canonical())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_with_both_ends_stays_and_a_half_one_is_closed() {
        let namespace = atoll_network::netns::create().unwrap();
        let (whole, mut half) = atoll_network::netns::run_in(namespace.as_fd(), || {
            atoll_network::loopback_up().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap();
            let whole = (TcpStream::connect(at).unwrap(), listener.accept().unwrap().0);
            let half = TcpStream::connect(at).unwrap();
            let other = listener.accept().unwrap().0;
            // As after a restore: one end is missing.
            rustix::net::sockopt::set_socket_linger(&other, Some(std::time::Duration::ZERO)).unwrap();
            (whole, (half, other))
        })
        .unwrap();
        assert_eq!(close_halves(namespace.as_fd()).unwrap(), 0, "all have both ends");
        // The kernel would inform the other end; destroying one socket directly shows that destroying works.
        let socket = atoll_network::netns::run_in(namespace.as_fd(), open).unwrap().unwrap();
        let wanted = half.0.local_addr().unwrap();
        let found = list(&socket, libc::AF_INET as u8).unwrap();
        let one = found.iter().find(|one| one.local == wanted).unwrap();
        destroy(&socket, one).unwrap();
        assert!(half.0.read(&mut [0; 1]).is_err());
        drop(whole);
    }

    #[test]
    fn a_connection_to_the_agent_that_its_dialler_ended_is_closed_and_no_other() {
        let namespace = atoll_network::netns::create().unwrap();
        let (agent, other) = atoll_network::netns::run_in(namespace.as_fd(), || {
            atoll_network::loopback_up().unwrap();
            let pair = || {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (dialled, listener.accept().unwrap().0)
            };
            (pair(), pair())
        })
        .unwrap();
        let port = agent.1.local_addr().unwrap().port();
        assert_eq!(close_abandoned(namespace.as_fd(), port).unwrap(), 0, "the other end is open");
        // Both clients end; only the connection to that port is closed, and the data of the other one can still be
        // read.
        let (mut cut, mut kept) = (agent.1, other.1);
        (&other.0).write_all(b"said").unwrap();
        drop((agent.0, other.0));
        assert_eq!(close_abandoned(namespace.as_fd(), port).unwrap(), 1);
        // The peer has ended, so a read returns the end of the stream; a write fails because the connection is closed.
        assert!(cut.write_all(b"x").is_err());
        let mut said = String::new();
        kept.read_to_string(&mut said).unwrap();
        assert_eq!(said, "said");
    }
}
