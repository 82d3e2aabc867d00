//! Snapshots of files, which the service keeps as templates of its own.
//!
//! | snapshot | at the service |
//! |---|---|
//! | owner, id | its name, `atoll-OWNER-ID` |
//! | seal | its id, with which sandboxes are made from it |
//! | rollback | another object that is made from it, and takes the place of the one before |
//!
//! A snapshot whose answer was lost is found again by its name, and never asked for twice. One that failed, or that could not be
//! removed, is looked for until the grace time is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::{Limits, SandboxId, SnapshotId};
use atoll_provider::{
    Capability, FilesOrigin, InstanceSpec, ProviderError, RolledBack, SnapshotSupport, Snapshotted, Target,
};
use atoll_remote::{Backoff, CallError, ObjectState, gone, missing_capability, random_hex};
use futures::StreamExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{NewObject, OwnedSnapshot};
use crate::lifecycle::{E2bObject, E2bSlot};
use crate::records::InstanceRecord;
use crate::{E2bProvider, E2bShared};

/// LIMIT: how often a snapshot is looked for whose answer was lost.
const LOOKS: u32 = 6;
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// LIMIT: snapshots that the adoption removes at a time.
const AT_ONCE: usize = 8;
/// LIMIT: how long the adoption waits for their list and their removal.
const SWEEP_WITHIN: Duration = Duration::from_secs(3);
/// LIMIT: snapshots that are remembered as unwanted. More of them are removed at the next start.
const UNWANTED_MAX: usize = 1_024;

/// Snapshots that have to go, and since when.
#[derive(Debug, Default)]
pub(crate) struct UnwantedSnapshots(Mutex<HashMap<SnapshotId, Instant>>);

impl UnwantedSnapshots {
    fn add(&self, snapshot: &SnapshotId) {
        let mut unwanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if unwanted.len() < UNWANTED_MAX {
            unwanted.entry(snapshot.clone()).or_insert_with(Instant::now);
        }
    }

    fn remove(&self, snapshot: &SnapshotId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(snapshot);
    }

    fn all(&self) -> Vec<(SnapshotId, Instant)> {
        let unwanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unwanted.iter().map(|(snapshot, since)| (snapshot.clone(), *since)).collect()
    }
}

/// Removes unwanted snapshots. It ends with the provider.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCleanup(Mutex<JoinSet<()>>);

impl SnapshotCleanup {
    /// Begins, unless it has begun.
    pub(crate) fn start(&self, shared: &Arc<E2bShared>) {
        let mut task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_empty() {
            task.spawn(remove_unwanted(Arc::clone(shared)));
        }
    }
}

async fn remove_unwanted(shared: Arc<E2bShared>) {
    let mut tick = tokio::time::interval(shared.timing.watch_every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for (snapshot, since) in shared.unwanted.all() {
            let is_over = since.elapsed() > shared.timing.grace;
            match shared.remove_snapshot(&snapshot).await {
                // The service may still be making it: it is looked for until the grace time is over.
                Ok(_) if is_over => shared.unwanted.remove(&snapshot),
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%snapshot, provider = shared.name, %error, "a snapshot could not be removed yet");
                }
            }
        }
    }
}

fn damaged(snapshot: &SnapshotId, why: &str) -> ProviderError {
    ProviderError::Damaged { what: format!("snapshot {snapshot}"), why: why.to_owned() }
}

/// The object that a call means: a live one by its instance, or whatever is there.
fn meant(slot: &E2bSlot, target: &Target) -> Result<E2bObject, ProviderError> {
    let is_meant = |object: &E2bObject| match &target.instance {
        Some(instance) => *instance == object.instance && object.is_live(),
        None => true,
    };
    slot.object().filter(is_meant).ok_or_else(|| gone(&target.sandbox))
}

impl E2bShared {
    /// What a new sandbox is made from: the name of its template, or the service's id of its snapshot.
    pub(crate) async fn base_of(&self, spec: &InstanceSpec) -> Result<String, ProviderError> {
        match &spec.origin {
            FilesOrigin::Template => Ok(spec.template.clone()),
            FilesOrigin::Snapshot { memory: true, .. } => {
                Err(missing_capability(self.name, Capability::Checkpoint))
            }
            FilesOrigin::Snapshot { snapshot, seal, memory: false } => {
                self.checked_snapshot(snapshot, seal).await
            }
        }
    }

    /// The service's id of a snapshot that is there and is the one that was taken.
    async fn checked_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<String, ProviderError> {
        let found = self.api.snapshots(Some(snapshot)).await;
        let found = found.map_err(|error| error.into_provider("looking for the snapshot"))?;
        match found.into_iter().next() {
            Some(found) if found.id == seal => Ok(found.id),
            Some(_) => Err(damaged(snapshot, "the service has another one of its name")),
            None => Err(damaged(snapshot, "the service does not have it")),
        }
    }

    /// Whether there was one.
    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<bool, CallError> {
        let found = self.api.snapshots(Some(snapshot)).await?;
        for found in &found {
            self.api.remove_snapshot(&found.id).await?;
        }
        Ok(!found.is_empty())
    }

    /// Removes the snapshots of this server that nobody knows. What takes longer is removed later.
    pub(crate) async fn sweep_snapshots(&self, known: &[SnapshotId]) {
        // No snapshot is taken meanwhile.
        let _nothing_else = self.table.adopting().await;
        let sweep = async {
            let listed = match self.api.snapshots(None).await {
                Ok(listed) => listed,
                // The service has none.
                Err(CallError::Refused { status: 404 | 405 | 501, .. }) => return,
                Err(error) => {
                    tracing::warn!(provider = self.name, %error, "the snapshots of this server could not be listed");
                    return;
                }
            };
            let unknown: Vec<OwnedSnapshot> =
                listed.into_iter().filter(|listed| !known.contains(&listed.snapshot)).collect();
            unknown.iter().for_each(|unknown| self.unwanted.add(&unknown.snapshot));
            let removals = unknown.into_iter().map(|OwnedSnapshot { id, snapshot }| async move {
                match self.api.remove_snapshot(&id).await {
                    Ok(()) => self.unwanted.remove(&snapshot),
                    Err(error) => {
                        tracing::warn!(%snapshot, provider = self.name, %error, "a snapshot that nobody knows could not be removed yet");
                    }
                }
            });
            futures::stream::iter(removals).buffer_unordered(AT_ONCE).collect::<()>().await;
        };
        if tokio::time::timeout(SWEEP_WITHIN, sweep).await.is_err() {
            tracing::warn!(provider = self.name, "the snapshots of this server are not all looked at yet");
        }
    }

    async fn snapshot(
        &self,
        target: &Target,
        slot: &E2bSlot,
        snapshot: &SnapshotId,
    ) -> Result<Snapshotted, ProviderError> {
        let mut object = meant(slot, target)?;
        if object.state == ObjectState::Ending {
            self.end_processes(&target.sandbox, slot, &object).await?;
            object = meant(slot, target)?;
        }
        let begun = Instant::now();
        let taken = match self.take(&object, snapshot).await {
            Ok(Some(seal)) => Ok(seal),
            Ok(None) => {
                self.unwanted.add(snapshot);
                self.table.report_death(&target.sandbox, &object);
                return Err(gone(&target.sandbox));
            }
            Err(error) => Err(error),
        };
        let seal = match taken {
            Ok(seal) => seal,
            Err(error) => {
                self.unwanted.add(snapshot);
                return Err(error.into_provider("taking a snapshot"));
            }
        };
        // A sandbox that did not run stood still anyway.
        let stood_still = match object.state {
            ObjectState::Running => begun.elapsed(),
            ObjectState::Paused | ObjectState::Ending | ObjectState::Halted => Duration::ZERO,
        };
        Ok(Snapshotted { memory: false, bytes: 0, seal, stood_still })
    }

    /// Takes a snapshot once; `None`: the object is not there.
    async fn take(&self, object: &E2bObject, snapshot: &SnapshotId) -> Result<Option<String>, CallError> {
        let error = match self.api.snapshot(&object.id, snapshot).await {
            Ok(seal) => return Ok(Some(seal)),
            Err(error) => error,
        };
        if error.is_uncertain() {
            return self.look_for_snapshot(snapshot).await?.map(Some).ok_or(error);
        }
        if !matches!(error, CallError::Refused { status: 400 | 404 | 409, .. }) {
            return Err(error);
        }
        match (self.api.state(&object.id).await?, object.state) {
            (None, _) => Ok(None),
            (Some(_), ObjectState::Running | ObjectState::Ending) => Err(error),
            // COMPAT(e2b): a service may take snapshots only of what runs.
            (Some(_), ObjectState::Paused) => self.take_awake(object, snapshot, true).await,
            (Some(_), ObjectState::Halted) => self.take_awake(object, snapshot, false).await,
        }
    }

    /// Wakes an object for a snapshot, and puts it back to rest whatever becomes of that.
    async fn take_awake(
        &self,
        object: &E2bObject,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Option<String>, CallError> {
        if self.api.connect(&object.id, memory).await?.is_none() {
            return Ok(None);
        }
        let taken = match self.api.snapshot(&object.id, snapshot).await {
            Err(error) if error.is_uncertain() => {
                self.look_for_snapshot(snapshot).await.and_then(|found| found.ok_or(error))
            }
            taken => taken,
        };
        let rests = self.api.pause(&object.id, memory).await?;
        let seal = taken?;
        Ok(rests.map(|()| seal))
    }

    /// Looks for a snapshot whose answer was lost; the service may still be making it.
    async fn look_for_snapshot(&self, snapshot: &SnapshotId) -> Result<Option<String>, CallError> {
        let mut backoff = Backoff::new(FIRST_LOOK);
        for _ in 0..LOOKS {
            if let Some(found) = self.api.snapshots(Some(snapshot)).await?.into_iter().next() {
                tracing::info!(%snapshot, provider = self.name, "the answer to a snapshot was lost; it was found by its name");
                return Ok(Some(found.id));
            }
            tokio::time::sleep(backoff.wait(None)).await;
        }
        Ok(None)
    }

    /// Makes an object from a snapshot, at rest, and lets it take the place of the sandbox's object. Until that is done the one
    /// before is kept. Which of the two it is after a crash says the record.
    async fn rollback(
        &self,
        target: &Target,
        slot: &E2bSlot,
        snapshot: &SnapshotId,
        seal: &str,
    ) -> Result<(), ProviderError> {
        let failed = |error: CallError| error.into_provider("rolling the sandbox back");
        let template = self.checked_snapshot(snapshot, seal).await?;
        let sandbox = &target.sandbox;
        // Its processes may have been ended already: by a rollback that a crash interrupted.
        let is_meant = |object: &E2bObject| target.instance.as_ref().is_none_or(|it| *it == object.instance);
        let before = slot.object().filter(is_meant).ok_or_else(|| gone(sandbox))?;
        let Some(internet) = self.api.internet(&before.id).await.map_err(failed)? else {
            self.table.report_death(sandbox, &before);
            return Err(gone(sandbox));
        };
        self.end_processes(sandbox, slot, &before).await?;
        self.remove_others(sandbox, &before).await.map_err(failed)?;
        let instance = &before.instance;
        // Its own key: the object before has the same labels.
        let key = random_hex().map_err(|cause| ProviderError::Failed {
            step: "making a key".to_owned(),
            cause: Box::new(cause),
        })?;
        let key = format!("{sandbox}-{key}");
        let new = NewObject { template: &template, sandbox, instance, internet, key };
        let made = self.make(&new, slot, Some(&before.id)).await;
        let made = made.map_err(|error| error.into_provider("making the files of the snapshot"))?;
        let rests = self.api.pause(&made.id, false).await.map_err(failed)?;
        rests.ok_or_else(|| gone(sandbox))?;
        let record =
            InstanceRecord { instance: instance.clone(), object: Some(made.id.clone()), halted: true };
        self.records.write(sandbox, record).await?;
        slot.set(self.object(instance, ObjectState::Halted, made.id, None));
        if let Err(error) = self.api.kill(&before.id).await {
            // No sandbox has it any more: it is removed after the grace time.
            tracing::warn!(%sandbox, provider = self.name, %error, "the files before a rollback could not be removed yet");
        }
        Ok(())
    }

    /// Removes what an earlier rollback may have left.
    async fn remove_others(&self, sandbox: &SandboxId, kept: &E2bObject) -> Result<(), CallError> {
        for other in self.api.owned(Some(sandbox)).await?.into_iter().filter(|other| other.id != kept.id) {
            self.api.kill(&other.id).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl SnapshotSupport for E2bProvider {
    async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        if memory {
            return Err(missing_capability(self.shared.name, Capability::Checkpoint));
        }
        let (shared, own, snapshot) = (Arc::clone(&self.shared), target.clone(), snapshot.clone());
        let work = move |slot: Arc<E2bSlot>| async move { shared.snapshot(&own, &slot, &snapshot).await };
        self.shared.table.change(&target.sandbox, work).await
    }

    /// That the service has it, with the id that it had. Its content cannot be read there.
    async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError> {
        self.shared.checked_snapshot(snapshot, seal).await.map(drop)
    }

    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        let removed = self.shared.remove_snapshot(snapshot).await;
        if !matches!(removed, Ok(true)) {
            // The service may still be making it.
            self.shared.unwanted.add(snapshot);
        }
        removed.map(drop).map_err(|error| error.into_provider("removing a snapshot"))
    }

    async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        _: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.clone());
        let (snapshot, seal) = (snapshot.clone(), seal.to_owned());
        let work =
            move |slot: Arc<E2bSlot>| async move { shared.rollback(&own, &slot, &snapshot, &seal).await };
        self.shared.table.change(&target.sandbox, work).await?;
        Ok(RolledBack::Files)
    }
}
