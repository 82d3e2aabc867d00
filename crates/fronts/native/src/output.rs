//! What goes out: moments, names that need not be text, and JSON answers with their status.

use atoll_budget::{JsonObject, WholeAnswer};
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Serialize;

/// A JSON answer.
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.1).expect("wire types hold string keys only");
        let mut response = json(self.0, body.into());
        response.extensions_mut().insert(WholeAnswer);
        response
    }
}

fn json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON object that is encoded while it is written.
pub(crate) fn streamed(object: JsonObject) -> Response {
    json(StatusCode::OK, Body::new(object))
}

/// A JSON answer with 200.
pub(crate) fn ok<T: Serialize>(value: T) -> Answer<T> {
    Answer(StatusCode::OK, value)
}

/// RFC 3339 with milliseconds, UTC.
pub(crate) fn time(ms: i64) -> String {
    let at = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}

/// Text that may be lossy, and the exact bytes where it is.
pub(crate) fn text_of(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(e) => {
            let exact = STANDARD.encode(e.as_bytes());
            (String::from_utf8_lossy(e.as_bytes()).into_owned(), Some(exact))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_rfc_3339_in_utc() {
        assert_eq!(time(1_780_000_000_123), "2026-05-28T20:26:40.123Z");
        assert_eq!(time(i64::MAX), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_beside_it() {
        assert_eq!(text_of(b"ok".to_vec()), ("ok".to_owned(), None));
        assert_eq!(text_of(b"a\xff".to_vec()), ("a\u{fffd}".to_owned(), Some("Yf8=".to_owned())));
    }
}
