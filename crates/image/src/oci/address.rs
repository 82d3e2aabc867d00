//! Checks every request to a registry: which URLs may be requested, and which addresses may be connected to.
//!
//! There are two clients, because a resolver only gets the name of the host: the *guarded* client resolves names to
//! public addresses only, the *open* client is used for the hosts and ports that the operator named. The checked
//! address is the one that is used: the resolver passes the accepted addresses to the connector itself, so that a name
//! cannot change its meaning in between. Where the operator has a proxy, names are checked before it is asked ([`proxied`]).
//! Neither client follows redirects or decompresses responses.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_model::policy::egress::ranges::class_of_ip;
use reqwest::Client;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::error::RegistryError;
use super::proxied;

/// LIMIT: name resolution, connection and TLS handshake together.
const CONNECT: Duration = Duration::from_secs(15);

/// The URLs that may be requested.
#[derive(Debug)]
pub(super) struct UrlPolicy {
    named: Vec<(String, Option<u16>)>,
    guarded: OnceLock<Client>,
    open: OnceLock<Client>,
}

impl UrlPolicy {
    /// `named` hosts may be reached without TLS and at any address.
    pub(super) fn new(named: &[String]) -> Self {
        let named = named.iter().map(|text| match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => {
                (host.to_ascii_lowercase(), port.parse().ok())
            }
            _ => (text.to_ascii_lowercase(), None),
        });
        Self { named: named.collect(), guarded: OnceLock::new(), open: OnceLock::new() }
    }

    /// The client for this URL, or why it is refused.
    pub(super) fn client_for(&self, url: &Url) -> Result<&Client, RegistryError> {
        let forbidden = |why: &str| RegistryError::Forbidden { url: shown(url), why: why.to_owned() };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(forbidden("it contains credentials"));
        }
        let host = url.host().ok_or_else(|| forbidden("it has no host"))?;
        if self.is_named(url) {
            return match url.scheme() {
                "http" | "https" => Ok(self.open(url)?),
                _ => Err(forbidden("only http and https are supported")),
            };
        }
        match url.scheme() {
            "https" => {}
            "http" => return Err(forbidden("plain http is allowed only for hosts that the operator named")),
            _ => return Err(forbidden("only https is supported")),
        }
        // The connector asks the resolver only for names; an address in the URL bypasses it.
        let address = match host {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(IpAddr::V4(address)),
            Host::Ipv6(address) => Some(IpAddr::V6(address)),
        };
        if atoll_outbound::current().is_proxy_host(url.host_str().unwrap_or_default()) {
            return Err(forbidden("it is the host of the operator's proxy"));
        }
        if let Some(address) = address
            && let Some(class) = class_of_ip(address)
        {
            return Err(RegistryError::ForbiddenAddress { host: host.to_string(), address, class });
        }
        self.guarded(url)
    }

    /// Checks a URL that [`UrlPolicy::client_for`] accepted, where a proxy connects and not this server.
    pub(super) async fn check_proxied(&self, url: &Url) -> Result<(), RegistryError> {
        if self.is_named(url) { Ok(()) } else { proxied::check(url).await }
    }

    /// Whether the operator named the host, with this port or without a port.
    pub(super) fn is_named(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default();
        self.named.iter().any(|(name, only)| name == host && (only.is_none() || *only == port))
    }

    fn open(&self, url: &Url) -> Result<&Client, RegistryError> {
        // As in Docker: a registry that is allowed without TLS may also use any certificate.
        client(&self.open, url, || base().tls_danger_accept_invalid_certs(true))
    }

    fn guarded(&self, url: &Url) -> Result<&Client, RegistryError> {
        client(&self.guarded, url, || base().https_only(true).dns_resolver(Arc::new(PublicOnly)))
    }
}

/// Made at first use: reading the certificates of the machine takes a while, and most servers never pull.
fn client<'a>(
    slot: &'a OnceLock<Client>,
    url: &Url,
    make: impl FnOnce() -> reqwest::ClientBuilder,
) -> Result<&'a Client, RegistryError> {
    if let Some(client) = slot.get() {
        return Ok(client);
    }
    let made = make().build().map_err(|cause| RegistryError::Unreachable { host: host_of(url), cause })?;
    Ok(slot.get_or_init(|| made))
}

fn base() -> reqwest::ClientBuilder {
    atoll_outbound::client_builder()
        .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
        // Another crate may enable these features for the whole binary; a blob must arrive unchanged.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        // One connection per download: no small HTTP/2 window is shared.
        .http1_only()
        .connect_timeout(CONNECT)
        .pool_max_idle_per_host(8)
        .pool_idle_timeout(Duration::from_secs(20))
}

/// Resolves names to public addresses only.
#[derive(Debug)]
struct PublicOnly;

/// A name that resolves only to forbidden addresses. It is found again in the cause of the client's error.
#[derive(Debug, thiserror::Error)]
#[error("the address {address} is {class}")]
struct NotPublic {
    address: IpAddr,
    class: &'static str,
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        Box::pin(async move {
            if atoll_outbound::current().is_proxy_host(&name) {
                // The proxy itself: a request for this name does not come here, because it is checked before.
                let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
                return Ok(Box::new(found.into_iter()) as Addrs);
            }
            let mut refused = None;
            let mut passed: Vec<SocketAddr> = Vec::new();
            for found in tokio::net::lookup_host((name.as_str(), 0)).await? {
                match class_of_ip(found.ip()) {
                    Some(class) => refused = Some(NotPublic { address: found.ip(), class }),
                    None => passed.push(found),
                }
            }
            match refused {
                // A name with public and private addresses is reached by the public ones.
                Some(refused) if passed.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(passed.into_iter()) as Addrs),
            }
        })
    }
}

/// Converts an error of the client; a refusal by the resolver has its own variant.
pub(super) fn unreachable(url: &Url, cause: reqwest::Error) -> RegistryError {
    let host = match proxied::proxy_for(url) {
        Some(proxy) => format!("{} through the proxy {proxy}", host_of(url)),
        None => host_of(url),
    };
    let mut below: Option<&(dyn std::error::Error + 'static)> = Some(&cause);
    while let Some(error) = below {
        if let Some(NotPublic { address, class }) = error.downcast_ref() {
            return RegistryError::ForbiddenAddress { host, address: *address, class };
        }
        below = error.source();
    }
    // The URL may contain a signature.
    RegistryError::Unreachable { host, cause: cause.without_url() }
}

/// `host` or `host:port`.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or("?");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// A URL without parts that may be secret.
pub(super) fn shown(url: &Url) -> String {
    let path: String = url.path().chars().take(200).collect();
    format!("{}://{}{path}", url.scheme(), host_of(url))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn says(urls: &UrlPolicy, url: &str) -> Result<(), String> {
        urls.client_for(&url.parse().unwrap()).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_in_urls_are_judged_however_they_are_written() {
        let urls = UrlPolicy::new(&[]);
        for url in [
            "https://127.0.0.1/v2/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://127.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[64:ff9b::7f00:1]/",
            "https://[2002:7f00:1::]/",
            "https://169.254.169.254/latest/meta-data",
            "https://10.0.0.1:5000/",
            "https://192.168.1.1/",
            "https://0.0.0.0/",
            "https://[fe80::1]/",
            "https://[fd00::1]/",
            "http://1.1.1.1/",
            "ftp://1.1.1.1/",
            "file:///etc/passwd",
            "https://user:secret@1.1.1.1/",
        ] {
            let refused = says(&urls, url).unwrap_err();
            assert!(!refused.contains("secret"), "{refused}");
        }
        assert_eq!(says(&urls, "https://1.1.1.1/v2/"), Ok(()));
        assert_eq!(says(&urls, "https://[2606:4700::1111]/v2/"), Ok(()));
    }

    #[test]
    fn a_host_is_named_with_its_port_or_with_all() {
        let urls = UrlPolicy::new(&["localhost:5000".into(), "10.0.0.1".into()]);
        assert_eq!(says(&urls, "http://localhost:5000/v2/"), Ok(()));
        assert!(says(&urls, "http://localhost:5001/v2/").is_err());
        assert!(says(&urls, "http://localhost/v2/").is_err());
        assert_eq!(says(&urls, "http://10.0.0.1/v2/"), Ok(()));
        assert_eq!(says(&urls, "https://10.0.0.1:8443/v2/"), Ok(()));
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_connected_to() {
        let urls = UrlPolicy::new(&[]);
        let url: Url = "https://localhost:1/v2/".parse().unwrap();
        let cause = urls.client_for(&url).unwrap().get(url.clone()).send().await.unwrap_err();
        let error = unreachable(&url, cause);
        assert!(matches!(error, RegistryError::ForbiddenAddress { .. }), "{error:?}");
    }
}
