//! The instructions of a Dockerfile as written: nothing is expanded or resolved.

use super::source::Document;

/// One instruction.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// From 1.
    pub(crate) line: usize,
    /// As one line.
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
    /// The instruction with a user of its own, as in E2B's `RUN` and `COPY`.
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
    /// Run by the shell.
    Shell(String),
    /// A JSON list, run without a shell.
    Exec(Vec<String>),
}
