//! Who we are to a registry. Never printed.

use std::fmt;

/// Credentials for one registry.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Auth {
    /// None; a registry may still want a token, which it gives to anybody.
    #[default]
    Anonymous,
    /// A user name with a password or an access token.
    Basic {
        username: String,
        /// A password or an access token.
        password: String,
    },
    /// A token that the registry itself takes.
    Bearer(String),
    /// A long-lived token that a token server changes into short ones (Docker's `identitytoken`).
    Identity(String),
    /// What Docker's config of the operator says for this registry, else none. Only for those who act as the operator.
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
