//! Templates by name: names, tags and aliases of versions. The files of versions are stored elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use atoll_model::{MadeFrom, NodeName, SnapshotId, StartSettings, TenantId};
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// A template name of a tenant with its tags.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateRow {
    /// Its tenant.
    pub tenant: TenantId,
    /// Unique within the tenant, including aliases.
    pub name: String,
    /// Whether other tenants may use it.
    pub public: bool,
    /// Other names, in order.
    pub aliases: Vec<String>,
    /// The owner's changes to the settings of its versions.
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
    /// Its origin.
    pub made_from: MadeFrom,
    /// The digest of its image's manifest, if it was pulled.
    pub manifest: Option<String>,
    /// The snapshot on this node that its sandboxes start from.
    pub warm: Option<SnapshotId>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A change of a named template; `None` leaves a field unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TemplateChange {
    /// Whether other tenants may use it.
    pub public: Option<bool>,
    /// Replaces all aliases.
    pub aliases: Option<Vec<String>>,
    /// Replaces the changes to the settings of its versions.
    pub changes: Option<StartSettings>,
    /// Its new name.
    pub name: Option<String>,
}

/// Stores names of templates. Part of [`crate::Store`].
#[async_trait]
pub trait TemplateStore: Send + Sync + 'static {
    /// Points tags of a name to a version, in one transaction; the name is made if missing. [`StoreError::Exists`] if
    /// the name is an alias of another template of the tenant; [`StoreError::Quota`] if the tenant has the maximal
    /// number of names.
    async fn publish_template(
        &self,
        tenant: &TenantId,
        name: &str,
        tags: Vec<String>,
        version: VersionRow,
    ) -> Result<TemplateRow, StoreError>;

    /// A tenant's template by name or alias.
    async fn template(&self, tenant: &TenantId, word: &str) -> Result<Option<TemplateRow>, StoreError>;

    /// The oldest public template with this name or alias, of any tenant.
    async fn public_template(&self, word: &str) -> Result<Option<TemplateRow>, StoreError>;

    /// A tenant's own templates and the public ones of others, by name; without a tenant, all.
    async fn templates(&self, tenant: Option<&TenantId>) -> Result<Vec<TemplateRow>, StoreError>;

    /// The versions of a name, oldest first.
    async fn template_versions(&self, tenant: &TenantId, name: &str) -> Result<Vec<VersionRow>, StoreError>;

    /// Changes a template; `None` if there is none of that name. [`StoreError::Exists`] if an alias or its new name is
    /// taken.
    async fn change_template(
        &self,
        tenant: &TenantId,
        name: &str,
        change: TemplateChange,
    ) -> Result<Option<TemplateRow>, StoreError>;

    /// Removes tags; returns how many existed.
    async fn untag_template(
        &self,
        tenant: &TenantId,
        name: &str,
        tags: Vec<String>,
    ) -> Result<u32, StoreError>;

    /// Removes a name with its tags, aliases and versions; returns whether it existed.
    async fn remove_template(&self, tenant: &TenantId, name: &str) -> Result<bool, StoreError>;

    /// How many sandboxes that are not deleted, and how many listed snapshots, of this tenant use any of these
    /// versions.
    async fn version_users(
        &self,
        tenant: &TenantId,
        versions: BTreeSet<String>,
    ) -> Result<(u64, u64), StoreError>;

    /// Removes unused versions without a tag, and names that are left without versions. Then returns all needed
    /// versions: those with a tag, a sandbox that is not deleted, or a snapshot.
    async fn needed_versions(&self) -> Result<BTreeSet<String>, StoreError>;

    /// Snapshots of this node that a version starts from.
    async fn warm_snapshots(&self) -> Result<BTreeSet<SnapshotId>, StoreError>;

    /// The nodes that have the files of a version under some name.
    async fn template_nodes(&self, version: &str) -> Result<BTreeSet<NodeName>, StoreError>;
}
