//! One WebSocket for one terminal: output, input, pings in between, and a close for every way in which it can end.
//!
//! This module has no queue: output is taken from the agent only when the last frame was sent, and the agent drops
//! output that a slow reader does not take. The task ends with the client, the shell, a silent client or the closing of
//! the server.

use std::time::Duration;

use atoll_client::terminals::{TerminalClientFrame, TerminalServerFrame};
use atoll_front_kit::ApiError;
use atoll_model::{Code, ErrorKind, Principal};
use atoll_service::{ExecEvent, ServiceError, TerminalInput, TerminalSize};
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{Instant, interval, timeout};

use super::gate::PROTOCOL;
use crate::App;
use crate::convert::IntoApi;
use crate::telemetry::Open;

// LIMIT: the text that a person pastes; a program sends its input in pieces.
const FRAME_MAX: usize = 1 << 20;
const PING_EVERY: Duration = Duration::from_secs(20);
// LIMIT: two pings without an answer, with some tolerance.
const SILENT_FOR: Duration = Duration::from_secs(50);
const SEND_WITHIN: Duration = Duration::from_secs(30);

type Attached = (BoxStream<'static, ExecEvent>, TerminalInput);

/// Upgrades the connection, and transfers data until one side ends.
pub(super) fn upgrade(
    upgrade: WebSocketUpgrade,
    (output, input): Attached,
    (app, who): (&App, &Principal),
) -> Result<Response, ApiError> {
    let place = app.service.account_of(who).take_socket().map_err(ServiceError::from)?;
    let closing = app.shutdown.draining();
    let response = upgrade
        .protocols([PROTOCOL])
        .max_message_size(FRAME_MAX)
        .max_frame_size(FRAME_MAX)
        .max_write_buffer_size(4 * FRAME_MAX)
        .on_upgrade(move |socket| async move {
            let _held = (Open::stream(), place);
            let mut bridge = Bridge { socket, input, heard: Instant::now() };
            tokio::select! {
                () = bridge.run(output) => {}
                () = closing => {}
            }
            bridge.goodbye().await;
        });
    Ok(response)
}

struct Bridge {
    socket: WebSocket,
    input: TerminalInput,
    /// When the client last sent anything.
    heard: Instant,
}

/// Whether the connection continues.
enum Next {
    On,
    Over,
}

impl Bridge {
    async fn run(&mut self, mut output: BoxStream<'static, ExecEvent>) {
        let mut ping = interval(PING_EVERY);
        loop {
            // All three are cancel-safe: the socket and the stream keep what they have not returned.
            let next = tokio::select! {
                message = self.socket.recv() => match message {
                    Some(Ok(message)) => self.hear(message).await,
                    Some(Err(_)) | None => Next::Over,
                },
                event = output.next() => match event {
                    Some(event) => self.tell(event).await,
                    None => Next::Over,
                },
                _ = ping.tick() => match self.heard.elapsed() > SILENT_FOR {
                    true => Next::Over,
                    false => self.send(Message::Ping(Bytes::new())).await,
                },
            };
            if let Next::Over = next {
                return;
            }
        }
    }

    async fn hear(&mut self, message: Message) -> Next {
        self.heard = Instant::now();
        let done = match message {
            Message::Binary(data) => self.input.write(data).await,
            Message::Text(text) => match serde_json::from_str::<TerminalClientFrame>(&text) {
                Ok(TerminalClientFrame::Input { data }) => self.input.write(data.into()).await,
                Ok(TerminalClientFrame::Resize { cols, rows }) => {
                    self.input.resize(TerminalSize { cols: cols.into(), rows: rows.into() }).await
                }
                Err(error) => return self.complain(&error).await,
            },
            Message::Ping(_) | Message::Pong(_) => return Next::On,
            Message::Close(_) => return Next::Over,
        };
        match done {
            Ok(()) => Next::On,
            // An invalid frame is answered; the shell is not affected. The same applies if the sandbox is asleep and
            // was not woken: the shell continues when the sandbox is resumed.
            Err(error)
                if error.kind() == ErrorKind::Invalid
                    || matches!(error.code, Code::Asleep | Code::WakeFailed) =>
            {
                self.say(&TerminalServerFrame::Error(error.into_api())).await
            }
            Err(error) => {
                self.say(&TerminalServerFrame::Error(error.into_api())).await;
                Next::Over
            }
        }
    }

    /// Answers an invalid frame.
    async fn complain(&mut self, error: &serde_json::Error) -> Next {
        let text = format!("a text frame is invalid: {error}");
        let error = ServiceError::new(Code::InvalidRequest, text);
        self.say(&TerminalServerFrame::Error(error.into_api())).await
    }

    async fn tell(&mut self, event: ExecEvent) -> Next {
        match event {
            ExecEvent::Terminal(data) | ExecEvent::Stdout(data) | ExecEvent::Stderr(data) => {
                self.send(Message::Binary(data)).await
            }
            ExecEvent::Dropped(bytes) => self.say(&TerminalServerFrame::Dropped { bytes }).await,
            ExecEvent::KeepAlive => Next::On,
            ExecEvent::Exit { exit_code, signal, .. } => {
                self.say(&TerminalServerFrame::Exit { exit_code, signal }).await;
                Next::Over
            }
            ExecEvent::Lost(error) => {
                self.say(&TerminalServerFrame::Error(error.into_api())).await;
                Next::Over
            }
        }
    }

    async fn say(&mut self, what: &TerminalServerFrame) -> Next {
        let text = serde_json::to_string(what).unwrap_or_default();
        self.send(Message::Text(text.into())).await
    }

    async fn send(&mut self, message: Message) -> Next {
        match timeout(SEND_WITHIN, self.socket.send(message)).await {
            Ok(Ok(())) => Next::On,
            Ok(Err(_)) | Err(_) => Next::Over,
        }
    }

    async fn goodbye(&mut self) {
        let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
        // Best effort: the client may have disconnected already.
        let _ = timeout(Duration::from_secs(1), self.socket.send(Message::Close(Some(close)))).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::num::NonZeroU16;

    #[test]
    fn text_frames_are_a_resize_or_input() {
        let said = |text: &str| serde_json::from_str::<TerminalClientFrame>(text);
        let size = |n| NonZeroU16::new(n).unwrap();
        assert_eq!(
            said(r#"{"type":"resize","cols":80,"rows":24}"#).unwrap(),
            TerminalClientFrame::Resize { cols: size(80), rows: size(24) }
        );
        assert_eq!(
            said(r#"{"type":"input","data":"ls\n"}"#).unwrap(),
            TerminalClientFrame::Input { data: "ls\n".to_owned() }
        );
        for bad in [
            r#"{"type":"resize","cols":-1,"rows":1}"#,
            r#"{"type":"nope"}"#,
            "[]",
            r#"{"type":"input","data":"","x":1}"#,
        ] {
            assert!(said(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_exit_is_one_object_with_its_type() {
        let text = serde_json::to_string(&TerminalServerFrame::Exit { exit_code: 3, signal: None }).unwrap();
        assert_eq!(text, r#"{"type":"exit","exit_code":3,"signal":null}"#);
    }

    #[test]
    fn any_text_frame_is_read_or_refused() {
        atoll_robustness::check("terminal_message", |bytes| {
            if let Ok(TerminalClientFrame::Input { data }) = serde_json::from_slice(bytes) {
                assert!(data.len() <= bytes.len());
            }
        });
    }
}
