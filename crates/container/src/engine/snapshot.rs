//! Snapshots of files and memory, sandboxes that are created from one, and rollback.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_cgroup::Cgroups;
use atoll_instances::{InstanceLauncher, Instances, RunningInstance};
use atoll_model::{Limits, SandboxId, SnapshotId, Storage};
use atoll_provider::{Booted, FilesOrigin, InstanceSpec, ProviderError, RolledBack, Snapshotted, Target};

use super::instance::Live;
use super::reaper::InstanceRemains;
use super::restore::CheckpointSource;
use super::{EngineShared, SandboxSlot, failed, pause};
use crate::checkpoint::{CheckpointManifest, IMAGES, MANIFEST};
use atoll_storage::{CopyError, Seal};

const MIB: u64 = 1 << 20;

/// Freezes a sandbox temporarily. When this is dropped the sandbox runs again, unless it was frozen before.
struct FreezeGuard<'a> {
    cgroups: &'a dyn Cgroups,
    cgroup: Option<&'a str>,
    since: Instant,
}

impl<'a> FreezeGuard<'a> {
    fn begin(cgroups: &'a dyn Cgroups, cgroup: Option<&'a str>) -> io::Result<Self> {
        let cgroup = match cgroup {
            Some(name) if !cgroups.is_frozen(name)? => Some(name),
            _ => None,
        };
        let still = Self { cgroups, cgroup, since: Instant::now() };
        match cgroup {
            Some(name) => cgroups.freeze(name).map(|()| still),
            None => Ok(still),
        }
    }

    /// Lets the sandbox run again; returns how long it was frozen.
    fn end(self) -> Duration {
        let (was_running, since) = (self.cgroup.is_some(), self.since);
        drop(self);
        if was_running { since.elapsed() } else { Duration::ZERO }
    }
}

impl Drop for FreezeGuard<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.cgroup
            && let Err(cause) = self.cgroups.thaw(name)
        {
            tracing::error!(cgroup = name, %cause, "a sandbox could not be thawed after its snapshot");
        }
    }
}

impl EngineShared {
    pub(super) fn can_snapshot(&self) -> bool {
        true
    }

    /// Runs as a task of its own: a caller that goes away must not leave a frozen sandbox or an unknown snapshot.
    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; the caller waits for it otherwise"
    )]
    pub(super) async fn snapshot(
        self: &Arc<Self>,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        let (engine, target, snapshot) = (Arc::clone(self), target.clone(), snapshot.clone());
        let wanted = Arc::new(());
        let still_wanted = Arc::downgrade(&wanted);
        self.making().insert(snapshot.clone(), false);
        let task = tokio::spawn(async move {
            let slot = engine.instances.slot(&target.sandbox);
            let outcome = engine.snapshot_in_turn(&slot, &target, &snapshot, memory).await;
            engine.instances.forget_empty(&target.sandbox, &slot);
            let is_unwanted = {
                let mut making = engine.making();
                let is_unwanted = outcome.is_err()
                    || still_wanted.upgrade().is_none()
                    || making.get(&snapshot).copied().unwrap_or_default();
                if !is_unwanted {
                    making.remove(&snapshot);
                }
                is_unwanted
            };
            if is_unwanted {
                engine.erase_snapshot(&snapshot).await;
                engine.making().remove(&snapshot);
            }
            outcome
        });
        let taken = task.await.map_err(failed("taking a snapshot"));
        drop(wanted);
        taken?
    }

    async fn snapshot_in_turn(
        &self,
        slot: &SandboxSlot,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        let _turn = slot.turn().await;
        // A sweep must not find half-made snapshots.
        let _changing = self.instances.hold_off_adoption().await;
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let live = match (slot.live(), &target.instance) {
            (Some((instance, live)), wanted) if wanted.as_ref().is_none_or(|wanted| *wanted == instance) => {
                Some(live)
            }
            (Some(_), _) => return Err(gone()),
            (None, _) => None,
        };
        if live.as_ref().is_some_and(|live| live.facts.storage == Storage::Memory) {
            return Err(in_memory());
        }
        if !self.resources.layers.exists(target.sandbox.as_str()) {
            return Err(gone());
        }
        match (memory, live) {
            (false, live) => {
                let cgroup = live.map(|live| live.facts.cgroup.clone());
                self.snapshot_files(&target.sandbox, snapshot, cgroup).await
            }
            (true, Some(live)) => self.snapshot_with_memory(&target.sandbox, snapshot, &live).await,
            (true, None) => self.snapshot_of_checkpoint(&target.sandbox, snapshot).await,
        }
    }

    async fn snapshot_files(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
        cgroup: Option<String>,
    ) -> Result<Snapshotted, ProviderError> {
        let (layers, cgroups) = (Arc::clone(&self.resources.layers), Arc::clone(&self.resources.cgroups));
        let (name, id) = (sandbox.as_str().to_owned(), snapshot.as_str().to_owned());
        let work = move || {
            layers.settle_writes(&name)?;
            let still = FreezeGuard::begin(&*cgroups, cgroup.as_deref())?;
            layers.snapshot(&name, &id)?;
            let stood_still = still.end();
            Ok((stood_still, layers.seal(&name, &id, None)?))
        };
        let (stood_still, seal) = blocking(work).await.map_err(not_copied(snapshot, None))?;
        Ok(Snapshotted { memory: false, bytes: seal.bytes, seal: seal.text(), stood_still })
    }

    /// Copies processes and files of one moment: the sandbox is frozen until both are copied, but not while they are
    /// synced to disk.
    async fn snapshot_with_memory(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
        live: &Arc<Live>,
    ) -> Result<Snapshotted, ProviderError> {
        self.criu()?;
        let (layers, cgroups) = (Arc::clone(&self.resources.layers), Arc::clone(&self.resources.cgroups));
        let (name, id) = (sandbox.as_str().to_owned(), snapshot.as_str().to_owned());
        let cgroup = live.facts.cgroup.clone();
        let begin = {
            let (layers, name, id, cgroup) = (Arc::clone(&layers), name.clone(), id.clone(), cgroup.clone());
            move || {
                layers.settle_writes(&name)?;
                layers.snapshot_folder(&id)?;
                cgroups.is_frozen(&cgroup)
            }
        };
        let was_frozen = blocking(begin).await.map_err(not_copied(snapshot, None))?;
        self.reach("snapshot.folder");
        let begun = Instant::now();
        let copied = self.copy_both(sandbox, snapshot, live).await;
        let mut stood_still = Duration::ZERO;
        if !was_frozen {
            let cgroups = Arc::clone(&self.resources.cgroups);
            let thawed = self.blocking.run(move || cgroups.thaw(&cgroup)).await;
            stood_still = begun.elapsed();
            thawed.map_err(failed("thawing"))?;
        }
        let (manifest, hash) = copied?;
        self.reach("snapshot.thawed");
        let failpoint = self.resources.failpoint.clone();
        let seal = blocking(move || {
            layers.sync()?;
            failpoint.reach("snapshot.synced");
            layers.seal(&name, &id, Some(hash))
        });
        let seal = seal.await.map_err(not_copied(snapshot, None))?;
        self.reach("snapshot.sealed");
        Ok(Snapshotted { memory: true, bytes: seal.bytes + manifest.bytes(), seal: seal.text(), stood_still })
    }

    /// Freezes the sandbox, and leaves it frozen.
    async fn copy_both(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
        live: &Arc<Live>,
    ) -> Result<(CheckpointManifest, String), ProviderError> {
        self.freeze(live).await?;
        self.reach("snapshot.frozen");
        let draft = pause::draft_at(&self.memory_of(snapshot))?;
        let dumped = self.dump(sandbox, live, draft).await?;
        self.reach("snapshot.dumped");
        let (layers, name, id) =
            (Arc::clone(&self.resources.layers), sandbox.as_str().to_owned(), snapshot.as_str().to_owned());
        blocking(move || layers.snapshot(&name, &id)).await.map_err(not_copied(snapshot, None))?;
        self.reach("snapshot.copied");
        Ok(dumped)
    }

    /// A snapshot of a sandbox whose memory is on disk already.
    async fn snapshot_of_checkpoint(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<Snapshotted, ProviderError> {
        if !self.checkpoints.exists(sandbox) {
            return Err(ProviderError::Unsupported {
                what: "a snapshot with memory of a stopped sandbox".into(),
                hint: "it has no processes; take the snapshot without memory".into(),
            });
        }
        let (layers, from, to) =
            (Arc::clone(&self.resources.layers), self.checkpoints.path(sandbox), self.memory_of(snapshot));
        let (name, id) = (sandbox.as_str().to_owned(), snapshot.as_str().to_owned());
        let work = move || {
            layers.snapshot_folder(&id)?;
            copy_checkpoint(&from, &to)?;
            let (manifest, hash) = CheckpointManifest::read(&to).map_err(io::Error::other)?;
            layers.snapshot(&name, &id)?;
            layers.sync()?;
            Ok((manifest.bytes(), layers.seal(&name, &id, Some(hash))?))
        };
        let (bytes, seal) = blocking(work).await.map_err(not_copied(snapshot, None))?;
        let bytes = seal.bytes + bytes;
        Ok(Snapshotted { memory: true, bytes, seal: seal.text(), stood_still: Duration::ZERO })
    }

    fn memory_of(&self, snapshot: &SnapshotId) -> PathBuf {
        self.resources.layers.snapshot_path(snapshot.as_str()).join("memory")
    }

    /// A new sandbox with the files and processes of a snapshot.
    pub(super) async fn fork_with_memory(
        &self,
        spec: &InstanceSpec,
    ) -> Result<(Arc<Live>, Booted), ProviderError> {
        let FilesOrigin::Snapshot { snapshot, seal, .. } = &spec.origin else {
            return Err(failed("forking")(io::Error::from(io::ErrorKind::InvalidInput)));
        };
        self.criu()?;
        let seal = parse(snapshot, seal)?;
        if seal.images.is_none() {
            return Err(ProviderError::Unsupported {
                what: "the memory of a snapshot without memory".into(),
                hint: "use its files only".into(),
            });
        }
        self.check_snapshot(snapshot, &seal).await?;
        let with_usr = self.template(spec).await?.usr_overlay.is_some();
        let (layers, name, id) = (
            Arc::clone(&self.resources.layers),
            spec.sandbox.as_str().to_owned(),
            snapshot.as_str().to_owned(),
        );
        let limit = u64::from(spec.limits.disk_mib) * MIB;
        self.reach("fork.checked");
        let failpoint = self.resources.failpoint.clone();
        let make = move || {
            let path = layers.create_from(&name, &id, &seal, with_usr, limit).map_err(copy_failed)?;
            failpoint.reach("fork.copied");
            atoll_storage::renew_machine_id(&path, &name)?;
            failpoint.reach("fork.named");
            Ok(())
        };
        let restored = match blocking(make).await {
            Ok(()) => self.restore_from(&self.memory_of(snapshot), CheckpointSource::Kept, spec).await,
            Err(cause) => Err(not_copied(snapshot, Some(spec.limits))(cause)),
        };
        if restored.is_err() {
            let layer = Some(spec.sandbox.as_str().to_owned());
            self.instances.reaper().take(InstanceRemains { layer, ..InstanceRemains::default() });
        }
        restored
    }

    pub(super) async fn verify_snapshot(
        &self,
        snapshot: &SnapshotId,
        seal: &str,
    ) -> Result<(), ProviderError> {
        let seal = parse(snapshot, seal)?;
        self.check_snapshot(snapshot, &seal).await?;
        self.verify_memory(snapshot, &seal).await?;
        let (layers, id) = (Arc::clone(&self.resources.layers), snapshot.as_str().to_owned());
        let work = move || layers.verify(&id, &seal).map_err(copy_failed);
        blocking(work).await.map_err(not_copied(snapshot, None))
    }

    /// Reads and checks the whole memory of a snapshot, if it has memory.
    async fn verify_memory(&self, snapshot: &SnapshotId, seal: &Seal) -> Result<(), ProviderError> {
        if seal.images.is_none() {
            return Ok(());
        }
        let memory = self.memory_of(snapshot);
        let work = move || match CheckpointManifest::verify(&memory) {
            Ok(_) => Ok(()),
            Err(error) if error.is_damage() => Err(copy_failed(CopyError::Damaged(error.to_string()))),
            Err(error) => Err(io::Error::other(error)),
        };
        blocking(work).await.map_err(not_copied(snapshot, None))
    }

    /// Snapshots that are being made, and whether their removal was requested meanwhile.
    fn making(&self) -> MutexGuard<'_, HashMap<SnapshotId, bool>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a snapshot; its blocks are freed in the background. A snapshot that is still being made is removed by
    /// its maker, because two tasks that clear one folder would conflict.
    pub(super) async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        if let Some(unwanted) = self.making().get_mut(snapshot) {
            *unwanted = true;
            return Ok(());
        }
        self.erase_snapshot(snapshot).await;
        Ok(())
    }

    async fn erase_snapshot(&self, snapshot: &SnapshotId) {
        let (layers, id) = (Arc::clone(&self.resources.layers), snapshot.as_str().to_owned());
        let removed = blocking(move || layers.remove_snapshot(&id)).await;
        if let Err(cause) = removed {
            tracing::warn!(%snapshot, %cause, "a snapshot cannot be removed yet");
            self.instances.reaper().take(InstanceRemains {
                snapshot: Some(snapshot.as_str().to_owned()),
                ..InstanceRemains::default()
            });
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; the caller waits for it otherwise"
    )]
    pub(super) async fn rollback(
        self: &Arc<Self>,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        let seal = parse(snapshot, seal)?;
        if seal.images.is_some() {
            self.criu()?;
        }
        let (engine, target, snapshot, limits) =
            (Arc::clone(self), target.clone(), snapshot.clone(), *limits);
        let task = tokio::spawn(async move {
            let slot = engine.instances.slot(&target.sandbox);
            let outcome = engine.rollback_in_turn(&slot, &target.sandbox, &snapshot, &seal, &limits).await;
            engine.instances.forget_empty(&target.sandbox, &slot);
            outcome
        });
        task.await.map_err(failed("rolling back"))?
    }

    /// Copies the snapshot first, so that an unusable snapshot or a full disk does not cost the sandbox its processes.
    /// The following order defines what a crash may leave: old files without memory, new files without memory, new
    /// files with their memory. A repeated rollback completes it.
    async fn rollback_in_turn(
        &self,
        slot: &SandboxSlot,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
        seal: &Seal,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        let _turn = slot.turn().await;
        let _changing = self.instances.hold_off_adoption().await;
        let live = slot.live().map(|(_, live)| live);
        if live.as_ref().is_some_and(|live| live.facts.storage == Storage::Memory) {
            return Err(in_memory());
        }
        if seal.images.is_some() {
            self.check_snapshot(snapshot, seal).await?;
            // A restore would detect a damaged page too, but the running processes would be gone by then.
            self.verify_memory(snapshot, seal).await?;
        }
        self.reach("rollback.checked");
        let (layers, name) = (Arc::clone(&self.resources.layers), sandbox.as_str().to_owned());
        let (id, sealed, limit) =
            (snapshot.as_str().to_owned(), seal.clone(), u64::from(limits.disk_mib) * MIB);
        let prepare = move || layers.prepare_rollback(&name, &id, &sealed, limit).map_err(copy_failed);
        let next = blocking(prepare).await.map_err(not_copied(snapshot, Some(*limits)))?;
        self.reach("rollback.prepared");
        let remains = match live {
            Some(live) => self.end_at_once(slot, &live).await,
            None => Ok(InstanceRemains::default()),
        };
        self.reach("rollback.ended");
        let swapped = match &remains {
            Ok(_) => self.swap_files(sandbox, &next).await,
            Err(_) => Ok(()),
        };
        // The old files, or an unused copy. Removed only when no process uses them.
        let (remains, ended) = remains
            .map_or_else(|error| (InstanceRemains::default(), Err(error)), |remains| (remains, Ok(())));
        self.instances.reaper().take(InstanceRemains { layer: Some(next), ..remains });
        ended?;
        swapped?;
        match seal.images {
            Some(_) => self.place_memory(sandbox, snapshot).await.map(|()| RolledBack::Memory),
            None => Ok(RolledBack::Files),
        }
    }

    async fn swap_files(&self, sandbox: &SandboxId, next: &str) -> Result<(), ProviderError> {
        // Memory must never be used with other files than its own.
        self.remove_checkpoint(sandbox).await?;
        self.reach("rollback.forgotten");
        let (layers, name, next) =
            (Arc::clone(&self.resources.layers), sandbox.as_str().to_owned(), next.to_owned());
        let swapped = blocking(move || layers.swap_in(&name, &next)).await;
        self.reach("rollback.swapped");
        swapped.map_err(failed("putting files in place"))
    }

    /// Ends an instance without waiting until the kernel has removed it: it is frozen first, and when it is thawed
    /// every process has a pending SIGKILL. Its layer may be moved aside at once; remove it after the returned remains.
    async fn end_at_once(
        &self,
        slot: &SandboxSlot,
        live: &Arc<Live>,
    ) -> Result<InstanceRemains, ProviderError> {
        if self.freeze(live).await.is_err() {
            return Instances::end(self, slot, live).await.map(|()| InstanceRemains::default());
        }
        live.expect_end();
        let (resources, doomed) = (Arc::clone(&self.resources), Arc::clone(live));
        let work = move || {
            if let Some(link) = doomed.facts.link {
                // A link that can't be closed ends with its namespace.
                let _ = resources.networks.detach(link);
            }
            resources.kill_all(&doomed.facts.cgroup)
        };
        if self.blocking.run(work).await.is_err() {
            return Instances::end(self, slot, live).await.map(|()| InstanceRemains::default());
        }
        let remains = self.remains(live)?;
        slot.set_live(None);
        Ok(remains)
    }

    /// Makes the memory of a snapshot the checkpoint of the sandbox.
    async fn place_memory(&self, sandbox: &SandboxId, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        let (checkpoints, sandbox, from) =
            (self.checkpoints.clone(), sandbox.clone(), self.memory_of(snapshot));
        let failpoint = self.resources.failpoint.clone();
        let work = move || {
            let draft = checkpoints.draft(&sandbox)?;
            failpoint.reach("rollback.drafted");
            copy_checkpoint(&from, &draft.folder)?;
            failpoint.reach("rollback.filled");
            checkpoints.commit(&sandbox, &draft.folder)
        };
        let placed = blocking(work).await;
        self.reach("rollback.placed");
        placed.map_err(not_copied(snapshot, None))
    }

    /// The quick check before every use of a snapshot.
    async fn check_snapshot(&self, snapshot: &SnapshotId, seal: &Seal) -> Result<(), ProviderError> {
        let (layers, id, seal) =
            (Arc::clone(&self.resources.layers), snapshot.as_str().to_owned(), seal.clone());
        let memory = self.memory_of(snapshot);
        let work = move || {
            layers.check(&id, &seal).map_err(copy_failed)?;
            let Some(sealed) = &seal.images else { return Ok(()) };
            match CheckpointManifest::read(&memory) {
                Ok((_, found)) if found == *sealed => Ok(()),
                Ok(_) => Err(copy_failed(CopyError::Damaged("its memory was changed".into()))),
                Err(error) => Err(copy_failed(CopyError::Damaged(format!("its memory is missing: {error}")))),
            }
        };
        blocking(work).await.map_err(not_copied(snapshot, None))
    }

    /// Removes, at adoption, every snapshot that is not wanted, and the leftovers of a rollback.
    pub(super) async fn sweep_snapshots(&self, wanted: &[SnapshotId]) -> Result<(), ProviderError> {
        let layers = Arc::clone(&self.resources.layers);
        let wanted: HashSet<String> = wanted.iter().map(|id| id.as_str().to_owned()).collect();
        let unwanted = blocking(move || layers.unwanted_snapshots(&wanted)).await;
        for name in unwanted.map_err(failed("looking for snapshots"))? {
            self.instances
                .reaper()
                .take(InstanceRemains { snapshot: Some(name), ..InstanceRemains::default() });
        }
        Ok(())
    }
}

/// Runs kernel work that waits for the disk. The engine has few threads of its own, and twenty copies share one
/// transaction only if they start at the same time.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(io::Error::other("kernel work panicked")))
}

/// Carries a [`CopyError`] through interfaces that only know I/O errors.
pub(super) fn copy_failed(error: CopyError) -> io::Error {
    match error {
        CopyError::Io(cause) => cause,
        other => io::Error::other(other),
    }
}

fn not_copied(snapshot: &SnapshotId, limits: Option<Limits>) -> impl Fn(io::Error) -> ProviderError {
    let name = format!("snapshot {snapshot}");
    move |cause| explain(&name, limits.map(|limits| limits.disk_mib), cause)
}

/// Copies a checkpoint that does not change; on btrfs the blocks are shared. The caller syncs it to disk.
fn copy_checkpoint(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to.join(IMAGES))?;
    for entry in std::fs::read_dir(from.join(IMAGES))? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(IMAGES).join(entry.file_name()))?;
    }
    // The manifest last: a folder with a manifest is complete.
    std::fs::copy(from.join(MANIFEST), to.join(MANIFEST)).map(drop)
}

/// Translates an error of a snapshot operation.
pub(super) fn explain(what: &str, disk_mib: Option<u32>, cause: io::Error) -> ProviderError {
    match cause.get_ref().and_then(|inner| inner.downcast_ref::<CopyError>()) {
        Some(CopyError::Damaged(why)) => {
            return ProviderError::Damaged { what: what.to_owned(), why: why.clone() };
        }
        Some(CopyError::BelowUse { used_bytes }) => {
            return ProviderError::BelowUse {
                what: "disk_mib",
                wanted_mib: disk_mib.unwrap_or(0).into(),
                used_mib: used_bytes.div_ceil(MIB),
            };
        }
        Some(CopyError::Io(_)) | None => {}
    }
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ProviderError::Exhausted { what: "disk space for sandboxes".into() }
        }
        io::ErrorKind::TimedOut => {
            ProviderError::Late { what: "freezing the sandbox".into(), after: Duration::from_secs(2) }
        }
        _ => ProviderError::Failed { step: format!("working with {what}"), cause: cause.into() },
    }
}

pub(super) fn parse(snapshot: &SnapshotId, seal: &str) -> Result<Seal, ProviderError> {
    Seal::parse(seal).map_err(|error| ProviderError::Damaged {
        what: format!("snapshot {snapshot}"),
        why: error.to_string(),
    })
}

pub(super) fn in_memory() -> ProviderError {
    ProviderError::Unsupported {
        what: "a snapshot of files in memory".into(),
        hint: "create the sandbox with its files on disk".into(),
    }
}
