//! Calls that a later request of the same client can cancel, by the id that the client gave them.
//!
//! For protocols whose clients cancel with a message of its own. A call is known from [`RunningCalls::begin`] until its
//! [`RunningCall`] is dropped, on this server only. There is one entry per open request, so their number is bounded by the limits
//! of requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{KeyId, Principal};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

/// The running calls of this server. Cloning is cheap.
#[derive(Clone, Default)]
pub struct RunningCalls(Arc<CallRegistry>);

#[derive(Default)]
struct CallRegistry {
    calls: Mutex<HashMap<CallName, NumberedCall>>,
    count: AtomicU64,
}

/// The key of the caller, and a hash of the client and the id, which may be long.
type CallName = (KeyId, [u8; 32]);

struct NumberedCall {
    number: u64,
    cancel: CancellationToken,
}

/// One call that can be cancelled until this is dropped.
pub struct RunningCall {
    registry: Arc<CallRegistry>,
    name: CallName,
    number: u64,
    cancel: CancellationToken,
}

impl RunningCalls {
    /// A call of a client, under the client's id. A second call with the same id replaces the first, which can then no longer be
    /// cancelled.
    #[must_use]
    pub fn begin(&self, who: &Principal, client: &str, id: &str) -> RunningCall {
        let (name, cancel) = (call_name(who, client, id), CancellationToken::new());
        let number = self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.lock().insert(name.clone(), NumberedCall { number, cancel: cancel.clone() });
        RunningCall { registry: Arc::clone(&self.0), name, number, cancel }
    }

    /// Cancels a call of a client; answers whether it was running.
    pub fn cancel(&self, who: &Principal, client: &str, id: &str) -> bool {
        match self.0.lock().get(&call_name(who, client, id)) {
            Some(call) => {
                call.cancel.cancel();
                true
            }
            None => false,
        }
    }
}

impl RunningCall {
    /// Resolves when the call is cancelled.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let mut calls = self.registry.lock();
        if calls.get(&self.name).is_some_and(|call| call.number == self.number) {
            calls.remove(&self.name);
        }
    }
}

impl CallRegistry {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallName, NumberedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn call_name(who: &Principal, client: &str, id: &str) -> CallName {
    let mut hash = Sha256::new();
    hash.update((client.len() as u64).to_be_bytes());
    hash.update(client);
    hash.update(id);
    (who.key.clone(), hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_model::{Scope, TenantId};

    fn principal(key: u8) -> Principal {
        Principal {
            key: KeyId::from_entropy([key; 20]),
            key_name: None,
            tenant: TenantId::from_entropy([1; 20]),
            scope: Scope::User,
        }
    }

    #[tokio::test]
    async fn only_its_own_client_cancels_a_call() {
        let (calls, who) = (RunningCalls::default(), principal(1));
        let call = calls.begin(&who, "client", "7");
        assert!(!calls.cancel(&principal(2), "client", "7"));
        assert!(!calls.cancel(&who, "other", "7"));
        assert!(!calls.cancel(&who, "client", "8"));
        assert!(calls.cancel(&who, "client", "7"));
        call.cancelled().await;
        drop(call);
        assert!(!calls.cancel(&who, "client", "7"));
        assert!(calls.0.lock().is_empty());
    }

    #[test]
    fn the_end_of_a_call_leaves_its_successor_with_the_same_id() {
        let (calls, who) = (RunningCalls::default(), principal(1));
        let first = calls.begin(&who, "c", "1");
        let second = calls.begin(&who, "c", "1");
        drop(first);
        assert!(calls.cancel(&who, "c", "1"));
        drop(second);
        assert!(calls.0.lock().is_empty());
    }
}
