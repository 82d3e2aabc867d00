//! Name service for sandboxes: listens on the gateway address inside the router namespace and passes questions on
//! to the host's own name servers, from sockets in the host's namespace.
//!
//! It relays bytes. It checks that a question is one and that an answer is the answer to it; it keeps no cache and
//! decides nothing about names. Whether a sandbox may ask at all is decided by the firewall in front of it.
//! Every wait has a deadline, every count a limit, per sandbox and in all.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::address::GATEWAY;
use crate::netns;

mod message;
mod relay;
mod upstream;

pub use upstream::Upstreams;

/// LIMIT: questions under way in all; each holds a socket for up to some seconds.
const IN_FLIGHT: usize = 1024;
/// LIMIT: questions under way of one sandbox, so that one cannot take all the places.
const IN_FLIGHT_PER_SANDBOX: usize = 64;
/// How long to pause when receiving or accepting fails, so that a lasting error does not take a core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
const PORT: u16 = 53;

/// The listening sockets, made inside the router namespace.
#[derive(Debug)]
pub struct DnsForwarder {
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
    upstreams: Arc<Upstreams>,
}

impl DnsForwarder {
    /// Binds UDP and TCP port 53 of the gateway address inside `router`.
    pub fn bind(router: BorrowedFd<'_>, upstreams: Upstreams) -> io::Result<Self> {
        let (udp, tcp) = netns::run_in(router, || -> io::Result<_> {
            Ok((std::net::UdpSocket::bind((GATEWAY, PORT))?, std::net::TcpListener::bind((GATEWAY, PORT))?))
        })??;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { udp, tcp, upstreams: Arc::new(upstreams) })
    }

    /// Serves until the future is dropped; everything it started ends with it.
    pub async fn run(self) -> io::Result<()> {
        let udp = Arc::new(UdpSocket::from_std(self.udp)?);
        let tcp = TcpListener::from_std(self.tcp)?;
        let places = Places::default();
        tokio::try_join!(serve_udp(udp, &self.upstreams, &places), serve_tcp(tcp, &self.upstreams, &places))?;
        Ok(())
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, upstreams: &Arc<Upstreams>, places: &Places) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    let mut buffer = [0u8; message::LONGEST_QUESTION + 1];
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            // It belongs to an answer sent before; the socket itself goes on.
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(question) = message::Question::parse(&buffer[..len]) else { continue };
        let Some(place) = places.take(from.ip()) else {
            let _ = socket.try_send_to(&question.failure(), from);
            continue;
        };
        let (socket, upstreams) = (Arc::clone(&socket), Arc::clone(upstreams));
        tasks.spawn(async move {
            let answer = relay::ask_udp(&question, &upstreams).await;
            let _ = socket.send_to(&answer, from).await;
            drop(place);
        });
    }
}

async fn serve_tcp(listener: TcpListener, upstreams: &Arc<Upstreams>, places: &Places) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(place) = places.take(from.ip()) else { continue };
        let upstreams = Arc::clone(upstreams);
        tasks.spawn(async move {
            relay::serve_stream(stream, SocketAddr::ip(&from), &upstreams).await;
            drop(place);
        });
    }
}

/// How many places each sandbox holds.
#[derive(Clone, Debug, Default)]
struct Places(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Places {
    fn take(&self, who: IpAddr) -> Option<Place> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let in_all: usize = held.values().sum();
        let count = held.get(&who).copied().unwrap_or_default();
        if in_all >= IN_FLIGHT || count >= IN_FLIGHT_PER_SANDBOX {
            return None;
        }
        held.insert(who, count + 1);
        Some(Place { places: self.clone(), who })
    }
}

/// One place, given back when dropped.
struct Place {
    places: Places,
    who: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(held.remove(&self.who)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_cannot_take_every_place() {
        let places = Places::default();
        let (greedy, modest) = (IpAddr::from([100, 64, 0, 1]), IpAddr::from([100, 64, 0, 2]));
        let taken: Vec<_> = std::iter::from_fn(|| places.take(greedy)).collect();
        assert_eq!(taken.len(), IN_FLIGHT_PER_SANDBOX);
        assert!(places.take(modest).is_some());
        drop(taken);
        assert!(places.0.lock().is_ok_and(|held| held.is_empty()));
    }
}
