//! A stream on which the caller speaks HTTP/1.1 to a port inside a sandbox, where the vendor takes requests by host name.
//!
//! ```text
//! caller ═ stream in memory ═► head rewritten: host, tokens ═► connection to the vendor ═► the port inside
//! ```
//!
//! Bodies are streamed and upgrades become tunnels. Requests of one stream follow each other, so one connection serves them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode;
use tokio::io::DuplexStream;
use tokio::task::JoinSet;

use crate::connect::{VendorAddress, VendorConnector};
use crate::link_guard::LinkError;

/// LIMIT: bytes on their way in each direction of one stream.
const PIPE: usize = 64 << 10;
/// LIMIT: open streams of one provider.
const STREAMS_MAX: usize = 1_024;
/// LIMIT: a refusal of the vendor's proxy is one JSON object.
const REFUSAL_MAX: usize = 8 << 10;
/// LIMIT: bytes of a head.
const BUFFER_MAX: usize = 256 << 10;

/// LIMIT: escapes of escapes in a path below a link.
const ESCAPES_MAX: usize = 3;

type DialBody = BoxBody<Bytes, hyper::Error>;

/// The tasks of a provider's streams; they end with it.
#[derive(Debug, Default)]
pub struct DialTasks(Mutex<JoinSet<()>>);

/// Where the requests of a stream go.
#[derive(Clone)]
pub struct HttpTarget {
    /// The host that is connected to.
    pub address: VendorAddress,
    /// The value of `Host`.
    pub host: HeaderValue,
    /// Headers for the vendor's proxy. They replace those of the caller.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// A word in the vendor's own refusals of a port that is closed; such an answer is replaced.
    pub closed_port_text: &'static str,
    /// The port inside.
    pub port: u16,
}

/// Where a vendor serves a port below a path of its own, and with a query of its own. It may contain tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LinkPath {
    /// Before the path of every request, without a slash at its end.
    pub prefix: String,
    /// Before the query of every request.
    pub query: String,
}

impl LinkPath {
    /// The path and query that the vendor takes for those of a request; `None`: the path could leave the link's own.
    fn join(&self, path_and_query: &str) -> Option<Uri> {
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let queries = [self.query.as_str(), query].into_iter().filter(|query| !query.is_empty());
        let query = queries.collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        if !self.prefix.is_empty() && !path.starts_with('/') || self.is_left_by(path) {
            return None;
        }
        format!("{}{path}{mark}{query}", self.prefix).parse().ok()
    }

    /// Whether a path has a segment `..`, as any program on the way may read it: with escapes, also doubled ones, with backslashes,
    /// or before a parameter. Without a prefix there is nothing to leave.
    fn is_left_by(&self, path: &str) -> bool {
        if self.prefix.is_empty() {
            return false;
        }
        let mut read = path.as_bytes().to_vec();
        for _ in 0..=ESCAPES_MAX {
            let is_up = |segment: &[u8]| segment.split(|byte| *byte == b';').next() == Some(b"..");
            if read.split(|byte| matches!(byte, b'/' | b'\\')).any(is_up) {
                return true;
            }
            let once: Vec<u8> = percent_decode(&read).collect();
            if once == read {
                return false;
            }
            read = once;
        }
        // Nobody escapes a path so many times for a good reason.
        true
    }
}

/// Opens a stream; `None`: the provider has as many as it may have.
#[must_use]
pub fn dial_http(tasks: &DialTasks, connector: &VendorConnector, target: HttpTarget) -> Option<DuplexStream> {
    dial_link(tasks, connector, target, LinkPath::default())
}

/// As [`dial_http`], for a port that is served below a path.
#[must_use]
pub fn dial_link(
    tasks: &DialTasks,
    connector: &VendorConnector,
    target: HttpTarget,
    link: LinkPath,
) -> Option<DuplexStream> {
    let mut tasks = tasks.0.lock().unwrap_or_else(PoisonError::into_inner);
    while tasks.try_join_next().is_some() {}
    if tasks.len() >= STREAMS_MAX {
        return None;
    }
    let (near, far) = tokio::io::duplex(PIPE);
    let idle = tokio::sync::Mutex::new(None);
    let relay = Arc::new(HttpRelay { connector: connector.clone(), target, link, idle });
    tasks.spawn(serve(relay, far));
    Some(near)
}

struct HttpRelay {
    connector: VendorConnector,
    target: HttpTarget,
    link: LinkPath,
    /// The connection of the request before, with the task that drives it.
    idle: tokio::sync::Mutex<Option<(SendRequest<Incoming>, JoinSet<()>)>>,
}

async fn serve(relay: Arc<HttpRelay>, stream: DuplexStream) {
    let tunnels = Arc::new(Mutex::new(JoinSet::new()));
    let service = service_fn(|request| {
        let (relay, tunnels) = (Arc::clone(&relay), Arc::clone(&tunnels));
        async move { Ok::<_, Infallible>(relay.answer(request, &tunnels).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .preserve_header_case(true)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a stream to a port ended early");
    }
    let mut tunnels = std::mem::take(&mut *tunnels.lock().unwrap_or_else(PoisonError::into_inner));
    while tunnels.join_next().await.is_some() {}
}

impl HttpRelay {
    async fn answer(
        &self,
        mut request: Request<Incoming>,
        tunnels: &Mutex<JoinSet<()>>,
    ) -> Response<DialBody> {
        let upgrade =
            request.headers().contains_key(http::header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
        if !self.rewrite(&mut request) {
            let text = "the path of this request cannot be sent: it has a segment `..` or cannot be read";
            return refusal(StatusCode::BAD_REQUEST, text);
        }
        let mut response = match self.send(request).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(%error, "a request to a port was not answered");
                return unanswered(error.downcast_ref());
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(near) = upgrade
        {
            let far = hyper::upgrade::on(&mut response);
            tunnels.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
                if let (Ok(near), Ok(far)) = tokio::join!(near, far) {
                    let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
                    // Either side may end the tunnel at any time.
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
        self.checked(response).await
    }

    /// Whether the request can be sent.
    fn rewrite(&self, request: &mut Request<Incoming>) -> bool {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let Some(path) = self.link.join(path) else { return false };
        *request.uri_mut() = path;
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.host.clone());
        for (name, value) in &self.target.headers {
            headers.insert(name.clone(), value.clone());
        }
        true
    }

    async fn send(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
        let mut idle = self.idle.lock().await;
        if let Some((sender, _)) = idle.as_mut()
            && sender.ready().await.is_err()
        {
            *idle = None;
        }
        let mut unsent = request;
        if let Some((sender, _)) = idle.as_mut() {
            match sender.try_send_request(unsent).await {
                Ok(response) => return Ok(response),
                Err(mut refused) => match refused.take_message() {
                    Some(request) => unsent = request,
                    None => return Err(refused.into_error().into()),
                },
            }
        }
        let stream = self.connector.connect(&self.target.address).await?;
        let mut http = http1::Builder::new();
        http.preserve_header_case(true).max_buf_size(BUFFER_MAX);
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The sender gets the same error.
            let _ = connection.with_upgrades().await;
        });
        let (sender, _) = idle.insert((sender, driver));
        Ok(sender.send_request(unsent).await?)
    }

    /// Replaces a refusal of the vendor's proxy: it names the vendor's object, and not the sandbox.
    async fn checked(&self, response: Response<Incoming>) -> Response<DialBody> {
        let is_refusal =
            matches!(response.status(), StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE);
        if !is_refusal || !is_small_json(response.headers()) {
            return response.map(|body| body.boxed());
        }
        let (head, body) = response.into_parts();
        let Ok(body) = Limited::new(body, REFUSAL_MAX).collect().await.map(|body| body.to_bytes()) else {
            return unanswered(None);
        };
        match String::from_utf8_lossy(&body).contains(self.target.closed_port_text) {
            true => {
                let text = format!("no program listens on port {}", self.target.port);
                refusal(StatusCode::BAD_GATEWAY, &text)
            }
            false => Response::from_parts(head, whole(body)),
        }
    }
}

fn is_small_json(headers: &HeaderMap) -> bool {
    let is_json =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let len = headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<usize>().ok());
    is_json && len.is_some_and(|len| len <= REFUSAL_MAX)
}

fn whole(body: Bytes) -> DialBody {
    Full::new(body).map_err(|never: Infallible| match never {}).boxed()
}

/// The answer where there is none of the vendor.
fn unanswered(error: Option<&std::io::Error>) -> Response<DialBody> {
    let text = match error.and_then(LinkError::of) {
        Some(refused) => {
            format!("the port of this sandbox is not reached: {refused}\nhint: {}", refused.hint())
        }
        None => "the vendor of this sandbox did not answer".to_owned(),
    };
    refusal(StatusCode::BAD_GATEWAY, &text)
}

fn refusal(status: StatusCode, text: &str) -> Response<DialBody> {
    let mut response = Response::new(whole(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_comes_before_the_path_and_the_query_of_a_request() {
        let link = LinkPath { prefix: "/ports/abc".to_owned(), query: "token=t".to_owned() };
        assert_eq!(link.join("/").unwrap(), "/ports/abc/?token=t");
        assert_eq!(link.join("/a/b?x=1&y=?").unwrap(), "/ports/abc/a/b?token=t&x=1&y=?");
        assert_eq!(LinkPath::default().join("/a?x").unwrap(), "/a?x");
    }

    #[test]
    fn no_path_leaves_the_path_of_its_link() {
        let link = LinkPath { prefix: "/ports/abc".to_owned(), query: "token=t".to_owned() };
        for bad in [
            "/..",
            "/../def",
            "/a/../../def/",
            "/a//..//../def",
            "/%2e%2e/def",
            "/%2E./def",
            "/.%2e/def",
            "/..%2fdef",
            "/a%2F..%2F..%2Fdef",
            "/..%5cdef",
            "/..\\def",
            "/%252e%252e/def",
            "/%25252e%25252e/def",
            "/%2525252525252e",
            "/..;x=1/def",
            "/..%3bx/def",
            "*",
        ] {
            assert_eq!(link.join(bad), None, "{bad}");
        }
        for good in [
            "/...",
            "/a..b/..c",
            "//a//b",
            "/a%20b%2fc",
            "/100%",
            "/%zz",
            "/a?x=../..",
            "/.well-known/x",
            "/;../x",
        ] {
            assert!(link.join(good).is_some(), "{good}");
        }
        assert!(LinkPath::default().join("/../x").is_some(), "a link without a path has nothing to leave");
    }
}
