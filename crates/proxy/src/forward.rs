//! One exchange with an app: a connection, the request over it, the response, or a tunnel after an upgrade.
//!
//! Bodies are streamed; the app's response is read only as fast as the client reads. If either side disconnects, the
//! exchange ends. When the instance ends, its connections end.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::Code;
use atoll_service::{ByteStream, PortSession, PortTarget};
use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app_connection::{self, AppConnection, PooledBody, ReturnTo};
use crate::page::ProxyError;
use crate::pool::{Pool, PoolKey, RequestPermit, Shared};
use crate::tls_app;
use crate::tunnel::tunnel;

/// LIMIT: long polls end well before.
const HEAD_WITHIN: Duration = Duration::from_secs(600);
/// LIMIT: how long a newly started program may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const LISTENS_LOOK: Duration = Duration::from_millis(50);
/// LIMIT: how long exchanges may continue after the server began to close.
const GRACE: Duration = Duration::from_secs(3);
/// LIMIT: no server closes connections that were idle for less.
const QUITS_AFTER: Duration = Duration::from_millis(500);
const GRPC: &[u8] = b"application/grpc";
/// LIMIT: bytes that an app may send ahead over HTTP/2, per stream and in total.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// The context of an exchange besides the request.
pub(crate) struct Exchange<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) app: &'a PortTarget,
    /// Signals that the server is closing.
    pub(crate) closing: &'a watch::Receiver<bool>,
    /// The protocol that the client requests, and its end of the connection.
    pub(crate) upgrade: Option<(HeaderValue, OnUpgrade)>,
    pub(crate) speaks: AppProtocol,
    /// Whether to wait until the program listens.
    pub(crate) patient: bool,
}

/// The protocol of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppProtocol {
    /// Supported by every app.
    Http1,
    /// HTTP/2 without negotiation: gRPC needs it, and only gRPC servers are sure to support it.
    Http2,
}

impl AppProtocol {
    pub(crate) fn of(parts: &Parts) -> Self {
        let kind = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_grpc = parts.version == Version::HTTP_2
            && kind.and_then(|kind| kind.get(..GRPC.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(GRPC))
            // gRPC-Web is plain HTTP/1.
            && !kind.is_some_and(|kind| kind.len() > GRPC.len() && kind[GRPC.len()] == b'-');
        if is_grpc { Self::Http2 } else { Self::Http1 }
    }

    pub(crate) const fn version(self) -> Version {
        match self {
            Self::Http1 => Version::HTTP_11,
            Self::Http2 => Version::HTTP_2,
        }
    }
}

impl Exchange<'_> {
    /// Sends the request and returns the app's response, with its head unchanged.
    pub(crate) async fn run(
        mut self,
        session: PortSession,
        place: RequestPermit,
        request: Request<Body>,
    ) -> Result<Response<Body>, ProxyError> {
        let key = PoolKey { instance: session.instance.clone(), port: self.app.port };
        if self.speaks == AppProtocol::Http2 {
            let response =
                tokio::time::timeout(HEAD_WITHIN, Box::pin(self.send_http2(&key, &session, request)))
                    .await
                    .map_err(|_| {
                        ProxyError::new(Code::DeadlineExceeded, "the app did not answer in time")
                    })??;
            let pool = ReturnTo { pool: Arc::clone(self.pool), key, _held: (session, place) };
            return Ok(response.map(|body| Body::new(PooledBody::new(body, None, pool))));
        }
        let (mut connection, mut response) =
            tokio::time::timeout(HEAD_WITHIN, self.send(&key, &session, request))
                .await
                .map_err(|_| ProxyError::new(Code::DeadlineExceeded, "the app did not answer in time"))??;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some((_, client)) = self.upgrade.take() else {
                return Err(ProxyError::new(
                    Code::BadAnswer,
                    "the app changed the protocol without an upgrade request",
                ));
            };
            let app = hyper::upgrade::on(&mut response);
            tunnel(client, app, connection, session, place, closed(self.closing.clone()));
            return Ok(response.map(|_| Body::empty()));
        }
        if response.body().is_end_stream() {
            if connection.is_ready().await {
                self.pool.put(key, connection);
            }
            return Ok(response.map(|_| Body::empty()));
        }
        let pool = ReturnTo { pool: Arc::clone(self.pool), key, _held: (session, place) };
        Ok(response.map(|body| Body::new(PooledBody::new(body, Some(connection), pool))))
    }

    async fn send(
        &self,
        key: &PoolKey,
        session: &PortSession,
        mut request: Request<Body>,
    ) -> Result<(AppConnection, Response<Incoming>), ProxyError> {
        if let Some((protocol, _)) = &self.upgrade {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            request.headers_mut().insert(UPGRADE, protocol.clone());
            let mut connection = Box::pin(self.connect(session)).await?;
            let response = connection.send(request).await.map_err(|error| broken(&error.into_error()))?;
            return Ok((connection, response));
        }
        // A request is repeated only after a failure on an idle connection, and only if it is safe to repeat.
        while let Some((mut connection, waited)) = self.pool.take(key) {
            if !connection.is_ready().await {
                continue;
            }
            // A copy costs as much as the rest of this function: a connection that was idle so shortly is not about to
            // be closed.
            let spare = if waited < QUITS_AFTER { None } else { spare(&request) };
            match connection.send(request).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut error) => match error.take_message().or(spare) {
                    Some(again) => request = again,
                    None => return Err(broken(&error.into_error())),
                },
            }
        }
        // Boxed, because it is rarely used: the future of every request is moved more than once.
        let mut connection = Box::pin(self.connect(session)).await?;
        let response = connection.send(request).await.map_err(|error| broken(&error.into_error()))?;
        Ok((connection, response))
    }

    /// Uses the single connection that all requests share.
    async fn send_http2(
        &self,
        key: &PoolKey,
        session: &PortSession,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, ProxyError> {
        let mut known = self.pool.shared(key);
        loop {
            let is_fresh = known.is_none();
            let mut sender = match known.take() {
                Some(sender) => sender,
                None => {
                    let sender = self.connect_http2(session).await?;
                    self.pool.share(key.clone(), sender.clone());
                    sender
                }
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(mut error) if !is_fresh => match error.take_message() {
                    Some(again) => request = again,
                    None => return Err(broken(&error.into_error())),
                },
                Err(error) => return Err(broken(&error.into_error())),
            }
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "ends with the connection, with the incarnation, or with the server"
    )]
    async fn connect_http2(&self, session: &PortSession) -> Result<Shared, ProxyError> {
        let stream = self.dial(session).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        let (gone, closing) = (session.gone(), closed(self.closing.clone()));
        tokio::spawn(async move {
            tokio::select! { _ = connection => {}, () = gone => {}, () = closing => {} }
        });
        Ok(sender)
    }

    /// Opens a new stream. A newly started program gets time to listen.
    async fn dial(&self, session: &PortSession) -> Result<Box<dyn ByteStream>, ProxyError> {
        if self.app.speaks_tls || self.speaks == AppProtocol::Http2 {
            session.require_stream()?;
        }
        let stream = self.dial_plain(session).await?;
        if !self.app.speaks_tls {
            return Ok(stream);
        }
        let offer: &[u8] = if self.speaks == AppProtocol::Http2 { b"h2" } else { b"http/1.1" };
        Ok(Box::new(tls_app::secured(stream, self.app.host.as_deref(), &[offer]).await?))
    }

    async fn dial_plain(&self, session: &PortSession) -> Result<Box<dyn ByteStream>, ProxyError> {
        let begun = Instant::now();
        loop {
            match session.dial().await {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if error.code == Code::PortClosed
                        && session.was_asleep
                        && self.patient
                        && begun.elapsed() < LISTENS_WITHIN =>
                {
                    tokio::time::sleep(LISTENS_LOOK).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn connect(&self, session: &PortSession) -> Result<AppConnection, ProxyError> {
        let stream = self.dial(session).await?;
        let (gone, closing) = (session.gone(), closed(self.closing.clone()));
        let ends = async move {
            tokio::select! { () = gone => {}, () = closing => {} }
        };
        app_connection::open(stream, ends).await.map_err(|error| broken(&error))
    }
}

/// A copy of a request that may be repeated: one without a body that changes nothing.
fn spare(request: &Request<Body>) -> Option<Request<Body>> {
    let harmless = matches!(*request.method(), Method::GET | Method::HEAD) && request.body().is_end_stream();
    harmless.then(|| {
        let mut copy = Request::new(Body::empty());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        copy
    })
}

fn broken(error: &hyper::Error) -> ProxyError {
    tracing::debug!(%error, "an exchange with an app failed");
    if error.is_user() {
        return ProxyError::new(Code::InvalidRequest, "the request body ended early or is malformed");
    }
    ProxyError::new(Code::BadAnswer, "the app closed the connection early, or its answer is not HTTP")
        .hint("check the log of the app")
}

/// Resolves some time after the server began to close.
async fn closed(mut closing: watch::Receiver<bool>) {
    // A dropped sender has the same meaning.
    let _ = closing.wait_for(|closing| *closing).await;
    tokio::time::sleep(GRACE).await;
}
