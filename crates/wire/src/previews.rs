//! Ways to the ports of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A way to one port of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    pub id: String,
    /// The sandbox's id.
    pub sandbox: String,
    pub port: u16,
    /// Whether everybody may use it, without a token.
    pub public: bool,
    /// On a host of its own; without the token, which is shown once.
    pub url: String,
    /// The same on this server's own address, for places where that host has no name.
    pub path: String,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Null: until it is removed.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// A fresh preview, with what opens it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewPreviewAnswer {
    #[serde(flatten)]
    pub preview: Preview,
    /// Shown this once, and part of `url` and `path`; null where it is public.
    pub token: Option<String>,
}

/// All that are open, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PreviewList {
    pub items: Vec<Preview>,
}

/// What to open.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewBody {
    /// Which port inside.
    #[schema(minimum = 1)]
    pub port: u16,
    /// For how long, 30 days at most; left out: an hour, and a public one until it is removed.
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// For everybody, without a token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}
