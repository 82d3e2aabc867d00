//! The files of a server's certificate.

use std::path::{Path, PathBuf};

/// The files of `DATA/tls`; `atoll tls init` makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) folder: PathBuf,
    pub(crate) ca: PathBuf,
    pub(crate) ca_key: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The roots of the machine and the local authority, for programs that take one file.
    pub(crate) bundle: PathBuf,
    /// The domain that the authority may sign for.
    pub(crate) domain: PathBuf,
}

impl TlsFiles {
    pub(crate) fn of(data: &Path) -> Self {
        let folder = data.join("tls");
        let file = |name: &str| folder.join(name);
        Self {
            ca: file("ca.pem"),
            ca_key: file("ca.key"),
            certificate: file("cert.pem"),
            key: file("key.pem"),
            bundle: file("bundle.pem"),
            domain: file("domain"),
            folder: folder.clone(),
        }
    }
}
