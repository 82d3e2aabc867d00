//! What goes out: JSON answers with their exact status, moments, texts that need not be text.

use atoll_budget::{JsonObject, WholeAnswer};
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;

/// A JSON answer.
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.1).expect("wire types hold string keys only");
        let mut response = (self.0, body).into_response();
        response.extensions_mut().insert(WholeAnswer);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// A JSON object that is encoded while it is written.
pub(crate) fn streamed(object: JsonObject) -> Response {
    let mut response = Response::new(Body::new(object));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// With 200.
pub(crate) fn ok<T: Serialize>(value: T) -> Answer<T> {
    Answer(StatusCode::OK, value)
}

/// With 201.
pub(crate) fn created<T: Serialize>(value: T) -> Answer<T> {
    Answer(StatusCode::CREATED, value)
}

/// A moment as ISO text, as JavaScript writes it.
pub(crate) fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), |at| format!("{at:.3}"))
}

/// What a program wrote, or the name of a file: mostly text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_javascript_does() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(1_763_000_000_123), "2025-11-13T02:13:20.123Z");
    }
}
