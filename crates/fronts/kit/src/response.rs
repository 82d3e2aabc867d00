//! Responses: JSON with an exact status, times as text, bytes as text.

use atoll_budget::{JsonObject, WholeAnswer};
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;

/// Set on responses that contain only a part of the result.
pub const TRUNCATED: HeaderName = HeaderName::from_static("atoll-truncated");

/// A JSON body with a status. It is counted in the request's budget until it is written.
pub struct JsonResponse<T>(pub StatusCode, pub T);

impl<T: Serialize> IntoResponse for JsonResponse<T> {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.1).expect("wire types hold string keys only");
        json_counted(self.0, body.into())
    }
}

/// A body that the caller holds as a whole until it is written, so it is counted in the request's budget.
fn json_counted(status: StatusCode, body: Body) -> Response {
    let mut response = json(status, body);
    response.extensions_mut().insert(WholeAnswer);
    response
}

fn json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON object that is encoded while it is written. A small one is sent whole, with its length.
pub fn stream_json(object: JsonObject) -> Response {
    match object.encode_small() {
        Ok(whole) => json_counted(StatusCode::OK, whole.into()),
        Err(object) => json(StatusCode::OK, Body::new(object)),
    }
}

/// The body of an error, for [`crate::Front::render_error`].
pub fn error_body(status: StatusCode, body: &impl Serialize) -> Response {
    json(status, serde_json::to_vec(body).expect("texts and numbers always serialise").into())
}

/// 200 with a JSON body.
pub fn ok<T: Serialize>(value: T) -> JsonResponse<T> {
    JsonResponse(StatusCode::OK, value)
}

/// 200 with a JSON list. A list that is not complete says so in the header `atoll-truncated`, for APIs whose body has no
/// field for it.
pub fn ok_list<T: Serialize>(value: T, is_truncated: bool) -> Response {
    let mut response = ok(value).into_response();
    if is_truncated {
        response.headers_mut().insert(TRUNCATED, HeaderValue::from_static("true"));
    }
    response
}

/// 201 with a JSON body.
pub fn created<T: Serialize>(value: T) -> JsonResponse<T> {
    JsonResponse(StatusCode::CREATED, value)
}

/// A time in RFC 3339, UTC, with as many digits as it needs. Empty where it is out of range.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), |at| at.to_string())
}

/// A time in RFC 3339, UTC, with milliseconds, as JavaScript writes it. The epoch where it is out of range.
#[must_use]
pub fn rfc3339_millis(ms: i64) -> String {
    format!("{:.3}", Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Output of a program or the name of a file, which are mostly UTF-8.
#[must_use]
pub fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(rfc3339_millis(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339_millis(1_780_000_000_123), "2026-05-28T20:26:40.123Z");
        assert_eq!(rfc3339_millis(i64::MAX), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_780_000_000_120), "2026-05-28T20:26:40.12Z");
        assert_eq!(rfc3339(i64::MAX), "");
    }
}
