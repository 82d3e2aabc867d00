//! The server of `atoll serve` against clients that behave badly, over real sockets on loopback.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::World;
use atoll_front_native::Shutdown;
use atoll_proxy::Limits;
use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::routing::{get, post};
use bytes::Bytes;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// LIMIT: what a busy machine may need for anything that takes milliseconds when it is quiet.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<()>,
    /// Told when a request for `/slow` or `/never` is under way.
    began: Arc<Notify>,
    _world: World,
}

async fn server(limits: Limits) -> Server {
    let world = World::new().await;
    let shutdown = world.shutdown.clone();
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
    let began = Arc::new(Notify::new());
    let tells = began.clone();
    let slow = move || {
        let tells = tells.clone();
        async move {
            tells.notify_one();
            tokio::time::sleep(Duration::from_millis(300)).await;
            "slow"
        }
    };
    let tells = began.clone();
    let never = move || {
        tells.notify_one();
        std::future::pending::<&str>()
    };
    let router = Router::new()
        .route("/ok", get(|| async { "ok" }))
        .route("/slow", get(slow))
        .route("/never", get(never))
        .route("/ticks", get(ticks))
        .route("/refused", post(|| async { (StatusCode::PAYLOAD_TOO_LARGE, "too large") }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http = world.server(router, limits);
    let task = tokio::spawn(async move {
        http.serve(listener).await;
        http.drain().await;
    });
    Server { address, shutdown, task, began, _world: world }
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
    let _ = timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("the server closes");
    String::from_utf8_lossy(&text).into_owned()
}

async fn ends_within(server: Server, limit: Duration) -> Duration {
    let since = Instant::now();
    timeout(limit, server.task).await.expect("in time").unwrap();
    since.elapsed()
}

#[tokio::test]
async fn a_head_that_never_ends_is_given_up() {
    let server = server(Limits { head_within: Duration::from_millis(700), ..Default::default() }).await;
    let answer = rest(send(&server, "GET /ok HTTP/1.1\r\nHost: x\r\nX-Slow: ").await).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(rest(ask(&server, "/ok").await).await.ends_with("ok"));
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = server(Limits::default()).await;
    let head = format!("GET /ok HTTP/1.1\r\nHost: x\r\nX-Big: {}\r\n\r\n", "a".repeat(100_000));
    let answer = rest(send(&server, &head).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many: String = (0..200).map(|i| format!("X-{i}: 1\r\n")).collect();
    let answer = rest(send(&server, &format!("GET /ok HTTP/1.1\r\nHost: x\r\n{many}\r\n")).await).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn further_clients_wait_until_there_is_room() {
    let server = server(Limits { connections: 1, ..Default::default() }).await;
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
    let server = server(Limits::default()).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = ask(&server, "/ticks").await;
        let mut start = [0; 16];
        stream.read_exact(&mut start).await.unwrap();
        streams.push(stream);
    }
    let mut idle = send(&server, "GET /ok HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok") {
        assert!(idle.read_buf(&mut answer).await.unwrap() > 0);
    }
    let slow = ask(&server, "/slow").await;
    server.began.notified().await;
    server.shutdown.begin();
    let address = server.address;
    // Less than what is given to requests that do not end.
    ends_within(server, Duration::from_secs(8)).await;
    assert!(rest(slow).await.ends_with("slow"));
    assert_eq!(rest(idle).await, "");
    for stream in streams {
        assert!(rest(stream).await.ends_with("0\r\n\r\n"), "a stream ends in order");
    }
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_does_not_finish_is_cut_at_the_limit() {
    let server = server(Limits { drain_for: Duration::from_millis(200), ..Default::default() }).await;
    let never = ask(&server, "/never").await;
    server.began.notified().await;
    server.shutdown.begin();
    let took = ends_within(server, PATIENCE).await;
    assert!(took >= Duration::from_millis(190), "{took:?}");
    assert_eq!(rest(never).await, "");
}

#[tokio::test]
async fn the_second_signal_is_immediate() {
    let server = server(Limits { drain_for: Duration::from_secs(60), ..Default::default() }).await;
    let _never = ask(&server, "/never").await;
    server.began.notified().await;
    server.shutdown.begin();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.shutdown.force();
    ends_within(server, Duration::from_secs(20)).await;
}

/// Sends a body in small pieces with pauses, and only then reads the response, as simple clients do.
async fn upload_slowly(server: SocketAddr, head: &str, bytes: usize) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(format!("POST /refused HTTP/1.1\r\nHost: x\r\n{head}\r\n").as_bytes()).await?;
    let piece = vec![b'x'; 64 << 10];
    for sent in 0..bytes / piece.len() {
        stream.write_all(&piece).await?;
        if sent % 16 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let mut answer = vec![0; 4_096];
    let read = timeout(PATIENCE, stream.read(&mut answer)).await.expect("an answer")?;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

#[tokio::test]
async fn an_answer_to_a_body_that_nobody_read_always_arrives() {
    let server = server(Limits::default()).await;
    let address = server.address;
    let length = format!("Content-Length: {}\r\n", 4 << 20);
    let closing = format!("{length}Connection: close\r\n");
    for round in 0..20 {
        let head = if round % 2 == 0 { &length } else { &closing };
        let ten = futures::future::join_all((0..10).map(|_| upload_slowly(address, head, 4 << 20))).await;
        for answer in ten {
            let answer = answer.unwrap_or_else(|error| panic!("round {round}: the answer is lost: {error}"));
            assert!(answer.starts_with("HTTP/1.1 413") && answer.ends_with("too large"), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_connection_serves_on_after_a_body_that_nobody_read() {
    let server = server(Limits::default()).await;
    let head = format!("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 1 << 20);
    let mut stream = send(&server, &head).await;
    stream.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
    stream.write_all(b"GET /ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let answers = rest(stream).await;
    assert!(answers.starts_with("HTTP/1.1 413") && answers.ends_with("\r\n\r\nok"), "{answers}");
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_refused_without_its_body() {
    let server = server(Limits::default()).await;
    let head = "POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n";
    let answer = rest(send(&server, head).await).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn a_body_without_an_end_is_read_only_for_a_while() {
    let server = server(Limits::default()).await;
    let head = "POST /refused HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = send(&server, head).await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(64 << 10));
    let endless = async {
        let mut sent = 0_usize;
        while stream.write_all(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
        }
        sent
    };
    let sent = timeout(PATIENCE, endless).await.expect("the server closes");
    assert!((16 << 20..64 << 20).contains(&sent), "{sent}");
}
