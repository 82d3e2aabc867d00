//! The trait of a front, and the layers around a front.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tower::ServiceExt;

use crate::observe::{self, WholePath};
use crate::{ApiError, cors};

/// One HTTP API of the server.
pub trait Front: Send + Sync + 'static {
    /// Which requests are for this front.
    fn mount(&self) -> Mount;

    /// Its routes, with their state. Paths are below the prefix of the mount.
    fn routes(&self) -> Router;

    /// Writes an error as the front's clients expect it.
    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response;
}

/// A request, as far as the text of an error needs it.
#[derive(Debug)]
pub struct RequestInfo {
    /// Finds the request in the logs. Also in the header `X-Request-Id` of the response.
    pub id: String,
    /// Its method.
    pub method: Method,
    /// Its path as the client sent it, with the front's prefix.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
}

/// Which requests are for a front: those below a path prefix, those to a host, or those that a function picks.
#[derive(Debug, Clone)]
pub struct Mount {
    /// The front in logs.
    pub name: &'static str,
    prefix: Option<&'static str>,
    hosts: Vec<String>,
    key_fields: &'static [&'static str],
    picks: Option<fn(&Request) -> bool>,
    trims_slashes: bool,
    allows_any_origin: bool,
}

impl Mount {
    /// Requests to `prefix` and below it. The prefix is removed before routing; an empty one matches every path.
    #[must_use]
    pub const fn prefix(name: &'static str, prefix: &'static str) -> Self {
        Self {
            name,
            prefix: Some(prefix),
            hosts: Vec::new(),
            key_fields: &[],
            picks: None,
            trims_slashes: false,
            allows_any_origin: false,
        }
    }

    /// Requests that `picks` accepts, whatever their path.
    #[must_use]
    pub fn picked(name: &'static str, picks: fn(&Request) -> bool) -> Self {
        Self { prefix: None, picks: Some(picks), ..Self::prefix(name, "") }
    }

    /// Also requests to these hosts, on every port, with or without the prefix.
    #[must_use]
    pub fn or_hosts(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        self.hosts.extend(hosts);
        self
    }

    /// Header fields, in lower case, in which the front's clients send a key, beside `authorization` and `x-api-key`. A
    /// request with two of the same field is refused, and the proxy never forwards any of them to an app in a sandbox.
    #[must_use]
    pub const fn key_fields(mut self, names: &'static [&'static str]) -> Self {
        self.key_fields = names;
        self
    }

    /// A slash at the end of a path makes no difference.
    #[must_use]
    pub const fn trim_slashes(mut self) -> Self {
        self.trims_slashes = true;
        self
    }

    /// Pages of every origin may call the front. Only for fronts that no cookie authenticates.
    #[must_use]
    pub const fn allow_any_origin(mut self) -> Self {
        self.allows_any_origin = true;
        self
    }

    /// Whether a request is for this front.
    #[must_use]
    pub fn matches(&self, request: &Request) -> bool {
        self.below_prefix(request.uri().path()).is_some()
            || self.picks.is_some_and(|picks| picks(request))
            || (!self.hosts.is_empty() && self.is_host(request))
    }

    pub(crate) fn prefix_text(&self) -> &'static str {
        self.prefix.unwrap_or_default()
    }

    fn below_prefix<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(self.prefix?)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }

    fn is_host(&self, request: &Request) -> bool {
        let sent = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = request.uri().host().or(sent).unwrap_or_default();
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.');
        self.hosts.iter().any(|known| name.eq_ignore_ascii_case(known))
    }

    /// The same address with its path below the prefix. Encoded characters stay encoded.
    fn inner(&self, uri: &Uri) -> Uri {
        let path = self.below_prefix(uri.path()).unwrap_or(uri.path());
        let path = if self.trims_slashes { path.trim_end_matches('/') } else { path };
        let path = if path.is_empty() { "/" } else { path };
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        // Over HTTP/2 the authority is only here.
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = target.parse().ok();
        // A part of a valid path is valid.
        Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static("/"))
    }
}

/// A front with all layers around it. Cloning is cheap.
#[derive(Clone)]
pub struct MountedFront {
    mount: Arc<Mount>,
    router: Router,
}

impl MountedFront {
    /// Builds the layers around a front.
    #[must_use]
    pub fn new(front: impl Front) -> Self {
        let mount = Arc::new(front.mount());
        let front: Arc<dyn Front> = Arc::new(front);
        let mut router = front
            .routes()
            .method_not_allowed_fallback(observe::method_not_allowed)
            .fallback(observe::route_not_found);
        let observed = Arc::clone(&mount);
        router = router.layer(from_fn(move |request: Request, next: Next| {
            observe::observe(Arc::clone(&front), Arc::clone(&observed), request, next)
        }));
        if mount.allows_any_origin {
            router = router.layer(from_fn(cors::allow_any_origin));
        }
        Self { mount, router }
    }

    /// Whether a request is for this front.
    #[must_use]
    pub fn matches(&self, request: &Request) -> bool {
        self.mount.matches(request)
    }

    pub(crate) fn hosts(&self) -> &[String] {
        &self.mount.hosts
    }

    pub(crate) fn key_fields(&self) -> &'static [&'static str] {
        self.mount.key_fields
    }

    /// Answers a request that [`MountedFront::matches`].
    pub async fn call(&self, mut request: Request) -> Response {
        let inner = self.mount.inner(request.uri());
        if inner.path() != request.uri().path() {
            let whole = WholePath(request.uri().path().to_owned());
            request.extensions_mut().insert(whole);
            *request.uri_mut() = inner;
        }
        let response: Result<_, Infallible> = self.router.clone().oneshot(request).await;
        match response {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::{HeaderValue, StatusCode};
    use axum::response::IntoResponse;
    use axum::routing::get;
    use http_body_util::BodyExt;

    struct Sample;

    impl Front for Sample {
        fn mount(&self) -> Mount {
            Mount::prefix("sample", "/sample").or_hosts(["api.localhost".to_owned()]).trim_slashes()
        }

        fn routes(&self) -> Router {
            async fn fail() {
                panic!("on purpose");
            }
            Router::new().route("/ok", get(|| async { "ok" })).route("/fail", get(fail)).route(
                "/range",
                get(|| async { ([("content-range", "bytes */3")], ApiError::field("range", "is wrong")) }),
            )
        }

        fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
            let text = format!("{} {} {} {}", error.code.as_str(), error.message, request.path, request.id);
            (error.status(), text).into_response()
        }
    }

    fn request(method: &str, uri: &str, fields: &[(&'static str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    async fn call(request: Request) -> (StatusCode, HeaderMap, String) {
        let response = MountedFront::new(Sample).call(request).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn only_paths_below_the_prefix_match() {
        let mount = Mount::prefix("sample", "/sample");
        for path in ["/sample", "/sample/", "/sample/v1/x"] {
            assert!(mount.matches(&request("GET", path, &[])), "{path}");
        }
        for path in ["/", "/samplex", "/v1/sample", "//sample"] {
            assert!(!mount.matches(&request("GET", path, &[])), "{path}");
        }
        assert!(Mount::prefix("all", "").matches(&request("GET", "/anything", &[])));
    }

    #[test]
    fn a_host_matches_on_every_port_and_no_other_does() {
        let is = |host: &str| Sample.mount().matches(&request("GET", "/x", &[("host", host)]));
        for host in ["api.localhost", "API.localhost:7443", "api.localhost."] {
            assert!(is(host), "{host}");
        }
        for host in ["localhost", "api.localhost.evil.com", "xapi.localhost", "127.0.0.1:7070", ""] {
            assert!(!is(host), "{host}");
        }
    }

    #[test]
    fn the_prefix_goes_and_encoded_slashes_stay() {
        let trims = Mount::prefix("sample", "/e2b").trim_slashes();
        for (outer, wanted) in [
            ("/e2b/v2/sandboxes", "/v2/sandboxes"),
            ("/e2b/sandboxes/?a=1/", "/sandboxes?a=1/"),
            ("/e2b/templates/team%2Fsnap%3Adefault", "/templates/team%2Fsnap%3Adefault"),
            ("/sandboxes", "/sandboxes"),
            ("/e2bx", "/e2bx"),
            ("/e2b", "/"),
            ("/e2b//", "/"),
            ("https://api.atoll.localhost:7443/v2/x?a=b", "https://api.atoll.localhost:7443/v2/x?a=b"),
        ] {
            assert_eq!(trims.inner(&outer.parse().unwrap()).to_string(), wanted, "{outer}");
        }
        let keeps = Mount::prefix("sample", "/daytona");
        for (outer, wanted) in [("/daytona/api/socket.io/", "/api/socket.io/"), ("/daytona", "/")] {
            assert_eq!(keeps.inner(&outer.parse().unwrap()).to_string(), wanted, "{outer}");
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_500_with_its_id_and_the_next_request_is_served() {
        let (status, headers, text) = call(request("GET", "/sample/fail", &[])).await;
        let id = headers["x-request-id"].to_str().unwrap();
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(
            text.starts_with("internal ") && text.ends_with(id) && !text.contains("on purpose"),
            "{text}"
        );
        assert_eq!(call(request("GET", "/sample/ok/", &[])).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn the_front_writes_unknown_routes_and_methods() {
        let (status, _, text) = call(request("GET", "/sample/none", &[])).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(text.starts_with("route_not_found there is no GET /sample/none /sample/none "), "{text}");
        let (status, headers, text) = call(request("DELETE", "/sample/ok", &[])).await;
        assert_eq!(
            (status, headers[header::ALLOW].to_str().unwrap()),
            (StatusCode::METHOD_NOT_ALLOWED, "GET,HEAD")
        );
        assert!(text.starts_with("method_not_allowed /sample/ok does not support DELETE "), "{text}");
    }

    #[tokio::test]
    async fn headers_beside_an_error_stay() {
        let (status, headers, text) = call(request("GET", "/sample/range", &[])).await;
        assert_eq!(
            (status, headers["content-range"].to_str().unwrap()),
            (StatusCode::BAD_REQUEST, "bytes */3")
        );
        assert!(text.contains("range: is wrong"), "{text}");
    }

    #[tokio::test]
    async fn a_valid_request_id_is_kept_and_any_other_replaced() {
        let id = async |sent: Option<&str>| {
            let fields: Vec<_> = sent.map(|id| ("x-request-id", id)).into_iter().collect();
            let headers = call(request("GET", "/sample/ok", &fields)).await.1;
            headers["x-request-id"].to_str().unwrap().to_owned()
        };
        assert_eq!(id(Some("trace-1.a_b")).await, "trace-1.a_b");
        for bad in ["", "a b", "<x>", &"a".repeat(65)] {
            assert_ne!(id(Some(bad)).await, bad);
        }
        assert_ne!(id(None).await, id(None).await);
    }

    #[tokio::test]
    async fn pages_of_every_origin_may_call_a_front_that_allows_them() {
        struct Open;
        impl Front for Open {
            fn mount(&self) -> Mount {
                Mount::prefix("open", "").allow_any_origin()
            }
            fn routes(&self) -> Router {
                Sample.routes()
            }
            fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
                Sample.render_error(error, request)
            }
        }
        let front = MountedFront::new(Open);
        let star = HeaderValue::from_static("*");
        for path in ["/ok", "/none", "/fail"] {
            let response = front.call(request("GET", path, &[])).await;
            assert_eq!(response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], star, "{path}");
        }
        let asks = [("access-control-request-method", "POST"), ("access-control-request-headers", "x-a")];
        let response = front.call(request("OPTIONS", "/ok", &asks)).await;
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(response.headers()[header::ACCESS_CONTROL_ALLOW_HEADERS], "x-a");
    }
}
