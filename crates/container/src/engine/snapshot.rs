//! Snapshots of files and memory, sandboxes that begin as one, and the way back to one.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::{Limits, SandboxId, SnapshotId, Storage};
use atoll_provider::{Known, ProviderError, RolledBack, Snapshotted, Target};

use super::reaper::Remains;
use super::{Inner, failed};
use crate::cgroup::Cgroups;
use crate::storage::{CopyError, Seal};

const MIB: u64 = 1 << 20;

/// A sandbox that is made to stand still for a moment. It runs on when this is dropped, unless it stood still before.
struct Stillness<'a> {
    cgroups: &'a dyn Cgroups,
    cgroup: Option<&'a str>,
    since: Instant,
}

impl<'a> Stillness<'a> {
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

    /// Lets it run on; answers how long it stood still.
    fn end(self) -> Duration {
        let (was_running, since) = (self.cgroup.is_some(), self.since);
        drop(self);
        if was_running { since.elapsed() } else { Duration::ZERO }
    }
}

impl Drop for Stillness<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.cgroup
            && let Err(cause) = self.cgroups.thaw(name)
        {
            tracing::error!(cgroup = name, %cause, "a sandbox could not be thawed after its snapshot");
        }
    }
}

impl Inner {
    pub(super) fn can_snapshot(&self) -> bool {
        true
    }

    pub(super) async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        let place = self.place(&target.sandbox);
        let _turn = place.turn.lock().await;
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let live = match (place.live(), &target.instance) {
            (Some((instance, live)), wanted) if wanted.as_ref().is_none_or(|wanted| *wanted == instance) => {
                Some(live)
            }
            (Some(_), _) => return Err(gone()),
            (None, _) => None,
        };
        if live.as_ref().is_some_and(|live| live.facts.storage == Storage::Memory) {
            return Err(in_memory());
        }
        if !self.ground.layers.exists(target.sandbox.as_str()) {
            return Err(gone());
        }
        if memory {
            return Err(no_memory());
        }
        let cgroup = live.map(|live| live.facts.cgroup.clone());
        self.snapshot_files(target, snapshot, cgroup).await
    }

    /// Not dropped half way: the thread that does it always lets the sandbox run on, and removes what it made on an error.
    async fn snapshot_files(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        cgroup: Option<String>,
    ) -> Result<Snapshotted, ProviderError> {
        let (layers, cgroups) = (Arc::clone(&self.ground.layers), Arc::clone(&self.ground.cgroups));
        let (name, id) = (target.sandbox.as_str().to_owned(), snapshot.as_str().to_owned());
        let work = move || {
            let make = || -> io::Result<(Duration, Seal)> {
                layers.settle_writes(&name)?;
                let still = Stillness::begin(&*cgroups, cgroup.as_deref())?;
                layers.snapshot(&name, &id)?;
                let stood_still = still.end();
                Ok((stood_still, layers.seal(&name, &id, None)?))
            };
            make().inspect_err(|_| drop(layers.remove_snapshot(&id)))
        };
        let made = blocking(work).await.map_err(not_copied("snapshot", snapshot))?;
        let (stood_still, seal) = made;
        Ok(Snapshotted { memory: false, bytes: seal.bytes, seal: seal.text(), stood_still })
    }

    pub(super) async fn verify_snapshot(
        &self,
        snapshot: &SnapshotId,
        seal: &str,
    ) -> Result<(), ProviderError> {
        let seal = parse(snapshot, seal)?;
        let (layers, id) = (Arc::clone(&self.ground.layers), snapshot.as_str().to_owned());
        blocking(move || layers.verify(&id, &seal).map_err(copy_failed))
            .await
            .map_err(not_copied("snapshot", snapshot))
    }

    /// At once for everybody who asks; its blocks are freed behind.
    pub(super) async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        let (layers, id) = (Arc::clone(&self.ground.layers), snapshot.as_str().to_owned());
        let removed = blocking(move || layers.remove_snapshot(&id)).await;
        if let Err(cause) = removed {
            tracing::warn!(%snapshot, %cause, "a snapshot can't be removed yet");
            self.reaper.take(Remains { snapshot: Some(snapshot.as_str().to_owned()), ..Remains::default() });
        }
        Ok(())
    }

    pub(super) async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        let seal = parse(snapshot, seal)?;
        if seal.images.is_some() {
            return Err(no_memory());
        }
        let place = self.place(&target.sandbox);
        let _turn = place.turn.lock().await;
        if let Some((_, live)) = place.live() {
            if live.facts.storage == Storage::Memory {
                return Err(in_memory());
            }
            // A snapshot that can't be used must not cost the sandbox its processes.
            self.check_snapshot(snapshot, &seal).await?;
            self.end(&place, &live, None).await?;
        }
        self.roll_back_files(&target.sandbox, snapshot, &seal, limits).await?;
        Ok(RolledBack::Files)
    }

    async fn check_snapshot(&self, snapshot: &SnapshotId, seal: &Seal) -> Result<(), ProviderError> {
        let (layers, id, seal) =
            (Arc::clone(&self.ground.layers), snapshot.as_str().to_owned(), seal.clone());
        blocking(move || layers.check(&id, &seal).map_err(copy_failed))
            .await
            .map_err(not_copied("snapshot", snapshot))
    }

    async fn roll_back_files(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
        seal: &Seal,
        limits: &Limits,
    ) -> Result<(), ProviderError> {
        let (layers, name) = (Arc::clone(&self.ground.layers), sandbox.as_str().to_owned());
        let (id, seal, limit) =
            (snapshot.as_str().to_owned(), seal.clone(), u64::from(limits.disk_mib) * MIB);
        let work = move || layers.roll_back(&name, &id, &seal, limit).map_err(copy_failed);
        let aside = match blocking(work).await {
            Ok(aside) => aside,
            Err(cause) => return Err(not_copied_into(snapshot, limits)(cause)),
        };
        if let Some(layer) = aside {
            self.reaper.take(Remains { layer: Some(layer), ..Remains::default() });
        }
        Ok(())
    }

    /// At adoption, with everything else in place: removes every snapshot that is not wanted, and what a rollback left.
    pub(super) async fn sweep_snapshots(
        &self,
        _known: &[Known],
        wanted: &[SnapshotId],
    ) -> Result<(), ProviderError> {
        let layers = Arc::clone(&self.ground.layers);
        let wanted: HashSet<String> = wanted.iter().map(|id| id.as_str().to_owned()).collect();
        let unwanted = blocking(move || layers.unwanted_snapshots(&wanted)).await;
        for name in unwanted.map_err(failed("looking for snapshots"))? {
            self.reaper.take(Remains { snapshot: Some(name), ..Remains::default() });
        }
        Ok(())
    }
}

/// Runs kernel work that waits for the disk. The threads of the engine are few, and twenty copies at once share one
/// transaction only if they are asked for at once.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(io::Error::other("kernel work panicked")))
}

/// Takes a [`CopyError`] through interfaces that know I/O errors only.
pub(super) fn copy_failed(error: CopyError) -> io::Error {
    match error {
        CopyError::Io(cause) => cause,
        other => io::Error::other(other),
    }
}

fn not_copied(what: &'static str, snapshot: &SnapshotId) -> impl Fn(io::Error) -> ProviderError {
    let name = format!("{what} {snapshot}");
    move |cause| explain(&name, None, cause)
}

fn not_copied_into(snapshot: &SnapshotId, limits: &Limits) -> impl Fn(io::Error) -> ProviderError {
    let (name, limit) = (format!("snapshot {snapshot}"), limits.disk_mib);
    move |cause| explain(&name, Some(limit), cause)
}

/// What an error with a snapshot means.
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
        _ => ProviderError::Failed { step: format!("working with {what}"), cause: cause.into() },
    }
}

pub(super) fn parse(snapshot: &SnapshotId, seal: &str) -> Result<Seal, ProviderError> {
    Seal::parse(seal).map_err(|error| ProviderError::Damaged {
        what: format!("snapshot {snapshot}"),
        why: error.to_string(),
    })
}

fn in_memory() -> ProviderError {
    ProviderError::Unsupported {
        what: "a snapshot of files in memory".into(),
        hint: "make the sandbox with its files on disk".into(),
    }
}

fn no_memory() -> ProviderError {
    ProviderError::Unsupported {
        what: "a snapshot with memory".into(),
        hint: "leave the memory out, or install CRIU 4.2 or later".into(),
    }
}
