//! A network policy on the wire: a mode alone, or an object with lists. Read field by field, so that a fault names its
//! place; shown as it was asked for, without the values of injected headers.
//!
//! The service decides which policies are valid.

use std::collections::BTreeMap;
use std::fmt;

use atoll_model::{Cidr, DomainPattern, HeaderText};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::tolerance::keep_fields;

/// Network policy of a sandbox. It can never allow the host, other sandboxes, link-local or metadata addresses. It
/// can allow private ranges only by naming them, if the operator permits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Network {
    Plain(PlainNetwork),
    Policy(Box<NetworkPolicy>),
}

/// `allow-all`: the public internet. `deny-all`: nothing, not even DNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlainNetwork {
    AllowAll,
    DenyAll,
}

/// What happens to a destination that is in no list: it is allowed (`allow-all`) or refused (`custom`). `deny-all`
/// refuses everything and has no lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    AllowAll,
    DenyAll,
    Custom,
}

/// A complete policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkPolicy {
    pub mode: NetworkMode,
    /// Names that are allowed over TLS and HTTP: `example.com`, `*.example.com` (all names below it, not itself) or
    /// `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false, example = json!(["pypi.org", "*.pythonhosted.org"]))]
    pub allow_domains: Vec<DomainPattern>,
    /// Address ranges that are allowed for every protocol, IPv4 or IPv6.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false, example = json!(["203.0.113.0/24"]))]
    pub allow_cidrs: Vec<Cidr>,
    /// Address ranges that are refused; has precedence over the other lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    pub deny_cidrs: Vec<Cidr>,
    /// Changes to outbound requests; their domains are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub transforms: Vec<Transform>,
    #[serde(default, skip_serializing_if = "NetworkLimits::is_none")]
    #[schema(required = false)]
    pub limits: NetworkLimits,
    /// Allow all public destinations and record them; `GET …/egress/policy` returns the smallest policy for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub learn: bool,
}

/// Changes to requests for one domain. TLS is terminated outside the sandbox, with a certificate authority that
/// only this sandbox trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    #[schema(value_type = String, example = "api.example.com")]
    pub domain: DomainPattern,
    /// Headers to set; they replace those that the sandbox sent. `{secret:NAME}` stands for a secret of the tenant.
    /// Values are shown as `…`; an update with `…` keeps the stored value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, required = false,
        example = json!({"Authorization": "Bearer {secret:EXAMPLE_KEY}"}))]
    pub inject_headers: BTreeMap<String, HeaderValue>,
    /// Headers to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub strip_headers: Vec<String>,
    /// Apply also over plain HTTP, where every hop can read the headers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub plain_http: bool,
}

/// The value of a header; never part of a log line.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeaderValue(pub String);

impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderValue(..)")
    }
}

/// Traffic limits. Default: the server's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkLimits {
    /// Upload limit in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000)]
    pub up_bytes_per_s: Option<u64>,
    /// Download limit in bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000)]
    pub down_bytes_per_s: Option<u64>,
    /// Limit of simultaneous connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub connections: Option<u32>,
    /// Limit of bytes in both directions with one address or name, per boot of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub bytes_per_destination: Option<u64>,
}

impl NetworkLimits {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Written by hand: a derived parser that tries several shapes would not name the wrong field.
impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Network;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"allow-all\", \"deny-all\" or an object with mode and lists")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Network, E> {
                match word {
                    "allow-all" => Ok(Network::Plain(PlainNetwork::AllowAll)),
                    "deny-all" => Ok(Network::Plain(PlainNetwork::DenyAll)),
                    "custom" => Err(E::custom("custom needs lists: send {\"mode\": \"custom\", …}")),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Network, A::Error> {
                let policy = NetworkPolicy::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Network::Policy(Box::new(policy)))
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// Requests are strict; a policy in an answer of a newer server may say more than this client knows.
pub(crate) fn from_answer<'de, D: Deserializer<'de>>(from: D) -> Result<Network, D::Error> {
    let mut policy = Value::deserialize(from)?;
    keep_fields(&mut policy, &POLICY);
    if let Some(limits) = policy.get_mut("limits") {
        keep_fields(limits, &LIMITS);
    }
    for transform in policy.get_mut("transforms").and_then(Value::as_array_mut).into_iter().flatten() {
        keep_fields(transform, &TRANSFORM);
    }
    Network::deserialize(policy).map_err(de::Error::custom)
}

/// The same where there may be none.
pub(crate) fn from_optional_answer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Network>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        policy => from_answer(policy).map(Some).map_err(de::Error::custom),
    }
}

const POLICY: [&str; 7] =
    ["mode", "allow_domains", "allow_cidrs", "deny_cidrs", "transforms", "limits", "learn"];
const TRANSFORM: [&str; 4] = ["domain", "inject_headers", "strip_headers", "plain_http"];
const LIMITS: [&str; 4] = ["up_bytes_per_s", "down_bytes_per_s", "connections", "bytes_per_destination"];

impl From<Network> for atoll_model::NetworkPolicy {
    fn from(network: Network) -> Self {
        match network {
            Network::Plain(PlainNetwork::AllowAll) => Self::allow_all(),
            Network::Plain(PlainNetwork::DenyAll) => Self::deny_all(),
            Network::Policy(policy) => (*policy).into(),
        }
    }
}

impl From<atoll_model::NetworkPolicy> for Network {
    fn from(policy: atoll_model::NetworkPolicy) -> Self {
        match (policy.is_plain(), policy.mode) {
            (true, atoll_model::NetworkMode::AllowAll) => Self::Plain(PlainNetwork::AllowAll),
            (true, atoll_model::NetworkMode::DenyAll) => Self::Plain(PlainNetwork::DenyAll),
            _ => Self::Policy(Box::new(policy.into())),
        }
    }
}

impl From<NetworkPolicy> for atoll_model::NetworkPolicy {
    fn from(policy: NetworkPolicy) -> Self {
        Self {
            mode: match policy.mode {
                NetworkMode::AllowAll => atoll_model::NetworkMode::AllowAll,
                NetworkMode::DenyAll => atoll_model::NetworkMode::DenyAll,
                NetworkMode::Custom => atoll_model::NetworkMode::Custom,
            },
            allow_domains: policy.allow_domains,
            allow_cidrs: policy.allow_cidrs,
            deny_cidrs: policy.deny_cidrs,
            transforms: policy.transforms.into_iter().map(Into::into).collect(),
            limits: policy.limits.into(),
            learn: policy.learn,
            // Only the front of E2B has it: a policy that is set here has none.
            egress_proxy: None,
        }
    }
}

impl From<atoll_model::NetworkPolicy> for NetworkPolicy {
    fn from(policy: atoll_model::NetworkPolicy) -> Self {
        Self {
            mode: match policy.mode {
                atoll_model::NetworkMode::AllowAll => NetworkMode::AllowAll,
                atoll_model::NetworkMode::DenyAll => NetworkMode::DenyAll,
                atoll_model::NetworkMode::Custom => NetworkMode::Custom,
            },
            allow_domains: policy.allow_domains,
            allow_cidrs: policy.allow_cidrs,
            deny_cidrs: policy.deny_cidrs,
            transforms: policy.transforms.into_iter().map(Into::into).collect(),
            limits: policy.limits.into(),
            learn: policy.learn,
        }
    }
}

impl From<Transform> for atoll_model::Transform {
    fn from(transform: Transform) -> Self {
        let plain = |(name, HeaderValue(value))| (name, HeaderText::Plain(value));
        Self {
            domain: transform.domain,
            inject_headers: transform.inject_headers.into_iter().map(plain).collect(),
            strip_headers: transform.strip_headers,
            plain_http: transform.plain_http,
        }
    }
}

impl From<atoll_model::Transform> for Transform {
    fn from(transform: atoll_model::Transform) -> Self {
        let shown = |name| (name, HeaderValue(HeaderText::SHOWN.to_owned()));
        Self {
            domain: transform.domain,
            inject_headers: transform.inject_headers.into_keys().map(shown).collect(),
            strip_headers: transform.strip_headers,
            plain_http: transform.plain_http,
        }
    }
}

impl From<NetworkLimits> for atoll_model::NetworkLimits {
    fn from(limits: NetworkLimits) -> Self {
        let NetworkLimits { up_bytes_per_s, down_bytes_per_s, connections, bytes_per_destination } = limits;
        Self { up_bytes_per_s, down_bytes_per_s, connections, bytes_per_destination }
    }
}

impl From<atoll_model::NetworkLimits> for NetworkLimits {
    fn from(limits: atoll_model::NetworkLimits) -> Self {
        Self {
            up_bytes_per_s: limits.up_bytes_per_s,
            down_bytes_per_s: limits.down_bytes_per_s,
            connections: limits.connections,
            bytes_per_destination: limits.bytes_per_destination,
        }
    }
}
