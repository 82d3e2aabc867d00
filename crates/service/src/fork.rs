//! Forks: several sandboxes from a live one, all of them or none; and the lineage of sandboxes.
//!
//! ```text
//! hidden snapshot ──► children are made from it ──► all run: its row says "deleting" ──► response
//! ```
//! The write of that row completes the fork. After a crash before it, the children are deleted.

use std::sync::Arc;

use atoll_model::{
    Code, CreatorKey, EventKind, InstanceId, Intent, Lease, Phase, Principal, Reason, SandboxId, Snapshot,
    SnapshotState, Source,
};
use atoll_store::{NewEvent, NewLease};
use futures::future::join_all;

use crate::create::{NewSandbox, timeout_at};
use crate::driver::{Action, CreationOutcome, DriverMessage};
use crate::random::entropy;
use crate::registry::Handle;
use crate::sandboxes::{Sandboxes, ask};
use crate::snapshots::{Seed, SnapshotRequest};
use crate::{Fork, Forked, Lineage, ServiceError, VerbOptions};

/// LIMIT: more than a caller can use at once.
const CHILDREN_MAX: u32 = 100;

impl Sandboxes {
    /// Creates sandboxes from another one's current files, with its processes if requested and possible.
    pub async fn fork(&self, who: &Principal, ident: &str, ask: Fork) -> Result<Forked, ServiceError> {
        check(&ask)?;
        let handle = self.driven(who, ident).await?;
        let (own, creator) = (self.clone(), who.as_creator(&handle.lease().tenant));
        // The caller may go away at any time; all or nothing holds nevertheless.
        self.inner.run_detached(async move { own.fork_of(handle, creator, ask).await }).await
    }

    async fn fork_of(
        &self,
        source: Handle,
        creator: Option<CreatorKey>,
        ask: Fork,
    ) -> Result<Forked, ServiceError> {
        let lease = source.lease();
        // A policy that the operator no longer allows is not inherited either.
        self.admitted(&lease.tenant, lease.network.clone(), None).await?;
        // Neither is a provider that takes no new sandboxes, or that the tenant may no longer use.
        let provider = self.inner.providers.named(&lease.provider)?;
        self.inner.providers.check_tenant(&lease.tenant, provider.as_ref())?;
        let refused = if ask.memory { self.no_memory(&lease) } else { None };
        let wants_memory = ask.memory && refused.is_none();
        let (snapshot, refused) =
            match self.take(&source, SnapshotRequest::transient(wants_memory, ask.expect)).await {
                Ok(snapshot) => (snapshot, refused),
                // Its processes cannot be copied at the moment; its files can.
                Err(why) if wants_memory && why.code != Code::PhaseConflict => {
                    (self.take(&source, SnapshotRequest::transient(false, ask.expect)).await?, Some(why))
                }
                Err(error) => return Err(error),
            };
        self.inner.failpoint.reach("fork.snapshot").await;
        let made = self.children_of(&lease, &snapshot, &ask, creator.as_ref()).await;
        let done = match made {
            Ok(children) => self.finish_fork(&lease, &snapshot, children).await,
            Err(failure) => Err(failure),
        };
        self.forget_transient(snapshot.clone());
        let refused = refused.map(|why| why.message);
        let refused = refused.or_else(|| {
            (ask.memory && !snapshot.memory).then(|| "it has no processes at the moment".to_owned())
        });
        Ok(Forked { sandboxes: done?, memory: snapshot.memory, memory_refused: refused })
    }

    /// Makes all children or none.
    async fn children_of(
        &self,
        source: &Lease,
        snapshot: &Snapshot,
        ask: &Fork,
        creator: Option<&CreatorKey>,
    ) -> Result<Vec<Handle>, ServiceError> {
        let seed = Arc::new(Seed::of(&self.inner, &snapshot.id, snapshot.memory).await?);
        let children = (0..ask.count).map(|_| self.child_of(source, snapshot, ask, creator));
        let children = children.collect::<Result<Vec<_>, _>>()?;
        let begun = children.into_iter().map(|child| self.make_child(child, Arc::clone(&seed)));
        let begun = join_all(begun).await;
        let mut failure = None;
        let mut handles = Vec::with_capacity(begun.len());
        for born in begun {
            match born {
                Ok(handle) => handles.push(handle),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if failure.is_none() {
            let ended = join_all(handles.iter().map(|handle| self.until_made(handle.clone()))).await;
            failure = ended.into_iter().find_map(Result::err);
        }
        match failure {
            None => Ok(handles),
            Some(failure) => {
                self.unmake(&handles).await;
                Err(failure)
            }
        }
    }

    async fn make_child(&self, child: Lease, seed: Arc<Seed>) -> Result<Handle, ServiceError> {
        self.reserve(&child).await?;
        let born =
            self.make(NewSandbox::at_once(NewLease { lease: child, idempotency: None }, Some(seed))).await?;
        self.inner.failpoint.reach("fork.child").await;
        match born {
            CreationOutcome::New(handle) => Ok(handle),
            CreationOutcome::Replayed(_) | CreationOutcome::Bound(_) => {
                Err(ServiceError::new(Code::Internal, "another sandbox was returned for the child of a fork"))
            }
        }
    }

    /// Deletes the children of a failed fork; the caller receives the first error.
    async fn unmake(&self, children: &[Handle]) {
        let gone = children.iter().map(|child| async {
            let delete = |reply| DriverMessage::verb(Action::Delete, Reason::Requested, reply);
            if let Err(error) = ask(child, delete).await
                && child.lease().phase != Phase::Deleted
            {
                tracing::error!(sandbox = %child.lease().id, %error, "a child of a failed fork could not be removed");
                return;
            }
            let _ = self.until(child.clone(), |state| state.lease.phase == Phase::Deleted).await;
        });
        join_all(gone).await;
    }

    /// Records that the fork is complete.
    async fn finish_fork(
        &self,
        source: &Lease,
        snapshot: &Snapshot,
        children: Vec<Handle>,
    ) -> Result<Vec<Lease>, ServiceError> {
        let inner = &self.inner;
        inner.failpoint.reach("fork.made").await;
        let leases: Vec<Lease> = children.iter().map(|child| child.lease().as_ref().clone()).collect();
        let what = EventKind::Forked { children: leases.iter().map(|lease| lease.id.clone()).collect() };
        let by = children.first().and_then(|child| child.lease().created_by_key.clone());
        let event = NewEvent { at: inner.clock.now(), instance: source.instance.clone(), what, by };
        let done = Snapshot { state: SnapshotState::Deleting, ..snapshot.clone() };
        let (put, told) = tokio::join!(
            inner.store.put_snapshot(done, None),
            inner.store.record(source.tenant.clone(), source.id.clone(), event),
        );
        if let Err(error) = told {
            tracing::warn!(sandbox = %source.id, %error, "an event could not be written");
        }
        if let Err(error) = put {
            self.unmake(&children).await;
            return Err(error.into());
        }
        inner.failpoint.reach("fork.done").await;
        Ok(leases)
    }

    /// Removes the snapshot of a fork in the background. If that fails, the next start of the server removes it.
    fn forget_transient(&self, snapshot: Snapshot) {
        let inner = Arc::clone(&self.inner);
        self.inner.spawn(async move {
            let id = snapshot.id.clone();
            let removed = match inner.store.snapshot(&id).await {
                Ok(Some((known, _))) if known.state == SnapshotState::Deleting => {
                    crate::snapshots::finish_removal(&inner, &known).await
                }
                Ok(_) => crate::snapshots::remove(&inner, snapshot).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = removed {
                tracing::warn!(snapshot = %id, %error, "the snapshot of a fork could not be removed; the next start removes it");
            }
        });
    }

    fn child_of(
        &self,
        source: &Lease,
        snapshot: &Snapshot,
        ask: &Fork,
        creator: Option<&CreatorKey>,
    ) -> Result<Lease, ServiceError> {
        let now = self.inner.clock.now();
        let timeout_s = ask.timeout_s.or(source.timeout_s);
        Ok(Lease {
            id: SandboxId::from_entropy(entropy()?),
            name: ask.name.clone(),
            command_failure: None,
            labels: ask.labels.clone().unwrap_or_else(|| source.labels.clone()),
            env: snapshot.env.clone(),
            private_env: std::collections::BTreeSet::new(),
            intent: Intent::Run,
            phase: Phase::Creating,
            stage: atoll_model::Stage::Booting,
            reason: Reason::Requested,
            generation: 1,
            instance: Some(InstanceId::from_entropy(entropy()?)),
            timeout_s,
            timeout_at: timeout_s.map(|s| timeout_at(&now, s)),
            created_at: now.clone(),
            phase_at: now,
            held: None,
            active_at: None,
            stopped_at: None,
            hold: None,
            source: Source::Snapshot { snapshot: snapshot.id.clone(), memory: snapshot.memory, fork: true },
            parent: Some(source.id.clone()),
            archive: None,
            rollback_to: None,
            build: None,
            token_epoch: 0,
            started_at: None,
            image_build: None,
            awaits: None,
            moving: None,
            last_move: None,
            resizing: false,
            created_by_key: creator.cloned(),
            ..source.clone()
        })
    }

    /// Rolls a sandbox back to one of its own snapshots.
    pub async fn rollback(
        &self,
        who: &Principal,
        ident: &str,
        snapshot: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        let snapshot = self.snapshot_for(who, &lease, snapshot).await?;
        if snapshot.sandbox != lease.id {
            let message = format!("snapshot {} belongs to sandbox {}", snapshot.id, snapshot.sandbox);
            return Err(
                ServiceError::new(Code::InvalidRequest, message).hint("create a new sandbox from it instead")
            );
        }
        if snapshot.provider != lease.provider {
            let message = format!(
                "snapshot {} is at provider {}, where the sandbox was",
                snapshot.id, snapshot.provider
            );
            return Err(
                ServiceError::new(Code::InvalidRequest, message).hint("create a new sandbox from it instead")
            );
        }
        let seed = Arc::new(Seed::of(&self.inner, &snapshot.id, true).await?);
        let options = options.into();
        let told = self.told(who, ident, Action::Rollback(seed), options).await?;
        if options.wait { self.settled(told.handle).await } else { Ok(told.lease()) }
    }

    /// The origin of a sandbox, and the sandboxes made from it.
    pub async fn lineage(&self, who: &Principal, ident: &str) -> Result<Lineage, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        let snapshot = match &lease.source {
            Source::Snapshot { snapshot, .. } => {
                let known = self.inner.store.snapshot(snapshot).await?;
                known.filter(|(known, _)| !known.transient && !known.warm).map(|(known, _)| known.id)
            }
            Source::Template | Source::Archive { .. } => None,
        };
        let children = self.inner.store.children(&lease.id).await?;
        Ok(Lineage { parent: lease.parent.clone(), snapshot, children })
    }
}

fn check(ask: &Fork) -> Result<(), ServiceError> {
    if !(1..=CHILDREN_MAX).contains(&ask.count) {
        let message = format!("count must be between 1 and {CHILDREN_MAX}");
        return Err(ServiceError::new(Code::InvalidRequest, message));
    }
    if ask.name.is_some() && ask.count != 1 {
        return Err(ServiceError::field("name", "only one sandbox can have it"));
    }
    let spec = atoll_model::CreateSandbox {
        name: ask.name.clone(),
        labels: ask.labels.clone().unwrap_or_default(),
        timeout_s: ask.timeout_s,
        ..Default::default()
    };
    Ok(spec.check()?)
}
