//! Takes a snapshot in the order of the driver's effects, so that the sandbox does not change meanwhile.
//!
//! The row and the copy are made at the same time. After a crash, a row that is not ready and a copy without a ready
//! row are removed.

use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::{Code, CreatorKey, EventKind, Phase, Snapshot, SnapshotId, SnapshotState};
use atoll_store::NewEvent;
use tokio::sync::oneshot;

use super::Driver;
use super::effects::{EffectJob, Work};
use crate::ServiceError;
use crate::agent::Tokens;
use crate::snapshots::SnapshotRequest;
use crate::timed::timed;

/// A snapshot to take, and the waiting caller.
pub(crate) struct SnapshotJob {
    id: SnapshotId,
    request: SnapshotRequest,
    /// The author of the request.
    by: Option<CreatorKey>,
    reply: Mutex<Option<SnapshotReply>>,
}

/// The answer when the snapshot is ready.
pub(crate) type SnapshotReply = oneshot::Sender<Result<Snapshot, ServiceError>>;

impl std::fmt::Debug for SnapshotJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotJob").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SnapshotJob {
    pub(crate) fn new(id: SnapshotId, request: SnapshotRequest, reply: SnapshotReply) -> Self {
        Self { id, request, by: None, reply: Mutex::new(Some(reply)) }
    }

    fn answer(&self, answer: Result<Snapshot, ServiceError>) {
        if let Some(reply) = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = reply.send(answer);
        }
    }
}

impl Driver {
    /// Takes the snapshot of a sandbox at rest, after the current effect.
    pub(super) fn on_snapshot(&mut self, wanted: SnapshotJob) {
        if let Err(refused) = self.can_be_kept(&wanted) {
            return wanted.answer(Err(refused));
        }
        self.snapshots.push_back(Arc::new(SnapshotJob { by: self.by.clone(), ..wanted }));
        self.next_snapshot();
    }

    /// Begins the next waiting snapshot, if no effect is running.
    pub(super) fn next_snapshot(&mut self) {
        while self.under_way.is_none() {
            let Some(wanted) = self.snapshots.pop_front() else { return };
            match self.can_be_kept(&wanted) {
                Ok(()) => self.launch(Work::Snapshot(wanted)),
                Err(refused) => wanted.answer(Err(refused)),
            }
        }
    }

    fn can_be_kept(&self, wanted: &SnapshotJob) -> Result<(), ServiceError> {
        self.guard(wanted.request.verb(), wanted.request.expect)?;
        if self.lease.phase == Phase::Stopped && wanted.request.memory {
            let message =
                format!("memory: sandbox {} is stopped and has no processes to copy", self.lease.id);
            return Err(ServiceError::new(Code::InvalidRequest, message)
                .hint("take a snapshot of its files only, or start it first"));
        }
        Ok(())
    }
}

impl EffectJob {
    /// Makes the snapshot completely or not at all, and answers the caller.
    pub(super) async fn snapshot(&self, wanted: &SnapshotJob) {
        let made = self.unless_stopped(self.make_snapshot(wanted)).await;
        let made = made.unwrap_or_else(|| {
            let message = format!("sandbox {} changed before its snapshot was ready", self.lease.id);
            Err(ServiceError::new(Code::PhaseConflict, message).hint("try again"))
        });
        if made.is_err() {
            self.forget_snapshot(&wanted.id).await;
        }
        wanted.answer(made);
    }

    async fn make_snapshot(&self, wanted: &SnapshotJob) -> Result<Snapshot, ServiceError> {
        let inner = &self.inner;
        let making = self.row_of(wanted);
        let target = self.target();
        inner.disk.shares().assign(wanted.id.as_str(), self.lease.tenant.as_str());
        let row = async {
            // Nobody can see or name one that is made for a fork.
            if !wanted.request.transient {
                inner.store.put_snapshot(making.clone(), None).await?;
            }
            inner.failpoint.reach("snapshot.row").await;
            Ok::<(), ServiceError>(())
        };
        let copy = async {
            let copy = self.provider.snapshot(&target, &wanted.id, wanted.request.memory);
            timed("snapshot", copy).await.map_err(ServiceError::from)
        };
        // A taken name or an exceeded quota ends the copy at once.
        let ((), copy) = tokio::try_join!(row, copy)?;
        inner.failpoint.reach("snapshot.made").await;
        let token = self.row.as_ref().filter(|_| copy.memory).map(|row| row.agent_token.clone());
        let ready = Snapshot {
            state: SnapshotState::Ready,
            memory: copy.memory,
            bytes: copy.bytes,
            seal: copy.seal,
            stood_still_us: u64::try_from(copy.stood_still.as_micros()).unwrap_or(u64::MAX),
            ..making
        };
        let event = NewEvent {
            at: inner.clock.now(),
            instance: self.lease.instance.clone(),
            what: EventKind::Snapshotted { snapshot: ready.id.clone(), memory: ready.memory },
            by: wanted.by.clone(),
        };
        let record = async {
            // A fork tells of itself.
            if wanted.request.transient {
                return Ok(());
            }
            inner.store.record(self.lease.tenant.clone(), self.lease.id.clone(), event).await
        };
        let (put, told) = tokio::join!(inner.store.put_snapshot(ready.clone(), token), record);
        put?;
        if let Err(error) = told {
            tracing::warn!(sandbox = %self.lease.id, %error, "an event could not be written");
        }
        inner.failpoint.reach("snapshot.ready").await;
        Ok(ready)
    }

    fn row_of(&self, wanted: &SnapshotJob) -> Snapshot {
        let lease = &self.lease;
        let mut env = lease.env.clone();
        env.retain(|name, _| !lease.private_env.contains(name));
        Snapshot {
            id: wanted.id.clone(),
            tenant: lease.tenant.clone(),
            node: lease.node.clone(),
            sandbox: lease.id.clone(),
            provider: lease.provider.clone(),
            sandbox_name: lease.name.clone(),
            name: wanted.request.name.clone(),
            tenant_wide: wanted.request.tenant_wide,
            transient: wanted.request.transient,
            warm: false,
            state: SnapshotState::Making,
            memory: wanted.request.memory,
            template: lease.template.clone(),
            template_version: lease.template_version.clone(),
            env,
            user: lease.user.clone(),
            workdir: lease.workdir.clone(),
            command: lease.command.clone(),
            limits: lease.limits,
            network: lease.network.clone(),
            bytes: 0,
            seal: String::new(),
            stood_still_us: 0,
            created_at: self.inner.clock.now(),
        }
    }

    /// If this fails, the next start of the server removes it.
    async fn forget_snapshot(&self, id: &SnapshotId) {
        self.inner.disk.shares().forget(id.as_str());
        if let Err(error) = self.provider.remove_snapshot(id).await {
            tracing::warn!(snapshot = %id, %error, "a partial snapshot could not be removed; the next start removes it");
        }
        if let Err(error) = self.inner.store.delete_snapshot(id).await {
            tracing::warn!(snapshot = %id, %error, "the row of a partial snapshot could not be removed; the next start removes it");
        }
    }
}

impl Driver {
    /// The instance row of a restore that is about to begin.
    pub(super) fn row_to_restore(&self) -> Result<atoll_store::InstanceRow, ServiceError> {
        let Some(row) = &self.row else {
            return Err(ServiceError::new(Code::Internal, "the agent of the sandbox does not answer"));
        };
        Ok(atoll_store::InstanceRow {
            instance: atoll_model::InstanceId::from_entropy(crate::random::entropy()?),
            facts: serde_json::Value::Null,
            agent_token: Tokens::from_row(&row.agent_token).and_new()?.text().to_owned(),
        })
    }
}
