//! Brings the sandboxes of a restored database to rest: what had processes has none here, and is stopped with its files.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use atoll_model::lifecycle::{self, Event};
use atoll_model::{EventKind, Intent, Lease, NodeName, Phase, Reason};
use atoll_store::{Admit, Advance, InstanceChange, NewEvent, SqliteStore, Store, StoreConfig};

use crate::error::RestoreError;
use crate::restore::RestoreOptions;

/// The provider whose sandboxes live on this machine and in the pool.
const IN_POOL: &str = "container";

/// The sandboxes of a backup whose files and whose memory are in it.
pub(crate) struct RestoredSandboxes {
    pub(crate) files: BTreeSet<String>,
    pub(crate) memory: BTreeSet<String>,
}

/// Stops every sandbox that had processes and whose memory is not restored; returns their names. It also writes down which node the
/// folder is, and so that its key is the right one.
pub(crate) fn rest_sandboxes(
    data: &Path,
    node: NodeName,
    restored: &RestoredSandboxes,
    options: &RestoreOptions<'_>,
) -> Result<Vec<String>, RestoreError> {
    let config =
        StoreConfig { node: Some(node), disk: Arc::clone(&options.reserve), ..StoreConfig::new(data) };
    let store = SqliteStore::open_with(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(RestoreError::Read)?;
    runtime.block_on(async {
        let stopped = stop_all(&store, restored, options).await;
        store.close().await;
        stopped
    })
}

async fn stop_all(
    store: &SqliteStore,
    restored: &RestoredSandboxes,
    options: &RestoreOptions<'_>,
) -> Result<Vec<String>, RestoreError> {
    let mut stopped = Vec::new();
    for (lease, _) in store.live().await? {
        let Some(next) = at_rest(&lease, restored, options) else { continue };
        let (at, instance) = (options.now.clone(), lease.instance.clone());
        let what = EventKind::Phase { from: Some(lease.phase), to: next.phase, reason: next.reason.clone() };
        if next.intent == Intent::Stop {
            stopped.push(next.name.clone().unwrap_or_else(|| next.id.to_string()));
        }
        let events = vec![NewEvent { at, instance, what, by: None }];
        let (instance, admit) = (InstanceChange::Drop, Admit::Nothing);
        store.advance(Advance { lease: next, instance, admit, events }).await?;
    }
    Ok(stopped)
}

/// The lease of a sandbox whose processes are gone; `None` where it needs no change, or where the adoption of the next server does
/// what is right after a crash.
fn at_rest(lease: &Lease, restored: &RestoredSandboxes, options: &RestoreOptions<'_>) -> Option<Lease> {
    if lease.provider != IN_POOL {
        return None;
    }
    let has_files = restored.files.contains(lease.id.as_str());
    let events: &[Event] = match lease.phase {
        Phase::Paused if restored.memory.contains(lease.id.as_str()) => return None,
        // It was deleted while the backup was being made.
        Phase::Running
        | Phase::Pausing
        | Phase::Paused
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Starting
            if !has_files =>
        {
            &[Event::Delete]
        }
        Phase::Running | Phase::Pausing | Phase::Paused | Phase::Resuming => &[Event::Stop, Event::Stopped],
        Phase::Stopping => &[Event::Stopped],
        Phase::Starting => &[Event::Died, Event::Stop],
        Phase::Creating
        | Phase::Stopped
        | Phase::Archiving
        | Phase::Archived
        | Phase::Restoring
        | Phase::Failed
        | Phase::Deleting
        | Phase::Deleted => return None,
    };
    let phase = events
        .iter()
        .try_fold(lease.phase, |phase, event| lifecycle::step(phase, *event).ok().map(|(next, _)| next))?;
    let intent = if phase == Phase::Deleting { Intent::Delete } else { Intent::Stop };
    Some(Lease {
        phase,
        intent,
        reason: Reason::LostWhileDown,
        generation: lease.generation + 1,
        instance: None,
        held: None,
        rollback_to: None,
        phase_at: options.now.clone(),
        stopped_at: Some(options.now.clone()),
        ..lease.clone()
    })
}
