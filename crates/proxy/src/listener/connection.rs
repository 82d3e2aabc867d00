//! One connection: its protocol, and its requests one by one.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use atoll_budget::{BudgetOwner, RequestBudget, WindowBody};
use atoll_model::Code;
use atoll_relay::stream::{poll_read_at_most, read_ahead};
use atoll_service::{RequestScope, UnixPeer};
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tower::ServiceExt;

use super::body_recovery::{self, BodyRecovery};
use super::revocable::{self, ConnectionCutter, Severable};
use super::strangers::{ConnectionState, HeadMeter, RequestTurn};
use super::strict::{HEAD_STEP, Strict};
use super::{HttpServer, PING_WITHIN, STREAM_WINDOW, Tls, checks, counted_answer};
use crate::page::ProxyError;
use crate::route::{Misrouted, Route};

/// The start of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FIRST_READ: usize = 4 << 10;

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) peer: Option<SocketAddr>,
    /// The user of the machine, for a connection through the Unix socket.
    pub(crate) user: Option<Arc<UnixPeer>>,
    /// Its address, as passed to apps.
    pub(crate) forwarded: Option<HeaderValue>,
    pub(crate) is_secure: bool,
    /// Inside another connection, through `CONNECT`.
    pub(crate) is_inside: bool,
    pub(crate) connection: Arc<ConnectionState>,
    /// The turn of the current request.
    pub(crate) turn: RequestTurn,
}

impl Arrival {
    /// The owner of this connection's memory until its caller is known.
    pub(super) fn owner(&self) -> BudgetOwner {
        BudgetOwner::stranger(self.peer.map(|peer| peer.ip()))
    }
}

/// The byte stream of a connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

impl HttpServer {
    /// A TLS connection from its handshake on.
    pub(super) async fn secure<I: Stream>(&self, stream: I, tls: Tls, arrival: Arrival) {
        let handshake = tls.acceptor().accept(stream);
        let stream = match tokio::time::timeout(self.0.limits.head_within, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => return tracing::debug!("a TLS handshake took too long"),
        };
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => self.http2(stream, Bytes::new(), arrival).await,
            Some(_) => self.http1(stream, Bytes::new(), arrival).await,
            // A client without ALPN may still use HTTP/2 with prior knowledge.
            None => self.connection(stream, arrival).await,
        }
    }

    /// Detects the protocol from the first bytes.
    pub(super) async fn connection<I: Stream>(&self, mut stream: I, arrival: Arrival) {
        let first = tokio::time::timeout(self.0.limits.head_within, first_bytes(&mut stream));
        // A client that only connects, as a probe does, is normal.
        let Ok(Ok(first)) = first.await else { return };
        if first.starts_with(PREFACE) {
            self.http2(stream, first, arrival).await;
        } else {
            self.http1(stream, first, arrival).await;
        }
    }

    async fn http1<I: Stream>(&self, stream: I, first: Bytes, arrival: Arrival) {
        let (watch, mut leftovers) = body_recovery::leftovers();
        let meter = HeadMeter::new(&self.0.proxy.budget().account(arrival.owner()));
        let (server, cut) = (self.clone(), ConnectionCutter::default());
        let io = TokioIo::new(Strict::new(Severable::new(stream, cut.clone()), first, meter));
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, watch, cut, arrival) = (server.clone(), watch.clone(), cut.clone(), arrival.clone());
            async move { Ok::<_, Infallible>(server.answer_http1(request, &watch, &cut, arrival).await) }
        });
        let connection = self.0.http1.serve_connection(io, service).with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let serving = async {
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = self.0.closing.draining.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        let ended =
            tokio::select! { ended = serving => ended, never = leftovers.discard() => match never {} };
        if let Err(error) = ended {
            // Clients that vanish or send invalid data are normal; no action is needed.
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn http2<I: Stream>(&self, io: I, first: Bytes, arrival: Arrival) {
        let meter = HeadMeter::new(&self.0.proxy.budget().account(arrival.owner()));
        let state = Arc::clone(&arrival.connection);
        let stream =
            PrefixedStream { first, io, read: 0, meter: Some(meter), connection: Arc::clone(&state) };
        let server = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, arrival) = (server.clone(), arrival.clone());
            async move {
                let Some(turn) = arrival.connection.turn().await else { return Err(ConnectionEvicted) };
                // Boxed: the state of a handler exists from its turn on, and is released when it is done, not when its
                // response is written.
                Ok(Box::pin(server.answer_http2(request, Arrival { turn, ..arrival })).await)
            }
        });
        let connection = self.0.http2.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.0.closing.draining.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = state.idle_for(self.0.limits.idle_for) => {
                connection.as_mut().graceful_shutdown();
                // A request may have arrived meanwhile. A client that does not answer is not waited for.
                tokio::select! { ended = connection => ended, () = state.idle_for(PING_WITHIN) => Ok(()) }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn answer_http2(&self, request: Request<Incoming>, arrival: Arrival) -> Response<Body> {
        let budget = self.request_budget(&request, &arrival);
        let (head, body) = request.into_parts();
        let body = if http_body::Body::is_end_stream(&body) {
            Body::empty()
        } else {
            Body::new(WindowBody::new(body, budget.clone(), STREAM_WINDOW as usize))
        };
        self.answer(Request::from_parts(head, body), arrival, budget).await
    }

    /// Charged to the peer's address, until a front knows the tenant.
    fn request_budget<B>(&self, request: &Request<B>, arrival: &Arrival) -> RequestBudget {
        let budget = RequestBudget::new(self.0.proxy.budget().account(arrival.owner()), head_size(request));
        let connection = Arc::clone(&arrival.connection);
        budget.on_known(move || connection.authenticate());
        budget
    }

    async fn answer_http1(
        &self,
        request: Request<Incoming>,
        watch: &BodyRecovery,
        cut: &ConnectionCutter,
        arrival: Arrival,
    ) -> Response<Body> {
        if request.method() == Method::CONNECT {
            return self.connect(request, arrival);
        }
        let changes = request.headers().contains_key(UPGRADE);
        let budget = self.request_budget(&request, &arrival);
        let (head, body) = request.into_parts();
        let body = if http_body::Body::is_end_stream(&body) {
            Body::empty()
        } else {
            Body::new(watch.body(&head.headers, body))
        };
        let mut response = self.answer(Request::from_parts(head, body), arrival, budget).await;
        if let Some(scope) = response.extensions_mut().remove::<RequestScope>() {
            self.spawn(cut.when_ended(scope));
        }
        // After a head that requests an upgrade, bytes pass unchecked: if there was no upgrade, the connection ends.
        // [`Strict`] relies on it.
        let ends = changes && response.status() != StatusCode::SWITCHING_PROTOCOLS;
        if ends || watch.gives_up() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// A response that ends when the credential of its request is revoked. A response that upgrades the protocol holds
    /// the request's scope in its extensions. Everything that is held for a request is counted: its body until it is
    /// answered, its response until it is written.
    async fn answer(
        &self,
        mut request: Request<Body>,
        arrival: Arrival,
        budget: RequestBudget,
    ) -> Response<Body> {
        let open = arrival.connection.begin_request();
        let scope = RequestScope::at_socket(arrival.peer.map(|peer| peer.ip()), arrival.user.clone());
        request.extensions_mut().insert(budget.clone());
        let response = match checks::ambiguous(&request, self.0.proxy.key_fields()) {
            Some(refusal) => refusal.render(),
            None => tokio::select! {
                // First: a caller that deletes its own key gets its response.
                biased;
                response = scope.run(self.dispatch(request, arrival)) => response,
                () = scope.ended() => withdrawn(),
            },
        };
        let mut response = counted_answer::count(response, &budget, open).await;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            response.extensions_mut().insert(scope);
            return response;
        }
        response.map(|body| revocable::body(scope, body))
    }

    async fn dispatch(&self, mut request: Request<Body>, arrival: Arrival) -> Response<Body> {
        match self.0.proxy.route(&request) {
            Route::Preview(preview) => self.0.proxy.serve(preview, request, arrival).await,
            Route::Refused(why) => {
                let mut response = self.0.proxy.refuse(why);
                // After an invalid Host no further request is accepted on the connection.
                if why == Misrouted::BadHost && request.version() != Version::HTTP_2 {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response
            }
            Route::Elsewhere => {
                if let Some(refusal) = checks::foreign_page(request.headers(), &self.0.origins) {
                    return refusal.render();
                }
                if let Some(peer) = arrival.peer {
                    request.extensions_mut().insert(ConnectInfo(peer));
                }
                // Boxed, so that a preview does not reserve memory for state that only fronts need.
                match Box::pin(self.0.fronts.clone().oneshot(request)).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        }
    }
}

/// Ends the stream of a request whose connection has ended.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed to make room for another one")]
struct ConnectionEvicted;

fn withdrawn() -> Response<Body> {
    ProxyError::new(Code::Unauthenticated, "the key or token of this request was withdrawn").render()
}

/// Reads until it is clear whether this is HTTP/2.
async fn first_bytes<I: AsyncRead + Unpin>(stream: &mut I) -> io::Result<Bytes> {
    let mut first = BytesMut::with_capacity(FIRST_READ);
    loop {
        if stream.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let known = first.len().min(PREFACE.len());
        if first[..known] != PREFACE[..known] || known == PREFACE.len() {
            return Ok(first.freeze());
        }
    }
}

/// The approximate size of a request's head in bytes.
fn head_size<B>(request: &Request<B>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    fields.sum::<usize>() + request.uri().path().len() + request.uri().query().map_or(0, str::len)
}

/// A stream whose first bytes were read already. Bytes before its first request are counted.
struct PrefixedStream<I> {
    first: Bytes,
    io: I,
    read: usize,
    meter: Option<HeadMeter>,
    connection: Arc<ConnectionState>,
}

impl<I: AsyncRead + Unpin> AsyncRead for PrefixedStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            let this = &mut *self;
            if this.meter.is_some() && this.connection.has_request() {
                this.meter = None;
            }
            let Some(meter) = &mut this.meter else { return Pin::new(&mut this.io).poll_read(cx, buf) };
            let step = buf.remaining().min(HEAD_STEP);
            ready!(meter.poll_room(cx, this.read + step));
            let read = ready!(poll_read_at_most(Pin::new(&mut this.io), cx, buf, step))?;
            this.read += read;
            return Poll::Ready(Ok(()));
        }
        read_ahead(&mut self.first, buf);
        Poll::Ready(Ok(()))
    }
}

atoll_relay::delegate_write!(PrefixedStream, io);
