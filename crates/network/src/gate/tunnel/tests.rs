//! Tunnels: ends, half-closed ends, and byte counts.

#![allow(clippy::unwrap_used)]
use std::net::SocketAddrV4;

use tokio::net::TcpListener;

use super::*;

/// Two connected sockets.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

fn flow() -> Flow {
    Flow::new(1, SocketAddrV4::new([203, 0, 113, 1].into(), 443))
}

fn hello(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    let len = u8::try_from(name.len()).unwrap();
    let sni = [&[0, 0, 0, len + 5, 0, len + 3, 0, 0, len][..], name].concat();
    let body = [&[3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0, u8::try_from(sni.len()).unwrap()], &sni]
        .concat();
    let message = [&[1, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat();
    [&[22, 3, 3, 0, u8::try_from(message.len()).unwrap()][..], &message].concat()
}

fn server_hello(random: [u8; 32]) -> Vec<u8> {
    let body = [&[2, 0, 0, 38, 3, 3][..], &random, &[0, 0x13, 1, 0]].concat();
    [&[22, 3, 3, 0, u8::try_from(body.len()).unwrap()][..], &body].concat()
}

/// The result when the server begins with `answer` and the client then sends `second`.
async fn vetted(answer: &[u8], second: &[u8]) -> (Result<(), VetError>, Vec<u8>) {
    let ((mut client, mut sandbox), (mut server, mut upstream)) = (pair().await, pair().await);
    upstream.write_all(answer).await.unwrap();
    client.write_all(second).await.unwrap();
    let result = vet(&mut sandbox, &mut server, &flow(), "a.test").await;
    drop((sandbox, server));
    let (mut heard, mut got) = (vec![0; answer.len()], Vec::new());
    if !matches!(result, Err(VetError::NotTls)) {
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, answer);
    }
    let _ = upstream.read_to_end(&mut got).await;
    (result, got)
}

#[tokio::test]
async fn an_ordinary_answer_is_passed_on_and_nothing_else_read() {
    let (result, got) = vetted(&server_hello([1; 32]), b"rest").await;
    assert!(result.is_ok() && got.is_empty());
    let (result, _) = vetted(&[21, 3, 3, 0, 2, 2, 40], b"").await;
    assert!(result.is_ok(), "an alert passes");
}

#[tokio::test]
async fn a_second_hello_must_ask_for_the_same_name() {
    let retry = server_hello(RETRY);
    let compatible = [&[20, 3, 3, 0, 1, 1][..], &hello("a.test")].concat();
    let (result, got) = vetted(&retry, &compatible).await;
    assert!(result.is_ok());
    assert_eq!(got, compatible);
    for bad in [hello("b.test"), [&[20, 3, 3, 0, 1, 1][..], &hello("b.test")].concat()] {
        let (result, got) = vetted(&retry, &bad).await;
        assert!(matches!(result, Err(VetError::OtherName)));
        assert!(got.is_empty(), "the server heard of another name");
    }
    let (result, got) = vetted(&retry, b"GET / HTTP/1.1\r\n\r\n").await;
    assert!(matches!(result, Err(VetError::NotTls)) && got.is_empty());
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_left() {
    let (result, _) = vetted(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"").await;
    assert!(matches!(result, Err(VetError::NotTls)));
}

#[tokio::test]
async fn each_side_may_end_first() {
    let ((mut client, sandbox), (server, mut upstream)) = (pair().await, pair().await);
    let flow = flow();
    let asks = async {
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let answers = async {
        let mut question = Vec::new();
        upstream.read_to_end(&mut question).await.unwrap();
        upstream.write_all(&vec![7; 8 << 20]).await.unwrap();
        drop(upstream);
        question
    };
    let carried = carry(&sandbox, &server, &flow);
    let (answer, question, carried) = tokio::join!(asks, answers, carried);
    carried.unwrap();
    assert_eq!(question, b"question");
    assert_eq!(answer.len(), 8 << 20);
}
