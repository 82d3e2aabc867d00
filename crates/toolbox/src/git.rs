//! Git, using the sandbox's own program.
//!
//! Every call is one `git` process with a list of arguments. A ref or an address that begins with `-` is refused, paths
//! come after `--`, and nothing is asked at a terminal. Credentials are in the environment of that one process, for a
//! helper that answers only for the host of the address. They are never an argument and are never stored in a
//! repository's settings.

mod branches;
mod clone;
mod commits;
mod credentials;
mod fault;
mod settings;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::CommandOutput;

pub use branches::{BranchQuery, BranchScope, Branches};
pub use clone::{CloneFrom, Pull, Push, Remote};
pub use commits::{Commit, Committed, DiffOf, LogQuery, NewCommit, Reset, ResetMode, Restore};
pub use credentials::Credentials;
pub use fault::GitFault;
pub use settings::{ConfigScope, StoredCredentials};
pub use status::{FileChange, FileState, WorkTreeStatus};

use crate::command::ProgramCommand;
use crate::error::said;
use crate::{Toolbox, ToolboxError};

/// LIMIT: enough for a repository of any size, even on an overloaded machine.
const LOCAL_LIMIT: Duration = Duration::from_secs(120);
/// LIMIT: a large clone over a slow connection.
const REMOTE_LIMIT: Duration = Duration::from_secs(1800);

const HINT: &str = "install git inside (apt-get install git), or use a template that has it, such as debian";

/// Git in one folder.
#[derive(Debug)]
pub struct Git<'a> {
    toolbox: &'a Toolbox,
    path: String,
    limit: Option<Duration>,
}

/// The output of git and its exit code. A failure of git is a regular result: [`GitOutput::checked`] makes an error of
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitOutput {
    /// Standard output. Invalid UTF-8 is replaced.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// 0: success.
    pub exit_code: i32,
    /// The output was longer than what is kept.
    pub truncated: bool,
}

impl GitOutput {
    /// Both streams, one after the other.
    pub fn output(&self) -> String {
        match (self.stdout.is_empty(), self.stderr.is_empty()) {
            (false, true) => self.stdout.clone(),
            (true, _) => self.stderr.clone(),
            (false, false) => {
                let gap = if self.stdout.ends_with('\n') { "" } else { "\n" };
                format!("{}{gap}{}", self.stdout, self.stderr)
            }
        }
    }

    /// Turns a failure into an error, by git's message.
    pub fn checked(self) -> Result<Self, ToolboxError> {
        if self.exit_code == 0 { Ok(self) } else { Err(self.failure()) }
    }

    fn failure(&self) -> ToolboxError {
        let text = said(&self.output());
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&[
            "Authentication failed",
            "could not read Username",
            "could not read Password",
            "terminal prompts disabled",
        ]) {
            ToolboxError::Unauthenticated(text)
        } else if has(&["already exists", "already checked out"]) {
            ToolboxError::Exists(text)
        } else if has(&[
            "CONFLICT",
            "[rejected]",
            "would be overwritten",
            "non-fast-forward",
            "not fully merged",
            "unmerged",
        ]) {
            ToolboxError::Conflict(text)
        } else if has(&[
            "not a git repository",
            "cannot change to",
            "did not match any file",
            "not found",
            "does not exist",
            "unknown revision",
            "bad revision",
            "No such",
        ]) {
            ToolboxError::GitNotFound(text)
        } else {
            ToolboxError::Invalid(text)
        }
    }
}

impl<'a> Git<'a> {
    pub(crate) fn new(toolbox: &'a Toolbox, path: String) -> Self {
        Self { toolbox, path, limit: None }
    }

    /// Sets another time limit.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Initialises a repository.
    pub async fn init(&self, bare: bool, branch: Option<&str>) -> Result<GitOutput, ToolboxError> {
        let mut args = words(["init"]);
        if bare {
            args.push("--bare".into());
        }
        if let Some(branch) = branch {
            args.push(format!("--initial-branch={}", reference(branch)?));
        }
        args.extend(["--".into(), self.folder().await?]);
        self.anywhere(args, LOCAL_LIMIT, BTreeMap::new()).await
    }

    /// Runs git in the folder.
    async fn here(&self, args: Vec<String>) -> Result<GitOutput, ToolboxError> {
        self.here_with(args, LOCAL_LIMIT, BTreeMap::new()).await
    }

    async fn here_with(
        &self,
        args: Vec<String>,
        limit: Duration,
        env: BTreeMap<String, String>,
    ) -> Result<GitOutput, ToolboxError> {
        let mut all = vec!["-C".to_owned(), self.folder().await?];
        all.extend(args);
        self.anywhere(all, limit, env).await
    }

    async fn anywhere(
        &self,
        args: Vec<String>,
        limit: Duration,
        env: BTreeMap<String, String>,
    ) -> Result<GitOutput, ToolboxError> {
        let mut all = words(["--no-pager", "-c", "core.quotePath=false", "-c", "color.ui=false"]);
        all.extend(args);
        let limit = self.limit.unwrap_or(limit);
        let command = ProgramCommand { program: "git", args: all, env: environment(env), limit, hint: HINT };
        Ok(self.toolbox.run(command).await?.into())
    }

    /// The folder for git: `~` is the user's home, as for files.
    async fn folder(&self) -> Result<String, ToolboxError> {
        if self.path.is_empty() || self.path.contains('\0') {
            return Err(ToolboxError::Invalid("path must not be empty or contain a NUL byte".into()));
        }
        let below = match self.path.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
            // A folder whose name begins like an option.
            _ if self.path.starts_with('-') => return Ok(format!("./{}", self.path)),
            _ => return Ok(self.path.clone()),
        };
        let home = self.toolbox.sandbox.stat(b"~", self.toolbox.user()).await.map_err(ToolboxError::file)?;
        Ok(format!("{}{below}", String::from_utf8_lossy(&home.path)))
    }
}

/// Disables prompts, translations, and writes by read-only commands.
fn environment(mut env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let fixed = [
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", ""),
        ("SSH_ASKPASS", ""),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_EDITOR", "true"),
        ("LC_ALL", "C.UTF-8"),
    ];
    env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env
}

impl From<CommandOutput> for GitOutput {
    fn from(output: CommandOutput) -> Self {
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            exit_code: output.status.shell_code(),
            truncated: output.dropped > 0,
        }
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// A branch, tag, commit or range: never an option.
fn reference(text: &str) -> Result<&str, ToolboxError> {
    plain("a branch or revision", text)
}

fn plain<'t>(what: &str, text: &'t str) -> Result<&'t str, ToolboxError> {
    if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_control) {
        let message = format!("{what} must not be empty, begin with '-' or contain control characters");
        return Err(ToolboxError::Invalid(message));
    }
    Ok(text)
}

/// Paths after `--`; an empty list is refused, because git would treat it as all files.
fn paths(files: &[String]) -> Result<Vec<String>, ToolboxError> {
    if files.is_empty() || files.iter().any(|file| file.is_empty() || file.contains('\0')) {
        return Err(ToolboxError::Invalid(
            "files must name at least one path, and no path may be empty".into(),
        ));
    }
    Ok(std::iter::once("--".to_owned()).chain(files.iter().cloned()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn output(stdout: &str, stderr: &str, exit_code: i32) -> GitOutput {
        GitOutput { stdout: stdout.into(), stderr: stderr.into(), exit_code, truncated: false }
    }

    #[test]
    fn options_are_not_references() {
        for bad in ["", "-b", "--upload-pack=evil", "a\nb", "a\0"] {
            assert!(reference(bad).is_err(), "{bad:?}");
        }
        assert_eq!(reference("feature/x").unwrap(), "feature/x");
        assert!(paths(&[]).is_err());
        assert_eq!(paths(&["-f".into()]).unwrap(), ["--", "-f"]);
    }

    #[test]
    fn both_streams_are_read_as_a_person_would() {
        assert_eq!(output("a", "b\n", 0).output(), "a\nb\n");
        assert_eq!(output("", "b\n", 0).output(), "b\n");
    }

    #[test]
    fn failures_are_told_apart_by_what_git_says() {
        use atoll_model::ErrorKind as K;
        let kind = |text: &str| output("", text, 128).checked().unwrap_err().kind();
        assert_eq!(kind("fatal: not a git repository (or any of the parent directories): .git"), K::NotFound);
        assert_eq!(kind("fatal: Authentication failed for 'https://x/'"), K::Unauthenticated);
        assert_eq!(kind(" ! [rejected]        main -> main (fetch first)"), K::Conflict);
        assert_eq!(kind("fatal: a branch named 'x' already exists"), K::Exists);
    }
}
