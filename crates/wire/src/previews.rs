//! Ways to the ports of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Access to one port of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    pub id: String,
    /// The sandbox's id.
    pub sandbox: String,
    pub port: u16,
    /// Whether everyone may use it without a token.
    pub public: bool,
    /// URL with its own host name, without the token, which is shown only once.
    pub url: String,
    /// The same on the server's own address, for clients that cannot resolve the host name.
    pub path: String,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Expiry; null if the preview is valid until it is removed.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// A new preview with its token.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewPreviewAnswer {
    #[serde(flatten)]
    pub preview: Preview,
    /// Shown only once, and part of `url` and `path`; null for a public preview.
    pub token: Option<String>,
}

/// Open previews, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PreviewList {
    pub items: Vec<Preview>,
}

/// Request to open a preview.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewBody {
    /// Port in the sandbox.
    #[schema(minimum = 1)]
    pub port: u16,
    /// Validity in seconds, at most 30 days. Default: an hour; a public preview is valid until it is removed.
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Open the port to everyone, without a token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}
