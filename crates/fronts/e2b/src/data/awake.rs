//! A sandbox that runs for a request. It does not count as idle while the response is read.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use atoll_front_kit::RequestBudget;
use atoll_model::Phase;
use atoll_service::{AgentError, Forwarded, Grant, SandboxSession, SandboxTarget};
use atoll_toolbox::Toolbox;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};

use super::connect_stream::ConnectStream;
use super::refusal::Refusal;
use super::{AGENT, Data};

pub(super) struct AwakeSandbox {
    session: SandboxSession,
    grant: Grant<SandboxTarget>,
}

impl Data {
    /// Wakes the sandbox if its lease allows that.
    pub(super) async fn awake(&self, grant: Grant<SandboxTarget>) -> Result<AwakeSandbox, Refusal> {
        let session = grant.session().await?;
        Ok(AwakeSandbox { session, grant })
    }

    /// Charges the tenant of the sandbox for what is held for the request.
    pub(super) fn charge(&self, extensions: &http::Extensions, grant: &Grant<SandboxTarget>) {
        let lease = grant.lease();
        RequestBudget::charge(extensions, self.service.budget().tenant(&lease.tenant));
    }

    /// Whether the sandbox still runs; if not, that is why a request was interrupted.
    pub(super) fn still_runs(&self, awake: &AwakeSandbox) -> bool {
        awake.grant.lease().phase == Phase::Running
    }

    /// Forwards a request to the agent.
    pub(super) async fn forward(&self, awake: AwakeSandbox, request: Request) -> Result<Response, Refusal> {
        // COMPAT(e2b): file operations act as root and give what they create to the user; commands run as the user.
        match awake.session.with_root_files().forward(request).await {
            Ok(response) => {
                let stream = ConnectStream::of(response.headers());
                let mut response =
                    response.map(|body| Body::new(Held { body, awake, stream, is_ended: false }));
                // A file of a sandbox must not run as a page of this server.
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
                headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                Ok(response)
            }
            Err(AgentError::Upload(_) | AgentError::Argument(_)) => {
                let message = "the request ended early or is malformed".to_owned();
                Err(Refusal::Agents(StatusCode::BAD_REQUEST, message))
            }
            Err(error) => {
                tracing::debug!(sandbox = %awake.grant.sandbox(), %error, "a request to an agent failed");
                Err(if self.still_runs(&awake) { Refusal::PortClosed(AGENT) } else { Refusal::NotFound })
            }
        }
    }
}

impl AwakeSandbox {
    pub(super) fn toolbox(&self) -> Toolbox {
        atoll_front_kit::toolbox(&self.session)
    }

    pub(super) fn workdir(&self) -> &str {
        &self.session.lease.workdir
    }
}

/// The body of an agent's response. While it is read, the sandbox does not count as idle.
struct Held {
    body: Forwarded,
    awake: AwakeSandbox,
    /// Set if the response is a Connect stream.
    stream: Option<ConnectStream>,
    /// The stream was ended in place of the agent.
    is_ended: bool,
}

impl Held {
    /// The end of a stream that broke because its sandbox stopped; a stream that broke for another reason is aborted.
    fn end_of_stopped(&mut self) -> Option<Bytes> {
        let is_stopped = self.awake.grant.lease().phase != Phase::Running;
        self.stream.as_mut().filter(|_| is_stopped)?.end()
    }
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = AgentError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AgentError>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let (Some(stream), Some(Ok(frame))) = (&mut self.stream, &polled)
            && let Some(data) = frame.data_ref()
        {
            stream.pass(data);
        }
        match polled {
            Some(Err(error)) => match self.end_of_stopped() {
                Some(end) => {
                    self.is_ended = true;
                    Poll::Ready(Some(Ok(Frame::data(end))))
                }
                None => Poll::Ready(Some(Err(error))),
            },
            passed => Poll::Ready(passed),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
