//! A registry in memory. Its faults are a function that gets every request first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use atoll_image::Digest;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

/// Responds instead of the registry, or returns `None`. The number says how many requests with this method and path
/// came before.
pub(crate) type Fault = Box<dyn Fn(&Parts, &Bytes, usize) -> Option<Response> + Send + Sync>;

pub(crate) struct Fake {
    address: std::net::SocketAddr,
    shelf: Arc<Shelf>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shelf {
    blobs: Mutex<HashMap<String, Bytes>>,
    manifests: Mutex<HashMap<String, (String, Bytes)>>,
    fault: Mutex<Option<Fault>>,
    asked: Mutex<Vec<String>>,
    counts: Mutex<HashMap<String, usize>>,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shelf = Arc::new(Shelf::default());
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&shelf));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shelf, server }
    }

    /// `127.0.0.1:port`.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn put_blob(&self, blob: Bytes) {
        self.shelf.blobs.lock().unwrap().insert(Digest::of(&blob).to_string(), blob);
    }

    /// A blob that does not match its digest.
    pub(crate) fn put_blob_as(&self, digest: &Digest, blob: Bytes) {
        self.shelf.blobs.lock().unwrap().insert(digest.to_string(), blob);
    }

    pub(crate) fn put_manifest(&self, tag: &str, kind: &str, manifest: Bytes) -> Digest {
        let digest = Digest::of(&manifest);
        let mut manifests = self.shelf.manifests.lock().unwrap();
        for name in [tag.to_owned(), digest.to_string()] {
            manifests.insert(name, (kind.to_owned(), manifest.clone()));
        }
        digest
    }

    pub(crate) fn manifest(&self, tag: &str) -> Option<Bytes> {
        self.shelf.manifests.lock().unwrap().get(tag).map(|(_, bytes)| bytes.clone())
    }

    pub(crate) fn blobs(&self) -> usize {
        self.shelf.blobs.lock().unwrap().len()
    }

    pub(crate) fn fault(
        &self,
        fault: impl Fn(&Parts, &Bytes, usize) -> Option<Response> + Send + Sync + 'static,
    ) {
        *self.shelf.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub(crate) fn no_fault(&self) {
        *self.shelf.fault.lock().unwrap() = None;
    }

    /// The requests so far: `METHOD path range`.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.shelf.asked.lock().unwrap().clone()
    }

    pub(crate) fn forget(&self) {
        self.shelf.asked.lock().unwrap().clear();
    }

    /// How many requests contain this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.asked().iter().filter(|line| line.contains(text)).count()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(shelf): State<Arc<Shelf>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 256 << 20).await.unwrap_or_default();
    let range = parts.headers.get("range").and_then(|range| range.to_str().ok()).unwrap_or("");
    let path = parts.uri.path().to_owned();
    shelf.asked.lock().unwrap().push(format!("{} {path} {range}", parts.method).trim_end().to_owned());
    let before = {
        let mut counts = shelf.counts.lock().unwrap();
        let count = counts.entry(format!("{} {path}", parts.method)).or_default();
        *count += 1;
        *count - 1
    };
    let faulty = shelf.fault.lock().unwrap().as_ref().and_then(|fault| fault(&parts, &body, before));
    faulty.unwrap_or_else(|| shelf.answer(&parts, &path, range, body))
}

impl Shelf {
    fn answer(&self, parts: &Parts, path: &str, range: &str, body: Bytes) -> Response {
        let Some((rest, last)) = path.rsplit_once('/') else { return StatusCode::NOT_FOUND.into_response() };
        match (&parts.method, rest.rsplit('/').next().unwrap_or_default(), last) {
            (&Method::GET | &Method::HEAD, "manifests", name) => {
                match self.manifests.lock().unwrap().get(name).cloned() {
                    Some((kind, bytes)) => ([("content-type", kind)], bytes).into_response(),
                    None => StatusCode::NOT_FOUND.into_response(),
                }
            }
            (&Method::GET | &Method::HEAD, "blobs", digest) => {
                let blob = self.blobs.lock().unwrap().get(digest).cloned();
                blob.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |blob| ranged(&blob, range))
            }
            (&Method::POST, "uploads", "") => {
                // Relative, and with a query that must be kept.
                (StatusCode::ACCEPTED, [("location", format!("{path}17?state=kept"))]).into_response()
            }
            (&Method::PUT, "uploads", _) => self.upload(parts, body),
            (&Method::PUT, "manifests", tag) => {
                let kind = parts.headers["content-type"].to_str().unwrap().to_owned();
                let digest = Digest::of(&body).to_string();
                let mut manifests = self.manifests.lock().unwrap();
                manifests.insert(tag.to_owned(), (kind.clone(), body.clone()));
                manifests.insert(digest, (kind, body));
                StatusCode::CREATED.into_response()
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }

    fn upload(&self, parts: &Parts, body: Bytes) -> Response {
        let query: HashMap<String, String> =
            url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let digest = Digest::of(&body).to_string();
        if query.get("digest") != Some(&digest) || query.get("state").map(String::as_str) != Some("kept") {
            return StatusCode::BAD_REQUEST.into_response();
        }
        self.blobs.lock().unwrap().insert(digest, body);
        StatusCode::CREATED.into_response()
    }
}

/// A blob, or its end.
fn ranged(blob: &Bytes, range: &str) -> Response {
    let Some(from) = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')) else {
        return blob.clone().into_response();
    };
    let from: usize = from.parse().unwrap();
    if from >= blob.len() {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let said = format!("bytes {from}-{}/{}", blob.len() - 1, blob.len());
    (StatusCode::PARTIAL_CONTENT, [("content-range", said)], blob.slice(from..)).into_response()
}

/// A response that announces all of `blob` and ends early.
pub(crate) fn cut(blob: &Bytes, after: usize) -> Response {
    let first = blob.slice(..after);
    // The server drops unwritten data when a body fails.
    let breaks = futures::stream::once(async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        Err(std::io::Error::other("cut"))
    });
    let body = futures::StreamExt::chain(futures::stream::iter([Ok(first)]), breaks);
    let mut response = Body::from_stream(body).into_response();
    response.headers_mut().insert("content-length", blob.len().into());
    response
}

/// A response without end.
pub(crate) fn endless() -> Response {
    let piece = Bytes::from(vec![b' '; 64 << 10]);
    Body::from_stream(futures::stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone())))
        .into_response()
}
