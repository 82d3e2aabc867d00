//! One WebSocket for one terminal: raw bytes in binary frames in both directions, pings in between, and a close for
//! every way in which it can end.
//!
//! This module has no queue: output is taken from the agent only when the last frame was sent. Closing the socket
//! leaves the shell running; when the shell ends, its session ends with it.

use std::time::Duration;

use atoll_front_kit::ApiError;
use atoll_model::{Code, Principal, SandboxId};
use atoll_service::{ExecEvent, ServiceError, TerminalInput};
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{Instant, interval, timeout};

use crate::Leap0App;

// LIMIT: the text that a person pastes; a program sends its input in pieces.
const FRAME_MAX: usize = 1 << 20;
const PING_EVERY: Duration = Duration::from_secs(20);
// LIMIT: two pings without an answer, with some tolerance.
const SILENT_FOR: Duration = Duration::from_secs(50);
const SEND_WITHIN: Duration = Duration::from_secs(30);

type Attached = (BoxStream<'static, ExecEvent>, TerminalInput);

/// The session of the socket, to close it when the shell ends.
pub(super) struct Ends {
    pub(super) app: Leap0App,
    pub(super) who: Principal,
    pub(super) sandbox: SandboxId,
    pub(super) terminal: String,
}

impl Ends {
    /// Closes the session after its shell ended.
    async fn close(&self) {
        let closed = self
            .app
            .service
            .sandboxes()
            .close_terminal(&self.who, self.sandbox.as_str(), &self.terminal)
            .await;
        if let Err(error) = closed {
            tracing::debug!(sandbox = %self.sandbox, %error, "the record of an ended shell could not be removed");
        }
    }
}

/// Upgrades the connection, and transfers data until one side ends.
pub(super) fn upgrade(
    upgrade: WebSocketUpgrade,
    (output, input): Attached,
    ends: Ends,
) -> Result<Response, ApiError> {
    let place = ends.app.service.account_of(&ends.who).take_socket().map_err(ServiceError::from)?;
    let closing = ends.app.options.closing.clone();
    let response = upgrade
        .max_message_size(FRAME_MAX)
        .max_frame_size(FRAME_MAX)
        .max_write_buffer_size(4 * FRAME_MAX)
        .on_upgrade(move |socket| async move {
            let _place = place;
            let mut bridge = Bridge { socket, input, heard: Instant::now() };
            tokio::select! {
                over = bridge.run(output) => if let Over::Shell = over {
                    ends.close().await;
                },
                () = closing.cancelled() => {}
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

/// What ended.
enum Over {
    /// The shell.
    Shell,
    /// Only the connection.
    Connection,
}

impl Bridge {
    async fn run(&mut self, mut output: BoxStream<'static, ExecEvent>) -> Over {
        let mut ping = interval(PING_EVERY);
        loop {
            // All three are cancel-safe: the socket and the stream keep what they have not returned.
            let next = tokio::select! {
                message = self.socket.recv() => match message {
                    Some(Ok(message)) => self.hear(message).await,
                    Some(Err(_)) | None => Some(Over::Connection),
                },
                event = output.next() => match event {
                    Some(event) => self.tell(event).await,
                    None => Some(Over::Connection),
                },
                _ = ping.tick() => match self.heard.elapsed() > SILENT_FOR {
                    true => Some(Over::Connection),
                    false => self.send(Message::Ping(Bytes::new())).await,
                },
            };
            if let Some(over) = next {
                return over;
            }
        }
    }

    async fn hear(&mut self, message: Message) -> Option<Over> {
        self.heard = Instant::now();
        let typed = match message {
            Message::Binary(data) => data,
            Message::Text(text) => Bytes::from(text),
            Message::Ping(_) | Message::Pong(_) => return None,
            Message::Close(_) => return Some(Over::Connection),
        };
        match self.input.write(typed).await {
            Ok(()) => None,
            // The sandbox is asleep and was not woken; the shell continues when it is.
            Err(error) if matches!(error.code, Code::Asleep | Code::WakeFailed) => None,
            Err(error) if error.code == Code::ProcessNotFound => Some(Over::Shell),
            Err(_) => Some(Over::Connection),
        }
    }

    async fn tell(&mut self, event: ExecEvent) -> Option<Over> {
        match event {
            ExecEvent::Terminal(data) | ExecEvent::Stdout(data) | ExecEvent::Stderr(data) => {
                self.send(Message::Binary(data)).await
            }
            ExecEvent::Dropped(_) | ExecEvent::KeepAlive => None,
            ExecEvent::Exit { .. } => Some(Over::Shell),
            ExecEvent::Lost(_) => Some(Over::Connection),
        }
    }

    async fn send(&mut self, message: Message) -> Option<Over> {
        match timeout(SEND_WITHIN, self.socket.send(message)).await {
            Ok(Ok(())) => None,
            Ok(Err(_)) | Err(_) => Some(Over::Connection),
        }
    }

    async fn goodbye(&mut self) {
        let close = CloseFrame { code: close_code::NORMAL, reason: "".into() };
        // Best effort: the client may have disconnected already.
        let _ = timeout(Duration::from_secs(1), self.socket.send(Message::Close(Some(close)))).await;
    }
}
