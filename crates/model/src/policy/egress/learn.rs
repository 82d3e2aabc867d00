//! Derives the smallest policy that would have allowed the recorded traffic.
//!
//! Names are listed exactly, and become `*.parent` only if there are more than a policy may list. An address becomes a
//! range of its own if no name resolves to it, or if it received traffic other than HTTP and TLS: a name alone allows
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::{CIDRS_MAX, DOMAINS_MAX, ranges};
use crate::{
    Cidr, DomainPattern, EgressRecord, EgressVerdict, EgressWhat, NetworkLimits, NetworkMode, NetworkPolicy,
};

/// LIMIT: names and addresses that are recorded, each; a sandbox with more destinations does not fit a list.
const SEEN_MAX: usize = 2_000;
/// Ports on which a flow to a named address counts as HTTP or TLS, which its name allows.
const WEB: [u16; 4] = [80, 443, 8080, 8443];

/// The recorded destinations, as far as a policy needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObservedTargets {
    names: BTreeSet<String>,
    addresses: BTreeMap<IpAddr, Reached>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Reached {
    /// A name resolved to it.
    named: bool,
    /// It received traffic that no name allows.
    beyond: bool,
    /// It received packets.
    flowed: bool,
}

impl ObservedTargets {
    /// Adds a record. Refused and failed traffic is ignored.
    pub fn note(&mut self, record: &EgressRecord) {
        if record.verdict != EgressVerdict::Allowed || record.what == EgressWhat::Lost {
            return;
        }
        let name = record.name.as_deref().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        // A query without an address in its answer is a typing error or a guess: nothing was reached by it.
        let name = name.filter(|_| record.what != EgressWhat::Dns || record.address.is_some());
        let name = name.filter(|name| name.parse::<DomainPattern>().is_ok_and(|pattern| pattern.is_exact()));
        let is_named = name.is_some();
        if let Some(name) = name
            && (self.names.len() < SEEN_MAX || self.names.contains(&name))
        {
            self.names.insert(name);
        }
        let Some(address) = record.address else { return };
        if self.addresses.len() >= SEEN_MAX && !self.addresses.contains_key(&address) {
            return;
        }
        let reached = self.addresses.entry(address).or_default();
        reached.named |= is_named;
        if record.what == EgressWhat::Flow {
            reached.flowed = true;
            reached.beyond |= !is_web(record);
        }
    }

    /// Adds the destinations of another recording.
    pub fn add(&mut self, other: Self) {
        self.names.extend(other.names);
        for (address, more) in other.addresses {
            let reached = self.addresses.entry(address).or_default();
            reached.named |= more.named;
            reached.beyond |= more.beyond;
            reached.flowed |= more.flowed;
        }
    }

    /// The policy, with the existing limits.
    #[must_use]
    pub fn policy(&self, limits: NetworkLimits) -> NetworkPolicy {
        let direct = self.addresses.iter().filter(|(address, reached)| {
            is_reachable(**address) && reached.flowed && (!reached.named || reached.beyond)
        });
        let policy = NetworkPolicy {
            mode: NetworkMode::Custom,
            allow_domains: domains(&self.names),
            allow_cidrs: cidrs(direct.map(|(address, _)| *address).collect()),
            limits,
            ..NetworkPolicy::default()
        };
        if policy.allow_domains.is_empty() && policy.allow_cidrs.is_empty() {
            return NetworkPolicy { limits, ..NetworkPolicy::deny_all() };
        }
        policy
    }
}

fn is_web(record: &EgressRecord) -> bool {
    match (record.protocol.as_deref(), record.port) {
        (Some("tcp"), Some(port)) => WEB.contains(&port),
        // Clients that use QUIC fall back to TLS when it is refused.
        (Some("udp"), Some(443)) => true,
        _ => false,
    }
}

/// Addresses in other ranges are never reachable by a list.
fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !ranges::never(ranges::Ranges::default()).contains(v4.into()),
        IpAddr::V6(v6) => !ranges::never6().contains(v6.into()),
    }
}

/// Exact names; if there are too many, parents with the most names replace them.
fn domains(names: &BTreeSet<String>) -> Vec<DomainPattern> {
    let mut patterns: BTreeSet<DomainPattern> = names.iter().filter_map(|name| name.parse().ok()).collect();
    while patterns.len() > DOMAINS_MAX {
        let mut below: BTreeMap<DomainPattern, usize> = BTreeMap::new();
        for pattern in &patterns {
            let text = pattern.to_string();
            let parent =
                text.trim_start_matches("*.").split_once('.').map(|(_, parent)| format!("*.{parent}"));
            if let Some(wider) = parent.and_then(|parent| parent.parse().ok()) {
                *below.entry(wider).or_default() += 1;
            }
        }
        // If no parent covers several names, the last resort is every name.
        let widest = below.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
        let Some((wider, _)) = widest else { return "*".parse().into_iter().collect() };
        let is_within = |pattern: &DomainPattern| {
            let text = pattern.to_string();
            wider.matches(text.trim_start_matches("*.")) || *pattern == wider
        };
        patterns.retain(|pattern| !is_within(pattern));
        patterns.insert(wider);
    }
    patterns.into_iter().collect()
}

/// Single addresses; if there are too many, the networks around them.
fn cidrs(addresses: Vec<IpAddr>) -> Vec<Cidr> {
    for (v4, v6) in [(32, 128), (24, 64), (16, 48), (8, 32)] {
        let around = addresses
            .iter()
            .filter_map(|address| Cidr::around(*address, if address.is_ipv4() { v4 } else { v6 }));
        let found: BTreeSet<Cidr> = around.collect();
        if found.len() <= CIDRS_MAX {
            return found.into_iter().collect();
        }
    }
    Cidr::around(Ipv4Addr::UNSPECIFIED.into(), 0).into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{TenantFloor, check};
    use super::*;

    fn record(what: EgressWhat, name: Option<&str>, address: Option<&str>) -> EgressRecord {
        EgressRecord {
            at_ms: 1,
            what,
            verdict: EgressVerdict::Allowed,
            rule: "allow-all".to_owned(),
            name: name.map(str::to_owned),
            address: address.map(|text| text.parse().unwrap()),
            port: Some(443),
            protocol: Some("tcp".to_owned()),
            sent: 1,
            received: 1,
        }
    }

    fn learned(records: impl IntoIterator<Item = EgressRecord>) -> NetworkPolicy {
        let mut seen = ObservedTargets::default();
        records.into_iter().for_each(|record| seen.note(&record));
        let policy = seen.policy(NetworkLimits::default());
        check(&policy, &TenantFloor::default()).unwrap();
        policy
    }

    fn shown(policy: &NetworkPolicy) -> (Vec<String>, Vec<String>) {
        (
            policy.allow_domains.iter().map(ToString::to_string).collect(),
            policy.allow_cidrs.iter().map(ToString::to_string).collect(),
        )
    }

    #[test]
    fn names_stay_exact_and_addresses_without_a_name_are_listed() {
        use EgressWhat::{Dns, Flow, Http, Tls};
        let ssh = EgressRecord { port: Some(22), ..record(Flow, None, Some("198.51.100.7")) };
        let quic =
            EgressRecord { protocol: Some("udp".to_owned()), ..record(Flow, None, Some("198.51.100.8")) };
        let policy = learned([
            record(Dns, Some("Api.Example.com."), Some("198.51.100.8")),
            record(Flow, None, Some("198.51.100.8")),
            quic,
            record(Tls, Some("b.example.com"), Some("198.51.100.9")),
            record(Http, Some("c.example.com"), None),
            record(Dns, Some("git.example.org"), Some("198.51.100.7")),
            ssh,
            record(Flow, None, Some("203.0.113.5")),
            // None of these is in it: private, link-local, not a public name.
            record(Flow, None, Some("10.0.0.1")),
            record(Flow, None, Some("169.254.169.254")),
            record(Dns, Some("localhost"), None),
        ]);
        let (domains, cidrs) = shown(&policy);
        assert_eq!(domains, ["api.example.com", "b.example.com", "c.example.com", "git.example.org"]);
        assert_eq!(cidrs, ["198.51.100.7/32", "203.0.113.5/32"]);
        assert_eq!(policy.mode, NetworkMode::Custom);
    }

    #[test]
    fn what_was_refused_or_failed_is_left_out() {
        let refused = EgressRecord {
            verdict: EgressVerdict::Refused,
            ..record(EgressWhat::Dns, Some("bad.example.com"), None)
        };
        let failed = EgressRecord {
            verdict: EgressVerdict::Failed,
            ..record(EgressWhat::Dns, Some("typo.example.com"), None)
        };
        let nowhere = record(EgressWhat::Dns, Some("nowhere.example.com"), None);
        assert_eq!(learned([refused, failed, nowhere]), NetworkPolicy::deny_all());
    }

    #[test]
    fn many_names_below_one_parent_stay_exact_as_long_as_they_fit() {
        let names =
            |count| (0..count).map(|n| record(EgressWhat::Tls, Some(&format!("h{n}.cdn.example.com")), None));
        assert_eq!(learned(names(DOMAINS_MAX)).allow_domains.len(), DOMAINS_MAX);
        let more = names(DOMAINS_MAX + 50).chain([record(EgressWhat::Tls, Some("example.org"), None)]);
        assert_eq!(shown(&learned(more)).0, ["*.cdn.example.com", "example.org"]);
        let apart = (0..150).map(|n| record(EgressWhat::Tls, Some(&format!("site-{n}.com")), None));
        assert_eq!(shown(&learned(apart)).0, ["*"]);
        let addresses = (0..=255).map(|n| record(EgressWhat::Flow, None, Some(&format!("203.0.113.{n}"))));
        assert_eq!(shown(&learned(addresses)).1, ["203.0.113.0/24"]);
    }

    #[test]
    fn it_is_kept_as_text_and_put_together() {
        let mut one = ObservedTargets::default();
        one.note(&record(EgressWhat::Dns, Some("a.example.com"), Some("198.51.100.7")));
        let mut two = ObservedTargets::default();
        two.note(&record(EgressWhat::Flow, None, Some("198.51.100.7")));
        let text = serde_json::to_string(&one).unwrap();
        two.add(serde_json::from_str(&text).unwrap());
        assert_eq!(shown(&two.policy(NetworkLimits::default())), (vec!["a.example.com".to_owned()], vec![]));
    }
}
