//! Vaults: sealed secrets at rest, bound to their owner, and keys derived from one secret.
//!
//! [`FileVault`] is the default: its key is a file in the server's folder. The key protects a copied database, not a
//! copied folder. The authenticated data of a sealed value contains its owner, so the value cannot be moved to another
//! row.

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use sha2::Sha256;

use crate::OpenError;

const NONCE: usize = 24;

/// Seals and opens small secrets. All nodes of a database need vaults that open each other's values.
pub trait Vault: Send + Sync + 'static {
    /// Seals a text for an owner; `None` if that is not possible now.
    fn seal(&self, owner: &str, secret: &str) -> Option<Vec<u8>>;

    /// Opens a text that was sealed for this owner; `None` if it was not.
    fn unseal(&self, owner: &str, sealed: &[u8]) -> Option<String>;

    /// A key for one purpose and one object; always the same, and useless for finding another.
    fn derive(&self, purpose: &str, id: &str) -> [u8; 32];
}

/// A vault whose key is a file.
pub struct FileVault {
    cipher: XChaCha20Poly1305,
    /// The root of derived keys.
    root: Hkdf<Sha256>,
}

impl FileVault {
    /// Reads the key, or makes one if `may_create`.
    pub fn open(path: &Path, may_create: bool) -> Result<Self, OpenError> {
        let unusable = |why: &str| OpenError::Secret { path: path.to_owned(), why: why.to_owned() };
        let mut text = String::new();
        match std::fs::File::open(path) {
            Ok(mut file) => {
                file.read_to_string(&mut text).map_err(|e| unusable(&e.to_string()))?;
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && may_create => {
                text = make_key(path)?;
            }
            Err(e) => return Err(unusable(&e.to_string())),
        }
        let key = hex::decode(text.trim()).map_err(|_| unusable("it does not contain 64 hex digits"))?;
        let cipher = XChaCha20Poly1305::new_from_slice(&key)
            .map_err(|_| unusable("it does not contain 64 hex digits"))?;
        Ok(Self { cipher, root: Hkdf::new(Some(b"atoll derived keys"), &key) })
    }
}

impl Vault for FileVault {
    fn seal(&self, owner: &str, secret: &str) -> Option<Vec<u8>> {
        let mut nonce = [0u8; NONCE];
        getrandom::fill(&mut nonce).ok()?;
        let payload = Payload { msg: secret.as_bytes(), aad: owner.as_bytes() };
        let sealed = self.cipher.encrypt(XNonce::from_slice(&nonce), payload).ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    fn unseal(&self, owner: &str, sealed: &[u8]) -> Option<String> {
        let (nonce, body) = sealed.split_at_checked(NONCE)?;
        let payload = Payload { msg: body, aad: owner.as_bytes() };
        let plain = self.cipher.decrypt(XNonce::from_slice(nonce), payload).ok()?;
        String::from_utf8(plain).ok()
    }

    fn derive(&self, purpose: &str, id: &str) -> [u8; 32] {
        let mut key = [0u8; 32];
        // Each part is preceded by its length, so different pairs never have the same encoding.
        let lengths = [purpose.len() as u64, id.len() as u64].map(u64::to_be_bytes);
        self.root
            .expand_multi_info(&[&lengths[0], purpose.as_bytes(), &lengths[1], id.as_bytes()], &mut key)
            .expect("32 bytes are less than 255 blocks");
        key
    }
}

fn make_key(path: &Path) -> Result<String, OpenError> {
    let io = |action| move |cause| OpenError::Io { action, path: path.to_owned(), cause };
    let mut key = [0u8; 32];
    getrandom::fill(&mut key).map_err(|e| OpenError::Secret { path: path.to_owned(), why: e.to_string() })?;
    let text = hex::encode(key);
    // Written to a temporary file and renamed: a torn key would make every sealed row useless.
    let beside = path.with_extension("key.new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .map_err(io("create"))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io("write"))?;
    std::fs::rename(&beside, path).map_err(io("rename"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_sealed_secret_opens_only_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret.key");
        let sealed = FileVault::open(&path, true).unwrap().seal("a", "token").unwrap();
        assert!(!sealed.windows(5).any(|w| w == b"token"));
        let again = FileVault::open(&path, false).unwrap();
        assert_eq!(again.unseal("a", &sealed).as_deref(), Some("token"));
        assert_eq!(again.unseal("b", &sealed), None);
        assert_eq!(again.unseal("a", &sealed[..10]), None);
    }

    #[test]
    fn derived_keys_differ_by_purpose_and_thing_and_stay_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret.key");
        let derived = FileVault::open(&path, true).unwrap().derive("egress-ca", "a");
        let again = FileVault::open(&path, false).unwrap();
        assert_eq!(again.derive("egress-ca", "a"), derived);
        for other in [("egress-ca", "b"), ("egress-c", "aa"), ("", "egress-caa"), ("egress-caa", "")] {
            assert_ne!(again.derive(other.0, other.1), derived, "{other:?}");
        }
        let elsewhere = FileVault::open(&dir.path().join("another.key"), true).unwrap();
        assert_ne!(elsewhere.derive("egress-ca", "a"), derived);
    }

    #[test]
    fn a_missing_or_broken_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret.key");
        assert!(matches!(FileVault::open(&path, false), Err(OpenError::Secret { .. })));
        std::fs::write(&path, "zz").unwrap();
        assert!(matches!(FileVault::open(&path, true), Err(OpenError::Secret { .. })));
    }
}
