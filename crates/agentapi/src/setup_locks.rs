//! Locks for steps that must not run twice at the same time in one sandbox, such as the start of a shared process.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};

type LocksByName = HashMap<String, Weak<Mutex<()>>>;

/// Locks by name. Clones share them. They are in memory: a step that a crash interrupted is not locked afterwards.
#[derive(Debug, Clone, Default)]
pub struct SetupLocks {
    known: Arc<std::sync::Mutex<LocksByName>>,
}

/// Holds a lock until it is dropped.
#[derive(Debug)]
pub struct SetupGuard {
    _held: OwnedMutexGuard<()>,
}

impl SetupLocks {
    /// Waits for the lock of this name.
    pub async fn lock(&self, name: &str) -> SetupGuard {
        let lock = self.named(name);
        SetupGuard { _held: lock.lock_owned().await }
    }

    fn named(&self, name: &str) -> Arc<Mutex<()>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = known.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        known.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Mutex::new(()));
        known.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_name_is_locked_once_and_others_are_free() {
        let locks = SetupLocks::default();
        let held = locks.lock("a").await;
        let other = locks.clone();
        drop(other.lock("b").await);
        let waits = tokio::time::timeout(Duration::from_millis(20), other.lock("a")).await;
        assert!(waits.is_err(), "the lock is held");
        drop(held);
        let again = tokio::time::timeout(Duration::from_secs(5), other.lock("a")).await;
        assert!(again.is_ok(), "the lock is free again");
    }

    #[tokio::test]
    async fn free_locks_are_forgotten() {
        let locks = SetupLocks::default();
        for n in 0..100 {
            drop(locks.lock(&n.to_string()).await);
        }
        assert!(locks.known.lock().is_ok_and(|known| known.len() <= 1));
    }
}
