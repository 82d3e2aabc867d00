//! Moves a sandbox to another provider. It keeps its id, name, labels, environment, thread, timers, policy and previews.
//!
//! ```text
//! check ─► record (copying) ─► stop ─► copy ─► compare ─► record (the provider changes) ─► remove the source ─► start
//!                 └──────────────────────┴─ any failure ─► record (it stays) ─► remove the copy ─► start
//! ```
//!
//! The record is the field `moving` of the lease. The write that changes the provider is the only moment at which the sandbox
//! changes its place: before it the source is whole, after it the copy is. Whatever is left at the other provider is removed
//! until that succeeds, also by the next server.

pub(crate) mod folders;
pub(crate) mod manifest;
pub(crate) mod outside;
pub(crate) mod owners;

use std::sync::Arc;

use atoll_model::{
    Code, CreateSandbox, ErrorKind, Lease, LeftBehind, LeftBehindKind, MoveCarried, MoveReport, Phase,
    Principal, SandboxMove, StartRequest, Storage,
};
use atoll_provider::{Capability, Provider};
use atoll_store::SnapshotQuery;
use tokio::sync::oneshot;

use crate::base::shutting_down;
use crate::create::{CreationBase, use_workspace};
use crate::driver::{DriverMessage, MoveEnd};
use crate::registry::Handle;
use crate::sandboxes::{EndWait, PAGE_MAX, Sandboxes, ask};
use crate::templates::VersionHold;
use crate::{MoveRequest, ServiceError};

/// Everything that a move needs and the lease does not record. It is lost with the server, which ends the move.
pub(crate) struct MovePlan {
    pub(crate) target: Arc<dyn Provider>,
    /// The lease as it will be at the target; the copy may correct its user and working directory.
    pub(crate) after: Lease,
    /// The lease that all of this was checked with.
    pub(crate) generation: u64,
    pub(crate) carried: MoveCarried,
    /// What is known to be left behind before anything is copied.
    pub(crate) left_behind: Vec<LeftBehind>,
    /// Keeps the files of the target's template from being collected until the lease names it.
    _hold: Option<VersionHold>,
}

/// What a copy found out, beside its report.
#[derive(Debug, Clone)]
pub(crate) struct MoveOutcome {
    pub(crate) report: MoveReport,
    pub(crate) user: String,
    pub(crate) workdir: String,
}

impl MovePlan {
    /// The lease at the target. Settings that a caller changed meanwhile stay.
    pub(crate) fn apply(&self, lease: &Lease, outcome: &MoveOutcome) -> Lease {
        let after = &self.after;
        Lease {
            provider: after.provider.clone(),
            isolation: after.isolation,
            template: after.template.clone(),
            template_version: after.template_version.clone(),
            env: after.env.clone(),
            command: after.command.clone(),
            mounts: Vec::new(),
            user: outcome.user.clone(),
            workdir: outcome.workdir.clone(),
            last_move: Some(outcome.report.clone()),
            ..lease.clone()
        }
    }
}

impl Sandboxes {
    /// Moves a sandbox to another provider. A running one runs afterwards; any other one is stopped. With `wait` it returns at the
    /// end, or with the reason why the sandbox stayed where it was; otherwise once the move is recorded. The caller may
    /// disconnect at any time: the driver completes the move.
    pub async fn move_to(
        &self,
        who: &Principal,
        ident: &str,
        request: MoveRequest,
        wait: bool,
    ) -> Result<Lease, ServiceError> {
        let handle = self.driven(who, ident).await?;
        let lease = handle.lease();
        let plan = Box::new(self.plan_move(who, &lease, &request).await?);
        let (target, id) = (plan.target.name(), lease.id.clone());
        let (done, ended) = oneshot::channel();
        let (own, driver) = (self.clone(), handle.clone());
        // The caller may go away at any time.
        let recorded =
            self.inner.run_detached(async move { own.begin_move(&driver, plan, done).await }).await?;
        tracing::info!(sandbox = %id, from = lease.provider, to = target, "a move was requested");
        if !wait {
            return Ok(recorded.as_ref().clone());
        }
        let limit = self.inner.config.create_wait * EndWait::Transfer.times();
        match tokio::time::timeout(limit, ended).await {
            Ok(Ok(moved)) => moved?,
            Ok(Err(_)) => return Err(shutting_down()),
            Err(_) => {
                let message =
                    format!("sandbox {id} was not moved within {} s; the move continues", limit.as_secs());
                return Err(ServiceError::new(Code::DeadlineExceeded, message).hint(format!(
                    "get sandbox {id} again: `moving` has the progress, `last_move` the result"
                )));
            }
        }
        self.settled(handle).await
    }

    /// Reserves room at both ends and records the move. The driver owns the room from then on; a move that is refused gives it up.
    async fn begin_move(
        &self,
        handle: &Handle,
        plan: Box<MovePlan>,
        done: MoveEnd,
    ) -> Result<Arc<Lease>, ServiceError> {
        self.refuse_overtaking(&plan.after).map_err(|full| full.hint("move it later"))?;
        let lease = handle.lease();
        let source = self.inner.providers.of(&lease)?;
        let mut places = Vec::with_capacity(2);
        // The source needs an instance for the copy too.
        for (provider, lease) in [(&source, lease.as_ref()), (&plan.target, &plan.after)] {
            let place = self.inner.admission.reserve_move(provider.as_ref(), lease).await?;
            places.push(place.ok_or_else(|| already_moving(lease, plan.target.name()))?);
        }
        ask(handle, |reply| DriverMessage::Move { plan, places, done, reply }).await
    }

    /// Checks everything that can be checked before anything is changed.
    async fn plan_move(
        &self,
        who: &Principal,
        lease: &Lease,
        request: &MoveRequest,
    ) -> Result<MovePlan, ServiceError> {
        let inner = &self.inner;
        let (source, target) = (inner.providers.of(lease)?, inner.providers.named(&request.provider)?);
        let owner = Principal { tenant: lease.tenant.clone(), ..who.clone() };
        inner.providers.check(&owner, target.as_ref())?;
        check_movable(lease, source.as_ref(), target.as_ref())?;
        let (mut after, hold) = self.lease_at(&owner, lease, target.as_ref(), request).await?;
        after.network = self.admitted(&lease.tenant, after.network, Some(&lease.network)).await?;
        crate::egress::check_enforced(target.as_ref(), &after.network, !after.secrets.is_empty())?;
        crate::deadlines::check_possible(target.as_ref(), &after)?;
        // Limits that the sandbox has are not asked for anew.
        let limits = atoll_model::LimitsAsk::default();
        crate::egress::check_demands(inner, target.as_ref(), &after, &limits).await?;
        let left_behind = self.left_behind(lease, &after).await?;
        Ok(MovePlan {
            carried: carried(lease, source.as_ref(), &after, target.as_ref()),
            target,
            after,
            generation: lease.generation,
            left_behind,
            _hold: hold,
        })
    }

    /// The lease as it will be at the target.
    async fn lease_at(
        &self,
        owner: &Principal,
        lease: &Lease,
        target: &dyn Provider,
        request: &MoveRequest,
    ) -> Result<(Lease, Option<VersionHold>), ServiceError> {
        let CreationBase { base, hold, .. } = self.base_at(owner, lease, target, request).await?;
        let old = self.template_settings(owner, lease).await;
        let own_env = lease.env.iter().filter(|(name, value)| old.env.get(*name) != Some(*value));
        let mut after = Lease {
            env: own_env.map(|(name, value)| (name.clone(), value.clone())).collect(),
            provider: target.name().to_owned(),
            isolation: target.description().isolation,
            mounts: Vec::new(),
            ..lease.clone()
        };
        let command = lease.command.clone().filter(|_| lease.command != old.command);
        base.apply_to(&mut after, &StartRequest { command, ..StartRequest::default() });
        use_workspace(&mut after, target);
        if (&after.template, &after.template_version) == (&lease.template, &lease.template_version) {
            (after.user, after.workdir) = (lease.user.clone(), lease.workdir.clone());
        }
        (after.source, after.parent) = (lease.source.clone(), lease.parent.clone());
        Ok((after, hold))
    }

    /// The template at the target: the requested one, else the sandbox's own if the target has it, else the target's default.
    async fn base_at(
        &self,
        owner: &Principal,
        lease: &Lease,
        target: &dyn Provider,
        request: &MoveRequest,
    ) -> Result<CreationBase, ServiceError> {
        let spec = |template: Option<String>| CreateSandbox {
            provider: Some(target.name().to_owned()),
            template,
            // The target is made from its template, never from processes that were kept ready.
            storage: lease.storage,
            ..CreateSandbox::default()
        };
        if request.template.is_some() {
            return self.base_of(owner, &spec(request.template.clone())).await;
        }
        match self.base_of(owner, &spec(Some(lease.template.clone()))).await {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Unsupported
                ) =>
            {
                self.base_of(owner, &spec(None)).await
            }
            found => found,
        }
    }

    /// The settings that a sandbox has from its template, as far as the template is still there.
    async fn template_settings(&self, owner: &Principal, lease: &Lease) -> Lease {
        let spec = CreateSandbox {
            provider: Some(lease.provider.clone()),
            template: Some(lease.template.clone()),
            ..CreateSandbox::default()
        };
        let mut settings = Lease { env: Default::default(), command: None, ..lease.clone() };
        match self.base_of(owner, &spec).await {
            Ok(found) => found.base.apply_to(&mut settings, &StartRequest::default()),
            Err(error) => {
                tracing::debug!(sandbox = %lease.id, %error, "the template of a sandbox that is moved is not there");
            }
        }
        settings
    }

    /// What is known to stay behind.
    async fn left_behind(&self, lease: &Lease, after: &Lease) -> Result<Vec<LeftBehind>, ServiceError> {
        let mut left = Vec::new();
        if lease.phase != Phase::Stopped {
            left.push(LeftBehind::one(
                LeftBehindKind::Processes,
                "its processes are ended, with their memory",
            ));
        }
        let mounts = lease.mounts.iter().map(|mount| format!("volume {} at {}", mount.volume, mount.path));
        left.extend(LeftBehind::several(LeftBehindKind::Mounts, mounts));
        let query = SnapshotQuery {
            tenant: Some(lease.tenant.clone()),
            sandbox: Some(lease.id.clone()),
            limit: PAGE_MAX,
            ..SnapshotQuery::default()
        };
        let snapshots = self.inner.store.snapshots(query).await?.items.into_iter();
        let snapshots = snapshots.map(|snapshot| snapshot.name.unwrap_or_else(|| snapshot.id.to_string()));
        left.extend(LeftBehind::several(LeftBehindKind::Snapshots, snapshots));
        if after.template != lease.template {
            let sentence =
                format!("it was made from {}, and is made from {} there", lease.template, after.template);
            left.push(LeftBehind::one(LeftBehindKind::Template, sentence));
        }
        Ok(left)
    }
}

/// Refuses what cannot be moved, whatever the target's template is.
fn check_movable(lease: &Lease, source: &dyn Provider, target: &dyn Provider) -> Result<(), ServiceError> {
    if target.name() == lease.provider {
        let problem = format!("sandbox {} is at provider {} already", lease.id, lease.provider);
        return Err(ServiceError::field("provider", problem).hint("name another provider"));
    }
    if let Some(moving) = &lease.moving {
        return Err(already_moving(lease, &moving.to));
    }
    for provider in [source, target] {
        if !provider.capabilities().keeps_files {
            return Err(provider.missing(Capability::KeepFiles).into());
        }
    }
    if lease.storage == Storage::Memory {
        let message =
            format!("sandbox {} keeps its files in memory; they would be lost when it is stopped", lease.id);
        return Err(ServiceError::new(Code::Unsupported, message));
    }
    Ok(())
}

/// The refusal of a second move.
pub(crate) fn already_moving(lease: &Lease, to: &str) -> ServiceError {
    let message = match lease.moving.as_ref().is_none_or(SandboxMove::is_copying) {
        true => format!("sandbox {} is being moved to provider {to}", lease.id),
        false => format!("what is left of the last move of sandbox {} is still being removed", lease.id),
    };
    ServiceError::new(Code::PhaseConflict, message).hint("wait until it is done").retry_after(2)
}

/// Within one version of a template the layer travels, if both providers use the layers of this server.
fn carried(lease: &Lease, source: &dyn Provider, after: &Lease, target: &dyn Provider) -> MoveCarried {
    let able = |provider: &dyn Provider| provider.capabilities().packs && provider.capabilities().layers;
    let is_same = (&after.template, &after.template_version) == (&lease.template, &lease.template_version);
    if is_same && able(source) && able(target) { MoveCarried::Layer } else { MoveCarried::Folders }
}
