//! A proxy on loopback between a client and a server, which makes faults: answers that are lost after the server did its work,
//! statuses of its own, silence, and connections that stay open without a byte.
//!
//! Every connection carries one request, so that each request is seen. `Idempotency-Key` is taken away: what a client does without
//! it is what is tested.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::internet::trust::Authority;

/// LIMIT: bytes of a request's head.
const HEAD_MAX: usize = 64 << 10;

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It passes.
    None,
    /// The server does it; the client's connection is closed without an answer.
    LoseReply,
    /// The server does not see it; this status is the answer, with further header lines.
    Answer(u16, &'static str),
    /// The server does not see it, and no answer comes.
    Hang,
}

type Rule = Box<dyn FnMut(&str, &str) -> Fault + Send>;

struct ProxyState {
    server: SocketAddr,
    rule: Mutex<Rule>,
    /// Methods and paths of all requests.
    seen: Mutex<Vec<String>>,
    /// While it is true no byte passes, and every connection stays open.
    is_frozen: watch::Sender<bool>,
}

/// A running proxy; it ends with its value.
pub struct FaultProxy {
    /// Where it listens.
    pub address: SocketAddr,
    /// The certificate of the authority that vouches for it, as PEM; empty where it has no TLS.
    pub authority_pem: String,
    state: Arc<ProxyState>,
    _tasks: JoinSet<()>,
}

impl FaultProxy {
    /// A proxy without faults.
    pub async fn start(server: SocketAddr) -> Self {
        Self::listen(server, None).await
    }

    /// A proxy without faults, to which clients speak TLS. It has a certificate for every name.
    pub async fn start_tls(server: SocketAddr) -> Self {
        Self::listen(server, Some(Arc::new(Authority::new()))).await
    }

    async fn listen(server: SocketAddr, authority: Option<Arc<Authority>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState {
            server,
            rule: Mutex::new(Box::new(|_, _| Fault::None)),
            seen: Mutex::default(),
            is_frozen: watch::Sender::new(false),
        });
        let mut tasks = JoinSet::new();
        let authority_pem =
            authority.as_ref().map_or_else(String::new, |authority| authority.pem().to_owned());
        let tls = authority.map(|authority| authority.acceptor());
        tasks.spawn(accept(listener, tls, Arc::clone(&state)));
        Self { address, authority_pem, state, _tasks: tasks }
    }

    /// From now on the rule says what happens to a request of this method and path.
    pub fn set_rule(&self, rule: impl FnMut(&str, &str) -> Fault + Send + 'static) {
        *self.state.rule.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(rule);
    }

    /// Stops or continues every connection, without closing it.
    pub fn freeze(&self, is_frozen: bool) {
        self.state.is_frozen.send_replace(is_frozen);
    }

    /// How many requests of this method there were whose path contains a text.
    pub fn count(&self, method: &str, part: &str) -> usize {
        let seen = self.state.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |line: &&String| {
            line.split_once(' ').is_some_and(|(verb, path)| verb == method && path.contains(part))
        };
        seen.iter().filter(is_meant).count()
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<ProxyState>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if let Ok((client, _)) = listener.accept().await {
            let (tls, state) = (tls.clone(), Arc::clone(&state));
            connections.spawn(async move {
                match tls {
                    None => carry(client, state).await,
                    Some(tls) => {
                        if let Ok(client) = tls.accept(client).await {
                            carry(client, state).await;
                        }
                    }
                }
            });
        }
    }
}

async fn carry(mut client: impl AsyncRead + AsyncWrite + Unpin, state: Arc<ProxyState>) {
    let Some((head, rest)) = read_head(&mut client).await else { return };
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    state.seen.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {path}"));
    let fault = (state.rule.lock().unwrap_or_else(PoisonError::into_inner))(method, path);
    match fault {
        Fault::Answer(status, lines) => {
            let body = format!("{{\"code\":{status},\"message\":\"made by the proxy\"}}");
            let answer = format!(
                "HTTP/1.1 {status} Fault\r\n{lines}content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = client.write_all(answer.as_bytes()).await;
            let _ = client.shutdown().await;
            // The rest of the request is read, so that the answer is not lost to a reset.
            let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        }
        Fault::Hang => {
            let _ = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
        }
        Fault::None | Fault::LoseReply => {
            let Ok(mut server) = TcpStream::connect(state.server).await else { return };
            if server.write_all(rewritten(&head).as_bytes()).await.is_err()
                || server.write_all(&rest).await.is_err()
            {
                return;
            }
            let is_tunnel = is_upgrade(&head);
            exchange(client, server, &state, fault == Fault::LoseReply, is_tunnel).await;
        }
    }
}

/// Carries the rest of a request and its answer. Where the protocol changes, either side may end it.
async fn exchange(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: TcpStream,
    state: &ProxyState,
    loses_reply: bool,
    is_tunnel: bool,
) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = server.into_split();
    let up = pass(&mut from_client, Some(&mut to_server), state.is_frozen.subscribe());
    let down = pass(&mut from_server, (!loses_reply).then_some(&mut to_client), state.is_frozen.subscribe());
    // The server closes the connection after its answer.
    tokio::select! {
        () = down => {}
        () = async { up.await; if !is_tunnel { std::future::pending::<()>().await } } => {}
    }
    if !loses_reply {
        // TLS tells the client that nothing is missing.
        let _ = to_client.shutdown().await;
    }
}

async fn pass(
    from: &mut (impl AsyncReadExt + Unpin),
    mut to: Option<&mut (impl AsyncWriteExt + Unpin)>,
    mut is_frozen: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        if is_frozen.wait_for(|is_frozen| !is_frozen).await.is_err() {
            return;
        }
        if let Some(to) = &mut to
            && to.write_all(&buffer[..read]).await.is_err()
        {
            return;
        }
    }
}

/// The head of a request, and what of its body came with it.
async fn read_head(client: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes).ok()?, rest));
        }
        let mut buffer = [0; 8 << 10];
        let read = client.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
        if bytes.len() > HEAD_MAX {
            return None;
        }
    }
}

fn field_name(line: &str) -> String {
    line.split(':').next().unwrap_or_default().to_ascii_lowercase()
}

fn is_upgrade(head: &str) -> bool {
    head.lines().any(|line| field_name(line) == "upgrade")
}

/// The head with one request for a connection, unless the protocol is to change, and without `Idempotency-Key`.
fn rewritten(head: &str) -> String {
    let upgrades = is_upgrade(head);
    let stays = |line: &&str| match field_name(line).as_str() {
        "idempotency-key" => false,
        "connection" => upgrades,
        _ => !line.is_empty(),
    };
    let mut lines: Vec<&str> = head.lines().filter(stays).collect();
    if !upgrades {
        lines.push("connection: close");
    }
    format!("{}\r\n\r\n", lines.join("\r\n"))
}
