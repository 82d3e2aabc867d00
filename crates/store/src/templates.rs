//! Templates by name: who calls which version what. The files of versions are somebody else's.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use atoll_model::{MadeFrom, SnapshotId, StartSettings, TenantId};
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// A name of a tenant with its tags.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateRow {
    /// Whose.
    pub tenant: TenantId,
    /// Unique among the tenant's, aliases included.
    pub name: String,
    /// Whether other tenants may start from it.
    pub public: bool,
    /// Other names, in order.
    pub aliases: Vec<String>,
    /// What its owner laid over the settings of its versions.
    pub changes: StartSettings,
    /// Tag → version.
    pub tags: BTreeMap<String, String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A version of a named template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRow {
    /// Its digest.
    pub version: String,
    /// Where it comes from.
    pub made_from: MadeFrom,
    /// The digest of its image's manifest, where it was pulled.
    pub manifest: Option<String>,
    /// Sandboxes of it start as this snapshot.
    pub warm: Option<SnapshotId>,
    /// What one should know of it.
    pub notes: Vec<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// What to change of a named template; `None` leaves a thing as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TemplateChange {
    /// Whether other tenants may start from it.
    pub public: Option<bool>,
    /// Replaces all aliases.
    pub aliases: Option<Vec<String>>,
    /// Replaces what lies over the settings of its versions.
    pub changes: Option<StartSettings>,
    /// Its new name.
    pub name: Option<String>,
}

/// Keeps names of templates. Part of [`crate::Store`].
#[async_trait]
pub trait TemplateStore: Send + Sync + 'static {
    /// Lets tags of a name point to a version; the name is made where it is missing. All at once.
    /// [`StoreError::Exists`] when the name is an alias of another template of the tenant; [`StoreError::Quota`] when the
    /// tenant has as many names as it may.
    async fn publish_template(
        &self,
        tenant: &TenantId,
        name: &str,
        tags: Vec<String>,
        version: VersionRow,
    ) -> Result<TemplateRow, StoreError>;

    /// A tenant's template by name or alias.
    async fn template(&self, tenant: &TenantId, word: &str) -> Result<Option<TemplateRow>, StoreError>;

    /// The oldest public template of this name or alias, whosever it is.
    async fn public_template(&self, word: &str) -> Result<Option<TemplateRow>, StoreError>;

    /// By name: a tenant's own and the public ones of others; without a tenant all.
    async fn templates(&self, tenant: Option<&TenantId>) -> Result<Vec<TemplateRow>, StoreError>;

    /// The versions of a name, oldest first.
    async fn template_versions(&self, tenant: &TenantId, name: &str) -> Result<Vec<VersionRow>, StoreError>;

    /// Changes a template; `None` when there is none of that name. [`StoreError::Exists`] when an alias or its new name is taken.
    async fn change_template(
        &self,
        tenant: &TenantId,
        name: &str,
        change: TemplateChange,
    ) -> Result<Option<TemplateRow>, StoreError>;

    /// Takes tags away; says how many were there.
    async fn untag_template(
        &self,
        tenant: &TenantId,
        name: &str,
        tags: Vec<String>,
    ) -> Result<u32, StoreError>;

    /// Forgets a name with its tags, aliases and versions; says whether it was there.
    async fn remove_template(&self, tenant: &TenantId, name: &str) -> Result<bool, StoreError>;

    /// How many sandboxes that are not deleted, and how many snapshots that are listed, of this tenant stand on any of these
    /// versions.
    async fn version_users(
        &self,
        tenant: &TenantId,
        versions: BTreeSet<String>,
    ) -> Result<(u64, u64), StoreError>;

    /// Forgets versions without a tag that nothing stands on, and names that are left with nothing. Then answers all versions
    /// that are needed: by a tag, a sandbox that is not deleted, or a snapshot.
    async fn needed_versions(&self) -> Result<BTreeSet<String>, StoreError>;

    /// Snapshots that some version starts as.
    async fn warm_snapshots(&self) -> Result<BTreeSet<SnapshotId>, StoreError>;
}
