//! Sandboxes whose image is built first: named at once, there when the build is done.
//!
//! ```text
//! create ─► pending_build ─► building_snapshot ─► (a sandbox of the core with the same id) creating ─► started
//!                    └────────────┴─► build_failed, error: kept until somebody deletes it
//! ```
//!
//! A draft is the wish for a sandbox and the build that it waits for; it holds no files and no processes, and the server's
//! end is its end: the build ends then too. Never decides whether a sandbox may be made: the core does, when it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_front_kit::ApiError;
use atoll_model::{
    Build, BuildId, BuildStatus, Code, CreateSandbox, LimitsAsk, Principal, SandboxId, TenantId,
};
use futures::StreamExt;
use tokio::sync::broadcast;
use tokio_util::task::TaskTracker;

use crate::DaytonaApp;
use crate::builds;
use crate::error::text;
use crate::origin::Origin;
use crate::sandboxes::{BuildAsk, SandboxResponse};

/// LIMIT: of one tenant; each holds a Dockerfile at most.
const PER_TENANT: usize = 64;
/// LIMIT: changes that a slow socket may be behind.
const BEHIND: usize = 256;
/// LIMIT: how long one that failed is shown.
const SHOWN_FOR: Duration = Duration::from_secs(24 * 3_600);

/// All drafts of this server. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Drafts {
    all: Arc<Mutex<HashMap<SandboxId, Draft>>>,
    changes: broadcast::Sender<Change>,
    tasks: TaskTracker,
}

/// A sandbox to be.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) id: SandboxId,
    pub(crate) tenant: TenantId,
    pub(crate) spec: CreateSandbox,
    pub(crate) state: &'static str,
    pub(crate) error: Option<String>,
    pub(crate) created_at_ms: i64,
    build: BuildId,
}

/// A draft that is in another state than before.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) from: Option<&'static str>,
    pub(crate) draft: Draft,
}

impl Draft {
    pub(crate) fn shown(&self, origin: &Origin) -> SandboxResponse {
        SandboxResponse::of_draft(self, origin)
    }

    fn is_seen_by(&self, who: &Principal) -> bool {
        self.tenant == who.tenant
    }

    fn is_called(&self, ident: &str) -> bool {
        self.id.as_str() == ident || self.spec.name.as_deref() == Some(ident)
    }
}

#[cfg(test)]
impl Draft {
    pub(crate) fn sample(id: SandboxId, tenant: TenantId, spec: CreateSandbox, state: &'static str) -> Self {
        let build = BuildId::from_entropy([3; 20]);
        Self { id, tenant, spec, state, error: None, created_at_ms: 0, build }
    }
}

impl Default for Drafts {
    fn default() -> Self {
        Self { all: Arc::default(), changes: broadcast::channel(BEHIND).0, tasks: TaskTracker::new() }
    }
}

impl Drafts {
    pub(crate) fn find(&self, who: &Principal, ident: &str) -> Option<Draft> {
        self.lock().values().find(|draft| draft.is_seen_by(who) && draft.is_called(ident)).cloned()
    }

    pub(crate) fn all(&self, who: &Principal) -> Vec<Draft> {
        self.lock().values().filter(|draft| draft.is_seen_by(who)).cloned().collect()
    }

    pub(crate) fn follow(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Forgets one; its build ends.
    pub(crate) fn remove(&self, app: &DaytonaApp, who: &Principal, ident: &str) -> Option<Draft> {
        let draft = self.find(who, ident)?;
        let draft = self.take(&draft.id)?;
        self.end_build(app, who, &draft.build);
        let gone = Draft { state: "destroyed", ..draft.clone() };
        self.tell(Some(draft.state), &gone);
        Some(gone)
    }

    fn end_build(&self, app: &DaytonaApp, who: &Principal, build: &BuildId) {
        let (service, who, build) = (app.service.clone(), who.clone(), build.clone());
        self.tasks.spawn(async move {
            if let Err(error) = service.cancel_build(&who, build.as_str()).await {
                tracing::debug!(%error, "the build of a deleted draft had ended");
            }
        });
    }

    /// Whether a name is taken by one of them.
    pub(crate) fn refuse_name(&self, who: &Principal, name: Option<&str>) -> Result<(), ApiError> {
        let is_taken =
            |name: &&str| self.all(who).iter().any(|draft| draft.spec.name.as_deref() == Some(*name));
        name.filter(is_taken).map_or(Ok(()), |name| Err(name_taken(name)))
    }

    /// The log that its user may read.
    pub(crate) fn build_of(&self, who: &Principal, ident: &str) -> Option<BuildId> {
        self.find(who, ident).map(|draft| draft.build)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Draft>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, id: &SandboxId) -> Option<Draft> {
        self.lock().remove(id)
    }

    fn add(&self, draft: Draft) -> Result<(), ApiError> {
        let mut all = self.lock();
        let old_ms = i64::try_from(SHOWN_FOR.as_millis()).unwrap_or(i64::MAX);
        all.retain(|_, known| draft.created_at_ms - known.created_at_ms < old_ms);
        let mine = all.values().filter(|known| known.tenant == draft.tenant);
        if mine.clone().count() >= PER_TENANT {
            let message = format!(
                "{PER_TENANT} sandboxes wait for their builds, or their builds failed; delete some of them"
            );
            return Err(ApiError::new(Code::QuotaExceeded, message));
        }
        if let Some(name) = &draft.spec.name
            && mine.clone().any(|known| known.spec.name.as_ref() == Some(name))
        {
            return Err(name_taken(name));
        }
        all.insert(draft.id.clone(), draft.clone());
        drop(all);
        self.tell(None, &draft);
        Ok(())
    }

    fn enter(&self, id: &SandboxId, state: &'static str, error: Option<String>) {
        let changed = {
            let mut all = self.lock();
            let Some(draft) = all.get_mut(id) else { return };
            let from = std::mem::replace(&mut draft.state, state);
            draft.error = error;
            (from, draft.clone())
        };
        self.tell(Some(changed.0), &changed.1);
    }

    fn tell(&self, from: Option<&'static str>, draft: &Draft) {
        // Nobody listening is fine.
        let _ = self.changes.send(Change { from, draft: draft.clone() });
    }
}

fn name_taken(name: &str) -> ApiError {
    ApiError::new(Code::NameTaken, format!("Sandbox with name {name} already exists"))
}

/// Makes a sandbox of a Dockerfile: at once where it was built before, else when its build is done.
pub(crate) async fn create(
    app: &DaytonaApp,
    who: &Principal,
    mut spec: CreateSandbox,
    build: BuildAsk,
    origin: &Origin,
) -> Result<SandboxResponse, ApiError> {
    crate::sandboxes::fill(&mut spec.limits, LimitsAsk::default());
    spec.check().map_err(|bad| ApiError::invalid(bad.to_string()))?;
    let name = builds::name_of(&build);
    spec.template = Some(name.clone());
    if let Ok(known) = app.service.get_template(who, &name).await {
        spec.command = crate::naming::program(&known);
        let (lease, _) = app.service.create(who, spec, true).await?;
        return Ok(SandboxResponse::of(&lease, origin));
    }
    if let Some(name) = &spec.name
        && crate::sandboxes::lease(app, who, name).await.is_ok()
    {
        return Err(name_taken(name));
    }
    let ask =
        builds::Ask { word: name, build, limits: LimitsAsk::default(), command: None, notes: Vec::new() };
    let begun = builds::start(app, who, ask).await?;
    let id = app.service.new_sandbox_id()?;
    spec.id = Some(id.clone());
    let draft = Draft {
        id: id.clone(),
        tenant: who.tenant.clone(),
        spec,
        state: "pending_build",
        error: None,
        created_at_ms: begun.created_at.wall_ms,
        build: begun.id.clone(),
    };
    if let Err(refused) = app.drafts.add(draft.clone()) {
        // Nobody waits for it.
        app.drafts.end_build(app, who, &begun.id);
        return Err(refused);
    }
    let (own, who) = (app.clone(), who.clone());
    let closing = app.options.closing.clone();
    app.drafts.tasks.spawn(async move {
        closing.run_until_cancelled(finish(&own, &who, &id, &begun.id)).await;
    });
    Ok(draft.shown(origin))
}

/// Waits for the build and makes the sandbox.
async fn finish(app: &DaytonaApp, who: &Principal, id: &SandboxId, build: &BuildId) {
    match built(app, who, id, build).await {
        Ok(ended) if ended.status == BuildStatus::Ready => {}
        Ok(ended) => return app.drafts.enter(id, "build_failed", Some(builds::reason(&ended))),
        Err(error) => return app.drafts.enter(id, "build_failed", Some(text(&error))),
    }
    let Some(mut draft) = app.drafts.lock().get(id).cloned() else { return };
    if let Some(name) = &draft.spec.template
        && let Ok(known) = app.service.get_template(who, name).await
    {
        draft.spec.command = crate::naming::program(&known);
    }
    match app.service.create(who, draft.spec, false).await {
        // From here on it is the core's; unless it was deleted while it was made.
        Ok(_) => {
            if app.drafts.take(id).is_none()
                && let Err(error) = app.service.delete(who, id.as_str(), false).await
            {
                tracing::warn!(sandbox = %id, %error, "a sandbox was deleted while it was built, and could not be removed");
            }
        }
        Err(error) => app.drafts.enter(id, "error", Some(error.message)),
    }
}

async fn built(
    app: &DaytonaApp,
    who: &Principal,
    id: &SandboxId,
    build: &BuildId,
) -> Result<Build, ApiError> {
    let mut lines = app.service.build_log(who, build.as_str(), 1, true).await?;
    let mut begun = false;
    while lines.next().await.is_some() {
        if !std::mem::replace(&mut begun, true) {
            app.drafts.enter(id, "building_snapshot", None);
        }
    }
    Ok(app.service.get_build(who, build.as_str()).await?)
}
