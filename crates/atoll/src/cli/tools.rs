//! Grammar of the verbs that use a sandbox's tools.

use clap::{Args, ValueEnum};

use super::sandbox::{Attach, Exec};
use super::values::{Pair, Seconds, seconds, variable};

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Code keeps its state: what it defines is there for the next code in the same context. The value of the
last expression is printed. Exit status: 0, 1 after an error of the code, 124 timeout, 125 Atoll failed.

Examples:
  atoll code box -- 'print(6*7)'
  atoll code box < analysis.py
  atoll code box --language javascript '[1, 2, 3].map(n => n * n)'"
)]
pub(crate) struct RunCode {
    /// Language of the code; each language has a default context
    #[arg(short, long, value_enum, default_value = "python")]
    pub(crate) language: Language,
    /// Run in this context instead of the default one; its id is in the output of --json
    #[arg(long, value_name = "ID", conflicts_with = "language")]
    pub(crate) context: Option<String>,
    /// Stored server to use; `--context` before `code` does the same
    #[arg(id = "context_name", long = "server-context", value_name = "NAME", help_heading = "Connection")]
    pub(crate) context_name: Option<String>,
    /// Environment variable during the code: NAME=VALUE, or NAME to copy your own value
    #[arg(short, long, value_parser = variable, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<Pair>,
    /// Time limit of the code, such as 30s (exit status 124)
    #[arg(long, value_parser = seconds, value_name = "DURATION")]
    pub(crate) timeout: Option<Seconds>,
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// The code; - or nothing reads it from stdin
    pub(crate) code: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Prints PATH:LINE:TEXT. Binary files and links are skipped. Needs no program in the sandbox.
Exit status: 0 if a line was found, 1 if none, 125 Atoll failed."
)]
pub(crate) struct GrepFiles {
    /// Take PATTERN as plain text
    #[arg(short = 'F', long)]
    pub(crate) fixed: bool,
    /// Ignore case
    #[arg(short, long)]
    pub(crate) ignore_case: bool,
    /// Only files that match this glob, such as '*.py'; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,
    /// Leave out files and directories that match this glob; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Regular expression
    pub(crate) pattern: String,
    /// Directory or file [default: the sandbox's working directory]
    pub(crate) path: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Runs the git of the sandbox with your arguments; same as `atoll exec -w DIR BOX -- git ARGS`.
With -t git can ask for a password and open an editor.

Examples:
  atoll git box clone https://github.com/octocat/hello.git
  atoll git box -C hello log --oneline -n 5
  atoll git box -C hello commit -am 'Fix it'"
)]
pub(crate) struct GitArgs {
    #[command(flatten)]
    pub(crate) attach: Attach,
    /// Directory of the repository [default: the sandbox's working directory]
    #[arg(short = 'C', value_name = "DIR")]
    pub(crate) directory: Option<String>,
    /// Name or id prefix of the sandbox
    pub(crate) sandbox: String,
    /// Arguments of git
    #[arg(required = true, trailing_var_arg = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<String>,
}

impl GitArgs {
    /// The equivalent `exec` command.
    pub(crate) fn into_exec(self) -> Exec {
        Exec {
            attach: self.attach,
            detach: false,
            env: Vec::new(),
            user: None,
            workdir: self.directory,
            timeout: None,
            sandbox: self.sandbox,
            command: std::iter::once("git".to_owned()).chain(self.arguments).collect(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Language {
    #[value(alias = "py")]
    Python,
    #[value(name = "javascript", alias = "js")]
    JavaScript,
    #[value(name = "typescript", alias = "ts")]
    TypeScript,
    #[value(alias = "sh")]
    Bash,
    R,
    Java,
}

impl From<Language> for atoll_client::code::CodeLanguage {
    fn from(language: Language) -> Self {
        match language {
            Language::Python => Self::Python,
            Language::JavaScript => Self::JavaScript,
            Language::TypeScript => Self::TypeScript,
            Language::Bash => Self::Bash,
            Language::R => Self::R,
            Language::Java => Self::Java,
        }
    }
}
