//! Translates network settings from and to Daytona's form. The core decides what they allow.

use atoll_front_kit::ApiError;
use atoll_model::NetworkPolicy;
use atoll_model::policy::egress::vendor_policies::{DaytonaWords, from_daytona};
use serde::Deserialize;

/// The body of `network-settings`, and part of a create.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NetworkBody {
    network_block_all: Option<bool>,
    network_allow_list: Option<String>,
    domain_allow_list: Option<String>,
}

impl NetworkBody {
    pub(crate) const fn new(
        block_all: Option<bool>,
        ranges: Option<String>,
        domains: Option<String>,
    ) -> Self {
        Self { network_block_all: block_all, network_allow_list: ranges, domain_allow_list: domains }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.network_block_all.is_none()
            && self.network_allow_list.is_none()
            && self.domain_allow_list.is_none()
    }

    /// The policy `before` with the changes of the body; `None` if the body has no settings.
    pub(crate) fn policy(&self, before: &NetworkPolicy) -> Result<Option<NetworkPolicy>, ApiError> {
        if self.is_empty() {
            return Ok(None);
        }
        let words = DaytonaWords {
            block_all: self.network_block_all,
            allow_list: self.network_allow_list.as_deref(),
            domain_list: self.domain_allow_list.as_deref(),
        };
        from_daytona(&words, before)
            .map(Some)
            .map_err(|bad| ApiError::invalid(format!("{}: {}", field(bad.field), bad.why)))
    }
}

/// Daytona's name for a field of the core.
fn field(name: &'static str) -> &'static str {
    match name {
        "allow_cidrs" => "networkAllowList",
        "allow_domains" => "domainAllowList",
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::NetworkMode;

    fn after(before: &NetworkPolicy, text: &str) -> NetworkPolicy {
        let body: NetworkBody = serde_json::from_str(text).unwrap();
        body.policy(before).unwrap().unwrap()
    }

    #[test]
    fn blocking_wins_and_not_blocking_clears_the_lists() {
        let open = NetworkPolicy::default();
        assert_eq!(after(&open, r#"{"networkBlockAll":true}"#), NetworkPolicy::deny_all());
        let listed = after(
            &open,
            r#"{"networkAllowList":"203.0.113.0/24","domainAllowList":"a.example, *.b.example"}"#,
        );
        assert_eq!(
            (listed.mode, listed.allow_cidrs.len(), listed.allow_domains.len()),
            (NetworkMode::Custom, 1, 2)
        );
        assert_eq!(after(&listed, r#"{"networkBlockAll":false}"#), NetworkPolicy::default());
        let both = after(&listed, r#"{"networkAllowList":"198.51.100.0/24"}"#);
        assert_eq!(
            (both.allow_cidrs[0].to_string().as_str(), both.allow_domains.len()),
            ("198.51.100.0/24", 2)
        );
        assert!(NetworkBody::default().policy(&open).unwrap().is_none());
    }

    #[test]
    fn bits_after_the_prefix_are_masked() {
        let listed =
            after(&NetworkPolicy::default(), r#"{"networkAllowList":"192.168.1.0/16,203.0.113.9/24"}"#);
        let texts: Vec<String> = listed.allow_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["192.168.0.0/16", "203.0.113.0/24"]);
    }

    #[test]
    fn odd_lists_are_named() {
        for text in [
            r#"{"networkAllowList":"203.0.113.7"}"#,
            r#"{"networkAllowList":"x/24"}"#,
            r#"{"domainAllowList":"a b"}"#,
            r#"{"networkAllowList":"1.0.0.0/8,2.0.0.0/8,3.0.0.0/8,4.0.0.0/8,5.0.0.0/8,6.0.0.0/8,7.0.0.0/8,8.0.0.0/8,9.0.0.0/8,11.0.0.0/8,12.0.0.0/8"}"#,
        ] {
            let body: NetworkBody = serde_json::from_str(text).unwrap();
            let refused = body.policy(&NetworkPolicy::default()).unwrap_err();
            assert_eq!(refused.status().as_u16(), 400, "{text}");
            let named = text.trim_start_matches("{\"").split('"').next().unwrap();
            assert!(refused.message.starts_with(named), "{}", refused.message);
        }
    }
}
