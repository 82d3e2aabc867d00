//! Connections of forwarded requests: how one is opened, and the idle ones.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_relay::{ConnectionPool, RelayConnection, Upgrades};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http1;

use super::BodyProgress;
use crate::client::transport::Transport;
use crate::error::AgentError;

/// LIMIT: a client with many concurrent commands has as many connections; these are kept for its next ones.
const IDLE_MAX: usize = 16;

/// LIMIT: an agent keeps connections ten times as long, and a new one costs 0.1 ms.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// LIMIT: bytes of an agent's response head, and of one read of a body.
const BUFFER_MAX: usize = 256 << 10;

pub(super) type ForwardBody = UnsyncBoxBody<Bytes, io::Error>;
pub(super) type ForwardConnection = RelayConnection<ForwardBody>;

/// `gone` resolves when the instance has ended.
pub(super) async fn connect(
    transport: &Transport,
    gone: impl Future<Output = ()> + Send + 'static,
) -> Result<ForwardConnection, AgentError> {
    let stream = transport.dial().await?;
    let mut http = http1::Builder::new();
    http.max_buf_size(BUFFER_MAX);
    let opened = RelayConnection::open(&http, Upgrades::Unsupported, stream, gone).await;
    opened.map_err(AgentError::Transport)
}

/// Idle connections, the last one used first.
#[derive(Default)]
pub(crate) struct IdleConnections(Mutex<Vec<(ForwardConnection, Instant)>>);

impl IdleConnections {
    pub(super) fn take(&self) -> Option<ForwardConnection> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, since)| since.elapsed() < IDLE_FOR);
        idle.pop().map(|(connection, _)| connection)
    }

    fn put(&self, connection: ForwardConnection) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push((connection, Instant::now()));
        }
    }
}

/// Takes a connection back if the request was also read to its end.
pub(super) struct ReturnTo {
    pub(super) idle: Arc<IdleConnections>,
    pub(super) progress: Arc<BodyProgress>,
}

impl ConnectionPool<ForwardBody> for ReturnTo {
    fn put(&mut self, connection: ForwardConnection) {
        if self.progress.serves_again() {
            self.idle.put(connection);
        }
    }
}
