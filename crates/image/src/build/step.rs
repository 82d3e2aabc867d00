//! The steps of a build, with everything resolved: variables are expanded, paths absolute, sources matched.

use std::collections::BTreeMap;

use atoll_model::TemplateRef;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildStep {
    /// From 1, over all stages that are built.
    pub number: u32,
    /// As written, on one line.
    pub text: String,
    /// The line in the Dockerfile, from 1; 0: none.
    pub line: usize,
    /// What it does.
    pub kind: StepKind,
}

impl BuildStep {
    /// Whether the step changes only settings and no file.
    pub fn is_config_only(&self) -> bool {
        match self.kind {
            StepKind::Config => true,
            StepKind::Run(_) | StepKind::Copy(_) | StepKind::Workdir(_) => false,
        }
    }
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepKind {
    /// Runs a program.
    Run(Run),
    /// Writes files.
    Copy(Copy),
    /// Makes a folder (0755, owned by root) if it is missing.
    Workdir(String),
    /// Changes only settings; the walk has applied them already.
    Config,
}

/// A program to run. It succeeds if it exits with 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Standard input; `None`: empty.
    pub stdin: Option<Vec<u8>>,
    /// A file (0755) that must exist during the run and is removed afterwards.
    pub script: Option<Script>,
    /// The whole environment: `ENV`, visible `ARG`s, `PATH`.
    pub env: BTreeMap<String, String>,
    /// Names in `env` that are not part of the cache key: proxies that only the caller set.
    pub unkeyed: Vec<String>,
    /// `user[:group]`, by name or number; empty: root.
    pub user: String,
    /// The working directory; absolute.
    pub workdir: String,
    /// Files or variables that leave no trace.
    pub secrets: Vec<SecretMount>,
    /// Folders that are empty at the start and removed at the end: `type=tmpfs` and `type=cache`.
    pub scratch: Vec<ScratchMount>,
    /// Files that exist during the run: `type=bind`. `dest` is the mount's target.
    pub binds: Vec<Copy>,
    /// `false`: `--network=none`.
    pub network: bool,
}

/// A file for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Absolute, on a tmpfs that is never captured.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// A secret for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretMount {
    /// The caller's name for it.
    pub id: String,
    /// Absolute; `None`: only the variable is set.
    pub target: Option<String>,
    /// The variable that contains it.
    pub env: Option<String>,
    /// Permission bits of the file.
    pub mode: u32,
    /// Owner of the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
    /// Whether the step fails without it.
    pub required: bool,
}

/// An empty folder for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchMount {
    /// Absolute.
    pub target: String,
    /// Size limit; `None`: the default of the engine.
    pub size_mib: Option<u32>,
}

/// Files to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The source of the files.
    pub from: CopyFrom,
    /// As written, with variables expanded. Outside the context: absolute, and may be patterns.
    pub sources: Vec<String>,
    /// Excluded below a source, in the syntax of `.dockerignore`.
    pub exclude: Vec<String>,
    /// Sources keep their path below the destination.
    pub parents: bool,
    /// Absolute.
    pub dest: String,
    /// The destination is written as a folder.
    pub into_folder: bool,
    /// `user[:group]`; `None`: root for files of the context, unchanged for others.
    pub chown: Option<String>,
    /// Permission bits of every file and folder.
    pub chmod: Option<u32>,
    /// The matches in the context, with names below the destination.
    pub entries: Vec<Matched>,
    /// Files whose content is in the Dockerfile.
    pub inline: Vec<InlineFile>,
    /// Archives of the context to extract at the destination (`ADD x.tar`), owners kept unless `chown` says otherwise.
    pub extract: Vec<String>,
}

impl Copy {
    /// Whether [`super::Context::write_tar`] has anything to write: false for an `ADD` of archives alone.
    pub fn has_plain(&self) -> bool {
        !self.entries.is_empty() || !self.inline.is_empty()
    }
}

/// The source of copied files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyFrom {
    /// The build's context, or the Dockerfile itself.
    Context,
    /// An earlier stage, by its number from 0.
    Stage(usize),
    /// A template or image.
    Template(TemplateRef),
}

/// An entry of the context and its name below the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// Path in the context.
    pub path: String,
    /// Name below the destination; `./`: the destination itself is a folder.
    pub name: String,
}

/// A file whose content is in the Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}
