//! DNS for sandboxes: listens on the gateway address inside the router namespace, decides by the sandbox's policy, and
//! asks the host's name servers from sockets in the host's namespace.
//!
//! ```text
//! sandbox ── query ── whose? allowed? ── upstream ── addresses ── opened in the kernel ── new answer
//! ```
//!
//! There is no cache. Every wait has a deadline, every count a limit, per sandbox and in total.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::gate::{Guests, source};

mod decide;
mod message;
mod query;
mod relay;
mod upstream;

pub use upstream::Upstreams;

/// LIMIT: queries in flight in total; each holds a socket for up to some seconds.
const IN_FLIGHT: usize = 1024;
/// LIMIT: queries in flight of one sandbox, so that one sandbox cannot take all slots.
const IN_FLIGHT_PER_SANDBOX: usize = 64;
/// LIMIT: queries over one connection; a client with more opens another.
const QUESTIONS_PER_STREAM: usize = 64;
/// How long a sandbox may take to send the next query on its connection.
const IDLE_DEADLINE: Duration = Duration::from_secs(5);
/// How long to pause when receiving or accepting fails, so that a permanent error does not use a whole core.
pub(crate) const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
pub(crate) const PORT: u16 = 53;

/// Answers queries over UDP until dropped.
pub(crate) async fn serve_udp(
    socket: Arc<UdpSocket>,
    upstreams: &Arc<Upstreams>,
    guests: &Guests,
    places: &QueryLimiter,
) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    let mut buffer = [0u8; message::LONGEST_QUESTION + 1];
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            // The error belongs to an earlier answer; the socket still works.
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(question) = message::Question::parse(&buffer[..len]) else { continue };
        let Some(guest) = source(from).and_then(|address| guests.find(address)) else { continue };
        let Some(place) = places.take(guest.link.address) else {
            let _ = socket.try_send_to(&question.failure(), from);
            continue;
        };
        let (socket, upstreams) = (Arc::clone(&socket), Arc::clone(upstreams));
        tasks.spawn(async move {
            let answer = decide::answer(&question, &guest, &upstreams, relay::Transport::Udp).await;
            let _ = socket.send_to(&answer, from).await;
            drop(place);
        });
    }
}

/// Answers queries over TCP until dropped.
pub(crate) async fn serve_tcp(
    listener: TcpListener,
    upstreams: &Arc<Upstreams>,
    guests: &Guests,
    places: &QueryLimiter,
) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(address) = source(from) else { continue };
        let Some(place) = places.take(address) else { continue };
        let (upstreams, guests) = (Arc::clone(upstreams), guests.clone());
        tasks.spawn(async move {
            serve_stream(stream, address, &guests, &upstreams).await;
            drop(place);
        });
    }
}

/// Answers the queries of one connection, one after the other.
async fn serve_stream(mut stream: TcpStream, from: Ipv4Addr, guests: &Guests, upstreams: &Upstreams) {
    for _ in 0..QUESTIONS_PER_STREAM {
        let read = timeout(IDLE_DEADLINE, relay::read_framed(&mut stream, message::LONGEST_QUESTION)).await;
        let Ok(Ok(bytes)) = read else { return };
        // Looked up for each query: the sandbox may be gone, and another may have its address.
        let Some(guest) = guests.find(from) else { return };
        let Some(question) = message::Question::parse(&bytes) else {
            tracing::debug!(%from, "a sandbox sent a packet that is not a DNS question");
            return;
        };
        let answer = decide::answer(&question, &guest, upstreams, relay::Transport::Tcp).await;
        match timeout(IDLE_DEADLINE, relay::write_framed(&mut stream, &answer)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// Counts the slots that each sandbox holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryLimiter(Arc<Mutex<QueryCounts>>);

#[derive(Debug, Default)]
struct QueryCounts {
    in_all: usize,
    by_sandbox: HashMap<Ipv4Addr, usize>,
}

impl QueryLimiter {
    fn take(&self, who: Ipv4Addr) -> Option<QueryPermit> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.by_sandbox.get(&who).copied().unwrap_or_default();
        if held.in_all >= IN_FLIGHT || count >= IN_FLIGHT_PER_SANDBOX {
            return None;
        }
        held.in_all += 1;
        held.by_sandbox.insert(who, count + 1);
        Some(QueryPermit { places: self.clone(), who })
    }
}

/// One slot, given back when dropped.
struct QueryPermit {
    places: QueryLimiter,
    who: Ipv4Addr,
}

impl Drop for QueryPermit {
    fn drop(&mut self) {
        let mut held = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.in_all -= 1;
        match held.by_sandbox.get_mut(&self.who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(held.by_sandbox.remove(&self.who)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_cannot_take_every_place() {
        let places = QueryLimiter::default();
        let (greedy, modest) = (Ipv4Addr::new(100, 64, 0, 1), Ipv4Addr::new(100, 64, 0, 2));
        let taken: Vec<_> = std::iter::from_fn(|| places.take(greedy)).collect();
        assert_eq!(taken.len(), IN_FLIGHT_PER_SANDBOX);
        assert!(places.take(modest).is_some());
        drop(taken);
        assert!(places.0.lock().is_ok_and(|held| held.by_sandbox.is_empty() && held.in_all == 0));
    }
}
