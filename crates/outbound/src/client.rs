//! The one place where HTTP clients of the server begin.

use reqwest::Proxy;
use rustls::RootCertStore;

use crate::settings::current;

/// Sets the TLS provider of the process, unless it has one.
pub fn set_provider() {
    // An error means that another part of the process, or an earlier call, has set one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client with the proxies and authorities of this process, and no others. It follows no redirect: each caller decides.
pub fn client_builder() -> reqwest::ClientBuilder {
    set_provider();
    let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    let settings = current();
    if settings.http.is_some() || settings.https.is_some() {
        builder = builder.proxy(Proxy::custom(move |url| {
            let port = url.port_or_known_default()?;
            let proxy = settings.proxy_for(url.scheme() == "https", url.host_str()?, port)?;
            Some(proxy.with_credentials())
        }));
    }
    for authority in &settings.authorities {
        // Each was checked when it was read.
        if let Ok(certificate) = reqwest::Certificate::from_der(authority.der()) {
            builder = builder.add_root_certificate(certificate);
        }
    }
    builder
}

/// The roots of this machine and the added ones. Reads many files.
#[must_use]
pub fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // A certificate that cannot be read is left out, as browsers do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots.add_parsable_certificates(
        current().authorities.iter().map(|authority| authority.der().to_vec().into()),
    );
    roots
}
