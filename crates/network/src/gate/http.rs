//! HTTP/1 through the gate: each request is checked by its host, changed if the policy says so, and sent to the address
//! that the sandbox connected to. Responses, including redirects, are returned unchanged.
//!
//! ```text
//! sandbox ══ hyper server ── check, change ── hyper client ══ TCP or TLS ══ original address
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_model::{EgressVerdict, EgressWhat};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use http::request::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{Either, Empty, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::flow::FlowCarrier;
use super::guest::{EgressRefusal, Visit};
use super::head::{self, BadRequest};
use super::outbound::Outbound;
use super::read_limiter::ReadLimiter;

/// How long a sandbox may take for the next request's head, including the idle time before it.
const HEAD_DEADLINE: Duration = Duration::from_secs(75);
/// LIMIT: headers of one message, and their bytes.
const MOST_HEADERS: usize = 200;
const LONGEST_HEAD: usize = 64 << 10;
/// How long a side may take to switch to WebSocket after both agreed.
const UPGRADE_DEADLINE: Duration = Duration::from_secs(10);

type ProxiedResponse = Response<Either<Incoming, Full<Bytes>>>;
type Outgoing = Request<Either<Incoming, Empty<Bytes>>>;
type ServerConnection = SendRequest<Either<Incoming, Empty<Bytes>>>;

/// How requests reach the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestForm {
    /// Unencrypted.
    Plain,
    /// Over TLS that is terminated here, for this name.
    Ended { name: String },
}

impl RequestForm {
    fn what(&self) -> EgressWhat {
        match self {
            Self::Plain => EgressWhat::Http,
            Self::Ended { .. } => EgressWhat::Tls,
        }
    }
}

/// Serves the requests of one connection; returns whether a server answered any.
pub(crate) async fn serve<S>(stream: S, way: RequestForm, visit: &Visit, outbound: &Outbound) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let forwarder = Forwarder {
        way,
        visit,
        outbound,
        server: Mutex::default(),
        tasks: Mutex::default(),
        sockets: Mutex::default(),
        answered: AtomicBool::default(),
    };
    let service = service_fn(|request| {
        let answer = forwarder.answer(request);
        async { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LONGEST_HEAD)
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(ReadLimiter(stream)), service)
        .with_upgrades();
    if let Err(error) = connection.await
        && error.is_parse()
    {
        forwarder.log(EgressVerdict::Refused, "http: malformed", None);
    }
    let sockets = forwarder.sockets.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((sandbox, server)) = sockets {
        carry_websocket(sandbox, server).await;
    }
    forwarder.answered.load(Ordering::Relaxed)
}

async fn carry_websocket(sandbox: OnUpgrade, server: OnUpgrade) {
    let both = async { tokio::try_join!(sandbox, server) };
    if let Ok(Ok((sandbox, server))) = timeout(UPGRADE_DEADLINE, both).await {
        // When either side ends, the flow ends.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(sandbox), &mut TokioIo::new(server)).await;
    }
}

struct Forwarder<'a> {
    way: RequestForm,
    visit: &'a Visit,
    outbound: &'a Outbound,
    /// The connection to the server, reused between requests.
    server: Mutex<Option<ServerConnection>>,
    /// The task of the connection; ends with the flow.
    tasks: Mutex<JoinSet<()>>,
    /// Both ends of a WebSocket, once both sides agreed.
    sockets: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
    answered: AtomicBool,
}

/// Why a request was not answered by the server.
enum ForwardError {
    Bad(BadRequest),
    Refused(EgressRefusal),
    Unreachable(String),
}

impl From<BadRequest> for ForwardError {
    fn from(bad: BadRequest) -> Self {
        Self::Bad(bad)
    }
}

impl From<EgressRefusal> for ForwardError {
    fn from(refusal: EgressRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Forwarder<'_> {
    async fn answer(&self, request: Request<Incoming>) -> ProxiedResponse {
        let (parts, body) = request.into_parts();
        let name = head::name_of(&parts, self.visit.flow.to.port());
        let shown = name.as_ref().ok().cloned();
        let answered = match name {
            Ok(name) => self.forward(parts, body, name).await,
            Err(bad) => Err(bad.into()),
        };
        answered.unwrap_or_else(|failure| self.explain(failure, shown))
    }

    /// Checks, changes and sends a request.
    async fn forward(
        &self,
        mut parts: Parts,
        body: Incoming,
        name: String,
    ) -> Result<ProxiedResponse, ForwardError> {
        if matches!(&self.way, RequestForm::Ended { name: of_tls } if *of_tls != name) {
            return Err(EgressRefusal("sni differs".to_owned()).into());
        }
        let passage = self.visit.guest.decide(&self.visit.flow, self.way.what(), &name, false)?;
        let websocket = head::wants_websocket(&parts.headers);
        let sandbox = websocket.then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
        head::strip_hop(&mut parts.headers);
        if websocket {
            head::say_websocket(&mut parts.headers);
        }
        self.say_host(&mut parts, &name)?;
        if let (FlowCarrier::Changed, Some(rewrite)) = (passage, self.visit.guest.rewrite_for(&name)) {
            head::rewrite(&mut parts, &rewrite, self.way != RequestForm::Plain)?;
        }
        parts.version = Version::HTTP_11;
        let answer = self.send(Request::from_parts(parts, Either::Left(body)), &name).await?;
        self.pass_back(answer, sandbox)
    }

    /// Writes the host in canonical form, so that the server reads the name that was checked.
    fn say_host(&self, parts: &mut Parts, name: &str) -> Result<(), BadRequest> {
        let port = self.visit.flow.to.port();
        let usual = if self.way == RequestForm::Plain { 80 } else { 443 };
        let host = if port == usual { name.to_owned() } else { format!("{name}:{port}") };
        let unusable =
            |_| BadRequest { status: StatusCode::BAD_REQUEST, rule: "http: a host that is no name" };
        parts.headers.insert(HOST, HeaderValue::from_str(&host).map_err(unusable)?);
        Ok(())
    }

    async fn send(&self, request: Outgoing, name: &str) -> Result<Response<Incoming>, ForwardError> {
        let kept = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        let kept = match kept {
            Some(mut server) => server.ready().await.is_ok().then_some(server),
            None => None,
        };
        let request = match kept {
            Some(server) => {
                let spare = spare_of(&request);
                match self.send_over(server, request).await {
                    Ok(answer) => return Ok(answer),
                    Err((failure, unsent)) => unsent.or(spare).ok_or(failure)?,
                }
            }
            None => request,
        };
        let server = self.connect(name).await?;
        self.send_over(server, request).await.map_err(|(failure, _)| failure)
    }

    /// Sends a request; returns it if nothing of it was sent.
    async fn send_over(
        &self,
        mut server: ServerConnection,
        request: Outgoing,
    ) -> Result<Response<Incoming>, (ForwardError, Option<Outgoing>)> {
        let answer = server.try_send_request(request).await.map_err(|mut error| {
            let unsent = error.take_message();
            (ForwardError::Unreachable(format!("http: {}", kind_of(error.error()))), unsent)
        })?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        self.answered.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    async fn connect(&self, name: &str) -> Result<ServerConnection, ForwardError> {
        let unreachable = |error: std::io::Error| ForwardError::Unreachable(super::serve::why(&error));
        let stream = self.outbound.reach(self.visit, Some(name)).await.map_err(unreachable)?;
        match self.way {
            RequestForm::Plain => self.speak(stream).await,
            RequestForm::Ended { .. } => {
                self.speak(self.outbound.secure(stream, name).await.map_err(unreachable)?).await
            }
        }
    }

    async fn speak<S>(&self, stream: S) -> Result<ServerConnection, ForwardError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = hyper::client::conn::http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .max_buf_size(LONGEST_HEAD)
            .preserve_header_case(true)
            .handshake(TokioIo::new(ReadLimiter(stream)));
        let (server, connection) =
            handshake.await.map_err(|error| ForwardError::Unreachable(kind_of(&error).to_owned()))?;
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            // An error is reported by the request that waits for its response.
            let _ = connection.with_upgrades().await;
        });
        Ok(server)
    }

    fn pass_back(
        &self,
        mut answer: Response<Incoming>,
        sandbox: Option<OnUpgrade>,
    ) -> Result<ProxiedResponse, ForwardError> {
        let switches = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        head::strip_hop(answer.headers_mut());
        if switches {
            let Some(sandbox) = sandbox else {
                return Err(ForwardError::Unreachable("http: an upgrade that was not requested".to_owned()));
            };
            let server = hyper::upgrade::on(&mut answer);
            *self.sockets.lock().unwrap_or_else(PoisonError::into_inner) = Some((sandbox, server));
            head::say_websocket(answer.headers_mut());
        }
        Ok(answer.map(Either::Left))
    }

    /// Explains to the sandbox, and to the log, why there is no response of the server.
    fn explain(&self, failure: ForwardError, name: Option<String>) -> ProxiedResponse {
        let (status, verdict, rule) = match failure {
            ForwardError::Bad(bad) => (bad.status, EgressVerdict::Refused, bad.rule.to_owned()),
            ForwardError::Refused(EgressRefusal(rule)) => {
                (StatusCode::FORBIDDEN, EgressVerdict::Refused, rule)
            }
            ForwardError::Unreachable(why) => (StatusCode::BAD_GATEWAY, EgressVerdict::Failed, why),
        };
        self.log(verdict, &rule, name);
        let text = match verdict {
            EgressVerdict::Failed => format!("atoll: the server was not reached ({rule})\n"),
            EgressVerdict::Refused | EgressVerdict::Allowed => {
                format!("atoll: refused by the network policy of this sandbox ({rule})\n")
            }
        };
        let mut answer = Response::new(Either::Right(Full::new(Bytes::from(text))));
        *answer.status_mut() = status;
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // Further requests on this connection are not read.
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        answer
    }

    fn log(&self, verdict: EgressVerdict, rule: &str, name: Option<String>) {
        self.visit.guest.log(self.visit.flow.decision(self.way.what(), verdict, rule, name));
    }
}

/// A copy of a request for a retry. A server may close a kept connection just when it is used; a safe request without a
/// body is then repeated over a new connection, as browsers do.
fn spare_of(request: &Outgoing) -> Option<Outgoing> {
    let again = request.method().is_safe()
        && request.body().is_end_stream()
        && !request.headers().contains_key(UPGRADE);
    again.then(|| {
        let mut spare = Request::new(Either::Right(Empty::new()));
        *spare.method_mut() = request.method().clone();
        *spare.uri_mut() = request.uri().clone();
        *spare.headers_mut() = request.headers().clone();
        spare
    })
}

fn kind_of(error: &hyper::Error) -> &'static str {
    match () {
        () if error.is_timeout() => "no answer in time",
        () if error.is_parse() => "an answer that is not http",
        () if error.is_incomplete_message() || error.is_closed() => "the server closed the connection",
        () => "the connection failed",
    }
}
