//! Sessions: who may put objects, for how long. In memory: they are shorter than a server's life, and are asked for anew.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::TenantId;

/// LIMIT: as long as the longest upload may take.
const LIVES_FOR: Duration = Duration::from_secs(3_600);
/// LIMIT: an SDK opens one for each image that it builds.
const SESSIONS_MAX: usize = 4_096;

#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, (TenantId, Instant)>>);

/// What a client is told of one.
pub(super) struct Opened {
    pub(super) access_key: String,
    pub(super) secret: String,
    pub(super) token: String,
}

impl Sessions {
    pub(super) fn open(&self, tenant: &TenantId) -> Option<Opened> {
        let [access_key, secret, token] = [random()?, random()?, random()?];
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (_, until)| *until > now);
        if all.len() >= SESSIONS_MAX {
            return None;
        }
        all.insert(token.clone(), (tenant.clone(), now + LIVES_FOR));
        let access_key = format!("ATOLL{}", access_key[..15].to_ascii_uppercase());
        Some(Opened { access_key, secret, token })
    }

    pub(super) fn tenant(&self, token: &str) -> Option<TenantId> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Found by a hash of 256 random bits: the time that takes tells nothing of them.
        let (tenant, until) = all.get(token)?;
        (*until > Instant::now()).then(|| tenant.clone())
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

    #[test]
    fn a_session_is_of_one_tenant_and_others_open_nothing() {
        let sessions = Sessions::default();
        let tenant = TenantId::from_entropy([7; 20]);
        let opened = sessions.open(&tenant).unwrap();
        assert_eq!(sessions.tenant(&opened.token), Some(tenant));
        assert_eq!(sessions.tenant(&opened.secret), None);
        assert_eq!(sessions.tenant(""), None);
    }
}
