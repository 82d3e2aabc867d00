//! Walks through one stage, instruction by instruction: expands variables with the values visible at that line, applies
//! settings, and returns the work as steps.

use std::collections::BTreeMap;

use oci_spec::image::ImageConfiguration;

use super::context::BuildContext;
use super::declared;
use super::error::BadDockerfile;
use super::instruction::{CommandForm, CopyWords, Flag, Instruction, InstructionKind, SourceWord};
use super::lex::{Lex, Vars};
use super::mounts::RunMount;
use super::path;
use super::pattern::Ignore;
use super::plan::{Base, BuildStage, PROXIES};
use super::settings::{PATH, Settings, ports};
use super::source::Document;
use super::sources::{Manner, MatchedSources};
use super::step::{BuildStep, Copy, CopyFrom, InlineFile, Run, Script, StepKind};

/// LIMIT: bytes of all variables together; a program cannot be started with more than 2 MiB of them.
const ENV_MAX: usize = 1 << 20;
/// The folder for scripts of here-documents during a run: a tmpfs, never captured.
const SCRIPTS: &str = "/dev/shm/.atoll-run";

/// A stage being walked.
#[derive(Debug, Clone)]
pub struct Walk {
    stage: BuildStage,
    settings: Settings,
    /// Visible `ARG`s.
    args: Vars,
    shell: Vec<String>,
    /// Whether this stage has a `CMD`.
    has_cmd: bool,
    at: usize,
    number: u32,
    notes: Vec<String>,
}

type Outcome<T> = Result<T, BadDockerfile>;

impl Walk {
    pub(crate) fn new(stage: BuildStage, base: ImageConfiguration) -> Self {
        let mut settings = Settings { image: base };
        if stage.base == Base::Scratch && !settings.env().contains_key("PATH") {
            settings.set_env("PATH", PATH);
        }
        let (shell, number) = (stage.shell.clone(), stage.steps_before);
        Self { stage, settings, args: Vars::new(), shell, has_cmd: false, at: 0, number, notes: Vec::new() }
    }

    /// The next step; `None` after the last. Settings are applied before the step is returned.
    pub fn next(&mut self, context: &BuildContext) -> Outcome<Option<BuildStep>> {
        while let Some(instruction) = self.stage.instructions.get(self.at).cloned() {
            self.at += 1;
            let Some(kind) = self.kind(&instruction, &instruction.kind, context)? else { continue };
            let Instruction { text, line, .. } = instruction;
            if line == 0 {
                return Ok(Some(BuildStep { number: 0, text, line, kind }));
            }
            self.number += 1;
            return Ok(Some(BuildStep { number: self.number, text, line, kind }));
        }
        Ok(None)
    }

    /// The settings so far.
    pub fn config(&self) -> &ImageConfiguration {
        &self.settings.image
    }

    /// The final settings.
    pub fn into_config(self) -> ImageConfiguration {
        self.settings.image
    }

    /// Notes for the user about the steps so far; each is returned once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn kind(
        &mut self,
        at: &Instruction,
        kind: &InstructionKind,
        context: &BuildContext,
    ) -> Outcome<Option<StepKind>> {
        Ok(Some(match kind {
            InstructionKind::Arg(args) => {
                for (name, default) in args {
                    self.arg(at, name, default.as_deref())?;
                }
                return Ok(None);
            }
            InstructionKind::Run { flags, command, documents } => {
                StepKind::Run(self.run(at, flags, command, documents, context)?)
            }
            InstructionKind::Copy(words) => StepKind::Copy(self.copy(at, words, context)?),
            InstructionKind::Workdir(text) => {
                let path = path::join(&self.settings.workdir(), &self.expand(at, text)?);
                self.settings.set_workdir(path.clone());
                match self.is_declared() {
                    true => {
                        StepKind::Run(self.as_root(declared::MAKE_WORKDIR, &[path, self.settings.user()]))
                    }
                    false => StepKind::Workdir(path),
                }
            }
            InstructionKind::User(user) if self.is_declared() && declared::is_plain_user(user) => {
                let run = self.as_root(declared::MAKE_USER, std::slice::from_ref(user));
                self.settings.set_user(user.clone());
                StepKind::Run(run)
            }
            InstructionKind::As(user, inner) => {
                let own = self.settings.user();
                self.settings.set_user(user.clone());
                let kind = self.kind(at, inner, context);
                self.settings.set_user(own);
                return kind;
            }
            setting => {
                self.setting(at, setting)?;
                StepKind::Config
            }
        }))
    }

    /// Whether an SDK declared this build.
    fn is_declared(&self) -> bool {
        !self.stage.scope.expands
    }

    /// A built-in script, run as root without a network.
    fn as_root(&self, script: &str, args: &[String]) -> Run {
        let argv = ["/bin/sh", "-c", script, "sh"].map(str::to_owned);
        let env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
        let argv = argv.into_iter().chain(args.iter().cloned()).collect();
        Run { argv, env, user: "root".to_owned(), workdir: "/".to_owned(), ..Run::default() }
    }

    /// Applies an instruction that changes only settings.
    fn setting(&mut self, at: &Instruction, kind: &InstructionKind) -> Outcome<()> {
        match kind {
            InstructionKind::Env(pairs) => self.env(at, pairs)?,
            InstructionKind::Label(pairs) => {
                for (name, value) in pairs {
                    let (name, value) = (self.expand(at, name)?, self.expand(at, value)?);
                    self.settings.add_label(name, value);
                }
            }
            InstructionKind::User(text) => {
                let user = self.expand(at, text)?;
                if user.is_empty() {
                    return Err(bad(at, "the user has no name"));
                }
                self.settings.set_user(user);
            }
            InstructionKind::Cmd(command) => {
                self.has_cmd = true;
                let argv = self.argv(command);
                self.settings.set_cmd(argv);
            }
            InstructionKind::Entrypoint(command) => {
                let argv = self.argv(command);
                self.settings.set_entrypoint(argv, self.has_cmd);
            }
            InstructionKind::Expose(list) => {
                for text in list {
                    let text = self.expand(at, text)?;
                    let all = text.split_whitespace().map(ports).collect::<Result<Vec<_>, _>>();
                    self.settings.add_ports(all.map_err(|why| bad(at, why))?.concat());
                }
            }
            InstructionKind::Volume(list) => {
                let paths: Outcome<Vec<String>> = list.iter().map(|text| self.expand(at, text)).collect();
                let paths: Vec<String> = paths?.into_iter().filter(|path| !path.is_empty()).collect();
                self.settings.add_volumes(paths);
            }
            InstructionKind::StopSignal(text) => {
                let signal = self.expand(at, text)?;
                self.settings.set_stop_signal(signal);
            }
            InstructionKind::Shell(argv) => self.shell.clone_from(argv),
            InstructionKind::Maintainer(name) => {
                self.settings.image.set_author(Some(name.clone()));
            }
            InstructionKind::Healthcheck => {}
            InstructionKind::From { .. }
            | InstructionKind::Arg(_)
            | InstructionKind::Run { .. }
            | InstructionKind::Copy(_)
            | InstructionKind::Workdir(_)
            | InstructionKind::As(..) => {
                return Err(bad(at, "it is not expected here"));
            }
        }
        Ok(())
    }

    /// The visible variables: `ENV` has precedence over `ARG`, whichever came last.
    fn vars(&self) -> Vars {
        let mut vars = self.args.clone();
        vars.extend(self.settings.env());
        vars
    }

    fn expand(&self, at: &Instruction, text: &str) -> Outcome<String> {
        match self.stage.scope.expands {
            true => self.stage.scope.lex().expand(text, &self.vars()).map_err(|why| bad(at, why)),
            false => Ok(text.to_owned()),
        }
    }

    fn arg(&mut self, at: &Instruction, name: &str, default: Option<&str>) -> Outcome<()> {
        let name = self.expand(at, name)?;
        let scope = &self.stage.scope;
        let value = match (scope.given.get(&name), default) {
            (Some(given), _) => Some(given.clone()),
            (None, Some(default)) => Some(self.expand(at, default)?),
            (None, None) => scope.file.get(&name).cloned(),
        };
        if let Some(value) = value {
            self.args.insert(name, value);
        }
        Ok(())
    }

    /// All values see the environment before the line.
    fn env(&mut self, at: &Instruction, pairs: &[(String, String)]) -> Outcome<()> {
        // A declared value has variables but no Dockerfile quotes.
        let lex = Lex { escape: self.stage.scope.escape, document: !self.stage.scope.expands };
        let vars = self.vars();
        let read = |text: &String| lex.expand(text, &vars).map_err(|why| bad(at, why));
        let pairs: Outcome<Vec<(String, String)>> =
            pairs.iter().map(|(name, value)| Ok((read(name)?, read(value)?))).collect();
        for (name, value) in pairs? {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(bad(at, format!("{name:?} is not a valid variable name")));
            }
            self.settings.set_env(&name, &value);
        }
        let size: usize = self.settings.env().iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        match size > ENV_MAX {
            true => Err(bad(at, format!("all variables together are more than {ENV_MAX} bytes"))),
            false => Ok(()),
        }
    }

    fn argv(&self, command: &CommandForm) -> Vec<String> {
        match command {
            CommandForm::Exec(argv) => argv.clone(),
            CommandForm::Shell(text) => self.shell.iter().chain([text]).cloned().collect(),
        }
    }

    fn run(
        &mut self,
        at: &Instruction,
        flags: &[Flag],
        command: &CommandForm,
        documents: &[Document],
        context: &BuildContext,
    ) -> Outcome<Run> {
        let mut run = Run {
            user: self.settings.user(),
            workdir: self.settings.workdir(),
            network: true,
            ..Run::default()
        };
        (run.argv, run.script) = self.command(command, documents);
        (run.env, run.unkeyed) = self.run_env();
        for flag in flags {
            let value = self.expand(at, flag.value.as_deref().unwrap_or_default())?;
            match (flag.name.as_str(), value.as_str()) {
                ("network", "default") | ("security", "sandbox") => {}
                ("network", "none") => run.network = false,
                ("network", "host") => {
                    let hint = "a step has the network policy of its tenant";
                    return Err(bad(at, "--network=host is not supported").hint(hint));
                }
                ("mount", text) => self.mount(at, text, &mut run, context)?,
                (name, value) => return Err(bad(at, format!("--{name}={value} is not supported"))),
            }
        }
        Ok(run)
    }

    /// `ENV`, visible `ARG`s, proxies of the caller, and a `PATH`. Also returns the names of the proxies.
    fn run_env(&self) -> (BTreeMap<String, String>, Vec<String>) {
        let mut env = self.vars();
        let mut unkeyed = Vec::new();
        for name in PROXIES {
            if let Some(value) = self.stage.scope.given.get(name)
                && !env.contains_key(name)
            {
                env.insert(name.to_owned(), value.clone());
                unkeyed.push(name.to_owned());
            }
        }
        env.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        (env, unkeyed)
    }

    /// The command to run. A list runs as it is, a line by the shell. A single here-document is run by the shell, or by
    /// the program that its first line names; further ones are read by the shell.
    fn command(&self, command: &CommandForm, documents: &[Document]) -> (Vec<String>, Option<Script>) {
        let (CommandForm::Shell(text), Some(first)) = (command, documents.first()) else {
            return (self.argv(command), None);
        };
        if !text.starts_with("<<") || text.contains(char::is_whitespace) {
            let whole = documents.iter().fold(text.clone(), |whole, document| {
                format!("{whole}\n{}{}", document.content, document.name)
            });
            return (self.argv(&CommandForm::Shell(whole)), None);
        }
        let content = first.trimmed();
        let Some(program) = content.strip_prefix("#!") else {
            return (self.argv(&CommandForm::Shell(content)), None);
        };
        // As the kernel parses such a line: the program, and the rest as one argument.
        let line = program.lines().next().unwrap_or_default().trim();
        let (program, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let path = format!("{SCRIPTS}/{}", first.name.replace('/', "_"));
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        let argv = [Some(program), argument, Some(&path)].into_iter().flatten().map(str::to_owned).collect();
        (argv, Some(Script { path, content: content.into_bytes() }))
    }

    fn mount(&mut self, at: &Instruction, text: &str, run: &mut Run, context: &BuildContext) -> Outcome<()> {
        let mount = RunMount::parse(text, &run.workdir)
            .map_err(|(why, hint)| BadDockerfile { hint, ..bad(at, why) })?;
        match mount {
            RunMount::Secret(secret) => run.secrets.push(secret),
            RunMount::Scratch(scratch) => run.scratch.push(scratch),
            RunMount::Cache(scratch, note) => {
                run.scratch.push(scratch);
                self.notes.push(format!("line {}: {note}", at.line));
            }
            RunMount::Bind { from, source, target } => {
                let from = self.from(at, from.as_deref())?;
                let ask = CopyRequest {
                    from,
                    sources: vec![source],
                    dest: target,
                    into_folder: false,
                    ..CopyRequest::default()
                };
                run.binds.push(self.found(at, ask, context)?);
            }
        }
        Ok(())
    }

    fn from(&self, at: &Instruction, text: Option<&str>) -> Outcome<CopyFrom> {
        let Some(text) = text else { return Ok(CopyFrom::Context) };
        if let Some(stage) = self.stage.scope.stage(text, self.stage.number) {
            return Ok(CopyFrom::Stage(stage));
        }
        let own = self.stage.scope.names.contains_key(&text.to_ascii_lowercase());
        if own || text.parse::<usize>().is_ok() {
            return Err(bad(at, format!("--from={text} is not an earlier stage")));
        }
        let template = text.parse().map_err(|error| bad(at, format!("--from: {error}")))?;
        Ok(CopyFrom::Template(template))
    }

    fn copy(&mut self, at: &Instruction, words: &CopyWords, context: &BuildContext) -> Outcome<Copy> {
        let mut ask = CopyRequest { extracts: words.add, ..CopyRequest::default() };
        for flag in &words.flags {
            let value = flag.value.as_deref().unwrap_or("true");
            match flag.name.as_str() {
                "from" => ask.from = self.from(at, Some(value))?,
                "chown" => ask.chown = Some(self.expand(at, value)?).filter(|owner| !owner.is_empty()),
                "chmod" => ask.chmod = Some(mode(at, &self.expand(at, value)?)?),
                "exclude" => ask.exclude.push(self.expand(at, value)?),
                "parents" => ask.parents = value != "false",
                "unpack" => ask.extracts = value != "false",
                // A link concerns only Docker's storage; the files are the same.
                "link" | "keep-git-dir" => {}
                name => {
                    return Err(bad(at, format!("--{name} is for downloads, which ADD does not support")));
                }
            }
        }
        if self.is_declared() && ask.chown.is_none() {
            ask.chown = Some(self.settings.user()).filter(|user| !user.is_empty());
        }
        for source in &words.sources {
            match source {
                SourceWord::Path(text) => ask.sources.push(self.expand(at, text)?),
                SourceWord::Document(document) => ask.inline.push(self.inline(at, document)?),
            }
        }
        let dest = self.expand(at, &words.dest)?;
        if dest.is_empty() {
            return Err(bad(at, "the destination is empty"));
        }
        let many = words.sources.len() > 1;
        ask.into_folder = path::is_folder(&dest) || many;
        ask.dest = path::join(&self.settings.workdir(), &dest);
        if many && !path::is_folder(&dest) {
            return Err(bad(at, "several sources need a destination folder").hint(format!("write {dest}/")));
        }
        self.found(at, ask, context)
    }

    fn inline(&self, at: &Instruction, document: &Document) -> Outcome<InlineFile> {
        let content = document.trimmed();
        let content = match document.expands {
            true => {
                let lex = Lex { escape: self.stage.scope.escape, document: true };
                lex.expand(&content, &self.vars()).map_err(|why| bad(at, why))?
            }
            false => content,
        };
        Ok(InlineFile { name: path::base(&document.name).to_owned(), content: content.into_bytes() })
    }

    /// Finds the sources in the context; sources elsewhere are resolved when the step runs.
    fn found(&self, at: &Instruction, ask: CopyRequest, context: &BuildContext) -> Outcome<Copy> {
        let exclude = Ignore::of(&ask.exclude);
        let how = Manner { parents: ask.parents, extracts: ask.extracts, exclude: &exclude };
        let mut found = MatchedSources::default();
        let mut sources = Vec::new();
        for word in ask.sources {
            if word.is_empty() {
                return Err(bad(at, "a source is empty"));
            }
            if ask.extracts && is_remote(&word) {
                let hint = format!("download it in a RUN step: RUN wget -O file {word}");
                return Err(bad(at, format!("ADD does not download {word}")).hint(hint));
            }
            if ask.from != CopyFrom::Context {
                sources.push(match word.split_once("/./") {
                    // `--parents` keeps the part after it.
                    Some((above, kept)) if ask.parents => {
                        format!("{}/.{}", path::clean(above), path::clean(kept))
                    }
                    _ => path::clean(&word),
                });
                continue;
            }
            found.look(context, &word, how).map_err(|(why, hint)| BadDockerfile { hint, ..bad(at, why) })?;
            sources.push(word);
        }
        if ask.from == CopyFrom::Context {
            if found.tops + ask.inline.len() == 0 {
                return Err(bad(at, format!("no file in the build context matches {}", sources.join(" "))));
            }
            if found.tops > 1 && !ask.into_folder {
                let hint = format!("write {}/", ask.dest);
                return Err(bad(at, "several files match and need a destination folder").hint(hint));
            }
        }
        Ok(Copy {
            from: ask.from,
            sources,
            exclude: ask.exclude,
            parents: ask.parents,
            dest: ask.dest,
            into_folder: ask.into_folder,
            chown: ask.chown,
            chmod: ask.chmod,
            entries: found.entries,
            inline: ask.inline,
            extract: found.extract,
        })
    }
}

/// A copy as written, with variables expanded.
#[derive(Debug)]
struct CopyRequest {
    from: CopyFrom,
    sources: Vec<String>,
    exclude: Vec<String>,
    parents: bool,
    extracts: bool,
    dest: String,
    into_folder: bool,
    chown: Option<String>,
    chmod: Option<u32>,
    inline: Vec<InlineFile>,
}

impl Default for CopyRequest {
    fn default() -> Self {
        Self {
            from: CopyFrom::Context,
            sources: Vec::new(),
            exclude: Vec::new(),
            parents: false,
            extracts: false,
            dest: String::new(),
            into_folder: false,
            chown: None,
            chmod: None,
            inline: Vec::new(),
        }
    }
}

fn bad(at: &Instruction, why: impl Into<String>) -> BadDockerfile {
    let word = at.text.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    BadDockerfile::at(at.line, format!("{word}: {}", why.into()))
}

fn mode(at: &Instruction, text: &str) -> Outcome<u32> {
    let parsed = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777 && !text.starts_with('+'));
    parsed.ok_or_else(|| bad(at, format!("--chmod={text} is not octal")).hint("write it as 0644 or 755"))
}

fn is_remote(word: &str) -> bool {
    ["http://", "https://", "ftp://", "git://", "ssh://", "git@"].iter().any(|start| word.starts_with(start))
}
