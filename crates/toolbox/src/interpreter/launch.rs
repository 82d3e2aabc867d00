//! Starts the process of a context and waits until it reports that it is ready.

use std::time::Duration;

use atoll_agentapi::{AgentError, ProcessEvent, ProcessStream, RpcCode, SetupGuard, StartProcess};
use atoll_budget::Account;
use serde_json::json;

use super::wire::{BridgeMessage, Lines};
use super::{Interpreter, InterpreterContext, LEAVE, Language, NewContext, SIGKILL, ready_step, tag};
use crate::ToolboxError;
use crate::error::said;

const BRIDGE_PY: &str = include_str!("bridge.py");
const STARTUP_PY: &str = concat!(include_str!("charts.py"), "\n\n", include_str!("startup.py"));
const AHEAD_PY: &str = include_str!("ahead.py");
const PLAIN_PY: &str = include_str!("plain.py");
const BRIDGE_JS: &str = concat!(include_str!("bridge.js"), include_str!("imports.js"));
const BRIDGE_R: &str = include_str!("bridge.R");
const BRIDGE_JAVA: &str = include_str!("Bridge.java");

/// The programs are sent by stdin: the list of processes stays readable, and no file has to be written.
const BOOT_PY: &str =
    "import sys,json;P,STARTUP=json.loads(sys.stdin.buffer.readline());exec(compile(P,'bridge','exec'))";
const BOOT_JS: &str = r#"let b="";process.stdin.setEncoding("utf8");process.stdin.on("data",function f(d){b+=d;const i=b.indexOf("\n");if(i<0)return;process.stdin.off("data",f);const o=JSON.parse(b.slice(0,i));new Function("require","options","rest",o.program)(require,o.options,b.slice(i+1))})"#;

const BOOT_R: &str =
    "con <- file('stdin', open = 'r'); eval(parse(text = readLines(con, as.integer(readLines(con, 1L)))))";
/// A Java program must be a file; its requirements are checked first.
const BOOT_JAVA: &str = r#"command -v jshell >/dev/null || { echo '{"type":"missing","tool":"jdk"}'; exit 3; }
read -r size && dir=$(mktemp -d) && head -c "$size" >"$dir/Bridge.java" && exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "$dir/Bridge.java""#;

/// LIMIT: a kernel takes half a second on an idle machine, and much longer on an overloaded one.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// LIMIT: how long the kept output of a process may take to arrive on an overloaded machine.
const GREETED_LIMIT: Duration = Duration::from_secs(5);

const HINT_PY: &str = "use the template code-interpreter-slim or code-interpreter (a new server makes code-interpreter-slim in the background: atoll template ls), or install it inside: \
apt-get install python3-ipykernel, or pip install ipykernel";
const HINT_JS: &str = "use a template that has node, such as debian or code-interpreter, or install it inside: \
apt-get install nodejs";
const HINT_TS: &str = "TypeScript needs node 22.13 or later, or esbuild, to remove types; use the template debian or \
code-interpreter, or install it inside: apt-get install esbuild, or npm install -g esbuild";
const HINT_R: &str = "use the template code-interpreter-full (atoll template make code-interpreter-full), or install it inside as \
root: apt-get update && apt-get install -y r-base-core";
const HINT_JAVA: &str = "Java needs a JDK of version 17 or later: use the template code-interpreter-full (atoll template make \
code-interpreter-full), or install it inside as root: apt-get update && apt-get install -y default-jdk-headless";
const HINT_SH: &str = "use a template that has a shell";

/// The kernel of Python contexts, if the sandbox has it.
const KERNEL: &str = "ipykernel";

/// Whether a caller waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaunchUrgency {
    /// It should be ready as soon as possible.
    Now,
    /// There is time to make its first execution faster.
    Ahead,
}

impl Interpreter<'_> {
    /// Launches a context in its turn. Continues when the caller goes away: a process that was started and never told what
    /// to do would be taken for a context. `count` is released when the process is started.
    pub(super) async fn launch(
        &self,
        id: String,
        new: NewContext,
        turn: SetupGuard,
        count: Option<SetupGuard>,
    ) -> Result<InterpreterContext, ToolboxError> {
        let (toolbox, plain_python) = (self.toolbox.detached(), self.plain_python);
        // Waited for below; without its caller it ends after its own limits.
        let launching = tokio::runtime::Handle::current().spawn(async move {
            let _turn = turn;
            let interpreter = Interpreter { toolbox: &toolbox, plain_python };
            interpreter.launch_one(&id, &new, count).await
        });
        let stopped = || ToolboxError::Ended("the server ends; the context was not made".into());
        launching.await.unwrap_or_else(|_| Err(stopped()))
    }

    async fn launch_one(
        &self,
        id: &str,
        new: &NewContext,
        count: Option<SetupGuard>,
    ) -> Result<InterpreterContext, ToolboxError> {
        let made = self.launch_tagged(&tag(id, new.language), new, LaunchUrgency::Now, count).await?;
        let kept = self.find(id).await?;
        if kept.pid == made {
            self.toolbox.sandbox.setup_locks().note_done(ready_step(&kept));
        } else {
            // An older one, of a program that used the agent directly, counts.
            self.end_process(made).await?;
        }
        Ok(kept)
    }

    /// Whether a process has written anything: one that was never told what to do is silent.
    pub(super) async fn has_greeted(&self, pid: u32) -> Result<bool, ToolboxError> {
        let mut stream = match self.toolbox.sandbox.attach(pid, true).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => return Ok(false),
            attached => attached.map_err(ToolboxError::process)?,
        };
        let first = tokio::time::timeout(GREETED_LIMIT, stream.next()).await;
        let is_output = |event: &ProcessEvent| !matches!(event, ProcessEvent::Exit(_));
        Ok(matches!(first, Ok(Some(Ok(event))) if is_output(&event)))
    }

    /// With the given tag; returns its pid when it is ready.
    pub(super) async fn launch_tagged(
        &self,
        tag: &str,
        new: &NewContext,
        pace: LaunchUrgency,
        mut count: Option<SetupGuard>,
    ) -> Result<u32, ToolboxError> {
        let mut missing = ToolboxError::ToolMissing { tool: "sh", hint: HINT_SH };
        let first = greeting(new.language, pace);
        for &(program, args) in programs(new.language) {
            match self.start(tag, new, &first, (program, args), &mut count).await {
                Err(ToolboxError::ToolMissing { tool: KERNEL, .. }) if self.plain_python => {
                    return self.start(tag, new, &plain_python(), (program, args), &mut count).await;
                }
                Err(error @ ToolboxError::ToolMissing { .. }) => missing = error,
                started => return started,
            }
        }
        Err(missing)
    }

    async fn start(
        &self,
        tag: &str,
        new: &NewContext,
        first: &str,
        (program, args): (&'static str, &[&str]),
        count: &mut Option<SetupGuard>,
    ) -> Result<u32, ToolboxError> {
        let start = StartProcess {
            cmd: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: new.cwd.clone().unwrap_or_default(),
            tag: tag.to_owned(),
            stdin: true,
            user: self.toolbox.user.clone(),
            ..Default::default()
        };
        let sandbox = &self.toolbox.sandbox;
        let (started, mut stream) = sandbox.start(start).await.map_err(|cause| match cause {
            AgentError::Refused { code: RpcCode::NotFound, message }
                if message.contains("command not found") =>
            {
                let hint = hint(new.language);
                ToolboxError::ToolMissing { tool: program, hint }
            }
            cause => ToolboxError::process(cause),
        })?;
        drop(count.take());
        let greeted = async {
            match sandbox.send_stdin(started.pid, first.as_ref()).await {
                Ok(()) => ready(&mut stream, new.language, &self.toolbox.account).await,
                // A process that ends at once may have reported why.
                Err(cause) => match ready(&mut stream, new.language, &self.toolbox.account).await {
                    Err(missing @ ToolboxError::ToolMissing { .. }) => Err(missing),
                    _ => Err(ToolboxError::process(cause)),
                },
            }
        };
        let ready = tokio::time::timeout(READY_LIMIT, greeted).await.unwrap_or_else(|_| {
            Err(ToolboxError::TimedOut { what: "the start of a context", limit: READY_LIMIT })
        });
        if let Err(error) = ready {
            // A context that is not ready is ended; the call returns when it is gone.
            let _ = sandbox.signal(started.pid, SIGKILL).await;
            let gone = async { while let Some(Ok(_)) = stream.next().await {} };
            let _ = tokio::time::timeout(LEAVE, gone).await;
            return Err(error);
        }
        Ok(started.pid)
    }
}

/// The programs that can run a language, the best first.
fn programs(language: Language) -> &'static [(&'static str, &'static [&'static str])] {
    match language {
        Language::Python => &[("python3", &["-u", "-c", BOOT_PY])],
        Language::JavaScript | Language::TypeScript => &[("node", &["--no-warnings", "-e", BOOT_JS])],
        Language::Bash => &[("bash", &["--noprofile", "--norc"]), ("sh", &[])],
        Language::R => &[("Rscript", &["--vanilla", "-e", BOOT_R])],
        Language::Java => &[("sh", &["-c", BOOT_JAVA])],
    }
}

const fn hint(language: Language) -> &'static str {
    match language {
        Language::Python => HINT_PY,
        Language::JavaScript | Language::TypeScript => HINT_JS,
        Language::Bash => HINT_SH,
        Language::R => HINT_R,
        Language::Java => HINT_JAVA,
    }
}

/// The first input of a new process.
fn greeting(language: Language, pace: LaunchUrgency) -> String {
    match language {
        Language::Python if pace == LaunchUrgency::Ahead => {
            format!("{}\n", json!([BRIDGE_PY, format!("{STARTUP_PY}\n\n{AHEAD_PY}")]))
        }
        Language::Python => format!("{}\n", json!([BRIDGE_PY, STARTUP_PY])),
        Language::JavaScript | Language::TypeScript => {
            let options = json!({ "language": language.as_str() });
            format!("{}\n", json!({ "program": BRIDGE_JS, "options": options }))
        }
        Language::R => format!("{}\n{BRIDGE_R}", BRIDGE_R.lines().count()),
        Language::Java => format!("{}\n{BRIDGE_JAVA}", BRIDGE_JAVA.len()),
        // A shell reports in the format of the bridges that it reads.
        Language::Bash => "__atoll_n=0; printf '{\"type\":\"ready\"}\\n'\n".to_owned(),
    }
}

/// The same for a Python without a kernel.
fn plain_python() -> String {
    format!("{}\n", json!([PLAIN_PY, ""]))
}

async fn ready(
    stream: &mut ProcessStream,
    language: Language,
    account: &Account,
) -> Result<(), ToolboxError> {
    let mut lines = Lines::new(account);
    let mut words = Vec::new();
    while let Some(event) = stream.next().await {
        match event.map_err(ToolboxError::process)? {
            ProcessEvent::Stdout(data) => {
                for line in lines.feed(&data)? {
                    match BridgeMessage::parse(&line) {
                        Some(told) if told.kind == "ready" => return Ok(()),
                        Some(told) if told.kind == "missing" => {
                            return Err(lacks(language, told.tool.as_deref()));
                        }
                        _ => {}
                    }
                }
            }
            ProcessEvent::Stderr(data) => {
                words.extend_from_slice(&data[..data.len().min(4096)]);
                words.drain(..words.len().saturating_sub(4096));
            }
            ProcessEvent::Pty(_) | ProcessEvent::Dropped(_) => {}
            ProcessEvent::Exit(_) => break,
        }
    }
    let words = said(&String::from_utf8_lossy(&words));
    Err(ToolboxError::Conflict(format!("the context ended before it was ready: {words}")))
}

fn lacks(language: Language, tool: Option<&str>) -> ToolboxError {
    match tool {
        Some("jdk") => ToolboxError::ToolMissing { tool: "jshell", hint: HINT_JAVA },
        Some("typescript") => ToolboxError::ToolMissing { tool: "node that knows TypeScript", hint: HINT_TS },
        Some("jupyter-client") => ToolboxError::ToolMissing { tool: "jupyter-client", hint: HINT_PY },
        _ => ToolboxError::ToolMissing { tool: KERNEL, hint: hint(language) },
    }
}
