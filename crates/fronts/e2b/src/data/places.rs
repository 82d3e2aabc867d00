//! How many requests a sandbox has open at once; more are refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::SandboxId;

/// LIMIT: an SDK keeps a connection per running command and watch; 2,000 at once is its own bound.
const PER_SANDBOX: usize = 2_000;

#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<SandboxId, usize>>);

/// One of them, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    sandbox: SandboxId,
}

impl Places {
    pub(super) fn enter(self: &Arc<Self>, sandbox: &SandboxId) -> Option<Place> {
        let mut open = self.lock();
        let count = open.entry(sandbox.clone()).or_default();
        if *count >= PER_SANDBOX {
            return None;
        }
        *count += 1;
        Some(Place { places: Arc::clone(self), sandbox: sandbox.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        if let Some(count) = open.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.sandbox);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_has_so_many_places_and_leaves_nothing() {
        let places = Arc::new(Places::default());
        let id: SandboxId = "abcdefghij0123456789".parse().unwrap();
        let taken: Vec<_> = (0..PER_SANDBOX).map(|_| places.enter(&id).unwrap()).collect();
        assert!(places.enter(&id).is_none());
        drop(taken);
        assert!(places.enter(&id).is_some());
        assert!(places.lock().is_empty());
    }
}
