//! Forwards bytes unread, in both directions, until both sides have ended; either side may end first.
//!
//! An idle tunnel holds no buffer. Before a TLS tunnel is left alone, the server's first record is inspected: if it
//! asks for a second hello (HelloRetryRequest), that one must name the same host as the first.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use rustix::net::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::flow::Flow;
use super::hello::{Hello, LONGEST};

/// As much as a busy socket usually has ready at once.
const CHUNK: usize = 128 << 10;
/// How long a server may take for its first record, and a client for its second hello.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

thread_local! {
    static CHUNKS: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Forwards bytes until both sides have ended, or the flow must end.
pub(crate) async fn carry(sandbox: &TcpStream, server: &TcpStream, flow: &Flow) -> io::Result<()> {
    let up = pump(sandbox, server, |bytes| flow.count_sent(bytes));
    let down = pump(server, sandbox, |bytes| flow.count_received(bytes));
    tokio::try_join!(up, down)?;
    Ok(())
}

/// `count` gets the number of bytes before they are forwarded, and may end the flow.
async fn pump(from: &TcpStream, to: &TcpStream, count: impl Fn(usize) -> io::Result<()>) -> io::Result<()> {
    loop {
        tokio::task::consume_budget().await;
        from.readable().await?;
        let (read, left) = match move_some(from, to, &count) {
            Ok(moved) => moved,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return Ok(rustix::net::shutdown(to, Shutdown::Write)?);
        }
        if let Some(left) = left {
            write_all(to, &left).await?;
        }
    }
}

/// Moves available bytes through this thread's buffer: returns how much was read, and what could not be written at
/// once.
fn move_some(
    from: &TcpStream,
    to: &TcpStream,
    count: impl Fn(usize) -> io::Result<()>,
) -> io::Result<(usize, Option<Vec<u8>>)> {
    CHUNKS.with_borrow_mut(|chunk| {
        let read = from.try_read(chunk)?;
        count(read)?;
        let written = match to.try_write(&chunk[..read]) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok((read, (written < read).then(|| chunk[written..read].to_vec())))
    })
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Why a TLS tunnel is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VetError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("tls: the second hello asks for another name")]
    OtherName,
    #[error("tls: an answer that is not TLS")]
    NotTls,
}

/// Inspects the server's first record, forwards it, and checks a second hello that it asks for.
pub(crate) async fn vet(
    sandbox: &mut TcpStream,
    server: &mut TcpStream,
    flow: &Flow,
    name: &str,
) -> Result<(), VetError> {
    let mut answer = BytesMut::new();
    while answer.len() < RETRY_LEN && could_be_hello(&answer) {
        read_some(server, &mut answer).await?;
    }
    let is_tls = matches!(answer.first(), Some(&(HANDSHAKE | ALERT)));
    if !is_tls {
        return Err(VetError::NotTls);
    }
    flow.count_received(answer.len())?;
    sandbox.write_all(&answer).await?;
    if !asks_again(&answer) {
        return Ok(());
    }
    let (hello, passed) = second_hello(sandbox).await?;
    if hello.name.as_deref() != Some(name) || hello.hides {
        return Err(VetError::OtherName);
    }
    flow.count_sent(passed.len())?;
    Ok(server.write_all(&passed).await?)
}

const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;
const CHANGE_CIPHER_SPEC: u8 = 20;
const APPLICATION: u8 = 23;
const SERVER_HELLO: u8 = 2;
/// Record header, message header, version, random.
const RETRY_LEN: usize = 5 + 4 + 2 + 32;
/// The random of a ServerHello that asks for a second hello (RFC 8446, 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

fn could_be_hello(answer: &[u8]) -> bool {
    answer.first().is_none_or(|kind| *kind == HANDSHAKE)
        && answer.get(5).is_none_or(|kind| *kind == SERVER_HELLO)
}

fn asks_again(answer: &[u8]) -> bool {
    could_be_hello(answer) && answer.get(RETRY_LEN - 32..RETRY_LEN) == Some(&RETRY[..])
}

/// Reads until the second hello is complete; early data and a dummy change of ciphers may come before it.
async fn second_hello(sandbox: &mut TcpStream) -> Result<(Hello, BytesMut), VetError> {
    let mut bytes = BytesMut::new();
    let mut at = 0;
    loop {
        match bytes[at..] {
            [CHANGE_CIPHER_SPEC | APPLICATION, _, _, a, b, ..] => {
                let next = at + 5 + usize::from(u16::from_be_bytes([a, b]));
                if next <= bytes.len() {
                    at = next;
                    continue;
                }
            }
            [HANDSHAKE, ..] => {
                if let Some(hello) = Hello::parse(&bytes[at..]).map_err(|_| VetError::NotTls)? {
                    return Ok((hello, bytes));
                }
            }
            [] | [CHANGE_CIPHER_SPEC | APPLICATION, ..] => {}
            _ => return Err(VetError::NotTls),
        }
        // Early data is small: servers limit it, and none accepts more than this.
        if bytes.len() > 4 * LONGEST {
            return Err(VetError::NotTls);
        }
        read_some(sandbox, &mut bytes).await?;
    }
}

async fn read_some(stream: &mut TcpStream, bytes: &mut BytesMut) -> Result<(), VetError> {
    bytes.reserve(4096);
    let read = timeout(ANSWER_DEADLINE, stream.read_buf(bytes)).await;
    match read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
        0 => Err(VetError::Io(io::ErrorKind::UnexpectedEof.into())),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "tunnel/tests.rs"]
mod tests;
