//! Which providers a tenant may use for new sandboxes and volumes.

use crate::Isolation;

/// A provider, as far as this rule looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedProvider<'a> {
    /// Its name in requests.
    pub name: &'a str,
    /// What separates its sandboxes from the machine.
    pub isolation: Isolation,
    /// Whether the operator made it the default of the server.
    pub is_default: bool,
}

/// Whether a tenant may use a provider. With a list, exactly the providers in it. Without one, every provider that
/// isolates its sandboxes, and the server's default; a provider without isolation is also open to the tenant that the server
/// made at its first start.
#[must_use]
pub fn may_use(list: Option<&[String]>, is_first_tenant: bool, provider: RequestedProvider<'_>) -> bool {
    match list {
        Some(list) => list.iter().any(|name| name == provider.name),
        None => provider.isolation != Isolation::None || provider.is_default || is_first_tenant,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_without_isolation_has_to_be_named() {
        let named = ["local".to_owned()];
        let local = RequestedProvider { name: "local", isolation: Isolation::None, is_default: false };
        let docker = RequestedProvider { name: "docker", isolation: Isolation::Container, ..local };
        for (list, is_first, provider, expected) in [
            (None, false, docker, true),
            (None, false, local, false),
            (None, true, local, true),
            (None, false, RequestedProvider { is_default: true, ..local }, true),
            (Some(&named[..]), false, local, true),
            (Some(&named[..]), false, docker, false),
            (Some(&[][..]), true, RequestedProvider { is_default: true, ..docker }, false),
        ] {
            assert_eq!(may_use(list, is_first, provider), expected, "{list:?} {is_first} {provider:?}");
        }
    }
}
