//! The instructions of a Dockerfile, owned and as they are written: nothing is expanded, nothing is looked up.

use super::source::Document;

/// One instruction.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// From 1.
    pub(crate) line: usize,
    /// On one line.
    pub(crate) text: String,
    pub(crate) kind: InstructionKind,
}

#[derive(Debug, Clone)]
pub(crate) enum InstructionKind {
    From {
        platform: Option<String>,
        image: String,
        name: Option<String>,
    },
    Arg(Vec<(String, Option<String>)>),
    Env(Vec<(String, String)>),
    Label(Vec<(String, String)>),
    Run {
        flags: Vec<Flag>,
        command: CommandForm,
        documents: Vec<Document>,
    },
    Copy(CopyWords),
    Workdir(String),
    User(String),
    Cmd(CommandForm),
    Entrypoint(CommandForm),
    Expose(Vec<String>),
    Volume(Vec<String>),
    StopSignal(String),
    Shell(Vec<String>),
    Healthcheck,
    Maintainer(String),
    /// E2B's `RUN` and `COPY` name a user of their own.
    As(String, Box<InstructionKind>),
}

/// `COPY` or `ADD`.
#[derive(Debug, Clone)]
pub(crate) struct CopyWords {
    /// `ADD`: archives are extracted.
    pub(crate) add: bool,
    pub(crate) flags: Vec<Flag>,
    pub(crate) sources: Vec<SourceWord>,
    pub(crate) dest: String,
}

#[derive(Debug, Clone)]
pub(crate) enum SourceWord {
    Path(String),
    Document(Document),
}

/// `--name[=value]`.
#[derive(Debug, Clone)]
pub(crate) struct Flag {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) enum CommandForm {
    /// For the shell.
    Shell(String),
    /// A JSON list: as it is.
    Exec(Vec<String>),
}
