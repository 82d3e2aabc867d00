//! What a sandbox may reach. Every policy still excludes the host, other sandboxes, private, link-local and
//! metadata addresses.

use serde::{Deserialize, Serialize};

/// The network policy of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPolicy {
    /// The public internet.
    #[default]
    AllowAll,
    /// Nothing, not even DNS.
    DenyAll,
}

impl NetworkPolicy {
    /// The policy as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllowAll => "allow-all",
            Self::DenyAll => "deny-all",
        }
    }
}
