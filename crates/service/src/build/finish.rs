//! The end of a build: makes the version with its settings, tries its start command once, and publishes its names.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{AgentClient, ProcessEvent, ProcessStream};
use atoll_image::images::{NewVersion, start_settings};
use atoll_model::{
    BuildFailure, BuildLevel, Code, CreateSandbox, MadeFrom, ReadyCheck, Snapshot, StartSettings, TemplateRef,
};
use oci_spec::image::ImageConfiguration;
use tokio::time::Instant;

use super::files::{BuildFiles, blocking};
use super::output::StepOutput;
use super::ready::{Looked, until_ready};
use super::run::{BuildEnd, BuildJob};
use super::sandbox::{BuildSandboxes, exactly};
use super::secrets::SecretMask;
use crate::ServiceError;
use crate::agent::COMMAND_TAG;
use crate::snapshots::SnapshotRequest;
use crate::templates::Publish;

/// LIMIT: the default time for a start command to be ready; the build's own deadline may be earlier.
const READY: Duration = Duration::from_secs(10 * 60);
/// Time to record why it was not ready, before the build's own deadline ends everything.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// LIMIT: the process ids among which the first process of a new sandbox is searched; the agent's own threads have ids
/// too.
const FIRST_PIDS: std::ops::Range<u32> = 2..64;

/// The step that a record shows while the result is started once.
pub const AFTER_THE_STEPS: &str = "start, until it is ready";

/// The result of the steps.
pub(super) struct BuildResult {
    pub(super) files: BuildFiles,
    pub(super) config: ImageConfiguration,
    /// The settings of its base, for those that its config does not have.
    pub(super) settings: StartSettings,
}

/// Makes a template of the result; returns the version.
pub(super) async fn finish(
    job: &BuildJob,
    sandboxes: &BuildSandboxes,
    made: BuildResult,
    deadline: Instant,
) -> Result<String, BuildEnd> {
    let images = job.builds.inner.templates.images();
    let settings = over(made.settings, start_settings(&made.config));
    let settings = over(settings, job.ask.settings.clone());
    let (command, ready) = (settings.command.is_some(), settings.ready.clone());
    let config = labelled(made.config, &job.ask.labels);
    let new = NewVersion { base: made.files.base, layers: made.files.layers, config, settings };
    let version = blocking(images, move |images| images.put_version(new)).await?;
    let own = version.clone();
    let _held = blocking(images, move |images| images.hold(&own)).await?;
    let warm = match ready {
        Some(check) if command && !is_warm(job, &version).await => {
            try_out(job, sandboxes, &version, &check, deadline).await?
        }
        Some(_) | None => None,
    };
    let kept = warm.clone();
    let published = job.builds.inner.templates.publish(Publish {
        tenant: &job.who.tenant,
        template: &job.ask.template,
        tags: &job.ask.tags,
        version: &version,
        made_from: MadeFrom::Build,
        manifest: None,
        warm,
        notes: job.live.build.borrow().notes.clone(),
    });
    if let Err(error) = published.await {
        if let Some(snapshot) = kept
            && let Err(error) = crate::snapshots::remove(&job.builds.inner, snapshot).await
        {
            tracing::warn!(%error, "the warm start of an unpublished template could not be removed");
        }
        return Err(error.into());
    }
    Ok(version)
}

/// The configuration with further labels.
fn labelled(mut config: ImageConfiguration, labels: &BTreeMap<String, String>) -> ImageConfiguration {
    if labels.is_empty() {
        return config;
    }
    let mut said = config.config().clone().unwrap_or_default();
    let mut all = said.labels().clone().unwrap_or_default();
    all.extend(labels.iter().map(|(name, value)| (name.clone(), value.clone())));
    said.set_labels(Some(all));
    config.set_config(Some(said));
    config
}

/// Whether the template was built before with the same result, and has a warm start already.
async fn is_warm(job: &BuildJob, version: &str) -> bool {
    let reference =
        TemplateRef { name: job.ask.template.name.clone(), tag: None, digest: Some(version.to_owned()) };
    let known = job.builds.inner.templates.get(&job.who, &reference.to_string()).await;
    known.is_ok_and(|known| known.warm && known.version == version)
}

/// Starts one sandbox of the template, waits until it is ready, and keeps its state as a warm start if possible.
async fn try_out(
    job: &BuildJob,
    sandboxes: &BuildSandboxes,
    version: &str,
    check: &ReadyCheck,
    deadline: Instant,
) -> Result<Option<Snapshot>, BuildEnd> {
    // From here on the build waits, possibly for minutes. Other builds may run meanwhile.
    job.live.give_up_turn();
    let log = &job.live.log;
    log.info(0, "starting it once, until it is ready");
    let last = after_the_steps(job);
    let template = Some(exactly(&job.ask.template.name, version));
    let sandbox = sandboxes.make(CreateSandbox { template, ..CreateSandbox::default() }).await?;
    let begun = Instant::now();
    let inner = &job.builds.inner;
    let provider = inner.providers.of(&sandbox.lease())?;
    let looked = Looked { provider: &provider, target: sandbox.target(), agent: &sandbox.agent };
    let limit = job.ask.ready_timeout_s.map_or(READY, Duration::from_secs);
    let hidden = SecretMask::of(&job.ask.secrets);
    let mut output = StepOutput::new(log, &hidden, 0);
    let ready = {
        let command = watched(&sandbox.agent, &mut output);
        tokio::select! {
            ready = until_ready(&looked, check, (begun + limit).min(deadline - LAST_WORDS)) => ready.map_err(|late| (late, None)),
            code = command => {
                let message = format!("the start command exited with {code} before it was ready");
                Err((ServiceError::new(Code::InvalidRequest, message), Some(code)))
            }
        }
    };
    let tail = output.end();
    if let Err((error, exit_code)) = ready {
        let ServiceError { code, message, hint, .. } = error;
        return Err(BuildEnd::Failed(Box::new(BuildFailure {
            code,
            message,
            hint,
            step: None,
            exit_code,
            tail,
        })));
    }
    last.restore(job);
    log.info(0, format!("ready after {} ms", begun.elapsed().as_millis()));
    if let Some(why) = inner.sandboxes.no_memory(&sandbox.lease()) {
        log.say(BuildLevel::Warn, 0, format!("each new sandbox starts the command itself: {why}"));
        return Ok(None);
    }
    match inner.sandboxes.take(sandbox.handle(), SnapshotRequest::transient(true, None)).await {
        Ok(snapshot) => {
            log.info(0, "new sandboxes start with the processes that run now");
            Ok(Some(snapshot))
        }
        // This is slower, but correct: each sandbox starts the command and waits until it is ready.
        Err(error) => {
            log.say(BuildLevel::Warn, 0, format!("each new sandbox starts the command itself: {error}"));
            Ok(None)
        }
    }
}

/// Records what happens after the last step: a failure then belongs to no step.
struct LastStep {
    number: u32,
    text: String,
}

fn after_the_steps(job: &BuildJob) -> LastStep {
    let last = {
        let build = job.live.build.borrow();
        LastStep { number: build.step, text: build.step_text.clone() }
    };
    job.live.build.send_modify(|build| {
        build.step = 0;
        build.step_text = AFTER_THE_STEPS.to_owned();
    });
    last
}

impl LastStep {
    fn restore(self, job: &BuildJob) {
        job.live.build.send_modify(|build| {
            build.step = self.number;
            build.step_text = self.text;
        });
    }
}

/// Logs the output of the start command, and ends if the command failed. A command that ended with 0 may have started
/// others.
async fn watched(agent: &AgentClient, output: &mut StepOutput<'_>) -> i32 {
    if let Some(mut stream) = attached(agent).await {
        while let Some(Ok(event)) = stream.next().await {
            match event {
                ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => output.stdout(&data),
                ProcessEvent::Stderr(data) => output.stderr(&data),
                ProcessEvent::Dropped(bytes) => output.lost(bytes),
                ProcessEvent::Exit(status) if status.shell_code() != 0 => return status.shell_code(),
                ProcessEvent::Exit(_) => break,
            }
        }
    }
    std::future::pending().await
}

/// The start command with its output so far, even if it has already ended.
async fn attached(agent: &AgentClient) -> Option<ProcessStream> {
    let running = agent.list().await.ok()?;
    if let Some(command) = running.iter().find(|process| process.tag == COMMAND_TAG) {
        return agent.attach(command.pid, true).await.ok();
    }
    // No other process was started in the sandbox yet, and the agent still knows ended processes.
    for pid in FIRST_PIDS {
        if let Ok(stream) = agent.attach(pid, true).await {
            return Some(stream);
        }
    }
    None
}

/// Merges settings field by field; the second has precedence.
fn over(below: StartSettings, above: StartSettings) -> StartSettings {
    let mut env = below.env;
    env.extend(above.env);
    StartSettings {
        user: above.user.or(below.user),
        workdir: above.workdir.or(below.workdir),
        env,
        command: above.command.or(below.command),
        ready: above.ready.or(below.ready),
        port: above.port.or(below.port),
        limits: above.limits,
        pool: above.pool.or(below.pool),
    }
}
