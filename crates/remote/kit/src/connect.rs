//! Connections to the hosts of a vendor's sandboxes.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_model::ProxyUrl;
use atoll_provider::ByteStream;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::link_guard::{self, LinkError};

/// LIMIT: a connection with its TLS handshake, over the internet.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A host that is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorAddress {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Its name or IP address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The API of the vendor that named this host; `None`: the operator did.
    api: Option<Arc<VendorAddress>>,
}

impl VendorAddress {
    /// The same host, named by the vendor whose API is at `api`: it is connected to only if this API may name it. The check is made
    /// when the connection is.
    #[must_use]
    pub fn named_by(self, api: &Self) -> Self {
        Self { api: Some(Arc::new(api.clone())), ..self }
    }

    /// Refuses a host that speaks plain text and was named by an API that does not.
    ///
    /// # Errors
    /// [`LinkError::PlainText`].
    pub(crate) fn check_tls(&self) -> Result<(), LinkError> {
        match &self.api {
            Some(api) if api.tls && !self.tls => Err(LinkError::PlainText { host: self.host.clone() }),
            Some(_) | None => Ok(()),
        }
    }

    /// Reads `NAME` or `NAME:PORT`, where a vendor says it. `None`: it is no such text.
    #[must_use]
    pub fn parse(tls: bool, authority: &str) -> Option<Self> {
        let is_name = |host: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            !host.is_empty() && host.len() <= 253 && host.chars().all(plain)
        };
        let default = if tls { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, default),
        };
        is_name(host).then(|| Self { tls, host: host.to_owned(), port, api: None })
    }

    /// The host of an `http` or `https` address.
    #[must_use]
    pub fn of_url(url: &str) -> Option<Self> {
        let url = reqwest::Url::parse(url).ok()?;
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = url.host_str()?.to_owned();
        Some(Self { tls, host, port: url.port_or_known_default()?, api: None })
    }

    /// As it is written in `Host`.
    #[must_use]
    pub fn authority(&self) -> String {
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

/// Opens connections. Cloning is cheap.
#[derive(Clone, Default)]
pub struct VendorConnector {
    /// Made at first use: reading the certificates of the machine takes a while.
    tls: Arc<OnceLock<Arc<rustls::ClientConfig>>>,
    /// Authorities (DER) that are trusted beside those of the machine.
    authorities: Arc<[Vec<u8>]>,
}

impl std::fmt::Debug for VendorConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VendorConnector").finish_non_exhaustive()
    }
}

impl VendorConnector {
    /// Trusts these authorities (DER) beside those of the machine.
    #[must_use]
    pub fn trusting(authorities: &[Vec<u8>]) -> Self {
        Self { tls: Arc::default(), authorities: authorities.into() }
    }

    /// A new connection.
    ///
    /// # Errors
    /// The host cannot be found or reached, or its certificate is not valid.
    pub async fn connect(&self, to: &VendorAddress) -> io::Result<Box<dyn ByteStream>> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connecting took too long");
        tokio::time::timeout(CONNECT_WITHIN, self.open(to)).await.map_err(late)?
    }

    async fn open(&self, to: &VendorAddress) -> io::Result<Box<dyn ByteStream>> {
        to.check_tls()?;
        let stream = match atoll_outbound::current().proxy_for(to.tls, &to.host, to.port) {
            Some(proxy) => self.open_proxied(to, proxy).await?,
            None => self.open_directly(to).await?,
        };
        if !to.tls {
            return Ok(Box::new(stream));
        }
        let name = to.host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let config = self.config().await?;
        Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
    }

    /// Through the operator's proxy. A host that a vendor named is checked as far as its name is known here.
    async fn open_proxied(&self, to: &VendorAddress, proxy: &ProxyUrl) -> io::Result<TcpStream> {
        if let Some(api) = &to.api
            && link_guard::resolved(&to.host, to.port).await.is_ok()
        {
            link_guard::permitted(&to.host, to.port, &api.host).await?;
        }
        let mut stream = atoll_outbound::connect(proxy).await?;
        atoll_outbound::tunnel(&mut stream, proxy, to.host.trim_matches(['[', ']']), to.port).await?;
        Ok(stream)
    }

    async fn open_directly(&self, to: &VendorAddress) -> io::Result<TcpStream> {
        // The addresses that were checked are the ones that are used: a name cannot change its meaning in between.
        let addresses = match &to.api {
            Some(api) => link_guard::permitted(&to.host, to.port, &api.host).await?,
            None => link_guard::resolved(&to.host, to.port).await?,
        };
        let stream = TcpStream::connect(addresses.as_slice()).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn config(&self) -> io::Result<Arc<rustls::ClientConfig>> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let authorities = Arc::clone(&self.authorities);
        let made = tokio::task::spawn_blocking(move || tls_config(&authorities)).await;
        let made = made.map_err(io::Error::other)??;
        Ok(Arc::clone(self.tls.get_or_init(|| made)))
    }
}

fn tls_config(authorities: &[Vec<u8>]) -> io::Result<Arc<rustls::ClientConfig>> {
    let mut roots = atoll_outbound::roots();
    roots.add_parsable_certificates(authorities.iter().cloned().map(Into::into));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = versions.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_vendors_say_them() {
        let plain = VendorAddress::parse(false, "localhost:7070").unwrap();
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.authority().as_str()),
            ("localhost", 7070, "localhost:7070")
        );
        let cloud = VendorAddress::parse(true, "e2b.app").unwrap();
        assert_eq!((cloud.port, cloud.authority().as_str()), (443, "e2b.app"));
        for bad in ["", ":80", "a b", "host/path", "user@host", "host:x", "h\r\nx"] {
            assert_eq!(VendorAddress::parse(true, bad), None, "{bad:?}");
        }
        let own = VendorAddress::of_url("http://127.0.0.1:7171/e2b").unwrap();
        assert_eq!((own.tls, own.authority().as_str()), (false, "127.0.0.1:7171"));
    }

    #[tokio::test]
    async fn a_host_that_a_vendor_named_is_connected_to_only_where_its_api_may_name_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let link = |host: &str| VendorAddress::of_url(&format!("http://{host}:{port}/")).unwrap();
        let api = |url: &str| VendorAddress::of_url(url).unwrap();
        let connector = VendorConnector::default();
        for host in ["127.0.0.1", "a.localhost"] {
            assert!(connector.connect(&link(host)).await.is_ok(), "the operator named it");
            let own = link(host).named_by(&api("http://localhost:1/e2b"));
            assert!(connector.connect(&own).await.is_ok(), "the API is on this machine, too");
            let others = link(host).named_by(&api("http://192.0.2.1/"));
            let refused = connector.connect(&others).await.err().unwrap();
            assert!(LinkError::of(&refused).is_some(), "{refused}");
        }
        let plain =
            connector.connect(&link("127.0.0.1").named_by(&api("https://localhost/"))).await.err().unwrap();
        assert!(matches!(LinkError::of(&plain), Some(LinkError::PlainText { .. })), "{plain:?}");
        let six = VendorAddress::of_url("http://[::1]:1/").unwrap().named_by(&api("http://192.0.2.1/"));
        let refused = connector.connect(&six).await.err().unwrap();
        assert!(LinkError::of(&refused).is_some(), "{refused}");
    }
}
