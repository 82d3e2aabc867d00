//! The code interpreter: contexts that keep their definitions, in Python (ipykernel), JavaScript, TypeScript, Bash, R
//! and Java.
//!
//! ```text
//!  host                                inside the sandbox, one process per context, and its kernel
//!  Interpreter ── stdin, JSON lines ──▸ bridge.py ── Jupyter's protocol ──▸ ipykernel
//!             ── stdin, JSON lines ──▸ plain.py ── pipes ──▸ a fork of it that runs the code
//!  Execution  ◂── stdout, JSON lines ── bridge.js    the code itself
//!             ◂── output and markers ── bash         the code itself
//! ```
//!
//! A context is a process with a tag that names it. So the list of contexts is the list of processes, no state is kept
//! on the host, and contexts survive a restart of the server and a pause of the sandbox. The output of a context is
//! untrusted.
//!
//! A launch holds the lock of its context until the process has reported that it is ready, and continues when its caller
//! goes away. So requests that need the same context at once wait for one launch, and none finds a half-started process.

mod decode;
mod execution;
mod launch;
mod prestart;
mod rich;
mod wire;

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{AgentError, ProcessEvent, ProcessInfo, SetupGuard};

pub use execution::{Execution, ExecutionEvent};
pub use rich::Rich;

use execution::InterruptTarget;

use crate::{Toolbox, ToolboxError};

/// LIMIT: each context costs the sandbox about 100 MiB.
const CONTEXTS_MAX: usize = 32;
/// LIMIT: the agent's own limit of one input is larger; code is text that a person or program wrote.
const CODE_MAX: usize = 16 << 20;
/// How long a context may take to end by itself.
const LEAVE: Duration = Duration::from_secs(3);

const TAG: &str = "atoll-context/";
/// The lock of the number of contexts; no context id has this form.
const COUNT_LOCK: &str = "atoll-contexts";
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The language of code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Language {
    /// With ipykernel.
    #[default]
    Python,
    /// With node.
    JavaScript,
    /// With node, if it supports removing types.
    TypeScript,
    /// With bash, or sh.
    Bash,
    /// With R, if the sandbox has it.
    R,
    /// With the JDK's shell, if the sandbox has one.
    Java,
}

impl Language {
    pub const ALL: [Self; 6] =
        [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash, Self::R, Self::Java];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::R => "r",
            Self::Java => "java",
        }
    }

    /// Parses any common name of a language.
    pub fn parse(name: &str) -> Result<Self, ToolboxError> {
        match name.to_ascii_lowercase().as_str() {
            "python" | "py" | "python3" => Ok(Self::Python),
            "javascript" | "js" | "node" | "bun" => Ok(Self::JavaScript),
            "typescript" | "ts" => Ok(Self::TypeScript),
            "bash" | "sh" | "shell" => Ok(Self::Bash),
            "r" => Ok(Self::R),
            "java" => Ok(Self::Java),
            _ => Err(ToolboxError::Invalid(format!(
                "language must be python, javascript, typescript, bash, r or java, not {name:?}"
            ))),
        }
    }
}

/// A new context.
#[derive(Debug, Clone, Default)]
pub struct NewContext {
    pub language: Language,
    /// Its working directory; by default the sandbox's.
    pub cwd: Option<String>,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpreterContext {
    pub id: String,
    pub language: Language,
    /// Its working directory at the start.
    pub cwd: String,
    /// When it was started, in Unix milliseconds.
    pub created_at_ms: u64,
    pub(crate) pid: u32,
    /// Set if it was started before its sandbox was claimed: its code gets the sandbox's environment from here.
    pub(crate) base: Option<BTreeMap<String, String>>,
}

/// Code to run.
#[derive(Debug, Clone, Default)]
pub struct Execute {
    /// The code.
    pub code: String,
    /// Environment only for this code.
    pub env: BTreeMap<String, String>,
    /// After this time the code is interrupted; if that does not help, the context is ended.
    pub timeout: Option<Duration>,
}

/// The interpreter of one sandbox.
#[derive(Debug)]
pub struct Interpreter<'a> {
    toolbox: &'a Toolbox,
    plain_python: bool,
}

impl<'a> Interpreter<'a> {
    pub(crate) fn new(toolbox: &'a Toolbox) -> Self {
        Self { toolbox, plain_python: false }
    }

    /// Runs Python without ipykernel if the sandbox has none: with a built-in worker, whose results are text.
    #[must_use]
    pub fn or_plain_python(self) -> Self {
        Self { plain_python: true, ..self }
    }

    /// The contexts, oldest first.
    pub async fn contexts(&self) -> Result<Vec<InterpreterContext>, ToolboxError> {
        let mut found = self.processes().await?;
        // Of two with the same name that were made at once, the older one counts.
        let mut known = std::collections::BTreeSet::new();
        found.retain(|context| known.insert(context.id.clone()));
        Ok(found)
    }

    /// The processes of contexts, oldest first; several may have the same id.
    async fn processes(&self) -> Result<Vec<InterpreterContext>, ToolboxError> {
        let processes = self.toolbox.sandbox.list().await.map_err(ToolboxError::process)?;
        let mut found: Vec<InterpreterContext> = processes.iter().cloned().filter_map(context_of).collect();
        found.extend(self.warm_contexts(&processes).await?);
        found.sort_by_key(|context| (context.created_at_ms, context.pid));
        Ok(found)
    }

    /// A context by its id. Waits while it is being launched.
    pub async fn context(&self, id: &str) -> Result<InterpreterContext, ToolboxError> {
        let _turn = self.turn(id).await;
        self.find_ready(id).await
    }

    /// A context of which this server knows that it was ready. Ends one that never was: an earlier server was killed while it
    /// launched it. For a caller that has the turn.
    async fn find_ready(&self, id: &str) -> Result<InterpreterContext, ToolboxError> {
        let context = self.find(id).await?;
        // The pool ends its processes that do not become ready.
        if context.base.is_some() {
            return Ok(context);
        }
        let locks = self.toolbox.sandbox.setup_locks();
        let step = ready_step(&context);
        if !locks.is_done(&step) {
            if !self.has_greeted(context.pid).await? {
                self.end(id).await?;
                return Err(no_context());
            }
            locks.note_done(step);
        }
        Ok(context)
    }

    /// Whichever process has this id. For a caller that has the turn.
    async fn find(&self, id: &str) -> Result<InterpreterContext, ToolboxError> {
        let found = self.contexts().await?.into_iter().find(|context| context.id == id);
        found.ok_or_else(no_context)
    }

    /// Waits until no other request launches or ends this context.
    async fn turn(&self, id: &str) -> SetupGuard {
        self.toolbox.sandbox.setup_locks().lock(&format!("{TAG}{id}")).await
    }

    /// Makes a context; returns when code can be run in it.
    pub async fn create_context(&self, new: &NewContext) -> Result<InterpreterContext, ToolboxError> {
        let id = random_id()?;
        let turn = self.turn(&id).await;
        // Held until the process is started: from then on it is counted.
        let count = self.toolbox.sandbox.setup_locks().lock(COUNT_LOCK).await;
        if self.contexts().await?.len() >= CONTEXTS_MAX {
            let message = format!("the sandbox has {CONTEXTS_MAX} contexts already; delete some of them");
            return Err(ToolboxError::Conflict(message));
        }
        self.launch(id, new.clone(), turn, Some(count)).await
    }

    /// The default context: one per language, made when it is first needed.
    pub async fn default_context(&self, language: Language) -> Result<InterpreterContext, ToolboxError> {
        let id = default_id(language);
        let turn = self.turn(&id).await;
        match self.find_ready(&id).await {
            Err(ToolboxError::NotFound(_)) => {}
            found => return found,
        }
        self.end_unfit().await?;
        self.launch(id, NewContext { language, cwd: None }, turn, None).await
    }

    /// Ends a context and removes its definitions.
    pub async fn delete_context(&self, id: &str) -> Result<(), ToolboxError> {
        let _turn = self.turn(id).await;
        self.end(id).await.map(drop)
    }

    /// Restarts a context without its definitions. Running code is ended.
    pub async fn restart(&self, id: &str) -> Result<InterpreterContext, ToolboxError> {
        let turn = self.turn(id).await;
        let context = self.end(id).await?;
        let cwd = Some(context.cwd).filter(|cwd| !cwd.is_empty());
        self.launch(id.to_owned(), NewContext { language: context.language, cwd }, turn, None).await
    }

    /// Interrupts the running code of a context.
    pub async fn interrupt(&self, id: &str) -> Result<(), ToolboxError> {
        let context = self.context(id).await?;
        execution::interrupt(&*self.toolbox.sandbox, &context, InterruptTarget::Running)
            .await
            .map_err(ToolboxError::process)
    }

    /// Runs code; several executions in one context run one after the other. Dropping an execution before its end
    /// interrupts it.
    pub async fn execute(
        &self,
        context: &InterpreterContext,
        execute: Execute,
    ) -> Result<Execution, ToolboxError> {
        if execute.code.len() > CODE_MAX || execute.code.contains('\0') {
            let message = format!("code must have at most {CODE_MAX} bytes and no NUL byte");
            return Err(ToolboxError::Invalid(message));
        }
        for name in execute.env.keys() {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(word) {
                return Err(ToolboxError::Invalid(format!("{name:?} can't name a variable")));
            }
        }
        Execution::begin(self.toolbox, context.clone(), random_id()?, execute).await
    }

    /// Ends all processes of a context; returns the context as it was.
    async fn end(&self, id: &str) -> Result<InterpreterContext, ToolboxError> {
        let context = self.find(id).await?;
        for process in self.processes().await?.into_iter().filter(|process| process.id == id) {
            self.end_process(process.pid).await?;
        }
        Ok(context)
    }

    /// Asks a process to end, then forces it.
    async fn end_process(&self, pid: u32) -> Result<(), ToolboxError> {
        let sandbox = &self.toolbox.sandbox;
        let gone = |error: &AgentError| error.kind() == atoll_model::ErrorKind::NotFound;
        let mut stream = match sandbox.attach(pid, false).await {
            Err(error) if gone(&error) => return Ok(()),
            attached => attached.map_err(ToolboxError::process)?,
        };
        for signal in [SIGTERM, SIGKILL] {
            match sandbox.signal(pid, signal).await {
                Err(error) if gone(&error) => return Ok(()),
                sent => sent.map_err(ToolboxError::process)?,
            }
            let ended = async {
                while let Some(Ok(event)) = stream.next().await {
                    if matches!(event, ProcessEvent::Exit(_)) {
                        break;
                    }
                }
            };
            if tokio::time::timeout(LEAVE, ended).await.is_ok() {
                return Ok(());
            }
        }
        Err(ToolboxError::TimedOut { what: "the end of a context", limit: LEAVE * 2 })
    }
}

fn random_id() -> Result<String, ToolboxError> {
    let mut bytes = [0u8; 10];
    getrandom::fill(&mut bytes)
        .map_err(|_| ToolboxError::Conflict("the machine has no random bytes".into()))?;
    Ok(hex::encode(bytes))
}

fn no_context() -> ToolboxError {
    ToolboxError::NotFound("there is no such context".into())
}

/// The name of the step that a context is ready.
fn ready_step(context: &InterpreterContext) -> String {
    format!("{TAG}{}/{}/{}", context.id, context.pid, context.created_at_ms)
}

fn default_id(language: Language) -> String {
    format!("default-{}", language.as_str())
}

fn tag(id: &str, language: Language) -> String {
    format!("{TAG}{}/{id}", language.as_str())
}

/// A process that is a context. Any program that can start processes can also start one of this form, without any gain.
fn context_of(process: ProcessInfo) -> Option<InterpreterContext> {
    let (language, id) = process.tag.strip_prefix(TAG)?.split_once('/')?;
    Some(InterpreterContext {
        id: id.to_owned(),
        language: Language::parse(language).ok()?,
        cwd: process.cwd,
        created_at_ms: process.started_at_ms,
        pid: process.pid,
        base: None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_its_context() {
        for language in Language::ALL {
            let process = ProcessInfo {
                pid: 7,
                cmd: String::new(),
                args: Vec::new(),
                cwd: "/srv".into(),
                tag: tag("abc", language),
                user: String::new(),
                started_at_ms: 1,
                pty: false,
                logged: false,
            };
            assert!(atoll_agentapi::is_reserved_tag(&process.tag));
            let context = context_of(process).unwrap();
            assert_eq!((context.id.as_str(), context.language, context.pid), ("abc", language, 7));
        }
    }

    #[test]
    fn languages_go_by_the_names_that_people_write() {
        assert_eq!(Language::parse("PY").unwrap(), Language::Python);
        assert_eq!(Language::parse("ts").unwrap(), Language::TypeScript);
        assert!(Language::parse("cobol").is_err());
    }
}
