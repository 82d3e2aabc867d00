//! A keep-alive HTTP/1.1 client in a few lines, so that the figures are the server's and not a client library's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// One connection to the server under test.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    head: String,
}

/// An answer whose body was read whole.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        if !(200..300).contains(&self.status) {
            bail!("status {}: {}", self.status, String::from_utf8_lossy(&self.body));
        }
        serde_json::from_slice(&self.body).context("the answer is not JSON")
    }
}

impl Client {
    pub(crate) fn connect(address: &str, key: &str) -> Result<Self> {
        Self::connect_as(address, address, key)
    }

    /// A connection to `address` for another host.
    pub(crate) fn connect_as(address: &str, host: &str, key: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let head = format!("Host: {host}\r\nAuthorization: Bearer {key}\r\n");
        Ok(Self { stream: BufReader::with_capacity(256 * 1024, stream), head })
    }

    pub(crate) fn post(&mut self, path: &str, body: &serde_json::Value) -> Result<Answer> {
        self.send("POST", path, body)
    }

    pub(crate) fn patch(&mut self, path: &str, body: &serde_json::Value) -> Result<Answer> {
        self.send("PATCH", path, body)
    }

    fn send(&mut self, method: &str, path: &str, body: &serde_json::Value) -> Result<Answer> {
        let body = body.to_string();
        let kind = "Content-Type: application/json\r\n";
        let text = format!(
            "{method} {path} HTTP/1.1\r\n{}{kind}Content-Length: {}\r\n\r\n{body}",
            self.head,
            body.len()
        );
        self.stream.get_mut().write_all(text.as_bytes())?;
        self.answer()
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Answer> {
        self.bare("GET", path)
    }

    pub(crate) fn delete(&mut self, path: &str) -> Result<Answer> {
        self.bare("DELETE", path)
    }

    fn bare(&mut self, method: &str, path: &str) -> Result<Answer> {
        let text = format!("{method} {path} HTTP/1.1\r\n{}\r\n", self.head);
        self.stream.get_mut().write_all(text.as_bytes())?;
        self.answer()
    }

    /// Sends bytes as the body of a PUT.
    pub(crate) fn put(&mut self, path: &str, body: &[u8]) -> Result<Answer> {
        let text = format!("PUT {path} HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n", self.head, body.len());
        let socket = self.stream.get_mut();
        socket.write_all(text.as_bytes())?;
        socket.write_all(body)?;
        self.answer()
    }

    /// Sends `total` zero bytes as the body of a PUT.
    pub(crate) fn put_zeros(&mut self, path: &str, total: usize) -> Result<Answer> {
        let text = format!("PUT {path} HTTP/1.1\r\n{}Content-Length: {total}\r\n\r\n", self.head);
        let socket = self.stream.get_mut();
        socket.write_all(text.as_bytes())?;
        let chunk = vec![0u8; CHUNK];
        let mut left = total;
        while left > 0 {
            let n = left.min(chunk.len());
            socket.write_all(&chunk[..n])?;
            left -= n;
        }
        self.answer()
    }

    /// Gets `path` and throws the body away; answers its length.
    pub(crate) fn drain(&mut self, path: &str) -> Result<usize> {
        let text = format!("GET {path} HTTP/1.1\r\n{}\r\n", self.head);
        self.stream.get_mut().write_all(text.as_bytes())?;
        let (status, length) = self.read_head()?;
        if status != 200 {
            bail!("status {status} for {path}");
        }
        let mut sink = vec![0u8; CHUNK];
        let mut left = length;
        while left > 0 {
            let want = left.min(sink.len());
            let n = self.stream.read(&mut sink[..want])?;
            if n == 0 {
                bail!("the body ended {left} bytes early");
            }
            left -= n;
        }
        Ok(length)
    }

    fn answer(&mut self) -> Result<Answer> {
        let (status, length) = self.read_head()?;
        let mut body = vec![0u8; length];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, body })
    }

    fn read_head(&mut self) -> Result<(u16, usize)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).context("no status line")?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            if line.trim_end().is_empty() {
                return Ok((status, length));
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().context("bad content-length")?;
            }
        }
    }
}

/// The size of one write of a transfer; the loopback comparison uses the same.
pub(crate) const CHUNK: usize = 256 * 1024;
