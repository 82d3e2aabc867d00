//! A proxy before the registry that does to requests what networks, clouds and villains do. One request per connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What may happen to a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The answer is this status with these headers and nothing else.
    Status(u16, &'static str),
    /// The body's first half comes, then the end, whatever its length was said to be.
    Truncated,
    /// One byte in the middle of the body is another.
    Spoiled,
    /// The body's first half comes, and then nothing, ever.
    Stalled,
    /// So many bytes per second.
    Slow(u32),
    /// The connection is reset in the middle of the body.
    Reset,
    /// Go and ask there.
    Redirect(String),
    /// These bytes are the body.
    Instead(Vec<u8>),
}

/// Which requests are meant.
#[derive(Debug, Clone)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// Only to request lines with this in them, as in `GET /v2/x/blobs/`.
    pub line: &'static str,
    /// So many go well before.
    pub skip: u32,
    /// So many are hit; then all is well again.
    pub times: u32,
}

impl Rule {
    /// Hits the next one.
    pub fn once(fault: Fault, line: &'static str) -> Self {
        Self { fault, line, skip: 0, times: 1 }
    }

    /// Hits every one from now on.
    pub fn always(fault: Fault, line: &'static str) -> Self {
        Self { fault, line, skip: 0, times: u32::MAX }
    }
}

/// A request that came by.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Method, path, version.
    pub line: String,
    /// What it was allowed by.
    pub authorization: Option<String>,
    /// Which part it asked for.
    pub range: Option<String>,
}

/// The proxy. Its task ends with the runtime of the world.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    /// Connections that are open now.
    open: AtomicUsize,
    /// Name and password that a token costs; nothing is given without one then.
    login: Mutex<Option<(String, String)>>,
}

/// Where it listens; each world has its own loopback, and a server knows its insecure registries from its start.
pub const PROXY: &str = "127.0.0.1:5001";

const TOKEN: &str = "a-token-of-the-test-registry";

impl Proxy {
    /// Starts it before a server, at [`PROXY`].
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::at(PROXY, upstream).await
    }

    /// Another one beside it, at a port that no server was told of.
    pub async fn second(upstream: SocketAddr) -> Self {
        Self::at("127.0.0.1:5003", upstream).await
    }

    async fn at(place: &str, upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(place).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::<State>::default();
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = shared.clone();
                state.open.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let _ = pass(socket, address, upstream, &state).await;
                    state.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, state }
    }

    /// Where it listens, as host and port.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The name of an image behind it.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// From now on this happens, and nothing else.
    pub fn now(&self, rules: &[Rule]) {
        *lock(&self.state.rules) = rules.to_vec();
    }

    /// From now on one needs a token, and a token needs this name and password.
    pub fn wants(&self, name: &str, password: &str) {
        *lock(&self.state.login) = Some((name.to_owned(), password.to_owned()));
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state.seen).clone()
    }

    /// Requests so far with this in their line.
    pub fn count(&self, line: &str) -> usize {
        self.seen().iter().filter(|seen| seen.line.contains(line)).count()
    }

    /// Waits until no client has had a connection open for half a second.
    pub async fn idle(&self) {
        let mut idle_since = Instant::now();
        crate::until("no connection is open", async || {
            if self.state.open.load(Ordering::SeqCst) > 0 {
                idle_since = Instant::now();
            }
            (idle_since.elapsed() > Duration::from_millis(500)).then_some(())
        })
        .await;
    }

    /// Forgets what it saw.
    pub fn forget(&self) {
        lock(&self.state.seen).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn pass(
    mut client: TcpStream,
    own: SocketAddr,
    upstream: SocketAddr,
    state: &State,
) -> std::io::Result<()> {
    let (head, begun) = read_head(&mut client).await?;
    let line = head.lines().next().unwrap_or_default().to_owned();
    let authorization = header(&head, "authorization");
    lock(&state.seen).push(Seen {
        line: line.clone(),
        authorization: authorization.clone(),
        range: header(&head, "range"),
    });
    let login = lock(&state.login).clone();
    if let Some(login) = login
        && let Some(answer) = gate(&line, authorization.as_deref(), own, &login)
    {
        return client.write_all(answer.as_bytes()).await;
    }
    let fault = fault_for(&mut lock(&state.rules), &line);
    match &fault {
        Some(Fault::Status(status, headers)) => return empty(&mut client, *status, headers).await,
        Some(Fault::Redirect(to)) => return empty(&mut client, 307, &format!("location: {to}\r\n")).await,
        _ => {}
    }
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(closing(&head).as_bytes()).await?;
    server.write_all(&begun).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    tokio::select! {
        // What a push sends goes through as it comes; the end of it is no reason to stop listening to the answer.
        _ = async { let _ = tokio::io::copy(&mut from_client, &mut to_server).await; std::future::pending::<()>().await } => {}
        done = answer(&mut from_server, &mut to_client, fault.as_ref()) => { done?; }
    }
    if matches!(fault, Some(Fault::Reset)) {
        client.set_zero_linger()?;
        return Ok(());
    }
    client.shutdown().await
}

/// What the door says to those without a token.
fn gate(line: &str, shown: Option<&str>, own: SocketAddr, login: &(String, String)) -> Option<String> {
    if line.starts_with("GET /token") {
        let right = base64::engine::general_purpose::STANDARD.encode(format!("{}:{}", login.0, login.1));
        let knows = shown.is_some_and(|shown| shown == format!("Basic {right}"));
        let body = format!(r#"{{"token":"{TOKEN}","expires_in":60}}"#);
        return Some(if knows {
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
        } else {
            "HTTP/1.1 401 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
        });
    }
    (shown != Some(&format!("Bearer {TOKEN}"))).then(|| {
        format!(
            "HTTP/1.1 401 No\r\nwww-authenticate: Bearer realm=\"http://{own}/token\",service=\"test\",scope=\"repository:x:pull\"\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        )
    })
}

async fn empty(client: &mut TcpStream, status: u16, headers: &str) -> std::io::Result<()> {
    let text = format!("HTTP/1.1 {status} Fault\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
    client.write_all(text.as_bytes()).await
}

/// Hands the answer on, with what happens to it.
async fn answer(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    fault: Option<&Fault>,
) -> std::io::Result<()> {
    let (head, first) = read_head(from).await?;
    if let Some(Fault::Instead(body)) = fault {
        let kept = head
            .trim_end()
            .split("\r\n")
            .filter(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
        let kept = kept.collect::<Vec<_>>().join("\r\n");
        to.write_all(format!("{kept}\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes()).await?;
        return to.write_all(body).await;
    }
    to.write_all(head.as_bytes()).await?;
    let length: usize = header(&head, "content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let (mut sent, mut piece) = (0, first);
    loop {
        if let (Some(Fault::Spoiled), true) = (fault, (sent..sent + piece.len()).contains(&(length / 2))) {
            let at = length / 2 - sent;
            piece[at] ^= 0x55;
        }
        let cut = matches!(fault, Some(Fault::Truncated | Fault::Stalled | Fault::Reset));
        if cut && sent + piece.len() >= length / 2 {
            to.write_all(&piece[..(length / 2).saturating_sub(sent)]).await?;
            to.flush().await?;
            if matches!(fault, Some(Fault::Stalled)) {
                std::future::pending::<()>().await;
            }
            return Ok(());
        }
        to.write_all(&piece).await?;
        sent += piece.len();
        if let Some(Fault::Slow(speed)) = fault {
            tokio::time::sleep(Duration::from_secs_f64(piece.len() as f64 / f64::from(*speed))).await;
        }
        piece.resize(16_384, 0);
        match from.read(&mut piece).await? {
            0 => return Ok(()),
            n => piece.truncate(n),
        }
    }
}

fn fault_for(rules: &mut [Rule], line: &str) -> Option<Fault> {
    let rule = rules.iter_mut().find(|rule| line.contains(rule.line) && rule.times > 0)?;
    if rule.skip > 0 {
        rule.skip -= 1;
        return None;
    }
    rule.times = rule.times.saturating_sub(1);
    Some(rule.fault.clone())
}

async fn read_head(from: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16_384];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
        match from.read(&mut chunk).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

fn header(head: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    };
    head.lines().skip(1).find_map(value)
}

/// The same head, asking the server to close afterwards.
fn closing(head: &str) -> String {
    let kept =
        head.trim_end().split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    format!("{}\r\nConnection: close\r\n\r\n", kept.collect::<Vec<_>>().join("\r\n"))
}
