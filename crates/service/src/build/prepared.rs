//! A build between its request and its begin, and waiting for its end. A sandbox that is created together with a build
//! is recorded in between, so that no build runs for a refused sandbox.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_model::{Build, BuildId, BuildStatus, Code, Principal};
use atoll_store::Store;
use tokio::sync::watch;

use super::Builds;
use super::ask::{BuildContext, BuildSource, StartBuild};
use super::context::{Staged, Staging, folder};
use super::log::Log;
use super::queue::{Admitted, BuildQueue};
use super::run::BuildJob;
use crate::ServiceError;

/// A build whose context is on disk. It is not visible yet; dropping it removes the staged files.
pub(crate) struct PreparedBuild {
    builds: Builds,
    who: Principal,
    ask: StartBuild,
    build: Build,
    staged: Staged,
    staging: Staging,
    folder: PathBuf,
    log: Arc<Log>,
    admitted: Admitted,
}

impl PreparedBuild {
    /// The unique id of the build.
    pub(crate) fn id(&self) -> &BuildId {
        &self.build.id
    }

    /// The name of its result.
    pub(crate) fn template(&self) -> String {
        self.build.template.to_string()
    }

    /// Records the build; it runs when it is its turn.
    pub(crate) async fn begin(self) -> Result<Build, ServiceError> {
        let Self { builds, who, ask, build, staged, staging, folder, log, admitted } = self;
        builds.inner.store.put_build(build.clone()).await?;
        staging.keep();
        let live = builds.live(&build, log);
        let inner = Arc::clone(&builds.inner);
        let job = BuildJob { builds, who, ask, live, staged, folder };
        inner.spawn(async move {
            job.run().await;
            drop(admitted);
        });
        Ok(build)
    }
}

impl Builds {
    /// Checks a build and takes its context in.
    pub(crate) async fn prepare(
        &self,
        who: &Principal,
        ask: StartBuild,
        context: Option<BuildContext>,
    ) -> Result<PreparedBuild, ServiceError> {
        ask.check()?;
        self.inner.templates.refuse_built_in(&ask.template, &ask.tags).await?;
        if context.is_some() && !ask.contexts.is_empty() {
            return Err(ServiceError::field("contexts", "cannot be combined with a context"));
        }
        let has_files = context.is_some() || !ask.contexts.is_empty();
        if !has_files && matches!(ask.source, BuildSource::Dockerfile { .. }) {
            return Err(ServiceError::field("context", "is needed for its Dockerfile")
                .hint("send a tar of the folder, or the text of the Dockerfile"));
        }
        let inner = &self.inner;
        if !inner.disk.takes_records() {
            return Err(atoll_store::StoreError::NoSpace.into());
        }
        let admitted = inner.queue.admit(&who.tenant)?;
        let build = self.new_build(who, &ask)?;
        let folder = folder(&inner.config.data, &build.id);
        let staging = Staging::new(&folder);
        let log = self.new_log(&folder)?;
        let staged = match context {
            Some(context) => self.receive_context(&who.tenant, context, &folder).await?,
            None => self.stage_uploads(who, &ask, &folder)?,
        };
        let (builds, who) = (self.clone(), who.clone());
        Ok(PreparedBuild { builds, who, ask, build, staged, staging, folder, log, admitted })
    }
}

impl BuildQueue {
    /// Waits until a build has its turn; whether it is under way then.
    pub(crate) async fn until_begun(&self, id: &BuildId) -> bool {
        let Some(mut watched) = self.watched(id) else { return false };
        let begun = watched.wait_for(|build| build.status != BuildStatus::Waiting).await;
        begun.is_ok_and(|build| build.status == BuildStatus::Building)
    }

    /// Waits for the end of a build. An error says why it made no template.
    pub(crate) async fn until_built(&self, store: &dyn Store, id: &BuildId) -> Result<(), ServiceError> {
        if let Some(mut watched) = self.watched(id) {
            // An error means that its task ended; the row has the result.
            let _ = watched.wait_for(|build| build.status.is_end()).await;
        }
        match store.build(id).await? {
            Some(build) if build.status == BuildStatus::Ready => Ok(()),
            Some(build) => Err(not_built(&build)),
            None => Err(ServiceError::new(Code::Internal, "the server ended before the build was recorded")
                .hint("create the sandbox again")),
        }
    }

    fn watched(&self, id: &BuildId) -> Option<watch::Receiver<Build>> {
        self.get(id).map(|live| live.build.subscribe())
    }

    /// Ends a build without waiting for that; one that has ended is left as it is.
    pub(crate) fn stop(&self, id: &BuildId) {
        if let Some(live) = self.get(id) {
            live.cancel.cancel();
        }
    }
}

fn not_built(build: &Build) -> ServiceError {
    match &build.failure {
        Some(failure) => ServiceError::new(failure.code, failure.summary()),
        None => {
            let message = format!("the build is {}", build.status.as_str());
            ServiceError::new(Code::PhaseConflict, message)
        }
    }
}
