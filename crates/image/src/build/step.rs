//! What a build does, one step after another, with nothing left to look up: variables are expanded, paths absolute,
//! sources matched.

use std::collections::BTreeMap;

use atoll_model::TemplateRef;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildStep {
    /// From 1, over all stages that are built.
    pub number: u32,
    /// As it is written, on one line.
    pub text: String,
    /// In the Dockerfile, from 1; 0: there is none.
    pub line: usize,
    /// What it does.
    pub kind: StepKind,
}

impl BuildStep {
    /// Whether it changes settings alone, and no file.
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
    /// Makes a folder (0755, root's) if it is not there.
    Workdir(String),
    /// Only settings change; the walk has changed them already.
    Config,
}

/// A program to run. It succeeds if it exits with 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// What it reads; `None`: nothing.
    pub stdin: Option<Vec<u8>>,
    /// A file (0755) that has to be there while it runs and is gone afterwards.
    pub script: Option<Script>,
    /// The whole environment: ENV, ARGs that are in sight, `PATH`.
    pub env: BTreeMap<String, String>,
    /// Names in `env` that do not decide about the cache: proxies that only the caller named.
    pub unkeyed: Vec<String>,
    /// `user[:group]`, by name or number; empty: root.
    pub user: String,
    /// Absolute.
    pub workdir: String,
    /// Files or variables that leave no trace.
    pub secrets: Vec<SecretMount>,
    /// Folders that are empty in the beginning and gone in the end: `type=tmpfs` and `type=cache`.
    pub scratch: Vec<ScratchMount>,
    /// Files that are there while it runs: `type=bind`. `dest` is the mount's target.
    pub binds: Vec<Copy>,
    /// `false`: `--network=none`.
    pub network: bool,
}

/// A file for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Absolute, on memory that is never captured.
    pub path: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// A secret for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretMount {
    /// The caller's name for it.
    pub id: String,
    /// Absolute; `None`: it is only wanted as a variable.
    pub target: Option<String>,
    /// The variable that holds it.
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
    /// At most so much; `None`: what the engine gives.
    pub size_mib: Option<u32>,
}

/// Files to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Where they come from.
    pub from: CopyFrom,
    /// As they are written, variables expanded. Outside the context: absolute, and patterns.
    pub sources: Vec<String>,
    /// What is left out below a source, in the manner of `.dockerignore`.
    pub exclude: Vec<String>,
    /// Sources keep their path below the destination.
    pub parents: bool,
    /// Absolute.
    pub dest: String,
    /// The destination can only be a folder.
    pub into_folder: bool,
    /// `user[:group]`; `None`: root for files of the context, and as it is for others.
    pub chown: Option<String>,
    /// Permission bits of every file and folder.
    pub chmod: Option<u32>,
    /// What was found in the context, with names below the destination.
    pub entries: Vec<Matched>,
    /// Files whose content is in the Dockerfile.
    pub inline: Vec<InlineFile>,
    /// Archives of the context to extract at the destination (`ADD x.tar`), owners kept unless `chown` says otherwise.
    pub extract: Vec<String>,
}

impl Copy {
    /// Whether [`super::Context::write_tar`] has anything to write: an `ADD` of archives alone has not.
    pub fn has_plain(&self) -> bool {
        !self.entries.is_empty() || !self.inline.is_empty()
    }
}

/// Where files come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyFrom {
    /// The build's context, or the Dockerfile itself.
    Context,
    /// A stage before this one, by its number from 0.
    Stage(usize),
    /// A template or image.
    Template(TemplateRef),
}

/// An entry of the context and its name below the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// In the context.
    pub path: String,
    /// Below the destination; `./`: the destination itself is a folder.
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
