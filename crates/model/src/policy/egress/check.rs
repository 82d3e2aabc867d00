//! Checks a requested policy: sizes, consistency, and what the operator forbids. Errors name the field.

use super::TenantFloor;
use super::ranges::{self, PRIVATE, Ranges, Ranges4};
use crate::{Cidr, NetworkMode, NetworkPolicy};

/// LIMIT: names per policy; each is checked for every query.
pub const DOMAINS_MAX: usize = 100;
/// LIMIT: address ranges per list; each is an element in the kernel.
pub const CIDRS_MAX: usize = 100;
/// LIMIT: transforms per policy.
pub const TRANSFORMS_MAX: usize = 20;
/// LIMIT: headers per transform.
const HEADERS_MAX: usize = 20;
const HEADER_BYTES_MAX: usize = 8 << 10;
/// LIMIT: the kernel's counter has no more bits.
const BUDGET_MAX: u64 = i64::MAX.unsigned_abs();
/// The lowest rate at which a handshake still completes in reasonable time.
const BYTES_PER_S_MIN: u64 = 1_000;

/// Headers that define the end of a message or its destination: changing them would make two parties read different
/// messages.
const FRAMING: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "keep-alive",
    "proxy-connection",
    "expect",
    "content-encoding",
    "proxy-authorization",
];

/// An invalid policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("network.{field}: {why}")]
pub struct BadPolicy {
    /// The field.
    pub field: &'static str,
    /// The problem.
    pub why: String,
    /// A suggestion.
    pub hint: Option<&'static str>,
}

pub(super) fn bad(field: &'static str, why: impl Into<String>) -> BadPolicy {
    BadPolicy { field, why: why.into(), hint: None }
}

/// Checks the policy of a sandbox or a tenant.
pub fn check(policy: &NetworkPolicy, floor: &TenantFloor) -> Result<(), BadPolicy> {
    let lists = !(policy.allow_domains.is_empty() && policy.allow_cidrs.is_empty());
    match policy.mode {
        NetworkMode::DenyAll if lists || !policy.transforms.is_empty() || !policy.deny_cidrs.is_empty() => {
            return Err(BadPolicy {
                hint: Some("use mode custom"),
                ..bad("mode", "deny-all cannot have lists")
            });
        }
        // Private ranges are the only addition that a list can make to allow-all.
        NetworkMode::AllowAll
            if !policy.allow_domains.is_empty() || !policy.allow_cidrs.iter().all(is_private) =>
        {
            return Err(BadPolicy {
                hint: Some("use mode custom to allow only the listed destinations, or remove the lists"),
                ..bad("mode", "allow-all cannot have allow lists, except private ranges in allow_cidrs")
            });
        }
        NetworkMode::AllowAll | NetworkMode::DenyAll | NetworkMode::Custom => {}
    }
    at_most("allow_domains", policy.allow_domains.len(), DOMAINS_MAX)?;
    at_most("allow_cidrs", policy.allow_cidrs.len(), CIDRS_MAX)?;
    at_most("deny_cidrs", policy.deny_cidrs.len(), CIDRS_MAX)?;
    at_most("transforms", policy.transforms.len(), TRANSFORMS_MAX)?;
    policy.allow_cidrs.iter().try_for_each(|cidr| check_allowed(cidr, floor))?;
    check_once(policy)?;
    policy.transforms.iter().try_for_each(|transform| {
        at_most("transforms", transform.inject_headers.len() + transform.strip_headers.len(), HEADERS_MAX)?;
        let names = transform.inject_headers.keys().chain(&transform.strip_headers);
        names.into_iter().try_for_each(|name| check_header(name))?;
        transform.inject_headers.iter().try_for_each(|(name, value)| match value {
            crate::HeaderText::Plain(text) => check_value(name, text),
            crate::HeaderText::Sealed(_) => Ok(()),
        })
    })?;
    policy.egress_proxy.as_ref().map_or(Ok(()), check_proxy)?;
    check_limits(policy)
}

/// A SOCKS5 proxy by name or address, without a scheme.
fn check_proxy(proxy: &crate::SandboxProxy) -> Result<(), BadPolicy> {
    let is_plain = !proxy.address.contains(['/', '@']);
    let parsed = format!("socks5://{}", proxy.address).parse::<crate::ProxyUrl>();
    if !is_plain || parsed.is_err() || !proxy.address.contains(':') {
        return Err(bad("egress_proxy", "its address must be HOST:PORT of a SOCKS5 proxy"));
    }
    let fits = |text: &str| (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
    let is_good = |text: &crate::HeaderText| match text {
        crate::HeaderText::Plain(text) => text.is_empty() || fits(text),
        crate::HeaderText::Sealed(_) => true,
    };
    if !proxy.username.as_deref().is_none_or(fits) || !proxy.password.as_ref().is_none_or(is_good) {
        return Err(bad("egress_proxy", "user and password are texts of at most 255 bytes"));
    }
    if proxy.username.is_none() && proxy.password.is_some() {
        return Err(bad("egress_proxy", "a password needs a user"));
    }
    Ok(())
}

/// Checks the policy of a tenant, or of the operator: it may only restrict the policies of sandboxes.
pub fn check_layer(policy: &NetworkPolicy, floor: &TenantFloor) -> Result<(), BadPolicy> {
    if !policy.transforms.is_empty() {
        return Err(bad("transforms", "only the policy of a sandbox can have transforms"));
    }
    if policy.learn {
        return Err(bad("learn", "only the policy of a sandbox can learn"));
    }
    if policy.egress_proxy.is_some() {
        return Err(bad(
            "egress_proxy",
            "only the policy of a sandbox can name a proxy; for all there is --egress-proxy",
        ));
    }
    check(policy, floor)
}

/// Refuses two transforms for one domain, because it is undefined which one would be used.
fn check_once(policy: &NetworkPolicy) -> Result<(), BadPolicy> {
    for (at, transform) in policy.transforms.iter().enumerate() {
        if policy.transforms[..at].iter().any(|other| other.domain == transform.domain) {
            return Err(bad("transforms", format!("{} is listed twice", transform.domain)));
        }
        let names: Vec<&String> = transform.inject_headers.keys().collect();
        for (at, name) in names.iter().enumerate() {
            if names[..at].iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return Err(bad("transforms", format!("the header {name} is listed twice")));
            }
            if transform.strip_headers.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return Err(BadPolicy {
                    hint: Some(
                        "an injected header replaces the one that the sandbox sent; remove it from strip_headers",
                    ),
                    ..bad("transforms", format!("the header {name} is both injected and stripped"))
                });
            }
        }
    }
    Ok(())
}

fn check_limits(policy: &NetworkPolicy) -> Result<(), BadPolicy> {
    let slow = |rate: Option<u64>| rate.is_some_and(|rate| rate < BYTES_PER_S_MIN);
    if slow(policy.limits.up_bytes_per_s) || slow(policy.limits.down_bytes_per_s) {
        return Err(bad("limits", format!("rates must be at least {BYTES_PER_S_MIN} bytes per second")));
    }
    if policy.limits.bytes_per_destination.is_some_and(|bytes| bytes > BUDGET_MAX) {
        return Err(bad("limits", format!("bytes_per_destination is at most {BUDGET_MAX}")));
    }
    if policy.limits.connections == Some(0) || policy.limits.bytes_per_destination == Some(0) {
        return Err(BadPolicy {
            hint: Some("use mode deny-all"),
            ..bad("limits", "0 would allow no traffic")
        });
    }
    Ok(())
}

fn at_most(field: &'static str, count: usize, max: usize) -> Result<(), BadPolicy> {
    if count <= max { Ok(()) } else { Err(bad(field, format!("{count} entries; at most {max} are allowed"))) }
}

/// Whether it is within private IPv4 space.
pub(super) fn is_private(cidr: &Cidr) -> bool {
    let Some(range) = cidr.v4() else { return false };
    Ranges::new([range]).minus(&Ranges::new(PRIVATE)).is_empty()
}

fn check_allowed(cidr: &Cidr, floor: &TenantFloor) -> Result<(), BadPolicy> {
    let reachable = |named: Ranges4| match (cidr.v4(), cidr.v6()) {
        (Some(range), _) => !Ranges::new([range]).minus(&ranges::never(named)).is_empty(),
        (_, Some(range)) => !Ranges::new([range]).minus(&ranges::never6()).is_empty(),
        (None, None) => false,
    };
    if reachable(Ranges4::default()) || (is_private(cidr) && floor.private_when_named) {
        return Ok(());
    }
    if is_private(cidr) {
        return Err(BadPolicy {
            hint: Some(
                "the operator can allow named private ranges for every tenant: atoll serve --egress-private named",
            ),
            ..bad(
                "allow_cidrs",
                format!("{cidr} is private, and this server does not let this tenant reach private ranges"),
            )
        });
    }
    let class = cidr.v4().and_then(|(first, _)| ranges::class_of(first.into())).unwrap_or("not public");
    Err(bad("allow_cidrs", format!("no sandbox can reach {cidr} ({class})")))
}

fn check_header(name: &str) -> Result<(), BadPolicy> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(is_token) {
        return Err(bad(
            "transforms",
            format!("{:?} is not a header name", name.chars().take(64).collect::<String>()),
        ));
    }
    if FRAMING.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(bad(
            "transforms",
            format!("the header {name} cannot be changed: it frames or routes the request"),
        ));
    }
    Ok(())
}

fn check_value(name: &str, text: &str) -> Result<(), BadPolicy> {
    if text.len() > HEADER_BYTES_MAX {
        return Err(bad(
            "transforms",
            format!("the value of {name} is longer than {HEADER_BYTES_MAX} bytes"),
        ));
    }
    if text.bytes().any(|b| (b < 0x20 && b != b'\t') || b == 0x7f) {
        return Err(bad("transforms", format!("the value of {name} contains control characters")));
    }
    Ok(())
}
