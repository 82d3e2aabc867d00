//! One command in a sandbox with its streams joined to ours: what `run` and `exec` share.
//!
//! ```text
//! our stdin ──▶ thread ──▶ POST …/processes/PID/stdin      events ──▶ our stdout, our stderr
//! our signals ──▶ POST …/processes/PID/signal               exit   ──▶ our exit status
//! ```
//!
//! Never buffers a stream whole: input is sent in pieces, output is written as it comes.

use std::{io::Read, time::Duration};

use base64::Engine as _;
use bytes::Bytes;
use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{CommandContext, items, moment, sandbox_path, text};
use crate::{
    client::{
        Client,
        sse::{Events, payload},
    },
    failure::{EXIT_CANNOT_START, EXIT_NOT_FOUND, EXIT_OURS, EXIT_TIMED_OUT, Failure},
};

/// How our stdin meets the command's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing comes: `exec` without `-i`, a terminal without it, or `/dev/null`.
    None,
    /// Small and there already: it travels with the request.
    Whole(Vec<u8>),
    /// Piece by piece, until it ends.
    Piped,
}

/// LIMIT: below the server's 8 MiB for the request, base64 included.
const WHOLE_MAX: u64 = 1024 * 1024;
const PIECE: usize = 64 * 1024;
/// How often, and how many times, it is asked whether a command was killed for memory.
const KILL_LOOK_EVERY: Duration = Duration::from_millis(150);
const KILL_LOOKS: u32 = 4;
/// How long a command that was sent our signal may take to end.
const GRACE: Duration = Duration::from_secs(5);

impl Input {
    /// Looks at our stdin. `interactive` takes input from a terminal too.
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
            // The file may grow while it is read; what is over the limit is then not ours to send whole.
            if stdin.lock().take(WHOLE_MAX).read_to_end(&mut data).is_ok() {
                return Self::Whole(data);
            }
        }
        Self::Piped
    }

    fn describe(&self, body: &mut Map<String, Value>) {
        match self {
            Self::None => {}
            Self::Whole(data) => match std::str::from_utf8(data) {
                Ok(text) => {
                    body.insert("stdin".to_owned(), json!(text));
                }
                Err(_) => {
                    let encoded = base64::engine::general_purpose::STANDARD.encode(data);
                    body.insert("stdin_base64".to_owned(), json!(encoded));
                }
            },
            Self::Piped => {
                body.insert("open_stdin".to_owned(), json!(true));
            }
        }
    }
}

/// Signals that end us; they are passed on first.
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

    /// The next one. Cancel-safe: each branch only receives.
    pub(super) async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
            _ = self.quit.recv() => 3,
        }
    }
}

/// Runs the command that `body` describes and joins the streams; the answer is the exit status.
pub(super) async fn join(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    mut body: Map<String, Value>,
    input: Input,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    input.describe(&mut body);
    let request = client.request(Method::POST, &sandbox_path(sandbox, "/exec/stream")).json(&body);
    let answer = client.send(request).await.map_err(with_exit)?;
    let begun = jiff::Timestamp::now();
    let mut joined = Joined { context, client, sandbox, pid: None, signalled: None };
    let mut events = Events::new(answer);
    let mut pieces = (input == Input::Piped).then(read_stdin);
    let mut pending: Option<PendingSend<'_>> = None;
    loop {
        // Input is only taken while none is on its way: a command that does not read stops us, not memory.
        let may_read = pieces.is_some() && pending.is_none() && joined.pid.is_some();
        tokio::select! {
            event = events.next() => {
                let Some(event) = event.map_err(|f| f.exit(EXIT_OURS))? else { return Err(joined.lost()) };
                let event_data = event.json();
                if let Some(status) = joined.take(&event.name, &event_data)? {
                    if joined.signalled.is_none() {
                        explain_kill(context, client, sandbox, &event_data, begun).await;
                    }
                    return Ok(status);
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

/// Runs the command and prints its result as one object, for `--json`; the answer is the exit status.
pub(super) async fn collect(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    body: Map<String, Value>,
    input: Input,
) -> Result<u8, Failure> {
    let begun = jiff::Timestamp::now();
    let result = gather(client, sandbox, body, input).await?;
    context.out.json(&result)?;
    explain_kill(context, client, sandbox, &result, begun).await;
    Ok(status(&result))
}

/// Says on stderr that the kernel ended a command because its sandbox had no memory left. The server writes that down some
/// hundred milliseconds after the command ended.
pub(super) async fn explain_kill(
    context: &CommandContext,
    client: &Client,
    sandbox: &str,
    exit: &Value,
    begun: jiff::Timestamp,
) {
    let killed = exit["signal"].as_i64() == Some(9) || exit["exit_code"].as_i64() == Some(137);
    if !killed || exit["timed_out"].as_bool() == Some(true) {
        return;
    }
    for _ in 0..KILL_LOOKS {
        tokio::time::sleep(KILL_LOOK_EVERY).await;
        let query = [("sandbox", sandbox.to_owned()), ("limit", "1000".to_owned())];
        let Ok(events) = client.get_query("/v1/events", &query).await else { return };
        // The clock of a server elsewhere may be behind ours.
        let since = begun.checked_sub(jiff::SignedDuration::from_secs(5)).unwrap_or(begun);
        let of_now = |event: &Value| moment(event, "at").is_some_and(|at| at >= since);
        if items(events).iter().any(|event| text(event, "kind") == "out_of_memory" && of_now(event)) {
            let limit = match client.get(&sandbox_path(sandbox, "")).await {
                Ok(sandbox) => sandbox["memory_mib"].as_u64().map(|mib| format!(" of {mib} MiB")),
                Err(_) => None,
            };
            context.out.say(&format!(
                "atoll: the command was killed: it reached the sandbox's memory limit{}; give more with --memory, or `atoll update --memory`",
                limit.unwrap_or_default()
            ));
            return;
        }
    }
}

/// Runs the command; the answer is its whole result.
pub(super) async fn gather(
    client: &Client,
    sandbox: &str,
    mut body: Map<String, Value>,
    input: Input,
) -> Result<Value, Failure> {
    let input = match input {
        Input::Piped => Input::Whole(tokio::task::spawn_blocking(read_all).await.unwrap_or_default()),
        known => known,
    };
    input.describe(&mut body);
    let request = client.request(Method::POST, &sandbox_path(sandbox, "/exec")).json(&body);
    // No limit of ours: the command has its own.
    let answer = client.send(request).await.map_err(with_exit)?;
    answer.json().await.map_err(|e| {
        Failure::new("bad_answer", format!("the result of the command did not arrive: {e}")).exit(EXIT_OURS)
    })
}

fn read_all() -> Vec<u8> {
    let mut data = Vec::new();
    // What cannot be read is not there; what is over the limit is refused by the server.
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

/// Writes a piece of input, or ends the input. A command that ended meanwhile is no error: its exit is on the way.
async fn deliver(client: &Client, sandbox: &str, pid: u64, piece: Option<Bytes>) {
    let path = sandbox_path(sandbox, &format!("/processes/{pid}/stdin"));
    let request = match piece {
        Some(data) => client.request(Method::POST, &path).body(data),
        None => client.request(Method::DELETE, &path),
    };
    let _ = client.send(request).await;
}

async fn grace(since: Option<tokio::time::Instant>) {
    match since {
        Some(since) => tokio::time::sleep_until(since + GRACE).await,
        None => std::future::pending().await,
    }
}

/// Reads our stdin on a thread of its own: a read that never ends must not hold up the end of the program.
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
    pid: Option<u64>,
    /// When we first passed a signal on.
    signalled: Option<tokio::time::Instant>,
}

impl Joined<'_> {
    /// Takes one event; the last one carries the exit status.
    fn take(&mut self, name: &str, event: &Value) -> Result<Option<u8>, Failure> {
        let out = self.context.out;
        match name {
            "start" => self.pid = event["pid"].as_u64(),
            "stdout" | "terminal" => out.bytes(&payload(event))?,
            "stderr" => out.stderr_bytes(&payload(event))?,
            "dropped" => {
                let count = event["bytes"].as_u64().unwrap_or(0);
                out.say(&format!("atoll: {count} bytes of output were lost: this end read too slowly"));
            }
            "exit" => {
                if event["timed_out"].as_bool() == Some(true) {
                    out.tell("atoll: the command took longer than --timeout allows and was ended");
                }
                return Ok(Some(status(event)));
            }
            "error" | "lost" => {
                let message = event["message"].as_str().unwrap_or("the sandbox went away");
                let code = event["code"].as_str().unwrap_or("sandbox_unavailable");
                let mut failure = Failure::new(code, message);
                failure.hint = event["hint"].as_str().map(str::to_owned);
                failure.request_id = event["request_id"].as_str().map(str::to_owned);
                return Err(with_exit(failure));
            }
            // A newer server may say more.
            _ => {}
        }
        Ok(None)
    }

    /// Passes a signal on; the second one ends our patience.
    async fn forward(&mut self, number: i32) -> Result<(), Failure> {
        let Some(pid) = self.pid else { return Err(Failure::silent(signal_status(number))) };
        if self.signalled.is_some() {
            return Err(Failure::silent(signal_status(number)));
        }
        self.signalled = Some(tokio::time::Instant::now());
        let path = sandbox_path(self.sandbox, &format!("/processes/{pid}/signal"));
        // It may have ended just now; then its exit is on the way.
        let _ = self.client.post(&path, &json!({ "signal": number })).await;
        Ok(())
    }

    fn overdue(&self) -> u8 {
        self.context.out.tell("atoll: the command did not end after the signal; leaving it");
        signal_status(9)
    }

    fn lost(&self) -> Failure {
        Failure::new("sandbox_unavailable", "the server ended the stream before the command ended")
            .hint(format!("`atoll inspect {}` says what became of the sandbox", self.sandbox))
            .exit(EXIT_OURS)
    }
}

/// Exit status of a command as a shell would say it.
pub(super) fn status(exit: &Value) -> u8 {
    if exit["timed_out"].as_bool() == Some(true) {
        return EXIT_TIMED_OUT;
    }
    if let Some(number) = exit["signal"].as_i64().and_then(|n| i32::try_from(n).ok()).filter(|n| *n > 0) {
        return signal_status(number);
    }
    let code = exit["exit_code"].as_i64().unwrap_or(i64::from(EXIT_OURS));
    u8::try_from(code & 0xff).unwrap_or(EXIT_OURS)
}

/// 128 + signal, as shells do.
pub(super) fn signal_status(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(EXIT_OURS)
}

/// Gives a refusal the status that people know from other tools.
pub(super) fn with_exit(failure: Failure) -> Failure {
    let exit = match failure.code.as_str() {
        // The agent's words, which no front changes; the code is the same for every bad argument.
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
        for (exit, want) in [
            (json!({"exit_code": 0}), 0),
            (json!({"exit_code": 7, "signal": null, "timed_out": false}), 7),
            (json!({"exit_code": 137, "signal": 9}), 137),
            (json!({"exit_code": 124, "signal": 9, "timed_out": true}), 124),
            (json!({"exit_code": -1}), 255),
            (json!({}), 125),
        ] {
            assert_eq!(status(&exit), want, "{exit}");
        }
    }

    #[test]
    fn input_that_is_no_text_travels_in_base64() {
        let mut body = Map::new();
        Input::Whole(vec![0xff]).describe(&mut body);
        assert_eq!(Value::Object(body), json!({"stdin_base64": "/w=="}));
        let mut body = Map::new();
        Input::Piped.describe(&mut body);
        assert_eq!(Value::Object(body), json!({"open_stdin": true}));
    }
}
