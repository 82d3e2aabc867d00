//! API keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use crate::words::Scope;

/// A key without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Key {
    pub id: String,
    /// The tenant's id.
    pub tenant: String,
    pub scope: Scope,
    pub name: Option<String>,
    /// The id of the user key that created it; it ends with that key. Null: an admin key or the server created it.
    #[serde(default)]
    pub created_by: Option<String>,
    #[schema(format = DateTime)]
    pub created_at: String,
    #[schema(format = DateTime)]
    pub last_used_at: Option<String>,
}

/// The key of a request, and its tenant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CurrentKey {
    #[serde(flatten)]
    pub record: Key,
    /// The tenant's name.
    pub tenant_name: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    pub items: Vec<Key>,
}

/// A new key; its secret is shown only here.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    pub record: Key,
    /// The key to send. It cannot be shown again.
    #[schema(example = "atl_…")]
    pub secret: String,
}

/// A code that hands the caller's key to a browser, once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct Invite {
    /// To be sent as the bearer of `POST /v1/keys/invites/redeem`.
    #[schema(example = "inv_…")]
    pub code: String,
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// The key that an invite was made with.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct RedeemedKey {
    /// The key to send.
    #[schema(example = "atl_…")]
    pub secret: String,
}

/// Request to create a key.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyBody {
    /// Name or id of its tenant. Default: the caller's tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Scope of the key. Default `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
