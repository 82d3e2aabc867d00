//! Web servers on every address, with and without TLS, that answer every client and keep every request as received.
//!
//! Their parser is lenient on purpose: what a strict one would refuse is still kept, so that a smuggled request shows.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::GREETING;

/// LIMIT: how long a client may take for its next request.
const PATIENCE: Duration = Duration::from_secs(60);
const HEAD_MAX: usize = 256 << 10;

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which of the servers.
    pub to: SocketAddr,
    /// The name that the client gave in TLS; `None` without TLS or without a name.
    pub sni: Option<String>,
    /// Whether it came through TLS.
    pub tls: bool,
    /// The first line.
    pub line: String,
    /// Headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The beginning of the body.
    pub body: Vec<u8>,
}

impl Request {
    /// A header's values, joined by a bar.
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<&str> =
            self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join("|"))
    }

    /// The `Host` header.
    pub fn host(&self) -> String {
        self.header("host").unwrap_or_default()
    }

    /// What stands behind the method.
    pub fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    fn is_last(&self) -> bool {
        let connection = self.header("connection").unwrap_or_default().to_lowercase();
        connection.contains("close") || (self.line.ends_with("1.0") && !connection.contains("keep-alive"))
    }
}

/// All requests to all servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<Request>>>);

impl Seen {
    pub(super) fn requests(&self) -> Vec<Request> {
        self.all().clone()
    }

    pub(super) fn forget(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a port of every address.
pub(super) async fn serve(port: u16, tls: Option<TlsAcceptor>, seen: &Seen) {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.expect("a port");
    let seen = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, seen) = (tls.clone(), seen.clone());
            tokio::spawn(async move {
                let _ = talk(stream, tls, &seen).await;
            });
        }
    });
}

async fn talk(stream: TcpStream, tls: Option<TlsAcceptor>, seen: &Seen) -> io::Result<()> {
    let to = stream.local_addr()?;
    let to = SocketAddr::new(canonical(to.ip()), to.port());
    let Some(tls) = tls else { return serve_requests(stream, to, None, false, seen).await };
    let stream = tls.accept(stream).await?;
    let sni = stream.get_ref().1.server_name().map(str::to_owned);
    serve_requests(stream, to, sni, true, seen).await
}

fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

async fn serve_requests(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    to: SocketAddr,
    sni: Option<String>,
    tls: bool,
    seen: &Seen,
) -> io::Result<()> {
    let mut rest = Vec::new();
    loop {
        let Some((line, headers)) = read_head(&mut stream, &mut rest).await? else { return Ok(()) };
        let mut request = Request { to, sni: sni.clone(), tls, line, headers, body: Vec::new() };
        let at = {
            let mut all = seen.all();
            all.push(request.clone());
            all.len() - 1
        };
        read_body(&mut stream, &mut rest, &mut request).await?;
        if let Some(kept) = seen.all().get_mut(at) {
            kept.body = request.body.clone();
        }
        if request.method() == "PRI" || !answer(&mut stream, &request, &mut rest).await? || request.is_last()
        {
            return stream.shutdown().await;
        }
    }
}

type Head = (String, Vec<(String, String)>);

async fn read_head(stream: &mut (impl AsyncRead + Unpin), rest: &mut Vec<u8>) -> io::Result<Option<Head>> {
    let end = loop {
        if let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if rest.len() > HEAD_MAX || more(stream, rest).await? == 0 {
            return Ok(None);
        }
    };
    let text = String::from_utf8_lossy(&rest[..end]).into_owned();
    rest.drain(..end + 4);
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        (name.trim().to_lowercase(), value.trim().to_owned())
    };
    Ok(Some((line, lines.map(header).collect())))
}

async fn more(stream: &mut (impl AsyncRead + Unpin), rest: &mut Vec<u8>) -> io::Result<usize> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    tokio::time::timeout(PATIENCE, stream.read_buf(rest)).await.map_err(late)?
}

async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    rest: &mut Vec<u8>,
    request: &mut Request,
) -> io::Result<()> {
    if request.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        return read_chunks(stream, rest, request).await;
    }
    let mut left: usize =
        request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while left > 0 {
        if rest.is_empty() && more(stream, rest).await? == 0 {
            return Ok(());
        }
        let taken: Vec<u8> = rest.drain(..left.min(rest.len())).collect();
        left -= taken.len();
        keep(request, &taken);
    }
    Ok(())
}

async fn read_chunks(
    stream: &mut (impl AsyncRead + Unpin),
    rest: &mut Vec<u8>,
    request: &mut Request,
) -> io::Result<()> {
    loop {
        let end = loop {
            if let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
                break end;
            }
            if more(stream, rest).await? == 0 {
                return Ok(());
            }
        };
        let size = String::from_utf8_lossy(&rest[..end]).into_owned();
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16).unwrap_or(0);
        while rest.len() < end + 2 + size + 2 {
            if more(stream, rest).await? == 0 {
                return Ok(());
            }
        }
        let chunk: Vec<u8> = rest.drain(..end + 2 + size + 2).skip(end + 2).take(size).collect();
        keep(request, &chunk);
        if size == 0 {
            return Ok(());
        }
    }
}

fn keep(request: &mut Request, bytes: &[u8]) {
    // LIMIT: a test that looks at a body sends a small one.
    let room = (64 << 10) - request.body.len().min(64 << 10);
    request.body.extend(&bytes[..bytes.len().min(room)]);
}

/// Answers one request; false ends the connection.
async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &Request,
    rest: &mut Vec<u8>,
) -> io::Result<bool> {
    let path = request.target().split('?').next().unwrap_or_default().to_owned();
    let query = request.target().split_once('?').map_or("", |(_, query)| query);
    if request.header("upgrade").is_some() || request.method() == "CONNECT" {
        let upgrade = request.header("upgrade").unwrap_or_default();
        let head = if request.method() == "CONNECT" {
            "HTTP/1.1 200 OK\r\n\r\n".to_owned()
        } else {
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n")
        };
        stream.write_all(head.as_bytes()).await?;
        return echo(stream, rest).await.map(|()| false);
    }
    if path == "/drip" {
        return drip(stream).await.map(|()| false);
    }
    if let Some(count) = path.strip_prefix("/bytes/").and_then(|count| count.parse::<usize>().ok()) {
        return send_bytes(stream, count).await.map(|()| true);
    }
    let (status, more, body) = match path.as_str() {
        "/redirect" => ("302 Found", format!("Location: {query}\r\n"), String::new()),
        "/echo" => ("200 OK", "Content-Type: application/json\r\n".to_owned(), describe(request)),
        _ => ("200 OK", String::new(), GREETING.to_owned()),
    };
    let length = body.len();
    let body = if request.method() == "HEAD" { String::new() } else { body };
    let head = format!(
        "HTTP/1.1 {status}\r\n{more}Server-Address: {}\r\nContent-Length: {length}\r\n\r\n",
        request.to
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.flush().await.map(|()| true)
}

fn describe(request: &Request) -> String {
    json!({
        "line": request.line,
        "headers": request.headers,
        "sni": request.sni,
        "tls": request.tls,
        "to": request.to.to_string(),
        "body": String::from_utf8_lossy(&request.body),
    })
    .to_string()
}

async fn echo(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), rest: &mut Vec<u8>) -> io::Result<()> {
    loop {
        stream.write_all(rest).await?;
        stream.flush().await?;
        rest.clear();
        if more(stream, rest).await? == 0 {
            return Ok(());
        }
    }
}

/// A line every 20 ms, as long as a client reads.
async fn drip(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    for n in 0.. {
        let line = format!("drop {n}\n");
        stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await?;
        stream.flush().await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn send_bytes(stream: &mut (impl AsyncWrite + Unpin), count: usize) -> io::Result<()> {
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n").as_bytes()).await?;
    let block = vec![b'x'; 64 << 10];
    let mut left = count;
    while left > 0 {
        let part = left.min(block.len());
        stream.write_all(&block[..part]).await?;
        left -= part;
    }
    stream.flush().await
}
