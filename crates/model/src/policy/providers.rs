//! Which providers a tenant may use for new sandboxes and volumes.

/// Kinds whose sandboxes run on this server under its own isolation. The others need the operator's word: root inside a Docker
/// container is root of the host, `local` isolates nothing, and a vendor's sandboxes cost the operator money.
const OPEN_KINDS: [&str; 2] = ["container", "microvm"];

/// A provider, as far as this rule looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedProvider<'a> {
    /// Its name in requests.
    pub name: &'a str,
    /// What it is.
    pub kind: &'a str,
    /// Whether the operator made it the default of the server.
    pub is_default: bool,
}

/// Whether a tenant may use a provider. With a list, exactly the providers in it. Without one, providers of the kinds
/// `container` and `microvm` and the one that the operator made the server's default; every provider is open to the tenant that
/// the server made at its first start.
#[must_use]
pub fn may_use(list: Option<&[String]>, is_first_tenant: bool, provider: RequestedProvider<'_>) -> bool {
    match list {
        Some(list) => list.iter().any(|name| name == provider.name),
        None => OPEN_KINDS.contains(&provider.kind) || provider.is_default || is_first_tenant,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_isolation_and_the_default_are_open_without_a_list() {
        let of = |kind| RequestedProvider { name: "boxes", kind, is_default: false };
        for kind in ["container", "microvm"] {
            assert!(may_use(None, false, of(kind)), "{kind}");
        }
        for kind in ["docker", "local", "e2b", "daytona", "agentbay", "unknown"] {
            assert!(!may_use(None, false, of(kind)), "{kind}");
            assert!(may_use(None, true, of(kind)), "{kind}");
            assert!(may_use(None, false, RequestedProvider { is_default: true, ..of(kind) }), "{kind}");
        }
    }

    #[test]
    fn with_a_list_exactly_its_providers_are_open() {
        let named = ["docker".to_owned()];
        let docker = RequestedProvider { name: "docker", kind: "docker", is_default: false };
        let container = RequestedProvider { name: "container", kind: "container", is_default: true };
        for (list, provider, expected) in
            [(&named[..], docker, true), (&named[..], container, false), (&[][..], container, false)]
        {
            for is_first in [false, true] {
                assert_eq!(may_use(Some(list), is_first, provider), expected, "{list:?} {provider:?}");
            }
        }
    }
}
