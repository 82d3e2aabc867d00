//! The last witness: every packet that arrives is counted by its destination, whatever its content and whether or not a
//! process listens.
//! And the echoes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt};
use tokio::net::TcpListener;

use super::PUBLIC;
use crate::poll::PATIENCE;

/// Discard: where markers go.
const MARKER_PORT: u16 = 9;
const UDP: u8 = 17;
/// LIMIT: what may lie in the queue while the counting thread waits for its turn.
const QUEUE_BYTES: usize = 16 << 20;

/// What came to one port of one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Packets.
    pub packets: u64,
    /// Bytes, headers of IP included.
    pub bytes: u64,
}

type Book = BTreeMap<(IpAddr, u8, u16), Arrived>;

/// Counts since it was started.
#[derive(Debug, Clone, Default)]
pub(super) struct Counter(Arc<Mutex<Book>>);

impl Counter {
    /// Starts to count in the namespace of the calling thread.
    pub(super) fn start(&self) {
        let all = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll);
        let all: OwnedFd = all.expect("a packet socket");
        setsockopt(&all, sockopt::RcvBufForce, &QUEUE_BYTES).expect("a long queue");
        let counter = self.clone();
        std::thread::spawn(move || {
            let mut frame = [0; 2048];
            while let Ok(length) = nix::unistd::read(&all, &mut frame) {
                if let Some((key, bytes)) = read_frame(&frame[..length.min(frame.len())]) {
                    let mut book = counter.book();
                    let entry = book.entry(key).or_default();
                    entry.packets += 1;
                    entry.bytes += bytes;
                }
            }
        });
    }

    /// What came to an address, after all that is on the wire now.
    pub(super) fn at(&self, address: IpAddr) -> BTreeMap<(u8, u16), Arrived> {
        self.settle();
        let of = |((to, protocol, port), count): (&(IpAddr, u8, u16), &Arrived)| {
            (*to == address).then_some(((*protocol, *port), *count))
        };
        self.book().iter().filter_map(of).collect()
    }

    pub(super) fn forget(&self) {
        self.book().clear();
    }

    /// Sends a marker after everything else and waits until it was counted.
    pub(super) fn settle(&self) {
        let public: IpAddr = PUBLIC.parse().expect("an address");
        let key = (public, UDP, MARKER_PORT);
        let count = || self.book().get(&key).map_or(0, |count| count.packets);
        let before = count();
        let marker = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
        let started = Instant::now();
        marker.send_to(b"marker", (public, MARKER_PORT)).expect("the wire takes a marker");
        while count() == before {
            assert!(started.elapsed() < PATIENCE, "the witness is blind");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Destination, protocol, destination port (0 where there is none) and length of an Ethernet frame with an IP packet.
fn read_frame(frame: &[u8]) -> Option<((IpAddr, u8, u16), u64)> {
    let kind = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
    let packet = frame.get(14..)?;
    let (to, protocol, header) = match kind {
        0x0800 => {
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            (IpAddr::from(Ipv4Addr::from(to)), *packet.get(9)?, usize::from(packet.first()? & 15) * 4)
        }
        0x86dd => {
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (IpAddr::from(Ipv6Addr::from(to)), *packet.get(6)?, 40)
        }
        _ => return None,
    };
    let has_ports = matches!(protocol, 6 | UDP);
    let port = packet.get(header + 2..header + 4).filter(|_| has_ports);
    let port = port.map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
    Some(((to, protocol, port), packet.len() as u64))
}

/// Gives every datagram back.
pub(super) async fn echo_datagrams(address: IpAddr, port: u16) {
    let socket = tokio::net::UdpSocket::bind((address, port)).await.expect("a port");
    tokio::spawn(async move {
        let mut packet = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut packet).await {
            let _ = socket.send_to(&packet[..length], from).await;
        }
    });
}

/// Gives every stream back, for as long as the other side lives.
pub(super) async fn echo_streams(port: u16) {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.expect("a port");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
}

/// Hands every stream on to an address.
pub(super) async fn relay_streams(port: u16, to: SocketAddr) {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.expect("a port");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut far) = tokio::net::TcpStream::connect(to).await {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
                }
            });
        }
    });
}
