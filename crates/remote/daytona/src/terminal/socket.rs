//! The socket of a terminal: it is read while a write waits, and a write that the service does not take ends with an error.

use std::time::Duration;

use atoll_agentapi::ExitStatus;
use atoll_provider::ByteStream;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{SplitSink, SplitStream};
use futures::{FutureExt, SinkExt, StreamExt};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

pub(super) type Socket = WebSocketStream<Box<dyn ByteStream>>;

/// LIMIT: bytes of one message of the service.
const MESSAGE_MAX: usize = 4 << 20;
/// LIMIT: bytes of input in one message.
pub(super) const PIECE_MAX: usize = 16 << 10;
/// LIMIT: how long the service may leave a message unread.
const WRITE_WITHIN: Duration = Duration::from_secs(20);
const PING_EVERY: Duration = Duration::from_secs(20);

pub(super) fn config() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX))
}

/// What came from a socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Output(Bytes),
    Exit(ExitStatus),
    Nothing,
    Closed,
}

/// A message about a terminal.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Control {
    status: String,
    exit_code: Option<i32>,
    exit_reason: Option<String>,
    error: Option<String>,
}

impl Control {
    fn ended(&self) -> Option<ExitStatus> {
        let code = self.exit_code?;
        let reason = self.exit_reason.as_deref();
        let signal = reason.and_then(|reason| match reason {
            "SIGKILL" => Some(9),
            "SIGTERM" => Some(15),
            "SIGHUP" => Some(1),
            other => other.strip_prefix("signal ")?.parse().ok(),
        });
        let code = signal.is_none().then_some(code);
        Some(ExitStatus { code, signal, timed_out: false, core_dumped: false })
    }
}

/// The meaning of a message. An error is a sentence, which may be of the service.
pub(super) fn heard(message: Option<Result<Message, SocketError>>) -> Result<Heard, String> {
    let message = match message {
        None => return Ok(Heard::Closed),
        Some(message) => message.map_err(|error| error.to_string())?,
    };
    Ok(match message {
        Message::Binary(data) => Heard::Output(data),
        Message::Text(text) => {
            let control: Control = serde_json::from_str(&text).unwrap_or_default();
            match (control.ended(), control.status.as_str()) {
                (Some(status), _) => Heard::Exit(status),
                (None, "error") => return Err(control.error.unwrap_or_default()),
                (None, _) => Heard::Nothing,
            }
        }
        Message::Close(frame) => {
            let control: Control =
                frame.and_then(|frame| serde_json::from_str(&frame.reason).ok()).unwrap_or_default();
            control.ended().map_or(Heard::Closed, Heard::Exit)
        }
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Heard::Nothing,
    })
}

/// A piece of input, and where its fate is told.
#[derive(Debug)]
pub(crate) struct TerminalInput {
    pub(super) data: Bytes,
    pub(super) taken: oneshot::Sender<Result<(), String>>,
}

type Sink = SplitSink<Socket, Message>;

enum Writer {
    Idle(Sink),
    Busy(BoxFuture<'static, Result<Sink, String>>),
    Broken,
}

impl Writer {
    /// Begins to send where nothing is being sent.
    fn begin(
        &mut self,
        message: Message,
        within: Duration,
        taken: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        *self = match std::mem::replace(self, Self::Broken) {
            Self::Idle(sink) => Self::Busy(send(sink, message, within, taken).boxed()),
            other => other,
        };
    }

    const fn is_idle(&self) -> bool {
        matches!(self, Self::Idle(_))
    }

    /// The end of what is being sent. Cancel-safe: it goes on at the next call.
    async fn done(&mut self) -> Result<(), String> {
        let Self::Busy(sending) = self else { return std::future::pending().await };
        let sent = sending.await;
        let (next, outcome) = match sent {
            Ok(sink) => (Self::Idle(sink), Ok(())),
            Err(why) => (Self::Broken, Err(why)),
        };
        *self = next;
        outcome
    }
}

async fn send(
    mut sink: Sink,
    message: Message,
    within: Duration,
    taken: Option<oneshot::Sender<Result<(), String>>>,
) -> Result<Sink, String> {
    let sent = match tokio::time::timeout(within, sink.send(message)).await {
        Ok(sent) => sent.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the service took no input for {} s", within.as_secs_f64())),
    };
    if let Some(taken) = taken {
        // The caller may have gone.
        let _ = taken.send(sent.clone());
    }
    sent.map(|()| sink)
}

/// A socket that is followed.
pub(super) struct TerminalSocket {
    reader: SplitStream<Socket>,
    writer: Writer,
    silence: Duration,
    heard_at: Instant,
    pinged_at: Instant,
}

impl TerminalSocket {
    /// `silence`: how long the service may say nothing, not even answer a ping.
    pub(super) fn new(socket: Socket, silence: Duration) -> Self {
        let (writer, reader) = socket.split();
        let now = Instant::now();
        Self { reader, writer: Writer::Idle(writer), silence, heard_at: now, pinged_at: now }
    }

    /// The next message of the service; input is sent meanwhile. Cancel-safe.
    ///
    /// # Errors
    /// A sentence: the socket cannot be used any more.
    pub(super) async fn event(&mut self, input: &mut mpsc::Receiver<TerminalInput>) -> Result<Heard, String> {
        let ping_every = PING_EVERY.min(self.silence / 3);
        let write_within = WRITE_WITHIN.min(self.silence);
        loop {
            let is_idle = self.writer.is_idle();
            tokio::select! {
                message = self.reader.next() => {
                    self.heard_at = Instant::now();
                    return heard(message);
                }
                sent = self.writer.done() => sent?,
                Some(item) = input.recv(), if is_idle => {
                    self.writer.begin(Message::Binary(item.data), write_within, Some(item.taken));
                }
                () = tokio::time::sleep_until(self.pinged_at + ping_every), if is_idle => {
                    self.pinged_at = Instant::now();
                    self.writer.begin(Message::Ping(Bytes::new()), write_within, None);
                }
                () = tokio::time::sleep_until(self.heard_at + self.silence) => {
                    return Err("it was silent for too long".to_owned());
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);

    /// A socket whose pipe has little room, and the other end.
    async fn socket() -> (TerminalSocket, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        let ours: Box<dyn ByteStream> = Box::new(ours);
        let socket = WebSocketStream::from_raw_socket(ours, Role::Client, Some(config())).await;
        (TerminalSocket::new(socket, SILENCE), theirs)
    }

    async fn service(theirs: DuplexStream) -> WebSocketStream<DuplexStream> {
        WebSocketStream::from_raw_socket(theirs, Role::Server, None).await
    }

    fn input(len: usize) -> (TerminalInput, oneshot::Receiver<Result<(), String>>) {
        let (taken, told) = oneshot::channel();
        (TerminalInput { data: Bytes::from(vec![b'x'; len]), taken }, told)
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_never_reads_is_given_up() {
        let (mut socket, theirs) = socket().await;
        let (sender, mut receiver) = mpsc::channel(4);
        let (item, told) = input(PIECE_MAX);
        sender.send(item).await.unwrap();
        let begun = Instant::now();
        let error = socket.event(&mut receiver).await.unwrap_err();
        assert!(error.contains("took no input"), "{error}");
        assert_eq!(begun.elapsed(), WRITE_WITHIN);
        assert!(told.await.unwrap().unwrap_err().contains("took no input"));
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_says_nothing_is_given_up() {
        let (mut socket, theirs) = socket().await;
        let (_sender, mut receiver) = mpsc::channel(4);
        // It takes the pings and does not answer them.
        let reads = async {
            let mut theirs = theirs;
            tokio::io::copy(&mut theirs, &mut tokio::io::sink()).await.unwrap();
        };
        tokio::select! {
            error = socket.event(&mut receiver) => {
                assert!(error.unwrap_err().contains("silent"));
            }
            () = reads => panic!("the socket was closed"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn output_is_read_while_input_waits() {
        let (mut socket, theirs) = socket().await;
        let (sender, mut receiver) = mpsc::channel(4);
        let (item, mut told) = input(PIECE_MAX);
        sender.send(item).await.unwrap();
        // The service sends and does not read.
        let mut service = service(theirs).await;
        for n in 0..10_u8 {
            let (sent, heard) = tokio::join!(
                service.send(Message::Binary(Bytes::from(vec![n; 100]))),
                socket.event(&mut receiver)
            );
            sent.unwrap();
            assert_eq!(heard.unwrap(), Heard::Output(Bytes::from(vec![n; 100])));
        }
        assert!(told.try_recv().is_err(), "the input still waits");
        // Now it reads.
        let read = async {
            loop {
                if let Message::Binary(data) = service.next().await.unwrap().unwrap() {
                    break data;
                }
            }
        };
        tokio::select! {
            data = read => assert_eq!(data.len(), PIECE_MAX),
            heard = socket.event(&mut receiver) => panic!("{heard:?}"),
        }
    }

    #[test]
    fn ends_of_terminals_are_read() {
        let of = |text: &str| serde_json::from_str::<Control>(text).unwrap_or_default().ended();
        assert_eq!(of(r#"{"exitCode": 3}"#).and_then(|end| end.code), Some(3));
        assert_eq!(of(r#"{"exitCode": 137, "exitReason": "SIGKILL"}"#).and_then(|end| end.signal), Some(9));
        assert_eq!(of(r#"{"status": "connected"}"#), None);
    }
}
