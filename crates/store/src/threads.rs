//! Rows of threads: which provider and which sandbox a conversation is bound to.

use async_trait::async_trait;
use atoll_model::{Phase, SandboxId, TenantId};

use crate::{Page, StoreError};

/// A thread of conversation: one row of `threads`. An insert of a sandbox that names a thread writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadRecord {
    /// The name that the client chose, unique within the tenant.
    pub thread: String,
    /// Its tenant.
    pub tenant: TenantId,
    /// The provider of all its sandboxes.
    pub provider: String,
    /// Its sandbox with the phase; `None`: the sandbox is deleted or being deleted.
    pub sandbox: Option<(SandboxId, Phase)>,
    /// When the thread was bound, in milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A query for threads, newest first.
#[derive(Debug, Clone, Default)]
pub struct ThreadQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// At most this many.
    pub limit: u32,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// Reads and removes rows of threads. Part of [`crate::Store`].
#[async_trait]
pub trait ThreadStore: Send + Sync + 'static {
    /// A page of threads, stable during inserts.
    async fn threads(&self, query: ThreadQuery) -> Result<Page<ThreadRecord>, StoreError>;

    /// The threads with this name, at most two: of one tenant there is only one.
    async fn find_thread(
        &self,
        tenant: Option<&TenantId>,
        thread: &str,
    ) -> Result<Vec<ThreadRecord>, StoreError>;

    /// Removes the threads with this name that have no sandbox any more.
    async fn remove_unused_threads(&self, tenant: Option<&TenantId>, thread: &str) -> Result<(), StoreError>;
}
