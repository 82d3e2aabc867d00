//! Invites: a key is handed to a browser by a code that works once, within a minute.
//!
//! The store has hashes of keys only, so an invite holds the key itself: in memory, until it is redeemed or too old. A code is
//! known by its hash. Whoever redeems it gets the key, if the key still works.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_model::{Code, KeyId, Principal};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::Access;
use crate::random::entropy;
use crate::{CreatedInvite, ServiceError};

/// LIMIT: enough for a browser to start; a link that is found later in a history is of no use.
const VALID_FOR: Duration = Duration::from_secs(60);
/// LIMIT: open invites of one key; a further one replaces the oldest.
const PER_KEY_MAX: usize = 8;
const PREFIX: &str = "inv_";

type CodeHash = [u8; 32];

/// The open invites.
#[derive(Default)]
pub(super) struct Invites(Mutex<HashMap<CodeHash, OpenInvite>>);

struct OpenInvite {
    owner: KeyId,
    key: String,
    made_at: Instant,
}

impl Invites {
    fn put(&self, code: CodeHash, invite: OpenInvite) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, known| known.made_at.elapsed() < VALID_FOR);
        let of_owner = || open.iter().filter(|(_, known)| known.owner == invite.owner);
        if of_owner().count() >= PER_KEY_MAX {
            let oldest = of_owner().min_by_key(|(_, known)| known.made_at).map(|(code, _)| *code);
            oldest.and_then(|code| open.remove(&code));
        }
        open.insert(code, invite);
    }

    /// The key of an invite, which is used up by this.
    fn take(&self, code: &CodeHash) -> Option<String> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(code).filter(|invite| invite.made_at.elapsed() < VALID_FOR).map(|invite| invite.key)
    }
}

impl Access {
    /// Makes a code that hands `key`, the caller's own, to whoever redeems it first.
    pub fn create_invite(&self, who: &Principal, key: &str) -> Result<CreatedInvite, ServiceError> {
        let code = format!("{PREFIX}{}", hex::encode(entropy::<20>()?));
        let invite = OpenInvite { owner: who.key.clone(), key: key.to_owned(), made_at: Instant::now() };
        self.inner.invites.put(Sha256::digest(&code).into(), invite);
        let valid_ms = i64::try_from(VALID_FOR.as_millis()).unwrap_or_default();
        Ok(CreatedInvite { code, expires_at_ms: self.inner.clock.now().wall_ms + valid_ms })
    }

    /// The key of an invite. A wrong code counts as a wrong key against the client's address.
    pub async fn redeem_invite(&self, code: &str) -> Result<String, ServiceError> {
        let refused = || {
            let error = ServiceError::new(Code::Unauthenticated, "the code of this link is not valid")
                .hint("a code works once, within a minute: run `atoll open` again");
            self.wrong_credential(error)
        };
        let key = self.inner.invites.take(&Sha256::digest(code).into()).ok_or_else(refused)?;
        // The key may have been deleted since.
        self.authenticate(&key).await?;
        Ok(key)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn invite(owner: &KeyId, key: &str) -> OpenInvite {
        OpenInvite { owner: owner.clone(), key: key.to_owned(), made_at: Instant::now() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_code_works_once_within_a_minute() {
        let (invites, owner) = (Invites::default(), KeyId::from_entropy([1; 20]));
        invites.put([1; 32], invite(&owner, "a"));
        invites.put([2; 32], invite(&owner, "b"));
        assert_eq!(invites.take(&[1; 32]).as_deref(), Some("a"));
        assert_eq!(invites.take(&[1; 32]), None);
        tokio::time::advance(VALID_FOR).await;
        assert_eq!(invites.take(&[2; 32]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_of_many_is_replaced_and_others_are_not_concerned() {
        let (invites, owner) = (Invites::default(), KeyId::from_entropy([1; 20]));
        invites.put([99; 32], invite(&KeyId::from_entropy([2; 20]), "other"));
        for n in 0..=u8::try_from(PER_KEY_MAX).unwrap() {
            invites.put([n; 32], invite(&owner, "k"));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(invites.take(&[0; 32]), None);
        assert!(invites.take(&[1; 32]).is_some() && invites.take(&[99; 32]).is_some());
    }
}
