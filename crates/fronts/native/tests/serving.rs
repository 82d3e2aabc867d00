//! The serve loop against clients that behave badly, over real sockets on loopback.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use atoll_front_native::{ServeLimits, Shutdown, serve};
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

struct Server {
    address: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

async fn server(limits: ServeLimits) -> Server {
    let shutdown = Shutdown::default();
    let closing = shutdown.clone();
    let ticks = move || {
        let closing = closing.clone();
        async move {
            let ticks = futures::stream::repeat(Bytes::from_static(b"tick\n")).then(|tick| async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, Infallible>(tick)
            });
            Body::from_stream(ticks.take_until(closing.draining()))
        }
    };
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "slow"
    };
    let router = Router::new()
        .route("/ok", get(|| async { "ok" }))
        .route("/slow", get(slow))
        .route("/never", get(std::future::pending::<&str>))
        .route("/ticks", get(ticks));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(serve(listener, router, shutdown.clone(), limits));
    Server { address, shutdown, task }
}

async fn send(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

async fn ask(server: &Server, path: &str) -> TcpStream {
    send(server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
}

async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut text)).await.expect("the server closes");
    String::from_utf8_lossy(&text).into_owned()
}

async fn ends_within(server: Server, limit: Duration) -> Duration {
    let since = Instant::now();
    timeout(limit, server.task).await.expect("in time").unwrap();
    since.elapsed()
}

#[tokio::test]
async fn a_head_that_never_ends_is_given_up() {
    let server = server(ServeLimits { head_within: Duration::from_millis(200), ..Default::default() }).await;
    let answer = rest(send(&server, "GET /ok HTTP/1.1\r\nHost: x\r\nX-Slow: ").await).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(rest(ask(&server, "/ok").await).await.ends_with("ok"));
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = server(ServeLimits::default()).await;
    let head = format!("GET /ok HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n", "a".repeat(100_000));
    let answer = rest(send(&server, &head).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many: String = (0..200).map(|i| format!("X-{i}: 1\r\n")).collect();
    let answer = rest(send(&server, &format!("GET /ok HTTP/1.1\r\nHost: x\r\n{many}\r\n")).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn further_clients_wait_until_there_is_room() {
    let server = server(ServeLimits { connections: 1, ..Default::default() }).await;
    let first = TcpStream::connect(server.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut second = ask(&server, "/ok").await;
    let mut byte = [0];
    assert!(timeout(Duration::from_millis(100), second.read(&mut byte)).await.is_err());
    drop(first);
    assert!(rest(second).await.ends_with("ok"));
}

#[tokio::test]
async fn the_first_signal_finishes_requests_and_ends_streams() {
    let server = server(ServeLimits::default()).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = ask(&server, "/ticks").await;
        let mut start = [0; 16];
        stream.read_exact(&mut start).await.unwrap();
        streams.push(stream);
    }
    let slow = ask(&server, "/slow").await;
    let idle = send(&server, "GET /ok HTTP/1.1\r\nHost: x\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.shutdown.begin();
    let address = server.address;
    ends_within(server, Duration::from_secs(3)).await;
    assert!(rest(slow).await.ends_with("slow"));
    assert!(rest(idle).await.ends_with("ok"));
    for stream in streams {
        assert!(rest(stream).await.ends_with("0\r\n\r\n"), "a stream ends in order");
    }
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_does_not_finish_is_cut_at_the_limit() {
    let server = server(ServeLimits { drain_for: Duration::from_millis(200), ..Default::default() }).await;
    let never = ask(&server, "/never").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.shutdown.begin();
    let took = ends_within(server, Duration::from_secs(2)).await;
    assert!(took >= Duration::from_millis(190), "{took:?}");
    assert_eq!(rest(never).await, "");
}

#[tokio::test]
async fn the_second_signal_is_immediate() {
    let server = server(ServeLimits { drain_for: Duration::from_secs(60), ..Default::default() }).await;
    let _never = ask(&server, "/never").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.shutdown.begin();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.shutdown.force();
    ends_within(server, Duration::from_millis(500)).await;
}
