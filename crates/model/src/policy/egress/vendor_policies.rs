//! Translates the network policies of other systems. A policy that cannot be expressed exactly is refused, never
//! approximated.
//!
//! | system | policy | meaning here |
//! |---|---|---|
//! | Leap0 | mode, domains, CIDRs, transforms | the same |
//! | Daytona | allow list, domain list, with or without block all | custom: only these |
//! | Daytona | block all without a list | deny-all |
//! | Daytona | no block, no list | allow-all |
//! | E2B | no deny | allow-all: an allow list without a deny list restricts nothing; private ranges in it are added |
//! | E2B | deny of everything (also: no internet access) | custom: the allowed ones; deny-all if there are none |
//! | E2B | deny of some | allow-all except these; allowed ones are removed from them, since allow has precedence |

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::check::{BadPolicy, bad, is_private};
use super::ranges::{Bound, Ranges, Ranges4, Ranges6};
use crate::{Cidr, DomainPattern, HeaderText, NetworkMode, NetworkPolicy, Transform};

/// A change of requests for one domain, in Leap0's form.
#[derive(Clone, Default)]
pub struct Leap0Transform {
    /// The domain of the requests.
    pub domain: String,
    /// Headers to set.
    pub inject_headers: BTreeMap<String, String>,
    /// Headers to remove.
    pub strip_headers: Vec<String>,
}

/// A policy in Leap0's form.
#[derive(Clone, Default)]
pub struct Leap0Words {
    /// `allow-all`, `deny-all` or `custom`.
    pub mode: String,
    /// Names, with a leading `*.` for all names below one.
    pub allow_domains: Vec<String>,
    /// IPv4 networks.
    pub allow_cidrs: Vec<String>,
    /// Changes of requests.
    pub transforms: Vec<Leap0Transform>,
}

/// Translates a policy of Leap0. `None`: allow-all.
pub fn from_leap0(words: Option<&Leap0Words>) -> Result<NetworkPolicy, BadPolicy> {
    let Some(words) = words else { return Ok(NetworkPolicy::allow_all()) };
    let mode = match words.mode.as_str() {
        "allow-all" => NetworkMode::AllowAll,
        "deny-all" => NetworkMode::DenyAll,
        "custom" => NetworkMode::Custom,
        _ => return Err(bad("mode", "must be allow-all, deny-all or custom")),
    };
    let mut transforms = Transforms::default();
    for rule in &words.transforms {
        transforms.add(&rule.domain, &rule.inject_headers, &rule.strip_headers)?;
    }
    Ok(NetworkPolicy {
        mode,
        allow_domains: domains("allow_domains", words.allow_domains.iter().map(String::as_str))?,
        allow_cidrs: cidrs("allow_cidrs", words.allow_cidrs.iter().map(String::as_str))?,
        transforms: transforms.0,
        ..NetworkPolicy::default()
    })
}

/// A policy in Daytona's form. The lists are texts with commas.
#[derive(Debug, Clone, Default)]
pub struct DaytonaWords<'a> {
    /// `Some(true)`: everything that no list of this request allows is refused. `Some(false)`: what no list of this request
    /// restricts is allowed. Both remove earlier lists.
    pub block_all: Option<bool>,
    /// Whether block all was set before, which counts if `block_all` is not given.
    pub was_blocked: bool,
    /// IPv4 networks, each with its prefix length.
    pub allow_list: Option<&'a str>,
    /// Names.
    pub domain_list: Option<&'a str>,
}

/// LIMIT: networks in an allow list of Daytona; the vendor's limit.
const DAYTONA_CIDRS_MAX: usize = 10;

/// Translates a policy of Daytona, for a sandbox with the policy `before`. A list that is not given stays unchanged.
pub fn from_daytona(words: &DaytonaWords<'_>, before: &NetworkPolicy) -> Result<NetworkPolicy, BadPolicy> {
    let (listed, named) = (words.allow_list.map(parts), words.domain_list.map(parts));
    if let Some(bare) = listed.iter().flatten().find(|part| !part.contains('/')) {
        let why = format!("{:?} needs a prefix length, such as /32", short(bare));
        return Err(bad("allow_cidrs", why));
    }
    if listed.as_ref().is_some_and(|listed| listed.len() > DAYTONA_CIDRS_MAX) {
        return Err(bad("allow_cidrs", format!("has more than {DAYTONA_CIDRS_MAX} ranges")));
    }
    let listed = listed.map(|listed| cidrs("allow_cidrs", listed.into_iter())).transpose()?;
    let named = named.map(|named| domains("allow_domains", named.into_iter())).transpose()?;
    let open = NetworkPolicy { limits: before.limits, ..NetworkPolicy::allow_all() };
    let kept = match (words.block_all, before.mode) {
        (None, NetworkMode::Custom) => before.clone(),
        _ => open.clone(),
    };
    let allow_cidrs = listed.unwrap_or_else(|| kept.allow_cidrs.clone());
    let allow_domains = named.unwrap_or_else(|| kept.allow_domains.clone());
    if allow_cidrs.is_empty() && allow_domains.is_empty() {
        let is_blocked = words.block_all.unwrap_or(words.was_blocked);
        let mode = if is_blocked { NetworkMode::DenyAll } else { NetworkMode::AllowAll };
        return Ok(NetworkPolicy { mode, ..open });
    }
    Ok(NetworkPolicy { mode: NetworkMode::Custom, allow_cidrs, allow_domains, ..kept })
}

fn parts(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// A policy in E2B's form.
#[derive(Clone, Default)]
pub struct E2bWords {
    /// `Some(false)`: as if everything were denied.
    pub allow_internet_access: Option<bool>,
    /// Addresses, networks and names; has precedence over denied ones.
    pub allow_out: Vec<String>,
    /// Addresses and networks.
    pub deny_out: Vec<String>,
    /// Headers to set, by host.
    pub rules: BTreeMap<String, BTreeMap<String, String>>,
}

/// Translates a policy of E2B.
pub fn from_e2b(words: &E2bWords) -> Result<NetworkPolicy, BadPolicy> {
    let (networks, names): (Vec<_>, Vec<_>) =
        words.allow_out.iter().partition(|entry| network(entry).is_some());
    let allow_cidrs = cidrs("allow_out", networks.into_iter().map(String::as_str))?;
    let allow_domains = domains("allow_out", names.into_iter().map(String::as_str))?;
    let mut denied = cidrs("deny_out", words.deny_out.iter().map(String::as_str))?;
    if words.allow_internet_access == Some(false) {
        denied.extend(Cidr::around(Ipv4Addr::UNSPECIFIED.into(), 0));
    }
    let mut transforms = Transforms::default();
    for (host, headers) in &words.rules {
        transforms.add(host, headers, &[])?;
    }
    let denied4 = Ranges::new(denied.iter().filter_map(Cidr::v4));
    if denied4 == Ranges4::all() {
        return Ok(only(allow_domains, allow_cidrs, transforms.0));
    }
    // If some addresses are denied, a name would have to open them only for itself, which a list of addresses cannot
    // express. E2B refuses the same.
    if let (Some(name), false) = (allow_domains.first(), denied.is_empty()) {
        return Err(bad(
            "allow_out",
            format!("the domain {name} needs deny_out to deny all traffic (0.0.0.0/0)"),
        ));
    }
    let allowed4 = Ranges::new(allow_cidrs.iter().filter_map(Cidr::v4));
    let denied6 = Ranges::new(denied.iter().filter_map(Cidr::v6));
    let allowed6 = Ranges::new(allow_cidrs.iter().filter_map(Cidr::v6));
    let mut deny_cidrs = cover4(&denied4.minus(&allowed4));
    deny_cidrs.extend(cover6(&denied6.minus(&allowed6)));
    let allow_cidrs = allow_cidrs.into_iter().filter(is_private).collect();
    Ok(NetworkPolicy { allow_cidrs, deny_cidrs, transforms: transforms.0, ..NetworkPolicy::allow_all() })
}

/// Denies everything except these. A rule for a host that is not allowed is never used in E2B, and would allow the host
/// here.
fn only(
    allow_domains: Vec<DomainPattern>,
    allow_cidrs: Vec<Cidr>,
    transforms: Vec<Transform>,
) -> NetworkPolicy {
    if allow_domains.is_empty() && allow_cidrs.is_empty() {
        return NetworkPolicy::deny_all();
    }
    let is_allowed = |rule: &Transform| {
        let host = rule.domain.to_string();
        allow_domains.iter().any(|allowed| {
            *allowed == rule.domain || allowed.matches(host.trim_start_matches("*.")) && host != "*"
        })
    };
    let transforms = transforms.into_iter().filter(|rule| is_allowed(rule)).collect();
    NetworkPolicy {
        mode: NetworkMode::Custom,
        allow_domains,
        allow_cidrs,
        transforms,
        ..NetworkPolicy::default()
    }
}

/// Merges rules for the same domain.
#[derive(Default)]
struct Transforms(Vec<Transform>);

impl Transforms {
    fn add(
        &mut self,
        domain: &str,
        inject: &BTreeMap<String, String>,
        strip: &[String],
    ) -> Result<(), BadPolicy> {
        let domain: DomainPattern = domain.parse().map_err(|why| bad("transforms", format!("{why}")))?;
        let at = self.0.iter().position(|rule| rule.domain == domain).unwrap_or_else(|| {
            self.0.push(Transform {
                domain,
                inject_headers: BTreeMap::new(),
                strip_headers: Vec::new(),
                plain_http: false,
            });
            self.0.len() - 1
        });
        let rule = &mut self.0[at];
        for (name, value) in inject {
            rule.inject_headers.retain(|had, _| !had.eq_ignore_ascii_case(name));
            rule.inject_headers.insert(name.clone(), HeaderText::Plain(value.clone()));
        }
        for name in strip {
            if !rule.strip_headers.iter().any(|had| had.eq_ignore_ascii_case(name)) {
                rule.strip_headers.push(name.clone());
            }
        }
        // An injected header replaces the sandbox's, so stripping it first is redundant.
        let Transform { inject_headers, strip_headers, .. } = rule;
        strip_headers.retain(|name| !inject_headers.keys().any(|set| set.eq_ignore_ascii_case(name)));
        Ok(())
    }
}

fn domains<'a>(
    field: &'static str,
    names: impl Iterator<Item = &'a str>,
) -> Result<Vec<DomainPattern>, BadPolicy> {
    names.map(|name| name.parse().map_err(|why| bad(field, format!("{why}")))).collect()
}

fn cidrs<'a>(field: &'static str, texts: impl Iterator<Item = &'a str>) -> Result<Vec<Cidr>, BadPolicy> {
    texts
        .map(|text| {
            network(text).ok_or_else(|| bad(field, format!("{:?} is not an address range", short(text))))
        })
        .collect()
}

/// An address or a network as the vendors read it: bits after the prefix are masked. `None`: it is neither.
#[must_use]
pub fn network(text: &str) -> Option<Cidr> {
    let Some((address, len)) = text.split_once('/') else { return text.parse().ok() };
    let address: IpAddr = address.parse().ok()?;
    let masked = Cidr::around(address, len.parse().ok()?)?;
    // The strict parser decides about unusual forms.
    masked.to_string().parse::<Cidr>().ok().filter(|_| len.bytes().all(|b| b.is_ascii_digit()))
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

fn cover4(ranges: &Ranges4) -> Vec<Cidr> {
    let blocks = ranges.iter().flat_map(|(first, last)| blocks(first.into(), last.into(), u32::BITS));
    let address = |at: u128| u32::try_from(at).ok().map(Ipv4Addr::from);
    blocks.filter_map(|(at, len)| Cidr::around(address(at)?.into(), len)).collect()
}

fn cover6(ranges: &Ranges6) -> Vec<Cidr> {
    let blocks = ranges.iter().flat_map(|(first, last)| blocks(first, last, u128::BITS));
    blocks.filter_map(|(at, len)| Cidr::around(Ipv6Addr::from(at).into(), len)).collect()
}

/// The smallest list of prefixes that covers exactly a range.
fn blocks(first: u128, last: u128, width: u32) -> Vec<(u128, u8)> {
    let span = |bits: u32| if bits == u128::BITS { u128::LAST } else { (1 << bits) - 1 };
    let mut found = Vec::new();
    let mut next = Some(first).filter(|first| *first <= last);
    while let Some(at) = next {
        let mut bits = at.trailing_zeros().min(width);
        while span(bits) > last - at {
            bits -= 1;
        }
        found.push((at, u8::try_from(width - bits).unwrap_or(u8::MAX)));
        next = (at + span(bits)).checked_add(1).filter(|at| *at <= last);
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::{TenantFloor, check};
    use super::*;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    /// `mode | domains | cidrs | exceptions | transforms`, or the error.
    fn shown(policy: Result<NetworkPolicy, BadPolicy>) -> String {
        let policy = match policy {
            Ok(policy) => policy,
            Err(bad) => return format!("refused: {}", bad.field),
        };
        check(&policy, &TenantFloor { private_when_named: true, policy: None }).unwrap();
        let list = |texts: Vec<String>| if texts.is_empty() { "-".to_owned() } else { texts.join(" ") };
        let texts = |cidrs: &[Cidr]| list(cidrs.iter().map(ToString::to_string).collect());
        let rules = policy.transforms.iter().map(|rule| {
            let names: Vec<_> = rule.inject_headers.keys().cloned().collect();
            format!("{}+{}-{}", rule.domain, names.join(","), rule.strip_headers.join(","))
        });
        format!(
            "{} | {} | {} | {} | {}",
            policy.mode.as_str(),
            list(policy.allow_domains.iter().map(ToString::to_string).collect()),
            texts(&policy.allow_cidrs),
            texts(&policy.deny_cidrs),
            list(rules.collect()),
        )
    }

    #[test]
    fn daytona_means_this() {
        for (block, list, names, means) in [
            (None, None, None, "allow-all | - | - | - | -"),
            (Some(false), None, None, "allow-all | - | - | - | -"),
            (Some(false), Some(""), Some(""), "allow-all | - | - | - | -"),
            (Some(true), None, None, "deny-all | - | - | - | -"),
            (Some(true), Some(""), Some(" , "), "deny-all | - | - | - | -"),
            (
                Some(true),
                Some("203.0.113.0/24"),
                Some("example.com"),
                "custom | example.com | 203.0.113.0/24 | - | -",
            ),
            (Some(true), Some("203.0.113.0/24"), None, "custom | - | 203.0.113.0/24 | - | -"),
            (
                None,
                Some("203.0.113.0/24, 198.51.100.9/32"),
                None,
                "custom | - | 203.0.113.0/24 198.51.100.9/32 | - | -",
            ),
            (Some(false), Some("203.0.113.77/24"), None, "custom | - | 203.0.113.0/24 | - | -"),
            (None, Some("192.168.1.0/16"), None, "custom | - | 192.168.0.0/16 | - | -"),
            (None, None, Some("example.com,*.example.org"), "custom | example.com *.example.org | - | - | -"),
            (
                None,
                Some("203.0.113.0/24"),
                Some("a.example.com"),
                "custom | a.example.com | 203.0.113.0/24 | - | -",
            ),
            (None, Some("203.0.113.7"), None, "refused: allow_cidrs"),
            (None, Some("everything"), None, "refused: allow_cidrs"),
            (None, Some("203.0.113.0/33"), None, "refused: allow_cidrs"),
            (None, None, Some("https://example.com"), "refused: allow_domains"),
        ] {
            let words = DaytonaWords {
                block_all: block,
                allow_list: list,
                domain_list: names,
                ..DaytonaWords::default()
            };
            let policy = from_daytona(&words, &NetworkPolicy::allow_all());
            assert_eq!(shown(policy), means, "{block:?} {list:?} {names:?}");
        }
        let eleven = ["203.0.113.0/24"; 11].join(",");
        let many = DaytonaWords { allow_list: Some(&eleven), ..DaytonaWords::default() };
        assert!(from_daytona(&many, &NetworkPolicy::allow_all()).is_err());
    }

    #[test]
    fn in_daytona_a_list_that_is_not_mentioned_stays_and_not_blocking_removes_both() {
        let limits = crate::NetworkLimits { connections: Some(5), ..crate::NetworkLimits::default() };
        let before = NetworkPolicy {
            mode: NetworkMode::Custom,
            allow_cidrs: vec!["203.0.113.0/24".parse().unwrap()],
            allow_domains: vec!["example.com".parse().unwrap()],
            limits,
            ..NetworkPolicy::default()
        };
        let other = DaytonaWords { allow_list: Some("198.51.100.0/24"), ..DaytonaWords::default() };
        let both = from_daytona(&other, &before).unwrap();
        assert_eq!(shown(Ok(both.clone())), "custom | example.com | 198.51.100.0/24 | - | -");
        assert_eq!(both.limits, limits);
        let open = DaytonaWords { block_all: Some(false), ..DaytonaWords::default() };
        assert_eq!(
            from_daytona(&open, &before).unwrap(),
            NetworkPolicy { limits, ..NetworkPolicy::allow_all() }
        );
        let block = DaytonaWords { block_all: Some(true), ..DaytonaWords::default() };
        let blocked = from_daytona(&block, &before).unwrap();
        assert_eq!(blocked, NetworkPolicy { limits, ..NetworkPolicy::deny_all() });
        let only = DaytonaWords { allow_list: Some("198.51.100.0/24"), ..block };
        assert_eq!(shown(from_daytona(&only, &before)), "custom | - | 198.51.100.0/24 | - | -");
    }

    #[test]
    fn in_daytona_an_emptied_list_leaves_all_blocked() {
        let listed = NetworkPolicy {
            mode: NetworkMode::Custom,
            allow_cidrs: vec!["203.0.113.0/24".parse().unwrap()],
            ..NetworkPolicy::default()
        };
        let emptied = DaytonaWords { allow_list: Some(""), ..DaytonaWords::default() };
        let blocked = DaytonaWords { was_blocked: true, ..emptied };
        for (before, words, means) in [
            (&listed, &emptied, "allow-all | - | - | - | -"),
            (&listed, &blocked, "deny-all | - | - | - | -"),
            (&NetworkPolicy::deny_all(), &blocked, "deny-all | - | - | - | -"),
        ] {
            assert_eq!(shown(from_daytona(words, before)), means, "{words:?}");
        }
    }

    #[test]
    fn e2b_means_this() {
        for (internet, allow, deny, means) in [
            (None, &[][..], &[][..], "allow-all | - | - | - | -"),
            (Some(true), &[], &[], "allow-all | - | - | - | -"),
            (Some(false), &[], &[], "deny-all | - | - | - | -"),
            (None, &[], &["0.0.0.0/0"], "deny-all | - | - | - | -"),
            (None, &[], &["0.0.0.0/1", "128.0.0.0/1"], "deny-all | - | - | - | -"),
            // Without a deny list, an allow list restricts nothing.
            (None, &["203.0.113.7"], &[], "allow-all | - | - | - | -"),
            (None, &["example.com"], &[], "allow-all | - | - | - | -"),
            (
                Some(false),
                &["203.0.113.7", "198.51.100.0/24"],
                &[],
                "custom | - | 203.0.113.7/32 198.51.100.0/24 | - | -",
            ),
            (
                None,
                &["*.example.com", "203.0.113.7"],
                &["0.0.0.0/0"],
                "custom | *.example.com | 203.0.113.7/32 | - | -",
            ),
            (None, &[], &["203.0.113.0/24"], "allow-all | - | - | 203.0.113.0/24 | -"),
            // Allow has precedence: it is removed from the denied range.
            (None, &["203.0.113.0/25"], &["203.0.113.0/24"], "allow-all | - | - | 203.0.113.128/25 | -"),
            (
                None,
                &["203.0.113.7"],
                &["203.0.113.4/30"],
                "allow-all | - | - | 203.0.113.4/31 203.0.113.6/32 | -",
            ),
            (None, &["203.0.113.0/24"], &["203.0.113.9"], "allow-all | - | - | - | -"),
            (None, &["203.0.113.9/24"], &["203.0.113.0/24"], "allow-all | - | - | - | -"),
            // Private ranges are closed without a deny list: the allow list opens them.
            (None, &["10.0.0.0/8", "203.0.113.7"], &[], "allow-all | - | 10.0.0.0/8 | - | -"),
            (None, &["10.1.2.3/8"], &["10.0.0.0/8"], "allow-all | - | 10.0.0.0/8 | - | -"),
            (Some(false), &["192.168.1.0/16"], &[], "custom | - | 192.168.0.0/16 | - | -"),
            (None, &["example.com"], &["203.0.113.0/24"], "refused: allow_out"),
            (None, &["http://example.com"], &["0.0.0.0/0"], "refused: allow_out"),
            (None, &[], &["example.com"], "refused: deny_out"),
        ] {
            let words = E2bWords {
                allow_internet_access: internet,
                allow_out: texts(allow),
                deny_out: texts(deny),
                rules: BTreeMap::new(),
            };
            assert_eq!(shown(from_e2b(&words)), means, "{internet:?} {allow:?} {deny:?}");
        }
    }

    #[test]
    fn a_rule_of_e2b_is_a_transform_where_its_host_is_reached() {
        let headers = BTreeMap::from([("X-Key".to_owned(), "v".to_owned())]);
        let rules: BTreeMap<_, _> =
            ["api.example.com", "other.example.org"].map(|host| (host.to_owned(), headers.clone())).into();
        let open = E2bWords { rules: rules.clone(), ..E2bWords::default() };
        assert_eq!(
            shown(from_e2b(&open)),
            "allow-all | - | - | - | api.example.com+X-Key- other.example.org+X-Key-"
        );
        let shut = E2bWords {
            allow_internet_access: Some(false),
            allow_out: texts(&["*.example.com"]),
            rules,
            ..E2bWords::default()
        };
        assert_eq!(shown(from_e2b(&shut)), "custom | *.example.com | - | - | api.example.com+X-Key-");
    }

    #[test]
    fn leap0_means_this() {
        assert_eq!(from_leap0(None).unwrap(), NetworkPolicy::allow_all());
        let rule = |domain: &str, header: &str| Leap0Transform {
            domain: domain.to_owned(),
            inject_headers: [(header.to_owned(), "v".to_owned())].into(),
            strip_headers: texts(&["Cookie", "AUTHORIZATION"]),
        };
        let words = Leap0Words {
            mode: "custom".to_owned(),
            allow_domains: texts(&["*.example.com"]),
            allow_cidrs: texts(&["203.0.113.0/24"]),
            transforms: vec![
                rule("api.example.org", "authorization"),
                rule("api.example.org", "Authorization"),
                rule("b.example.org", "X-Key"),
            ],
        };
        assert_eq!(
            shown(from_leap0(Some(&words))),
            "custom | *.example.com | 203.0.113.0/24 | - | api.example.org+Authorization-Cookie b.example.org+X-Key-Cookie,AUTHORIZATION"
        );
        for mode in ["allow-all", "deny-all"] {
            let words = Leap0Words { mode: mode.to_owned(), ..Leap0Words::default() };
            assert_eq!(shown(from_leap0(Some(&words))), format!("{mode} | - | - | - | -"));
        }
        for odd in [
            Leap0Words { mode: "open".to_owned(), ..Leap0Words::default() },
            Leap0Words {
                mode: "custom".to_owned(),
                allow_domains: texts(&["localhost"]),
                ..Leap0Words::default()
            },
            Leap0Words {
                mode: "custom".to_owned(),
                allow_cidrs: texts(&["example.com"]),
                ..Leap0Words::default()
            },
            Leap0Words {
                mode: "custom".to_owned(),
                transforms: vec![rule("a b", "X")],
                ..Leap0Words::default()
            },
        ] {
            assert!(from_leap0(Some(&odd)).is_err());
        }
    }

    proptest! {
        #[test]
        fn prefixes_cover_exactly_their_range(a: u32, b: u32, probe: u32) {
            let (first, last) = (a.min(b), a.max(b));
            let cover = cover4(&Ranges::new([(first, last)]));
            let within = |x: u32| cover.iter().any(|cidr| cidr.contains(Ipv4Addr::from(x).into()));
            for x in [first, last, first.saturating_sub(1), last.saturating_add(1), probe] {
                prop_assert_eq!(within(x), (first..=last).contains(&x));
            }
            let back = Ranges::new(cover.iter().filter_map(Cidr::v4));
            prop_assert_eq!(back, Ranges::new([(first, last)]));
        }

        #[test]
        fn in_e2b_an_allowed_address_is_never_denied(
            allow in proptest::collection::vec((any::<u32>(), 20u8..=32), 0..4),
            deny in proptest::collection::vec((any::<u32>(), 4u8..=32), 0..4),
        ) {
            let text = |list: &[(u32, u8)]| -> Vec<String> {
                list.iter().filter_map(|(at, len)| Cidr::around(Ipv4Addr::from(*at).into(), *len)).map(String::from).collect()
            };
            let words = E2bWords { allow_out: text(&allow), deny_out: text(&deny), ..E2bWords::default() };
            let policy = from_e2b(&words).unwrap();
            for (at, len) in &allow {
                let network = Cidr::around(Ipv4Addr::from(*at).into(), *len).unwrap();
                let first = Ipv4Addr::from(network.v4().unwrap().0);
                prop_assert!(!policy.deny_cidrs.iter().any(|cidr| cidr.contains(first.into())));
            }
        }
    }
}
