//! One exec in a container of a daemon on another machine, which carries all connections to ports inside: an exec for each
//! connection would cost tens of milliseconds. The other end is `atoll-agent --connections stdio`; the protocol is HTTP/2.

use std::io;

use atoll_agentapi::exec_stream::{CONNECTION_WINDOW, CONNECTIONS_MAX, WINDOW};
use bollard::container::LogOutput;
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;
use tokio_util::io::StreamReader;

use crate::daemon::ExecPipes;

/// A stream of connections. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct ExecStream {
    sender: SendRequest<Empty<Bytes>>,
    _connection: JoinSet<()>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ExecDialError {
    /// No program listens on the port.
    PortClosed,
    /// The other end refused, with this status.
    Refused(StatusCode),
    /// The stream has ended.
    Ended(hyper::Error),
}

impl ExecStream {
    /// Takes over the pipes of an exec.
    pub(crate) async fn open(pipes: ExecPipes) -> Result<Self, hyper::Error> {
        let output = pipes.output.filter_map(|piece| {
            std::future::ready(match piece {
                Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
                Ok(_) => None,
                Err(error) => Some(Err(io::Error::other(error))),
            })
        });
        let stream = tokio::io::join(StreamReader::new(output), pipes.input);
        let handshake = Builder::new(TokioExecutor::new())
            .max_concurrent_streams(CONNECTIONS_MAX)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a stream of connections into a container ended");
            }
        });
        Ok(Self { sender, _connection: tasks })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A connection to a port inside.
    pub(crate) async fn connect(&self, port: u16) -> Result<TokioIo<Upgraded>, ExecDialError> {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = http::Method::CONNECT;
        *request.uri_mut() = http::Uri::from_parts(authority(port)).unwrap_or_default();
        let answer = self.sender.clone().send_request(request).await.map_err(ExecDialError::Ended)?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::BAD_GATEWAY => return Err(ExecDialError::PortClosed),
            other => return Err(ExecDialError::Refused(other)),
        }
        hyper::upgrade::on(answer).await.map(TokioIo::new).map_err(ExecDialError::Ended)
    }
}

fn authority(port: u16) -> http::uri::Parts {
    let mut parts = http::uri::Parts::default();
    parts.authority = format!("127.0.0.1:{port}").parse().ok();
    parts
}
