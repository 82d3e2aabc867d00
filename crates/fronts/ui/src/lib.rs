//! The web page: the files of web/, built and compressed, with the headers that confine them.
//!
//! The page is a client of `/v1` like any other. This front knows no sandbox and no key; it serves files:
//!
//! ```text
//! GET /           index.html, for browsers only; a program gets the native front's answer
//! GET /ui/…       scripts, styles and the icon; their names hold a digest, so they are cached for good
//! ```
//!
//! Never: sets a cookie, answers with anything that a request or a sandbox sent.

use std::io::Read;

use atoll_front_kit::{ApiError, Front, Mount, RequestInfo};
use axum::Router;
use axum::extract::{Path, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::read::GzDecoder;

/// A file of the built page.
#[derive(Debug)]
struct PageFile {
    path: &'static str,
    etag: &'static str,
    gzip: &'static [u8],
}

static FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// What a build without Node has instead of the page.
const PLACEHOLDER: &str = include_str!("placeholder.html");

/// Scripts come from this server alone and none is inline. Styles may be inline: the terminal writes its own. Images of sandboxes
/// are blobs; frames are `srcdoc` only, which no source list has to name.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; \
     connect-src 'self'; frame-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types svelte-trusted-html atoll-frame";

/// The front of the web page.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ui;

impl Front for Ui {
    fn mount(&self) -> Mount {
        Mount::picked("ui", is_for_page)
    }

    fn routes(&self) -> Router {
        Router::new().route("/", get(index)).route("/ui/{*path}", get(asset))
    }

    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
        let text = format!("{}\nrequest {}\n", error.sentence(|_| None), request.id);
        (error.status(), text).into_response()
    }
}

fn is_for_page(request: &Request) -> bool {
    let path = request.uri().path();
    path.starts_with("/ui/") || (path == "/" && is_browser(request.method(), request.headers()))
}

fn is_browser(method: &Method, headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    (method == Method::GET || method == Method::HEAD) && accepts.contains("text/html")
}

async fn index(headers: HeaderMap) -> Response {
    let mut response = match find("index.html") {
        Some(file) => send(file, &headers),
        None => confined(PLACEHOLDER.into_response(), "text/html; charset=utf-8", "no-cache"),
    };
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
    response
}

async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response {
    match find(&path) {
        Some(file) => send(file, &headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn find(path: &str) -> Option<&'static PageFile> {
    FILES.iter().find(|file| file.path == path)
}

fn send(file: &'static PageFile, request: &HeaderMap) -> Response {
    // The name of an asset changes with its content.
    let cache =
        if file.path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let has_it = request.get(header::IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == file.etag.as_bytes());
    let mut response = match (has_it, accepts_gzip(request)) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => {
            let mut response = Bytes::from_static(file.gzip).into_response();
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        (false, false) => unpacked(file.gzip).into_response(),
    };
    response.headers_mut().insert(header::ETAG, HeaderValue::from_static(file.etag));
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
    confined(response, content_type(file.path), cache)
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let accepted =
        request.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim() == "gzip" && weight.is_none_or(|weight| weight > 0.0)
    })
}

fn unpacked(gzip: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzDecoder::new(gzip).read_to_end(&mut plain).expect("the build compressed it");
    plain
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Adds what every file of the page is sent with.
fn confined(mut response: Response, content_type: &'static str, cache: &'static str) -> Response {
    let fields: [(HeaderName, &'static str); 7] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, cache),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fields {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::MountedFront;
    use axum::body::Body;
    use http_body_util::BodyExt;

    fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    async fn answer(request: Request) -> (StatusCode, HeaderMap, Vec<u8>) {
        let (head, body) = MountedFront::new(Ui).call(request).await.into_parts();
        (head.status, head.headers, body.collect().await.unwrap().to_bytes().to_vec())
    }

    const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

    #[test]
    fn only_browsers_and_assets_are_for_the_page() {
        let is = |method, path, fields: &[_]| Ui.mount().matches(&request(method, path, fields));
        assert!(is("GET", "/", &[BROWSER]) && is("HEAD", "/", &[BROWSER]) && is("GET", "/ui/icon.svg", &[]));
        for (method, path) in
            [("GET", "/docs"), ("GET", "/v1/x"), ("POST", "/"), ("GET", "/uix"), ("GET", "/ui")]
        {
            assert!(!is(method, path, &[BROWSER]), "{method} {path}");
        }
        assert!(!is("GET", "/", &[("accept", "*/*")]) && !is("GET", "/", &[]));
    }

    #[tokio::test]
    async fn the_page_is_confined_and_sets_no_cookie() {
        let (status, headers, body) = answer(request("GET", "/", &[BROWSER])).await;
        assert_eq!(status, StatusCode::OK);
        assert!(!headers.contains_key(header::SET_COOKIE));
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(headers[header::CACHE_CONTROL], "no-cache");
        let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("script-src 'self';") && policy.contains("frame-ancestors 'none'"));
        let page = String::from_utf8(body).unwrap();
        assert!(!page.contains("<script>") && !page.contains("onload=") && page.contains("Atoll"), "{page}");
    }

    #[tokio::test]
    async fn what_is_not_there_is_not_found() {
        for path in ["/ui/none.js", "/ui/../Cargo.toml", "/ui/%2e%2e/Cargo.toml", "/ui/assets/"] {
            assert_eq!(answer(request("GET", path, &[])).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }

    /// A file as the build script would list it.
    fn sample() -> &'static PageFile {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, b"let a = 1").unwrap();
        let gzip = Vec::leak(encoder.finish().unwrap());
        Box::leak(Box::new(PageFile { path: "assets/a-1.js", etag: "\"1\"", gzip }))
    }

    #[tokio::test]
    async fn a_file_is_sent_compressed_or_plain_or_not_again() {
        let send_with = |fields: &[(&str, &str)]| send(sample(), request("GET", "/", fields).headers());
        let zipped = send_with(&[("accept-encoding", "deflate, gzip;q=0.5")]);
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(zipped.headers()[header::CACHE_CONTROL], "public, max-age=31536000, immutable");
        for refused in [&[][..], &[("accept-encoding", "gzip;q=0, br")][..]] {
            let plain = send_with(refused);
            assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
            assert_eq!(plain.headers()[header::CONTENT_TYPE], "text/javascript; charset=utf-8");
            assert_eq!(plain.into_body().collect().await.unwrap().to_bytes(), "let a = 1");
        }
        assert_eq!(send_with(&[("if-none-match", "\"1\"")]).status(), StatusCode::NOT_MODIFIED);
    }

    #[test]
    fn every_embedded_file_unpacks_and_has_a_type() {
        for file in FILES {
            assert!(
                !unpacked(file.gzip).is_empty() && content_type(file.path) != "application/octet-stream",
                "{}",
                file.path
            );
        }
        let bytes: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(bytes < 1_500_000, "the page is {bytes} bytes");
    }
}
