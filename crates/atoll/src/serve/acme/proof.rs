//! The proof that this server has a name: the service asks for `/.well-known/acme-challenge/TOKEN` on port 80.
//!
//! A tiny server that knows nothing else: one request per connection, its first 4 KiB, for five seconds, at most 32 at once. It is
//! open to the Internet while an order waits, and ends with the order.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::failure::Failure;

const PREFIX: &str = "/.well-known/acme-challenge/";
/// LIMIT: the service asks from several places, once for each name.
const CONNECTIONS_MAX: usize = 32;
const HEAD_MAX: usize = 4_096;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The answers by token.
#[derive(Debug, Default)]
pub(super) struct Proofs(BTreeMap<String, String>);

/// Opens the port. Without an address both families, where the machine has both.
pub(super) async fn listen(address: Option<SocketAddr>) -> Result<TcpListener, Failure> {
    let usual = || vec![(Ipv6Addr::UNSPECIFIED, 80).into(), (Ipv4Addr::UNSPECIFIED, 80).into()];
    let addresses: Vec<SocketAddr> = address.map_or_else(usual, |address| vec![address]);
    TcpListener::bind(addresses.as_slice()).await.map_err(|cause| {
        let port = addresses.first().map_or(80, SocketAddr::port);
        Failure::new("address_in_use", format!("port {port} cannot be opened for the proof: {cause}")).hint(
            "stop what listens there, or forward port 80 from the Internet to another address and name it with --http-listen",
        )
    })
}

impl Proofs {
    pub(super) fn add(&mut self, token: &str, answer: &str) {
        self.0.insert(token.to_owned(), answer.to_owned());
    }

    /// Answers until it is dropped, with every connection.
    pub(super) async fn serve(self, listener: TcpListener) {
        let proofs = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
                continue;
            }
            match listener.accept().await {
                Ok((stream, _)) => {
                    let proofs = Arc::clone(&proofs);
                    connections.spawn(async move {
                        tokio::time::timeout(ANSWER_WITHIN, proofs.answer(stream)).await
                    });
                }
                // Such as too many open files: not a reason to spin.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_MAX {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let (status, body) = self.find(&head).map_or(("404 Not Found", ""), |answer| ("200 OK", answer));
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/octet-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }

    /// The answer to a request by its first line.
    fn find(&self, head: &[u8]) -> Option<&str> {
        let line = head.split(|byte| *byte == b'\r').next()?;
        let path = std::str::from_utf8(line).ok()?.strip_prefix("GET ")?.split(' ').next()?;
        self.0.get(path.strip_prefix(PREFIX)?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_token_has_an_answer() {
        let mut proofs = Proofs::default();
        proofs.add("abc", "abc.key");
        let find = |line: &str| proofs.find(line.as_bytes());
        assert_eq!(find("GET /.well-known/acme-challenge/abc HTTP/1.1\r\n\r\n"), Some("abc.key"));
        for other in [
            "",
            "GET / HTTP/1.1\r\n",
            "POST /.well-known/acme-challenge/abc HTTP/1.1\r\n",
            "GET /.well-known/acme-challenge/ab HTTP/1.1\r\n",
            "GET /.well-known/acme-challenge/abc/../x HTTP/1.1\r\n",
            "\u{0}\r\n",
        ] {
            assert_eq!(find(other), None, "{other:?}");
        }
    }
}
