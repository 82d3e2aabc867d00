//! The proxies of a company, in the namespace of a test: one that speaks HTTP and reads TLS with an authority of its own, and one that
//! speaks SOCKS5 and asks for a password. Both know names that no name server knows, and keep what they were asked for.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::internet::trust::Authority;

/// LIMIT: the head of a request of a test.
const HEAD_MAX: usize = 16 << 10;

/// What a proxy was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRequest {
    /// `HOST:PORT` as the client wrote it.
    pub to: String,
    /// The header or the user and password that came with it.
    pub login: Option<String>,
    /// The name in the TLS hello, where the proxy read it.
    pub sni: Option<String>,
}

struct ProxyState {
    /// Where a host leads. TLS ends at the proxy.
    hosts: HashMap<String, SocketAddr>,
    login: Option<String>,
    tls: Option<TlsAcceptor>,
    seen: Mutex<Vec<ProxyRequest>>,
}

/// A running proxy; it ends with its value.
pub struct CompanyProxy {
    /// Where it listens.
    pub address: SocketAddr,
    /// The authority by which it reads TLS, as PEM.
    pub authority_pem: String,
    state: Arc<ProxyState>,
    _tasks: JoinSet<()>,
}

impl CompanyProxy {
    /// An HTTP proxy that intercepts TLS. `login` is the value of `Proxy-Authorization` that it wants.
    pub async fn intercepting(at: &str, hosts: &[(&str, SocketAddr)], login: Option<&str>) -> Self {
        let authority = Arc::new(Authority::new());
        let pem = authority.pem().to_owned();
        Self::start(at, hosts, login, Some(authority.acceptor()), pem, serve_http).await
    }

    /// A SOCKS5 proxy that passes bytes on and wants `USER:PASSWORD`.
    pub async fn socks5(at: &str, hosts: &[(&str, SocketAddr)], login: &str) -> Self {
        Self::start(at, hosts, Some(login), None, String::new(), serve_socks5).await
    }

    async fn start<F>(
        at: &str,
        hosts: &[(&str, SocketAddr)],
        login: Option<&str>,
        tls: Option<TlsAcceptor>,
        authority_pem: String,
        serve: impl Fn(TcpStream, Arc<ProxyState>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind(at).await.expect("the address of the proxy");
        let address = listener.local_addr().expect("an address");
        let hosts = hosts.iter().map(|(name, to)| ((*name).to_owned(), *to)).collect();
        let state =
            Arc::new(ProxyState { hosts, login: login.map(str::to_owned), tls, seen: Mutex::default() });
        let mut tasks = JoinSet::new();
        let inner = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let served = serve(stream, Arc::clone(&inner));
                connections.spawn(async move {
                    // A client may leave at any time.
                    let _ = served.await;
                });
            }
        });
        Self { address, authority_pem, state, _tasks: tasks }
    }

    /// Everything that it was asked for.
    pub fn seen(&self) -> Vec<ProxyRequest> {
        self.state.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ProxyState {
    fn note(&self, request: ProxyRequest) -> usize {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(request);
        seen.len() - 1
    }

    fn place(&self, to: &str) -> Option<SocketAddr> {
        let (host, _) = to.rsplit_once(':')?;
        self.hosts.get(host).copied()
    }
}

async fn serve_http(mut stream: TcpStream, state: Arc<ProxyState>) -> io::Result<()> {
    let head = read_head(&mut stream).await?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, to) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
    let login = lines
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization"));
    let login = login.map(|(_, value)| value.to_owned());
    let at = state.note(ProxyRequest { to: to.clone(), login: login.clone(), sni: None });
    let status = match (method == "CONNECT", login == state.login, state.place(&to)) {
        (false, ..) => "405 Method Not Allowed",
        (_, false, _) => "407 Proxy Authentication Required",
        (_, _, None) => "403 Forbidden",
        _ => "200 Connection established",
    };
    stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await?;
    let Some(place) = state.place(&to).filter(|_| status.starts_with("200")) else { return Ok(()) };
    let Some(tls) = state.tls.as_ref().filter(|_| to.ends_with(":443")) else {
        return pass(&mut stream, place).await;
    };
    let mut stream = tls.accept(stream).await?;
    let sni = stream.get_ref().1.server_name().map(str::to_owned);
    if let Some(seen) = state.seen.lock().unwrap_or_else(PoisonError::into_inner).get_mut(at) {
        seen.sni = sni;
    }
    pass(&mut stream, place).await
}

async fn pass(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), place: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(place).await?;
    copy_bidirectional(stream, &mut server).await.map(drop)
}

async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_MAX {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

async fn serve_socks5(mut stream: TcpStream, state: Arc<ProxyState>) -> io::Result<()> {
    let (_, count) = (stream.read_u8().await?, stream.read_u8().await?);
    let mut methods = vec![0; usize::from(count)];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&2) {
        return stream.write_all(&[5, 0xff]).await;
    }
    stream.write_all(&[5, 2]).await?;
    stream.read_u8().await?;
    let (user, password) = (read_text(&mut stream).await?, read_text(&mut stream).await?);
    let login = format!("{user}:{password}");
    let is_right = state.login.as_deref() == Some(&login);
    stream.write_all(&[1, u8::from(!is_right)]).await?;
    if !is_right {
        state.note(ProxyRequest { to: String::new(), login: Some(login), sni: None });
        return Ok(());
    }
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    let host = match request[3] {
        1 => std::net::Ipv4Addr::from(stream.read_u32().await?).to_string(),
        _ => read_text(&mut stream).await?,
    };
    let to = format!("{host}:{}", stream.read_u16().await?);
    let place = state.place(&to);
    state.note(ProxyRequest { to, login: Some(login), sni: None });
    stream.write_all(&[5, if place.is_some() { 0 } else { 2 }, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    match place {
        Some(place) => pass(&mut stream, place).await,
        None => Ok(()),
    }
}

async fn read_text(stream: &mut TcpStream) -> io::Result<String> {
    let mut text = vec![0; usize::from(stream.read_u8().await?)];
    stream.read_exact(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
