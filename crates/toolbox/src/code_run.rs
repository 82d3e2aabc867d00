//! Runs code once, in a new process: Python, JavaScript, TypeScript, with arguments, and charts of matplotlib as data.
//!
//! The code is sent by stdin, so it may have any length; its own standard input is empty. A chart is written between
//! marks that contain a random word which the code does not know, and is removed from the output.

mod markers;

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{AgentError, ProcessEvent, RpcCode, StartProcess};
use atoll_budget::{CollectedOutput, Collector, Keep};
use serde_json::{Value, json};

use crate::exec::{OUTPUT_MAX, feed};
use crate::interpreter::Language;
use crate::{Toolbox, ToolboxError};
use markers::Marks;

/// LIMIT: code is text that a person or program wrote.
const CODE_MAX: usize = 16 << 20;
/// How long to wait for the end of the code after its timeout.
const AFTER_TIMEOUT: Duration = Duration::from_secs(10);
const WHAT: &str = "the code";

const BOOT_PY: &str = "import sys,json;_=json.loads(sys.stdin.buffer.read());exec(compile(_['program'],'run','exec'),{'told':_})";
const BOOT_JS: &str = r#"{let b=[];process.stdin.on("data",d=>b.push(d)).on("end",()=>{const t=JSON.parse(Buffer.concat(b).toString());new Function("require","told",t.program)(require,t)})}"#;
const RUN_PY: &str = include_str!("code_run/run.py");
const CHARTS_PY: &str = include_str!("interpreter/charts.py");
const RUN_JS: &str = include_str!("code_run/run.js");

/// Code to run.
#[derive(Debug, Clone, Default)]
pub struct CodeRun {
    /// The language; for Bash use [`Toolbox::shell`].
    pub language: Language,
    /// The code.
    pub code: String,
    /// Arguments, as the program sees them.
    pub argv: Vec<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The working directory; by default the sandbox's.
    pub cwd: Option<String>,
    /// After this time all its processes are ended.
    pub timeout: Option<Duration>,
}

/// The result of the code.
#[derive(Debug, Clone, PartialEq)]
pub struct CodeRan {
    /// The exit code, as in a shell.
    pub exit_code: i32,
    /// Both streams, in the order in which they arrived.
    pub output: CollectedOutput,
    /// Shown figures: `{"chart": its data or null, "png": base64}`.
    pub charts: Vec<Value>,
}

impl Toolbox {
    /// Runs code to its end, whatever its exit code.
    pub async fn code_run(&self, run: CodeRun) -> Result<CodeRan, ToolboxError> {
        if run.code.len() > CODE_MAX {
            return Err(ToolboxError::TooLarge { what: "code".into(), max: CODE_MAX as u64 });
        }
        let (program, args, hint) = program(run.language)?;
        let word = crate::random_id()?;
        let input = told(&run, &word);
        let start = StartProcess {
            cmd: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            envs: run.env,
            cwd: run.cwd.unwrap_or_default(),
            stdin: true,
            user: self.user.clone(),
            timeout: run.timeout,
            ..Default::default()
        };
        let running = self.run_marked(start, &input, Marks::new(&word), (program, hint));
        let (ran, missing) = match run.timeout.and_then(|limit| limit.checked_add(AFTER_TIMEOUT)) {
            None => running.await?,
            Some(all) => tokio::time::timeout(all, running).await.unwrap_or(Err(ToolboxError::TimedOut {
                what: WHAT,
                limit: run.timeout.unwrap_or_default(),
            }))?,
        };
        match missing {
            true => Err(ToolboxError::ToolMissing { tool: "TypeScript", hint: HINT_TS }),
            false => Ok(ran),
        }
    }

    async fn run_marked(
        &self,
        start: StartProcess,
        input: &[u8],
        mut marks: Marks,
        (program, hint): (&'static str, &'static str),
    ) -> Result<(CodeRan, bool), ToolboxError> {
        let limit = start.timeout;
        let (started, mut stream) = self.sandbox.start(start).await.map_err(|cause| match cause {
            AgentError::Refused { code: RpcCode::NotFound, message }
                if message.contains("command not found") =>
            {
                ToolboxError::ToolMissing { tool: program, hint }
            }
            cause => ToolboxError::process(cause),
        })?;
        let mut kept = Collector::new(&self.account, Keep::both(OUTPUT_MAX));
        let mut told = 0;
        let reading = async {
            while let Some(event) = stream.next().await {
                match event.map_err(ToolboxError::process)? {
                    ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => {
                        let output = marks.feed(&data);
                        let more = marks.size().saturating_sub(told);
                        self.hold(more).await?;
                        told += more;
                        kept.push(&output).await;
                    }
                    ProcessEvent::Stderr(data) => kept.push(&data).await,
                    ProcessEvent::Dropped(bytes) => kept.lost(bytes),
                    ProcessEvent::Exit(status) => return Ok(status),
                }
            }
            Err(ToolboxError::Unreadable { tool: "the agent", why: "a process without an end" })
        };
        let (status, ()) = tokio::join!(reading, feed(&*self.sandbox, started.pid, input));
        let status = status?;
        if let Some(limit) = limit
            && status.timed_out
        {
            return Err(ToolboxError::TimedOut { what: WHAT, limit });
        }
        kept.push(&marks.rest()).await;
        let (told, exit_code) = (marks.into_told(), status.shell_code());
        let missing = told.iter().any(|one| one.get("missing").is_some());
        let charts = told.into_iter().filter(|one| one.get("png").is_some()).collect();
        Ok((CodeRan { exit_code, output: kept.finish(), charts }, missing))
    }
}

const HINT_PY: &str = "use a template that has python3, or install it inside: apt-get install python3";
const HINT_JS: &str = "use a template that has node, or install it inside: apt-get install nodejs";
const HINT_TS: &str =
    "TypeScript needs node 22.13 or later, esbuild or typescript to remove types; install one of them inside";

type Program = (&'static str, &'static [&'static str], &'static str);

fn program(language: Language) -> Result<Program, ToolboxError> {
    match language {
        Language::Python => Ok(("python3", &["-u", "-c", BOOT_PY], HINT_PY)),
        Language::JavaScript | Language::TypeScript => {
            Ok(("node", &["--no-warnings", "-e", BOOT_JS], HINT_JS))
        }
        Language::Bash | Language::R | Language::Java => {
            Err(ToolboxError::Invalid("language must be python, javascript or typescript".into()))
        }
    }
}

/// The input of the program: itself, and the code to run.
fn told(run: &CodeRun, word: &str) -> Vec<u8> {
    let program = match run.language {
        Language::Python => RUN_PY,
        _ => RUN_JS,
    };
    let told = json!({
        "program": program,
        "charts": CHARTS_PY,
        "code": run.code,
        "argv": run.argv,
        "word": word,
        "language": run.language.as_str(),
    });
    told.to_string().into_bytes()
}
