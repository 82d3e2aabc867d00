//! Removes unused files, but never those of a sandbox that is just being created.
//!
//! Code that writes a row which refers to a version holds the version from before the lookup until the row is written.
//! While a collection runs, holds that end are kept until it is complete: so a row that was written after the
//! collection read the rows still has its version held when files are removed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_image::images::VersionLease;
use atoll_model::policy::authz;
use atoll_model::{Principal, SnapshotState};

use super::{Collected, TemplateRecord, Templates, TemplatesState};
use crate::ServiceError;

/// Holds that ended while a collection ran.
#[derive(Clone, Default)]
pub(super) struct VersionHolds {
    parked: Arc<Mutex<Option<Vec<VersionLease>>>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Keeps a version's files from being collected until it is dropped.
pub(crate) struct VersionHold {
    held: Option<VersionLease>,
    holds: VersionHolds,
}

impl Drop for VersionHold {
    fn drop(&mut self) {
        if let (Some(held), Some(parked)) =
            (self.held.take(), self.holds.parked.lock().unwrap_or_else(PoisonError::into_inner).as_mut())
        {
            parked.push(held);
        }
    }
}

/// While it exists, holds that end are kept.
struct ParkedHolds(VersionHolds);

impl VersionHolds {
    fn park(&self) -> ParkedHolds {
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
        ParkedHolds(self.clone())
    }
}

impl Drop for ParkedHolds {
    fn drop(&mut self) {
        let parked = self.0.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(parked);
    }
}

impl Templates {
    /// Keeps a version from being collected.
    pub(crate) fn hold_digest(&self, version: &str) -> Result<VersionHold, ServiceError> {
        let held = self.inner.images.hold(version)?;
        Ok(VersionHold { held: Some(held), holds: self.inner.holds.clone() })
    }

    /// The same for the version of a record; built-in templates are not collected.
    pub(crate) fn hold_version(&self, record: &TemplateRecord) -> Result<VersionHold, ServiceError> {
        if record.kind != "image" {
            return Ok(VersionHold { held: None, holds: self.inner.holds.clone() });
        }
        self.hold_digest(&record.version)
    }

    /// Removes what nothing needs: versions without a tag, a sandbox or a snapshot, their layers and blobs, and old entries
    /// of the build cache.
    pub async fn collect(&self, who: &Principal) -> Result<Collected, ServiceError> {
        authz::admin(who)?;
        let own = self.clone();
        self.inner.run_detached(async move { own.collect_unused().await }).await
    }

    /// One collection; a second one waits for the first.
    pub(crate) async fn collect_unused(&self) -> Result<Collected, ServiceError> {
        self.collect_but(self.inner.config.build_cache_bytes).await
    }

    /// A collection that also empties the build cache.
    pub(crate) async fn collect_all_unused(&self) -> Result<Collected, ServiceError> {
        self.collect_but(0).await
    }

    async fn collect_but(&self, keep: u64) -> Result<Collected, ServiceError> {
        let inner = &self.inner;
        let _turn = inner.holds.turn.lock().await;
        let parking = inner.holds.park();
        let needed: HashSet<String> = inner.store.needed_versions().await?.into_iter().collect();
        inner.failpoint.reach("collect.rows").await;
        forget_warm(inner).await?;
        let images = Arc::clone(&inner.images);
        let collected = inner.run_blocking(move || Ok(images.collect(&needed, keep)?)).await;
        drop(parking);
        let gone = collected?;
        if !gone.is_empty() {
            tracing::info!(
                versions = gone.versions,
                layers = gone.layers,
                bytes = gone.bytes,
                "unused templates were removed"
            );
        }
        inner.cache.forget();
        Ok(Collected {
            versions: gone.versions,
            layers: gone.layers,
            blobs: gone.blobs,
            bytes: gone.bytes,
            cached_bytes: gone.cached_bytes,
            recent: gone.recent,
        })
    }
}

/// Removes starts of versions that nobody knows any more. One that a sandbox is just being made from is left to the next
/// collection.
async fn forget_warm(inner: &TemplatesState) -> Result<(), ServiceError> {
    let wanted = inner.store.warm_snapshots().await?;
    for snapshot in inner.store.all_snapshots().await? {
        let is_orphan =
            snapshot.warm && snapshot.state == SnapshotState::Ready && !wanted.contains(&snapshot.id);
        if is_orphan && let Some(_doomed) = inner.uses.doom(&snapshot.id) {
            let id = snapshot.id.clone();
            if let Err(error) = crate::snapshots::remove(inner, snapshot).await {
                tracing::warn!(snapshot = %id, %error, "the warm start of a template version could not be removed; the next collection removes it");
            }
        }
    }
    Ok(())
}
