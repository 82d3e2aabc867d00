//! What a sandbox may reach in Daytona's words, in and out. What it allows is the core's business.

use atoll_model::{Cidr, DomainPattern, NetworkMode, NetworkPolicy};
use serde::Deserialize;

use crate::error::ApiError;

/// LIMIT: the vendor's own.
const CIDRS_MAX: usize = 10;

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

    /// The policy that this makes of another; `None`: nothing was said. Blocking all wins over lists; not blocking removes
    /// them, unless new ones come with it.
    pub(crate) fn policy(&self, before: &NetworkPolicy) -> Result<Option<NetworkPolicy>, ApiError> {
        if self.is_empty() {
            return Ok(None);
        }
        if self.network_block_all == Some(true) {
            return Ok(Some(NetworkPolicy { limits: before.limits, ..NetworkPolicy::deny_all() }));
        }
        let kept = match (self.network_block_all, before.mode) {
            (None, NetworkMode::Custom) => before.clone(),
            _ => NetworkPolicy { limits: before.limits, ..NetworkPolicy::default() },
        };
        let allow_cidrs = match &self.network_allow_list {
            Some(text) => cidrs(text)?,
            None => kept.allow_cidrs,
        };
        let allow_domains = match &self.domain_allow_list {
            Some(text) => domains(text)?,
            None => kept.allow_domains,
        };
        if allow_cidrs.is_empty() && allow_domains.is_empty() {
            return Ok(Some(NetworkPolicy { limits: before.limits, ..NetworkPolicy::default() }));
        }
        Ok(Some(NetworkPolicy { mode: NetworkMode::Custom, allow_cidrs, allow_domains, ..kept }))
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn cidrs(text: &str) -> Result<Vec<Cidr>, ApiError> {
    let bad = |part: &str, why: String| ApiError::invalid(format!("networkAllowList: {part:?} {why}"));
    let mut all = Vec::new();
    for part in parts(text) {
        // COMPAT(daytona): each says how long its prefix is.
        if !part.contains('/') {
            return Err(bad(part, "needs a prefix length, as in 203.0.113.7/32".to_owned()));
        }
        all.push(part.parse().map_err(|why: atoll_model::BadCidr| bad(part, format!("is no range: {why}")))?);
    }
    if all.len() > CIDRS_MAX {
        return Err(ApiError::invalid(format!("networkAllowList: holds more than {CIDRS_MAX} ranges")));
    }
    Ok(all)
}

fn domains(text: &str) -> Result<Vec<DomainPattern>, ApiError> {
    let bad = |part: &str, why: atoll_model::BadDomain| {
        ApiError::invalid(format!("domainAllowList: {part:?} is no domain: {why}"))
    };
    parts(text).map(|part| part.parse().map_err(|why| bad(part, why))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
    fn odd_lists_are_named() {
        for text in [
            r#"{"networkAllowList":"203.0.113.7"}"#,
            r#"{"networkAllowList":"x/24"}"#,
            r#"{"domainAllowList":"a b"}"#,
            r#"{"networkAllowList":"1.0.0.0/8,2.0.0.0/8,3.0.0.0/8,4.0.0.0/8,5.0.0.0/8,6.0.0.0/8,7.0.0.0/8,8.0.0.0/8,9.0.0.0/8,11.0.0.0/8,12.0.0.0/8"}"#,
        ] {
            let body: NetworkBody = serde_json::from_str(text).unwrap();
            let refused = body.policy(&NetworkPolicy::default()).unwrap_err();
            assert_eq!(refused.status.as_u16(), 400, "{text}");
        }
    }
}
