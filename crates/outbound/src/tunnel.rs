//! Asks a proxy for a connection to a destination: HTTP CONNECT (RFC 9110, 9.3.6) and SOCKS5 (RFC 1928, 1929). The destination is
//! passed on by name where there is one, so that the proxy resolves it.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use atoll_model::{ProxyCredentials, ProxyKind, ProxyUrl, authority};
use base64::Engine as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// LIMIT: a proxy connects to the destination before it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// LIMIT: the head of an answer; proxies add a few headers.
const HEAD_MAX: usize = 16 << 10;

/// Why there is no connection through a proxy. No text names the proxy or its credentials: a sandbox may read it.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The proxy itself.
    #[error("the proxy is not reached: {why}")]
    Down {
        /// Why.
        why: &'static str,
    },
    /// It wants other credentials, or any.
    #[error("the proxy does not accept the credentials")]
    Credentials,
    /// Its own rules.
    #[error("the proxy refuses this destination{0}")]
    Refused(String),
    /// The destination, as the proxy sees it.
    #[error("the proxy does not reach the destination{0}")]
    Unreachable(String),
    /// It is no such proxy.
    #[error("the proxy does not speak {0}")]
    Protocol(&'static str),
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::ConnectionRefused => "nothing listens there",
            io::ErrorKind::TimedOut => "it does not answer in time",
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "it is unreachable",
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                "it closed the connection"
            }
            _ => "the connection failed",
        };
        Self::Down { why }
    }
}

impl From<TunnelError> for io::Error {
    fn from(error: TunnelError) -> Self {
        Self::other(error)
    }
}

/// Connects to a proxy from this process's network.
///
/// # Errors
/// [`TunnelError::Down`].
pub async fn connect(proxy: &ProxyUrl) -> Result<TcpStream, TunnelError> {
    let connecting = TcpStream::connect((proxy.host.as_str(), proxy.port));
    let stream = timeout(CONNECT_WITHIN, connecting).await;
    let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Asks the proxy at the other end of a new connection for a destination. From then on the stream leads there.
///
/// # Errors
/// The proxy is gone, or it refuses.
pub async fn tunnel<S>(stream: &mut S, proxy: &ProxyUrl, host: &str, port: u16) -> Result<(), TunnelError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asked = async {
        match proxy.kind {
            ProxyKind::Http => http(stream, proxy, host, port).await,
            ProxyKind::Socks5 => socks5(stream, proxy, host, port).await,
        }
    };
    timeout(ANSWER_WITHIN, asked)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn http<S>(stream: &mut S, proxy: &ProxyUrl, host: &str, port: u16) -> Result<(), TunnelError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let to = authority(host, port);
    let login = proxy.credentials.as_ref().map(|ProxyCredentials { user, password }| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        format!("Proxy-Authorization: Basic {encoded}\r\n")
    });
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{}\r\n", login.unwrap_or_default());
    stream.write_all(request.as_bytes()).await?;
    let status = read_status(stream).await?;
    match status {
        200..=299 => Ok(()),
        407 => Err(TunnelError::Credentials),
        500..=599 => Err(TunnelError::Unreachable(format!(" (status {status})"))),
        _ => Err(TunnelError::Refused(format!(" (status {status})"))),
    }
}

/// Reads the head of an answer and nothing behind it: the next byte belongs to the destination.
async fn read_status<S: AsyncRead + Unpin>(stream: &mut S) -> Result<u16, TunnelError> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_MAX {
            return Err(TunnelError::Protocol("HTTP"));
        }
        head.push(stream.read_u8().await?);
        if head.len() == 5 && head != b"HTTP/" {
            return Err(TunnelError::Protocol("HTTP"));
        }
    }
    let status = head.split(|byte| *byte == b' ').nth(1).and_then(|status| status.get(..3));
    let status = status.and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
    status.ok_or(TunnelError::Protocol("HTTP"))
}

const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const BY_PASSWORD: u8 = 2;

async fn socks5<S>(stream: &mut S, proxy: &ProxyUrl, host: &str, port: u16) -> Result<(), TunnelError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // The offer is what we have: a proxy that takes anybody must not get the password.
    let method = if proxy.credentials.is_some() { BY_PASSWORD } else { NO_LOGIN };
    stream.write_all(&[VERSION, 1, method]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    match (chosen, &proxy.credentials) {
        ([VERSION, BY_PASSWORD], Some(known)) => log_in(stream, known).await?,
        ([VERSION, NO_LOGIN], None) => {}
        ([VERSION, _], _) => return Err(TunnelError::Credentials),
        _ => return Err(TunnelError::Protocol("SOCKS5")),
    }
    let mut request = vec![VERSION, 1, 0];
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => request.extend([1].into_iter().chain(address.octets())),
        Ok(IpAddr::V6(address)) => request.extend([4].into_iter().chain(address.octets())),
        Err(_) => push_text(&mut request, Some(3), host)?,
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    let [VERSION, outcome, _, kind] = answer else { return Err(TunnelError::Protocol("SOCKS5")) };
    match outcome {
        0 => {}
        2 => return Err(TunnelError::Refused(String::new())),
        3..=6 => return Err(TunnelError::Unreachable(format!(" (answer {outcome})"))),
        _ => return Err(TunnelError::Refused(format!(" (answer {outcome})"))),
    }
    // The address that the proxy uses; it has no meaning here.
    let rest = match kind {
        1 => 4,
        3 => usize::from(stream.read_u8().await?),
        4 => 16,
        _ => return Err(TunnelError::Protocol("SOCKS5")),
    };
    stream.read_exact(&mut [0; 255 + 2][..rest + 2]).await?;
    Ok(())
}

async fn log_in<S>(stream: &mut S, known: &ProxyCredentials) -> Result<(), TunnelError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = vec![1];
    push_text(&mut request, None, &known.user)?;
    push_text(&mut request, None, &known.password)?;
    stream.write_all(&request).await?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).await?;
    if answer[1] == 0 { Ok(()) } else { Err(TunnelError::Credentials) }
}

/// Its length and the text, behind its kind if it has one.
fn push_text(to: &mut Vec<u8>, kind: Option<u8>, text: &str) -> Result<(), TunnelError> {
    let len = u8::try_from(text.len()).map_err(|_| TunnelError::Protocol("names of this length"))?;
    to.extend(kind);
    to.push(len);
    to.extend(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::duplex;

    use super::*;

    /// What a proxy reads when it says these things, each after a message of the client.
    async fn talk(proxy: &str, host: &str, says: &[&[u8]]) -> (Result<(), TunnelError>, Vec<u8>) {
        let (mut near, mut far) = duplex(4096);
        let proxy: ProxyUrl = proxy.parse().unwrap();
        let served = async {
            let mut heard = Vec::new();
            for say in says {
                let mut buffer = [0; 1024];
                let read = far.read(&mut buffer).await.unwrap();
                heard.extend(&buffer[..read]);
                far.write_all(say).await.unwrap();
            }
            drop(far);
            heard
        };
        tokio::join!(tunnel(&mut near, &proxy, host, 443), served)
    }

    #[tokio::test]
    async fn http_proxies_are_asked_by_name() {
        let ok = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n";
        let (done, heard) = talk("http://me:pass@p:1", "good.test", &[ok]).await;
        assert!(done.is_ok());
        let text = String::from_utf8(heard).unwrap();
        assert_eq!(
            text,
            "CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\nProxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n"
        );
        let (_, heard) = talk("http://p:1", "2001:db8::1", &[ok]).await;
        assert!(heard.starts_with(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\n"));
    }

    #[tokio::test]
    async fn what_an_http_proxy_refuses_is_told_without_its_name() {
        for (answer, says) in [
            (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "credentials"),
            (b"HTTP/1.1 403 No\r\n\r\n", "refuses this destination (status 403)"),
            (b"HTTP/1.1 502 Bad\r\n\r\n", "does not reach the destination (status 502)"),
            (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
            (b"HTTP/1.1 junk\r\n\r\n", "does not speak HTTP"),
            (b"HTTP/1.1 20", "closed the connection"),
        ] {
            let (done, _) = talk("http://me:canary@secret-host:1", "good.test", &[answer]).await;
            let why = done.unwrap_err().to_string();
            assert!(why.contains(says) && !why.contains("canary") && !why.contains("secret-host"), "{why}");
        }
    }

    #[tokio::test]
    async fn socks_proxies_get_name_and_password() {
        let done = [5, 0, 0, 1, 1, 2, 3, 4, 0, 80];
        let (result, heard) = talk("socks5://me:pw@p:1", "good.test", &[&[5, 2], &[1, 0], &done]).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(heard, b"\x05\x01\x02\x01\x02me\x02pw\x05\x01\x00\x03\x09good.test\x01\xbb");
        let named = [5, 0, 0, 3, 2, b'a', b'b', 0, 80];
        let (result, heard) = talk("socks5://p:1", "203.0.113.7", &[&[5, 0], &named]).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(heard, b"\x05\x01\x00\x05\x01\x00\x01\xcb\x00\x71\x07\x01\xbb");
    }

    #[tokio::test]
    async fn a_password_goes_only_to_a_proxy_that_asks_for_it() {
        let (result, heard) = talk("socks5://me:pw@p:1", "good.test", &[&[5, 0]]).await;
        assert!(matches!(result, Err(TunnelError::Credentials)), "{result:?}");
        assert_eq!(heard, b"\x05\x01\x02");
        let (result, _) = talk("socks5://me:pw@p:1", "good.test", &[&[5, 2], &[1, 1]]).await;
        assert!(matches!(result, Err(TunnelError::Credentials)), "{result:?}");
        for (outcome, says) in [(2, "refuses"), (4, "does not reach"), (9, "refuses")] {
            let (result, _) = talk("socks5://p:1", "good.test", &[&[5, 0], &[5, outcome, 0, 1]]).await;
            assert!(result.unwrap_err().to_string().contains(says), "{outcome}");
        }
        let (result, _) = talk("socks5://p:1", "good.test", &[b"HT"]).await;
        assert!(matches!(result, Err(TunnelError::Protocol("SOCKS5"))), "{result:?}");
    }
}
