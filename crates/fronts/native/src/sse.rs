//! Event streams: one form for all. They end when the server closes, and comments keep them alive.
//!
//! This module has no queue: the stream is polled only when the connection can take more, so a client that stops
//! reading stops its own source. When the client disconnects, hyper drops the body, and with it the stream and
//! everything it holds.

use std::convert::Infallible;
use std::time::Duration;

use atoll_client::exec::OutputChunk;
use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde::Serialize;

use crate::App;
use crate::telemetry::Open;

// LIMIT: below the 30 s and 60 s after which common proxies drop a silent connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Sends `events` until they end or the server closes.
pub(crate) fn respond(app: &App, events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let open = Open::stream();
    let closing = app.shutdown.draining();
    let events = events.take_until(closing).map(move |event| {
        let _counted = &open;
        Ok::<_, Infallible>(event)
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Some proxies buffer a response unless this header disables it.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// One event with a JSON payload. Newlines inside are escaped by JSON, so one event is one line of data.
pub(crate) fn event(name: &str, payload: &impl Serialize) -> Event {
    let text = serde_json::to_string(payload).unwrap_or_else(|_| "null".to_owned());
    Event::default().event(name).data(text)
}

/// Turns bytes into text if they are text. A character that is split at the end of a chunk waits for its second part.
#[derive(Debug, Default)]
pub(crate) struct Utf8Carry {
    tail: Vec<u8>,
}

impl Utf8Carry {
    /// `None` while the bytes are only the first part of a character.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Option<OutputChunk> {
        let mut whole = if self.tail.is_empty() {
            Vec::from(bytes)
        } else {
            self.tail.extend_from_slice(&bytes);
            std::mem::take(&mut self.tail)
        };
        let cut = match std::str::from_utf8(&whole) {
            Ok(_) => whole.len(),
            // Not an error yet: the chunk ended inside a character.
            Err(e) if e.error_len().is_none() => e.valid_up_to(),
            Err(_) => whole.len(),
        };
        self.tail = whole.split_off(cut);
        (!whole.is_empty()).then(|| OutputChunk::new(whole))
    }

    /// The rest at the end of the stream.
    pub(crate) fn finish(&mut self) -> Option<OutputChunk> {
        let tail = std::mem::take(&mut self.tail);
        (!tail.is_empty()).then(|| OutputChunk::new(tail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    fn text(data: &str) -> Option<OutputChunk> {
        Some(OutputChunk::Text { data: data.to_owned() })
    }

    #[test]
    fn a_character_cut_in_two_arrives_whole() {
        let mut carry = Utf8Carry::default();
        assert_eq!(carry.push(Bytes::from_static(b"a\xc3")), text("a"));
        assert_eq!(carry.push(Bytes::from_static(b"\xa9b")), text("éb"));
        assert_eq!(carry.push(Bytes::from_static(b"\xf0\x9f")), None);
        assert_eq!(carry.push(Bytes::from_static(b"\x90\x9a")), text("🐚"));
        assert_eq!(carry.finish(), None);
    }

    #[test]
    fn bytes_that_are_no_text_arrive_as_they_are() {
        let mut carry = Utf8Carry::default();
        let raw = Some(OutputChunk::Bytes { data_base64: STANDARD.encode(b"a\xffb") });
        assert_eq!(carry.push(Bytes::from_static(b"a\xffb")), raw);
        assert_eq!(carry.push(Bytes::from_static(b"\xe2\x82")), None);
        assert_eq!(carry.finish(), Some(OutputChunk::Bytes { data_base64: STANDARD.encode(b"\xe2\x82") }));
    }
}
