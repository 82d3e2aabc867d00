//! A network policy in the command line: from a file or a sandbox, with options added, to the API or to the user.
//!
//! Unknown fields are kept, because the server may be newer. The server decides which policies are valid.

use std::collections::BTreeMap;

use atoll_client::network::Network;
use serde::{Deserialize, Serialize, Serializer, de::Error as _};
use serde_json::Value;

use super::pretty;
use crate::{cli::network::Reach, human::bytes};

/// A policy. A policy with only a mode is serialised as a string, as in the API.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Policy {
    pub(super) fields: PolicyFields,
}

/// A policy as an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PolicyFields {
    mode: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow_domains: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow_cidrs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny_cidrs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    transforms: Vec<TransformFields>,
    #[serde(default, skip_serializing_if = "LimitFields::is_empty")]
    limits: LimitFields,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) learn: bool,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct TransformFields {
    domain: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    inject_headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    strip_headers: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    plain_http: bool,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct LimitFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    up_bytes_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    down_bytes_per_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connections: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_destination: Option<u64>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl LimitFields {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.fields.mode.as_str() {
            mode @ ("allow-all" | "deny-all") if self.is_mode_alone() => to.serialize_str(mode),
            _ => self.fields.serialize(to),
        }
    }
}

impl Policy {
    pub(super) fn mode(mode: &str) -> Self {
        Self { fields: PolicyFields { mode: mode.to_owned(), ..PolicyFields::default() } }
    }

    /// A policy in the form of the API or a file: a mode, or an object.
    pub(super) fn read(policy: &Value) -> Result<Self, serde_json::Error> {
        match policy {
            Value::String(mode) => Ok(Self::mode(mode)),
            Value::Object(_) => Ok(Self { fields: PolicyFields::deserialize(policy)? }),
            _ => Err(serde_json::Error::custom("a policy is a mode or an object")),
        }
    }

    /// The policy of an answer.
    pub(super) fn of(network: &Network) -> Self {
        serde_json::to_value(network).and_then(|policy| Self::read(&policy)).unwrap_or_default()
    }

    /// Whether it has only a mode.
    pub(super) fn is_mode_alone(&self) -> bool {
        *self == Self::mode(&self.fields.mode)
    }

    /// The same with the options besides `--network`.
    pub(super) fn with(mut self, reach: &Reach) -> Self {
        let fields = &mut self.fields;
        append(&mut fields.allow_domains, &reach.allow_domain);
        append(&mut fields.allow_cidrs, &reach.allow_cidr);
        append(&mut fields.deny_cidrs, &reach.deny_cidr);
        for injection in &reach.inject {
            let headers = &mut fields.transform(&injection.domain).inject_headers;
            headers.insert(injection.header.clone(), injection.value.clone());
        }
        for removal in &reach.strip {
            append(
                &mut fields.transform(&removal.domain).strip_headers,
                std::slice::from_ref(&removal.header),
            );
        }
        let limits = &mut fields.limits;
        limits.up_bytes_per_s = reach.up.map(|v| v.0).or(limits.up_bytes_per_s);
        limits.down_bytes_per_s = reach.down.map(|v| v.0).or(limits.down_bytes_per_s);
        limits.connections = reach.connections.or(limits.connections);
        limits.bytes_per_destination =
            reach.bytes_per_destination.map(|v| v.0).or(limits.bytes_per_destination);
        fields.learn |= reach.learn;
        self
    }

    /// In the form of a file: an object, the mode first.
    pub(super) fn as_file(&self) -> String {
        pretty(&self.fields)
    }

    /// For a person: the mode, and one line per setting.
    pub(super) fn readable(&self) -> Vec<String> {
        let fields = &self.fields;
        let mode = match fields.mode.as_str() {
            "custom" => "custom: only listed destinations",
            mode if self.is_mode_alone() => mode,
            "allow-all" => "allow-all: the public internet",
            mode => mode,
        };
        let mut lines = vec![mode.to_owned()];
        let mut say = |name: &str, what: Option<String>| {
            lines.extend(what.map(|what| format!("{name:<9} {what}").trim_end().to_owned()));
        };
        say("names", told(&fields.allow_domains));
        say("addresses", told(&fields.allow_cidrs));
        say("never", told(&fields.deny_cidrs));
        for transform in &fields.transforms {
            say("changes", Some(change(transform)));
        }
        say("limits", limits(&fields.limits));
        say("learning", fields.learn.then(|| "all public destinations are allowed and recorded".to_owned()));
        lines
    }
}

impl PolicyFields {
    /// The transform of a domain; made if missing.
    fn transform(&mut self, domain: &str) -> &mut TransformFields {
        let same = |known: &TransformFields| known.domain.eq_ignore_ascii_case(domain);
        let at = self.transforms.iter().position(same).unwrap_or_else(|| {
            self.transforms.push(TransformFields { domain: domain.to_owned(), ..TransformFields::default() });
            self.transforms.len() - 1
        });
        &mut self.transforms[at]
    }
}

/// Adds entries that are not in a list.
fn append(list: &mut Vec<String>, entries: &[String]) {
    for entry in entries {
        if !list.contains(entry) {
            list.push(entry.clone());
        }
    }
}

/// LIMIT: entries of a list that are printed; `--json` has all.
const TOLD: usize = 8;

fn told(entries: &[String]) -> Option<String> {
    let first = entries.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join(", ");
    match entries.len() {
        0 => None,
        count if count > TOLD => Some(format!("{first} and {} more", count - TOLD)),
        _ => Some(first),
    }
}

fn change(transform: &TransformFields) -> String {
    let names: Vec<&str> = transform.inject_headers.keys().map(String::as_str).collect();
    let mut parts = vec![transform.domain.clone()];
    parts.extend((!names.is_empty()).then(|| format!("sets {}", names.join(", "))));
    parts.extend(told(&transform.strip_headers).map(|names| format!("removes {names}")));
    parts.extend(transform.plain_http.then(|| "over plain HTTP too".to_owned()));
    parts.join("; ")
}

fn limits(limits: &LimitFields) -> Option<String> {
    let all = [
        limits.up_bytes_per_s.map(|rate| format!("{}/s up", bytes(rate))),
        limits.down_bytes_per_s.map(|rate| format!("{}/s down", bytes(rate))),
        limits.connections.map(|count| format!("{count} connections")),
        limits.bytes_per_destination.map(|size| format!("{} per destination", bytes(size))),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(value: Value) -> Policy {
        Policy::read(&value).expect("a policy")
    }

    #[test]
    fn a_policy_is_written_so_that_it_is_read_back() {
        let whole = json!({"learn": true, "mode": "custom", "allow_domains": ["a.com"], "newer": {"x": [1]}});
        let text = policy(whole.clone()).as_file();
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), whole);
        assert!(
            text.starts_with("{\n  \"mode\": \"custom\",\n  \"allow_domains\": [\n    \"a.com\"\n  ],"),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<Value>(&policy(json!("deny-all")).as_file()).expect("JSON"),
            json!({"mode": "deny-all"})
        );
    }

    #[test]
    fn a_policy_reads_as_reviewed() {
        assert_eq!(policy(json!("deny-all")).readable(), ["deny-all"]);
        let many: Vec<String> = (0..10).map(|n| format!("h{n}.example.com")).collect();
        let policy =
            policy(json!({"mode": "custom", "allow_domains": many, "allow_cidrs": ["203.0.113.0/24"],
            "deny_cidrs": ["203.0.113.7/32"],
            "transforms": [{"domain": "api.example.com", "inject_headers": {"Authorization": "…"},
                "strip_headers": ["Cookie"], "plain_http": true}],
            "limits": {"up_bytes_per_s": 1_048_576, "connections": 5}, "learn": true}));
        insta::assert_snapshot!(policy.readable().join("\n"), @r"
        custom: only listed destinations
        names     h0.example.com, h1.example.com, h2.example.com, h3.example.com, h4.example.com, h5.example.com, h6.example.com, h7.example.com and 2 more
        addresses 203.0.113.0/24
        never     203.0.113.7/32
        changes   api.example.com; sets Authorization; removes Cookie; over plain HTTP too
        limits    1 MiB/s up, 5 connections
        learning  all public destinations are allowed and recorded
        ");
    }
}
