//! The sealing key in a backup, encrypted with a passphrase.

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

/// What one try of a passphrase costs: 64 MiB and three passes.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
/// LIMIT: what a backup may ask of the machine that restores it.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;
/// Bound to the ciphertext, so that it is good for nothing else.
const PURPOSE: &[u8] = b"atoll backup: sealing key";

/// An encrypted key, with what is needed to try a passphrase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedKeys {
    memory_kib: u32,
    passes: u32,
    salt: String,
    nonce: String,
    sealed: String,
}

/// A key cannot be encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PassphraseError {
    /// Another passphrase, or a changed key.
    #[error("the passphrase is wrong")]
    Wrong,
    /// The system has no random numbers or no memory for it.
    #[error("the passphrase cannot be used on this machine")]
    Unusable,
}

impl SealedKeys {
    /// Encrypts a key with Argon2id and XChaCha20-Poly1305.
    pub(crate) fn seal(key: &str, passphrase: &str) -> Result<Self, PassphraseError> {
        let (mut salt, mut nonce) = ([0; 16], [0; 24]);
        getrandom::fill(&mut salt).map_err(|_| PassphraseError::Unusable)?;
        getrandom::fill(&mut nonce).map_err(|_| PassphraseError::Unusable)?;
        let cipher = cipher(passphrase, &salt, MEMORY_KIB, PASSES)?;
        let payload = Payload { msg: key.as_bytes(), aad: PURPOSE };
        let sealed =
            cipher.encrypt(XNonce::from_slice(&nonce), payload).map_err(|_| PassphraseError::Unusable)?;
        Ok(Self {
            memory_kib: MEMORY_KIB,
            passes: PASSES,
            salt: hex::encode(salt),
            nonce: hex::encode(nonce),
            sealed: hex::encode(sealed),
        })
    }

    /// The key again.
    pub(crate) fn open(&self, passphrase: &str) -> Result<String, PassphraseError> {
        let bytes = |text: &str| hex::decode(text).map_err(|_| PassphraseError::Wrong);
        let (salt, nonce, sealed) = (bytes(&self.salt)?, bytes(&self.nonce)?, bytes(&self.sealed)?);
        if self.memory_kib > MEMORY_KIB_MAX || self.passes > PASSES_MAX || nonce.len() != 24 {
            return Err(PassphraseError::Wrong);
        }
        let cipher = cipher(passphrase, &salt, self.memory_kib, self.passes)?;
        let payload = Payload { msg: &sealed, aad: PURPOSE };
        let key = cipher.decrypt(XNonce::from_slice(&nonce), payload).map_err(|_| PassphraseError::Wrong)?;
        String::from_utf8(key).map_err(|_| PassphraseError::Wrong)
    }
}

fn cipher(
    passphrase: &str,
    salt: &[u8],
    memory_kib: u32,
    passes: u32,
) -> Result<XChaCha20Poly1305, PassphraseError> {
    let params = Params::new(memory_kib, passes, 1, Some(32)).map_err(|_| PassphraseError::Wrong)?;
    let mut key = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.as_bytes(), salt, &mut key)
        .map_err(|_| PassphraseError::Wrong)?;
    XChaCha20Poly1305::new_from_slice(&key).map_err(|_| PassphraseError::Unusable)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_right_passphrase_opens_a_key() {
        let sealed = SealedKeys::seal("00ff", "correct horse").unwrap();
        assert!(!serde_json::to_string(&sealed).unwrap().contains("00ff\""));
        assert_eq!(sealed.open("correct horse").unwrap(), "00ff");
        assert_eq!(sealed.open("correct horsf"), Err(PassphraseError::Wrong));
        let greedy = SealedKeys { memory_kib: u32::MAX, ..sealed.clone() };
        assert_eq!(greedy.open("correct horse"), Err(PassphraseError::Wrong));
        let changed = SealedKeys { sealed: sealed.sealed.replace(&sealed.sealed[..2], "zz"), ..sealed };
        assert_eq!(changed.open("correct horse"), Err(PassphraseError::Wrong));
    }
}
