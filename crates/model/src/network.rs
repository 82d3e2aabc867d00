//! Network policies as users write them. [`crate::policy::egress`] defines their effect.
//!
//! Every policy excludes the host, other sandboxes, link-local and metadata addresses, and private ranges unless they
//! are named and the operator allows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod cidr;
mod domain;
mod egress_proxy;
mod log;
mod secret_text;

pub use cidr::{BadCidr, Cidr};
pub use domain::{BadDomain, DomainPattern, is_host_name};
pub use egress_proxy::{BadProxy, NoProxy, ProxyCredentials, ProxyKind, ProxyUrl, authority};
pub use log::{EgressRecord, EgressVerdict, EgressWhat};
pub use secret_text::{
    BadSecret, SECRET_BYTES_MAX, check_secret_name, check_secret_value, fill_secrets, secrets_in,
};

/// The treatment of destinations that no list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// They are allowed: the public internet.
    #[default]
    AllowAll,
    /// Everything is refused, including DNS; lists are not allowed.
    DenyAll,
    /// Only listed destinations are allowed.
    Custom,
}

impl NetworkMode {
    /// The mode as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllowAll => "allow-all",
            Self::DenyAll => "deny-all",
            Self::Custom => "custom",
        }
    }
}

/// The network policy of one sandbox, of a tenant, or of the operator for all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "StoredNetwork")]
pub struct NetworkPolicy {
    /// The treatment of destinations that no list names.
    pub mode: NetworkMode,
    /// Allowed names; over TLS and HTTP only, with DNS through the gate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_domains: Vec<DomainPattern>,
    /// Allowed addresses, for every protocol.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_cidrs: Vec<Cidr>,
    /// Refused addresses, whatever the other lists say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_cidrs: Vec<Cidr>,
    /// Changes of outbound requests; their domains are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transforms: Vec<Transform>,
    #[serde(skip_serializing_if = "NetworkLimits::is_none")]
    pub limits: NetworkLimits,
    /// Allow and record everything, to derive the lists from it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub learn: bool,
    /// The SOCKS5 proxy that every allowed connection is passed on through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<SandboxProxy>,
}

/// A proxy of one sandbox. Its credentials stay outside of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxProxy {
    /// `HOST:PORT`.
    pub address: String,
    /// The user, if it asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<HeaderText>,
}

impl NetworkPolicy {
    /// Allows the public internet.
    #[must_use]
    pub fn allow_all() -> Self {
        Self::default()
    }

    /// Allows nothing.
    #[must_use]
    pub fn deny_all() -> Self {
        Self { mode: NetworkMode::DenyAll, ..Self::default() }
    }

    /// Whether the policy has only a mode.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self { mode: self.mode, ..Self::default() }
    }
}

/// Leases of earlier versions contain only the mode.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredNetwork {
    Mode(NetworkMode),
    Whole {
        mode: NetworkMode,
        #[serde(default)]
        allow_domains: Vec<DomainPattern>,
        #[serde(default)]
        allow_cidrs: Vec<Cidr>,
        #[serde(default)]
        deny_cidrs: Vec<Cidr>,
        #[serde(default)]
        transforms: Vec<Transform>,
        #[serde(default)]
        limits: NetworkLimits,
        #[serde(default)]
        learn: bool,
        #[serde(default)]
        egress_proxy: Option<Box<SandboxProxy>>,
    },
}

impl From<StoredNetwork> for NetworkPolicy {
    fn from(written: StoredNetwork) -> Self {
        match written {
            StoredNetwork::Mode(mode) => Self { mode, ..Self::default() },
            StoredNetwork::Whole {
                mode,
                allow_domains,
                allow_cidrs,
                deny_cidrs,
                transforms,
                limits,
                learn,
                egress_proxy,
            } => {
                let egress_proxy = egress_proxy.map(|proxy| *proxy);
                Self { mode, allow_domains, allow_cidrs, deny_cidrs, transforms, limits, learn, egress_proxy }
            }
        }
    }
}

/// A change of requests for one domain: TLS is terminated outside the sandbox, with the sandbox's own certificate
/// authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transform {
    /// The domain of the requests.
    pub domain: DomainPattern,
    /// Headers that are set; they replace those of the sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inject_headers: BTreeMap<String, HeaderText>,
    /// Headers that are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strip_headers: Vec<String>,
    /// Also over plain HTTP, where the values can be read in transit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_http: bool,
}

/// The value of an injected header.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderText {
    /// As the user wrote it, with `{secret:NAME}` for secrets of the tenant. Only in requests: never stored.
    Plain(String),
    /// Sealed by the store for the tenant. This is the form in a lease.
    Sealed(String),
}

impl HeaderText {
    /// Replaces every value in responses. In an update it means the existing value.
    pub const SHOWN: &'static str = "…";
}

impl std::fmt::Debug for HeaderText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain(..)",
            Self::Sealed(_) => "Sealed(..)",
        })
    }
}

/// Traffic limits. A missing one means the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkLimits {
    /// Bytes per second out of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_bytes_per_s: Option<u64>,
    /// Bytes per second into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_bytes_per_s: Option<u64>,
    /// Connections at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Bytes, both directions together, exchanged with one address (directly) or one name (through the gate) per boot
    /// of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_destination: Option<u64>,
}

impl NetworkLimits {
    /// Whether there is no limit.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The stricter of both, field by field.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        Self {
            up_bytes_per_s: least(self.up_bytes_per_s, other.up_bytes_per_s),
            down_bytes_per_s: least(self.down_bytes_per_s, other.down_bytes_per_s),
            connections: least(self.connections, other.connections),
            bytes_per_destination: least(self.bytes_per_destination, other.bytes_per_destination),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_lease_of_the_first_version_is_read() {
        assert_eq!(serde_json::from_str::<NetworkPolicy>("\"deny-all\"").unwrap(), NetworkPolicy::deny_all());
    }

    #[test]
    fn what_is_written_is_read_back() {
        let policy = NetworkPolicy {
            mode: NetworkMode::Custom,
            allow_domains: vec!["*.example.com".parse().unwrap()],
            allow_cidrs: vec!["203.0.113.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
            deny_cidrs: vec!["203.0.113.7".parse().unwrap()],
            transforms: vec![Transform {
                domain: "api.example.com".parse().unwrap(),
                inject_headers: [("Authorization".to_owned(), HeaderText::Sealed("x".into()))].into(),
                strip_headers: vec!["Cookie".into()],
                plain_http: false,
            }],
            limits: NetworkLimits { connections: Some(5), ..NetworkLimits::default() },
            learn: false,
            egress_proxy: Some(SandboxProxy {
                address: "proxy.example.com:1080".into(),
                username: Some("me".into()),
                password: Some(HeaderText::Sealed("y".into())),
            }),
        };
        let text = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<NetworkPolicy>(&text).unwrap(), policy);
        assert!(!format!("{:?}", HeaderText::Plain("canary".into())).contains("canary"));
    }
}
