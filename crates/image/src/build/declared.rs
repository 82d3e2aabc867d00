//! Builds that an SDK declares step by step instead of writing a Dockerfile (E2B's `Template()`).

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_model::TemplateRef;
use serde::{Deserialize, Serialize};

use super::dockerfile::STEPS_MAX;
use super::error::BadDockerfile;
use super::instruction::{Command, CopyWords, Flag, Instruction, Kind, SourceWord};
use super::plan::{Base, Scope, Stage, platform_args};

/// What an SDK declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredBuild {
    /// The image or template that it stands on.
    pub base: TemplateRef,
    /// In order.
    #[serde(default)]
    pub steps: Vec<DeclaredStep>,
    /// What runs commands; empty: `/bin/sh -c`. COMPAT(e2b): `/bin/bash -l -c`.
    #[serde(default)]
    pub shell: Vec<String>,
}

/// One step, as E2B's SDKs send it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredStep {
    /// `RUN`, `COPY`, `ENV`, `WORKDIR` or `USER`.
    pub kind: String,
    /// RUN: command, user. COPY: source, destination, user, mode. ENV: name, value, name, value, … WORKDIR: path. USER: name.
    #[serde(default)]
    pub args: Vec<String>,
    /// COPY: the folder of the context that holds the files which were sent for this step; E2B's `filesHash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
}

impl DeclaredBuild {
    /// The one stage that it is. Numbers of steps, from 1, stand where a Dockerfile has lines.
    pub(crate) fn stage(&self) -> Result<Stage, BadDockerfile> {
        if self.steps.len() > STEPS_MAX {
            return Err(BadDockerfile::at(0, format!("a build has at most {STEPS_MAX} steps")));
        }
        let numbered = self.steps.iter().enumerate();
        let instructions: Result<Vec<Instruction>, BadDockerfile> =
            numbered.map(|(at, step)| step.instruction(at + 1)).collect();
        let shell = match self.shell.is_empty() {
            true => vec!["/bin/sh".to_owned(), "-c".to_owned()],
            false => self.shell.clone(),
        };
        Ok(Stage {
            base: Base::Template(self.base.clone()),
            number: 0,
            name: None,
            platform: None,
            line: 0,
            instructions: instructions?.into(),
            scope: Arc::new(Scope {
                given: BTreeMap::new(),
                file: platform_args(),
                names: BTreeMap::new(),
                escape: '\\',
                expands: false,
            }),
            shell,
            steps_before: 0,
        })
    }
}

impl DeclaredStep {
    fn instruction(&self, number: usize) -> Result<Instruction, BadDockerfile> {
        let word = self.kind.to_ascii_uppercase();
        let bad = |why: &str| BadDockerfile::at(number, format!("{word}: {why}"));
        let arg = |at: usize| self.args.get(at).map(String::as_str).filter(|text| !text.is_empty());
        let kind = match word.as_str() {
            "RUN" => {
                let command = arg(0).ok_or_else(|| bad("it needs a command"))?;
                let run = Kind::Run {
                    flags: Vec::new(),
                    command: Command::Shell(command.to_owned()),
                    documents: Vec::new(),
                };
                match arg(1) {
                    Some(user) => Kind::As(user.to_owned(), Box::new(run)),
                    None => run,
                }
            }
            "COPY" => Kind::Copy(self.copy().ok_or_else(|| bad("it needs a source and a destination"))?),
            "ENV" if self.args.is_empty() || !self.args.len().is_multiple_of(2) => {
                return Err(bad("it needs names and values by turns"));
            }
            "ENV" => Kind::Env(self.args.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()),
            "WORKDIR" => Kind::Workdir(arg(0).ok_or_else(|| bad("it needs a path"))?.to_owned()),
            "USER" => Kind::User(arg(0).ok_or_else(|| bad("it needs a name"))?.to_owned()),
            _ => {
                return Err(bad("it is no step of a declared build")
                    .hint("there are RUN, COPY, ENV, WORKDIR and USER"));
            }
        };
        Ok(Instruction {
            line: number,
            text: format!("{word} {}", self.args.join(" ")).trim().to_owned(),
            kind,
        })
    }

    fn copy(&self) -> Option<CopyWords> {
        let arg = |at: usize| self.args.get(at).cloned().filter(|text| !text.is_empty());
        let (source, dest) = (arg(0)?, arg(1)?);
        let source = match &self.files {
            Some(folder) => format!("{folder}/{source}"),
            None => source,
        };
        let flag = |name: &str, value| Flag { name: name.to_owned(), value: Some(value) };
        let flags = [arg(2).map(|user| flag("chown", user)), arg(3).map(|mode| flag("chmod", mode))];
        Some(CopyWords {
            add: false,
            flags: flags.into_iter().flatten().collect(),
            sources: vec![SourceWord::Path(source)],
            dest,
        })
    }
}
