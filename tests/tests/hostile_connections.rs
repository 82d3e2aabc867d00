//! Connections that mean harm, most of them without any key: frames of HTTP/2 that only cost the other side, crowds that say
//! nothing, storms at a sandbox that sleeps, ends in the middle. The server keeps its memory and answers others.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, World, json, run_with, until};
use futures::future::join_all;
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const PLAIN: &str = "127.0.0.1:7070";
/// LIMIT: how long a client may wait for an answer on a busy machine while others mean harm.
const OTHERS_WAIT: Duration = Duration::from_secs(10);
const APP: &str = r#"
import socketserver, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        self.send_response(200)
        if self.path == "/stream":
            self.send_header("transfer-encoding", "chunked"); self.end_headers()
            while True:
                self.wfile.write(b"1\r\nx\r\n"); self.wfile.flush(); time.sleep(0.05)
        self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"ok")
class Server(ThreadingHTTPServer):
    request_queue_size = 2048
Server(("127.0.0.1", 8080), App).serve_forever()
"#;

fn memory_mib(w: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.server_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

async fn app(client: &Client) -> String {
    // The app has a thread per connection, and a storm on a busy machine opens a thousand of them.
    let body = json!({ "command": ["python3", "-c", APP], "wake": "any", "pids": 2048 });
    let id = client.create(body).await;
    until("the app listens", async || {
        (client.sh(&id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0).then_some(())
    })
    .await;
    id
}

async fn answers_others(client: &Client) -> Duration {
    let begun = Instant::now();
    assert_eq!(client.get("/v1/sandboxes").await.status, 200);
    begun.elapsed()
}

fn frame(kind: u8, flags: u8, stream: u32, data: &[u8]) -> Vec<u8> {
    let size = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&size[1..], &[kind, flags], &stream.to_be_bytes(), data].concat()
}

/// A connection of HTTP/2 that was greeted.
async fn http2() -> TcpStream {
    let mut stream = TcpStream::connect(PLAIN).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(4, 0, 0, b"")).await.unwrap();
    stream
}

/// `GET /v1/sandboxes` without a key, by the static table alone.
const HEAD: &[u8] = b"\x82\x86\x04\x0d/v1/sandboxes\x01\x09localhost";

/// Writes until the server has had enough, or all is written and so much time has passed; whether it ended the connection.
async fn flood(mut stream: TcpStream, pieces: impl Iterator<Item = Vec<u8>>, patience: Duration) -> bool {
    let (mut read, mut write) = stream.split();
    let reading = async {
        let mut buffer = vec![0; 64 << 10];
        while read.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
    };
    let writing = async {
        for piece in pieces {
            if write.write_all(&piece).await.is_err() {
                return true;
            }
        }
        tokio::time::sleep(patience).await;
        false
    };
    tokio::select! { () = reading => true, ended = writing => ended }
}

#[test]
fn frames_that_only_cost_the_other_side_end_their_connection() {
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        let before = memory_mib(w);
        let resets = (0..200_000u32)
            .map(|n| [frame(1, 5, 2 * n + 1, HEAD), frame(3, 0, 2 * n + 1, &8u32.to_be_bytes())].concat());
        // Ended, or answered as fast as they come: what is accepted is gone again at once.
        flood(http2().await, resets, Duration::from_secs(2)).await;
        let first = std::iter::once(frame(1, 1, 1, HEAD));
        let headers = first.chain(
            (0..20_000)
                .map(|_| frame(9, 0, 1, &[b"\x00\x04abcd\x7f\x81\x07", &vec![b'x'; 262][..]].concat())),
        );
        assert!(flood(http2().await, headers, PATIENCE).await, "a head without an end is taken for ever");
        let empty = std::iter::once(frame(1, 1, 1, HEAD)).chain((0..500_000).map(|_| frame(9, 0, 1, b"")));
        assert!(flood(http2().await, empty, PATIENCE).await, "empty pieces of a head are taken for ever");
        let pings = (0..300_000).map(|_| frame(6, 0, 0, &[0; 8]));
        flood(http2().await, pings, Duration::from_secs(2)).await;
        let settings = (0..300_000).map(|_| frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]));
        flood(http2().await, settings, Duration::from_secs(2)).await;
        let waited = answers_others(&client).await;
        assert!(waited < OTHERS_WAIT, "others waited {waited:?}");
        let after = memory_mib(w);
        assert!(after < before + 60, "{before} MiB became {after} MiB");
    });
}

#[test]
fn a_crowd_that_says_nothing_costs_little() {
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        let before = memory_mib(w);
        let mut crowd = Vec::new();
        for n in 0..3_000 {
            let mut stream = TcpStream::connect(PLAIN).await.unwrap();
            match n % 3 {
                0 => {}
                1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX: ").await.unwrap(),
                _ => stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap(),
            }
            crowd.push(stream);
        }
        let waited = answers_others(&client).await;
        assert!(waited < OTHERS_WAIT, "others waited {waited:?}");
        let after = memory_mib(w);
        // A little over 40 KiB each, without optimisation.
        assert!(after < before + 200, "{before} MiB became {after} MiB");
        drop(crowd);
    });
}

/// Waits until the server holds as many bytes of a kind as `is_expected` says; answers how many.
async fn held(w: &World, of: &str, is_expected: impl Fn(u64) -> bool) -> u64 {
    let admin = w.admin();
    let name = format!("atoll_held_{of}_bytes ");
    until(&name, async || {
        let page = admin.raw(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
        line.parse().ok().filter(|bytes| is_expected(*bytes))
    })
    .await
}

/// A connection with so many `GET`s and windows of zero bytes, which reads nothing.
async fn unread_streams(path: &str, streams: u32) -> TcpStream {
    let mut stream = TcpStream::connect(PLAIN).await.unwrap();
    let path = [&[4, u8::try_from(path.len()).unwrap()], path.as_bytes()].concat();
    let head = [b"\x82\x86", &path[..], b"\x01\x09localhost"].concat();
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    all.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    all.extend((0..streams).flat_map(|n| frame(1, 5, 2 * n + 1, &head)));
    // One that opens too many is closed.
    let _ = stream.write_all(&all).await;
    stream
}

#[test]
fn answers_that_strangers_do_not_read_cost_their_share() {
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        for (path, connections) in [("/v1/openapi.json", 16), ("/health", 48), ("/nowhere", 48)] {
            let before = memory_mib(w);
            let crowd = join_all((0..connections).map(|_| unread_streams(path, 250))).await;
            held(w, "strangers", |bytes| bytes > 8 << 20).await;
            let waited = answers_others(&client).await;
            assert!(waited < OTHERS_WAIT, "{path}: others waited {waited:?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
            let after = memory_mib(w);
            assert!(after < before + 60, "{path}: {before} MiB became {after} MiB");
            drop(crowd);
            held(w, "strangers", |bytes| bytes == 0).await;
        }
    });
}

#[test]
fn bodies_that_an_app_does_not_read_are_counted() {
    const CLIENTS: u64 = 4;
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let code =
            "import socket, time\ns = socket.create_server(('127.0.0.1', 8080), backlog=64)\ntime.sleep(1e6)";
        let id = client.create(json!({ "command": ["python3", "-c", code] })).await;
        until("the app listens", async || {
            (client.sh(&id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0).then_some(())
        })
        .await;
        let upload = async || {
            let stream = TcpStream::connect(PLAIN).await.unwrap();
            let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
            let connection = tokio::spawn(connection);
            let request = http::Request::post(format!("http://localhost/p/{id}/8080/"))
                .header("authorization", format!("Bearer {}", client.key()));
            let (answer, mut body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
            // Until the server reads no more of it.
            loop {
                body.reserve_capacity(64 << 10);
                let room = std::future::poll_fn(|cx| body.poll_capacity(cx));
                match tokio::time::timeout(Duration::from_secs(3), room).await {
                    Ok(room) => body.send_data(vec![0; room.unwrap().unwrap()].into(), false).unwrap(),
                    Err(_) => return (sender, connection, answer, body),
                }
            }
        };
        let uploads = join_all((0..CLIENTS).map(|_| upload())).await;
        held(w, "tenants", |bytes| bytes >= CLIENTS * (256 << 10)).await;
        for (sender, connection, answer, body) in uploads {
            connection.abort();
            drop((sender, answer, body));
        }
        held(w, "tenants", |bytes| bytes == 0).await;
    });
}

/// A connection from an address of its own, after a request.
async fn asked(from: [u8; 4], path: &str, key: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((std::net::Ipv4Addr::from(from), 0).into()).unwrap();
    let mut stream = socket.connect(PLAIN.parse().unwrap()).await.unwrap();
    ask(&mut stream, path, key).await;
    stream
}

async fn ask(stream: &mut TcpStream, path: &str, key: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 16 << 10];
    let size = stream.read(&mut answer).await.unwrap();
    assert!(answer[..size].starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer[..size]));
}

#[test]
fn requests_without_a_key_do_not_keep_a_place_for_ever() {
    const CROWD: usize = 1_100;
    const PER_ADDRESS: usize = 1_024;
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        let from = [127, 0, 0, 9];
        let mut known = asked(from, "/v1/sandboxes", client.key()).await;
        let mut crowd = Vec::new();
        for n in 0..CROWD {
            let (path, key) = if n % 2 == 0 { ("/health", "") } else { ("/v1/sandboxes", "wrong") };
            crowd.push(asked(from, path, key).await);
        }
        let mut rest = vec![0; 16 << 10];
        let mut is_closed = |stream: &TcpStream| match stream.try_read(&mut rest) {
            Ok(size) => size == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        };
        until("the oldest of them are closed", async || {
            crowd.iter().take(CROWD - PER_ADDRESS).all(&mut is_closed).then_some(())
        })
        .await;
        assert!(crowd.iter().skip(CROWD - PER_ADDRESS).all(|stream| !is_closed(stream)));
        ask(&mut known, "/v1/sandboxes", client.key()).await;
        asked(from, "/v1/sandboxes", client.key()).await;
    });
}

#[test]
fn a_storm_at_a_sandbox_that_sleeps_wakes_it_once_and_all_are_answered() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        client.act(&id, "pause").await.ok();
        let one = async |n: usize| {
            let path = if n.is_multiple_of(2) { format!("/p/{id}/8080/") } else { "/".to_owned() };
            let request = client.raw(Method::GET, &path);
            let request = if n.is_multiple_of(2) {
                request
            } else {
                request.header("host", format!("8080-{id}.localhost"))
            };
            match request.send().await {
                Ok(answer) => (answer.status().as_u16(), answer.text().await.unwrap_or_default()),
                Err(error) => (0, error.to_string()),
            }
        };
        let answers = join_all((0..1_000).map(one)).await;
        let bad: Vec<_> = answers.iter().filter(|(status, _)| *status != 200).collect();
        assert!(bad.is_empty(), "{} of 1000 were not answered: {:?}", bad.len(), bad[0]);
        assert_eq!(client.sandbox(&id).await["phase"], "running");
    });
}

#[test]
fn a_sandbox_that_is_deleted_ends_its_streams() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let stream = async || {
            let mut answer = client.raw(Method::GET, &format!("/p/{id}/8080/stream")).send().await.unwrap();
            answer.chunk().await.unwrap().unwrap();
            answer
        };
        let streams = join_all((0..20).map(|_| stream())).await;
        client.remove(&id).await;
        for mut answer in streams {
            let end = async { while let Ok(Some(_)) = answer.chunk().await {} };
            tokio::time::timeout(PATIENCE, end).await.expect("the stream goes on");
        }
        let gone = client.raw(Method::GET, &format!("/p/{id}/8080/")).send().await.unwrap().status().as_u16();
        assert_eq!(gone, 404);
    });
}
