//! The network policy in Leap0's words, in and out. What it allows is the core's business.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use atoll_model::{Cidr, DomainPattern, HeaderText, NetworkMode, NetworkPolicy, Transform};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// What stands for a value that was injected: it went in and never comes out.
const HIDDEN: &str = HeaderText::SHOWN;

/// A policy as it is asked for.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PolicyBody {
    mode: NetworkMode,
    #[serde(default)]
    allow_domains: Option<Vec<String>>,
    #[serde(default)]
    allow_cidrs: Option<Vec<String>>,
    #[serde(default)]
    transforms: Option<Vec<RuleBody>>,
}

#[derive(Clone, Deserialize)]
struct RuleBody {
    domain: String,
    #[serde(default)]
    inject_headers: Option<BTreeMap<String, String>>,
    #[serde(default)]
    strip_headers: Option<Vec<String>>,
}

/// Without the values, which are secrets.
impl std::fmt::Debug for RuleBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleBody").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl PolicyBody {
    pub(crate) fn into_policy(self) -> Result<NetworkPolicy, ApiError> {
        let domains = self.allow_domains.unwrap_or_default();
        let cidrs = self.allow_cidrs.unwrap_or_default();
        let rules = self.transforms.unwrap_or_default();
        Ok(NetworkPolicy {
            mode: self.mode,
            allow_domains: each("allow_domains", domains, |text| pattern(&text))?,
            allow_cidrs: each("allow_cidrs", cidrs, |text| range(&text))?,
            transforms: each("transforms", rules, RuleBody::into_transform)?,
            ..NetworkPolicy::default()
        })
    }
}

impl RuleBody {
    fn into_transform(self) -> Result<Transform, String> {
        let headers = self.inject_headers.unwrap_or_default().into_iter();
        Ok(Transform {
            domain: pattern(&self.domain)?,
            inject_headers: headers.map(|(name, value)| (name, HeaderText::Plain(value))).collect(),
            strip_headers: self.strip_headers.unwrap_or_default(),
            plain_http: false,
        })
    }
}

fn each<A, B>(field: &str, all: Vec<A>, read: impl Fn(A) -> Result<B, String>) -> Result<Vec<B>, ApiError> {
    let read =
        |(at, one)| read(one).map_err(|why| ApiError::field(format!("network_policy.{field}[{at}]"), why));
    all.into_iter().enumerate().map(read).collect()
}

fn pattern(text: &str) -> Result<DomainPattern, String> {
    text.trim().parse().map_err(|bad: atoll_model::BadDomain| bad.to_string())
}

/// COMPAT(leap0): the SDK takes `10.0.0.1/8` for `10.0.0.0/8`; the core wants it written plainly.
fn range(text: &str) -> Result<Cidr, String> {
    let text = text.trim();
    let plain = text.split_once('/').and_then(|(address, len)| {
        let (address, bits): (Ipv4Addr, u32) = (address.parse().ok()?, len.parse().ok()?);
        let mask = u32::MAX.checked_shl(32_u32.checked_sub(bits)?).unwrap_or(0);
        Some(format!("{}/{bits}", Ipv4Addr::from(u32::from(address) & mask)))
    });
    plain.as_deref().unwrap_or(text).parse().map_err(|bad: atoll_model::BadCidr| bad.to_string())
}

/// A policy as it is shown.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PolicyShown {
    mode: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_domains: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow_cidrs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    transforms: Vec<RuleShown>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RuleShown {
    domain: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    inject_headers: BTreeMap<String, &'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    strip_headers: Vec<String>,
}

impl From<&NetworkPolicy> for PolicyShown {
    fn from(policy: &NetworkPolicy) -> Self {
        let rule = |transform: &Transform| RuleShown {
            domain: transform.domain.to_string(),
            inject_headers: transform.inject_headers.keys().map(|name| (name.clone(), HIDDEN)).collect(),
            strip_headers: transform.strip_headers.clone(),
        };
        Self {
            mode: policy.mode.as_str(),
            allow_domains: policy.allow_domains.iter().map(ToString::to_string).collect(),
            allow_cidrs: policy.allow_cidrs.iter().map(ToString::to_string).collect(),
            transforms: policy.transforms.iter().map(rule).collect(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(text: &str) -> Result<NetworkPolicy, ApiError> {
        crate::input::parse::<PolicyBody>(text.as_bytes())?.into_policy()
    }

    #[test]
    fn a_policy_goes_in_whole_and_comes_out_without_its_secrets() {
        let asked = r#"{"mode":"custom","allow_domains":["pypi.org"," *.Example.com"],"allow_cidrs":["203.0.113.9/24","198.51.100.7"],
            "transforms":[{"domain":"api.example.com","inject_headers":{"Authorization":"Bearer canary"},"strip_headers":["Cookie"]}]}"#;
        let policy = policy(asked).unwrap();
        let value = &policy.transforms[0].inject_headers["Authorization"];
        assert_eq!(*value, HeaderText::Plain("Bearer canary".to_owned()));
        assert_eq!(
            serde_json::to_value(PolicyShown::from(&policy)).unwrap(),
            json!({
                "mode": "custom",
                "allow_domains": ["pypi.org", "*.example.com"],
                "allow_cidrs": ["203.0.113.0/24", "198.51.100.7/32"],
                "transforms": [{
                    "domain": "api.example.com",
                    "inject_headers": { "Authorization": "…" },
                    "strip_headers": ["Cookie"],
                }],
            })
        );
        let body: PolicyBody = crate::input::parse(asked.as_bytes()).unwrap();
        assert!(!format!("{body:?}").contains("canary"));
    }

    #[test]
    fn lists_of_null_are_no_lists() {
        let plain =
            policy(r#"{"mode":"allow-all","allow_domains":null,"allow_cidrs":null,"transforms":null}"#);
        assert_eq!(plain.unwrap(), NetworkPolicy::allow_all());
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let field = |text: &str| policy(text).unwrap_err().errors.pop().map(|e| e.field);
        assert_eq!(
            field(r#"{"mode":"custom","allow_domains":["a.com","a b"]}"#).as_deref(),
            Some("network_policy.allow_domains[1]")
        );
        assert_eq!(
            field(r#"{"mode":"custom","allow_cidrs":["10.0.0.0/40"]}"#).as_deref(),
            Some("network_policy.allow_cidrs[0]")
        );
        assert_eq!(
            field(r#"{"mode":"custom","transforms":[{"domain":""}]}"#).as_deref(),
            Some("network_policy.transforms[0]")
        );
        assert_eq!(field(r#"{"mode":"sideways"}"#).as_deref(), Some("mode"));
    }
}
