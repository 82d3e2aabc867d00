//! Commands: run one to its end, or start one and look at it later.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_front_kit::{ApiError, lossy_text};
use atoll_service::Exec;
use serde::{Deserialize, Serialize};

use super::schema::{self, ToolDescription, ToolHints};
use super::{TEXT_MAX, ToolAnswer};
use crate::methods::McpCall;

/// Common clients give a call up after 60 s.
const TIMEOUT_S: u64 = 50;
/// LIMIT: a longer command is started with shell_start.
const TIMEOUT_MAX_S: u64 = 3_600;
/// LIMIT: how long a poll waits, below the 60 s of common clients.
const WAIT_MAX_S: u64 = 50;
// The agent runs sh instead if a sandbox has no bash.
const BASH: &str = "/bin/bash";

pub(super) fn descriptions() -> Vec<ToolDescription> {
    use schema::{
        flag, integer, nullable_integer, nullable_text, optional, required, sandbox, text, text_map,
    };
    let command = || required("command", text("A command as you would type it into bash"));
    let cwd = || optional("cwd", text("Working directory; default: the sandbox's"));
    vec![
        ToolDescription {
            name: "shell",
            title: "Run a command",
            description: "Runs a shell command in the sandbox and returns when it has ended. Each call is a new shell. Long output \
                is cut in the middle; the whole is kept in the file that stdout_file or stderr_file names.",
            hints: ToolHints::Runs,
            arguments: vec![
                command(),
                sandbox(),
                cwd(),
                optional("env", text_map("Added to the environment of the command")),
                optional(
                    "timeout_s",
                    integer("Seconds after which the command is ended; default: 50", 1, Some(TIMEOUT_MAX_S)),
                ),
            ],
            answer: vec![
                schema::sandbox_id(),
                required(
                    "exit_code",
                    schema::any_integer("Exit code; 124 after a timeout, 128 + the number of a signal"),
                ),
                required("timed_out", flag("Whether timeout_s passed")),
                required("stdout", text("Standard output")),
                required("stderr", text("Standard error")),
                required(
                    "stdout_file",
                    nullable_text("File in the sandbox with the whole standard output, if it was cut"),
                ),
                required(
                    "stderr_file",
                    nullable_text("File in the sandbox with the whole standard error, if it was cut"),
                ),
                required("duration_ms", integer("From start to exit", 0, None)),
            ],
        },
        ToolDescription {
            name: "shell_start",
            title: "Start a command",
            description: "Starts a shell command that may run for long, such as a server or a build, and returns at once. Look at \
                it with shell_poll.",
            hints: ToolHints::Runs,
            arguments: vec![command(), sandbox(), cwd()],
            answer: vec![
                schema::sandbox_id(),
                required("id", text("Names the command in shell_poll")),
                required("pid", integer("Process id of its shell in the sandbox", 0, None)),
            ],
        },
        ToolDescription {
            name: "shell_poll",
            title: "Look at a started command",
            description: "Returns the output of a command of shell_start, and its exit code once it has ended. Can wait for the \
                end, and can end the command.",
            hints: ToolHints::Changes,
            arguments: vec![
                required("id", text("As shell_start returned it")),
                sandbox(),
                optional(
                    "from",
                    integer(
                        "First byte of the output to return: next of the previous call; default: 0",
                        0,
                        None,
                    ),
                ),
                optional("wait_s", integer("Seconds to wait for the end; default: 0", 0, Some(WAIT_MAX_S))),
                optional("stop", flag("End the command and forget it; default: false")),
            ],
            answer: vec![
                schema::sandbox_id(),
                required("running", flag("Whether it still runs")),
                required("exit_code", nullable_integer("Exit code, once it has ended")),
                required(
                    "output",
                    text("Standard output and error in order, from byte `from` on, as far as they fit"),
                ),
                required("next", integer("The byte after this output", 0, None)),
                required("total", integer("Bytes of the whole output so far", 0, None)),
                required("output_file", text("File in the sandbox with the whole output")),
            ],
        },
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShellArguments {
    command: String,
    sandbox: Option<String>,
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    timeout_s: Option<u64>,
}

#[derive(Serialize)]
struct ShellAnswer {
    sandbox: String,
    exit_code: i32,
    timed_out: bool,
    stdout: String,
    stderr: String,
    stdout_file: Option<String>,
    stderr_file: Option<String>,
    duration_ms: u64,
}

/// The time that a call asks for, within the limits.
pub(super) fn timeout(asked: Option<u64>) -> Result<Duration, ApiError> {
    match asked.unwrap_or(TIMEOUT_S) {
        seconds @ 1..=TIMEOUT_MAX_S => Ok(Duration::from_secs(seconds)),
        _ => Err(ApiError::field("timeout_s", format!("must be between 1 and {TIMEOUT_MAX_S}"))
            .hint("start a longer command with shell_start")),
    }
}

fn check_command(command: &str) -> Result<(), ApiError> {
    match command.trim().is_empty() {
        true => Err(ApiError::field("command", "must not be empty")),
        false => Ok(()),
    }
}

pub(super) async fn run(call: &McpCall, args: ShellArguments) -> Result<ToolAnswer, ApiError> {
    check_command(&args.command)?;
    let timeout = timeout(args.timeout_s)?;
    let sandbox = call.sandbox(args.sandbox).await?;
    let exec = Exec {
        argv: vec![BASH.to_owned(), "-c".to_owned(), args.command],
        cwd: args.cwd,
        env: args.env,
        timeout: Some(timeout),
        keep_tail: true,
        ends_with_caller: true,
        ..Exec::default()
    };
    let outcome = call.mcp.service.sandboxes().exec(&call.who, &sandbox, exec).await?;
    let is_long = |output: &atoll_toolbox::CollectedOutput| output.written > TEXT_MAX as u64;
    let (stdout, stderr, id) = if is_long(&outcome.stdout) || is_long(&outcome.stderr) {
        let tools = call.tools(Some(sandbox)).await?;
        let stdout = tools.toolbox.excerpt(&outcome.stdout, TEXT_MAX).await?;
        let stderr = tools.toolbox.excerpt(&outcome.stderr, TEXT_MAX).await?;
        ((stdout.text, stdout.file), (stderr.text, stderr.file), tools.id())
    } else {
        let whole = |output: &atoll_toolbox::CollectedOutput| (lossy_text(&output.to_vec()), None);
        (whole(&outcome.stdout), whole(&outcome.stderr), sandbox)
    };
    ToolAnswer::of(&ShellAnswer {
        sandbox: id,
        exit_code: outcome.exit_code,
        timed_out: outcome.timed_out,
        stdout: stdout.0,
        stderr: stderr.0,
        stdout_file: stdout.1,
        stderr_file: stderr.1,
        duration_ms: outcome.duration_ms,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartArguments {
    command: String,
    sandbox: Option<String>,
    cwd: Option<String>,
}

#[derive(Serialize)]
struct StartedShell {
    sandbox: String,
    id: String,
    pid: u32,
}

pub(super) async fn start(call: &McpCall, args: StartArguments) -> Result<ToolAnswer, ApiError> {
    check_command(&args.command)?;
    let tools = call.tools(args.sandbox).await?;
    let started = tools.toolbox.start_background(args.command, args.cwd.as_deref()).await?;
    ToolAnswer::of(&StartedShell { sandbox: tools.id(), id: started.id, pid: started.pid })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PollArguments {
    id: String,
    sandbox: Option<String>,
    #[serde(default)]
    from: u64,
    #[serde(default)]
    wait_s: u64,
    #[serde(default)]
    stop: bool,
}

#[derive(Serialize)]
struct PolledShell {
    sandbox: String,
    running: bool,
    exit_code: Option<i32>,
    output: String,
    next: u64,
    total: u64,
    output_file: String,
}

pub(super) async fn poll(call: &McpCall, args: PollArguments) -> Result<ToolAnswer, ApiError> {
    if args.wait_s > WAIT_MAX_S {
        return Err(ApiError::field("wait_s", format!("must be at most {WAIT_MAX_S}")));
    }
    let tools = call.tools(args.sandbox).await?;
    let wait = if args.stop { Duration::ZERO } else { Duration::from_secs(args.wait_s) };
    let state = tools.toolbox.background(&args.id, args.from, TEXT_MAX as u64, wait).await?;
    if args.stop {
        tools.toolbox.end_background(&args.id).await?;
    }
    ToolAnswer::of(&PolledShell {
        sandbox: tools.id(),
        running: state.exit_code.is_none() && !args.stop,
        exit_code: state.exit_code,
        next: args.from.min(state.written) + state.output.len() as u64,
        output: lossy_text(&state.output),
        total: state.written,
        output_file: state.file,
    })
}
