//! Snapshots: take, find, verify, remove. Creating sandboxes from them is in `create`, a rollback in `driver`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::lifecycle::{PhaseSet, Verb};
use atoll_model::policy::placement;
use atoll_model::{Code, InstanceId, Lease, Principal, Snapshot, SnapshotId, SnapshotState};
use atoll_provider::{Capability, Target};
use atoll_store::{InstanceRow, SnapshotQuery};
use tokio::sync::oneshot;

use crate::admission::NotAdmitted;
use crate::base::{ServiceBase, visible};
use crate::driver::{DriverMessage, SnapshotJob};
use crate::random::entropy;
use crate::registry::Handle;
use crate::sandboxes::{PAGE, PAGE_MAX, Sandboxes, SandboxesState, printable, tell};
use crate::{NewSnapshot, Page, ServiceError, SnapshotFilter};

/// LIMIT: reading a large memory image from a slow disk.
const VERIFY: Duration = Duration::from_secs(600);

/// A snapshot that the driver shall take.
pub(crate) struct SnapshotRequest {
    pub(crate) name: Option<String>,
    pub(crate) tenant_wide: bool,
    pub(crate) memory: bool,
    /// Only the fork that it is made for sees it.
    pub(crate) transient: bool,
    pub(crate) expect: Option<PhaseSet>,
}

impl SnapshotRequest {
    /// One that nobody sees.
    pub(crate) const fn transient(memory: bool, expect: Option<PhaseSet>) -> Self {
        Self { name: None, tenant_wide: false, memory, transient: true, expect }
    }

    pub(crate) const fn verb(&self) -> Verb {
        if self.transient { Verb::Fork } else { Verb::Snapshot }
    }
}

impl Sandboxes {
    /// Keeps the current state of a running, paused or stopped sandbox.
    pub async fn snapshot(
        &self,
        who: &Principal,
        ident: &str,
        ask: NewSnapshot,
    ) -> Result<Snapshot, ServiceError> {
        if let Some(name) = &ask.name {
            atoll_model::check_name(name)?;
        }
        let handle = self.driven(who, ident).await?;
        let lease = handle.lease();
        if ask.memory
            && let Some(why) = self.no_memory(&lease)
        {
            return Err(why);
        }
        let NewSnapshot { tenant_wide, memory, expect, .. } = ask;
        let request = |name| SnapshotRequest { name, tenant_wide, memory, transient: false, expect };
        match ask.name {
            Some(name) if ask.replace => {
                let taken = self.take(&handle, request(None)).await?;
                self.name_over(taken, &name).await
            }
            name => self.take(&handle, request(name)).await,
        }
    }

    /// Gives a name to a snapshot, even if another snapshot has it.
    async fn name_over(&self, snapshot: Snapshot, name: &str) -> Result<Snapshot, ServiceError> {
        let named = self.inner.store.move_snapshot_name(&snapshot.id, name).await?;
        named.ok_or_else(|| gone(&snapshot.id))
    }

    /// Why the processes of a sandbox cannot be copied.
    pub(crate) fn no_memory(&self, lease: &Lease) -> Option<ServiceError> {
        let provider = match self.inner.providers.of(lease) {
            Ok(provider) => provider,
            Err(error) => return Some(error),
        };
        if !provider.capabilities().checkpoints {
            return Some(provider.missing(Capability::Checkpoint).into());
        }
        if !lease.private_env.is_empty() {
            let message =
                format!("sandbox {} has private_env, which copied processes would reveal", lease.id);
            return Some(
                ServiceError::new(Code::InvalidRequest, message).hint("take a snapshot of its files only"),
            );
        }
        if lease.storage == atoll_model::Storage::Memory {
            let message = format!("sandbox {} keeps its files in memory", lease.id);
            return Some(
                ServiceError::new(Code::InvalidRequest, message).hint("take a snapshot of its files only"),
            );
        }
        None
    }

    /// Takes a snapshot in the order of the driver's effects.
    pub(crate) async fn take(
        &self,
        handle: &Handle,
        request: SnapshotRequest,
    ) -> Result<Snapshot, ServiceError> {
        let provider = self.inner.providers.of(&handle.lease())?;
        if !provider.capabilities().snapshots {
            return Err(provider.missing(Capability::Snapshot).into());
        }
        self.room_for(&handle.lease(), request.memory).await?;
        let id = SnapshotId::from_entropy(entropy()?);
        let (reply, answer) = oneshot::channel();
        tell(handle, DriverMessage::Snapshot(SnapshotJob::new(id, request, reply)))?;
        match answer.await {
            Ok(Err(error)) if error.code == Code::PhaseConflict && handle.lease().phase.is_gone() => {
                Err(crate::error::refused(&handle.lease(), Verb::Snapshot))
            }
            Ok(taken) => taken,
            Err(_) => Err(crate::error::refused(&handle.lease(), Verb::Snapshot)),
        }
    }

    /// Copies must not fill the disk that all sandboxes share. Files share their blocks if the provider supports that;
    /// memory is written in full.
    async fn room_for(&self, lease: &Lease, memory: bool) -> Result<(), ServiceError> {
        let provider = self.inner.providers.of(lease)?;
        let node = self.inner.admission.look(provider.as_ref()).await?;
        let target = Target { sandbox: lease.id.clone(), instance: lease.instance.clone() };
        let mib = match memory {
            false => 0,
            true => match provider.usage(&target).await {
                Ok(usage) => usage.memory_bytes.saturating_sub(usage.cache_bytes) >> 20,
                // Its memory is on disk already, or its state is about to change.
                Err(_) => u64::from(lease.limits.memory_mib),
            },
        };
        placement::admit_copy(&node, mib).map_err(|full| NotAdmitted::from(full).into())
    }

    /// A page of snapshots, newest first.
    pub async fn snapshots(
        &self,
        who: &Principal,
        filter: SnapshotFilter,
    ) -> Result<Page<Snapshot>, ServiceError> {
        let sandbox = match &filter.sandbox {
            Some(ident) => Some(self.find(who, ident).await?.0.id.clone()),
            None => None,
        };
        let query = SnapshotQuery {
            tenant: visible(who).cloned(),
            sandbox,
            sandbox_name: None,
            name: filter.name,
            limit: if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) },
            cursor: filter.cursor,
        };
        Ok(self.inner.store.snapshots(query).await?)
    }

    /// A snapshot by id, `SANDBOX:NAME`, name or unique prefix of its id.
    pub async fn get_snapshot(&self, who: &Principal, ident: &str) -> Result<Snapshot, ServiceError> {
        let mut found = self.inner.store.find_snapshot(Some(&who.tenant), ident).await?;
        if found.is_empty() && visible(who).is_none() {
            // Of other tenants by id only, as for sandboxes.
            found = self.inner.store.find_snapshot(None, ident).await?;
            found.retain(|snapshot| snapshot.id.as_str().starts_with(ident));
        }
        if let (true, Some((sandbox, name))) = (found.is_empty(), ident.split_once(':')) {
            found = self.named_of_sandbox(who, sandbox, name).await?;
        }
        found.retain(|snapshot| {
            snapshot.state == SnapshotState::Ready && !snapshot.transient && !snapshot.warm
        });
        match (found.pop(), found.pop()) {
            (Some(snapshot), None) => Ok(snapshot),
            (None, _) => {
                let message = format!("there is no snapshot {}", printable(ident));
                Err(ServiceError::new(Code::SnapshotNotFound, message)
                    .hint("list them: GET /v1/snapshots, or atoll snapshot ls"))
            }
            (Some(one), Some(other)) => {
                let message = format!("{} matches more than one snapshot", printable(ident));
                let (one, other) = (reference(&one), reference(&other));
                Err(ServiceError::new(Code::Ambiguous, message)
                    .hint(format!("choose one of them: {other}, {one}, …")))
            }
        }
    }

    /// The snapshots with this name of a sandbox: the one that has the id or name now, else those that had the name when
    /// the snapshot was taken.
    async fn named_of_sandbox(
        &self,
        who: &Principal,
        sandbox: &str,
        name: &str,
    ) -> Result<Vec<Snapshot>, ServiceError> {
        match self.find(who, sandbox).await {
            Ok((lease, _)) => {
                if let Some(found) = self.snapshot_of(who, &lease, name).await? {
                    return Ok(vec![found]);
                }
            }
            Err(error) if error.code == Code::SandboxNotFound => {}
            Err(error) => return Err(error),
        }
        let query = SnapshotQuery {
            tenant: Some(who.tenant.clone()),
            sandbox_name: Some(sandbox.to_owned()),
            name: Some(name.to_owned()),
            limit: 2,
            ..SnapshotQuery::default()
        };
        Ok(self.inner.store.snapshots(query).await?.items)
    }

    /// The snapshot of this sandbox with this name; one whose name belongs to the sandbox comes first.
    async fn snapshot_of(
        &self,
        who: &Principal,
        lease: &Lease,
        name: &str,
    ) -> Result<Option<Snapshot>, ServiceError> {
        let query = SnapshotQuery {
            tenant: visible(who).cloned(),
            sandbox: Some(lease.id.clone()),
            name: Some(name.to_owned()),
            limit: 2,
            ..SnapshotQuery::default()
        };
        let found = self.inner.store.snapshots(query).await?.items;
        Ok(found.into_iter().min_by_key(|snapshot| snapshot.tenant_wide))
    }

    /// The snapshot that a rollback of this sandbox means: a name is first one of its own.
    pub(crate) async fn snapshot_for(
        &self,
        who: &Principal,
        lease: &Lease,
        ident: &str,
    ) -> Result<Snapshot, ServiceError> {
        match self.snapshot_of(who, lease, ident).await? {
            Some(own) => Ok(own),
            None => self.get_snapshot(who, ident).await,
        }
    }

    /// The same, if its files are on this node.
    async fn local_snapshot(&self, who: &Principal, ident: &str) -> Result<Snapshot, ServiceError> {
        let snapshot = self.get_snapshot(who, ident).await?;
        self.inner.need_here(&format!("snapshot {}", snapshot.id), &snapshot.node)?;
        Ok(snapshot)
    }

    /// Removes a snapshot; [`Code::SnapshotInUse`] while a sandbox is being made from it or put back to it.
    pub async fn delete_snapshot(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let snapshot = self.local_snapshot(who, ident).await?;
        self.discard(snapshot).await
    }

    /// Removes a snapshot that is not in use.
    pub(crate) async fn discard(&self, snapshot: Snapshot) -> Result<(), ServiceError> {
        let Some(doomed) = self.inner.uses.doom(&snapshot.id) else {
            let message = format!("snapshot {} is being used", snapshot.id);
            return Err(ServiceError::new(Code::SnapshotInUse, message)
                .hint("wait until the sandboxes made from it run")
                .retry_after(1));
        };
        // The caller may disconnect at any time.
        let inner = Arc::clone(&self.inner);
        let removal = async move {
            let tenant = snapshot.tenant.clone();
            let removed = remove(&inner, snapshot).await;
            inner.queue.tenant_freed(&tenant);
            drop(doomed);
            removed
        };
        self.inner.run_detached(removal).await
    }

    /// Deletes a sandbox with its snapshots. They are removed first: if one of them is being used, the request can be
    /// repeated by the sandbox's name.
    pub async fn delete_with_snapshots(
        &self,
        who: &Principal,
        ident: &str,
        wait: bool,
    ) -> Result<Lease, ServiceError> {
        let id = self.find(who, ident).await?.0.id.clone();
        loop {
            let filter = SnapshotFilter { sandbox: Some(id.to_string()), ..SnapshotFilter::default() };
            let page = self.snapshots(who, filter).await?;
            if page.items.is_empty() {
                return self.delete(who, id.as_str(), wait).await;
            }
            for snapshot in page.items {
                self.delete_snapshot(who, snapshot.id.as_str()).await?;
            }
        }
    }

    /// Reads a whole snapshot; [`Code::Damaged`] if it has changed.
    pub async fn verify_snapshot(&self, who: &Principal, ident: &str) -> Result<Snapshot, ServiceError> {
        let snapshot = self.local_snapshot(who, ident).await?;
        let _use = self.inner.uses.take(&snapshot.id)?;
        let provider = self.inner.providers.of_snapshot(&snapshot)?;
        let reading = provider.verify_snapshot(&snapshot.id, &snapshot.seal);
        match tokio::time::timeout(VERIFY, reading).await {
            Ok(checked) => checked?,
            Err(_) => {
                let message = format!("snapshot {} was not read within {VERIFY:?}", snapshot.id);
                return Err(ServiceError::new(Code::DeadlineExceeded, message));
            }
        }
        Ok(snapshot)
    }
}

/// Removes a snapshot for good. The row says so first, so that a crash in between is finished at the next start.
pub(crate) async fn remove(inner: &ServiceBase, snapshot: Snapshot) -> Result<(), ServiceError> {
    inner.providers.of_snapshot(&snapshot)?;
    let doomed = Snapshot { state: SnapshotState::Deleting, name: None, ..snapshot };
    inner.store.put_snapshot(doomed.clone(), None).await?;
    inner.failpoint.reach("snapshot.deleting").await;
    finish_removal(inner, &doomed).await
}

/// The rest of a removal whose row is written.
pub(crate) async fn finish_removal(inner: &ServiceBase, snapshot: &Snapshot) -> Result<(), ServiceError> {
    inner.providers.of_snapshot(snapshot)?.remove_snapshot(&snapshot.id).await?;
    inner.failpoint.reach("snapshot.removed").await;
    inner.disk.shares().forget(snapshot.id.as_str());
    inner.store.delete_snapshot(&snapshot.id).await?;
    Ok(())
}

/// A snapshot that a sandbox is being created from or rolled back to.
pub(crate) struct Seed {
    pub(crate) snapshot: SnapshotId,
    /// The provider that keeps it.
    pub(crate) provider: String,
    pub(crate) seal: String,
    /// Whether its processes are used too.
    pub(crate) memory: bool,
    /// The token that its agent knows.
    pub(crate) token: Option<String>,
    /// Whether booting from the template would be correct too, only slower.
    pub(crate) warm: bool,
    _use: SnapshotUse,
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seed").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl Seed {
    /// Reads a snapshot and keeps it from being removed meanwhile.
    pub(crate) async fn of(
        inner: &SandboxesState,
        id: &SnapshotId,
        memory: bool,
    ) -> Result<Self, ServiceError> {
        let held = inner.uses.take(id)?;
        let found = inner.store.snapshot(id).await?;
        let Some((snapshot, token)) = found.filter(|(known, _)| known.state == SnapshotState::Ready) else {
            return Err(gone(id));
        };
        inner.need_here(&format!("snapshot {id}"), &snapshot.node)?;
        inner.providers.of_snapshot(&snapshot)?;
        let memory = memory && snapshot.memory;
        let Snapshot { id, provider, seal, warm, .. } = snapshot;
        Ok(Self { snapshot: id, provider, seal, memory, token, warm, _use: held })
    }
}

/// A text that names exactly this snapshot, with its name where it has one.
fn reference(snapshot: &Snapshot) -> String {
    match (&snapshot.name, snapshot.tenant_wide) {
        (Some(name), true) => format!("{} ({name})", snapshot.id),
        (Some(name), false) => format!("{}:{name}", snapshot.sandbox),
        (None, _) => snapshot.id.to_string(),
    }
}

fn gone(id: &SnapshotId) -> ServiceError {
    ServiceError::new(Code::SnapshotNotFound, format!("snapshot {id} no longer exists"))
}

/// The row of an instance that is a checkpoint from a snapshot: its agent knows the token of the snapshot's agent.
pub(crate) async fn row_of_seed(
    inner: &SandboxesState,
    lease: &Lease,
    seed: Option<Arc<Seed>>,
) -> Result<InstanceRow, ServiceError> {
    let seed = match (seed, &lease.rollback_to) {
        (Some(seed), _) => seed,
        (None, Some(snapshot)) => Arc::new(Seed::of(inner, snapshot, true).await?),
        (None, None) => return Err(ServiceError::new(Code::Internal, "no snapshot was named")),
    };
    let Some(agent_token) = seed.token.clone() else {
        return Err(ServiceError::new(Code::Internal, "the agent of the snapshot does not answer"));
    };
    let instance = InstanceId::from_entropy(entropy()?);
    Ok(InstanceRow { instance, facts: serde_json::Value::Null, agent_token })
}

/// Snapshots that are in use, and snapshots that are being removed.
#[derive(Clone, Default)]
pub(crate) struct Uses(Arc<Mutex<HashMap<SnapshotId, Count>>>);

#[derive(Clone, Copy)]
enum Count {
    Used(u32),
    Doomed,
}

/// Keeps a snapshot from being removed, or from being used, until it is dropped.
pub(crate) struct SnapshotUse {
    of: Uses,
    id: SnapshotId,
}

impl Uses {
    /// Keeps it from being removed.
    pub(crate) fn take(&self, id: &SnapshotId) -> Result<SnapshotUse, ServiceError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.entry(id.clone()).or_insert(Count::Used(0)) {
            Count::Used(count) => *count += 1,
            Count::Doomed => {
                return Err(ServiceError::new(
                    Code::SnapshotNotFound,
                    format!("snapshot {id} is being removed"),
                ));
            }
        }
        Ok(SnapshotUse { of: self.clone(), id: id.clone() })
    }

    /// Keeps it from being used; `None` if it is in use.
    pub(crate) fn doom(&self, id: &SnapshotId) -> Option<SnapshotUse> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.contains_key(id) {
            return None;
        }
        all.insert(id.clone(), Count::Doomed);
        Some(SnapshotUse { of: self.clone(), id: id.clone() })
    }
}

impl Drop for SnapshotUse {
    fn drop(&mut self) {
        let mut all = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&self.id) {
            Some(Count::Used(count)) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.id)),
        }
    }
}
