//! The common part of all sockets of the toolbox: the connection limit, pings, and a close for every way in which they
//! can end.
//!
//! This module has no queue: the next piece is taken only when the last one was sent.

use std::time::Duration;

use atoll_front_kit::{Account, ApiError};
use atoll_service::ServiceError;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use bytes::Bytes;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::refusal::bad;
use crate::DaytonaApp;
use crate::error::text;

/// LIMIT: the text that a person pastes, or the longest code.
const FRAME_MAX: usize = 16 << 20;
const PING_EVERY: Duration = Duration::from_secs(20);
/// LIMIT: two pings without an answer, with some tolerance.
const SILENT_FOR: Duration = Duration::from_secs(50);
const SEND_WITHIN: Duration = Duration::from_secs(30);
/// LIMIT: that of the protocol: the reason of a close has 123 bytes.
const REASON_MAX: usize = 123;

pub(super) const NORMAL: u16 = 1000;
pub(super) const GOING_AWAY: u16 = 1001;
pub(super) const FAILED: u16 = 1011;

/// A message of the client.
pub(super) enum Heard {
    /// Bytes, or a text.
    Data(Bytes),
    /// A message that needs no action.
    Nothing,
    /// The client disconnected.
    Gone,
}

/// A connected socket.
pub(super) struct Socket {
    inner: WebSocket,
    ping: Interval,
    heard: Instant,
}

/// The upgrade of the request.
pub(super) async fn asked(parts: &mut Parts, app: &DaytonaApp) -> Result<WebSocketUpgrade, ApiError> {
    WebSocketUpgrade::from_request_parts(parts, app).await.map_err(|rejection| bad(rejection.body_text()))
}

/// Whether a request is an upgrade.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// The subprotocols that a client offers. Daytona's SDKs pass settings in them.
pub(super) fn offered(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let words = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(','));
    words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

/// Upgrades the connection, and runs `run` until it returns a close.
pub(super) fn upgrade<F>(
    (app, account): (&DaytonaApp, &Account),
    upgrade: WebSocketUpgrade,
    headers: &HeaderMap,
    run: impl FnOnce(Socket) -> F + Send + 'static,
) -> Result<Response, ApiError>
where
    F: Future<Output = (Socket, Close)> + Send,
{
    let place = account.take_socket().map_err(ServiceError::from)?;
    let closing = app.options.closing.clone();
    // COMPAT(daytona): clients expect one of the offered subprotocols back.
    let response = upgrade
        .protocols(offered(headers).into_iter().take(1))
        .max_message_size(FRAME_MAX)
        .max_frame_size(FRAME_MAX)
        .max_write_buffer_size(4 << 20)
        .on_upgrade(move |inner| async move {
            let _place = place;
            let mut ping = interval(PING_EVERY);
            ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
            tokio::select! {
                (socket, close) = run(Socket { inner, ping, heard: Instant::now() }) => socket.close(close).await,
                () = closing.cancelled() => {}
            }
        });
    Ok(response)
}

/// How a socket is closed.
pub(super) struct Close {
    pub(super) code: u16,
    pub(super) reason: String,
}

impl Close {
    pub(super) fn new(code: u16, reason: impl Into<String>) -> Self {
        let mut reason: String = reason.into();
        let mut end = reason.len().min(REASON_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        Self { code, reason }
    }

    pub(super) fn normal() -> Self {
        Self::new(NORMAL, "")
    }

    /// A close with the reason of a failure.
    pub(super) fn failed(error: &ApiError) -> Self {
        Self::new(FAILED, text(error))
    }
}

impl Socket {
    /// The next message of the client. Pings it meanwhile. Cancel-safe.
    pub(super) async fn hear(&mut self) -> Heard {
        loop {
            let message = tokio::select! {
                message = self.inner.recv() => message,
                _ = self.ping.tick() => {
                    if self.heard.elapsed() > SILENT_FOR || !self.send(Message::Ping(Bytes::new())).await {
                        return Heard::Gone;
                    }
                    continue;
                }
            };
            self.heard = Instant::now();
            return match message {
                Some(Ok(Message::Binary(data))) => Heard::Data(data),
                Some(Ok(Message::Text(text))) => Heard::Data(Bytes::from(text)),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => Heard::Nothing,
                Some(Ok(Message::Close(_)) | Err(_)) | None => Heard::Gone,
            };
        }
    }

    /// Sends a message; `false` if the client disconnected.
    pub(super) async fn send(&mut self, message: Message) -> bool {
        matches!(timeout(SEND_WITHIN, self.inner.send(message)).await, Ok(Ok(())))
    }

    pub(super) async fn text(&mut self, text: String) -> bool {
        self.send(Message::Text(text.into())).await
    }

    async fn close(mut self, close: Close) {
        let frame = CloseFrame { code: close.code, reason: close.reason.into() };
        // Best effort: the client may have disconnected already.
        let said = async {
            if self.inner.send(Message::Close(Some(frame))).await.is_ok() {
                // This waits for the client's own close: if the connection were dropped before, a reset could discard
                // data in transit.
                while let Some(Ok(_)) = self.inner.recv().await {}
            }
        };
        let _ = timeout(Duration::from_secs(2), said).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_reason_fits_into_its_frame() {
        assert_eq!(Close::new(NORMAL, "short").reason, "short");
        let long = Close::new(FAILED, "é".repeat(100)).reason;
        assert!(long.len() <= REASON_MAX && long.chars().all(|c| c == 'é'));
    }

    #[test]
    fn offers_are_read_one_by_one() {
        let mut headers = HeaderMap::new();
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("a, b~c"));
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("d"));
        assert_eq!(offered(&headers), ["a", "b~c", "d"]);
    }
}
