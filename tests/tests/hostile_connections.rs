//! Connections that mean harm, most of them without any key: frames of HTTP/2 that only cost the other side, crowds that say
//! nothing, storms at a sandbox that sleeps, ends in the middle. The server keeps its memory and answers others.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::{Client, Options, World, json, run_with, until};
use futures::future::join_all;
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PLAIN: &str = "127.0.0.1:7070";
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
    let id = client.create(json!({ "command": ["python3", "-c", APP], "wake": "any" })).await;
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

/// Writes until the server has had enough, or all is written; whether it ended the connection.
async fn flood(mut stream: TcpStream, pieces: impl Iterator<Item = Vec<u8>>) -> bool {
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
        tokio::time::sleep(Duration::from_secs(2)).await;
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
        flood(http2().await, resets).await;
        let first = std::iter::once(frame(1, 1, 1, HEAD));
        let headers = first.chain(
            (0..20_000)
                .map(|_| frame(9, 0, 1, &[b"\x00\x04abcd\x7f\x81\x07", &vec![b'x'; 262][..]].concat())),
        );
        assert!(flood(http2().await, headers).await, "a head without an end is taken for ever");
        let empty = std::iter::once(frame(1, 1, 1, HEAD)).chain((0..500_000).map(|_| frame(9, 0, 1, b"")));
        assert!(flood(http2().await, empty).await, "empty pieces of a head are taken for ever");
        let pings = (0..300_000).map(|_| frame(6, 0, 0, &[0; 8]));
        flood(http2().await, pings).await;
        let settings = (0..300_000).map(|_| frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]));
        flood(http2().await, settings).await;
        let waited = answers_others(&client).await;
        assert!(waited < Duration::from_secs(3), "others waited {waited:?}");
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
        assert!(waited < Duration::from_secs(2), "others waited {waited:?}");
        let after = memory_mib(w);
        // A little over 40 KiB each, without optimisation.
        assert!(after < before + 200, "{before} MiB became {after} MiB");
        drop(crowd);
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
            tokio::time::timeout(Duration::from_secs(5), end).await.expect("the stream goes on");
        }
        let gone = client.raw(Method::GET, &format!("/p/{id}/8080/")).send().await.unwrap().status().as_u16();
        assert_eq!(gone, 404);
    });
}
