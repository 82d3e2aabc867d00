//! Translates network policies from and to Leap0's form. The core decides what they allow.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::policy::egress::vendor_policies::{Leap0Transform, Leap0Words, from_leap0};
use atoll_model::{HeaderText, NetworkPolicy, Transform};
use serde::{Deserialize, Serialize};

/// The placeholder for an injected value, which is never returned.
const HIDDEN: &str = HeaderText::SHOWN;

/// A policy in a request.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PolicyBody {
    mode: String,
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

/// Leaves out the values, which are secrets.
impl std::fmt::Debug for RuleBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleBody").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl PolicyBody {
    pub(crate) fn into_policy(self) -> Result<NetworkPolicy, ApiError> {
        let trimmed = |all: Option<Vec<String>>| {
            all.unwrap_or_default().iter().map(|one| one.trim().to_owned()).collect::<Vec<_>>()
        };
        let rule = |rule: RuleBody| Leap0Transform {
            domain: rule.domain.trim().to_owned(),
            inject_headers: rule.inject_headers.unwrap_or_default(),
            strip_headers: rule.strip_headers.unwrap_or_default(),
        };
        let words = Leap0Words {
            mode: self.mode,
            allow_domains: trimmed(self.allow_domains),
            allow_cidrs: trimmed(self.allow_cidrs),
            transforms: self.transforms.unwrap_or_default().into_iter().map(rule).collect(),
        };
        from_leap0(Some(&words)).map_err(|bad| {
            let error = ApiError::field(format!("network_policy.{}", bad.field), bad.why);
            match bad.hint {
                Some(hint) => error.hint(hint),
                None => error,
            }
        })
    }
}

/// A policy in a response.
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
        atoll_front_kit::parse_json_or_empty::<PolicyBody>(text.as_bytes())?.into_policy()
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
        let body: PolicyBody = atoll_front_kit::parse_json_or_empty(asked.as_bytes()).unwrap();
        assert!(!format!("{body:?}").contains("canary"));
    }

    #[test]
    fn lists_of_null_are_no_lists() {
        let plain =
            policy(r#"{"mode":"allow-all","allow_domains":null,"allow_cidrs":null,"transforms":null}"#);
        assert_eq!(plain.unwrap(), NetworkPolicy::allow_all());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let field = |text: &str| policy(text).unwrap_err().field_name().map(str::to_owned);
        for (text, wanted) in [
            (r#"{"mode":"custom","allow_domains":["a.com","a b"]}"#, "network_policy.allow_domains"),
            (r#"{"mode":"custom","allow_cidrs":["10.0.0.0/40"]}"#, "network_policy.allow_cidrs"),
            (r#"{"mode":"custom","transforms":[{"domain":""}]}"#, "network_policy.transforms"),
            (r#"{"mode":"sideways"}"#, "network_policy.mode"),
        ] {
            assert_eq!(field(text).as_deref(), Some(wanted), "{text}");
        }
    }
}
