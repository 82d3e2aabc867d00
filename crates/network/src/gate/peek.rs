//! Detects how a connection begins. It reads no more than necessary, within a deadline; everything read is kept.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::hello::{self, BadHello, Hello};
use super::host::Host;

/// How long a client may take until its protocol is known.
const DEADLINE: Duration = Duration::from_secs(10);
/// LIMIT: bytes of the head of the first request.
pub(crate) const LONGEST_HEAD: usize = 64 << 10;
const LONGEST_METHOD: usize = 20;

/// How a connection begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStart {
    Tls(Hello),
    /// The head of a request is complete.
    Http,
    /// Something else, and why it is neither.
    Other(String),
    /// Nothing arrived in time.
    Silent,
}

/// Reads until the protocol is known. `patience` is how long to wait for the first byte.
pub(crate) async fn peek(
    stream: &mut TcpStream,
    patience: Option<Duration>,
) -> io::Result<(ConnectionStart, BytesMut)> {
    let mut bytes = BytesMut::new();
    let mut looked_at = 0;
    let start = Instant::now();
    loop {
        if is_worth_a_look(&bytes, looked_at)
            && let Some(begins) = classify(&bytes)
        {
            return Ok((begins, bytes));
        }
        looked_at = bytes.len();
        let wait = if bytes.is_empty() { patience.unwrap_or(DEADLINE) } else { DEADLINE };
        bytes.reserve(4096);
        match timeout_at(start + wait, stream.read_buf(&mut bytes)).await {
            Ok(Ok(0)) if bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(0)) => return Ok((ConnectionStart::Other("it ended early".to_owned()), bytes)),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) if bytes.is_empty() => return Ok((ConnectionStart::Silent, bytes)),
            Err(_) => return Ok((ConnectionStart::Other("it came too slowly".to_owned()), bytes)),
        }
    }
}

/// Whether the bytes after the first `looked_at` can complete the decision. A client that sends byte by byte must not
/// make the gate parse everything again for each byte.
fn is_worth_a_look(bytes: &[u8], looked_at: usize) -> bool {
    if looked_at <= LONGEST_METHOD {
        return true;
    }
    match bytes.first() {
        Some(22) => bytes.len() >= hello::LONGEST || hello::whole_records(bytes) > looked_at,
        // An end may have begun in the earlier bytes.
        _ => bytes.len() >= LONGEST_HEAD || head_end(&bytes[looked_at - 3..]).is_some(),
    }
}

/// `None` while the protocol is not known yet.
fn classify(bytes: &[u8]) -> Option<ConnectionStart> {
    match bytes.first()? {
        22 => match Hello::parse(bytes) {
            Ok(hello) => hello.map(ConnectionStart::Tls),
            Err(bad @ BadHello(..)) => Some(ConnectionStart::Other(bad.to_string())),
        },
        b'A'..=b'Z' => classify_text(bytes),
        _ => Some(ConnectionStart::Other("neither tls nor http".to_owned())),
    }
}

fn classify_text(bytes: &[u8]) -> Option<ConnectionStart> {
    let other = |why: &str| Some(ConnectionStart::Other(why.to_owned()));
    let method_len = bytes.iter().position(|b| !b.is_ascii_uppercase());
    match method_len {
        None if bytes.len() <= LONGEST_METHOD => return None,
        Some(len) if len <= LONGEST_METHOD && bytes[len] == b' ' => {}
        None | Some(_) => return other("neither tls nor http"),
    }
    if bytes.starts_with(b"PRI ") {
        return other("http: version 2 without tls");
    }
    match head_end(bytes) {
        Some(_) => Some(ConnectionStart::Http),
        None if bytes.len() >= LONGEST_HEAD => other("http: a head that is too long"),
        None => None,
    }
}

/// The end of a request's head, for both forms of line ends.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let ends = |at: usize| match bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    };
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').find_map(|(at, _)| ends(at))
}

/// The host of a first request, if it names exactly one.
pub(crate) fn first_host(bytes: &[u8]) -> Option<Host> {
    let head = &bytes[..head_end(bytes)?];
    let mut hosts = head.split(|byte| *byte == b'\n').filter_map(|line| {
        let (name, value) = line.split_at_checked(line.iter().position(|byte| *byte == b':')?)?;
        name.eq_ignore_ascii_case(b"host").then_some(value[1..].trim_ascii())
    });
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Host::parse(host),
        _ => None,
    }
}

/// Why the head of a first request is ambiguous. The HTTP library would correct such a request and close the connection
/// after it; such a request is an attack, so it is refused with the reason.
pub(crate) fn is_ambiguous(bytes: &[u8]) -> Option<&'static str> {
    let head = &bytes[..head_end(bytes)?];
    let mut framing = [0usize; 2];
    for line in head.split_inclusive(|byte| *byte == b'\n').skip(1) {
        if !line.ends_with(b"\r\n") {
            return Some("http: a line without a carriage return");
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Some("http: a folded header");
        }
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii();
        framing[0] += usize::from(name.eq_ignore_ascii_case(b"content-length"));
        framing[1] += usize::from(name.eq_ignore_ascii_case(b"transfer-encoding"));
    }
    match framing {
        [0 | 1, 0] | [0, 1] => None,
        _ => Some("http: two lengths"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_told_from_other_things() {
        assert_eq!(classify(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"), Some(ConnectionStart::Http));
        assert_eq!(classify(b"GET / HTTP/1.1\r\nHost: a.test\r\n"), None);
        assert_eq!(classify(b"GE"), None);
        assert_eq!(classify(b""), None);
        for other in [
            &b"SSH-2.0-OpenSSH_9.9\r\n"[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"get / HTTP/1.1\r\n\r\n",
            b"\x00\x01",
            b"\x15\x03\x01",
            b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            b"GET\t/ HTTP/1.1\r\n\r\n",
        ] {
            assert!(matches!(classify(other), Some(ConnectionStart::Other(_))), "{other:?}");
        }
        let endless = [&b"GET / HTTP/1.1\r\n"[..], &[b'a'; LONGEST_HEAD]].concat();
        assert!(matches!(classify(&endless), Some(ConnectionStart::Other(_))));
    }

    /// How often input that arrives byte by byte is parsed, and the result.
    fn trickle(bytes: &[u8]) -> (usize, Option<ConnectionStart>) {
        let mut looks = 0;
        for len in 1..=bytes.len() {
            if is_worth_a_look(&bytes[..len], len - 1) {
                looks += 1;
                let begins = classify(&bytes[..len]);
                if begins.is_some() {
                    return (looks, begins);
                }
            }
        }
        (looks, None)
    }

    #[test]
    fn a_beginning_that_trickles_in_is_not_read_again_for_every_byte() {
        let head = [b"GET / HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(5_000), b"\r\n".to_vec()].concat();
        let (looks, begins) = trickle(&head);
        assert_eq!((begins, looks < 40), (Some(ConnectionStart::Http), true), "{looks} checks");
        let bare = [b"GET / HTTP/1.1\n".to_vec(), b"a:b\n".repeat(50), b"\n".to_vec()].concat();
        assert_eq!(trickle(&bare).1, Some(ConnectionStart::Http));
        // A hello of the maximal length, record by record.
        let record = |body: &[u8]| [&[22, 3, 1, (body.len() >> 8) as u8, body.len() as u8], body].concat();
        let mut hello = record(&[&[1, 0, 0x50, 0][..], &[0; 600]].concat());
        (0..20).for_each(|_| hello.extend(record(&[0; 600])));
        let (looks, begins) = trickle(&hello);
        assert_eq!((begins, looks < 60), (None, true), "{looks} checks");
        let endless = [&b"GET / HTTP/1.1\r\n"[..], &[b'a'; LONGEST_HEAD]].concat();
        assert!(matches!(trickle(&endless), (0..40, Some(ConnectionStart::Other(_)))));
    }

    #[test]
    fn two_lengths_are_seen_however_they_are_written() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n\r\nbody");
        for bad in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 5",
            "Content-Length: 5\r\nContent-Length: 5",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
            "Content-Length: 5\r\nTransfer-Encoding : chunked",
            "X: 1\nContent-Length: 5",
            "X: 1\r\n folded: 2",
        ] {
            assert!(is_ambiguous(head(bad).as_bytes()).is_some(), "{bad:?}");
        }
        for good in
            ["Content-Length: 5", "Transfer-Encoding: chunked", "X-Content-Length: 5\r\nContent-Length: 4"]
        {
            assert_eq!(is_ambiguous(head(good).as_bytes()), None, "{good:?}");
        }
    }

    #[test]
    fn the_first_host_is_found_or_there_is_none() {
        let host = |head: &str| first_host(head.as_bytes()).map(|host| host.name);
        assert_eq!(host("GET / HTTP/1.1\r\nX: y\r\nhost:  A.test \r\n\r\n").as_deref(), Some("a.test"));
        assert_eq!(host("GET / HTTP/1.1\r\n\r\nHost: a.test\r\n\r\n"), None);
        assert_eq!(host("GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n"), None);
        assert_eq!(host("GET / HTTP/1.1\r\nHost: 1.2.3.4\r\n\r\n"), None);
    }

    proptest! {
        #[test]
        fn no_beginning_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (classify(&bytes), is_ambiguous(&bytes));
            let text = [b"GET ", &bytes[..]].concat();
            let _ = (classify(&text), is_ambiguous(&text), first_host(&text));
        }
    }

    #[test]
    fn more_bytes_do_not_change_what_a_connection_begins_with() {
        atoll_robustness::check("first_bytes", |bytes| {
            let kind = classify(bytes).as_ref().map(std::mem::discriminant);
            for end in (0..bytes.len()).step_by(bytes.len() / 8 + 1) {
                let _ = is_worth_a_look(bytes, end);
                let earlier = classify(&bytes[..end]).as_ref().map(std::mem::discriminant);
                assert!(earlier.is_none() || earlier == kind, "clear after {end} bytes, different after all");
            }
            let _ = first_host(bytes);
        });
    }
}
