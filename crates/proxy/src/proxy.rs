//! The proxy: from a routed request to the app's response, in the order of the crate's diagram.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use atoll_budget::{Budget, RequestBudget};
use atoll_model::{Code, SandboxId};
use atoll_service::{Grant, Holder, PortAnswer, PortQuestion, PortSession, PortTarget, Service};
use axum::body::Body;
use http::header::{CONNECTION, HOST, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, UPGRADE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::upgrade::OnUpgrade;
use tokio::sync::watch;

use crate::credentials::{self, RequestCredentials};
use crate::forward::{AppProtocol, Exchange};
use crate::head::{self, COOKIE_NAME, ForwardedOrigin, Home};
use crate::host::Domain;
use crate::listener::Arrival;
use crate::page::{Audience, ProxyError};
use crate::pool::Pool;
use crate::presigned;
use crate::route::{self, FieldRoute, Misrouted, Preview, Route, RoutedBy};

/// LIMIT: after this time a person gets a page that says that the sandbox is waking.
const WAKES_WITHIN: Duration = Duration::from_millis(300);

/// Serves previews. Cloning is cheap.
#[derive(Clone)]
pub struct Proxy {
    service: Service,
    domain: Arc<Domain>,
    fields: Arc<[FieldRoute]>,
    key_fields: Arc<[HeaderName]>,
    pool: Arc<Pool>,
    closing: watch::Receiver<bool>,
    stand_ins: Arc<[Arc<dyn StandIn>]>,
}

/// A port of a sandbox, as named in a request.
#[derive(Debug, Clone, Copy)]
pub struct PortRequest<'a> {
    /// The sandbox, which may not exist.
    pub sandbox: &'a SandboxId,
    /// The port; `None`: the sandbox's default port.
    pub port: Option<u16>,
    /// How they were named.
    pub by: PortRequestOrigin,
}

/// How a request names a sandbox and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortRequestOrigin {
    /// In the host name.
    Host,
    /// Below `/p/`.
    Path,
    /// In the header fields of a front.
    Fields,
}

/// A front that answers in place of an app in the sandbox, on certain ports.
pub trait StandIn: Send + Sync + 'static {
    /// Whether a request may be for this front; decided by the name only.
    fn wants(&self, asked: &PortRequest<'_>) -> bool;

    /// Answers the request, or returns it unchanged for the app. The front checks the caller's permission itself.
    fn take<'a>(&'a self, asked: PortRequest<'a>, request: Request<Body>) -> Dispatch<'a>;

    /// The front's own error response for a request that does not reach the app; `None`: it has none.
    fn refuse<'a>(&'a self, asked: PortRequest<'a>, code: Code) -> Refused<'a> {
        let _ = (asked, code);
        Box::pin(std::future::ready(None))
    }
}

/// An error response of a front, if it has one.
pub type Refused<'a> = Pin<Box<dyn Future<Output = Option<Response<Body>>> + Send + 'a>>;

/// A response, or the unchanged request.
pub type Dispatch<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>, Box<Request<Body>>>> + Send + 'a>>;

impl Proxy {
    /// A proxy for the sandboxes of a service. After `closing`, exchanges under way get some seconds to end. Needs a
    /// runtime.
    #[must_use]
    pub fn new(service: Service, domain: Domain, closing: watch::Receiver<bool>) -> Self {
        Self {
            service,
            domain: Arc::new(domain),
            fields: Arc::default(),
            key_fields: credentials::KEY_FIELDS.into(),
            pool: Pool::new(),
            closing,
            stand_ins: Arc::default(),
        }
    }

    /// Adds fronts that answer in place of apps; the first that does is used.
    #[must_use]
    pub fn with_stand_ins(self, fronts: Vec<Arc<dyn StandIn>>) -> Self {
        Self { stand_ins: fronts.into(), ..self }
    }

    /// Adds header fields in which fronts name sandboxes.
    #[must_use]
    pub fn with_fields(self, fields: Vec<FieldRoute>) -> Self {
        Self { fields: fields.into(), ..self }
    }

    /// Adds names below the domain that belong to the server.
    #[must_use]
    pub fn with_own_hosts(self, hosts: Vec<String>) -> Self {
        let domain = (*self.domain).clone().with_own_hosts(hosts);
        Self { domain: Arc::new(domain), ..self }
    }

    /// Adds header fields in which clients send keys.
    #[must_use]
    pub fn with_key_fields(self, fields: Vec<HeaderName>) -> Self {
        Self { key_fields: self.key_fields.iter().cloned().chain(fields).collect(), ..self }
    }

    pub(crate) fn key_fields(&self) -> &[HeaderName] {
        &self.key_fields
    }

    pub(crate) fn budget(&self) -> &Budget {
        self.service.budget()
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Decides whether a request is a preview.
    #[must_use]
    pub fn route<B>(&self, request: &Request<B>) -> Route {
        route::route(request.uri(), request.headers(), &self.domain, &self.fields)
    }

    /// Answers a request that cannot be routed.
    #[must_use]
    pub fn refuse(&self, why: Misrouted) -> Response<Body> {
        let refusal = ProxyError::new(Code::InvalidRequest, why.to_string());
        let refusal = match why {
            Misrouted::BadHost | Misrouted::NoField => refusal,
            Misrouted::NoPreview => refusal
                .with_status(StatusCode::MISDIRECTED_REQUEST)
                .hint("previews are at PORT-SANDBOX.DOMAIN, SANDBOX-PORT.DOMAIN and SANDBOX.DOMAIN"),
            Misrouted::NoPath => ProxyError::new(Code::RouteNotFound, why.to_string()),
        };
        refusal.render()
    }

    /// Handles a preview.
    pub(crate) async fn serve(
        &self,
        preview: Preview,
        request: Request<Body>,
        arrival: Arrival,
    ) -> Response<Body> {
        let begun = Instant::now();
        let sandbox = preview.sandbox.clone();
        let asked = PortRequest { sandbox: &sandbox, port: preview.port, by: preview.by.into() };
        let mut request = request;
        // A token in the host is for an app.
        for front in self.stand_ins.iter().filter(|front| preview.token.is_none() && front.wants(&asked)) {
            request = match front.take(asked, request).await {
                Ok(response) => return response,
                Err(request) => *request,
            };
        }
        let (parts, body) = request.into_parts();
        let reader = Audience::of(&parts);
        let response = match self.pass_on(preview, parts, body, arrival, reader).await {
            Ok(response) => response,
            Err(refusal) => {
                let told = Box::pin(self.told(asked, refusal.code)).await;
                match (reader, told) {
                    (Audience::Program, Some(response)) => response,
                    // For a person a page is best, whichever front created the sandbox.
                    (Audience::Person, Some(response)) if is_gone(&response, refusal.code) => {
                        let message = format!("sandbox {sandbox} was not found");
                        let gone = ProxyError::new(Code::SandboxNotFound, message);
                        gone.with_status(response.status()).render_page(&asked)
                    }
                    (Audience::Person, _) => refusal.render_page(&asked),
                    (Audience::Program, None) => refusal.render(),
                }
            }
        };
        let (status, took) = (response.status().as_u16(), begun.elapsed());
        // Looked up once, and only after a recorder was installed.
        static SECONDS: OnceLock<metrics::Histogram> = OnceLock::new();
        SECONDS.get_or_init(|| metrics::histogram!("atoll_preview_seconds")).record(took.as_secs_f64());
        // Never the path: it may contain a token, and it belongs to the app.
        tracing::debug!(%sandbox, status, took_us = took.as_micros(), "preview answered");
        response
    }

    /// The error response of a front, if one has it.
    async fn told(&self, asked: PortRequest<'_>, code: Code) -> Option<Response<Body>> {
        for front in self.stand_ins.iter() {
            if let Some(response) = front.refuse(asked, code).await {
                return Some(response);
            }
        }
        None
    }

    async fn pass_on(
        &self,
        preview: Preview,
        mut parts: Parts,
        body: Body,
        arrival: Arrival,
        reader: Audience,
    ) -> Result<Response<Body>, ProxyError> {
        let hops = head::hops(&parts.headers).map_err(|_| {
            ProxyError::new(Code::LoopDetected, "this request passed through previews in a loop")
        })?;
        if parts.method == Method::CONNECT {
            return Err(ProxyError::new(Code::MethodNotAllowed, "a preview does not forward to other hosts"));
        }
        let prefix = match preview.by {
            RoutedBy::Host | RoutedBy::Fields => None,
            RoutedBy::Path(ours) => Some(parts.uri.path()[..ours].to_owned()),
        };
        let home = match &prefix {
            Some(prefix) => Home::Below(prefix),
            None if preview.by == RoutedBy::Fields => Home::Shared,
            None => Home::Own,
        };
        if home != Home::Own && parts.headers.contains_key("service-worker") {
            return Err(ProxyError::new(Code::Forbidden, "service workers are not allowed on this origin")
                .hint("use the preview's own host"));
        }
        let mut found = credentials::take(&self.key_fields, &mut parts)?;
        if let Some(token) = &preview.token {
            presigned::hide(&mut parts, token);
            found.tokens.push(presigned::whole(token));
        }
        let question = PortQuestion {
            sandbox: &preview.sandbox,
            port: preview.port,
            keys: &found.keys,
            tokens: &found.tokens,
            agent_tokens: &found.agent_tokens,
        };
        let answer = self.service.access().reach_port(question).await?;
        found.hide_from_app(&answer, &mut parts.headers);
        if let Some(tenant) = answer.account.clone() {
            match answer.grant.holder() {
                Holder::Key(_) | Holder::Token(_) => RequestBudget::charge(&parts.extensions, tenant),
                Holder::Public => RequestBudget::charge_public(&parts.extensions, tenant),
            }
            arrival.turn.end();
        }
        // A token in the host is not sent automatically, unlike a cookie.
        if preview.token.is_none() {
            check_origin(&answer, &found, &parts)?;
        }
        if let Some(elsewhere) = redirect(&answer, &found, home, &parts, reader) {
            return Ok(elsewhere);
        }
        let app = answer.grant.port();
        let session = awake(&answer.grant, reader).await?;
        let place = self.pool.enter(&app.sandbox).ok_or_else(|| {
            ProxyError::new(Code::SandboxExhausted, "too many requests to this sandbox at once")
                .retry_after(1)
        })?;
        let upgrade = head::upgrade(&parts.headers).zip(parts.extensions.remove::<OnUpgrade>());
        let speaks = AppProtocol::of(&parts);
        let host = host_of(&parts);
        let origin = ForwardedOrigin {
            peer: arrival.forwarded.as_ref(),
            is_secure: arrival.is_secure,
            host: host.as_ref(),
            home,
            hops,
        };
        let request = outgoing(parts, body, &found, app, &origin, speaks)?;
        let exchange = Exchange {
            pool: &self.pool,
            app,
            closing: &self.closing,
            upgrade,
            speaks,
            patient: reader == Audience::Program,
        };
        let response = exchange.run(session, place, request).await?;
        let mut response = incoming(response, home, &found);
        if preview.token.is_some() {
            // The next site must not learn the host.
            response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        }
        Ok(response)
    }
}

/// Wakes the sandbox. A person does not wait in front of an empty page; the wake continues in the background.
async fn awake(grant: &Grant<PortTarget>, reader: Audience) -> Result<PortSession, ProxyError> {
    match reader {
        Audience::Program => Ok(grant.open().await?),
        Audience::Person => match tokio::time::timeout(WAKES_WITHIN, grant.open()).await {
            Ok(session) => Ok(session?),
            Err(_) => {
                let message = format!("sandbox {} is waking up", grant.sandbox());
                Err(ProxyError::new(Code::WakeFailed, message).retry_after(1).waking())
            }
        },
    }
}

/// Whether a front tells an unauthorised caller that the sandbox does not exist.
fn is_gone(response: &Response<Body>, code: Code) -> bool {
    let is_stranger = matches!(code, Code::Unauthenticated | Code::Forbidden | Code::SandboxNotFound);
    is_stranger && response.status() == StatusCode::BAD_GATEWAY
}

/// A cookie is sent automatically, even for requests from another site. So the requesting page must be on the same
/// host.
fn check_origin(answer: &PortAnswer, found: &RequestCredentials, parts: &Parts) -> Result<(), ProxyError> {
    let Holder::Token(token) = answer.grant.holder() else { return Ok(()) };
    if found.tokens[..found.by_hand].contains(token) {
        return Ok(());
    }
    let host = host_of(parts);
    let is_own = |origin: &HeaderValue| {
        let named = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        named
            .zip(host.as_ref().and_then(|host| host.to_str().ok()))
            .is_some_and(|(a, b)| a.eq_ignore_ascii_case(b))
    };
    if parts.headers.get_all(ORIGIN).iter().all(is_own) {
        return Ok(());
    }
    Err(ProxyError::new(Code::Forbidden, "a page of another site cannot use this preview's cookie")
        .hint("send a key, or the token in the query"))
}

fn host_of(parts: &Parts) -> Option<HeaderValue> {
    let authority = || HeaderValue::from_str(parts.uri.authority()?.as_str()).ok();
    parts.headers.get(HOST).cloned().or_else(authority)
}

/// A browser that presents a token on a preview's own host gets a cookie for that host and is redirected without the
/// token. A browser that omitted the slash after `/p/ID/PORT` is redirected too, so that relative links work.
fn redirect(
    answer: &PortAnswer,
    found: &RequestCredentials,
    home: Home<'_>,
    parts: &Parts,
    reader: Audience,
) -> Option<Response<Body>> {
    let path = parts.uri.path();
    let looks = matches!(parts.method, Method::GET | Method::HEAD);
    if home == Home::Below(path) && looks {
        let query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
        return see_other(&format!("{path}/{query}"));
    }
    let Holder::Token(token) = answer.grant.holder() else { return None };
    let by_query = found.tokens[..found.from_query].contains(token);
    if home != Home::Own || !by_query || reader != Audience::Person || head::upgrade(&parts.headers).is_some()
    {
        return None;
    }
    let query = found.query.as_deref().map_or_else(String::new, |query| format!("?{query}"));
    // A leading `//host/` would lead to that host, and browsers treat `/\` the same way.
    let dot = if path.starts_with("//") || path.starts_with("/\\") { "/." } else { "" };
    let mut response = see_other(&format!("{dot}{path}{query}"))?;
    let left_s = answer.remember_s;
    let cookie = format!("{COOKIE_NAME}={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={left_s}");
    response.headers_mut().insert(SET_COOKIE, HeaderValue::from_str(&cookie).ok()?);
    Some(response)
}

fn see_other(to: &str) -> Option<Response<Body>> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::FOUND;
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_str(to).ok()?);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

/// The request for the app.
fn outgoing(
    parts: Parts,
    body: Body,
    found: &RequestCredentials,
    app: &PortTarget,
    origin: &ForwardedOrigin<'_>,
    speaks: AppProtocol,
) -> Result<Request<Body>, ProxyError> {
    let bad = || ProxyError::new(Code::InvalidRequest, "the path of the request is malformed");
    let ours = if let Home::Below(prefix) = origin.home { prefix.len() } else { 0 };
    let is_whole = ours == 0 && parts.uri.query() == found.query.as_deref();
    let target = match parts.uri.path_and_query() {
        Some(whole) if is_whole => whole.clone(),
        Some(_) | None => {
            let path = parts.uri.path().get(ours..).filter(|path| !path.is_empty()).unwrap_or("/");
            let query = found.query.as_deref().map_or_else(String::new, |query| format!("?{query}"));
            PathAndQuery::from_maybe_shared(format!("{path}{query}").into_bytes()).map_err(|_| bad())?
        }
    };
    let mut headers = parts.headers;
    head::to_app(&mut headers, origin);
    let name = match (&app.host, origin.home, origin.host) {
        (Some(mask), ..) => HeaderValue::from_str(mask).map_err(|_| bad())?,
        (None, Home::Own | Home::Shared, Some(host)) => host.clone(),
        _ => HeaderValue::from_str(&format!("localhost:{}", app.port))
            .map_err(|_| ProxyError::new(Code::Internal, "a port is a number"))?,
    };
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target);
    match speaks {
        AppProtocol::Http1 => {
            headers.insert(HOST, name);
        }
        AppProtocol::Http2 => {
            headers.remove(HOST);
            uri.scheme = Some(http::uri::Scheme::HTTP);
            uri.authority = Some(name.as_bytes().try_into().map_err(|_| bad())?);
        }
    }
    let mut request = Request::new(body);
    // It contains the original case of the header names.
    *request.extensions_mut() = parts.extensions;
    *request.method_mut() = parts.method;
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| bad())?;
    *request.version_mut() = speaks.version();
    *request.headers_mut() = headers;
    Ok(request)
}

/// The response for the client.
fn incoming(mut response: Response<Body>, home: Home<'_>, found: &RequestCredentials) -> Response<Body> {
    let switched = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| response.headers().get(UPGRADE).cloned())
        .flatten();
    let headers = response.headers_mut();
    head::from_app(headers, home);
    if let Some(protocol) = switched {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    if found.from_query > 0 {
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    }
    *response.version_mut() = Version::HTTP_11;
    response
}
