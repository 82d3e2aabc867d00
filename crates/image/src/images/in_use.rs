//! Who needs what at this moment, so that a collection takes nothing away from under anybody.
//!
//! A collection removes a thing only if, under the lock here, it is not held, was not touched since the collection began,
//! since the oldest work under way began, or within the grace. Whoever relies on a thing touches it first, and once more
//! when what keeps it (a version, a row) is written; so there is no moment at which it is needed and looks unneeded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{ImageError, Images};
use crate::layers::Digest;

/// What is in use. All names are digests, whatever they are of: no two things share one.
#[derive(Debug, Default)]
pub(super) struct UseTracker(Mutex<UseState>);

#[derive(Debug, Default)]
struct UseState {
    held: HashMap<Digest, usize>,
    touched: HashMap<Digest, Instant>,
    working: BTreeMap<u64, Instant>,
    next: u64,
}

/// Keeps a version from being collected for as long as it lives, and for the grace after it.
#[derive(Debug)]
pub struct VersionLease {
    images: Arc<Images>,
    digest: Digest,
    version: String,
}

/// Work under way: no layer or blob that is looked at or added while this lives is collected before it ends.
#[derive(Debug)]
pub struct WorkGuard {
    images: Arc<Images>,
    number: u64,
}

impl Images {
    /// Says that work begins which will look at layers and blobs and then make a version of them.
    pub fn begin(self: &Arc<Self>) -> WorkGuard {
        WorkGuard { images: Arc::clone(self), number: self.uses.begin() }
    }

    /// Keeps a version from being collected; fails when it is not here.
    pub fn hold(self: &Arc<Self>, version: &str) -> Result<VersionLease, ImageError> {
        let digest = Digest::parse(version)?;
        let path = self.version_path(&digest);
        let mut state = self.uses.lock();
        if !path.is_file() {
            return Err(ImageError::NotFound { version: version.to_owned() });
        }
        *state.held.entry(digest).or_default() += 1;
        Ok(VersionLease { images: Arc::clone(self), digest, version: digest.to_string() })
    }
}

impl VersionLease {
    /// Which version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Drop for VersionLease {
    fn drop(&mut self) {
        let mut state = self.images.uses.lock();
        state.touched.insert(self.digest, Instant::now());
        if let Some(times) = state.held.get_mut(&self.digest) {
            *times -= 1;
            if *times == 0 {
                state.held.remove(&self.digest);
            }
        }
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.images.uses.end(self.number);
    }
}

impl UseTracker {
    /// Somebody relies on this from now on.
    pub(super) fn touch(&self, digest: &Digest) {
        self.lock().touched.insert(*digest, Instant::now());
    }

    pub(super) fn touch_all<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        let now = Instant::now();
        self.lock().touched.extend(digests.into_iter().map(|digest| (*digest, now)));
    }

    pub(super) fn begin(&self) -> u64 {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.working.insert(number, Instant::now());
        number
    }

    pub(super) fn end(&self, number: u64) {
        self.lock().working.remove(&number);
    }

    /// Runs `remove`, which only renames, unless somebody needs the thing.
    pub(super) fn unless_needed<T>(
        &self,
        digest: &Digest,
        since: Instant,
        grace: Duration,
        remove: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut state = self.lock();
        let oldest = state.working.values().min().copied().unwrap_or(since).min(since);
        let touched = state.touched.get(digest).copied();
        if state.held.contains_key(digest) || touched.is_some_and(|at| at >= oldest || at.elapsed() < grace) {
            return None;
        }
        state.touched.remove(digest);
        Some(remove())
    }

    /// Forgets touches that can no longer spare anything.
    pub(super) fn forget_old(&self, grace: Duration) {
        let mut state = self.lock();
        let oldest = state.working.values().min().copied();
        state.touched.retain(|_, at| at.elapsed() < grace || oldest.is_some_and(|oldest| *at >= oldest));
    }

    fn lock(&self) -> MutexGuard<'_, UseState> {
        // Every change above is one step: a thread that panicked in between has broken nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
