//! Tracks what is in use, so that a collection removes nothing that is needed.
//!
//! A collection removes an entry only if, under the lock here, it is not held, and was not touched since the collection
//! began, since the oldest work under way began, or within the grace period. An operation that relies on an entry
//! touches it first, and touches it again when the owner of the entry (a version, a database row) is written. So an
//! entry that is needed never appears unneeded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{ImageError, Images};
use crate::layers::Digest;

/// The entries in use. All names are digests; two different entries never share one.
#[derive(Debug, Default)]
pub(super) struct UseTracker(Mutex<UseState>);

#[derive(Debug, Default)]
struct UseState {
    held: HashMap<Digest, usize>,
    touched: HashMap<Digest, Instant>,
    working: BTreeMap<u64, Instant>,
    next: u64,
}

/// Keeps a version from being collected while this exists, and for the grace period after it.
#[derive(Debug)]
pub struct VersionLease {
    images: Arc<Images>,
    digest: Digest,
    version: String,
}

/// Work under way: no layer or blob that is looked up or added while this exists is collected before it ends.
#[derive(Debug)]
pub struct WorkGuard {
    images: Arc<Images>,
    number: u64,
}

impl Images {
    /// Marks the beginning of work that looks up layers and blobs and then makes a version of them.
    pub fn begin(self: &Arc<Self>) -> WorkGuard {
        WorkGuard { images: Arc::clone(self), number: self.uses.begin() }
    }

    /// Keeps a version from being collected; an error if it does not exist.
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
    /// Marks an entry as in use from now on.
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

    /// Runs `remove`, which only renames, unless the entry is needed.
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

    /// Forgets touches that are too old to matter.
    pub(super) fn forget_old(&self, grace: Duration) {
        let mut state = self.lock();
        let oldest = state.working.values().min().copied();
        state.touched.retain(|_, at| at.elapsed() < grace || oldest.is_some_and(|oldest| *at >= oldest));
    }

    fn lock(&self) -> MutexGuard<'_, UseState> {
        // Every change above is one step: a thread that panicked in between has left no invalid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
