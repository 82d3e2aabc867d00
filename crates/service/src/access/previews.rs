//! Previews: one port of a sandbox that is open by a token, or publicly.
//!
//! A token is random and stored as its hash; the store records its port, its expiry, and whether it is still valid.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{Code, PreviewId, Principal, SandboxId};
use atoll_store::{Hash, PreviewRecord};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::ports::check_port;
use super::{Access, Credential};
use crate::ServiceError;
use crate::random::entropy;

/// The prefix of every token, so that it is recognized as one anywhere.
const TOKEN: &str = "apv_";
/// LIMIT: for more, open a port publicly.
const PER_SANDBOX: u32 = 100;
/// LIMIT: thirty days; for longer, open it without an expiry.
const EXPIRES_MAX_S: u64 = 30 * 86_400;
const EXPIRES_S: u64 = 3_600;
/// LIMIT: sandboxes whose previews are cached; beyond that all are read again.
const KNOWN_MAX: usize = 4_096;

/// The preview to open.
#[derive(Debug, Clone, Default)]
pub struct NewPreview {
    /// The port in the sandbox.
    pub port: u16,
    /// How long it stays open; by default an hour with a token, and without end if it is public.
    pub expires_s: Option<u64>,
    /// Whether it needs no token.
    pub public: bool,
}

/// A new preview; its token is shown only now.
#[derive(Clone)]
pub struct CreatedPreview {
    /// Its record.
    pub preview: PreviewRecord,
    /// Its token; a public one needs none.
    pub token: Option<String>,
}

impl std::fmt::Debug for CreatedPreview {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedPreview").field("preview", &self.preview).finish_non_exhaustive()
    }
}

type PreviewRows = Arc<[(PreviewRecord, Hash)]>;

/// Recently used previews. The feed of changes tells what other nodes change.
#[derive(Default)]
pub(super) struct PreviewCache {
    known: Mutex<CachedPreviews>,
}

#[derive(Default)]
struct CachedPreviews {
    rows: HashMap<SandboxId, PreviewRows>,
    /// Changes with every change of a preview: a result that was read before is not cached after it.
    edition: u64,
}

impl PreviewCache {
    /// The cached previews, or else the edition under which to cache them.
    fn get(&self, sandbox: &SandboxId) -> Result<PreviewRows, u64> {
        let known = self.lock();
        known.rows.get(sandbox).cloned().ok_or(known.edition)
    }

    fn put(&self, sandbox: &SandboxId, rows: &PreviewRows, edition: u64) {
        let mut known = self.lock();
        if known.edition != edition {
            return;
        }
        if known.rows.len() >= KNOWN_MAX {
            known.rows.clear();
        }
        known.rows.insert(sandbox.clone(), Arc::clone(rows));
    }

    fn forget(&self, sandbox: &SandboxId) {
        let mut known = self.lock();
        known.edition += 1;
        known.rows.remove(sandbox);
    }

    pub(super) fn clear(&self) {
        let mut known = self.lock();
        known.edition += 1;
        known.rows.clear();
    }

    fn edition(&self) -> u64 {
        self.lock().edition
    }

    fn lock(&self) -> MutexGuard<'_, CachedPreviews> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Access {
    /// Opens one port of a sandbox, by a token that is shown once, or publicly.
    pub async fn create_preview(
        &self,
        who: &Principal,
        ident: &str,
        new: NewPreview,
    ) -> Result<CreatedPreview, ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        if lease.phase.is_gone() {
            return Err(crate::error::phase_conflict(&lease, "previews"));
        }
        check_port(new.port)?;
        self.inner.providers.of(&lease)?.dial_support()?;
        let expires_s = match new.expires_s {
            Some(s) if (1..=EXPIRES_MAX_S).contains(&s) => Some(s),
            Some(_) => {
                let message = format!("expires_s must be between 1 and {EXPIRES_MAX_S} seconds");
                return Err(ServiceError::new(Code::InvalidRequest, message));
            }
            None if new.public => None,
            None => Some(EXPIRES_S),
        };
        let now_ms = self.inner.clock.now().wall_ms;
        let token = format!("{TOKEN}{}", letters(&entropy::<20>()?));
        let preview = PreviewRecord {
            id: PreviewId::from_entropy(entropy()?),
            sandbox: lease.id.clone(),
            port: new.port,
            public: new.public,
            created_at_ms: now_ms,
            expires_at_ms: expires_s.map(|s| now_ms.saturating_add_unsigned(s.saturating_mul(1_000))),
        };
        self.inner.store.put_preview(preview.clone(), hash_of(&token), PER_SANDBOX).await?;
        self.inner.previews.forget(&lease.id);
        Ok(CreatedPreview { preview, token: (!new.public).then_some(token) })
    }

    /// The open previews of a sandbox, oldest first.
    pub async fn previews(&self, who: &Principal, ident: &str) -> Result<Vec<PreviewRecord>, ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        let now_ms = self.inner.clock.now().wall_ms;
        let all = self.inner.store.previews(&lease.id).await?.into_iter().map(|(preview, _)| preview);
        Ok(all.filter(|preview| is_open(preview, now_ms)).collect())
    }

    /// Closes a preview: the next request is refused, and open ones end.
    pub async fn delete_preview(
        &self,
        who: &Principal,
        ident: &str,
        id: &PreviewId,
    ) -> Result<(), ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        let gone = self.inner.store.delete_preview(&lease.id, id).await?;
        self.forget_previews(&lease.id, Some(id));
        let missing = || format!("sandbox {} has no preview {id}", lease.id);
        if gone { Ok(()) } else { Err(ServiceError::new(Code::PreviewNotFound, missing())) }
    }

    /// Reads the previews of a sandbox again, and ends the requests of one that was deleted.
    pub(crate) fn forget_previews(&self, sandbox: &SandboxId, deleted: Option<&PreviewId>) {
        self.inner.previews.forget(sandbox);
        if let Some(id) = deleted {
            self.inner.revocations.revoke(&Credential::Preview(id.clone()));
        }
    }

    /// Closes the preview of a port with this token, with or without the token's prefix.
    pub async fn expire_preview(
        &self,
        who: &Principal,
        ident: &str,
        port: u16,
        token: &str,
    ) -> Result<(), ServiceError> {
        let lease = self.inner.sandboxes.get(who, ident).await?;
        let bare = token.strip_prefix(TOKEN).unwrap_or(token);
        let hash = hash_of(&format!("{TOKEN}{bare}"));
        let open = self.inner.store.previews(&lease.id).await?;
        let meant =
            open.iter().find(|(preview, known)| preview.port == port && bool::from(known.ct_eq(&hash)));
        let Some((preview, _)) = meant else {
            let message = format!("sandbox {} has no such preview of port {port}", lease.id);
            return Err(ServiceError::new(Code::PreviewNotFound, message));
        };
        self.delete_preview(who, lease.id.as_str(), &preview.id).await
    }

    /// A preview that admits to a port: one with a matching token, together with that token, or a public one. The current
    /// request ends when it is removed.
    pub(super) async fn preview_of(
        &self,
        sandbox: &SandboxId,
        port: u16,
        tokens: &[String],
    ) -> Result<Option<(PreviewRecord, Option<String>)>, ServiceError> {
        loop {
            let edition = self.inner.previews.edition();
            let now_ms = self.inner.clock.now().wall_ms;
            let rows = self.preview_rows(sandbox).await?;
            let open = || rows.iter().filter(|(preview, _)| preview.port == port && is_open(preview, now_ms));
            let shown = tokens.iter().find_map(|token| {
                let hash = hash_of(token);
                let found = open().find(|(_, known)| bool::from(known.ct_eq(&hash)))?;
                Some((&found.0, Some(token)))
            });
            let Some((preview, token)) =
                shown.or_else(|| Some((&open().find(|(preview, _)| preview.public)?.0, None)))
            else {
                return Ok(None);
            };
            self.inner.revocations.watch(Credential::Preview(preview.id.clone()));
            // If previews changed between the lookup and the watch, they are looked up again.
            if self.inner.previews.edition() == edition {
                return Ok(Some((preview.clone(), token.cloned())));
            }
        }
    }

    async fn preview_rows(&self, sandbox: &SandboxId) -> Result<PreviewRows, ServiceError> {
        let edition = match self.inner.previews.get(sandbox) {
            Ok(known) => return Ok(known),
            Err(edition) => edition,
        };
        let found: PreviewRows = self.inner.store.previews(sandbox).await?.into();
        self.inner.previews.put(sandbox, &found, edition);
        Ok(found)
    }
}

/// 160 bits in 32 letters and digits of one case: short enough for a label of a host name beside a sandbox and a port.
fn letters(random: &[u8; 20]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let five_bits = |at: usize| {
        let (byte, shift) = (at * 5 / 8, at * 5 % 8);
        let pair = u16::from_be_bytes([random[byte], random.get(byte + 1).copied().unwrap_or(0)]);
        usize::from(pair >> (11 - shift)) & 31
    };
    (0..32).map(|at| char::from(ALPHABET[five_bits(at)])).collect()
}

fn hash_of(token: &str) -> Hash {
    Sha256::digest(token).into()
}

const fn is_open(preview: &PreviewRecord, now_ms: i64) -> bool {
    match preview.expires_at_ms {
        Some(at) => now_ms < at,
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_every_bit_of_its_randomness() {
        assert_eq!(letters(&[0; 20]), "a".repeat(32));
        assert_eq!(letters(&[0xff; 20]), "7".repeat(32));
        for bit in 0..160 {
            let mut random = [0; 20];
            random[bit / 8] = 0x80 >> (bit % 8);
            let text = letters(&random);
            assert_eq!(text.bytes().filter(|b| *b != b'a').count(), 1, "bit {bit} of {text}");
            assert_ne!(text.as_bytes()[bit / 5], b'a', "bit {bit} of {text}");
        }
    }
}
