//! What goes out: JSON answers with their exact status, moments, texts that need not be text.

use atoll_budget::WholeAnswer;
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

/// With 200.
pub(crate) fn ok<T: Serialize>(value: T) -> Answer<T> {
    Answer(StatusCode::OK, value)
}

/// With 201.
pub(crate) fn created<T: Serialize>(value: T) -> Answer<T> {
    Answer(StatusCode::CREATED, value)
}

/// A moment as ISO text.
pub(crate) fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), |at| at.to_string())
}

/// What a program wrote, or the name of a file: mostly text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
