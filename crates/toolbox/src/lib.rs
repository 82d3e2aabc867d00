//! Git, search, sessions, terminals, language servers and the code interpreter, composed from a sandbox's processes and files.
//!
//! A front gets the session of a sandbox from the service (authorised, awake, counted as busy), makes a [`Toolbox`] of
//! it for one request, and renders the result. No state is kept on the host: everything that must outlive a request,
//! such as an interpreter's context, is in the sandbox and is found there again. Only the locks of a sandbox, which keep
//! requests from launching the same process twice, are in the server's memory.
//!
//! The toolbox runs no program on the host, builds no shell command from its input, and treats all output of a sandbox
//! as untrusted.

mod background;
mod code_run;
mod command;
mod entrypoint;
mod error;
mod excerpt;
mod exec;
mod files;
mod git;
mod interpreter;
mod lsp;
mod ports;
mod session;

use std::sync::Arc;

use atoll_agentapi::Session;
use atoll_budget::{Account, Reservation};

/// Files are described as by the agent; fronts use the agent only through this crate.
pub use atoll_agentapi::{Entry, EntryKind, Metrics};

pub use background::{BackgroundCommand, BackgroundState};
pub use code_run::{CodeRan, CodeRun};
pub use entrypoint::{Entrypoint, EntrypointFollow};
pub use error::ToolboxError;
pub use excerpt::OutputExcerpt;
pub use exec::{ProgramResult, ShellLine};

/// Output that was collected.
pub use atoll_budget::CollectedOutput;
pub use files::{
    CopyHow, Edit, Edited, FileBody, FilePart, Files, Grep, ListOptions, Listing, MakeDir, Match, Node,
    PermissionChange, Replaced, SearchResults, Tree,
};
pub use git::{
    BranchQuery, BranchScope, Branches, CloneFrom, Commit, Committed, ConfigScope, Credentials, DiffOf,
    FileChange, FileState, Git, GitFault, GitOutput, LogQuery, NewCommit, Pull, Push, Remote, Reset,
    ResetMode, Restore, StoredCredentials, WorkTreeStatus,
};

pub use interpreter::{
    Execute, Execution, ExecutionEvent, Interpreter, InterpreterContext, Language, NewContext, Rich,
};

pub use lsp::{Completion, Completions, LspLanguage, LspServer, Symbol, TextPosition};
pub use session::{
    CommandDone, CommandOutput, LogEvent, LogFollow, NewCommand, SessionCommand, SessionLogs, Sessions,
    ShellSession,
};

/// The tools of one sandbox, for one request.
#[derive(Debug)]
pub struct Toolbox {
    sandbox: Arc<dyn Session>,
    user: Option<String>,
    /// The owner of held bytes.
    account: Account,
    /// Bytes that are held until this is dropped, for tools that return values.
    held: tokio::sync::Mutex<HeldBytes>,
}

#[derive(Debug)]
struct HeldBytes {
    reservation: Reservation,
    bytes: usize,
}

impl Toolbox {
    /// For a running sandbox, as its default user. Held bytes are charged to `account`.
    pub fn new(sandbox: impl Session + 'static, account: Account) -> Self {
        let held = HeldBytes { reservation: account.reserve(), bytes: 0 };
        Self { sandbox: Arc::new(sandbox), user: None, account, held: held.into() }
    }

    /// The same tools, for work that may outlive the request.
    fn detached(&self) -> Self {
        let held = HeldBytes { reservation: self.account.reserve(), bytes: 0 };
        let (sandbox, user) = (Arc::clone(&self.sandbox), self.user.clone());
        Self { sandbox, user, account: self.account.clone(), held: held.into() }
    }

    /// Charges so many more bytes until this toolbox is dropped.
    async fn hold(&self, bytes: usize) -> Result<(), ToolboxError> {
        let mut held = self.held.lock().await;
        let all = held.bytes.saturating_add(bytes);
        held.reservation.grow(all).await?;
        held.bytes = all;
        Ok(())
    }

    /// As another user of the sandbox; `None`: its default user.
    #[must_use]
    pub fn as_user(self, user: Option<String>) -> Self {
        Self { user, ..self }
    }

    /// Git in a folder of the sandbox; for a clone, the new folder. Relative: below the working directory.
    pub fn git(&self, path: impl Into<String>) -> Git<'_> {
        Git::new(self, path.into())
    }

    /// Files of the sandbox.
    pub fn files(&self) -> Files<'_> {
        Files::new(self)
    }

    /// Code that keeps its state between executions.
    pub fn interpreter(&self) -> Interpreter<'_> {
        Interpreter::new(self)
    }

    /// The resource use of the sandbox.
    pub async fn usage(&self) -> Result<Metrics, ToolboxError> {
        self.sandbox.metrics().await.map_err(ToolboxError::process)
    }

    /// Shells that keep their state between commands.
    pub fn sessions(&self) -> Sessions<'_> {
        Sessions::new(self)
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

/// A unique name.
fn random_id() -> Result<String, ToolboxError> {
    let mut bytes = [0u8; 10];
    getrandom::fill(&mut bytes)
        .map_err(|_| ToolboxError::Conflict("the machine has no random bytes".into()))?;
    Ok(hex::encode(bytes))
}
