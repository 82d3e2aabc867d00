//! Which hosts that a vendor names may be connected to. A vendor or a sandbox that was taken over must not make this server call its
//! own network.
//!
//! | the address of the host | is used |
//! |---|---|
//! | public, or one of the API's own | always |
//! | private | where every address of the API is private or loopback |
//! | loopback | where every address of the API is loopback |
//! | any other: metadata, link-local, sandboxes, multicast | never |
//!
//! Hosts that the operator wrote into the settings are not checked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use atoll_model::policy::egress::ranges::class_of_ip;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Why a host that a vendor named is not connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It would be reached in plain text, while the API is not.
    #[error("the service named the host {host} without TLS, and its API is https")]
    PlainText {
        /// Its name.
        host: String,
    },
    /// It is at an address that a vendor must not name.
    #[error("the service named the host {host} at {address}, which is not allowed ({class})")]
    Address {
        /// Its name.
        host: String,
        /// Where it is.
        address: IpAddr,
        /// What sort of address that is.
        class: &'static str,
    },
}

impl LinkError {
    /// What the operator can do.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::PlainText { .. } => "use a service whose links are https, or an API address with http",
            Self::Address { .. } => {
                "links to private addresses are used only where the address of the API in the settings is private itself"
            }
        }
    }

    /// The refusal in an error of a connection.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<LinkError> for io::Error {
    fn from(refused: LinkError) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// The address in a host that is no name. An IPv6 address may have brackets.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok()
}

/// Where a host is.
pub(crate) async fn resolved(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    // COMPAT(e2b): names below `localhost` are this machine, also where the system's resolver does not know them.
    let local = (host == "localhost" || host.ends_with(".localhost")).then_some(Ipv4Addr::LOCALHOST.into());
    match local.or_else(|| literal(host)) {
        Some(address) => Ok(vec![SocketAddr::new(address, port)]),
        None => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
    }
}

/// Where a host is that a vendor named: only the addresses that its API may name. The API is asked for only when it matters.
pub(crate) async fn permitted(host: &str, port: u16, api: &str) -> io::Result<Vec<SocketAddr>> {
    let found = resolved(host, port).await?;
    if found.iter().all(|address| class_of_ip(address.ip().to_canonical()).is_none()) {
        return Ok(found);
    }
    let api: Vec<IpAddr> =
        resolved(api, 0).await?.iter().map(|address| address.ip().to_canonical()).collect();
    let (mut passed, mut refused) = (Vec::new(), None);
    for address in found {
        match refusal(address.ip().to_canonical(), &api) {
            Some(class) => {
                refused = Some(LinkError::Address { host: host.to_owned(), address: address.ip(), class })
            }
            None => passed.push(address),
        }
    }
    match refused {
        // A name with both kinds of addresses is reached by those that are allowed.
        Some(refused) if passed.is_empty() => Err(refused.into()),
        _ => Ok(passed),
    }
}

const fn is_private(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_private(),
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

/// The class of an address that an API at these addresses must not name.
fn refusal(address: IpAddr, api: &[IpAddr]) -> Option<&'static str> {
    let class = class_of_ip(address)?;
    let is_near = match address {
        // Not even where the name of the API leads to it: whoever has that name could add it.
        _ if class.contains("metadata") => false,
        _ if api.contains(&address) => true,
        _ if address.is_loopback() => api.iter().all(IpAddr::is_loopback),
        _ if is_private(&address) => api.iter().all(|api| api.is_loopback() || is_private(api)),
        _ => false,
    };
    (!is_near || api.is_empty()).then_some(class)
}

/// Resolves the names that a vendor named for `reqwest`, which connects to exactly these addresses.
#[derive(Debug)]
pub(crate) struct GuardedResolver {
    pub(crate) api: String,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (name, api) = (name.as_str().to_owned(), self.api.clone());
        Box::pin(async move {
            // The operator's proxy is resolved here too; a vendor's link to it goes through it.
            if atoll_outbound::current().is_proxy_host(&name) {
                return Ok(Box::new(resolved(&name, 0).await?.into_iter()) as Addrs);
            }
            Ok(Box::new(permitted(&name, 0, &api).await?.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(address: &str, api: &[&str]) -> bool {
        let api: Vec<IpAddr> = api.iter().map(|address| address.parse().unwrap()).collect();
        refusal(address.parse::<IpAddr>().unwrap().to_canonical(), &api).is_none()
    }

    #[test]
    fn a_link_may_lead_where_the_api_is_and_never_to_metadata() {
        let (cloud, lan, here) = (["1.1.1.1"], ["10.0.0.5"], ["127.0.0.1", "::1"]);
        for api in [&cloud[..], &lan, &here] {
            for public in ["1.1.1.1", "2606:4700::1111"] {
                assert!(is_allowed(public, api), "{public} {api:?}");
            }
            for never in [
                "169.254.169.254",
                "168.63.129.16",
                "fe80::1",
                "0.0.0.0",
                "224.0.0.1",
                "100.64.0.9",
                "64:ff9b::a00:1",
            ] {
                assert!(!is_allowed(never, api), "{never} {api:?}");
            }
        }
        for private in ["10.0.0.6", "192.168.1.1", "172.16.0.1", "fd00::1", "::ffff:10.0.0.6"] {
            assert!(
                !is_allowed(private, &cloud) && is_allowed(private, &lan) && is_allowed(private, &here),
                "{private}"
            );
            assert!(!is_allowed(private, &["10.0.0.5", "1.1.1.1"]), "an API that is public, too");
        }
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(!is_allowed(loopback, &cloud) && !is_allowed(loopback, &lan), "{loopback}");
            assert!(is_allowed(loopback, &here), "{loopback}");
        }
        assert!(is_allowed("100.64.0.9", &["100.64.0.9"]), "the address of the API itself");
        assert!(!is_allowed("10.0.0.6", &[]), "an API that is nowhere");
    }

    #[tokio::test]
    async fn a_refusal_is_found_again_and_says_what_to_do() {
        let refused = permitted("169.254.169.254", 80, "127.0.0.1").await.unwrap_err();
        let link = LinkError::of(&refused).unwrap();
        assert!(link.to_string().contains("metadata") && link.hint().contains("private"), "{link}");
        assert!(permitted("[::1]", 80, "localhost").await.is_ok());
    }
}
