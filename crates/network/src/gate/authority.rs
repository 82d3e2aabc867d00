//! The certificate authority of one sandbox, derived from its seed: the same seed always gives the same key and the
//! same certificate, so nothing is stored. It signs for names whose requests are changed, and only this gate has its
//! key.
//!
//! The signature of the certificate is deterministic (RFC 6979); that is why it does not come from the TLS library.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::policy::egress::Seed;
use hkdf::Hkdf;
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::EncodePrivateKey;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SerialNumber, SignatureAlgorithm,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

/// LIMIT: names whose certificates are cached; others are made again when needed, in less than a millisecond.
const MOST_LEAVES: usize = 128;
/// How long a leaf certificate is used, and how long it is valid.
const LEAF_KEPT: Duration = Duration::from_secs(24 * 3600);
const LEAF_VALID: time::Duration = time::Duration::days(30);
/// Clocks in sandboxes may be slow.
const LEAF_BEFORE: time::Duration = time::Duration::days(2);

/// The authority's certificate as PEM.
pub(crate) fn certificate(seed: &Seed) -> String {
    let key = SigningKeyPair::derive(seed, "atoll egress authority");
    sign_own(&key, &name_of(seed)).map(|certificate| certificate.pem()).unwrap_or_default()
}

/// A name that distinguishes authorities in a list; it reveals nothing about the seed.
fn name_of(seed: &Seed) -> String {
    let digest = Sha256::new().chain_update("atoll egress authority name").chain_update(seed.0).finalize();
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An authority with its recently signed certificates.
pub(crate) struct Authority {
    seed: Seed,
    key: SigningKeyPair,
    leaf_key: SigningKeyPair,
    certificate: CertificateDer<'static>,
    name: String,
    leaves: Mutex<HashMap<String, (Instant, Arc<ServerConfig>)>>,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("no certificate for {name}")]
pub(crate) struct LeafError {
    name: String,
    #[source]
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl Authority {
    pub(crate) fn new(seed: &Seed) -> Self {
        let (key, name) = (SigningKeyPair::derive(seed, "atoll egress authority"), name_of(seed));
        let certificate = sign_own(&key, &name).map(|own| own.der().clone());
        Self {
            seed: seed.clone(),
            leaf_key: SigningKeyPair::derive(seed, "atoll egress leaves"),
            // Clients have the authority's certificate already; an empty one only means that it is missing from the
            // chain.
            certificate: certificate.unwrap_or_else(|_| CertificateDer::from(Vec::new())),
            key,
            name,
            leaves: Mutex::default(),
        }
    }

    pub(crate) fn is_of(&self, seed: &Seed) -> bool {
        self.seed == *seed
    }

    /// The TLS configuration for `name`: HTTP/1.1 only.
    pub(crate) fn server(&self, name: &str) -> Result<Arc<ServerConfig>, LeafError> {
        let now = Instant::now();
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.retain(|_, (made_at, _)| now.duration_since(*made_at) < LEAF_KEPT);
        if let Some((_, config)) = leaves.get(name) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.make(name).map_err(|cause| LeafError { name: name.to_owned(), cause })?);
        if leaves.len() >= MOST_LEAVES {
            let oldest = leaves.iter().min_by_key(|(_, (made_at, _))| *made_at).map(|(name, _)| name.clone());
            oldest.and_then(|name| leaves.remove(&name));
        }
        leaves.insert(name.to_owned(), (now, Arc::clone(&config)));
        Ok(config)
    }

    fn make(&self, name: &str) -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
        let leaf = self.sign(name, OffsetDateTime::now_utc())?;
        let mut chain = vec![leaf.der().clone()];
        if !self.certificate.is_empty() {
            chain.push(self.certificate.clone());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, self.leaf_key.private()?)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    fn sign(&self, name: &str, now: OffsetDateTime) -> Result<Certificate, rcgen::Error> {
        let mut leaf = CertificateParams::new(vec![name.to_owned()])?;
        leaf.distinguished_name = DistinguishedName::new();
        // A common name has at most 64 characters; the alternative name is the one that is checked.
        leaf.distinguished_name.push(DnType::CommonName, name.get(..64).unwrap_or(name));
        leaf.not_before = now - LEAF_BEFORE;
        leaf.not_after = now + LEAF_VALID;
        leaf.serial_number = Some(serial(&[name.as_bytes(), &now.unix_timestamp().to_be_bytes()]));
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let own = own_params(&self.key, &self.name);
        leaf.signed_by(&self.leaf_key, &Issuer::from_params(&own, &self.key))
    }
}

fn own_params(key: &SigningKeyPair, name: &str) -> CertificateParams {
    let mut own = CertificateParams::default();
    own.distinguished_name = DistinguishedName::new();
    own.distinguished_name.push(DnType::OrganizationName, "Atoll");
    own.distinguished_name
        .push(DnType::CommonName, format!("Atoll egress of {}", name.get(..40).unwrap_or(name)));
    own.not_before = first_of(2024);
    own.not_after = first_of(2049);
    own.serial_number = Some(serial(&[b"authority", &key.public]));
    own.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    own.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    own
}

fn sign_own(key: &SigningKeyPair, name: &str) -> Result<Certificate, rcgen::Error> {
    own_params(key, name).self_signed(key)
}

fn first_of(year: i32) -> OffsetDateTime {
    let date = Date::from_calendar_date(year, Month::January, 1).unwrap_or(Date::MIN);
    PrimitiveDateTime::new(date, Time::MIDNIGHT).assume_utc()
}

/// Sixteen bytes, positive, derived from the parts that distinguish certificates.
fn serial(parts: &[&[u8]]) -> SerialNumber {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let mut bytes = hash.finalize()[..16].to_vec();
    bytes[0] = bytes[0] & 0x3f | 0x40;
    SerialNumber::from_slice(&bytes)
}

/// A key pair derived from a seed.
struct SigningKeyPair {
    signing: SigningKey,
    public: Vec<u8>,
}

impl SigningKeyPair {
    fn derive(seed: &Seed, purpose: &str) -> Self {
        let extracted = Hkdf::<Sha256>::new(Some(b"atoll/egress/v1"), &seed.0);
        // A number outside the curve's order occurs once in 2^32; then the next one is used.
        let candidate = |count: u8| {
            let mut bytes = [0u8; 32];
            extracted.expand_multi_info(&[purpose.as_bytes(), &[count]], &mut bytes).ok()?;
            SigningKey::from_slice(&bytes).ok()
        };
        let signing =
            (0..=u8::MAX).find_map(candidate).expect("256 numbers in a row outside the order: 2^-8192");
        let public = signing.verifying_key().to_encoded_point(false).as_bytes().to_vec();
        Self { signing, public }
    }

    fn private(&self) -> Result<PrivateKeyDer<'static>, p256::pkcs8::Error> {
        let document = p256::SecretKey::from(self.signing.as_nonzero_scalar()).to_pkcs8_der()?;
        Ok(PrivatePkcs8KeyDer::from(document.as_bytes().to_vec()).into())
    }
}

impl PublicKeyData for SigningKeyPair {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for SigningKeyPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature: DerSignature = self.signing.sign(message);
        Ok(signature.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn seed(byte: u8) -> Seed {
        Seed([byte; 32])
    }

    #[test]
    fn the_same_seed_gives_the_same_certificate_and_another_another() {
        let first = certificate(&seed(1));
        assert!(first.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(first, certificate(&seed(1)));
        assert_ne!(first, certificate(&seed(2)));
    }

    #[test]
    fn a_client_that_trusts_the_authority_trusts_its_leaves_and_no_others() {
        let authority = Authority::new(&seed(3));
        assert!(handshake(&authority, "api.example.com", "api.example.com", 3).is_ok());
        assert!(handshake(&authority, "api.example.com", "other.example.com", 3).is_err());
        assert!(handshake(&authority, "api.example.com", "api.example.com", 4).is_err());
    }

    #[test]
    fn leaves_are_kept_and_bounded() {
        let authority = Authority::new(&seed(5));
        let first = authority.server("n0.test").unwrap();
        assert!(Arc::ptr_eq(&first, &authority.server("n0.test").unwrap()));
        for number in 1..=MOST_LEAVES {
            authority.server(&format!("n{number}.test")).unwrap();
        }
        assert_eq!(authority.leaves.lock().unwrap().len(), MOST_LEAVES);
    }

    /// A whole TLS handshake in memory, by a client that trusts the authority of `trusts`.
    fn handshake(authority: &Authority, leaf: &str, asked: &str, trusts: u8) -> Result<(), rustls::Error> {
        let mut roots = rustls::RootCertStore::empty();
        let trusted = Authority::new(&seed(trusts));
        roots.add(trusted.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = asked.to_owned().try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut server = rustls::ServerConnection::new(authority.server(leaf).unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }
}
