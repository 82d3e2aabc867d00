//! Runs one build from its turn to its end. In every case, at the end no part of it runs, staged files are removed, and
//! its record has the result; only then followers are released.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Build, BuildFailure, BuildLevel, BuildStatus, Code, Principal};
use futures::FutureExt;
use tokio::time::Instant;

use super::Builds;
use super::ask::StartBuild;
use super::context::Staged;
use super::queue::{BuildTurn, Live, TURN_MAX};
use super::sandbox::BuildSandboxes;
use super::stages::Stages;
use super::{context, finish};
use crate::ServiceError;

/// A build to run.
pub(super) struct BuildJob {
    pub(super) builds: Builds,
    pub(super) who: Principal,
    pub(super) ask: StartBuild,
    pub(super) live: Arc<Live>,
    /// The files that it may copy from.
    pub(super) staged: Staged,
    pub(super) folder: PathBuf,
}

/// Why a build did not become a template.
pub(super) enum BuildEnd {
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed(Box<BuildFailure>),
}

impl From<ServiceError> for BuildEnd {
    fn from(error: ServiceError) -> Self {
        if error.kind() == atoll_model::ErrorKind::Internal {
            tracing::error!(%error, cause = ?error.cause, "a build failed with an internal error");
        }
        Self::Failed(Box::new(BuildFailure {
            code: error.code,
            message: error.message,
            hint: error.hint,
            step: None,
            exit_code: None,
            tail: Vec::new(),
        }))
    }
}

impl BuildJob {
    pub(super) async fn run(self) {
        let id = self.live.build.borrow().id.clone();
        let sandboxes =
            BuildSandboxes::new(self.builds.inner.sandboxes.clone(), self.who.clone(), id.clone());
        let work = AssertUnwindSafe(self.work(&sandboxes)).catch_unwind();
        let outcome = work.await.unwrap_or_else(|_| {
            Err(ServiceError::new(
                Code::Internal,
                "the build failed because of an internal error of the server",
            )
            .into())
        });
        sandboxes.clear().await;
        let folder = self.folder.clone();
        // It cannot be cancelled; the next start of the server removes files that it cannot.
        let _ = tokio::task::spawn_blocking(move || context::remove_staged(&folder)).await;
        end(&self.builds, &self.live, outcome).await;
        self.builds.inner.queue.remove(&id);
    }

    /// Waits for its turn and builds, until it is done, cancelled or late.
    async fn work(&self, sandboxes: &BuildSandboxes) -> Result<String, BuildEnd> {
        let (inner, cancel) = (&self.builds.inner, &self.live.cancel);
        let turn = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(BuildEnd::Cancelled),
            turn = inner.queue.turn(&self.who.tenant) => turn,
        };
        let _turn = KeptTurn::new(&self.live, turn);
        let deadline = Instant::now() + self.timeout();
        let started = inner.clock.now();
        self.live.build.send_modify(|build| {
            build.status = BuildStatus::Building;
            build.started_at = Some(started);
        });
        let row = self.live.build.borrow().clone();
        // Nothing of a collection may take what this looks at before it has a name.
        let _working = inner.templates.images().begin();
        // Blocking work is stopped when this future is dropped.
        let stop = cancel.child_token();
        let _stops = stop.clone().drop_guard();
        let built = async {
            inner.store.put_build(row).await.map_err(ServiceError::from)?;
            let stages = Stages::open(self, sandboxes, stop, deadline).await?;
            let made = stages.build().await?;
            finish::finish(self, sandboxes, made, deadline).await
        };
        let next = async {
            tokio::time::sleep(TURN_MAX).await;
            self.live.give_up_turn();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(BuildEnd::Cancelled),
            () = tokio::time::sleep_until(deadline) => Err(self.late()),
            built = built => built,
            () = next => Err(self.late()),
        }
    }

    fn timeout(&self) -> Duration {
        self.ask.timeout(self.builds.inner.config.build_timeout)
    }

    fn late(&self) -> BuildEnd {
        let message = format!("the build did not finish within {} s", self.timeout().as_secs());
        ServiceError::new(Code::DeadlineExceeded, message).hint("increase timeout_s").into()
    }
}

/// The turn of a build, which ends when this is dropped at the latest.
struct KeptTurn<'a>(&'a Live);

impl<'a> KeptTurn<'a> {
    fn new(live: &'a Live, turn: BuildTurn) -> Self {
        live.keep_turn(turn);
        Self(live)
    }
}

impl Drop for KeptTurn<'_> {
    fn drop(&mut self) {
        self.0.give_up_turn();
    }
}

/// Says how it ended: in the log, in the store, and to whoever watches.
pub(super) async fn end(builds: &Builds, live: &Live, outcome: Result<String, BuildEnd>) {
    let inner = &builds.inner;
    let mut build = live.build.borrow().clone();
    match outcome {
        Ok(version) => {
            live.log.info(0, format!("{} is ready: {version}", build.template));
            build.status = BuildStatus::Ready;
            build.version = Some(version);
        }
        Err(BuildEnd::Cancelled) if inner.closing.is_cancelled() => {
            let ended = ServiceError::new(Code::Internal, "the server ended while this was built")
                .hint("build it again; what was built is cached");
            fail(live, &mut build, ended.into());
        }
        Err(BuildEnd::Cancelled) => {
            live.log.say(BuildLevel::Warn, 0, "cancelled");
            build.status = BuildStatus::Cancelled;
        }
        Err(failed @ BuildEnd::Failed(_)) => fail(live, &mut build, failed),
    }
    build.ended_at = Some(inner.clock.now());
    tracing::info!(build = %build.id, status = build.status.as_str(), "a build ended");
    if let Err(error) = inner.store.put_build(build.clone()).await {
        tracing::error!(build = %build.id, %error, "the end of a build could not be recorded; the next start marks it as failed");
    }
    live.build.send_replace(build);
}

fn fail(live: &Live, build: &mut Build, ended: BuildEnd) {
    let BuildEnd::Failed(mut failure) = ended else { return };
    // A timeout and similar ends have no step of their own.
    failure.step = failure.step.or(Some(build.step)).filter(|step| *step > 0);
    live.log.say(BuildLevel::Error, failure.step.unwrap_or_default(), failure.message.clone());
    if let Some(hint) = &failure.hint {
        live.log.say(BuildLevel::Error, failure.step.unwrap_or_default(), format!("hint: {hint}"));
    }
    build.status = BuildStatus::Failed;
    build.failure = Some(*failure);
}
