//! After a restart of the server: adopts living instances, completes interrupted operations, and marks lost sandboxes
//! as failed.
//!
//! | was       | provider says | becomes |
//! |-----------|---------------|---------|
//! | creating  | (not asked)   | created again as another instance: a caller that repeats its key finds it running |
//! | creating, queued | (not asked) | queued again, in the same order |
//! | creating, waiting for its image | (not asked) | pulled again; one whose build is ready boots; else failed: no build continues |
//! | creating, child of a fork that was not finished | (not asked) | deleted, with all its siblings |
//! | any, of a build | (not asked) | deleted: the build has failed |
//! | starting  | (files only)  | booted again as another instance |
//! | running   | alive / gone  | running / failed, lost while down |
//! | pausing   | lives / gone  | frozen (again), then paused / failed, lost while down |
//! | paused    | frozen, checkpointed / gone | paused, its memory where it is / failed, lost while down |
//! | resuming, memory live | frozen, checkpointed / alive / gone | resumed again / failed, lost while down |
//! | resuming, memory on disk | checkpointed / frozen, alive / gone | restored again / thawed and greeted / failed, lost while down |
//! | stopping  | alive / gone  | halted, then stopped |
//! | archiving | (files only)  | archived again; uploaded parts are found |
//! | archived  | (not asked)   | archived; files that are still here are removed |
//! | stopped or restoring, being copied to another provider | (files only) | stopped where it was; the copy is removed |
//! | restoring | (files only, or not asked) | rolled back again, or brought back again |
//! | deleting  | any           | destroyed, then deleted |
//! | stopped, failed | (files only) | unchanged; an interrupted operation continues |
//!
//! A sandbox that the orderly end of the last server had marked and not paused or deleted yet is paused or deleted first
//! (`exit.rs`).
//!
//! Snapshots that are not ready are removed. A snapshot that was made for a fork is removed too: as long as it is
//! ready, the fork was not complete.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{
    InstanceId, Intent, Lease, MemoryLocation, Phase, SandboxId, SnapshotId, SnapshotState, Source,
};
use atoll_provider::{Adopted, AdoptionOutcome, Isolation, KnownSandbox, Provider, ProviderError};
use atoll_store::InstanceRow;

use crate::ServiceError;
use crate::create::{ImageWait, queued_create};
use crate::driver::{self, Resumption};
use crate::registry::DriverState;
use crate::sandboxes::SandboxesState;
use crate::service::OpenError;
use crate::snapshots::Seed;

/// LIMIT: a service that does not list the instances of this server in this time is tried again later.
const ADOPTS_WITHIN: Duration = Duration::from_secs(15);

/// A sandbox that is not deleted, with its provider and its instance.
type LiveSandbox = (Arc<dyn Provider>, Lease, Option<InstanceRow>);

/// Adopts what belongs to these providers. Nothing else may be made at them meanwhile.
pub(crate) async fn adopt(
    inner: &Arc<SandboxesState>,
    providers: &[Arc<dyn Provider>],
) -> Result<(), OpenError> {
    let live = configured(providers, inner.store.live().await?);
    let volumes = inner.store.own_volumes().await?;
    inner.admission.note_owners(live.iter().map(|(_, lease, _)| lease), &volumes);
    let snapshots = Snapshots::read(inner, providers).await?;
    let mut fates = HashMap::new();
    for provider in providers {
        fates.extend(fates_at(inner, provider, &live, &snapshots).await?);
    }
    snapshots.forget_unwanted(inner).await;
    let exits = PendingExits::read(inner, &live).await?;
    let (mut running, mut paused, mut lost) = (0, 0, 0);
    let mut unmade = Vec::new();
    for (provider, lease, row) in live {
        let fate = lease.instance.as_ref().and_then(|instance| fates.remove(instance));
        let first = if snapshots.is_unfinished(&lease) {
            unmade.push(lease.id.clone());
            Resumption::Unmake
        } else if lease.build.is_some() && lease.phase != Phase::Deleting {
            // No build continues after a restart.
            Resumption::Unmake
        } else {
            resumption(&lease, fate.as_ref())
        };
        running += u32::from(first == Resumption::Nothing && lease.phase == Phase::Running);
        paused += u32::from(lease.phase == Phase::Paused);
        lost += u32::from(first == Resumption::Lost);
        let waits = lease.waits_for_image() && first == Resumption::Nothing;
        let queued = lease.waits_for_place().then(|| queued_create(&lease));
        let id = lease.id.clone();
        let exits = exits.concern(&id);
        take_up(inner, provider, lease, row, fate, first, exits).await;
        if let Some(create) = queued {
            inner.queue.rejoin(create);
        }
        if let Some(handle) = inner.registry.get(&id).filter(|_| waits) {
            ImageWait::again(inner).start(handle);
        }
    }
    finish_forks(inner, snapshots.unfinished, unmade);
    tracing::info!(running, paused, lost, "sandboxes were adopted");
    Ok(())
}

/// Sandboxes with their providers. Those of a provider that this server does not have get no driver: they stay as they are.
fn configured(providers: &[Arc<dyn Provider>], live: Vec<(Lease, Option<InstanceRow>)>) -> Vec<LiveSandbox> {
    let with_provider = live.into_iter().filter_map(|(lease, row)| {
        let Some(provider) = named(providers, &lease.provider) else {
            tracing::debug!(sandbox = %lease.id, provider = lease.provider, "a sandbox of another provider is left as it is");
            return None;
        };
        Some((Arc::clone(provider), lease, row))
    });
    with_provider.collect()
}

fn named<'a>(providers: &'a [Arc<dyn Provider>], name: &str) -> Option<&'a Arc<dyn Provider>> {
    providers.iter().find(|provider| provider.name() == name)
}

/// What became of the instances of one provider. It gets only its own sandboxes and snapshots.
async fn fates_at(
    inner: &SandboxesState,
    provider: &Arc<dyn Provider>,
    live: &[LiveSandbox],
    snapshots: &Snapshots,
) -> Result<Vec<(InstanceId, Adopted)>, OpenError> {
    let mut all = Vec::new();
    for (_, lease, row) in live.iter().filter(|(own, ..)| own.name() == provider.name()) {
        all.extend(known(inner, lease, row.as_ref()).await.map_err(OpenError::Policy)?);
    }
    let wanted = snapshots.wanted.get(provider.name()).cloned().unwrap_or_default();
    let late = ProviderError::Late { what: "the list of its instances".to_owned(), after: ADOPTS_WITHIN };
    let adopted = provider.adopt(all, wanted);
    let adopted = match provider.description().isolation {
        // A service that hangs must not keep the server, or other providers, waiting.
        Isolation::Vendor => tokio::time::timeout(ADOPTS_WITHIN, adopted).await.unwrap_or(Err(late)),
        _ => adopted.await,
    };
    let adopted = adopted.map_err(|cause| OpenError::Adopt { provider: provider.name(), cause })?;
    Ok(adopted.into_iter().map(|adopted| (adopted.instance.clone(), adopted)).collect())
}

/// Forgets forks that were not finished, as soon as it is written that all of their children go.
fn finish_forks(inner: &Arc<SandboxesState>, unfinished: HashSet<SnapshotId>, children: Vec<SandboxId>) {
    if unfinished.is_empty() {
        return;
    }
    let own = Arc::clone(inner);
    inner.spawn(async move {
        for child in children {
            let Some(mut handle) = own.registry.get(&child) else { continue };
            let goes = |state: &DriverState| state.lease.phase.is_gone();
            // An error means that its driver ended, which it does after the deletion.
            let _ = handle.state.wait_for(goes).await;
        }
        for id in unfinished {
            if let Err(error) = own.store.delete_snapshot(&id).await {
                tracing::warn!(snapshot = %id, %error, "the row of an unfinished fork could not be removed");
            }
        }
    });
}

async fn take_up(
    inner: &Arc<SandboxesState>,
    provider: Arc<dyn Provider>,
    lease: Lease,
    row: Option<InstanceRow>,
    fate: Option<Adopted>,
    first: Resumption,
    exits: bool,
) {
    if lease.holds_compute() {
        inner.admission.count(&lease);
    }
    inner.admission.count_files(&lease);
    let row = row.map(|row| match fate.as_ref().and_then(|fate| fate.facts.clone()) {
        Some(facts) => InstanceRow { facts, ..row },
        None => row,
    });
    let lives = fate.as_ref().is_some_and(|fate| fate.fate == AdoptionOutcome::Alive);
    let agent = row
        .as_ref()
        .filter(|_| lives && lease.phase == Phase::Running)
        .map(|row| crate::agent::client(&provider, &lease, &row.instance, &row.agent_token));
    let needs_seed = match (lease.phase, &lease.rollback_to, &lease.source) {
        (Phase::Restoring, Some(snapshot), _) => Some((snapshot.clone(), true)),
        (Phase::Creating, _, Source::Snapshot { snapshot, memory, .. }) => Some((snapshot.clone(), *memory)),
        _ => None,
    };
    let seed = match needs_seed {
        // If the snapshot no longer exists, the effect fails later and reports that.
        Some((snapshot, memory)) => Seed::of(inner, &snapshot, memory).await.ok().map(Arc::new),
        None => None,
    };
    driver::resume(inner, driver::AdoptedSandbox { provider, lease, row, agent, seed, exits }, first);
}

/// An incomplete creation is not passed to the provider, so that the provider removes all of it; nor is a sandbox whose
/// files are in object storage.
async fn known(
    inner: &SandboxesState,
    lease: &Lease,
    row: Option<&InstanceRow>,
) -> Result<Option<KnownSandbox>, ServiceError> {
    let of_row = || row.map(|row| (row.instance.clone(), row.facts.clone()));
    let instance = match lease.phase {
        Phase::Creating | Phase::Archived | Phase::Deleted => return Ok(None),
        Phase::Restoring if lease.rollback_to.is_none() && !lease.is_being_copied() => return Ok(None),
        Phase::Running
        | Phase::Pausing
        | Phase::Paused
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Deleting => of_row(),
        Phase::Starting | Phase::Stopped | Phase::Archiving | Phase::Restoring | Phase::Failed => None,
    };
    Ok(Some(KnownSandbox {
        sandbox: lease.id.clone(),
        instance,
        storage: lease.storage,
        limits: lease.limits,
        network: crate::egress::compiled(inner, lease).await?,
        paused: lease.phase.is_suspended(),
    }))
}

fn resumption(lease: &Lease, adopted: Option<&Adopted>) -> Resumption {
    let fate = adopted.map_or(AdoptionOutcome::Gone, |adopted| adopted.fate);
    match (lease.phase, fate) {
        (Phase::Creating, _) if lease.waits_to_boot() => Resumption::Nothing,
        (Phase::Creating | Phase::Starting, _) => Resumption::Again,
        (Phase::Running, AdoptionOutcome::Alive) => Resumption::Nothing,
        // It should have been thawed; it runs when it is resumed.
        (Phase::Running, AdoptionOutcome::Frozen | AdoptionOutcome::Checkpointed | AdoptionOutcome::Gone) => {
            Resumption::Lost
        }
        (Phase::Pausing | Phase::Paused | Phase::Resuming, AdoptionOutcome::Gone) => Resumption::Lost,
        (Phase::Pausing, _) => Resumption::Freeze,
        (Phase::Paused, fate) => paused(lease, fate),
        (Phase::Resuming, fate) => match (lease.held, fate, adopted.and_then(|a| a.facts.clone())) {
            // The restore was complete. Whether the instance was thawed is not known; it must run, and its agent must
            // be greeted.
            (Some(MemoryLocation::Disk), AdoptionOutcome::Alive | AdoptionOutcome::Frozen, facts) => {
                Resumption::Restored(facts.unwrap_or_default())
            }
            (_, _, _) => Resumption::Resume,
        },
        (Phase::Stopping, _) => Resumption::Halt,
        (Phase::Archiving, _) => Resumption::Archive,
        (Phase::Restoring | Phase::Stopped, _) if lease.is_being_copied() => Resumption::AbortMove,
        (Phase::Restoring, _) => Resumption::Restore,
        (Phase::Deleting, _) => Resumption::Destroy,
        (Phase::Stopped, _) if matches!(lease.intent, Intent::Run | Intent::Archive) => Resumption::GoOn,
        (Phase::Archived, _) if matches!(lease.intent, Intent::Run | Intent::Stop) => Resumption::GoOn,
        (Phase::Stopped | Phase::Archived | Phase::Failed | Phase::Deleted, _) => Resumption::Nothing,
    }
}

fn paused(lease: &Lease, fate: AdoptionOutcome) -> Resumption {
    match fate {
        AdoptionOutcome::Gone => Resumption::Lost,
        AdoptionOutcome::Alive => Resumption::Freeze,
        AdoptionOutcome::Frozen if lease.held != Some(MemoryLocation::Live) => {
            Resumption::Held(MemoryLocation::Live)
        }
        AdoptionOutcome::Checkpointed if lease.held != Some(MemoryLocation::Disk) => {
            Resumption::Held(MemoryLocation::Disk)
        }
        AdoptionOutcome::Frozen | AdoptionOutcome::Checkpointed if lease.intent == Intent::Run => {
            Resumption::GoOn
        }
        AdoptionOutcome::Frozen | AdoptionOutcome::Checkpointed => Resumption::Nothing,
    }
}

/// Sandboxes that the orderly end of the last server had not paused or deleted yet.
struct PendingExits(HashSet<SandboxId>);

impl PendingExits {
    /// Marks of sandboxes that need nothing are removed; those of sandboxes without a provider stay.
    async fn read(inner: &SandboxesState, live: &[LiveSandbox]) -> Result<Self, OpenError> {
        let marked: HashSet<SandboxId> = inner.store.pending_exits().await?.into_iter().collect();
        let of_live = live.iter().filter(|(_, lease, _)| marked.contains(&lease.id));
        let (open, done): (Vec<_>, Vec<_>) =
            of_live.partition(|(_, lease, _)| crate::exit::action(lease).is_some());
        if !done.is_empty() {
            inner.store.end_exits(done.into_iter().map(|(_, lease, _)| lease.id.clone()).collect()).await?;
        }
        if !open.is_empty() {
            tracing::info!(sandboxes = open.len(), "the end of the last server is finished now");
        }
        Ok(Self(open.into_iter().map(|(_, lease, _)| lease.id.clone()).collect()))
    }

    fn concern(&self, sandbox: &SandboxId) -> bool {
        self.0.contains(sandbox)
    }
}

/// The snapshots in the store, without those of providers that this server does not have.
struct Snapshots {
    /// By provider.
    wanted: HashMap<String, Vec<SnapshotId>>,
    /// Rows of snapshots that the adoption removes.
    unwanted: Vec<SnapshotId>,
    /// Snapshots of forks that were not complete.
    unfinished: HashSet<SnapshotId>,
}

impl Snapshots {
    async fn read(inner: &SandboxesState, providers: &[Arc<dyn Provider>]) -> Result<Self, OpenError> {
        let (mut wanted, mut unwanted, mut unfinished) = (HashMap::new(), vec![], HashSet::new());
        for snapshot in inner.store.all_snapshots().await? {
            inner.disk.shares().assign(snapshot.id.as_str(), snapshot.tenant.as_str());
            if named(providers, &snapshot.provider).is_none() {
                continue;
            }
            match snapshot.state {
                SnapshotState::Ready if snapshot.transient => {
                    unfinished.insert(snapshot.id.clone());
                    unwanted.push(snapshot.id);
                }
                SnapshotState::Ready => {
                    wanted.entry(snapshot.provider).or_insert_with(Vec::new).push(snapshot.id);
                }
                SnapshotState::Making | SnapshotState::Deleting => unwanted.push(snapshot.id),
            }
        }
        Ok(Self { wanted, unwanted, unfinished })
    }

    fn is_unfinished(&self, lease: &Lease) -> bool {
        match &lease.source {
            Source::Snapshot { snapshot, .. } => self.unfinished.contains(snapshot),
            Source::Template | Source::Archive { .. } => false,
        }
    }

    /// The provider has removed them. Rows of unfinished forks stay until their children are marked: see [`finish_forks`].
    async fn forget_unwanted(&self, inner: &SandboxesState) {
        for id in self.unwanted.iter().filter(|id| !self.unfinished.contains(*id)) {
            if let Err(error) = inner.store.delete_snapshot(id).await {
                tracing::warn!(snapshot = %id, %error, "the row of a removed snapshot could not be removed");
            }
        }
    }
}
