//! Certificates from files, which are read again when they change.
//!
//! A pair that cannot be read or does not match is not used: the earlier one stays, and the log has the reason. This
//! module writes no file and makes no key.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};
use tokio_rustls::TlsAcceptor;

/// The files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, and its intermediate certificates, as PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
}

/// Why a certificate is not used.
#[derive(Debug, thiserror::Error)]
pub enum BadCertificate {
    /// A file is missing or not readable.
    #[error("cannot read {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// A file has other content.
    #[error("{} contains no {what} in PEM format", path.display())]
    NotPem {
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// The type of the key is not supported, or it belongs to another certificate.
    #[error("the key in {} does not belong to the certificate in {}", files.key.display(), files.certificate.display())]
    Mismatch {
        files: CertificateFiles,
        #[source]
        cause: rustls::Error,
    },
    /// The TLS library refuses to start.
    #[error("TLS cannot be set up")]
    Setup(#[source] rustls::Error),
}

impl BadCertificate {
    /// Whether the files do not exist yet.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }
}

/// TLS with a replaceable certificate. Clones share it.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.current.files).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Current {
    files: CertificateFiles,
    provider: Arc<CryptoProvider>,
    key: RwLock<Arc<CertifiedKey>>,
    stamp: Mutex<Stamp>,
}

/// Changes when a file is rewritten.
type Stamp = [Option<(u64, u64, i64, i64)>; 2];

impl Tls {
    /// Reads the files.
    pub fn open(files: CertificateFiles) -> Result<Self, BadCertificate> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let stamp = Mutex::new(stamp(&files));
        let key = RwLock::new(Arc::new(load(&files, &provider)?));
        let current = Arc::new(Current { files, provider: Arc::clone(&provider), key, stamp });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(BadCertificate::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), current })
    }

    /// Checks the files, and reads them if they changed. `true`: there is a new certificate.
    pub fn reload(&self) -> Result<bool, BadCertificate> {
        let now = stamp(&self.current.files);
        let mut known = self.current.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == now {
            return Ok(false);
        }
        let fresh = load(&self.current.files, &self.current.provider);
        // Also after a failure: the same invalid files are not reported twice.
        *known = now;
        *self.current.key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh?);
        Ok(true)
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

impl ResolvesServerCert for Current {
    /// One certificate for every name: the client checks whether it matches.
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.key.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn load(files: &CertificateFiles, provider: &CryptoProvider) -> Result<CertifiedKey, BadCertificate> {
    let bad = |path: &Path, what| BadCertificate::NotPem { path: path.to_owned(), what };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(&files.certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|_| bad(&files.certificate, "certificate"))?;
    if chain.is_empty() {
        return Err(bad(&files.certificate, "certificate"));
    }
    let key =
        PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|_| bad(&files.key, "private key"))?;
    CertifiedKey::from_der(chain, key, provider)
        .map_err(|cause| BadCertificate::Mismatch { files: files.clone(), cause })
}

fn read(path: &Path) -> Result<Vec<u8>, BadCertificate> {
    std::fs::read(path).map_err(|cause| BadCertificate::Unreadable { path: path.to_owned(), cause })
}

fn stamp(files: &CertificateFiles) -> Stamp {
    [&files.certificate, &files.key].map(|path| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.ino(), about.len(), about.mtime(), about.mtime_nsec()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::local_ca::{IssueDate, LocalCa};

    const TODAY: IssueDate = IssueDate { year: 2026, month: 11, day: 15 };

    fn put(files: &CertificateFiles, ca: &LocalCa) {
        let leaf = ca.leaf(&[], TODAY).unwrap();
        std::fs::write(&files.key, &leaf.key).unwrap();
        std::fs::write(&files.certificate, &leaf.chain).unwrap();
    }

    fn serial(tls: &Tls) -> Vec<u8> {
        tls.current.key.read().unwrap().cert[0].to_vec()
    }

    #[test]
    fn a_new_pair_is_taken_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles { certificate: folder.path().join("c"), key: folder.path().join("k") };
        assert!(Tls::open(files.clone()).unwrap_err().is_missing());
        let ca = LocalCa::make("localhost", &[], TODAY).unwrap();
        put(&files, &ca);
        let tls = Tls::open(files.clone()).unwrap();
        let first = serial(&tls);
        assert!(!tls.reload().unwrap());
        put(&files, &ca);
        assert!(tls.reload().unwrap());
        let second = serial(&tls);
        assert_ne!(first, second);
        // The key of another certificate, as during a replacement of both.
        std::fs::write(&files.key, &ca.leaf(&[], TODAY).unwrap().key).unwrap();
        assert!(matches!(tls.reload(), Err(BadCertificate::Mismatch { .. })));
        assert_eq!(serial(&tls), second);
        std::fs::write(&files.certificate, "nonsense").unwrap();
        assert!(matches!(tls.reload(), Err(BadCertificate::NotPem { .. })));
        assert!(!tls.reload().unwrap(), "not complained of twice");
        assert_eq!(serial(&tls), second);
        put(&files, &ca);
        assert!(tls.reload().unwrap());
    }
}
