//! Credentials for registries. They are never printed.

use std::fmt;

/// Credentials for one registry.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Auth {
    /// None; a registry may still require a token, which it gives to any client.
    #[default]
    Anonymous,
    /// A user name with a password or an access token.
    Basic {
        username: String,
        /// A password or an access token.
        password: String,
    },
    /// A token that the registry accepts directly.
    Bearer(String),
    /// A long-lived token that a token server exchanges for short-lived ones (Docker's `identitytoken`).
    Identity(String),
    /// The entry of the operator's Docker config for this registry, if there is one. Only for callers that act as the
    /// operator.
    Operator,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Basic { .. } => "Basic",
            Self::Bearer(_) => "Bearer",
            Self::Identity(_) => "Identity",
            Self::Operator => "Operator",
        })
    }
}
