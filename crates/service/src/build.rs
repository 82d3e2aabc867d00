//! Builds: a template made from steps, each of which runs in a sandbox of its tenant.
//!
//! ```text
//! start ─► context to disk ─► row (waiting) ─► its turn ─► plan ─► bases ─► steps ─► ready? ─► publish
//!                                                                   │
//!                 cached? ◄── key of the step over what is below ───┤
//!                 else: sandbox ─► RUN, COPY ─► halt ─► capture ─► layer ─► version ─► cache
//! ```
//!
//! The task of a build owns it: the caller may disconnect. A build never runs a program outside of a sandbox, never
//! writes a secret to a layer, a log, a key or the store, and never uses the cache of another tenant.

mod announce;
mod ask;
mod context;
mod files;
mod finish;
mod lent_files;
mod log;
mod output;
mod prepared;
mod queue;
pub(crate) mod ready;
mod recover;
mod run;
mod sandbox;
mod secrets;
mod stages;
mod step;
mod uploads;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use atoll_model::{
    Build, BuildId, BuildLine, BuildStatus, Code, CreateSandbox, Lease, Origin, Principal, TemplateRef,
};
use atoll_store::{BuildQuery, Page};
use futures::stream::BoxStream;

pub use announce::BuildSteps;
pub use ask::{BaseUser, BuildContext, BuildFilter, BuildSecret, BuildSource, StartBuild};
pub use finish::AFTER_THE_STEPS;
pub(crate) use prepared::PreparedBuild;
pub(crate) use queue::BuildQueue;
pub use uploads::{BadUploadHash, StorageAccess, TenantUploads, UploadError, UploadHash};

use crate::access::Access;
use crate::base::{ServiceBase, visible};
use crate::random::entropy;
use crate::sandboxes::{PAGE, PAGE_MAX, Sandboxes, printable};
use crate::templates::Templates;
use crate::{Created, ServiceError};
use context::folder;
use log::Log;
use queue::Live;

/// Templates that are made from steps. Cloning is cheap.
#[derive(Clone)]
pub struct Builds {
    inner: Arc<BuildsState>,
}

struct BuildsState {
    base: Arc<ServiceBase>,
    queue: Arc<BuildQueue>,
    templates: Templates,
    sandboxes: Sandboxes,
    access: Access,
}

impl Deref for BuildsState {
    type Target = ServiceBase;

    fn deref(&self) -> &ServiceBase {
        &self.base
    }
}

impl Builds {
    pub(crate) fn new(
        base: &Arc<ServiceBase>,
        queue: Arc<BuildQueue>,
        templates: Templates,
        sandboxes: Sandboxes,
        access: Access,
    ) -> Self {
        Self { inner: Arc::new(BuildsState { base: Arc::clone(base), queue, templates, sandboxes, access }) }
    }

    /// Takes the context in, writes the build down and begins it when its turn comes. What is wrong with the request is said
    /// here; what is wrong with its steps is in its failure and its log.
    pub async fn start(
        &self,
        who: &Principal,
        ask: StartBuild,
        context: Option<BuildContext>,
    ) -> Result<Build, ServiceError> {
        self.prepare(who, ask, context).await?.begin().await
    }

    /// Creates a sandbox from the result of a build. Answers as soon as it is written down: the sandbox waits for its build,
    /// which is cancelled when the sandbox is deleted.
    pub async fn create_sandbox(
        &self,
        who: &Principal,
        spec: CreateSandbox,
        ask: StartBuild,
        context: Option<BuildContext>,
    ) -> Result<(Lease, Created), ServiceError> {
        let spec = CreateSandbox {
            template: Some(ask.template.to_string()),
            image: None,
            from: Origin::Template,
            ..spec
        };
        spec.check()?;
        let build = self.prepare(who, ask, context).await?;
        self.inner.sandboxes.create_from_build(who, spec, build).await
    }

    fn new_build(&self, who: &Principal, ask: &StartBuild) -> Result<Build, ServiceError> {
        Ok(Build {
            id: BuildId::from_entropy(entropy()?),
            tenant: who.tenant.clone(),
            node: self.inner.store.node().clone(),
            template: ask.template.clone(),
            tags: ask.tags.clone(),
            status: BuildStatus::Waiting,
            step: 0,
            steps: 0,
            step_text: String::new(),
            cached_steps: 0,
            failure: None,
            version: None,
            notes: Vec::new(),
            created_at: self.inner.clock.now(),
            started_at: None,
            ended_at: None,
        })
    }

    fn new_log(&self, folder: &Path) -> Result<Arc<Log>, ServiceError> {
        Log::create(folder, Arc::clone(&self.inner.clock), &self.inner.disk).map_err(|cause| {
            ServiceError::new(Code::NoCapacity, "the log of the build cannot be written").caused_by(cause)
        })
    }

    /// Makes the build visible, so that it can be shown and cancelled.
    fn live(&self, build: &Build, log: Arc<Log>) -> Arc<Live> {
        let live = Arc::new(Live::new(build.clone(), self.inner.closing.child_token(), log));
        self.inner.queue.put(&live);
        tracing::info!(build = %build.id, template = %build.template, "a build was requested");
        live
    }

    /// A build by its id or the unique start of it.
    pub async fn get(&self, who: &Principal, ident: &str) -> Result<Build, ServiceError> {
        let mut found = self.inner.store.find_build(visible(who), ident).await?;
        match (found.pop(), found.pop()) {
            (Some(build), None) => Ok(self.newest(build)),
            (None, _) => {
                Err(ServiceError::new(Code::BuildNotFound, format!("there is no build {}", printable(ident)))
                    .hint("list them: GET /v1/builds, or atoll template builds"))
            }
            (Some(one), Some(other)) => {
                let message = format!("{} matches more than one build", printable(ident));
                Err(ServiceError::new(Code::InvalidRequest, message)
                    .hint(format!("choose one of them: {}, {}, …", other.id, one.id)))
            }
        }
    }

    /// A page of builds, newest first.
    pub async fn list(&self, who: &Principal, filter: BuildFilter) -> Result<Page<Build>, ServiceError> {
        let query = BuildQuery {
            tenant: visible(who).cloned(),
            status: filter.status,
            template: filter.template,
            limit: if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) },
            cursor: filter.cursor,
        };
        let mut page = self.inner.store.builds(query).await?;
        page.items = page.items.into_iter().map(|build| self.newest(build)).collect();
        Ok(page)
    }

    /// Ends a build; one that has ended is left as it is. Answers when nothing of it runs any more.
    pub async fn cancel(&self, who: &Principal, ident: &str) -> Result<Build, ServiceError> {
        let build = self.get(who, ident).await?;
        if !build.status.is_end() {
            self.inner.need_here(&format!("build {}", build.id), &build.node)?;
        }
        if let Some(live) = self.inner.queue.get(&build.id) {
            live.cancel.cancel();
            let mut watched = live.build.subscribe();
            drop(live);
            let ended = watched.wait_for(|build| build.status.is_end());
            let limit = self.inner.config.create_wait;
            let _ = tokio::time::timeout(limit, ended).await.map_err(|_| {
                ServiceError::new(Code::DeadlineExceeded, format!("build {} has not ended yet", build.id))
                    .hint("it will not continue; start it again")
            })?;
        }
        self.get(who, build.id.as_str()).await
    }

    /// Ends all builds of the caller's tenant that have not made this template yet, and forgets them and the failed ones with
    /// their logs. Builds that made it stay on record.
    pub async fn delete_of_template(
        &self,
        who: &Principal,
        template: &TemplateRef,
    ) -> Result<(), ServiceError> {
        let query = BuildQuery {
            tenant: Some(who.tenant.clone()),
            template: Some(template.name.clone()),
            limit: PAGE_MAX,
            ..BuildQuery::default()
        };
        let mut page = self.inner.store.builds(query.clone()).await?;
        loop {
            for build in page.items.into_iter().filter(|build| build.status != BuildStatus::Ready) {
                if build.template.tag_or_default() == template.tag_or_default() {
                    self.delete(who, &build).await?;
                }
            }
            let Some(cursor) = page.next_cursor else { return Ok(()) };
            page = self.inner.store.builds(BuildQuery { cursor: Some(cursor), ..query.clone() }).await?;
        }
    }

    /// The bytes of the record of a build that ended; with `apply` it is removed.
    pub(crate) async fn forget_ended(
        &self,
        who: &Principal,
        build: &Build,
        apply: bool,
    ) -> Result<u64, ServiceError> {
        let folder = folder(&self.inner.config.data, &build.id);
        let bytes = self.inner.run_blocking(move || Ok(crate::disk_use::folder_bytes(&folder))).await?;
        if apply {
            self.delete(who, build).await?;
        }
        Ok(bytes)
    }

    async fn delete(&self, who: &Principal, build: &Build) -> Result<(), ServiceError> {
        let build = self.cancel(who, build.id.as_str()).await?;
        self.inner.store.delete_build(&build.id).await?;
        let folder = folder(&self.inner.config.data, &build.id);
        match tokio::fs::remove_dir_all(&folder).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(build = %build.id, %error, "the log of a build stays until the next start of the server");
            }
            Ok(()) | Err(_) => {}
        }
        Ok(())
    }

    /// The log of a build from line `from` on (the first has number 1); with `follow` until the build ends.
    pub async fn log(
        &self,
        who: &Principal,
        ident: &str,
        from: u64,
        follow: bool,
    ) -> Result<BoxStream<'static, BuildLine>, ServiceError> {
        let build = self.get(who, ident).await?;
        self.inner.need_here(&format!("build {}", build.id), &build.node)?;
        let live = self.inner.queue.get(&build.id).filter(|_| follow);
        let head = live.map(|live| live.log.head());
        Ok(log::read(&folder(&self.inner.config.data, &build.id), from, head))
    }

    /// The newest state of a build: the store has it as it was when its status last changed.
    fn newest(&self, build: Build) -> Build {
        match self.inner.queue.get(&build.id) {
            Some(live) => live.build.borrow().clone(),
            None => build,
        }
    }
}
