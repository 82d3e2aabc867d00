//! Requests through a client to a peer that the test controls byte by byte.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicUsize;

use futures::StreamExt;
use http::Method;
use http_body_util::{Empty, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::client::{AgentToken, InstanceLiveness};

/// A client, and the agent's ends of its connections as they are opened.
fn client() -> (AgentClient, mpsc::UnboundedReceiver<DuplexStream>, Arc<AtomicUsize>) {
    let (dialled, ends) = mpsc::unbounded_channel();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let connect = move || {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        counted.fetch_add(1, Ordering::Relaxed);
        let _ = dialled.send(theirs);
        async move { Ok(ours) }
    };
    (AgentClient::new(connect, &AgentToken::new("agents-own")), ends, count)
}

async fn head(peer: &mut DuplexStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(peer.read_u8().await.unwrap());
    }
    String::from_utf8(read).unwrap()
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::builder().uri(path).header("x-access-token", "users").body(Empty::new()).unwrap()
}

async fn text(response: Response<Forwarded>) -> Result<String, AgentError> {
    let whole = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(whole.to_vec()).unwrap())
}

#[tokio::test]
async fn one_connection_serves_one_request_after_the_other() {
    let (client, mut ends, dialled) = client();
    let agent = tokio::spawn(async move {
        let mut peer = ends.recv().await.unwrap();
        let mut heads = Vec::new();
        for answer in [
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            heads.push(head(&mut peer).await);
            peer.write_all(answer.as_bytes()).await.unwrap();
        }
        heads
    });
    assert_eq!(text(client.forward(get("/files?path=%2Fa")).await.unwrap()).await.unwrap(), "hi");
    assert_eq!(client.forward(get("/health")).await.unwrap().status(), 204);
    assert_eq!(text(client.forward(get("/x")).await.unwrap()).await.unwrap(), "abc");
    drop(client.forward(get("/y")).await.unwrap());
    let heads = agent.await.unwrap();
    assert_eq!(dialled.load(Ordering::Relaxed), 1);
    assert!(heads[0].starts_with("GET /files?path=%2Fa HTTP/1.1\r\n"), "{}", heads[0]);
    for head in heads {
        assert!(head.contains("x-access-token: agents-own\r\n") && !head.contains("users"), "{head}");
    }
}

#[tokio::test]
async fn bodies_pass_piece_by_piece_in_both_directions() {
    let (client, mut ends, _) = client();
    let (feed, pieces) = mpsc::channel::<Bytes>(1);
    let body = StreamBody::new(
        futures::stream::unfold(pieces, |mut pieces| async { Some((pieces.recv().await?, pieces)) })
            .map(|piece| Ok::<_, io::Error>(Frame::data(piece)))
            .boxed(),
    );
    let request = Request::builder().method(Method::POST).uri("/s").body(body).unwrap();
    let asking = tokio::spawn(async move { client.forward(request).await });
    let mut peer = ends.recv().await.unwrap();
    assert!(head(&mut peer).await.contains("transfer-encoding: chunked"));
    let mut seen = [0; 8];
    feed.send(Bytes::from_static(b"one")).await.unwrap();
    peer.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"3\r\none\r\n");
    peer.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nA1\r\n").await.unwrap();
    let mut answer = asking.await.unwrap().unwrap().into_body();
    assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "A1");
    // The response has begun, and the request continues.
    feed.send(Bytes::from_static(b"two")).await.unwrap();
    let more = tokio::spawn(async move { answer.frame().await.unwrap().unwrap().into_data().unwrap() });
    peer.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"3\r\ntwo\r\n");
    peer.write_all(b"2\r\nA2\r\n").await.unwrap();
    assert_eq!(more.await.unwrap(), "A2");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_never_looks_whole() {
    let (client, mut ends, _) = client();
    let (tell, pulse) = watch::channel(InstanceLiveness::Beats);
    let client = client.with_pulse(pulse);
    for by_pulse in [false, true] {
        let asking = tokio::spawn({
            let client = client.clone();
            async move { client.forward(get("/s")).await }
        });
        let mut peer = ends.recv().await.unwrap();
        head(&mut peer).await;
        peer.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nA1\r\n").await.unwrap();
        let mut answer = asking.await.unwrap().unwrap().into_body();
        assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "A1");
        let kept = match by_pulse {
            true => {
                tell.send_replace(InstanceLiveness::Gone);
                Some(peer)
            }
            false => {
                drop(peer);
                None
            }
        };
        let end = answer.frame().await.unwrap();
        assert!(end.is_err(), "{end:?}");
        drop(kept);
    }
}

#[tokio::test]
async fn a_connection_on_which_a_body_was_refused_serves_no_other() {
    let (client, mut ends, dialled) = client();
    let agent = tokio::spawn(async move {
        let mut first = ends.recv().await.unwrap();
        head(&mut first).await;
        // The agent refuses before it reads the body, as for an unknown user; then it closes with a delay.
        first.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        let mut second = ends.recv().await.unwrap();
        drop(first);
        head(&mut second).await;
        second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
    });
    let body = Full::new(Bytes::from_static(b"content"));
    let request = Request::builder().method(Method::POST).uri("/files").body(body).unwrap();
    let refused = client.forward(request).await.unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(text(refused).await.unwrap(), "no");
    let next = tokio::time::timeout(Duration::from_secs(60), client.forward(get("/x"))).await;
    assert_eq!(text(next.expect("a connection of its own").unwrap()).await.unwrap(), "hi");
    assert_eq!(dialled.load(Ordering::Relaxed), 2);
    agent.await.unwrap();
}

#[tokio::test]
async fn a_connection_whose_request_was_not_read_serves_no_other() {
    let (client, mut ends, dialled) = client();
    let body = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, io::Error>>());
    let request = Request::builder().method(Method::POST).uri("/files").body(body).unwrap();
    let agent = tokio::spawn(async move {
        let mut kept = Vec::new();
        for answer in ["HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\nno", "HTTP/1.1 204 No\r\n\r\n"] {
            let mut peer = ends.recv().await.unwrap();
            head(&mut peer).await;
            peer.write_all(answer.as_bytes()).await.unwrap();
            kept.push(peer);
        }
        kept
    });
    let refused = client.forward(request).await.unwrap();
    assert_eq!(refused.status(), 400);
    assert_eq!(text(refused).await.unwrap(), "no");
    assert_eq!(client.forward(get("/health")).await.unwrap().status(), 204);
    assert_eq!(dialled.load(Ordering::Relaxed), 2);
    drop(agent.await.unwrap());
}

#[tokio::test]
async fn a_connection_that_died_while_it_waited_is_replaced_unseen() {
    let (client, mut ends, dialled) = client();
    let agent = tokio::spawn(async move {
        for _ in 0..2 {
            let mut peer = ends.recv().await.unwrap();
            head(&mut peer).await;
            peer.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
        }
    });
    drop(client.forward(get("/a")).await.unwrap());
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(client.forward(get("/b")).await.unwrap().status(), 204);
    assert_eq!(dialled.load(Ordering::Relaxed), 2);
    agent.await.unwrap();
}

#[tokio::test]
async fn a_body_that_breaks_off_is_the_callers_fault() {
    let (client, mut ends, _) = client();
    let pieces = [Ok(Frame::data(Bytes::from_static(b"x"))), Err(io::Error::other("gone"))];
    let body = StreamBody::new(futures::stream::iter(pieces));
    let request = Request::builder().method(Method::POST).uri("/files").body(body).unwrap();
    let agent = tokio::spawn(async move {
        let mut peer = ends.recv().await.unwrap();
        let mut all = Vec::new();
        let _ = peer.read_to_end(&mut all).await;
        all
    });
    assert!(matches!(client.forward(request).await, Err(AgentError::Upload(_))));
    drop(client);
    // The request does not appear complete to the agent either.
    assert!(!agent.await.unwrap().ends_with(b"0\r\n\r\n"));
}

#[test]
fn an_agent_that_says_nothing_is_given_up_and_one_that_is_fed_is_not() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (client, mut ends, _) = client();
        let begun = tokio::time::Instant::now();
        let silent = client.forward(get("/x")).await;
        assert!(matches!(silent, Err(AgentError::Deadline { .. })));
        assert_eq!(begun.elapsed(), SILENCE_LIMIT);
        let slow = futures::stream::unfold(0, |n| async move {
            tokio::time::sleep(SILENCE_LIMIT / 2).await;
            (n < 6).then(|| (Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"x"))), n + 1))
        });
        let request = Request::builder().method(Method::POST).uri("/f").body(StreamBody::new(Box::pin(slow)));
        let _silent = ends.recv().await.unwrap();
        let agent = tokio::spawn(async move {
            let mut peer = ends.recv().await.unwrap();
            let mut all = Vec::new();
            while !all.ends_with(b"0\r\n\r\n") {
                all.push(peer.read_u8().await.unwrap());
            }
            peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            peer
        });
        assert_eq!(client.forward(request.unwrap()).await.unwrap().status(), 200);
        drop(agent.await.unwrap());
    });
}

#[tokio::test]
async fn a_full_body_is_sent_with_its_length() {
    let (client, mut ends, _) = client();
    let request = Request::builder()
        .method(Method::POST)
        .uri("/files")
        .header("content-length", "999")
        .body(Full::new(Bytes::from_static(b"abc")))
        .unwrap();
    let asking = tokio::spawn(async move { client.forward(request).await.map(|answer| answer.status()) });
    let mut peer = ends.recv().await.unwrap();
    let head = head(&mut peer).await;
    assert!(head.contains("content-length: 3\r\n") && !head.contains("999"), "{head}");
    peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    assert_eq!(asking.await.unwrap().unwrap(), 200);
}
