//! The stages of a build, one after the other, as far as the target stage needs them. Each step is looked up in the
//! cache by the files below it and its definition; a step that is not in the cache runs in a sandbox.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use atoll_image::build::{
    BadContext, BadDockerfile, Base, BuildContext, BuildStep, Copy, CopyFrom, DeclaredBuild, Dockerfile,
    Plan, Run, StepKind, Walk,
};
use atoll_image::default_names;
use atoll_model::{
    BuildLevel, Code, CreateSandbox, ErrorKind, LimitsAsk, NetworkMode, NetworkPolicy, StartSettings,
    TemplateRef,
};
use oci_spec::image::ImageConfiguration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ask::{BuildSource, StartBuild, TEXT_BYTES};
use super::context::Staged;
use super::files::BuildFiles;
use super::finish::BuildResult;
use super::run::{BuildEnd, BuildJob};
use super::sandbox::{BuildSandboxes, StepSandbox, exactly};
use super::secrets::SecretMask;
use super::step::{self, StepContext};
use super::{context, lent_files, output};
use crate::sandboxes::printable;
use crate::{ServiceError, TemplateRecord};

/// LIMIT: characters of a step in a record and a log.
const TEXT_CHARS: usize = 200;
/// Compilers and package managers need more than a command line does. This does not apply to the disk, whose limit is
/// reserved in full.
const MEMORY_MIB: i64 = 1_024;
const PIDS: i64 = 1_024;
/// LIMIT: how long a step waits for capacity on this node.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A build whose plan is known.
pub(super) struct Stages<'a> {
    job: &'a BuildJob,
    sandboxes: &'a BuildSandboxes,
    context: Arc<BuildContext>,
    plan: Plan,
    hidden: SecretMask,
    stop: CancellationToken,
    deadline: Instant,
}

/// A completed stage, or a base.
#[derive(Clone)]
struct FinishedStage {
    files: BuildFiles,
    config: ImageConfiguration,
    /// The start settings for those that its config does not have.
    settings: StartSettings,
}

impl<'a> Stages<'a> {
    /// Reads the context and the steps.
    pub(super) async fn open(
        job: &'a BuildJob,
        sandboxes: &'a BuildSandboxes,
        stop: CancellationToken,
        deadline: Instant,
    ) -> Result<Self, BuildEnd> {
        let (folder, images) = (job.folder.clone(), Arc::clone(job.builds.inner.templates.images()));
        let (staged, ask) = (job.staged.clone(), job.ask.clone());
        let limit = job.builds.inner.config.build_context_bytes;
        let cancel = stop.clone();
        let read = tokio::task::spawn_blocking(move || {
            let context = match &staged {
                Staged::Sent => {
                    let tar = context::unfold(&folder, &images, limit)?;
                    let path = match &ask.source {
                        BuildSource::Dockerfile { path } => path.as_deref(),
                        BuildSource::Text(_) | BuildSource::Declared(_) => None,
                    };
                    BuildContext::open_for(&tar, path, &cancel).map_err(bad_context)?
                }
                Staged::Uploads(hashes) => {
                    let tar = context::gathered(&folder, hashes, &images, limit, &cancel)?;
                    BuildContext::open(&tar, &cancel).map_err(bad_context)?
                }
                Staged::Merged(hashes) => {
                    let tar = context::merged(&folder, hashes, &images, limit)?;
                    BuildContext::open(&tar, &cancel).map_err(bad_context)?
                }
                Staged::Nothing => BuildContext::empty(),
            };
            let plan = plan_of(&ask, &context)?;
            Ok::<_, ServiceError>((context, plan))
        });
        let (context, plan) = read.await.map_err(|cause| {
            ServiceError::new(Code::Internal, "reading the context ended early").caused_by(cause)
        })??;
        let steps = plan.steps();
        job.live.build.send_modify(|build| build.steps = steps);
        let hidden = SecretMask::of(&job.ask.secrets);
        let stages = Self { job, sandboxes, context: Arc::new(context), plan, hidden, stop, deadline };
        stages.note(stages.plan.notes.clone());
        Ok(stages)
    }

    /// Builds every stage that is needed.
    pub(super) async fn build(&self) -> Result<BuildResult, BuildEnd> {
        let mut done: HashMap<usize, FinishedStage> = HashMap::new();
        let mut last = None;
        for stage in self.plan.order() {
            let made = self.stage(stage, &done).await?;
            done.insert(stage, made.clone());
            last = Some(made);
        }
        let Some(FinishedStage { files, config, settings }) = last else {
            return Err(ServiceError::new(Code::InvalidRequest, "there is nothing to build").into());
        };
        Ok(BuildResult { files, config, settings })
    }
}

impl Stages<'_> {
    async fn stage(
        &self,
        at: usize,
        done: &HashMap<usize, FinishedStage>,
    ) -> Result<FinishedStage, BuildEnd> {
        let stage = self.plan.stage(at);
        let begin = match &stage.base {
            Base::Template(reference) => {
                let found = self.template(reference, stage.platform.as_deref()).await;
                found.map_err(|ended| at_line(ended, stage.line, &format!("FROM {reference}")))?
            }
            Base::Stage(_) | Base::Scratch => self.base(&stage.base, done).await?,
        };
        let config = match self.declared() {
            Some(_) => with_defaults(begin.config, &begin.settings),
            None => begin.config,
        };
        let mut walk = stage.walk(config);
        let mut files = begin.files;
        loop {
            let next;
            (walk, next) = self.next(walk).await?;
            let Some((step, content)) = next else { break };
            self.begins(&step);
            let is_declared = self.declared().is_some();
            let after = self.step(&step, &content, files, done).await;
            files = after.map_err(|ended| at_step(ended, &step, is_declared))?;
        }
        self.note(walk.take_notes());
        Ok(FinishedStage { files, config: walk.into_config(), settings: begin.settings })
    }

    /// The next step, and the files that it takes from the context. Patterns are matched against all files of the
    /// context, so this runs on a blocking thread.
    async fn next(&self, mut walk: Walk) -> Result<(Walk, Option<(BuildStep, String)>), BuildEnd> {
        let context = Arc::clone(&self.context);
        // A declared step has a number in place of a line.
        let is_declared = self.declared().is_some();
        let looked = tokio::task::spawn_blocking(move || {
            let step =
                walk.next(&context).map_err(|bad| match (is_declared, BuildEnd::from(bad_steps(&bad))) {
                    (true, BuildEnd::Failed(mut failure)) => {
                        failure.step = u32::try_from(bad.line).ok();
                        BuildEnd::Failed(failure)
                    }
                    (_, ended) => ended,
                })?;
            let step = step.map(|step| {
                let content = context.hash_of(&step);
                (step, content)
            });
            Ok((walk, step))
        });
        looked.await.unwrap_or_else(|cause| {
            Err(ServiceError::new(Code::Internal, "reading a step ended early").caused_by(cause).into())
        })
    }

    /// The base of a stage or a copy.
    async fn base(
        &self,
        base: &Base,
        done: &HashMap<usize, FinishedStage>,
    ) -> Result<FinishedStage, BuildEnd> {
        match base {
            Base::Stage(at) => done.get(at).cloned().ok_or_else(|| {
                ServiceError::new(Code::Internal, "a stage was needed before it was done").into()
            }),
            Base::Scratch => {
                let files =
                    BuildFiles::of(self.job.builds.inner.templates.images(), None, Vec::new()).await?;
                Ok(FinishedStage {
                    files,
                    config: ImageConfiguration::default(),
                    settings: StartSettings::default(),
                })
            }
            Base::Template(reference) => self.template(reference, None).await,
        }
    }

    /// A template of the tenant, a general one, or an image.
    async fn template(
        &self,
        reference: &TemplateRef,
        platform: Option<&str>,
    ) -> Result<FinishedStage, BuildEnd> {
        let (templates, ask) = (&self.job.builds.inner.templates, &self.job.ask);
        let log = Arc::clone(&self.job.live.log);
        let progress: crate::Progress = Arc::new(move |progressed| {
            if let crate::Progressed::Step(message) = progressed {
                log.info(0, message);
            }
        });
        let platform = platform.or(ask.platform.as_deref());
        let found =
            templates.base_version(&self.job.who, reference, ask.auth.clone(), platform, progress).await;
        let (record, _held) = found.map_err(|error| nothing_of(reference, error))?;
        refuse_stand_in(reference, &record)?;
        let images = templates.images();
        if record.tenant.is_some() || record.kind == "image" {
            let (files, config, settings) = BuildFiles::in_version(images, &record.version).await?;
            return Ok(FinishedStage { files, config, settings: inherited(settings) });
        }
        let base = Some((record.name.clone(), record.version.clone()));
        let files = BuildFiles::of(images, base, Vec::new()).await?;
        let (user, workdir) = match &ask.base_user {
            Some(of) if record.is_called(&of.base) => (of.user.clone(), of.workdir.clone()),
            Some(_) | None => (record.user.clone(), record.workdir.clone()),
        };
        let settings = StartSettings { user: Some(user), workdir: Some(workdir), ..StartSettings::default() };
        Ok(FinishedStage { files, config: with_env(&record.env), settings })
    }

    /// Records notes for the author of the build.
    fn note(&self, notes: Vec<String>) {
        for note in &notes {
            self.job.live.log.say(BuildLevel::Warn, 0, note.clone());
        }
        self.job.live.build.send_modify(|build| build.notes.extend(notes));
    }

    /// The declared steps of an SDK, if the source is one.
    fn declared(&self) -> Option<&DeclaredBuild> {
        match &self.job.ask.source {
            BuildSource::Declared(declared) => Some(declared),
            BuildSource::Dockerfile { .. } | BuildSource::Text(_) => None,
        }
    }

    fn begins(&self, step: &BuildStep) {
        let text = shown(&step.text);
        let steps = self.plan.steps();
        if step.number == 0 {
            self.job.live.log.info(0, "preparing the base");
            return;
        }
        self.job.live.log.info(step.number, format!("[{}/{steps}] {text}", step.number));
        self.job.live.build.send_modify(|build| {
            build.step = step.number;
            build.step_text = text;
        });
    }
}

impl Stages<'_> {
    /// The files after a step.
    async fn step(
        &self,
        step: &BuildStep,
        content: &str,
        files: BuildFiles,
        done: &HashMap<usize, FinishedStage>,
    ) -> Result<BuildFiles, BuildEnd> {
        let images = self.job.builds.inner.templates.images();
        let sources = match &step.kind {
            StepKind::Copy(copy) => vec![self.source(copy, done).await?],
            StepKind::Run(run) => {
                let mut sources = Vec::with_capacity(run.binds.len());
                for bind in &run.binds {
                    sources.push(self.source(bind, done).await?);
                }
                sources
            }
            StepKind::Workdir(_) => Vec::new(),
            StepKind::Config => return Ok(files),
        };
        // Files from other sources are part of the key by their whole content.
        let elsewhere = sources.iter().flatten().map(BuildFiles::id);
        let content = std::iter::once(content.to_owned()).chain(elsewhere).collect::<Vec<_>>().join(" ");
        let key = atoll_image::build::cache_key(&files.id(), step, &content, &self.job.who.tenant);
        let forced = self.declared().is_some_and(|declared| declared.forces(step.number));
        if !(self.job.ask.no_cache || forced)
            && let Some(cached) = BuildFiles::cached(images, &key).await
        {
            self.job.live.log.info(step.number, "cached");
            self.job.live.build.send_modify(|build| build.cached_steps += 1);
            return Ok(cached);
        }
        let begun = Instant::now();
        let sandbox = match &step.kind {
            StepKind::Run(run) => self.run(step, run, &files, &sources).await?,
            StepKind::Copy(copy) => {
                let sandbox = self.sandbox(&files, false).await?;
                self.put(&sandbox, copy, sources.first().and_then(Option::as_ref)).await?;
                sandbox
            }
            StepKind::Workdir(path) => {
                let sandbox = self.sandbox(&files, false).await?;
                step::make_folder(&sandbox.agent, path).await?;
                sandbox
            }
            StepKind::Config => return Ok(files),
        };
        let changes = sandbox.changes().await?;
        let after = files.with(images, changes, &self.stop).await?;
        drop(sandbox);
        after.remember(images, &key).await;
        self.job.live.log.info(step.number, format!("done in {} ms", begun.elapsed().as_millis()));
        Ok(after)
    }

    /// Runs a command in a sandbox with these files, and returns that sandbox.
    async fn run(
        &self,
        step: &BuildStep,
        run: &Run,
        files: &BuildFiles,
        sources: &[Option<BuildFiles>],
    ) -> Result<StepSandbox, BuildEnd> {
        let mut over = BTreeSet::new();
        let mut sandbox = self.sandbox(files, run.network).await?;
        let hidden = lent_files::in_the_way(&sandbox.agent, run, &over).await?;
        if !hidden.is_empty() {
            over.clone_from(&hidden);
            self.job.live.cover(hidden);
            let covered = self.sandbox(files, run.network).await;
            self.job.live.cover(BTreeSet::new());
            sandbox = covered?;
        }
        let lent = lent_files::lend(&sandbox.agent, run, &over).await?;
        for (bind, source) in run.binds.iter().zip(sources) {
            self.put(&sandbox, bind, source.as_ref()).await?;
        }
        let told = StepContext {
            ask: &self.job.ask,
            log: &self.job.live.log,
            hidden: &self.hidden,
            number: step.number,
            deadline: self.deadline,
        };
        step::run(&told, &sandbox.agent, run).await?;
        lent.give_back(&sandbox.agent).await?;
        Ok(sandbox)
    }

    /// Puts files into a sandbox: from the context, or from another stage or template.
    async fn put(&self, to: &StepSandbox, copy: &Copy, source: Option<&BuildFiles>) -> Result<(), BuildEnd> {
        match source {
            None => step::copy_in(&to.agent, &self.context, copy).await?,
            Some(source) => {
                let from = self.sandbox(source, false).await?;
                step::copy_over(&from.agent, &to.agent, copy).await?;
            }
        }
        Ok(())
    }

    /// The source of a copy; `None`: the context.
    async fn source(
        &self,
        copy: &Copy,
        done: &HashMap<usize, FinishedStage>,
    ) -> Result<Option<BuildFiles>, BuildEnd> {
        match &copy.from {
            CopyFrom::Context => Ok(None),
            CopyFrom::Stage(at) => Ok(Some(self.base(&Base::Stage(*at), done).await?.files)),
            CopyFrom::Template(reference) => Ok(Some(self.template(reference, None).await?.files)),
        }
    }

    /// A sandbox of the tenant with exactly these files.
    async fn sandbox(&self, files: &BuildFiles, reaches: bool) -> Result<StepSandbox, BuildEnd> {
        let ask = &self.job.ask;
        let network = match reaches {
            true => ask.network.clone(),
            // Only commands have network access.
            false => Some(NetworkPolicy { mode: NetworkMode::DenyAll, ..NetworkPolicy::default() }),
        };
        let left = self.deadline.saturating_duration_since(Instant::now()).as_secs();
        let spec = CreateSandbox {
            template: Some(exactly(&ask.template.name, &files.version)),
            network,
            limits: limits(ask.limits),
            user: Some("root".to_owned()),
            // If the server dies and never returns, the sandbox still ends by its timeout.
            timeout_s: Some(left + 60),
            ..CreateSandbox::default()
        };
        let patience = Instant::now() + PATIENCE;
        let mut waits = false;
        loop {
            match self.sandboxes.make(spec.clone()).await {
                Ok(sandbox) => return Ok(sandbox),
                // Other sandboxes end sooner or later; a build need not fail for a short lack of capacity.
                Err(error) if error.code == Code::NoCapacity && Instant::now() < patience => {
                    if !std::mem::replace(&mut waits, true) {
                        self.job.live.log.say(BuildLevel::Warn, 0, format!("waiting for capacity: {error}"));
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The plan of the request; blocks.
fn plan_of(ask: &StartBuild, context: &BuildContext) -> Result<Plan, ServiceError> {
    let text = match &ask.source {
        BuildSource::Text(text) => text.clone(),
        BuildSource::Dockerfile { path } => dockerfile(context, path.as_deref().unwrap_or("Dockerfile"))?,
        BuildSource::Declared(declared) => {
            return Plan::declared(declared, context).map_err(|bad| bad_steps(&bad));
        }
    };
    let parsed = Dockerfile::parse(&text).map_err(|bad| bad_steps(&bad))?;
    Plan::of(&parsed, &ask.args, ask.target.as_deref(), context).map_err(|bad| bad_steps(&bad))
}

fn dockerfile(context: &BuildContext, path: &str) -> Result<String, ServiceError> {
    let unreadable = |cause: std::io::Error| {
        let message = format!("the Dockerfile {} cannot be read as text", printable(path));
        ServiceError::new(Code::InvalidRequest, message).caused_by(cause)
    };
    let found = context.read_text(path, TEXT_BYTES).map_err(unreadable)?;
    found.ok_or_else(|| {
        let message = format!("there is no {} in the context", printable(path));
        ServiceError::new(Code::InvalidRequest, message).hint("set its path with dockerfile_path, or -f")
    })
}

fn bad_steps(bad: &BadDockerfile) -> ServiceError {
    let error = ServiceError::new(Code::InvalidRequest, bad.to_string());
    match &bad.hint {
        Some(hint) => error.hint(hint.clone()),
        None => error,
    }
}

pub(super) fn bad_context(bad: BadContext) -> ServiceError {
    let code = match bad.kind() {
        ErrorKind::Invalid => Code::InvalidRequest,
        ErrorKind::Exhausted => Code::PayloadTooLarge,
        _ => Code::Internal,
    };
    ServiceError::new(code, bad.to_string()).caused_by(bad)
}

/// The settings that a template inherits from its base: not the start command.
fn inherited(settings: StartSettings) -> StartSettings {
    StartSettings {
        user: settings.user,
        workdir: settings.workdir,
        env: settings.env,
        port: settings.port,
        ..StartSettings::default()
    }
}

/// Declared steps begin with the user and the working directory of their base's sandboxes.
fn with_defaults(mut config: ImageConfiguration, settings: &StartSettings) -> ImageConfiguration {
    let mut said = config.config().clone().unwrap_or_default();
    if said.user().as_deref().unwrap_or_default().is_empty() {
        said.set_user(settings.user.clone());
    }
    if said.working_dir().as_deref().unwrap_or_default().is_empty() {
        said.set_working_dir(settings.workdir.clone());
    }
    config.set_config(Some(said));
    config
}

/// A config with only this environment.
fn with_env(env: &BTreeMap<String, String>) -> ImageConfiguration {
    let mut said = oci_spec::image::Config::default();
    said.set_env(Some(env.iter().map(|(name, value)| format!("{name}={value}")).collect()));
    let mut config = ImageConfiguration::default();
    config.set_config(Some(said));
    config
}

/// The requested limits, or defaults that are sufficient for builds.
fn limits(ask: LimitsAsk) -> LimitsAsk {
    LimitsAsk {
        cpu: ask.cpu,
        memory_mib: ask.memory_mib.or(Some(MEMORY_MIB)),
        disk_mib: ask.disk_mib,
        pids: ask.pids.or(Some(PIDS)),
    }
}

/// Adds the step to the message.
fn at_step(ended: BuildEnd, step: &BuildStep, is_declared: bool) -> BuildEnd {
    match ended {
        BuildEnd::Cancelled => BuildEnd::Cancelled,
        BuildEnd::Failed(mut failure) => {
            if failure.step.is_none() || failure.exit_code.is_some() {
                let place = match step.line {
                    0 => "preparing the base".to_owned(),
                    number if is_declared => format!("step {number}"),
                    line => format!("line {line}"),
                };
                failure.message = format!("{place}, {}: {}", shown(&step.text), failure.message);
            }
            failure.step = Some(step.number);
            BuildEnd::Failed(failure)
        }
    }
}

/// Adds the line of the Dockerfile to the message.
fn at_line(ended: BuildEnd, line: usize, text: &str) -> BuildEnd {
    match ended {
        BuildEnd::Failed(mut failure) if line > 0 => {
            failure.message = format!("line {line}, {text}: {}", failure.message);
            BuildEnd::Failed(failure)
        }
        ended => ended,
    }
}

/// A name that is neither a stage nor a template was pulled as an image; for a typing error the message of that alone
/// does not help.
fn nothing_of(reference: &TemplateRef, error: ServiceError) -> ServiceError {
    match error.code {
        Code::TemplateNotFound | Code::ImageNotFound | Code::RegistryUnavailable => {
            let message = format!(
                "no stage or template is named {reference}, and it could not be pulled as an image: {}",
                error.message
            );
            ServiceError { message, ..error }
        }
        _ => error,
    }
}

/// A build is permanent: it must not begin from the machine's own files because a default template is not made yet.
fn refuse_stand_in(reference: &TemplateRef, found: &TemplateRecord) -> Result<(), ServiceError> {
    let Some([real, ..]) = default_names::candidates(&reference.name).filter(|_| found.kind == "host") else {
        return Ok(());
    };
    let message =
        format!("template {reference} is not made yet, and a build cannot start from template host");
    Err(ServiceError::new(Code::TemplateNotFound, message)
        .hint(format!("make it: atoll template make {real}")))
}

/// A step as a line.
fn shown(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut shown: String = output::clean(line.as_bytes()).chars().take(TEXT_CHARS).collect();
    if shown.len() < text.trim_end().len() {
        shown.push('…');
    }
    shown
}
