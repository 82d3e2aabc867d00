//! Locks for steps that must not run twice at the same time in one sandbox, such as the start of a shared process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};

type LocksByName = HashMap<String, Weak<Mutex<()>>>;

/// LIMIT: names of done steps; beyond that all are forgotten and checked again.
const DONE_MAX: usize = 1_024;

/// Locks by name, and the names of steps that are known to be done. Clones share them. They are in memory: after a crash
/// nothing is locked, and no step is known to be done.
#[derive(Debug, Clone, Default)]
pub struct SetupLocks {
    known: Arc<std::sync::Mutex<LocksByName>>,
    done: Arc<std::sync::Mutex<HashSet<String>>>,
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

    /// Notes that a step is done.
    pub fn note_done(&self, step: String) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.len() >= DONE_MAX {
            done.clear();
        }
        done.insert(step);
    }

    /// Whether a step is known to be done.
    #[must_use]
    pub fn is_done(&self, step: &str) -> bool {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).contains(step)
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

    #[test]
    fn done_steps_are_known_to_clones_and_bounded() {
        let locks = SetupLocks::default();
        let other = locks.clone();
        assert!(!other.is_done("a"));
        locks.note_done("a".to_owned());
        assert!(other.is_done("a"));
        (0..DONE_MAX).for_each(|n| locks.note_done(n.to_string()));
        assert!(!other.is_done("a"));
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
