//! Sends one query upstream and returns its answer, over UDP or TCP.
//!
//! Each query uses a new, connected socket and a random id: an answer must come from the queried server, to a random
//! port and with a random id.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::message::{LONGEST_UDP_ANSWER, Question};
use super::upstream::Upstreams;

/// The deadline per server; with three servers a sandbox's resolver (5 s) still gets an answer in time.
const SERVER_DEADLINE: Duration = Duration::from_millis(1500);

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// The first answer of one of the servers; `None` if none answers.
pub(crate) async fn ask(question: &Question, upstreams: &Upstreams, transport: Transport) -> Option<Vec<u8>> {
    for server in upstreams.servers() {
        let asked = async {
            match transport {
                Transport::Udp => ask_udp(question, server).await,
                Transport::Tcp => ask_tcp(question, server).await,
            }
        };
        match timeout(SERVER_DEADLINE, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%server, %error, ?transport, "a name server did not answer"),
            Err(_) => tracing::debug!(%server, ?transport, "a name server did not answer in time"),
        }
    }
    None
}

async fn ask_udp(question: &Question, server: SocketAddr) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Connected: the kernel drops packets from other sources.
    socket.connect(server).await?;
    let id = random_id()?;
    socket.send(&question.with_id(id)).await?;
    let mut buffer = vec![0u8; LONGEST_UDP_ANSWER];
    loop {
        let len = socket.recv(&mut buffer).await?;
        if let Some(answer) = question.accept(id, buffer[..len].to_vec()) {
            return Ok(answer);
        }
    }
}

async fn ask_tcp(question: &Question, server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let id = random_id()?;
    write_framed(&mut stream, &question.with_id(id)).await?;
    let answer = read_framed(&mut stream, usize::from(u16::MAX)).await?;
    question.accept(id, answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

pub(crate) async fn read_framed(stream: &mut TcpStream, longest: usize) -> io::Result<Vec<u8>> {
    let len = usize::from(stream.read_u16().await?);
    if len > longest {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0u8; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

pub(crate) async fn write_framed(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let len = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    // One write, so that length and message are sent in one packet.
    let mut framed = Vec::with_capacity(2 + bytes.len());
    framed.extend_from_slice(&len.to_be_bytes());
    framed.extend_from_slice(bytes);
    stream.write_all(&framed).await
}

fn random_id() -> io::Result<[u8; 2]> {
    let mut id = [0u8; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    Ok(id)
}
