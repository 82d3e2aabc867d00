//! Requests over a connection to a peer that the test controls byte by byte.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::oneshot;

use super::*;
use crate::Upgrades;

type TestBody = Empty<Bytes>;

#[derive(Clone, Default)]
struct TestPool(Arc<Mutex<Vec<RelayConnection<TestBody>>>>);

impl ConnectionPool<TestBody> for TestPool {
    fn put(&mut self, connection: RelayConnection<TestBody>) {
        self.0.lock().unwrap().push(connection);
    }
}

impl TestPool {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A connection, the peer's end of its stream, and a sender that closes it.
async fn open() -> (RelayConnection<TestBody>, DuplexStream, oneshot::Sender<()>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (cut, ends) = oneshot::channel::<()>();
    let ends = async move {
        if ends.await.is_err() {
            std::future::pending().await
        }
    };
    let http = http1::Builder::new();
    (RelayConnection::open(&http, Upgrades::Unsupported, near, ends).await.unwrap(), far, cut)
}

fn get() -> Request<TestBody> {
    Request::builder().uri("/").header("host", "h").body(Empty::new()).unwrap()
}

/// Sends a request over `connection` and answers it with `response`.
async fn exchange(
    connection: &mut RelayConnection<TestBody>,
    peer: &mut DuplexStream,
    response: &str,
) -> Response<Incoming> {
    let answering = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(peer.read_u8().await.unwrap());
        }
        peer.write_all(response.as_bytes()).await.unwrap();
    };
    let (sent, ()) = tokio::join!(connection.send(get()), answering);
    sent.unwrap()
}

#[tokio::test]
async fn a_connection_returns_to_the_pool_when_its_response_was_read() {
    let (mut connection, mut peer, _cut) = open().await;
    let pool = TestPool::default();
    for (response, body) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "hi"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"),
    ] {
        assert!(connection.is_ready().await);
        let answer = exchange(&mut connection, &mut peer, response).await;
        let read = RelayBody::new(answer.into_body(), Some(connection), pool.clone()).collect().await;
        assert_eq!(read.unwrap().to_bytes(), body);
        connection = pool.0.lock().unwrap().pop().unwrap();
    }
    let answer = exchange(&mut connection, &mut peer, "HTTP/1.1 204 No Content\r\n\r\n").await;
    drop(RelayBody::new(answer.into_body(), Some(connection), pool.clone()));
    assert_eq!(pool.len(), 1, "an empty response is never polled");
}

#[tokio::test]
async fn a_response_that_is_dropped_early_closes_its_connection() {
    let (mut connection, mut peer, _cut) = open().await;
    let pool = TestPool::default();
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhi";
    let answer = exchange(&mut connection, &mut peer, response).await;
    drop(RelayBody::new(answer.into_body(), Some(connection), pool.clone()));
    assert_eq!(pool.len(), 0);
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn an_incomplete_response_never_looks_complete() {
    for is_cut_here in [false, true] {
        let (mut connection, mut peer, cut) = open().await;
        let pool = TestPool::default();
        let response = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nA1\r\n";
        let answer = exchange(&mut connection, &mut peer, response).await;
        let mut body = RelayBody::new(answer.into_body(), Some(connection), pool.clone());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "A1");
        let kept = if is_cut_here {
            cut.send(()).unwrap();
            Some(peer)
        } else {
            drop(peer);
            None
        };
        match body.frame().await.unwrap() {
            Err(RelayError::Ended) => assert!(is_cut_here),
            // A chunked body has no end if its connection was closed.
            Err(RelayError::Peer(_)) => {}
            Ok(frame) => panic!("{frame:?}"),
        }
        drop((body, kept));
        assert_eq!(pool.len(), 0);
    }
}

#[tokio::test]
async fn a_connection_that_the_peer_closed_while_idle_is_not_ready() {
    let (mut connection, peer, _cut) = open().await;
    assert!(connection.is_ready().await);
    drop(peer);
    tokio::task::yield_now().await;
    assert!(!connection.is_ready().await);
    assert!(!connection.was_cut());
    let mut refused = connection.send(get()).await.unwrap_err();
    assert!(refused.take_message().is_some(), "no part of the request was sent");
}

#[tokio::test]
async fn the_future_that_ends_a_connection_can_be_replaced() {
    let (mut connection, _peer, cut) = open().await;
    connection.ends_with(std::future::pending());
    drop(cut);
    assert!(connection.is_ready().await);
    connection.ends_with(std::future::ready(()));
    assert!(!connection.is_ready().await);
    assert!(connection.was_cut());
}
