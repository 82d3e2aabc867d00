//! HTTP/1 connections to apps: how one is opened, and where it goes after its response was read.
//!
//! A connection ends with its instance, and shortly after the server began to close. [`atoll_relay`] drives it.

use std::sync::Arc;

use atoll_relay::{ConnectionPool, RelayBody, RelayConnection, Upgrades};
use atoll_service::PortSession;
use axum::body::Body;
use hyper::client::conn::http1;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::pool::{Pool, PoolKey, RequestPermit};

/// LIMIT: bytes of an app's response head, and of one read of a body.
const BUFFER: usize = 256 << 10;

pub(crate) type AppConnection = RelayConnection<Body>;

/// Opens a connection over a new stream; `ends` resolves when the connection must not be used any more.
pub(crate) async fn open(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ends: impl Future<Output = ()> + Send + 'static,
) -> hyper::Result<AppConnection> {
    let mut http = http1::Builder::new();
    // Most requests consist of a head alone: copied into one piece, it takes one short system call.
    http.max_buf_size(BUFFER).writev(false);
    // Header names keep the client's case. HTTP/2 has lower case only, and HTTP/1 servers expect capitals.
    http.preserve_header_case(true).title_case_headers(true);
    RelayConnection::open(&http, Upgrades::Supported, stream, ends).await
}

/// The body of an app's response. The sandbox counts as busy as long as it is read.
pub(crate) type PooledBody = RelayBody<Body, ReturnTo>;

/// Where a connection goes after its response was read, and what the response holds until then.
pub(crate) struct ReturnTo {
    pub(crate) pool: Arc<Pool>,
    pub(crate) key: PoolKey,
    pub(crate) _held: (PortSession, RequestPermit),
}

impl ConnectionPool<Body> for ReturnTo {
    fn put(&mut self, connection: AppConnection) {
        self.pool.put(self.key.clone(), connection);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::Request;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn names_without_a_known_case_get_capitals() {
        let (near, mut far) = tokio::io::duplex(1_024);
        let mut connection = open(near, std::future::pending()).await.unwrap();
        // As over HTTP/2, which has lower case only.
        let request = Request::builder().uri("/").header("host", "h").header("x-some-name", "v");
        let request = request.body(Body::empty()).unwrap();
        let mut head = vec![0; 1_024];
        let sent = tokio::select! {
            read = far.read(&mut head) => read.unwrap(),
            _ = connection.send(request) => panic!("the app does not answer"),
        };
        let head = String::from_utf8_lossy(&head[..sent]).into_owned();
        assert!(head.contains("\r\nX-Some-Name: v\r\n") && head.contains("\r\nHost: h\r\n"), "{head}");
    }
}
