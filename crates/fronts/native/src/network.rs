//! A network policy on the wire: a mode alone, or an object with lists. Read field by field, so that a fault names its
//! place; shown as it was asked for, without the values of injected headers.
//!
//! Never decides what a policy may say: that is the service's.

use std::collections::BTreeMap;
use std::fmt;

use atoll_model::{Cidr, DomainPattern, HeaderText};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a sandbox may reach. Never the host, other sandboxes, link-local or metadata addresses, and private ones only
/// where they are named and the operator agrees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Network {
    Plain(PlainNetwork),
    Policy(Box<NetworkPolicy>),
}

/// `allow-all`: the public internet. `deny-all`: nothing, not even DNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlainNetwork {
    AllowAll,
    DenyAll,
}

/// What happens to a destination that no list names: it is reached (`allow-all`), nothing is reached and there are no lists
/// (`deny-all`), it is refused (`custom`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NetworkMode {
    AllowAll,
    DenyAll,
    Custom,
}

/// A whole policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkPolicy {
    mode: NetworkMode,
    /// Names that are reached over TLS and HTTP: `example.com`, `*.example.com` (all below it, not itself) or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false, example = json!(["pypi.org", "*.pythonhosted.org"]))]
    allow_domains: Vec<DomainPattern>,
    /// Address ranges that are reached by every protocol, IPv4 or IPv6.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false, example = json!(["203.0.113.0/24"]))]
    allow_cidrs: Vec<Cidr>,
    /// Address ranges that are not reached, whatever the other lists say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    deny_cidrs: Vec<Cidr>,
    /// Changes to requests on their way out; their domains are allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    transforms: Vec<Transform>,
    #[serde(default, skip_serializing_if = "NetworkLimits::is_none")]
    #[schema(required = false)]
    limits: NetworkLimits,
    /// Everything is reached and recorded; `GET …/egress/policy` tells the lists that would have done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    learn: bool,
}

/// What is done to requests for one domain. TLS is ended outside the sandbox, by an authority that only it trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transform {
    #[schema(value_type = String, example = "api.example.com")]
    domain: DomainPattern,
    /// Headers that are set, over what the sandbox sent. `{secret:NAME}` stands for a secret of the tenant. Shown as `…`;
    /// a change that holds `…` keeps the value that is there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>, required = false,
        example = json!({"Authorization": "Bearer {secret:EXAMPLE_KEY}"}))]
    inject_headers: BTreeMap<String, HeaderValue>,
    /// Headers that are taken away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    strip_headers: Vec<String>,
    /// Also over plain HTTP, where everybody on the way can read it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    plain_http: bool,
}

/// The value of a header; never part of a log line.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct HeaderValue(String);

impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderValue(..)")
    }
}

/// How much may go over the wire; absent is as much as the server lets every sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NetworkLimits {
    /// Bytes per second out of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000)]
    up_bytes_per_s: Option<u64>,
    /// Bytes per second into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000)]
    down_bytes_per_s: Option<u64>,
    /// Connections at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    connections: Option<u32>,
    /// Bytes, both ways together, with one address or one name, per boot of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    bytes_per_destination: Option<u64>,
}

impl NetworkLimits {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// By hand: what is read as one of several shapes by trying them would not say which field is wrong.
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
                    "custom" => {
                        Err(E::custom("custom says nothing without lists: send {\"mode\": \"custom\", …}"))
                    }
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

/// A policy from a file, written as the API takes it. The error names the field.
pub fn read_policy(json: &[u8]) -> Result<atoll_model::NetworkPolicy, String> {
    let network: Network = serde_json::from_slice(json).map_err(|error| {
        let mut from = serde_json::Deserializer::from_slice(json);
        let place = serde_path_to_error::deserialize::<_, Network>(&mut from).err();
        match place.map(|error| error.path().to_string()).as_deref() {
            None | Some("." | "?") => format!("the policy is not valid: {error}"),
            Some(field) => format!("{field} is not valid: {error}"),
        }
    })?;
    Ok(network.into())
}

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json;
    use serde_json::{Value, json};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        network: Network,
    }

    fn read(network: &Value) -> Result<Network, String> {
        let body = json!({ "network": network }).to_string();
        parse_json::<Body>(body.as_bytes()).map(|body| body.network).map_err(|error| error.message)
    }

    fn whole() -> Value {
        json!({
            "mode": "custom",
            "allow_domains": ["example.com", "*.example.org"],
            "allow_cidrs": ["203.0.113.0/24", "2001:db8::/32"],
            "deny_cidrs": ["203.0.113.7/32"],
            "transforms": [{ "domain": "api.example.com", "inject_headers": { "Authorization": "Bearer {secret:K}" },
                "strip_headers": ["Cookie"], "plain_http": true }],
            "limits": { "up_bytes_per_s": 1000, "down_bytes_per_s": 2000, "connections": 5, "bytes_per_destination": 9 },
            "learn": true,
        })
    }

    #[test]
    fn what_is_asked_is_shown_but_for_the_values_of_headers() {
        for plain in ["allow-all", "deny-all"] {
            let model = atoll_model::NetworkPolicy::from(read(&json!(plain)).unwrap());
            assert!(model.is_plain());
            assert_eq!(serde_json::to_value(Network::from(model)).unwrap(), plain);
        }
        let asked = read(&whole()).unwrap();
        assert!(!format!("{asked:?}").contains("secret:K"), "{asked:?}");
        let model = atoll_model::NetworkPolicy::from(asked);
        let value = &model.transforms[0].inject_headers["Authorization"];
        assert_eq!(*value, HeaderText::Plain("Bearer {secret:K}".to_owned()));
        let mut shown = whole();
        shown["transforms"][0]["inject_headers"]["Authorization"] = json!("…");
        assert_eq!(serde_json::to_value(Network::from(model)).unwrap(), shown);
    }

    #[test]
    fn a_mode_written_as_an_object_means_the_same() {
        let model = atoll_model::NetworkPolicy::from(read(&json!({ "mode": "deny-all" })).unwrap());
        assert_eq!(model, atoll_model::NetworkPolicy::deny_all());
        let nothing = atoll_model::NetworkPolicy::from(read(&json!({ "mode": "custom" })).unwrap());
        assert_eq!(serde_json::to_value(Network::from(nothing)).unwrap(), json!({ "mode": "custom" }));
    }

    #[test]
    fn every_fault_names_its_field_and_says_what_would_be_right() {
        for (network, field, says) in [
            (json!("sometimes"), "network", "allow-all"),
            (json!("custom"), "network", "mode"),
            (json!(7), "network", "allow-all"),
            (json!([]), "network", "object"),
            (json!({}), "network.mode", "is required"),
            (json!({ "mode": "some" }), "network.mode", "custom"),
            (json!({ "mode": "custom", "allow_domain": [] }), "network", "`allow_domain`"),
            (json!({ "mode": "custom", "allow_domains": "x" }), "network.allow_domains", "sequence"),
            (
                json!({ "mode": "custom", "allow_domains": ["a.com", "http://b.com/"] }),
                "network.allow_domains[1]",
                "without scheme",
            ),
            (
                json!({ "mode": "custom", "allow_domains": ["a.*.com"] }),
                "network.allow_domains[0]",
                "beginning",
            ),
            (
                json!({ "mode": "custom", "allow_cidrs": ["10.0.0.5/8"] }),
                "network.allow_cidrs[0]",
                "10.0.0.0/8",
            ),
            (
                json!({ "mode": "custom", "deny_cidrs": ["example.com"] }),
                "network.deny_cidrs[0]",
                "address range",
            ),
            (json!({ "mode": "custom", "transforms": [{}] }), "network.transforms[0].domain", "is required"),
            (
                json!({ "mode": "custom", "transforms": [{ "domain": "a.com", "inject_headers": { "A": 1 } }] }),
                "network.transforms[0].inject_headers.A",
                "string",
            ),
            (
                json!({ "mode": "custom", "limits": { "connections": -1 } }),
                "network.limits.connections",
                "u32",
            ),
            (json!({ "mode": "custom", "limits": { "speed": 1 } }), "network.limits", "`speed`"),
            (json!({ "mode": "custom", "learn": "yes" }), "network.learn", "boolean"),
        ] {
            let message = read(&network).unwrap_err();
            assert!(
                message.starts_with(&format!("{field}: ")) || message.starts_with(&format!("{field}.")),
                "{network}: {message}"
            );
            assert!(message.contains(says), "{network}: {message}");
        }
    }

    #[test]
    fn a_policy_that_is_read_is_written_back_the_same() {
        atoll_robustness::check!("network_policy", |bytes| {
            // Values of headers are not written back.
            if let Ok(policy) = read_policy(bytes)
                && policy.transforms.is_empty()
            {
                let written = serde_json::to_vec(&Network::from(policy.clone())).unwrap();
                assert_eq!(read_policy(&written), Ok(policy));
            }
        });
    }
}
