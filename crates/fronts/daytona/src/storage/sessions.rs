//! Sessions: who may put objects, for how long. In memory: they are shorter than a server's life, and are asked for anew.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::{KeyId, Principal, TenantId};

/// LIMIT: as long as the longest upload may take.
const LIVES_FOR: Duration = Duration::from_secs(3_600);
/// LIMIT: sessions of one tenant; an SDK opens one for each image that it builds. The oldest makes room for a new one.
const OF_TENANT_MAX: usize = 64;
/// LIMIT: sessions of all tenants.
const SESSIONS_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, StorageSession>>);

/// Who may put objects. The session ends with the key that asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageSession {
    pub(super) tenant: TenantId,
    pub(super) key: KeyId,
    until: Instant,
}

/// What a client is told of one.
pub(super) struct Opened {
    pub(super) access_key: String,
    pub(super) secret: String,
    pub(super) token: String,
}

impl Sessions {
    pub(super) fn open(&self, who: &Principal) -> Option<Opened> {
        let [access_key, secret, token] = [random()?, random()?, random()?];
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, session| session.until > now);
        let of_tenant = || all.iter().filter(|(_, session)| session.tenant == who.tenant);
        if of_tenant().count() >= OF_TENANT_MAX {
            let oldest =
                of_tenant().min_by_key(|(_, session)| session.until).map(|(token, _)| token.clone())?;
            all.remove(&oldest);
        }
        if all.len() >= SESSIONS_MAX {
            return None;
        }
        let session =
            StorageSession { tenant: who.tenant.clone(), key: who.key.clone(), until: now + LIVES_FOR };
        all.insert(token.clone(), session);
        let access_key = format!("ATOLL{}", access_key[..15].to_ascii_uppercase());
        Some(Opened { access_key, secret, token })
    }

    pub(super) fn find(&self, token: &str) -> Option<StorageSession> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Found by a hash of 256 random bits: the time that takes tells nothing of them.
        all.get(token).filter(|session| session.until > Instant::now()).cloned()
    }
}

fn random() -> Option<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(hex::encode(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn principal(number: u8) -> Principal {
        Principal {
            key: KeyId::from_entropy([number; 20]),
            tenant: TenantId::from_entropy([number; 20]),
            scope: atoll_model::Scope::User,
        }
    }

    #[test]
    fn a_session_is_of_one_tenant_and_others_open_nothing() {
        let (sessions, who) = (Sessions::default(), principal(7));
        let opened = sessions.open(&who).unwrap();
        let found = sessions.find(&opened.token).unwrap();
        assert_eq!((found.tenant, found.key), (who.tenant, who.key));
        assert_eq!(sessions.find(&opened.secret), None);
        assert_eq!(sessions.find(""), None);
    }

    #[test]
    fn a_tenant_with_many_sessions_loses_its_own_oldest_one() {
        let (sessions, other) = (Sessions::default(), principal(8));
        let kept = sessions.open(&other).unwrap();
        let first = sessions.open(&principal(7)).unwrap();
        for _ in 0..OF_TENANT_MAX {
            sessions.open(&principal(7)).unwrap();
        }
        assert_eq!(sessions.find(&first.token), None);
        assert!(sessions.find(&kept.token).is_some());
    }
}
