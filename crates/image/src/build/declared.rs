//! Builds that an SDK declares step by step instead of writing a Dockerfile (E2B's `Template()`).
//!
//! Differences from Dockerfiles: a user that a step names is created if missing, and owns the working directory and
//! copied files. The SDK matched patterns when it sent the files; everything below the part of the path without a
//! pattern is copied. This module reads no file.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_model::TemplateRef;
use serde::{Deserialize, Serialize};

use super::dockerfile::STEPS_MAX;
use super::error::BadDockerfile;
use super::instruction::{CommandForm, CopyWords, Flag, Instruction, InstructionKind, SourceWord};
use super::plan::{Base, BuildScope, BuildStage, platform_args};

/// Makes a folder if it is missing, and gives the new folders to its user. Arguments: folder, user.
pub(super) const MAKE_WORKDIR: &str = r#"
if [ -d "$1" ]; then exit 0; fi
top=$1
while above=$(dirname "$top") && [ ! -d "$above" ]; do top=$above; done
mkdir -p "$1" || exit 1
[ -n "$2" ] || exit 0
chown -R "$2" "$top" && case $2 in *:*) ;; *) chgrp -R "$(id -g "$2")" "$top" ;; esac
"#;

/// Makes a user with a home if it is missing. Arguments: user.
pub(super) const MAKE_USER: &str = r#"
if id -u "$1" >/dev/null 2>&1; then exit 0; fi
shell=/bin/sh
if [ -x /bin/bash ]; then shell=/bin/bash; fi
if command -v useradd >/dev/null 2>&1; then exec useradd -m -s "$shell" "$1"; fi
if adduser --help 2>&1 | grep -q -e '-D'; then exec adduser -D -s "$shell" "$1"; fi
exec adduser --disabled-password --gecos '' "$1"
"#;

/// Whether a user of this name can be created: numbers and `user:group` always refer to existing accounts.
pub(super) fn is_plain_user(user: &str) -> bool {
    user.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && user.len() <= 32
        && user.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-'))
}

/// A build that an SDK declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredBuild {
    /// The image or template that it is based on.
    pub base: TemplateRef,
    /// Steps before the first step of the caller; they have no number.
    #[serde(default)]
    pub prepare: Vec<DeclaredStep>,
    /// The steps, in order.
    #[serde(default)]
    pub steps: Vec<DeclaredStep>,
    /// The shell that runs commands; empty: `/bin/sh -c`. COMPAT(e2b): `/bin/bash -l -c`.
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
    /// COPY: the folder of the context with the files that were sent for this step; E2B's `filesHash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// Run again, even if the result is cached.
    #[serde(default)]
    pub force: bool,
}

impl DeclaredBuild {
    /// Whether the step with this number runs again, even if the result is cached.
    pub fn forces(&self, number: u32) -> bool {
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        at.and_then(|at| self.steps.get(at)).is_some_and(|step| step.force)
    }

    /// The sent files that the steps copy, each once.
    pub fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.steps.iter().filter_map(|step| step.files.as_deref()).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The single stage of the build. Step numbers, from 1, take the place of line numbers.
    pub(crate) fn stage(&self) -> Result<BuildStage, BadDockerfile> {
        if self.prepare.len() + self.steps.len() > STEPS_MAX {
            return Err(BadDockerfile::at(0, format!("a build has at most {STEPS_MAX} steps")));
        }
        let prepare = self.prepare.iter().map(|step| (0, step));
        let numbered = prepare.chain(self.steps.iter().enumerate().map(|(at, step)| (at + 1, step)));
        let instructions: Result<Vec<Instruction>, BadDockerfile> =
            numbered.map(|(number, step)| step.instruction(number)).collect();
        let shell = match self.shell.is_empty() {
            true => vec!["/bin/sh".to_owned(), "-c".to_owned()],
            false => self.shell.clone(),
        };
        Ok(BuildStage {
            base: Base::Template(self.base.clone()),
            number: 0,
            name: None,
            platform: None,
            line: 0,
            instructions: instructions?.into(),
            scope: Arc::new(BuildScope {
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
                let run = InstructionKind::Run {
                    flags: Vec::new(),
                    command: CommandForm::Shell(command.to_owned()),
                    documents: Vec::new(),
                };
                match arg(1) {
                    Some(user) => InstructionKind::As(user.to_owned(), Box::new(run)),
                    None => run,
                }
            }
            "COPY" => {
                InstructionKind::Copy(self.copy().ok_or_else(|| bad("it needs a source and a destination"))?)
            }
            "ENV" if self.args.is_empty() || !self.args.len().is_multiple_of(2) => {
                return Err(bad("it needs pairs of names and values"));
            }
            "ENV" => InstructionKind::Env(
                self.args.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
            ),
            "WORKDIR" => InstructionKind::Workdir(arg(0).ok_or_else(|| bad("it needs a path"))?.to_owned()),
            "USER" => InstructionKind::User(arg(0).ok_or_else(|| bad("it needs a name"))?.to_owned()),
            _ => {
                return Err(bad("it is not a step of a declared build")
                    .hint("the steps are RUN, COPY, ENV, WORKDIR and USER"));
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
            Some(folder) => format!("{folder}/{}", plain_part(&source)),
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

/// A path up to its first component with a pattern.
fn plain_part(path: &str) -> String {
    let plain = path.split('/').take_while(|part| !part.contains(['*', '?', '[', '{']));
    let plain: Vec<&str> = plain.filter(|part| !matches!(*part, "" | ".")).collect();
    if plain.is_empty() { ".".to_owned() } else { plain.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_ends_before_its_first_pattern() {
        for (path, wanted) in [
            ("a/b.txt", "a/b.txt"),
            ("./a/", "a"),
            (".", "."),
            ("folder/*.txt", "folder"),
            ("**/*.py", "."),
            ("a/{b,c}/d", "a"),
        ] {
            assert_eq!(plain_part(path), wanted, "{path}");
        }
    }

    #[test]
    fn only_plain_names_are_made_into_users() {
        for good in ["user", "_x", "web-1"] {
            assert!(is_plain_user(good), "{good}");
        }
        for bad in ["", "1000", "user:user", "User", "a b", "-x", "$x"] {
            assert!(!is_plain_user(bad), "{bad}");
        }
    }
}
