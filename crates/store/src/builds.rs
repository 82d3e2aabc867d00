//! Rows of builds.

use async_trait::async_trait;
use atoll_model::{Build, BuildId, BuildStatus, TenantId};

use crate::{Page, StoreError};

/// Which builds to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct BuildQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// In this state.
    pub status: Option<BuildStatus>,
    /// Of the template of this name.
    pub template: Option<String>,
    /// At most this many.
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// Keeps rows of builds. Part of [`crate::Store`]; a sweep forgets those that ended long ago.
#[async_trait]
pub trait BuildStore: Send + Sync + 'static {
    /// Remembers a build, or replaces what is known of it.
    async fn put_build(&self, build: Build) -> Result<(), StoreError>;

    /// One by its id.
    async fn build(&self, id: &BuildId) -> Result<Option<Build>, StoreError>;

    /// What a word may mean: the build with that id, else those whose id starts so. Two at most.
    async fn find_build(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Build>, StoreError>;

    /// A page of builds, newest first.
    async fn builds(&self, query: BuildQuery) -> Result<Page<Build>, StoreError>;

    /// Those that have not ended, oldest first.
    async fn open_builds(&self) -> Result<Vec<Build>, StoreError>;
}
