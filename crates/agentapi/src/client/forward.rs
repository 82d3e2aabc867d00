//! Forwards a foreign request to the agent and its response back, with the agent token in place of the presented
//! credentials.
//!
//! ```text
//! request ─► head cleaned, token inserted ─► a connection of this client ─► agent
//! response ◄─ head cleaned ◄──────────────── body as it arrives ◄───────────┘
//! ```
//!
//! Bodies are streamed both ways and not inspected. The task that waits for the response drives the connection
//! (`atoll_relay`). When the instance ends during a response, its body fails, so a truncated response never appears
//! complete. The caller decides which routes of the agent a request may use.

mod head;
mod idle;

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_relay::{RelayBody, RelayError};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::AgentClient;
use crate::error::AgentError;

pub(super) use idle::IdleConnections;
use idle::{ForwardBody, ForwardConnection, ReturnTo};

/// LIMIT: a new connection costs 0.1 ms; the rest is for an overloaded machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// LIMIT: how long neither a byte of the request nor the head of the response may arrive. Removing a large tree takes
/// as long as the disk needs.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);

impl AgentClient {
    /// Sends a request to the agent unchanged, except for hop-by-hop fields, `Host` and the token, and returns its
    /// response. Path and query are forwarded literally.
    pub async fn forward<B>(&self, request: Request<B>) -> Result<Response<Forwarded>, AgentError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let seen = Arc::new(BodyProgress::default());
        let (mut parts, body) = request.into_parts();
        head::to_agent(&mut parts, self.token())?;
        self.add_file_rights(&mut parts.headers);
        let has_body = !body.is_end_stream();
        let body = TrackedBody::new(body.map_err(io::Error::other), &seen).boxed_unsync();
        let (connection, response) = self.send(Request::from_parts(parts, body), &seen).await?;
        let (mut parts, body) = response.into_parts();
        // An agent that refuses may not have read the whole body, and closes the connection then.
        if has_body && !parts.status.is_success() {
            seen.left.store(true, Ordering::Relaxed);
        }
        head::from_agent(&mut parts.headers);
        let pool = ReturnTo { idle: Arc::clone(&self.inner.idle), progress: seen };
        Ok(Response::from_parts(parts, Forwarded(RelayBody::new(body, Some(connection), pool))))
    }

    async fn send(
        &self,
        mut request: Request<ForwardBody>,
        seen: &BodyProgress,
    ) -> Result<(ForwardConnection, Response<Incoming>), AgentError> {
        while let Some(mut connection) = self.inner.idle.take() {
            connection.ends_with(self.patience.gone());
            if !connection.is_ready().await {
                continue;
            }
            match self.exchange(&mut connection, request, seen).await {
                Ok(response) => return Ok((connection, response)),
                Err(NotSent::Whole(unsent)) => request = *unsent,
                Err(NotSent::Broken(error)) => return Err(error),
            }
        }
        let connecting = idle::connect(&self.inner.transport, self.patience.gone());
        let mut connection = self.patience.within("connect", CONNECT_LIMIT, connecting).await?;
        match self.exchange(&mut connection, request, seen).await {
            Ok(response) => Ok((connection, response)),
            Err(NotSent::Whole(_)) => Err(AgentError::Protocol("a fresh connection takes no request")),
            Err(NotSent::Broken(error)) => Err(error),
        }
    }

    /// The head of the response. An upload may take as long as its bytes arrive.
    async fn exchange(
        &self,
        connection: &mut ForwardConnection,
        request: Request<ForwardBody>,
        seen: &BodyProgress,
    ) -> Result<Response<Incoming>, NotSent> {
        let mut sending = std::pin::pin!(connection.send(request));
        loop {
            let sent = async { Ok(sending.as_mut().await) };
            match self.patience.within("forwarded request", SILENCE_LIMIT, sent).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(mut refused)) => {
                    return Err(match refused.take_message() {
                        Some(unsent) => NotSent::Whole(Box::new(unsent)),
                        None => NotSent::Broken(broken(refused.into_error())),
                    });
                }
                Err(AgentError::Deadline { .. }) if seen.moved.swap(false, Ordering::Relaxed) => {}
                Err(error) => return Err(NotSent::Broken(error)),
            }
        }
    }
}

enum NotSent {
    /// No byte of the request was sent.
    Whole(Box<Request<ForwardBody>>),
    Broken(AgentError),
}

fn broken(error: hyper::Error) -> AgentError {
    // Only the body of the request comes from the user.
    if error.is_user() { AgentError::Upload(io::Error::other(error)) } else { AgentError::Transport(error) }
}

/// How far the body of a request was read.
#[derive(Default)]
struct BodyProgress {
    /// Since the last check.
    moved: AtomicBool,
    /// To its end: only then the connection can serve another request.
    whole: AtomicBool,
    /// Possibly not read by the agent.
    left: AtomicBool,
}

impl BodyProgress {
    fn serves_again(&self) -> bool {
        self.whole.load(Ordering::Relaxed) && !self.left.load(Ordering::Relaxed)
    }
}

/// The body of a request, with progress tracking.
struct TrackedBody<B> {
    body: B,
    seen: Arc<BodyProgress>,
}

impl<B: Body> TrackedBody<B> {
    fn new(body: B, seen: &Arc<BodyProgress>) -> Self {
        seen.whole.store(body.is_end_stream(), Ordering::Relaxed);
        Self { body, seen: Arc::clone(seen) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.seen.whole.store(true, Ordering::Relaxed),
            Poll::Ready(Some(Ok(_))) => {
                self.seen.moved.store(true, Ordering::Relaxed);
                if self.body.is_end_stream() {
                    self.seen.whole.store(true, Ordering::Relaxed);
                }
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of the agent's response. It drives its connection, and gives it back at its end; if dropped earlier, it
/// closes it.
pub struct Forwarded(RelayBody<ForwardBody, ReturnTo>);

impl std::fmt::Debug for Forwarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarded").finish_non_exhaustive()
    }
}

impl Body for Forwarded {
    type Data = Bytes;
    type Error = AgentError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AgentError>>> {
        Pin::new(&mut self.0).poll_frame(cx).map_err(|error| match error {
            RelayError::Peer(error) => AgentError::Transport(error),
            RelayError::Ended => AgentError::Ended,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests;
