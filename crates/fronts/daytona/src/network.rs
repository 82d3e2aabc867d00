//! Translates network settings from and to Daytona's form. The core decides what they allow.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::policy::egress::vendor_policies::{DaytonaWords, from_daytona};
use atoll_model::{Lease, NetworkMode, NetworkPolicy};
use serde::Deserialize;

/// The annotation of a sandbox whose user set `networkBlockAll`, which a policy with lists does not show.
const BLOCKS_ALL: &str = "daytona.network_block_all";

/// Whether all but the lists is blocked by the user's words, and not only by the lists.
pub(crate) fn blocks_all(lease: &Lease) -> bool {
    lease.network.mode == NetworkMode::DenyAll
        || (lease.network.mode == NetworkMode::Custom && lease.annotations.contains_key(BLOCKS_ALL))
}

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

    /// The policy of a new sandbox; `None` if the body has no settings. Notes in `annotations` what a policy does not show.
    pub(crate) fn new_policy(
        &self,
        annotations: &mut BTreeMap<String, String>,
    ) -> Result<Option<NetworkPolicy>, ApiError> {
        self.policy(&NetworkPolicy::default(), false, annotations)
    }

    /// The same for a change of a sandbox.
    pub(crate) fn changed_policy(
        &self,
        lease: &Lease,
        annotations: &mut BTreeMap<String, String>,
    ) -> Result<Option<NetworkPolicy>, ApiError> {
        self.policy(&lease.network, blocks_all(lease), annotations)
    }

    fn policy(
        &self,
        before: &NetworkPolicy,
        was_blocked: bool,
        annotations: &mut BTreeMap<String, String>,
    ) -> Result<Option<NetworkPolicy>, ApiError> {
        if self.is_empty() {
            return Ok(None);
        }
        let words = DaytonaWords {
            block_all: self.network_block_all,
            was_blocked,
            allow_list: self.network_allow_list.as_deref(),
            domain_list: self.domain_allow_list.as_deref(),
        };
        match self.network_block_all.unwrap_or(was_blocked) {
            true => annotations.insert(BLOCKS_ALL.to_owned(), "true".to_owned()),
            false => annotations.remove(BLOCKS_ALL),
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
        body.policy(before, false, &mut BTreeMap::new()).unwrap().unwrap()
    }

    #[test]
    fn blocking_all_is_noted_beside_a_list() {
        let mut notes = BTreeMap::new();
        let mut set = |was_blocked: bool, text: &str| {
            let body: NetworkBody = serde_json::from_str(text).unwrap();
            let mode = body.policy(&NetworkPolicy::default(), was_blocked, &mut notes).unwrap().unwrap().mode;
            (mode, notes.contains_key(BLOCKS_ALL))
        };
        let both = r#"{"networkBlockAll":true,"networkAllowList":"203.0.113.0/24"}"#;
        assert_eq!(set(false, both), (NetworkMode::Custom, true));
        assert_eq!(set(true, r#"{"networkAllowList":"203.0.113.0/24"}"#), (NetworkMode::Custom, true));
        assert_eq!(set(true, r#"{"networkAllowList":""}"#), (NetworkMode::DenyAll, true));
        assert_eq!(set(true, r#"{"networkBlockAll":false}"#), (NetworkMode::AllowAll, false));
    }

    #[test]
    fn blocking_and_not_blocking_clear_the_lists() {
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
        assert_eq!(after(&listed, r#"{"networkBlockAll":true}"#), NetworkPolicy::deny_all());
        let both = after(&listed, r#"{"networkAllowList":"198.51.100.0/24"}"#);
        assert_eq!(
            (both.allow_cidrs[0].to_string().as_str(), both.allow_domains.len()),
            ("198.51.100.0/24", 2)
        );
        assert!(NetworkBody::default().policy(&open, false, &mut BTreeMap::new()).unwrap().is_none());
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
            let refused = body.new_policy(&mut BTreeMap::new()).unwrap_err();
            assert_eq!(refused.status().as_u16(), 400, "{text}");
            let named = text.trim_start_matches("{\"").split('"').next().unwrap();
            assert!(refused.message.starts_with(named), "{}", refused.message);
        }
    }
}
