//! Plans the stages of a Dockerfile: which are built, in which order and on which base; each stage gives a walk.
//!
//! ```text
//! text ─▶ Dockerfile ─▶ Plan ─▶ Stage ─▶ Walk ─▶ Step …
//!                 args, target      settings of the base
//! ```
//!
//! A walk begins when the base is known, because variables may refer to its environment. Planning has no side effects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_model::TemplateRef;
use oci_spec::image::ImageConfiguration;

use super::context::BuildContext;
use super::declared::DeclaredBuild;
use super::dockerfile::Dockerfile;
use super::error::BadDockerfile;
use super::instruction::{CommandForm, Flag, Instruction, InstructionKind};
use super::lex::{Lex, Vars};
use super::walk::Walk;

/// The plan of a build.
#[derive(Debug, Clone)]
pub struct Plan {
    stages: Vec<BuildStage>,
    order: Vec<usize>,
    /// Notes for the user: ignored instructions, and differences from Docker.
    pub notes: Vec<String>,
}

/// One stage.
#[derive(Debug, Clone)]
pub struct BuildStage {
    /// The base.
    pub base: Base,
    /// Its number in the Dockerfile, from 0.
    pub number: usize,
    /// `AS name`.
    pub name: Option<String>,
    /// `--platform`, if given.
    pub platform: Option<String>,
    /// The line of its `FROM`.
    pub line: usize,
    pub(crate) instructions: Arc<[Instruction]>,
    pub(crate) scope: Arc<BuildScope>,
    /// The initial shell for commands that are not a list.
    pub(crate) shell: Vec<String>,
    /// Number of steps in the stages before it.
    pub(crate) steps_before: u32,
}

/// The base of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A template or image.
    Template(TemplateRef),
    /// An earlier stage.
    Stage(usize),
    /// An empty root.
    Scratch,
}

/// State that all stages of a Dockerfile share.
#[derive(Debug)]
pub(crate) struct BuildScope {
    /// Build arguments of the caller.
    pub(crate) given: BTreeMap<String, String>,
    /// `ARG`s before the first `FROM`, and the predefined platform arguments.
    pub(crate) file: Vars,
    /// Stages by lower-case name.
    pub(crate) names: BTreeMap<String, usize>,
    pub(crate) escape: char,
    /// Whether variables are expanded; not in builds that an SDK declared.
    pub(crate) expands: bool,
}

impl BuildScope {
    pub(crate) fn lex(&self) -> Lex {
        Lex { escape: self.escape, document: false }
    }

    /// An earlier stage with this name or number; `None` if the text is the name of a template.
    pub(crate) fn stage(&self, text: &str, before: usize) -> Option<usize> {
        let named = self.names.get(&text.to_ascii_lowercase()).copied();
        named.or_else(|| text.parse().ok()).filter(|number| *number < before)
    }
}

impl BuildStage {
    /// Starts a walk through the steps, on a base with these settings.
    pub fn walk(&self, base: ImageConfiguration) -> Walk {
        Walk::new(self.clone(), base)
    }
}

impl Plan {
    /// Plans a Dockerfile. `args`: build arguments; `target`: the last stage to build, by name or number; default is
    /// the last one.
    pub fn of(
        dockerfile: &Dockerfile,
        args: &BTreeMap<String, String>,
        target: Option<&str>,
        context: &BuildContext,
    ) -> Result<Self, BadDockerfile> {
        let _ = context;
        let first =
            dockerfile.instructions.iter().position(|i| matches!(i.kind, InstructionKind::From { .. }));
        let first = first.ok_or_else(|| BadDockerfile::at(0, "a Dockerfile needs a FROM"))?;
        let (before, rest) = dockerfile.instructions.split_at(first);
        let file = file_args(before, args, dockerfile.escape)?;
        let mut names = BTreeMap::new();
        let froms = rest.iter().filter(|i| matches!(i.kind, InstructionKind::From { .. }));
        for (number, from) in froms.enumerate() {
            if let InstructionKind::From { name: Some(name), .. } = &from.kind
                && names.insert(name.clone(), number).is_some()
            {
                return Err(BadDockerfile::at(
                    from.line,
                    format!("FROM: there are two stages named {name:?}"),
                ));
            }
        }
        let scope = Arc::new(BuildScope {
            given: args.clone(),
            file,
            names,
            escape: dockerfile.escape,
            expands: true,
        });
        let mut stages: Vec<BuildStage> = Vec::new();
        for chunk in rest.chunk_by(|_, next| !matches!(next.kind, InstructionKind::From { .. })) {
            let stage = stage_of(chunk, &stages, &scope)?;
            stages.push(stage);
        }
        let last = target_of(&stages, &scope, target)?;
        let mut notes = unused(args, dockerfile);
        notes.extend(noted(rest));
        Self { stages, order: Vec::new(), notes }.ordered(last)
    }

    /// Plans a build that an SDK declared.
    pub fn declared(build: &DeclaredBuild, context: &BuildContext) -> Result<Self, BadDockerfile> {
        let _ = context;
        let stage = build.stage()?;
        Self { stages: vec![stage], order: Vec::new(), notes: Vec::new() }.ordered(0)
    }

    /// Drops stages that the last one does not need, and numbers the steps.
    fn ordered(mut self, last: usize) -> Result<Self, BadDockerfile> {
        let mut needed = BTreeSet::from([last]);
        let mut todo = vec![last];
        while let Some(number) = todo.pop() {
            for other in self.stages[number].needs() {
                if needed.insert(other) {
                    todo.push(other);
                }
            }
        }
        let mut steps = 0;
        for number in &needed {
            let stage = &mut self.stages[*number];
            stage.steps_before = steps;
            steps += stage.steps();
        }
        self.order = needed.into_iter().collect();
        Ok(self)
    }

    /// Number of steps in all stages that are built.
    pub fn steps(&self) -> u32 {
        self.order.iter().map(|number| self.stages[*number].steps()).sum()
    }

    /// The stages that are built, each after those it needs; the last is the result.
    pub fn order(&self) -> Vec<usize> {
        self.order.clone()
    }

    /// A stage by its number.
    ///
    /// # Panics
    /// If there is none: numbers come from [`Plan::order`], [`Base::Stage`] and [`super::CopyFrom::Stage`].
    pub fn stage(&self, number: usize) -> &BuildStage {
        &self.stages[number]
    }

    /// Every template that is the base of a stage to be built.
    pub fn bases(&self) -> Vec<&TemplateRef> {
        let bases = self.order.iter().filter_map(|number| match &self.stages[*number].base {
            Base::Template(template) => Some(template),
            Base::Stage(_) | Base::Scratch => None,
        });
        bases.collect()
    }
}

impl BuildStage {
    fn steps(&self) -> u32 {
        // The preparing steps of a declared build have no line.
        let counts = |i: &&Instruction| {
            i.line > 0 && !matches!(i.kind, InstructionKind::Arg(_) | InstructionKind::From { .. })
        };
        u32::try_from(self.instructions.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }

    /// The stages that it is based on or copies from.
    fn needs(&self) -> Vec<usize> {
        let mut needs = Vec::new();
        if let Base::Stage(number) = self.base {
            needs.push(number);
        }
        for instruction in self.instructions.iter() {
            let named: Vec<&str> = match &instruction.kind {
                InstructionKind::Copy(copy) => values(&copy.flags, "from").collect(),
                InstructionKind::Run { flags, .. } => values(flags, "mount")
                    .filter_map(|mount| mount.split(',').find_map(|part| part.strip_prefix("from=")))
                    .collect(),
                _ => Vec::new(),
            };
            needs.extend(named.iter().filter_map(|name| self.scope.stage(name, self.number)));
        }
        needs
    }
}

fn values<'a>(flags: &'a [Flag], name: &'a str) -> impl Iterator<Item = &'a str> {
    flags.iter().filter(move |flag| flag.name == name).filter_map(|flag| flag.value.as_deref())
}

/// Predefined build arguments. Sandboxes run on the machine's own platform.
pub(crate) fn platform_args() -> Vars {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut vars = Vars::new();
    for side in ["TARGET", "BUILD"] {
        vars.insert(format!("{side}PLATFORM"), format!("linux/{arch}"));
        vars.insert(format!("{side}OS"), "linux".into());
        vars.insert(format!("{side}ARCH"), arch.into());
        vars.insert(format!("{side}VARIANT"), String::new());
    }
    vars
}

/// Evaluates the `ARG`s before the first `FROM`: each sees those before it.
fn file_args(
    before: &[Instruction],
    given: &BTreeMap<String, String>,
    escape: char,
) -> Result<Vars, BadDockerfile> {
    let lex = Lex { escape, document: false };
    let mut vars = platform_args();
    for instruction in before {
        let InstructionKind::Arg(args) = &instruction.kind else { continue };
        for (name, default) in args {
            let bad = |why| BadDockerfile::at(instruction.line, format!("ARG: {name}: {why}"));
            let value = match (given.get(name), default) {
                (Some(given), _) => given.clone(),
                (None, Some(default)) => lex.expand(default, &vars).map_err(bad)?,
                (None, None) => continue,
            };
            vars.insert(name.clone(), value);
        }
    }
    Ok(vars)
}

fn stage_of(
    chunk: &[Instruction],
    before: &[BuildStage],
    scope: &Arc<BuildScope>,
) -> Result<BuildStage, BadDockerfile> {
    let number = before.len();
    let (from, rest) = chunk.split_first().ok_or_else(|| BadDockerfile::at(0, "a stage is empty"))?;
    let InstructionKind::From { platform, image, name } = &from.kind else {
        return Err(BadDockerfile::at(from.line, "a stage begins with FROM"));
    };
    let bad = |why: String| BadDockerfile::at(from.line, format!("FROM: {why}"));
    let expand = |text: &String| scope.lex().expand(text, &scope.file).map_err(bad);
    let text = expand(image)?;
    if text.is_empty() {
        return Err(bad(format!("{image} is empty"))
            .hint("set the argument: ARG NAME=value before FROM, or --build-arg NAME=value"));
    }
    let named = scope.names.get(&text.to_ascii_lowercase()).copied().filter(|at| *at < number);
    let base = match named {
        Some(stage) => Base::Stage(stage),
        None if text == "scratch" => Base::Scratch,
        None => Base::Template(text.parse().map_err(|error| bad(format!("{error}")))?),
    };
    let shell = match &base {
        Base::Stage(stage) => before[*stage].shell_at_end(),
        Base::Template(_) | Base::Scratch => vec!["/bin/sh".to_owned(), "-c".to_owned()],
    };
    let platform = platform.as_ref().map(expand).transpose()?.filter(|platform| !platform.is_empty());
    Ok(BuildStage {
        base,
        number,
        name: name.clone(),
        platform,
        line: from.line,
        instructions: rest.to_vec().into(),
        scope: Arc::clone(scope),
        shell,
        steps_before: 0,
    })
}

impl BuildStage {
    fn shell_at_end(&self) -> Vec<String> {
        let said = self.instructions.iter().rev().find_map(|instruction| match &instruction.kind {
            InstructionKind::Shell(argv) => Some(argv.clone()),
            _ => None,
        });
        said.unwrap_or_else(|| self.shell.clone())
    }
}

fn target_of(
    stages: &[BuildStage],
    scope: &BuildScope,
    target: Option<&str>,
) -> Result<usize, BadDockerfile> {
    let Some(target) = target.filter(|target| !target.is_empty()) else { return Ok(stages.len() - 1) };
    scope.stage(target, stages.len()).ok_or_else(|| {
        let names: Vec<&str> = scope.names.keys().map(String::as_str).collect();
        let bad = BadDockerfile::at(0, format!("there is no stage {target:?} to build"));
        match names.is_empty() {
            true => bad.hint("name a stage with FROM … AS NAME"),
            false => bad.hint(format!("there are {}", names.join(", "))),
        }
    })
}

/// Arguments that may be used without an `ARG`.
pub(crate) const PROXIES: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Build arguments that no `ARG` names: usually a typing error.
fn unused(given: &BTreeMap<String, String>, dockerfile: &Dockerfile) -> Vec<String> {
    let named: BTreeSet<&str> = dockerfile
        .instructions
        .iter()
        .filter_map(|instruction| match &instruction.kind {
            InstructionKind::Arg(args) => Some(args.iter().map(|(name, _)| name.as_str())),
            _ => None,
        })
        .flatten()
        .collect();
    let unused = given.keys().filter(|name| {
        !named.contains(name.as_str()) && !PROXIES.contains(&name.as_str()) && !name.starts_with("BUILDKIT_")
    });
    unused.map(|name| format!("no ARG uses the build argument {name}")).collect()
}

/// Notes about instructions that are ignored.
fn noted(instructions: &[Instruction]) -> Vec<String> {
    let note = |instruction: &Instruction| match &instruction.kind {
        InstructionKind::Healthcheck => Some(format!(
            "line {}: HEALTHCHECK is left out; give the template a ready check",
            instruction.line
        )),
        InstructionKind::Volume(_) => Some(format!(
            "line {}: VOLUME is kept in the image without effect; mount a volume at create",
            instruction.line
        )),
        InstructionKind::Maintainer(_) => {
            Some(format!("line {}: MAINTAINER is deprecated; use LABEL", instruction.line))
        }
        InstructionKind::Cmd(CommandForm::Exec(_)) | InstructionKind::Cmd(CommandForm::Shell(_)) => None,
        _ => None,
    };
    instructions.iter().filter_map(note).collect()
}
