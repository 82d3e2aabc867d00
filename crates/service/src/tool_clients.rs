//! The end of a tool client, which comes and goes: the forks and snapshots of its sandbox end with the sandbox.
//!
//! A client that says goodbye ends its thread here. What others leave behind, because a timer deleted the sandbox or the server was
//! killed, is found by [`Sandboxes::end_left_behind`], which housekeeping calls.

use std::collections::BTreeMap;

use atoll_model::{
    CLIENT_THREADS, Lease, Principal, SandboxId, Snapshot, SnapshotState, TenantId, check_thread,
};
use atoll_store::SnapshotQuery;
use futures::StreamExt;

use crate::ServiceError;
use crate::sandboxes::{PAGE_MAX, Sandboxes};

/// LIMIT: deletes take a few milliseconds; more at once only wait for each other.
const AT_ONCE: usize = 32;

impl Sandboxes {
    /// Ends the thread of a tool client: deletes its sandbox, the forks of it, and their snapshots, and forgets the thread.
    pub async fn end_client(&self, who: &Principal, thread: &str) -> Result<(), ServiceError> {
        check_thread(thread)?;
        // A client made its thread with its own key, so a thread of this name in another tenant is never meant.
        let own = Some(&who.tenant);
        let bound = self.inner.store.of_thread(own, thread).await?;
        let mut snapshots = Vec::new();
        for lease in &bound {
            snapshots.extend(self.snapshots_of(&lease.id).await?);
        }
        let deleted: Vec<_> = futures::stream::iter(bound)
            .map(|lease| async move { self.delete(who, lease.id.as_str(), true).await })
            .buffered(AT_ONCE)
            .collect()
            .await;
        // All are tried before a failure is reported.
        deleted.into_iter().collect::<Result<Vec<_>, _>>()?;
        for snapshot in snapshots {
            let id = snapshot.id.clone();
            if let Err(error) = self.discard(snapshot).await {
                tracing::info!(snapshot = %id, %error, "a snapshot of a client that ended is removed later");
            }
        }
        self.inner.store.remove_unused_threads(own, thread).await?;
        Ok(())
    }

    /// Deletes forks and snapshots of such clients whose own sandbox is gone.
    pub(crate) async fn end_left_behind(&self) -> Result<(), ServiceError> {
        let mut ended = EndedThreads { sandboxes: self, known: BTreeMap::new() };
        for handle in self.handles() {
            let lease = handle.lease();
            if ended.includes(&lease).await? {
                self.delete_driven(handle, false).await?;
            }
        }
        for snapshot in self.inner.store.all_snapshots().await? {
            let is_kept = snapshot.state == SnapshotState::Ready && !snapshot.transient && !snapshot.warm;
            if !is_kept {
                continue;
            }
            let Some(lease) = self.inner.store.lease(&snapshot.sandbox).await? else { continue };
            if lease.phase.is_gone() && ended.includes(&lease).await? {
                self.discard(snapshot).await?;
            }
        }
        Ok(())
    }

    async fn snapshots_of(&self, sandbox: &SandboxId) -> Result<Vec<Snapshot>, ServiceError> {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let sandbox = Some(sandbox.clone());
            let query = SnapshotQuery { sandbox, limit: PAGE_MAX, cursor, ..SnapshotQuery::default() };
            let page = self.inner.store.snapshots(query).await?;
            found.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(found);
            }
        }
    }
}

/// The threads of tool clients whose own sandbox is gone, looked up once per round.
struct EndedThreads<'a> {
    sandboxes: &'a Sandboxes,
    known: BTreeMap<(TenantId, String), bool>,
}

impl EndedThreads<'_> {
    /// Whether a sandbox, or the record of one, belongs to such a thread.
    async fn includes(&mut self, lease: &Lease) -> Result<bool, ServiceError> {
        let Some(thread) = lease.thread.as_ref().filter(|thread| thread.starts_with(CLIENT_THREADS)) else {
            return Ok(false);
        };
        let key = (lease.tenant.clone(), thread.clone());
        if let Some(is_ended) = self.known.get(&key) {
            return Ok(*is_ended);
        }
        let found = self.sandboxes.inner.store.find_thread(Some(&lease.tenant), thread).await?;
        let is_ended = found.iter().all(|thread| thread.sandbox.is_none());
        self.known.insert(key, is_ended);
        Ok(is_ended)
    }
}
