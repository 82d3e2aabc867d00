//! Checks before a request goes through the operator's proxy. The proxy connects to what it is asked for, so a name that leads to a
//! private address is refused here, as it is where this server connects itself. A name that only the proxy knows passes: its own rules
//! decide then.

use std::time::Duration;

use atoll_model::policy::egress::ranges::class_of_ip;
use url::{Host, Url};

use super::error::RegistryError;

/// LIMIT: where names of the outside are not resolved, a resolver may never answer.
const RESOLVE: Duration = Duration::from_secs(2);

/// The proxy for a URL.
pub(super) fn proxy_for(url: &Url) -> Option<&'static atoll_model::ProxyUrl> {
    let port = url.port_or_known_default()?;
    atoll_outbound::current().proxy_for(url.scheme() == "https", url.host_str()?, port)
}

/// Refuses a name that leads to forbidden addresses only. Hosts that the operator named are not checked.
pub(super) async fn check(url: &Url) -> Result<(), RegistryError> {
    let Some(Host::Domain(name)) = url.host().filter(|_| proxy_for(url).is_some()) else { return Ok(()) };
    if atoll_outbound::current().is_proxy_host(name) || !name.contains('.') {
        let why = "it is a name of the operator's own network".to_owned();
        return Err(RegistryError::Forbidden { url: super::address::shown(url), why });
    }
    let looked_up = tokio::time::timeout(RESOLVE, tokio::net::lookup_host((name, 0))).await;
    let Ok(Ok(found)) = looked_up else { return Ok(()) };
    let mut refused = None;
    for address in found.map(|address| address.ip()) {
        match class_of_ip(address) {
            Some(class) => refused = Some((address, class)),
            // A name with public and private addresses is reached by the public ones.
            None => return Ok(()),
        }
    }
    let Some((address, class)) = refused else { return Ok(()) };
    Err(RegistryError::ForbiddenAddress { host: name.to_owned(), address, class })
}
