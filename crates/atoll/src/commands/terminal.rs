//! An interactive terminal over a WebSocket: raw mode, resizes, and an escape sequence.
//!
//! Typing `~.` at the start of a line detaches, as in ssh. The settings of the local terminal are always restored.

use std::{collections::BTreeMap, io::Read, num::NonZeroU16, os::fd::AsFd};

use atoll_client::{
    client::sandbox_path,
    exec::StreamError,
    terminals::{TerminalBody, TerminalClientFrame, TerminalServerFrame},
};
use futures::{SinkExt, StreamExt};
use rustix::termios::{self, OptionalActions, Termios};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest, http::HeaderValue},
};

use super::{CommandContext, follow::told, process::signal_status};
use crate::{
    client::{ByteStream, Client},
    environment,
    failure::Failure,
    human::harmless,
};

/// The command and settings of a terminal.
pub(super) struct TerminalRequest {
    /// `None`: the user's shell.
    pub(super) command: Option<Vec<String>>,
    pub(super) cwd: Option<String>,
    pub(super) user: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    /// The name of a terminal that stays; `None` makes one that ends with this program.
    pub(super) thread: Option<String>,
}

type Socket = WebSocketStream<Box<dyn ByteStream>>;

/// Opens a terminal and connects the local one to it until it ends or the user detaches.
pub(super) async fn session(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    wish: TerminalRequest,
) -> Result<u8, Failure> {
    if !termios::isatty(std::io::stdin()) {
        return Err(Failure::usage(
            "-t needs a terminal, but stdin is not one",
            "omit -t; `atoll exec -i` sends piped input",
        ));
    }
    let stays = wish.thread.is_some();
    let opened = client.open_terminal(sandbox, &opening(wish)?).await?;
    let path = sandbox_path(sandbox, &format!("/terminals/{}/ws", opened.id));
    let socket = connect(client, &path).await?;
    let outcome = {
        let _raw = RawMode::enter()?;
        attached(context, socket).await
    };
    if matches!(outcome, Ok(TerminalEnd::Detached)) && stays {
        context.out.tell("\ndetached; use the same --thread to attach again");
    } else if !stays {
        // It may have ended with its shell already.
        let _ = client.close_terminal(sandbox, &opened.id).await;
    }
    match outcome? {
        TerminalEnd::Exit(status) => Ok(status),
        TerminalEnd::Detached => Ok(0),
    }
}

fn opening(wish: TerminalRequest) -> Result<TerminalBody, Failure> {
    let (cols, rows) = size();
    let thread = match wish.thread {
        Some(thread) => thread,
        None => format!("cli-{}", random_hex()?),
    };
    let mut env = wish.env;
    env.entry("TERM".to_owned()).or_insert_with(environment::term);
    Ok(TerminalBody {
        thread,
        cols: Some(cols),
        rows: Some(rows),
        shell: wish.command,
        cwd: wish.cwd,
        user: wish.user,
        env,
    })
}

fn random_hex() -> Result<String, Failure> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| Failure::new("internal", format!("no randomness: {e}")))?;
    Ok(u64::from_ne_bytes(bytes)).map(|number| format!("{number:016x}"))
}

async fn connect(client: &Client, path: &str) -> Result<Socket, Failure> {
    let bad = |e: &dyn std::fmt::Display| {
        Failure::new("no_server", format!("the terminal cannot be opened: {e}")).hint("atoll server status")
    };
    let mut request = client.address.socket(path).into_client_request().map_err(|e| bad(&e))?;
    if let Some(key) = client.key() {
        let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|e| bad(&e))?;
        request.headers_mut().insert("Authorization", value);
    }
    let (socket, _) =
        tokio_tungstenite::client_async(request, client.connect().await?).await.map_err(|e| bad(&e))?;
    Ok(socket)
}

enum TerminalEnd {
    Exit(u8),
    Detached,
}

async fn attached(context: &CommandContext, socket: Socket) -> Result<TerminalEnd, Failure> {
    let internal = |e: std::io::Error| Failure::new("internal", format!("signals cannot be received: {e}"));
    let mut resized = signal(SignalKind::window_change()).map_err(internal)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(internal)?;
    let (mut write, mut read) = socket.split();
    let mut keys = read_keys();
    let mut escape = Escape::default();
    loop {
        tokio::select! {
            message = read.next() => match message {
                Some(Ok(Message::Binary(data))) => context.out.bytes(&data)?,
                Some(Ok(Message::Text(data))) => {
                    // A newer server may send frames that this client does not know.
                    let frame = serde_json::from_str(&data).unwrap_or(TerminalServerFrame::Unknown);
                    if let Some(ended) = controlled(context, frame)? {
                        return Ok(ended);
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => {
                    return Err(Failure::new("sandbox_unavailable", "the terminal was closed from the other side"));
                }
                Some(Err(e)) => return Err(Failure::new("no_server", format!("the connection broke: {e}"))),
            },
            typed = keys.recv() => {
                let Some(typed) = typed else { return Ok(TerminalEnd::Detached) };
                let (pass, leave) = escape.take(&typed);
                if !pass.is_empty() {
                    write.send(Message::Binary(pass.into())).await.map_err(|e| gone(&e))?;
                }
                if leave {
                    let _ = write.send(Message::Close(None)).await;
                    return Ok(TerminalEnd::Detached);
                }
            }
            _ = resized.recv() => {
                let (cols, rows) = size();
                let resize = TerminalClientFrame::Resize { cols, rows };
                let text = serde_json::to_string(&resize).unwrap_or_default();
                write.send(Message::Text(text.into())).await.map_err(|e| gone(&e))?;
            }
            _ = terminated.recv() => return Ok(TerminalEnd::Detached),
        }
    }
}

/// Handles a control frame of the server.
fn controlled(context: &CommandContext, frame: TerminalServerFrame) -> Result<Option<TerminalEnd>, Failure> {
    match frame {
        TerminalServerFrame::Exit { exit_code, signal } => {
            return Ok(Some(TerminalEnd::Exit(exit_status(exit_code, signal))));
        }
        // The shell still exists; the typed text is lost.
        TerminalServerFrame::Error(StreamError { code, message, .. })
            if matches!(code.as_str(), "asleep" | "wake_failed") =>
        {
            context.out.say(&format!("\r\natoll: {}\r", harmless(&message)));
        }
        TerminalServerFrame::Error(error) => return Err(told(error)),
        TerminalServerFrame::Dropped { bytes } => {
            context.out.say(&format!("\r\natoll: {bytes} bytes of output were lost\r"));
        }
        TerminalServerFrame::Unknown => {}
    }
    Ok(None)
}

fn gone(cause: &dyn std::fmt::Display) -> Failure {
    Failure::new("no_server", format!("the connection broke: {cause}"))
}

fn exit_status(exit_code: i32, signal: Option<i32>) -> u8 {
    match signal {
        Some(number @ 1..) => signal_status(number),
        _ => u8::try_from(exit_code & 0xff).unwrap_or(1),
    }
}

/// Columns and rows of the local terminal.
fn size() -> (NonZeroU16, NonZeroU16) {
    const COLS: NonZeroU16 = NonZeroU16::new(80).expect("not zero");
    const ROWS: NonZeroU16 = NonZeroU16::new(24).expect("not zero");
    let size = termios::tcgetwinsize(std::io::stdin()).ok();
    let known = size.and_then(|size| NonZeroU16::new(size.ws_col).zip(NonZeroU16::new(size.ws_row)));
    known.unwrap_or_else(|| (environment::columns().and_then(NonZeroU16::new).unwrap_or(COLS), ROWS))
}

/// Typed keys, from a thread that ends with the program.
fn read_keys() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut stdin = std::io::stdin();
        while let Ok(count @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The local terminal in raw mode; dropping it restores the settings.
struct RawMode {
    before: Termios,
}

impl RawMode {
    fn enter() -> Result<Self, Failure> {
        let cannot =
            |e: rustix::io::Errno| Failure::new("internal", format!("the terminal cannot be set up: {e}"));
        let stdin = std::io::stdin();
        let before = termios::tcgetattr(stdin.as_fd()).map_err(cannot)?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw).map_err(cannot)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // If this fails, the terminal is gone.
        let _ = termios::tcsetattr(std::io::stdin().as_fd(), OptionalActions::Flush, &self.before);
    }
}

/// Detects `~.` at the start of a line; everything else passes.
#[derive(Debug)]
struct Escape {
    state: EscapeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EscapeState {
    LineStart,
    Tilde,
    Other,
}

impl Default for Escape {
    fn default() -> Self {
        Self { state: EscapeState::LineStart }
    }
}

impl Escape {
    /// The bytes to pass on, and whether to detach.
    fn take(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut pass = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            match (self.state, byte) {
                (EscapeState::LineStart, b'~') => {
                    self.state = EscapeState::Tilde;
                    continue;
                }
                (EscapeState::Tilde, b'.') => return (pass, true),
                // A doubled tilde is one tilde.
                (EscapeState::Tilde, b'~') => {}
                (EscapeState::Tilde, _) => pass.push(b'~'),
                (EscapeState::LineStart | EscapeState::Other, _) => {}
            }
            self.state =
                if matches!(byte, b'\r' | b'\n') { EscapeState::LineStart } else { EscapeState::Other };
            pass.push(byte);
        }
        (pass, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pieces: &[&str]) -> (String, bool) {
        let mut escape = Escape::default();
        let mut all = String::new();
        for piece in pieces {
            let (pass, leave) = escape.take(piece.as_bytes());
            all.push_str(&String::from_utf8(pass).expect("ascii"));
            if leave {
                return (all, true);
            }
        }
        (all, false)
    }

    #[test]
    fn tilde_dot_leaves_only_at_the_start_of_a_line() {
        for (pieces, pass, leave) in [
            (&["~."][..], "", true),
            (&["ls\r~", "."], "ls\r", true),
            (&["cd ~.\r"], "cd ~.\r", false),
            (&["~/x\r"], "~/x\r", false),
            (&["~~.\r"], "~.\r", false),
            (&["~", "\r"], "~\r", false),
        ] {
            assert_eq!(typed(pieces), (pass.to_owned(), leave), "{pieces:?}");
        }
    }
}
