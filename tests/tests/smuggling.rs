//! Messages that can be read in two ways, and clients that exhaust the server (N07, N18, N21, N22): refused on every
//! port, and the app never sees a request that no client sent.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, World, json, run_with, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SERVER: &str = "127.0.0.1:7070";

/// Notes every byte that it gets, answers every head, and after an upgrade sends back what comes.
const RECORDER: &str = r#"
import socket, threading, sys
def serve(c):
    data = b""
    try:
        while True:
            piece = c.recv(65536)
            if not piece: return
            with open("/tmp/raw", "ab") as f: f.write(piece)
            data += piece
            while b"\r\n\r\n" in data:
                head, data = data.split(b"\r\n\r\n", 1)
                if b"upgrade: websocket" in head.lower():
                    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + data)
                    while True:
                        piece = c.recv(65536)
                        if not piece:
                            c.sendall(b"the end"); c.close(); return
                        c.sendall(piece)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    except OSError: pass
s = socket.create_server(("127.0.0.1", 8080), backlog=256)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
"#;

async fn recorder(client: &Client) -> String {
    let id = client.create(json!({ "command": ["python3", "-c", RECORDER] })).await;
    let listening = async || client.sh(&id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0;
    until("the app listens", async || listening().await.then_some(())).await;
    id
}

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

/// All that comes back before the server closes.
async fn raw(bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(SERVER).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn recorded(client: &Client, id: &str) -> String {
    client.sh(id, "cat /tmp/raw 2>/dev/null").await.stdout
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The server answers at once, whatever else goes on.
async fn answers_quickly() {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        let answer = raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        best = best.min(begun.elapsed());
    }
    assert!(best < Duration::from_millis(500), "{best:?}");
}

#[test]
fn what_can_be_read_in_two_ways_is_refused_and_never_reaches_the_app() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = recorder(&client).await;
        let host = format!("8080-{id}.localhost");
        let lines = format!("Host: {host}\r\nX-Api-Key: {}\r\n", client.key());
        let post = format!("POST /seen HTTP/1.1\r\n{lines}");
        let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n");
        let hidden = format!("GET /hidden HTTP/1.1\r\n{lines}\r\n");
        for attack in [
            format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
            format!("{post}Content-Length: 0\r\nContent-Length: 44\r\n\r\n"),
            format!("{post}Content-Length: 0\r\nContent-Length: 0\r\n\r\n"),
            format!("{post}Content-Length: 0, 44\r\n\r\n"),
            format!("{post}Content-Length: +0\r\n\r\n"),
            format!("{post}Content-Length : 0\r\n\r\n"),
            format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
            format!("{post}Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
            format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
            format!("{post}Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
            format!("{post}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
            format!("{post}X: a\r\n\tfolded\r\n\r\n"),
            format!("{post}X: a\nContent-Length: 0\r\n\r\n"),
            format!("{post}\nContent-Length: 0\n\n"),
            format!("{post}X: a\rContent-Length: 0\r\n\r\n"),
            format!("POST /seen HTTP/1.0\r\n{lines}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            format!("POST /seen HTTP/1.1\n{}\n", lines.replace('\r', "")),
            format!("POST  /seen HTTP/1.1\r\n{lines}\r\n"),
            format!("POST /seen HTTP/1.1 \r\n{lines}\r\n"),
            format!("POST /se en HTTP/1.1\r\n{lines}\r\n"),
            format!(
                "{post}Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n"
            ),
            format!("GET http://81-{id}.localhost/ HTTP/1.1\r\n{lines}\r\n"),
        ] {
            let answer = raw(format!("{attack}{hidden}").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{attack:?}: {answer:?}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{attack:?}: {answer:?}");
        }
        let seen = recorded(&client, &id).await;
        assert_eq!(seen, "", "nothing of this reaches an app");
        // Broken in the middle of a body: the request is there, and nothing behind it.
        for attack in [
            format!("{chunked}0\n\n"),
            format!("{chunked}5\r\nhelloXX0\r\n\r\n"),
            format!("{chunked}5 \r\nhello\r\n0\r\n\r\n"),
            format!("{chunked}5;a\nb\r\nhello\r\n0\r\n\r\n"),
            format!("{chunked}-1\r\n\r\n"),
            format!("{chunked}10000000000000005\r\nhello\r\n0\r\n\r\n"),
            format!("{chunked}0\r\nContent-Length: 9\r\n\r\n"),
        ] {
            let answer = raw(format!("{attack}{hidden}").as_bytes()).await;
            assert!(
                !answer.contains("/hidden") && answer.matches("HTTP/1.1 2").count() <= 1,
                "{attack:?}: {answer:?}"
            );
        }
        let seen = recorded(&client, &id).await;
        assert!(!seen.contains("hidden"), "{seen}");
        // An upgrade that the app does not take ends the connection: what is behind was not looked at.
        let both =
            format!("GET /no HTTP/1.1\r\n{lines}Connection: upgrade\r\nUpgrade: other\r\n\r\n{hidden}");
        let answer = raw(both.as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(!recorded(&client, &id).await.contains("hidden"));
        // Plain requests pass, one behind the other too.
        let twice = format!(
            "POST /a HTTP/1.1\r\n{lines}Content-Length: 0\r\n\r\nGET /b HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
        );
        assert_eq!(raw(twice.as_bytes()).await.matches("HTTP/1.1 200").count(), 2);
    });
}

#[test]
fn clients_that_never_end_do_not_wear_the_server_out() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = recorder(&client).await;
        let host = format!("8080-{id}.localhost");
        let before = resident_kib(w.server_pid());
        // Heads that come a byte at a time, and connections that say nothing.
        let mut slow = Vec::new();
        for n in 0..500 {
            let mut stream = TcpStream::connect(SERVER).await.unwrap();
            if n % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX: ").await.unwrap();
            }
            slow.push(stream);
        }
        answers_quickly().await;
        drop(slow);
        // Heads without an end.
        let long = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "a".repeat(1 << 20));
        let answer = raw(long.as_bytes()).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431") || answer.starts_with("HTTP/1.1 400"),
            "{answer}"
        );
        let many = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{}\r\n", "X: a\r\n".repeat(10_000));
        let answer = raw(many.as_bytes()).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431") || answer.starts_with("HTTP/1.1 400"),
            "{answer}"
        );
        answers_quickly().await;
        let grown = resident_kib(w.server_pid()).saturating_sub(before);
        assert!(grown < 48 << 10, "the server grew by {grown} KiB");
    });
}

#[test]
fn http2_floods_end_their_own_connection() {
    run(async |w| {
        let before = resident_kib(w.server_pid());
        // Streams that are opened and reset at once.
        let mut head = vec![0x82, 0x84, 0x86, 0x41, 0x09];
        head.extend_from_slice(b"localhost");
        let mut flood = preface();
        for n in 0..20_000_u32 {
            frame(&mut flood, 1, 0x5, 1 + 2 * n, &head);
            frame(&mut flood, 3, 0, 1 + 2 * n, &8_u32.to_be_bytes());
        }
        assert!(ends(&flood).await, "a rapid reset goes on");
        // Fields without an end.
        let mut flood = preface();
        frame(&mut flood, 1, 0x1, 1, &head);
        for _ in 0..20_000 {
            frame(&mut flood, 9, 0, 1, &[0x40, 0x01, b'x', 0x01, b'y']);
        }
        assert!(ends(&flood).await, "CONTINUATION goes on");
        // One field that is larger than all may be.
        let mut flood = preface();
        let mut large = head.clone();
        large.extend_from_slice(&[0x40, 0x01, b'x', 0x7f, 0x81, 0xff, 0x07]);
        large.extend(std::iter::repeat_n(b'a', 16_000));
        frame(&mut flood, 1, 0x1, 1, &large);
        for _ in 0..200 {
            frame(&mut flood, 9, 0, 1, &[b'a'; 16_000]);
        }
        assert!(ends(&flood).await, "a head without an end goes on");
        answers_quickly().await;
        let grown = resident_kib(w.server_pid()).saturating_sub(before);
        assert!(grown < 48 << 10, "the server grew by {grown} KiB");
    });
}

#[test]
fn http2_cannot_carry_what_http1_would_read_otherwise() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = recorder(&client).await;
        let host = format!("8080-{id}.localhost");
        let literal = |name: &[u8], value: &[u8]| {
            let mut field = vec![0x00, u8::try_from(name.len()).unwrap()];
            field.extend_from_slice(name);
            assert!(value.len() < 127);
            field.push(u8::try_from(value.len()).unwrap());
            field.extend_from_slice(value);
            field
        };
        let base = [
            vec![0x83, 0x86, 0x84],
            literal(b":authority", host.as_bytes()),
            literal(b"x-api-key", client.key().as_bytes()),
        ]
        .concat();
        let split = b"a\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";
        for (what, bad) in [
            ("CR and LF in a value", literal(b"x", split)),
            ("CR and LF in a name", literal(b"x: a\r\nhidden", b"1")),
            ("CR and LF in a path", literal(b":path", b"/a HTTP/1.1\r\nHost: x\r\n\r\nGET /hidden")),
            ("a transfer coding", literal(b"transfer-encoding", b"chunked")),
            ("a connection field", literal(b"connection", b"keep-alive, x-api-key")),
            ("another host", literal(b"host", b"81-aaaaaaaaaaaaaaaaaaaa.localhost")),
            ("a name in capitals", literal(b"Content-Length", b"0")),
            ("a length that lies", literal(b"content-length", b"3")),
            ("two lengths", [literal(b"content-length", b"40"), literal(b"content-length", b"0")].concat()),
            ("a length that is none", literal(b"content-length", b"+5")),
        ] {
            let mut bytes = preface();
            frame(&mut bytes, 1, 0x4, 1, &[base.clone(), bad].concat());
            frame(&mut bytes, 0, 0x1, 1, b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n");
            let answer = exchange(&bytes).await;
            // An answer of the app would hold its two letters in a DATA frame.
            assert!(!answer.windows(2).any(|two| two == b"ok"), "{what} passed");
        }
        let seen = recorded(&client, &id).await;
        let requests: Vec<&str> = seen.lines().filter(|line| line.ends_with("HTTP/1.1")).collect();
        assert!(!requests.iter().any(|line| line.starts_with("GET /hidden")), "{requests:?}");
        assert!(!seen.contains("\nhidden"), "{seen}");
    });
}

#[test]
fn a_tunnel_holds_nothing_and_a_half_that_closes_is_passed_on() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = recorder(&client).await;
        let head = format!(
            "GET /ws HTTP/1.1\r\nHost: 8080-{id}.localhost\r\nX-Api-Key: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            client.key()
        );
        let open = async || {
            let mut stream = TcpStream::connect(SERVER).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let size = stream.read_buf(&mut answer).await.unwrap();
                assert!(size > 0, "{}", String::from_utf8_lossy(&answer));
            }
            stream
        };
        let before = resident_kib(w.server_pid());
        // A frame of a GiB without a mask, endless fragments and pings, and a client that does not read the app's
        // output.
        for head in [&[0x82, 127, 0, 0, 0, 0, 0x40, 0, 0, 0][..], &[0x02, 0x00], &[0x89, 0x00]] {
            let mut stream = open().await;
            let flood = async {
                loop {
                    if stream.write_all(&head.repeat(16 << 10)).await.is_err() {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(1), flood).await;
        }
        let grown = resident_kib(w.server_pid()).saturating_sub(before);
        assert!(grown < 32 << 10, "the server grew by {grown} KiB");
        let mut stream = open().await;
        stream.write_all(b"half").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "halfthe end");
    });
}

#[test]
fn a_kept_connection_never_leads_to_the_next_sandbox() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let first = recorder(&client).await;
        let ask = |id: &str, path: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: 8080-{id}.localhost\r\nX-Api-Key: {}\r\n\r\n", client.key())
        };
        let mut kept = TcpStream::connect(SERVER).await.unwrap();
        let mut answer = vec![0; 4_096];
        kept.write_all(ask(&first, "/one").as_bytes()).await.unwrap();
        let size = kept.read(&mut answer).await.unwrap();
        assert!(answer[..size].starts_with(b"HTTP/1.1 200"));
        client.remove(&first).await;
        let second = recorder(&client).await;
        kept.write_all(ask(&first, "/two").as_bytes()).await.unwrap();
        let size = kept.read(&mut answer).await.unwrap();
        assert!(answer[..size].starts_with(b"HTTP/1.1 404"), "{}", String::from_utf8_lossy(&answer[..size]));
        assert_eq!(recorded(&client, &second).await, "");
    });
}

fn preface() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, 4, 0, 0, &[]);
    bytes
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

/// Whether the server ends a connection that sends this.
async fn ends(bytes: &[u8]) -> bool {
    let stream = TcpStream::connect(SERVER).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let talk = async {
        let write = async {
            let _ = to.write_all(bytes).await;
        };
        let read = async {
            let mut sink = Vec::new();
            let _ = from.read_to_end(&mut sink).await;
        };
        tokio::join!(write, read)
    };
    tokio::time::timeout(PATIENCE, talk).await.is_ok()
}

/// What comes within a moment.
async fn exchange(bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(SERVER).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_millis(700), stream.read_to_end(&mut answer)).await;
    answer
}
