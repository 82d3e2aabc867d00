//! Whether a destination may be reached, and by which rule: the answer to a question, without a connection.

use std::net::IpAddr;

use super::{DirectMode, Dns, Egress, NameVerdict, why_shut};

/// The decision about one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressExplanation {
    /// Whether a connection would be allowed.
    pub allowed: bool,
    /// The rule that decides.
    pub rule: String,
}

impl EgressExplanation {
    fn allowed(rule: impl Into<String>) -> Self {
        Self { allowed: true, rule: rule.into() }
    }

    fn refused(rule: impl Into<String>) -> Self {
        Self { allowed: false, rule: rule.into() }
    }
}

impl Egress {
    /// The decision about a name or an address. A name that is allowed may still lead to an address that no sandbox may reach.
    #[must_use]
    pub fn explain(&self, destination: &str) -> EgressExplanation {
        if let Some(layer) = self.denied_by {
            return EgressExplanation::refused(layer.says("deny-all"));
        }
        match destination.parse::<IpAddr>() {
            Ok(address) => self.explain_address(address),
            Err(_) => self.explain_name(destination),
        }
    }

    fn explain_name(&self, name: &str) -> EgressExplanation {
        if self.dns == Dns::Closed {
            return EgressExplanation::refused(self.no_name());
        }
        match self.judge(name) {
            NameVerdict::Refused { rule } => EgressExplanation::refused(rule),
            NameVerdict::Allowed { rule } | NameVerdict::Changed { rule } => EgressExplanation::allowed(rule),
        }
    }

    fn explain_address(&self, address: IpAddr) -> EgressExplanation {
        let v4 = match address {
            IpAddr::V4(v4) => v4,
            IpAddr::V6(v6) if self.direct6.contains(v6.into()) => {
                return EgressExplanation::allowed("allow_cidrs");
            }
            IpAddr::V6(_) => return EgressExplanation::refused("no ipv6"),
        };
        if self.shut.contains(v4.into()) {
            return EgressExplanation::refused(why_shut(v4));
        }
        match self.direct_mode {
            DirectMode::Open => EgressExplanation::allowed("allow-all"),
            DirectMode::Listed if self.direct.contains(v4.into()) => {
                EgressExplanation::allowed("allow_cidrs")
            }
            DirectMode::Listed | DirectMode::Closed => EgressExplanation::refused("not in allow_cidrs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TenantFloor, compile};
    use crate::{NetworkMode, NetworkPolicy};

    fn explained(policy: &NetworkPolicy, destination: &str) -> (bool, String) {
        let told = compile(&TenantFloor::default(), None, policy, &[]).explain(destination);
        (told.allowed, told.rule)
    }

    #[test]
    fn the_rule_that_decides_is_told() {
        let open = NetworkPolicy::allow_all();
        let listed = NetworkPolicy {
            mode: NetworkMode::Custom,
            allow_domains: vec!["*.example.com".parse().expect("a pattern")],
            allow_cidrs: vec!["203.0.113.0/24".parse().expect("a range")],
            ..NetworkPolicy::allow_all()
        };
        let closed = NetworkPolicy::deny_all();
        for (policy, destination, allowed, rule) in [
            (&open, "pypi.org", true, "allow-all"),
            (&open, "203.0.113.7", true, "allow-all"),
            (&open, "169.254.169.254", false, "never: "),
            (&open, "2001:db8::1", false, "no ipv6"),
            (&listed, "a.example.com", true, "allow_domains: *.example.com"),
            (&listed, "pypi.org", false, "not in allow_domains"),
            (&listed, "203.0.113.7", true, "allow_cidrs"),
            (&listed, "198.51.100.1", false, "not in allow_cidrs"),
            (&closed, "pypi.org", false, "deny-all"),
            (&closed, "203.0.113.7", false, "deny-all"),
        ] {
            let (is_allowed, told) = explained(policy, destination);
            assert_eq!(is_allowed, allowed, "{destination}: {told}");
            assert!(told.starts_with(rule), "{destination}: {told}");
        }
    }
}
