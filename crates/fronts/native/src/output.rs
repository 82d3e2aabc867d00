//! What goes out: moments, names that need not be text, and JSON answers with their status.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;

/// A JSON answer.
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.1).expect("wire types hold string keys only");
        json(self.0, body.into())
    }
}

fn json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// LIMIT: a piece of a held answer, so that its end is asked for only when most of it is written.
const PIECE: usize = 64 << 10;

/// A JSON answer that keeps `room` until its body is written or given up.
pub(crate) struct Held<T, R>(pub(crate) T, pub(crate) R);

impl<T: Serialize, R: Send + 'static> IntoResponse for Held<T, R> {
    fn into_response(self) -> Response {
        let Self(value, room) = self;
        let body = Bytes::from(serde_json::to_vec(&value).expect("wire types hold string keys only"));
        drop(value);
        let length = HeaderValue::from(body.len());
        if body.len() <= PIECE {
            return json(StatusCode::OK, body.into());
        }
        let pieces = futures::stream::unfold((body, room), |(mut body, room)| async move {
            let piece = body.split_to(body.len().min(PIECE));
            (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (body, room)))
        });
        let mut response = json(StatusCode::OK, Body::from_stream(pieces));
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        response
    }
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

    #[tokio::test]
    async fn a_held_answer_is_whole_and_lets_go_of_its_room_at_the_end() {
        let room = std::sync::Arc::new(());
        let text = "x".repeat(3 * PIECE);
        let mut body =
            Held(&text, std::sync::Arc::clone(&room)).into_response().into_body().into_data_stream();
        let mut whole = Vec::new();
        while let Some(piece) = futures::StreamExt::next(&mut body).await {
            assert_eq!(std::sync::Arc::strong_count(&room), 2);
            whole.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(whole, format!("\"{text}\"").into_bytes());
        assert_eq!(std::sync::Arc::strong_count(&room), 1);
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_beside_it() {
        assert_eq!(text_of(b"ok".to_vec()), ("ok".to_owned(), None));
        assert_eq!(text_of(b"a\xff".to_vec()), ("a\u{fffd}".to_owned(), Some("Yf8=".to_owned())));
    }
}
