//! One exchange with an app: a connection, the request over it, the answer back, or a tunnel after an upgrade.
//!
//! Bodies stream; what a client does not read is not read from the app either. Who goes away ends the exchange. When the
//! incarnation ends, its connections end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_model::Code;
use atoll_service::{PreviewGuard, PreviewPass, PreviewWay, Service};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::page::Refusal;
use crate::pool::{Key, Place, Pool, Sender, Shared};

/// LIMIT: long polls end well before.
const HEAD_WITHIN: Duration = Duration::from_secs(600);
/// LIMIT: how long a program that was just started may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const LISTENS_LOOK: Duration = Duration::from_millis(50);
/// LIMIT: a head of an app; its body is not held at all.
const BUFFER: usize = 256 << 10;
/// LIMIT: after the server began to close, exchanges get this long.
const GRACE: Duration = Duration::from_secs(3);
const SWITCH_WITHIN: Duration = Duration::from_secs(30);
const GRPC: &[u8] = b"application/grpc";
/// LIMIT: what an app may send ahead over HTTP/2, per stream and in all.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// What an exchange needs beside the request.
pub(crate) struct Exchange<'a> {
    pub(crate) service: &'a Service,
    pub(crate) pool: &'a Arc<Pool>,
    pub(crate) pass: &'a PreviewPass,
    /// Says that the server closes.
    pub(crate) closing: &'a watch::Receiver<bool>,
    /// What the client wants to change to, and its end of the connection.
    pub(crate) upgrade: Option<(HeaderValue, OnUpgrade)>,
    pub(crate) speaks: Speaks,
    /// How long a program may take to listen.
    pub(crate) patient: bool,
}

/// What an app is spoken to in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// What every app understands.
    Http1,
    /// Without being asked for it first: what gRPC needs, and only gRPC's servers are sure to understand.
    Http2,
}

impl Speaks {
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
    /// Sends the request and answers with the app's answer, its head as it came.
    pub(crate) async fn run(
        mut self,
        way: PreviewWay,
        place: Place,
        request: Request<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let key = Key { instance: way.instance.clone(), port: self.pass.port };
        if self.speaks == Speaks::Http2 {
            let response = tokio::time::timeout(HEAD_WITHIN, self.send_http2(key, &way, request))
                .await
                .map_err(|_| Refusal::new(Code::DeadlineExceeded, "the app did not answer in time"))??;
            let held = (way.into_guard(), place);
            return Ok(response.map(|body| Body::new(Held { body, _held: held })));
        }
        let (sender, mut response) = tokio::time::timeout(HEAD_WITHIN, self.send(&key, &way, request))
            .await
            .map_err(|_| Refusal::new(Code::DeadlineExceeded, "the app did not answer in time"))??;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            self.pool.give_back(key, sender);
            let held = (way.into_guard(), place);
            return Ok(response.map(|body| Body::new(Held { body, _held: held })));
        }
        let Some((_, client)) = self.upgrade.take() else {
            return Err(Refusal::new(Code::BadAnswer, "the app changed the protocol without being asked"));
        };
        let app = hyper::upgrade::on(&mut response);
        tunnel(client, app, way, place, self.closing.clone());
        Ok(response.map(|_| Body::empty()))
    }

    async fn send(
        &self,
        key: &Key,
        way: &PreviewWay,
        mut request: Request<Body>,
    ) -> Result<(Sender, Response<Incoming>), Refusal> {
        if let Some((protocol, _)) = &self.upgrade {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            request.headers_mut().insert(UPGRADE, protocol.clone());
        }
        // Only over a connection that waited, and only what may be asked twice, is asked again.
        let mut spare = self.upgrade.is_none().then(|| spare(&request)).flatten();
        loop {
            let waited = if self.upgrade.is_none() { self.pool.take(key) } else { None };
            let is_fresh = waited.is_none();
            let mut sender = match waited {
                Some(sender) => sender,
                None => self.connect(way).await?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                Err(mut error) if !is_fresh => match error.take_message().or_else(|| spare.take()) {
                    Some(again) => request = again,
                    None => return Err(broken(&error.into_error())),
                },
                Err(error) => return Err(broken(&error.into_error())),
            }
        }
    }

    /// Over the one connection that all share.
    async fn send_http2(
        &self,
        key: Key,
        way: &PreviewWay,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, Refusal> {
        let mut known = self.pool.shared(&key);
        loop {
            let is_fresh = known.is_none();
            let mut sender = match known.take() {
                Some(sender) => sender,
                None => {
                    let sender = self.connect_http2(way).await?;
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

    async fn connect_http2(&self, way: &PreviewWay) -> Result<Shared, Refusal> {
        let stream = self.dial(way).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        let (gone, closing) = (way.gone(), closed(self.closing.clone()));
        tokio::spawn(async move {
            tokio::select! { _ = connection => {}, () = gone => {}, () = closing => {} }
        });
        Ok(sender)
    }

    /// A fresh stream. A program that was just started is given the time to listen.
    async fn dial(
        &self,
        way: &PreviewWay,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, Refusal> {
        let begun = Instant::now();
        loop {
            match self.service.dial_port(self.pass, way).await {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if error.code == Code::PortClosed
                        && way.was_asleep
                        && self.patient
                        && begun.elapsed() < LISTENS_WITHIN =>
                {
                    tokio::time::sleep(LISTENS_LOOK).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn connect(&self, way: &PreviewWay) -> Result<Sender, Refusal> {
        let stream = self.dial(way).await?;
        let mut http = http1::Builder::new();
        http.max_buf_size(BUFFER);
        let (sender, connection) =
            http.handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        let (gone, closing) = (way.gone(), closed(self.closing.clone()));
        tokio::spawn(async move {
            tokio::select! {
                ended = connection.with_upgrades() => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to an app ended early");
                },
                () = gone => {}
                () = closing => {}
            }
        });
        Ok(sender)
    }
}

/// A copy of a request that may be asked twice: without a body, and one that changes nothing.
fn spare(request: &Request<Body>) -> Option<Request<Body>> {
    let harmless = matches!(*request.method(), Method::GET | Method::HEAD) && request.body().is_end_stream();
    harmless.then(|| {
        let mut copy = Request::new(Body::empty());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

fn broken(error: &hyper::Error) -> Refusal {
    tracing::debug!(%error, "an exchange with an app failed");
    if error.is_user() {
        return Refusal::new(Code::InvalidRequest, "the body of the request broke off or is malformed");
    }
    Refusal::new(Code::BadAnswer, "the app broke off, or its answer is no HTTP")
        .hint("look at the app's own log")
}

/// Resolves a while after the server began to close.
async fn closed(mut closing: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = closing.wait_for(|closing| *closing).await;
    tokio::time::sleep(GRACE).await;
}

/// Copies bytes both ways until one end closes.
fn tunnel(client: OnUpgrade, app: OnUpgrade, way: PreviewWay, place: Place, closing: watch::Receiver<bool>) {
    let gone = way.gone();
    let held = (way.into_guard(), place);
    tokio::spawn(async move {
        let both = async { tokio::try_join!(client, app) };
        let Ok(Ok((client, app))) = tokio::time::timeout(SWITCH_WITHIN, both).await else { return };
        let (mut client, mut app) = (TokioIo::new(client), TokioIo::new(app));
        tokio::select! {
            ended = tokio::io::copy_bidirectional(&mut client, &mut app) => if let Err(error) = ended {
                tracing::debug!(%error, "a tunnel ended early");
            },
            () = gone => {}
            () = closed(closing) => {}
        }
        drop(held);
    });
}

/// The body of an app's answer. While somebody reads it, the sandbox is busy.
struct Held {
    body: Incoming,
    _held: (PreviewGuard, Place),
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
