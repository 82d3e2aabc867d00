//! One command in a sandbox, connected to the local streams: shared by `run` and `exec`.
//!
//! ```text
//! local stdin ──▶ thread ──▶ POST …/processes/PID/stdin      events ──▶ local stdout and stderr
//! local signals ──▶ POST …/processes/PID/signal               exit   ──▶ local exit status
//! ```
//!
//! A stream is never buffered completely: input is sent in pieces, output is written as it arrives.

use std::{io::Read, time::Duration};

use atoll_client::{
    client::Answer,
    events::{EventKind, EventsQuery},
    exec::{ExecBody, ExecEvent, ExecExit, ExecResult, OutputChunk},
    processes::{Signal as SignalName, SignalBody},
};
use base64::Engine as _;
use bytes::Bytes;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{CommandContext, follow::told, moment};
use crate::{
    client::Client,
    failure::{EXIT_CANNOT_START, EXIT_NOT_FOUND, EXIT_OURS, EXIT_TIMED_OUT, Failure},
};

/// The input of the command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// None: `exec` without `-i`, a terminal without it, or `/dev/null`.
    None,
    /// Small and available: sent with the request.
    Whole(Vec<u8>),
    /// Piece by piece, until it ends.
    Piped,
}

/// LIMIT: below the server's 8 MiB for the request, including base64.
const WHOLE_MAX: u64 = 1024 * 1024;
const PIECE: usize = 64 * 1024;
/// How often, and how many times, to check whether a command was killed for memory.
const KILL_LOOK_EVERY: Duration = Duration::from_millis(150);
const KILL_LOOKS: u32 = 4;
/// How long a command may take to end after a signal.
const GRACE: Duration = Duration::from_secs(5);

impl Input {
    /// Inspects the local stdin. With `interactive`, a terminal is used too.
    pub(super) fn of_stdin(interactive: bool) -> Self {
        let stdin = std::io::stdin();
        if rustix::termios::isatty(&stdin) {
            return if interactive { Self::Piped } else { Self::None };
        }
        let Ok(stat) = rustix::fs::fstat(&stdin) else { return Self::None };
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        if kind == rustix::fs::FileType::CharacterDevice && stat.st_rdev == rustix::fs::makedev(1, 3) {
            return Self::None;
        }
        if kind == rustix::fs::FileType::RegularFile && u64::try_from(stat.st_size).unwrap_or(0) <= WHOLE_MAX
        {
            let mut data = Vec::new();
            // The file may grow while it is read; above the limit it is not sent with the request.
            if stdin.lock().take(WHOLE_MAX).read_to_end(&mut data).is_ok() {
                return Self::Whole(data);
            }
        }
        Self::Piped
    }

    fn describe(&self, body: &mut ExecBody) {
        match self {
            Self::None => {}
            Self::Whole(data) => match std::str::from_utf8(data) {
                Ok(text) => body.stdin = Some(text.to_owned()),
                Err(_) => {
                    body.stdin_base64 = Some(base64::engine::general_purpose::STANDARD.encode(data));
                }
            },
            Self::Piped => body.open_stdin = Some(true),
        }
    }
}

/// Signals that end this program; they are forwarded first.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind).map_err(|e| Failure::new("internal", format!("signals cannot be received: {e}")))
        };
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
            quit: on(SignalKind::quit())?,
        })
    }

    /// The next signal. Cancel-safe: each branch only receives.
    pub(super) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
            _ = self.quit.recv() => 3,
        }
    }
}

/// Runs the command of `body` and connects the streams; returns the exit status.
pub(super) async fn join(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    mut body: ExecBody,
    input: Input,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    input.describe(&mut body);
    let mut events = client.exec_stream(sandbox, &body).await.map_err(with_exit)?;
    let begun = jiff::Timestamp::now();
    let mut joined = Joined { context, client, sandbox, pid: None, signalled: None };
    let mut pieces = (input == Input::Piped).then(read_stdin);
    let mut pending: Option<PendingSend<'_>> = None;
    loop {
        // Input is read only while none is in flight: if the command does not read, reading stops and memory use stays
        // constant.
        let may_read = pieces.is_some() && pending.is_none() && joined.pid.is_some();
        tokio::select! {
            event = events.next_exec() => {
                let Some(event) = event.map_err(|f| f.exit(EXIT_OURS))? else { return Err(joined.lost()) };
                if let Some(exit) = joined.take(event)? {
                    if joined.signalled.is_none() {
                        explain_kill(context, client, sandbox, &exit, begun).await;
                    }
                    return Ok(status(&exit));
                }
            }
            number = signals.next() => joined.forward(number).await?,
            () = grace(joined.signalled) => return Ok(joined.overdue()),
            piece = next_piece(&mut pieces), if may_read => {
                let pid = joined.pid.unwrap_or_default();
                if piece.is_none() {
                    pieces = None;
                }
                pending = Some(Box::pin(deliver(client, sandbox, pid, piece)));
            }
            () = sent(&mut pending), if pending.is_some() => pending = None,
        }
    }
}

/// Runs the command and prints its result as one object, for `--json`; returns the exit status.
pub(super) async fn collect(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    body: ExecBody,
    input: Input,
) -> Result<u8, Failure> {
    let begun = jiff::Timestamp::now();
    let result = gather(client, sandbox, body, input).await?;
    context.out.json(&result)?;
    explain_kill(context, client, sandbox, &exit_of(&result), begun).await;
    Ok(status(&exit_of(&result)))
}

/// Reports on stderr that the kernel killed a command because its sandbox had no memory left. The server records it
/// some hundred milliseconds after the command ended.
pub(super) async fn explain_kill(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    exit: &ExecExit,
    begun: jiff::Timestamp,
) {
    let killed = exit.signal == Some(9) || exit.exit_code == 137;
    if !killed || exit.timed_out {
        return;
    }
    for _ in 0..KILL_LOOKS {
        tokio::time::sleep(KILL_LOOK_EVERY).await;
        let query =
            EventsQuery { sandbox: Some(sandbox.to_owned()), limit: Some(1_000), ..EventsQuery::default() };
        let Ok(events) = client.events(&query).await else { return };
        // The clock of a remote server may be behind.
        let since = begun.checked_sub(jiff::SignedDuration::from_secs(5)).unwrap_or(begun);
        let is_of_now = |at: &str| moment(at).is_some_and(|at| at >= since);
        let is_kill = |event: &atoll_client::events::Event| {
            matches!(event.what, EventKind::OutOfMemory) && is_of_now(&event.at)
        };
        if events.items.iter().any(is_kill) {
            let sandbox = client.sandbox(sandbox).await.ok();
            let limit = sandbox.map(|sandbox| format!(" of {} MiB", sandbox.memory_mib));
            context.out.say(&format!(
                "atoll: the command was killed: it reached the sandbox's memory limit{}; raise it with --memory, or `atoll update --memory`",
                limit.unwrap_or_default()
            ));
            return;
        }
    }
}

/// Runs the command; returns its whole result.
pub(super) async fn gather(
    client: &Client,
    sandbox: &str,
    mut body: ExecBody,
    input: Input,
) -> Result<Answer<ExecResult>, Failure> {
    let input = match input {
        Input::Piped => Input::Whole(tokio::task::spawn_blocking(read_all).await.unwrap_or_default()),
        known => known,
    };
    input.describe(&mut body);
    client.exec(sandbox, &body).await.map_err(with_exit)
}

/// How a command ended.
pub(super) fn exit_of(result: &ExecResult) -> ExecExit {
    ExecExit { exit_code: result.exit_code, signal: result.signal, timed_out: result.timed_out }
}

fn read_all() -> Vec<u8> {
    let mut data = Vec::new();
    // Unreadable input counts as empty; the server refuses input above the limit.
    let _ = std::io::stdin().lock().take(WHOLE_MAX * 8).read_to_end(&mut data);
    data
}

type PendingSend<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

async fn sent(pending: &mut Option<PendingSend<'_>>) {
    if let Some(sending) = pending {
        sending.await;
    }
}

async fn next_piece(pieces: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    pieces.as_mut()?.recv().await
}

/// Sends a piece of input, or ends the input. If the command has ended meanwhile, that is no error: its exit follows.
async fn deliver(client: &Client, sandbox: &str, pid: u32, piece: Option<Bytes>) {
    let _ = match piece {
        Some(data) => client.write_stdin(sandbox, pid, data).await,
        None => client.close_stdin(sandbox, pid).await,
    };
}

async fn grace(since: Option<tokio::time::Instant>) {
    match since {
        Some(since) => tokio::time::sleep_until(since + GRACE).await,
        None => std::future::pending().await,
    }
}

/// Reads the local stdin on a separate thread: a read that never ends must not delay the end of the program.
fn read_stdin() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(2);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        let mut stdin = std::io::stdin();
        while let Ok(count @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(Bytes::copy_from_slice(&buffer[..count])).is_err() {
                return;
            }
        }
    });
    receiver
}

struct Joined<'a> {
    context: &'a CommandContext,
    client: &'a Client,
    sandbox: &'a str,
    pid: Option<u32>,
    /// When the first signal was forwarded.
    signalled: Option<tokio::time::Instant>,
}

impl Joined<'_> {
    /// Handles one event; the last one contains the exit.
    fn take(&mut self, event: ExecEvent) -> Result<Option<ExecExit>, Failure> {
        let out = self.context.out;
        let bytes = |chunk: OutputChunk| chunk.into_bytes().unwrap_or_default();
        match event {
            ExecEvent::Start(started) => self.pid = Some(started.pid),
            ExecEvent::Stdout(chunk) | ExecEvent::Terminal(chunk) => out.bytes(&bytes(chunk))?,
            ExecEvent::Stderr(chunk) => out.stderr_bytes(&bytes(chunk))?,
            ExecEvent::Dropped(lost) => {
                let count = lost.bytes;
                out.say(&format!("atoll: {count} bytes of output were lost: this client read too slowly"));
            }
            ExecEvent::Exit(exit) => {
                if exit.timed_out {
                    out.tell("atoll: the command took longer than --timeout allows and was ended");
                }
                return Ok(Some(exit));
            }
            ExecEvent::Error(error) => return Err(with_exit(told(error))),
            ExecEvent::Unknown => {}
        }
        Ok(None)
    }

    /// Forwards a signal; the second one ends the program.
    async fn forward(&mut self, number: i32) -> Result<(), Failure> {
        let Some(pid) = self.pid else { return Err(Failure::silent(signal_status(number))) };
        if self.signalled.is_some() {
            return Err(Failure::silent(signal_status(number)));
        }
        self.signalled = Some(tokio::time::Instant::now());
        let body = SignalBody { signal: SignalName::Number(number) };
        // The command may have just ended; then its exit follows.
        let _ = self.client.signal(self.sandbox, pid, &body).await;
        Ok(())
    }

    fn overdue(&self) -> u8 {
        self.context.out.tell("atoll: the command did not end after the signal; it keeps running");
        signal_status(9)
    }

    fn lost(&self) -> Failure {
        Failure::new("sandbox_unavailable", "the server ended the stream before the command ended")
            .hint(format!("`atoll inspect {}` shows the state of the sandbox", self.sandbox))
            .exit(EXIT_OURS)
    }
}

/// The exit status of a command, as in a shell.
pub(super) fn status(exit: &ExecExit) -> u8 {
    if exit.timed_out {
        return EXIT_TIMED_OUT;
    }
    match exit.signal {
        Some(number @ 1..) => signal_status(number),
        _ => u8::try_from(exit.exit_code & 0xff).unwrap_or(EXIT_OURS),
    }
}

/// 128 + signal, as in shells.
pub(super) fn signal_status(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(EXIT_OURS)
}

/// Sets the exit status that users know from other tools.
pub(super) fn with_exit(failure: Failure) -> Failure {
    let exit = match failure.code.as_str() {
        // The agent's text, which no front changes; all bad arguments have the same code.
        "invalid_argument" if failure.message.contains("command not found") => EXIT_NOT_FOUND,
        "tool_missing" => EXIT_NOT_FOUND,
        "invalid_argument" => EXIT_CANNOT_START,
        _ => EXIT_OURS,
    };
    failure.exit(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_what_a_shell_would_say() {
        for (exit_code, signal, timed_out, want) in [
            (0, None, false, 0),
            (7, None, false, 7),
            (137, Some(9), false, 137),
            (124, Some(9), true, 124),
            (-1, None, false, 255),
        ] {
            let exit = ExecExit { exit_code, signal, timed_out };
            assert_eq!(status(&exit), want, "{exit:?}");
        }
    }

    #[test]
    fn input_that_is_no_text_travels_in_base64() {
        let described = |input: Input| {
            let mut body = ExecBody::default();
            input.describe(&mut body);
            serde_json::to_value(body).expect("JSON")
        };
        assert_eq!(described(Input::Whole(vec![0xff])), serde_json::json!({"stdin_base64": "/w=="}));
        assert_eq!(described(Input::Piped), serde_json::json!({"open_stdin": true}));
    }
}
