//! Serves one connection that the kernel redirected to the gate: peek, decide, forward.
//!
//! | begins with | passes if |
//! |---|---|
//! | TLS hello | its name is allowed, the address is a fresh answer for it, and no name is hidden |
//! | TLS hello of a changed name | the same; TLS is terminated here |
//! | HTTP request | each request's host is allowed and the address is a fresh answer for it |
//! | anything | the address is also reachable without the gate |

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{EgressVerdict, EgressWhat};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::flow::{FlowCarrier, MeteredStream};
use super::guest::{EgressRefusal, Visit};
use super::hello::Hello;
use super::http::RequestForm;
use super::outbound::{self, Outbound};
use super::peek::{self, ConnectionStart};
use super::tunnel::{self, VetError};

/// How long to wait for a client if the server may speak first.
const PATIENCE: Duration = Duration::from_millis(300);
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(15);
const FAREWELL_DEADLINE: Duration = Duration::from_secs(2);
/// A fatal alert, "access denied": TLS clients print it.
const ACCESS_DENIED: &[u8] = &[21, 3, 1, 0, 2, 2, 49];
/// A fatal alert, "internal error": the proxy on the way out failed, not the server.
const PROXY_FAILED: &[u8] = &[21, 3, 1, 0, 2, 2, 80];

/// Why a flow was refused or broke.
enum FlowError {
    Refused {
        what: EgressWhat,
        rule: String,
        name: Option<String>,
    },
    Failed {
        what: EgressWhat,
        rule: String,
        name: Option<String>,
    },
    /// A side ended it; the traffic is recorded.
    Ended,
    /// There was no traffic, and the reason is recorded already.
    Told,
}

/// The original destination of a connection, from the kernel.
pub(crate) fn original(stream: &TcpStream) -> io::Result<SocketAddrV4> {
    Ok(rustix::net::sockopt::ip_original_dst(stream)?)
}

/// Serves one connection to its end, and records it.
pub(crate) async fn serve(stream: TcpStream, visit: Visit, outbound: &Outbound) {
    let (guest, flow) = (&visit.guest, &visit.flow);
    let carried = async {
        match carry(stream, &visit, outbound).await {
            Ok(()) | Err(FlowError::Ended) => {}
            Err(FlowError::Told) => return,
            Err(FlowError::Refused { what, rule, name }) => {
                guest.log(flow.decision(what, EgressVerdict::Refused, &rule, name));
                return;
            }
            Err(FlowError::Failed { what, rule, name }) => {
                guest.log(flow.decision(what, EgressVerdict::Failed, &rule, name));
                return;
            }
        }
        flow.record().into_iter().for_each(|record| guest.log(record));
    };
    tokio::select! {
        () = carried => {}
        // Dropping the future closes both sides.
        () = flow.ended.cancelled() => flow.record().into_iter().for_each(|record| guest.log(record)),
        () = flow.watch(|record| guest.log(record)) => flow.record().into_iter().for_each(|record| guest.log(record)),
    }
}

async fn carry(mut stream: TcpStream, visit: &Visit, outbound: &Outbound) -> Result<(), FlowError> {
    outbound::prepare(&stream).map_err(|_| FlowError::Ended)?;
    let patience = visit.guest.reaches_directly(visit.flow.address()).then_some(PATIENCE);
    let (begins, bytes) = peek::peek(&mut stream, patience).await.map_err(|_| FlowError::Ended)?;
    match begins {
        ConnectionStart::Tls(hello) => carry_tls(stream, bytes, hello, visit, outbound).await,
        ConnectionStart::Http => Box::pin(carry_http(stream, bytes, visit, outbound)).await,
        ConnectionStart::Other(rule) => carry_unknown(stream, bytes, &rule, visit, outbound).await,
        ConnectionStart::Silent => {
            carry_unknown(stream, bytes, "neither tls nor http", visit, outbound).await
        }
    }
}

async fn carry_tls(
    mut stream: TcpStream,
    bytes: BytesMut,
    hello: Hello,
    visit: &Visit,
    outbound: &Outbound,
) -> Result<(), FlowError> {
    let what = EgressWhat::Tls;
    let decided = match &hello.name {
        Some(name) => visit.guest.decide(&visit.flow, what, name, hello.hides),
        None => visit.guest.decide_nameless(&visit.flow, what, "tls: no server name"),
    };
    match (decided, hello.name) {
        (Err(EgressRefusal(rule)), name) => {
            say(&mut stream, ACCESS_DENIED).await;
            Err(FlowError::Refused { what, rule, name })
        }
        (Ok(FlowCarrier::Changed), Some(name)) => {
            // Boxed: most flows are tunnels, which should not reserve the memory for HTTP.
            Box::pin(end_tls(stream, bytes, name, visit, outbound)).await
        }
        (Ok(FlowCarrier::Opaque | FlowCarrier::Requests), Some(name)) => {
            let mut server = reach(&mut stream, &bytes, what, Some(&name), visit, outbound).await?;
            let vetted = tunnel::vet(&mut stream, &mut server, &visit.flow, &name).await;
            vetted.map_err(|error| match error {
                VetError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => FlowError::Ended,
                VetError::Io(error) => FlowError::Failed { what, rule: why(&error), name: Some(name) },
                VetError::OtherName | VetError::NotTls => {
                    FlowError::Refused { what, rule: error.to_string(), name: Some(name) }
                }
            })?;
            join(&stream, &server, visit).await
        }
        (
            Ok(FlowCarrier::Direct | FlowCarrier::Changed | FlowCarrier::Opaque | FlowCarrier::Requests),
            name,
        ) => {
            let server = reach(&mut stream, &bytes, what, name.as_deref(), visit, outbound).await?;
            join(&stream, &server, visit).await
        }
    }
}

/// Terminates TLS as `name`, and serves the requests in it.
async fn end_tls(
    stream: TcpStream,
    bytes: BytesMut,
    name: String,
    visit: &Visit,
    outbound: &Outbound,
) -> Result<(), FlowError> {
    let what = EgressWhat::Tls;
    let failed = |rule: String| FlowError::Failed { what, rule, name: Some(name.clone()) };
    let authority =
        visit.guest.authority().ok_or_else(|| failed("transforms: no certificate authority".to_owned()))?;
    let config = authority.server(&name).map_err(|error| failed(error.to_string()))?;
    let counted = MeteredStream { stream, peeked: bytes.freeze(), flow: Arc::clone(&visit.flow) };
    let handshake = timeout(HANDSHAKE_DEADLINE, TlsAcceptor::from(config).accept(counted)).await;
    let handshake = handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    // Usually a client that does not trust the sandbox's authority.
    let stream = handshake.map_err(|error| failed(format!("tls: the sandbox did not accept: {error}")))?;
    let answered = super::http::serve(stream, RequestForm::Ended { name }, visit, outbound).await;
    if answered { Ok(()) } else { Err(FlowError::Told) }
}

async fn carry_http(
    mut stream: TcpStream,
    bytes: BytesMut,
    visit: &Visit,
    outbound: &Outbound,
) -> Result<(), FlowError> {
    if visit.guest.reaches_directly(visit.flow.address()) {
        // Packets would pass unread; only a request that is to be changed is inspected.
        let read = peek::first_host(&bytes).is_some_and(|host| {
            let is_proxied = visit.guest.egress().is_proxied();
            // A proxy is asked for the name, and its errors can be explained.
            (is_proxied && visit.guest.is_answer(&host.name, visit.flow.address()))
                || visit.guest.rewrite_for(&host.name).is_some()
        });
        if !read {
            return carry_unknown(stream, bytes, "http", visit, outbound).await;
        }
    }
    if let Some(rule) = peek::is_ambiguous(&bytes) {
        say(&mut stream, b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
        return Err(FlowError::Refused { what: EgressWhat::Http, rule: rule.to_owned(), name: None });
    }
    let counted = MeteredStream { stream, peeked: bytes.freeze(), flow: Arc::clone(&visit.flow) };
    let answered = super::http::serve(counted, RequestForm::Plain, visit, outbound).await;
    if answered { Ok(()) } else { Err(FlowError::Told) }
}

async fn carry_unknown(
    mut stream: TcpStream,
    bytes: BytesMut,
    otherwise: &str,
    visit: &Visit,
    outbound: &Outbound,
) -> Result<(), FlowError> {
    let what = EgressWhat::Flow;
    if let Err(EgressRefusal(rule)) = visit.guest.decide_nameless(&visit.flow, what, otherwise) {
        reset(&stream);
        return Err(FlowError::Refused { what, rule, name: None });
    }
    let server = reach(&mut stream, &bytes, what, None, visit, outbound).await?;
    join(&stream, &server, visit).await
}

/// Connects to the original destination, and sends the bytes read so far.
async fn reach(
    stream: &mut TcpStream,
    said: &[u8],
    what: EgressWhat,
    name: Option<&str>,
    visit: &Visit,
    outbound: &Outbound,
) -> Result<TcpStream, FlowError> {
    let connected = async {
        let mut server = outbound.reach(visit, name).await?;
        server.write_all(said).await?;
        Ok::<_, io::Error>(server)
    };
    let server = match connected.await {
        Ok(server) => server,
        Err(error) => {
            if what == EgressWhat::Tls && visit.guest.egress().is_proxied() {
                say(stream, PROXY_FAILED).await;
            } else {
                reset(stream);
            }
            return Err(FlowError::Failed { what, rule: why(&error), name: name.map(str::to_owned) });
        }
    };
    visit.flow.count_sent(said.len()).map_err(|_| FlowError::Ended)?;
    Ok(server)
}

async fn join(stream: &TcpStream, server: &TcpStream, visit: &Visit) -> Result<(), FlowError> {
    let carried = tunnel::carry(stream, server, &visit.flow).await;
    if carried.is_err() {
        // Neither side should take the received bytes for the complete message.
        reset(stream);
        reset(server);
    }
    Ok(())
}

/// Makes the next close reset the connection.
fn reset(stream: &TcpStream) {
    // If this fails, the peer sees a regular end, which is acceptable.
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

async fn say(stream: &mut TcpStream, farewell: &[u8]) {
    // Best effort; the connection is refused in any case.
    let _ = timeout(FAREWELL_DEADLINE, async {
        stream.write_all(farewell).await?;
        stream.shutdown().await
    })
    .await;
}

/// An error as text for the log; never with content.
pub(crate) fn why(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<atoll_outbound::TunnelError>());
    if let Some(cause) = cause {
        return format!("egress proxy: {cause}");
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: refused by the server".to_owned(),
        io::ErrorKind::TimedOut => "connect: no answer in time".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "connect: unreachable".to_owned()
        }
        io::ErrorKind::InvalidData => format!("tls: {error}"),
        _ => format!("connect: {error}"),
    }
}

/// The sandbox's address, if the peer has an IPv4 address.
pub(crate) fn source(peer: SocketAddr) -> Option<std::net::Ipv4Addr> {
    match peer {
        SocketAddr::V4(peer) => Some(*peer.ip()),
        SocketAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_at_rest_is_small() {
        fn size<T>(_: impl FnOnce(TcpStream, Visit, &'static Outbound) -> T) -> usize {
            std::mem::size_of::<T>()
        }
        let bytes = size(serve);
        assert!(bytes < 6 << 10, "{bytes} bytes per flow");
    }
}
