//! The HTTP side of the adapter: settings, files, and the RPC services.
//!
//! It takes every request: only the server can open a connection, and it has authorised the caller.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::{HoldStatus, InitReply, InitRequest, MODE_HEADER, Range, RpcCode, SIZE_HEADER};
use atoll_provider::FileContent;
use bytes::{Bytes, BytesMut};
use connectrpc::ConnectRpcService;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::DuplexStream;
use tower::Service;

use crate::error::SessionRefusal;
use crate::rpc;
use crate::state::{AdapterState, now_ms};

/// LIMIT: bytes of settings with a large environment.
const INIT_MAX: usize = 4 << 20;
/// LIMIT: bytes of the sources and patterns of one pack.
const PACK_ASK_MAX: usize = 1 << 20;
/// LIMIT: bytes of a file without a size (/proc, /sys), as the agent takes.
const UNSIZED_MAX: usize = 4 << 20;
/// LIMIT: bytes that one connection buffers.
const BUFFER_MAX: usize = 128 * 1024;
/// LIMIT: a connection without a request for this long is closed. Clients drop idle ones earlier.
const IDLE_LIMIT: Duration = Duration::from_secs(300);

type AdapterBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;
type Answer = Result<Response<AdapterBody>, SessionRefusal>;

/// Answers the requests of all connections.
#[derive(Clone)]
pub(crate) struct AdapterHandler {
    state: Arc<AdapterState>,
    rpc: ConnectRpcService,
}

impl AdapterHandler {
    pub(crate) fn new(state: Arc<AdapterState>) -> Self {
        Self { rpc: rpc::service(&state), state }
    }

    /// Serves one connection until its peer closes it.
    pub(crate) async fn serve(self, stream: DuplexStream) {
        let answer = service_fn(move |request| {
            let handler = self.clone();
            async move { Ok::<_, Infallible>(handler.answer(request).await) }
        });
        let mut connection = http1::Builder::new();
        connection.timer(TokioTimer::new()).header_read_timeout(IDLE_LIMIT).max_buf_size(BUFFER_MAX);
        // An error means that the client closed the connection.
        let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<AdapterBody> {
        self.route(request).await.unwrap_or_else(|refusal| {
            let status = refusal.status();
            let body = serde_json::json!({ "code": status.as_u16(), "message": refusal.message });
            let mut response = json(&body);
            *response.status_mut() = status;
            response
        })
    }

    async fn route(&self, request: Request<Incoming>) -> Answer {
        let state = &self.state;
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/health") => Ok(empty(StatusCode::NO_CONTENT)),
            // No program inside can reach the adapter.
            (&Method::GET, "/hold") => Ok(json(&HoldStatus::default())),
            (&Method::GET, "/init") => Ok(json(&state.settings())),
            (&Method::POST, "/init") => self.init(request).await,
            (&Method::GET, "/envs") => Ok(json(&state.settings().env_vars.unwrap_or_default())),
            (&Method::GET, "/metrics") => Ok(json(&state.metrics(now_ms()).await?)),
            (&Method::GET, "/files") => self.download(&request).await,
            (&Method::POST, "/files") => self.upload(request).await,
            (&Method::POST, "/archive/pack") => self.pack(request).await,
            (&Method::POST, "/archive/unpack") => self.unpack(request).await,
            (_, "/health" | "/hold" | "/init" | "/envs" | "/metrics" | "/files") => {
                Ok(empty(StatusCode::METHOD_NOT_ALLOWED))
            }
            _ => {
                let Ok(response) = self.rpc.clone().call(request).await;
                Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
            }
        }
    }

    async fn init(&self, request: Request<Incoming>) -> Answer {
        let wants_reply = request.headers().contains_key(atoll_agentapi::INIT_HEADER);
        let body = Limited::new(request.into_body(), INIT_MAX).collect().await;
        let body = body.map_err(|_| SessionRefusal::invalid("the settings are too large or incomplete"))?;
        let body = body.to_bytes();
        if !body.is_empty() {
            let settings: InitRequest = serde_json::from_slice(&body)
                .map_err(|_| SessionRefusal::invalid("the settings are not valid JSON"))?;
            let workdir = settings.default_workdir.clone().filter(|folder| folder.starts_with('/'));
            self.state.apply(settings);
            if let Some(workdir) = workdir {
                // Programs expect it. A failure shows when one needs it.
                let _ = self.state.ensure_folder(&workdir, None).await;
            }
        }
        Ok(match wants_reply {
            true => json(&InitReply {
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                envd_version: atoll_agentapi::ENVD_VERSION.to_owned(),
                generation: atoll_agentapi::GENERATION,
                features: ["attach-tail", "attach-from", "logs", "range"].map(str::to_owned).to_vec(),
            }),
            false => empty(StatusCode::NO_CONTENT),
        })
    }

    async fn download(&self, request: &Request<Incoming>) -> Answer {
        let (state, query) = (&self.state, parameters(request.uri().query()));
        let (path, user) = self.place(request.headers(), &query, "path")?;
        let user = user.as_deref();
        let range = match requested_range(request.headers()) {
            Some(RangeHeader::Last(bytes)) => {
                let size = state.stat(&path, user).await?.size;
                Some(Range { start: size.saturating_sub(bytes), len: None })
            }
            Some(RangeHeader::From(range)) => Some(range),
            None => None,
        };
        let content = state.session()?.read_file(&state.target, &path, user, range).await?;
        let content = if content.size == 0 && range.is_none() { measured(content).await? } else { content };
        let (size, start) = (content.size, range.map_or(0, |range| range.start));
        if range.is_some() && start >= size {
            let mut response = empty(StatusCode::RANGE_NOT_SATISFIABLE);
            insert(response.headers_mut(), "content-range", &format!("bytes */{size}"));
            return Ok(response);
        }
        let len = range.and_then(|range| range.len).unwrap_or(u64::MAX).min(size - start);
        let chunks = content.stream.map_ok(Frame::data).map_err(Box::<dyn Error + Send + Sync>::from);
        let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
        let head = response.headers_mut();
        insert(head, "content-type", "application/octet-stream");
        insert(head, "accept-ranges", "bytes");
        insert(head, "content-length", &len.to_string());
        insert(head, MODE_HEADER, &format!("{:o}", content.mode & 0o7777));
        insert(head, SIZE_HEADER, &size.to_string());
        if range.is_some() {
            insert(head, "content-range", &format!("bytes {start}-{}/{size}", start + len.max(1) - 1));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
        Ok(response)
    }

    /// A file as the body, or files as the parts of a form.
    async fn upload(&self, request: Request<Incoming>) -> Answer {
        let query = parameters(request.uri().query());
        let text =
            |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mode = match query.get("mode").map(|mode| u32::from_str_radix(mode, 8)) {
            Some(Ok(mode)) => Some(mode & 0o7777),
            Some(Err(_)) => return Err(SessionRefusal::invalid("mode is not an octal number")),
            None => None,
        };
        if !matches!(text(header::CONTENT_ENCODING), "" | "identity") {
            return Err(self.state.agent_only("a compressed upload"));
        }
        let boundary = multer::parse_boundary(text(header::CONTENT_TYPE)).ok();
        let len = text(header::CONTENT_LENGTH).parse().ok();
        let headers = request.headers().clone();
        let body = request.into_body().into_data_stream().map_err(std::io::Error::other);
        let written = match boundary {
            Some(boundary) => {
                self.write_parts(&headers, &query, mode, multer::Multipart::new(body, boundary)).await?
            }
            None => {
                let (path, user) = self.place(&headers, &query, "path")?;
                self.state.write(&path, user.as_deref(), mode, len, body.boxed()).await?;
                vec![path]
            }
        };
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let entries = written
            .iter()
            .map(|path| serde_json::json!({ "name": name(path), "path": path, "type": "file" }));
        Ok(json(&entries.collect::<Vec<_>>()))
    }

    async fn pack(&self, request: Request<Incoming>) -> Answer {
        let query = parameters(request.uri().query());
        let layout = query.get("layout").map_or("contents", String::as_str).to_owned();
        let user = self.user(request.headers(), &query)?;
        let ask = Limited::new(request.into_body(), PACK_ASK_MAX).collect().await;
        let ask =
            ask.map_err(|_| SessionRefusal::invalid("the list of sources is too long or incomplete"))?;
        let chunks = self.state.pack(&layout, query.contains_key("sparse"), &ask.to_bytes(), user).await?;
        let mut response = Response::new(StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync());
        insert(response.headers_mut(), "content-type", "application/x-tar");
        Ok(response)
    }

    async fn unpack(&self, request: Request<Incoming>) -> Answer {
        let query = parameters(request.uri().query());
        let user = self.user(request.headers(), &query)?;
        let body = request.into_body().into_data_stream().map_err(std::io::Error::other);
        let bytes = self.state.unpack(&query, user, body.boxed()).await?;
        // `tar` does not count entries.
        Ok(json(&serde_json::json!({ "entries": 0, "bytes": bytes })))
    }

    async fn write_parts(
        &self,
        headers: &HeaderMap,
        query: &HashMap<String, String>,
        mode: Option<u32>,
        mut parts: multer::Multipart<'static>,
    ) -> Result<Vec<String>, SessionRefusal> {
        let broken = |_| SessionRefusal::invalid("the multipart body is broken");
        let mut written = Vec::new();
        while let Some(part) = parts.next_field().await.map_err(broken)? {
            if part.name() != Some("file") {
                continue;
            }
            let mut query = query.clone();
            if let Some(name) = part.file_name() {
                query.entry("path".to_owned()).or_insert_with(|| name.to_owned());
            }
            let (path, user) = self.place(headers, &query, "path")?;
            let content = part.map_err(std::io::Error::other).boxed();
            self.state.write(&path, user.as_deref(), mode, None, content).await?;
            written.push(path);
        }
        match written.is_empty() {
            true => Err(SessionRefusal::invalid("no part is named 'file'")),
            false => Ok(written),
        }
    }

    /// The path and the user of a request for a file.
    fn place(
        &self,
        headers: &HeaderMap,
        query: &HashMap<String, String>,
        parameter: &str,
    ) -> Result<(String, Option<String>), SessionRefusal> {
        let path = query.get(parameter).filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| SessionRefusal::invalid(format!("{parameter} is missing")))?;
        Ok((self.state.path(path.as_bytes())?, self.user(headers, query)?))
    }

    fn user(
        &self,
        headers: &HeaderMap,
        query: &HashMap<String, String>,
    ) -> Result<Option<String>, SessionRefusal> {
        self.state.user(headers, query.get("username").map_or("", String::as_str))
    }
}

/// The content of a file that says it is empty. Files of `/proc` and `/sys` have content all the same.
async fn measured(content: FileContent) -> Result<FileContent, SessionRefusal> {
    let FileContent { mode, mut stream, .. } = content;
    let mut bytes = BytesMut::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > UNSIZED_MAX {
            let message = format!("a file without a size has more than {} MiB", UNSIZED_MAX >> 20);
            return Err(SessionRefusal::new(RpcCode::FailedPrecondition, message));
        }
    }
    let (size, whole) = (bytes.len() as u64, bytes.freeze());
    Ok(FileContent { size, mode, stream: futures::stream::iter([Ok(whole)]).boxed() })
}

/// The parameters of a query. A value that is not UTF-8 names nothing here.
fn parameters(query: Option<&str>) -> HashMap<String, String> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_encoding::percent_decode_str(&text).decode_utf8().ok().map(std::borrow::Cow::into_owned)
    };
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(name)?, decoded(value)?))
    });
    pairs.collect()
}

#[derive(Debug, PartialEq, Eq)]
enum RangeHeader {
    From(Range),
    Last(u64),
}

/// One range in bytes; everything else means the whole file.
fn requested_range(headers: &HeaderMap) -> Option<RangeHeader> {
    let (first, last) = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        return last.parse().ok().map(RangeHeader::Last);
    }
    let start: u64 = first.parse().ok()?;
    if last.is_empty() {
        return Some(RangeHeader::From(Range { start, len: None }));
    }
    let len = last.parse::<u64>().ok()?.checked_sub(start)?.checked_add(1)?;
    Some(RangeHeader::From(Range { start, len: Some(len) }))
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn full(bytes: impl Into<Bytes>) -> AdapterBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn empty(status: StatusCode) -> Response<AdapterBody> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn json(value: &impl serde::Serialize) -> Response<AdapterBody> {
    let mut response = Response::new(full(serde_json::to_vec(value).unwrap_or_default()));
    insert(response.headers_mut(), "content-type", "application/json");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_carries_any_text() {
        let found = parameters(Some("path=/a%20b%26c&username=x+y&flag"));
        assert_eq!(found["path"], "/a b&c");
        assert_eq!((found["username"].as_str(), found["flag"].as_str()), ("x y", ""));
    }

    #[test]
    fn ranges_are_read_in_their_three_forms() {
        let range = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, text.parse().unwrap());
            requested_range(&headers)
        };
        assert_eq!(range("bytes=2-5"), Some(RangeHeader::From(Range { start: 2, len: Some(4) })));
        assert_eq!(range("bytes=7-"), Some(RangeHeader::From(Range { start: 7, len: None })));
        assert_eq!(range("bytes=-3"), Some(RangeHeader::Last(3)));
        assert_eq!(range("bytes=5-2"), None);
        assert_eq!(range("lines=1-2"), None);
    }

    #[test]
    fn any_query_is_read() {
        atoll_robustness::check("query_string", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            assert!(parameters(Some(&text)).len() <= text.split('&').count());
        });
    }

    #[test]
    fn any_range_lies_within_the_numbers() {
        atoll_robustness::check("range_header", |bytes| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            let headers = HeaderMap::from_iter([(header::RANGE, value)]);
            if let Some(RangeHeader::From(Range { start, len: Some(len) })) = requested_range(&headers) {
                assert!(len > 0 && start.checked_add(len - 1).is_some());
            }
        });
    }
}
