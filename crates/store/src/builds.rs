//! Rows of builds.

use async_trait::async_trait;
use atoll_model::{Build, BuildId, BuildStatus, TenantId};

use crate::{Page, StoreError};

/// A query for builds, newest first.
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
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// Stores rows of builds. Part of [`crate::Store`]; a sweep removes those that ended long ago.
#[async_trait]
pub trait BuildStore: Send + Sync + 'static {
    /// Stores a build, or replaces its row.
    async fn put_build(&self, build: Build) -> Result<(), StoreError>;

    /// Deletes a build; that there is none is no error.
    async fn delete_build(&self, id: &BuildId) -> Result<(), StoreError>;

    /// A build by its id.
    async fn build(&self, id: &BuildId) -> Result<Option<Build>, StoreError>;

    /// The build with this id, else those whose id starts with the text. At most two.
    async fn find_build(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Build>, StoreError>;

    /// A page of builds, newest first.
    async fn builds(&self, query: BuildQuery) -> Result<Page<Build>, StoreError>;

    /// Builds of this node that have not ended, oldest first.
    async fn open_builds(&self) -> Result<Vec<Build>, StoreError>;
}
