//! The authority of the test's internet: a certificate for every name that is asked for, made when it is asked for; and a
//! false one for names that begin with [`SELF_SIGNED`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// The certificate for a client that sends no server name.
const NOBODY: &str = "nobody.test";

/// The prefix of names with a self-signed certificate, which no client should trust.
pub const SELF_SIGNED: &str = "self-signed";

/// Vouches for every name.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, "authority of the test's internet");
        params.distinguished_name = name;
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key), made: Mutex::default() }
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Ends TLS for whatever name the client says; HTTP/1.1 only.
    pub(crate) fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth();
        let mut config = config.with_cert_resolver(Arc::new(Resolver(self.clone())));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn for_name(&self, name: &str) -> Arc<CertifiedKey> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.entry(name.to_owned()).or_insert_with(|| Arc::new(self.make(name))).clone()
    }

    fn make(&self, name: &str) -> CertifiedKey {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        let certificate = if name.starts_with(SELF_SIGNED) {
            params.self_signed(&key).expect("a certificate")
        } else {
            params.signed_by(&key, &self.issuer).expect("a certificate")
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let signing = ring::sign::any_supported_type(&key).expect("a key that signs");
        CertifiedKey::new(vec![certificate.der().clone()], signing)
    }
}

#[derive(Debug)]
struct Resolver(Arc<Authority>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.for_name(hello.server_name().unwrap_or(NOBODY)))
    }
}
