//! Connections: opened on demand, a few kept idle, one per request in flight. Handles HTTP, not RPC.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::AgentError;

/// LIMIT: enough for a burst of short commands; more would only use descriptors.
const IDLE_MAX: usize = 8;

/// LIMIT: a pause or restore may have closed older idle connections; a new one costs 0.1 ms.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// LIMIT: the head of an agent's answer has a few hundred bytes; larger reads of a body are split.
const BUFFER_MAX: usize = 512 * 1024;

pub(super) type TransportBody = UnsyncBoxBody<Bytes, io::Error>;

pub(super) fn full(bytes: Bytes) -> TransportBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type Dial = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

pub(super) struct Transport {
    dial: Box<dyn Fn() -> Dial + Send + Sync>,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: SendRequest<TransportBody>,
    task: tokio::task::JoinHandle<()>,
    idle_since: Instant,
}

/// The connection owns its task: the task ends when the connection is dropped.
impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Transport {
    pub(super) fn new<F, Fut, S>(connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let dial = move || -> Dial {
            let connecting = connect();
            Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Stream>) })
        };
        Self { dial: Box::new(dial), idle: Mutex::default() }
    }

    /// Sends a request on an idle connection, or on a new one if every idle one turns out to be closed before a byte of
    /// the request was written.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<TransportBody>,
    ) -> Result<AgentResponse, AgentError> {
        while let Some(mut connection) = self.take_idle() {
            if connection.sender.ready().await.is_err() {
                continue;
            }
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answer(response, connection)),
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(AgentError::Transport(refused.into_error())),
                },
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.sender.send_request(request).await.map_err(AgentError::Transport)?;
        Ok(self.answer(response, connection))
    }

    fn answer(self: &Arc<Self>, response: Response<Incoming>, connection: Connection) -> AgentResponse {
        let (head, body) = response.into_parts();
        AgentResponse {
            head,
            body: BodyReader { body, connection: Some(connection), reusable: true, home: Arc::clone(self) },
        }
    }

    /// Opens a new byte stream to the agent.
    pub(super) async fn dial(&self) -> Result<Box<dyn Stream>, AgentError> {
        (self.dial)().await.map_err(AgentError::Connect)
    }

    #[expect(clippy::disallowed_methods, reason = "the connection holds its handle and aborts it")]
    async fn connect(&self) -> Result<Connection, AgentError> {
        let stream = self.dial().await?;
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(BUFFER_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(AgentError::Transport)?;
        let task = tokio::spawn(async move {
            // The sender gets the same error, so it can be dropped here.
            let _ = driver.await;
        });
        Ok(Connection { sender, task, idle_since: Instant::now() })
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| {
            connection.idle_since.elapsed() < IDLE_FOR && !connection.sender.is_closed()
        });
        idle.pop()
    }

    fn keep(&self, mut connection: Connection) {
        connection.idle_since = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }
}

pub(super) struct AgentResponse {
    pub(super) head: http::response::Parts,
    pub(super) body: BodyReader,
}

/// Reads the body of an answer and gives the connection back at its end; if dropped earlier, it closes the connection.
pub(super) struct BodyReader {
    body: Incoming,
    connection: Option<Connection>,
    reusable: bool,
    home: Arc<Transport>,
}

impl BodyReader {
    /// Closes the connection after this answer: the peer may not have read the whole request.
    pub(super) fn forsake(&mut self) {
        self.reusable = false;
    }

    /// The next bytes, or `None` at the end. Cancel-safe: nothing is taken before it is returned.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, AgentError> {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(e)) => return Err(AgentError::Transport(e)),
                None => {
                    if let Some(connection) = self.connection.take()
                        && self.reusable
                    {
                        self.home.keep(connection);
                    }
                    return Ok(None);
                }
            }
        }
    }

    pub(super) async fn read_all(mut self, max: usize) -> Result<Bytes, AgentError> {
        let mut whole = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if whole.len() + chunk.len() > max {
                return Err(AgentError::Protocol("the answer is larger than any can be"));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }
}
