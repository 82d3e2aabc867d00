//! What `atoll tls acme` asks the server for, and how the last attempt went: `DATA/tls/acme.json` and `acme-state.json`.
//!
//! The command writes the first, the server the second. Neither holds a secret; the key of the account is in a file of its own.

use std::{io, net::SocketAddr, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::tls_files::put_file;

/// The certificate that the operator wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcmeSettings {
    /// Tells one request of the operator from the next.
    pub(crate) id: String,
    pub(crate) names: Vec<String>,
    /// Where the service sends warnings about expiry.
    pub(crate) email: Option<String>,
    /// URL of the service's directory.
    pub(crate) directory: String,
    /// Certificates to trust for the service, in PEM.
    pub(crate) ca: Option<String>,
    /// Where the service's request for the proof is answered; `None`: port 80 of every address.
    pub(crate) http_listen: Option<SocketAddr>,
}

/// How the last attempt went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcmeState {
    /// [`AcmeSettings::id`] of that attempt.
    pub(crate) id: String,
    pub(crate) at: String,
    /// `None`: the certificate is there.
    pub(crate) error: Option<String>,
    pub(crate) hint: Option<String>,
    /// When the next attempt is made.
    pub(crate) next_at: String,
    /// Attempts in a row that failed.
    pub(crate) failures: u32,
}

/// Reads one of the files; `None` where there is none.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(io::Error::other),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes one of the files, for its owner alone.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    put_file(path, &serde_json::to_string_pretty(value).map_err(io::Error::other)?, 0o600)
}
