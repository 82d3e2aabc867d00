//! `atoll-agent --connections stdio`: carries connections to ports of this sandbox over standard input and output, for a host
//! that cannot enter the sandbox's network namespace, such as that of a Docker daemon on another machine.
//!
//! The protocol is HTTP/2, which has flow control for each connection: a connection is a request `CONNECT 127.0.0.1:PORT`.
//! The answer 502 says that no program listens on the port. The process ends with its standard input.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use atoll_agentapi::exec_stream::{CONNECTION_WINDOW, CONNECTIONS_MAX, WINDOW};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;

/// Serves standard input and output, which have to be pipes.
pub(crate) async fn serve() -> io::Result<()> {
    let input = pipe::Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let output = pipe::Sender::from_owned_fd(io::stdout().as_fd().try_clone_to_owned()?)?;
    carry(tokio::io::join(input, output)).await
}

/// Serves one stream until it ends.
async fn carry(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> io::Result<()> {
    http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(CONNECTIONS_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(TokioIo::new(stream), service_fn(connect))
        .await
        .map_err(io::Error::other)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the task ends with its connection, and the process with the stream"
)]
async fn connect(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let port = request.uri().port_u16().filter(|_| request.method() == Method::CONNECT);
    let Some(port) = port else { return Ok(refusal(StatusCode::BAD_REQUEST)) };
    let mut connection = match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(connection) => connection,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Ok(refusal(StatusCode::BAD_GATEWAY));
        }
        Err(_) => return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE)),
    };
    let _ = connection.set_nodelay(true);
    tokio::spawn(async move {
        let Ok(stream) = hyper::upgrade::on(request).await else { return };
        // An error means that one of both ended early, and the other ends with it.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(stream), &mut connection).await;
    });
    Ok(Response::new(Empty::new()))
}

fn refusal(status: StatusCode) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    type Sender = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

    async fn sender() -> Sender {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(carry(theirs));
        let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = handshake.handshake(TokioIo::new(ours)).await.expect("a handshake");
        tokio::spawn(connection);
        sender
    }

    async fn dial(sender: &Sender, port: u16) -> Response<Incoming> {
        let request = Request::connect(format!("127.0.0.1:{port}")).body(Empty::new()).expect("a request");
        sender.clone().send_request(request).await.expect("an answer")
    }

    #[tokio::test]
    async fn one_stream_carries_many_connections_and_a_stalled_one_stops_no_other() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = connection.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    let _ = write.shutdown().await;
                });
            }
        });
        let sender = sender().await;
        let opened = dial(&sender, port).await;
        assert_eq!(opened.status(), StatusCode::OK);
        let mut stalled = TokioIo::new(hyper::upgrade::on(opened).await.expect("a connection"));
        // More than all buffers of one connection hold, and nobody reads what comes back.
        let flood = async { while stalled.write_all(&[7; 64 << 10]).await.is_ok() {} };
        assert!(
            tokio::time::timeout(std::time::Duration::from_secs(1), flood).await.is_err(),
            "it has to stall"
        );
        for _ in 0..20 {
            let mut echo =
                TokioIo::new(hyper::upgrade::on(dial(&sender, port).await).await.expect("a connection"));
            echo.write_all(b"one of many").await.expect("sent");
            echo.shutdown().await.expect("half closed");
            let mut back = String::new();
            echo.read_to_string(&mut back).await.expect("received");
            assert_eq!(back, "one of many");
        }
    }

    #[tokio::test]
    async fn a_closed_port_and_other_requests_are_refused() {
        let sender = sender().await;
        let closed =
            std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        assert_eq!(dial(&sender, closed).await.status(), StatusCode::BAD_GATEWAY);
        let other = Request::get("http://127.0.0.1:1/").body(Empty::new()).expect("a request");
        let answer = sender.clone().send_request(other).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    }
}
