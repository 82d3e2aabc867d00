//! Sends content: ranges, and headers that are safe for hostile names.

use atoll_front_kit::ApiError;
use atoll_model::Code;
use atoll_service::{ByteRange, Entry, EntryKind, FileBody};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;

/// The requested range. Several ranges, other units and invalid ranges are ignored, as HTTP allows.
pub(super) fn range(headers: &HeaderMap) -> Option<ByteRange> {
    let spec = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = spec.trim().split_once('-')?;
    match (first.trim(), last.trim()) {
        ("", last) => Some(ByteRange::Last(last.parse().ok()?)),
        (first, "") => Some(ByteRange::From(first.parse().ok()?)),
        (first, last) => {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(ByteRange::Within(first, last))
        }
    }
}

/// The refusal of a range outside of the file; `None` if the range is not the reason of the error.
pub(super) fn outside(range: Option<ByteRange>, entry: &Entry) -> Option<Response> {
    let is_outside = match range? {
        ByteRange::From(first) | ByteRange::Within(first, _) => first >= entry.size,
        ByteRange::Last(count) => count == 0 || entry.size == 0,
    };
    (is_outside && entry.kind == EntryKind::File).then(|| unsatisfiable(entry.size))
}

/// The response with a file's content.
pub(super) fn download(path: &str, range: Option<ByteRange>, file: FileBody) -> Response {
    if range.is_some() && file.len == 0 {
        return unsatisfiable(file.size);
    }
    let (size, offset, len) = (file.size, file.offset, file.len);
    let content = file.stream.map(|chunk| chunk.map_err(|error| std::io::Error::other(error.message)));
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    headers.insert(header::CONTENT_DISPOSITION, disposition(path));
    if range.is_some() {
        let last = offset.saturating_add(len).saturating_sub(1);
        if let Ok(value) = HeaderValue::from_str(&format!("bytes {offset}-{last}/{size}")) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

fn unsatisfiable(size: u64) -> Response {
    let error =
        ApiError::new(Code::InvalidArgument, format!("the range is outside the file of {size} bytes"))
            .with_status(StatusCode::RANGE_NOT_SATISFIABLE);
    let mut response = error.into_response();
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    response
}

/// The response is always a download, never shown inline. The name is plain ASCII, and beside it exact in percent
/// encoding.
pub(crate) fn disposition(path: &str) -> HeaderValue {
    let name = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("file");
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ' ') { c } else { '_' })
        .collect();
    let mut exact = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => exact.push(char::from(byte)),
            _ => exact.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::from_str(&format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}"))
        .unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn asked(text: &'static str) -> Option<ByteRange> {
        range(&HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(text))]))
    }

    #[test]
    fn one_range_is_understood_and_everything_else_ignored() {
        assert_eq!(asked("bytes=0-9"), Some(ByteRange::Within(0, 9)));
        assert_eq!(asked("bytes=5-"), Some(ByteRange::From(5)));
        assert_eq!(asked("bytes=-5"), Some(ByteRange::Last(5)));
        for odd in [
            "bytes=9-0",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=-99999999999999999999",
        ] {
            assert_eq!(asked(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_hostile_name_cannot_leave_its_header() {
        let value = disposition("/tmp/a\"; x=\r\n<é>.txt");
        let text = value.to_str().unwrap();
        assert_eq!(text.matches('"').count(), 2);
        assert!(!text.contains('\r') && text.contains("%0D%0A") && text.contains("%C3%A9"), "{text}");
        assert!(disposition("/").to_str().unwrap().contains("\"file\""));
    }

    fn body(len: u64, size: u64, offset: u64) -> FileBody {
        FileBody { size, offset, len, mode: None, stream: futures::stream::empty().boxed() }
    }

    #[test]
    fn a_range_answers_206_and_one_outside_416() {
        let whole = download("/a", None, body(9, 9, 0));
        assert_eq!((whole.status().as_u16(), whole.headers().get(header::CONTENT_RANGE)), (200, None));
        let part = download("/a", Some(ByteRange::Last(4)), body(4, 9, 5));
        assert_eq!(
            (part.status().as_u16(), &part.headers()[header::CONTENT_RANGE]),
            (206, &HeaderValue::from_static("bytes 5-8/9"))
        );
        let none = download("/a", Some(ByteRange::From(9)), body(0, 9, 9));
        assert_eq!(
            (none.status().as_u16(), &none.headers()[header::CONTENT_RANGE]),
            (416, &HeaderValue::from_static("bytes */9"))
        );
    }
}
