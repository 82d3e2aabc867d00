//! The queue of builds. A server runs a few builds at once, and a tenant fewer. Among waiting builds the tenant with
//! the fewest running ones is next, so that many builds of one tenant do not delay others.
//!
//! A build that only waits does not keep its turn: it gives the turn up while it waits for its start command to be
//! ready, and always after [`TURN_MAX`], since a step that hangs cannot be distinguished from a long one. It then
//! continues without a turn. The total number of a tenant's builds is limited by [`OPEN_PER_TENANT`].

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::{Build, BuildId, Code, Principal, TenantId};
use atoll_provider::{InstanceMount, MountSource};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::ask::StartBuild;
use super::context::Staged;
use super::log::Log;
use crate::ServiceError;

/// LIMIT: a step is a sandbox with its own limits; with more at once each is slower, and all together are not faster.
const AT_ONCE: usize = 4;
const AT_ONCE_PER_TENANT: usize = 2;
/// LIMIT: how long a build may delay others.
pub(super) const TURN_MAX: Duration = Duration::from_secs(60);
/// LIMIT: each has a staged context; further builds are refused with a time to retry.
const OPEN_PER_TENANT: usize = 16;
/// LIMIT: S3 clients send ten parts of an object at once.
const UPLOADS_PER_TENANT: usize = 32;
/// LIMIT: each has a row and a few names.
const ANNOUNCED_PER_TENANT: usize = 64;

/// The builds that have not ended.
#[derive(Default)]
pub(crate) struct BuildQueue {
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    open: HashMap<BuildId, Arc<Live>>,
    /// Builds whose steps are not known yet.
    announced: HashMap<BuildId, Announced>,
    /// The number of archives that are being uploaded.
    uploads: HashMap<TenantId, usize>,
    /// Builds whose context is being uploaded, and open ones.
    places: HashMap<TenantId, usize>,
    running: HashMap<TenantId, usize>,
    waiting: VecDeque<(TenantId, oneshot::Sender<BuildTurn>)>,
}

/// A build that has not ended.
pub(super) struct Live {
    /// Its current state; the store has it as it was when its status last changed.
    pub(super) build: watch::Sender<Build>,
    /// Cancelled when the build must end.
    pub(super) cancel: CancellationToken,
    /// Its log.
    pub(super) log: Arc<Log>,
    /// Folders over which its next sandbox has memory mounted.
    pub(super) covered: Mutex<BTreeSet<String>>,
    /// Its turn, if it has one.
    turn: Mutex<Option<BuildTurn>>,
}

impl Live {
    pub(super) fn new(build: Build, cancel: CancellationToken, log: Arc<Log>) -> Self {
        let build = watch::Sender::new(build);
        Self { build, cancel, log, covered: Mutex::default(), turn: Mutex::default() }
    }

    pub(super) fn keep_turn(&self, turn: BuildTurn) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
    }

    /// Lets the next build begin. This one continues.
    pub(super) fn give_up_turn(&self) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
    }

    pub(super) fn cover(&self, folders: BTreeSet<String>) {
        *self.covered.lock().unwrap_or_else(PoisonError::into_inner) = folders;
    }
}

impl BuildQueue {
    /// Counts one more build of a tenant as long as the result is held.
    pub(super) fn admit(self: &Arc<Self>, tenant: &TenantId) -> Result<Admitted, ServiceError> {
        let mut state = self.lock();
        let held = state.places.entry(tenant.clone()).or_default();
        if *held >= OPEN_PER_TENANT {
            let message = format!("this tenant has {held} running or waiting builds");
            return Err(ServiceError::new(Code::QuotaExceeded, message)
                .hint("wait until one of them has ended, or cancel one")
                .retry_after(10));
        }
        *held += 1;
        Ok(Admitted { builds: Arc::clone(self), tenant: tenant.clone() })
    }

    /// Records a build whose steps follow later. Earlier announced builds with one of its names are cancelled.
    pub(super) fn announce(&self, id: BuildId, new: Announced) -> Result<(), ServiceError> {
        let mut state = self.lock();
        state.announced.retain(|_, old| !old.is_replaced_by(&new));
        let held = state.announced.values().filter(|old| old.tenant == new.tenant).count();
        if held >= ANNOUNCED_PER_TENANT {
            let message = format!("this tenant has {held} announced builds that have not begun");
            return Err(ServiceError::new(Code::QuotaExceeded, message).hint("begin or cancel one of them"));
        }
        state.announced.insert(id, new);
        Ok(())
    }

    /// The announcement of a build whose steps are not known yet.
    pub(super) fn announced(&self, id: &BuildId) -> Option<StartBuild> {
        self.lock().announced.get(id).map(|announced| announced.ask.clone())
    }

    /// The channel to the task that waits for the steps of a build; only the first call gets it.
    pub(super) fn take_announced(&self, id: &BuildId) -> Option<oneshot::Sender<BuildStart>> {
        self.lock().announced.remove(id).map(|announced| announced.begin)
    }

    /// Counts one more upload as long as the result is held.
    pub(super) fn admit_upload(self: &Arc<Self>, tenant: &TenantId) -> Result<Uploading, ServiceError> {
        let mut state = self.lock();
        let held = state.uploads.entry(tenant.clone()).or_default();
        if *held >= UPLOADS_PER_TENANT {
            let message = format!("this tenant has {held} uploads in progress");
            return Err(ServiceError::new(Code::QuotaExceeded, message).retry_after(10));
        }
        *held += 1;
        Ok(Uploading { builds: Arc::clone(self), tenant: tenant.clone() })
    }

    /// Waits for a turn, which lasts as long as the result is held. The future may be dropped at any time.
    pub(super) async fn turn(self: &Arc<Self>, tenant: &TenantId) -> BuildTurn {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.lock().waiting.push_back((tenant.clone(), sender));
            self.next();
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }

    pub(super) fn put(&self, live: &Arc<Live>) {
        let id = live.build.borrow().id.clone();
        self.lock().open.insert(id, Arc::clone(live));
    }

    pub(super) fn get(&self, id: &BuildId) -> Option<Arc<Live>> {
        self.lock().open.get(id).cloned()
    }

    pub(super) fn remove(&self, id: &BuildId) {
        self.lock().open.remove(id);
    }

    /// The memory mounts of a sandbox that is created for this build.
    pub(crate) fn memory_over(&self, id: &BuildId, size_mib: u32) -> Vec<InstanceMount> {
        let Some(live) = self.get(id) else { return Vec::new() };
        let covered = live.covered.lock().unwrap_or_else(PoisonError::into_inner);
        let mount = |path: &String| InstanceMount {
            source: MountSource::Memory { size_mib },
            path: path.clone(),
            read_only: false,
        };
        covered.iter().map(mount).collect()
    }

    /// Gives turns to waiting builds, as long as there are some.
    fn next(self: &Arc<Self>) {
        loop {
            let (tenant, sender) = {
                let mut state = self.lock();
                state.waiting.retain(|(_, sender)| !sender.is_closed());
                let Some((tenant, sender)) = state.take_next() else { return };
                *state.running.entry(tenant.clone()).or_default() += 1;
                (tenant, sender)
            };
            // Outside of the lock: a turn whose receiver was dropped is returned when it is dropped.
            let _ = sender.send(BuildTurn { builds: Arc::clone(self), tenant });
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn take_next(&mut self) -> Option<(TenantId, oneshot::Sender<BuildTurn>)> {
        if self.running.values().sum::<usize>() >= AT_ONCE {
            return None;
        }
        let running = |tenant: &TenantId| self.running.get(tenant).copied().unwrap_or_default();
        let waiting = self.waiting.iter().enumerate().map(|(at, (tenant, _))| (running(tenant), at));
        let (_, at) = waiting.filter(|(running, _)| *running < AT_ONCE_PER_TENANT).min()?;
        self.waiting.remove(at)
    }
}

/// The place of one build of a tenant that runs or waits.
pub(super) struct Admitted {
    builds: Arc<BuildQueue>,
    tenant: TenantId,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        less(&mut self.builds.lock().places, &self.tenant);
    }
}

/// The place of one upload.
pub(super) struct Uploading {
    builds: Arc<BuildQueue>,
    tenant: TenantId,
}

impl Drop for Uploading {
    fn drop(&mut self) {
        less(&mut self.builds.lock().uploads, &self.tenant);
    }
}

/// A build whose steps follow later.
pub(super) struct Announced {
    pub(super) tenant: TenantId,
    pub(super) ask: StartBuild,
    pub(super) begin: oneshot::Sender<BuildStart>,
}

/// The steps with which an announced build begins.
pub(super) struct BuildStart {
    pub(super) who: Principal,
    pub(super) ask: StartBuild,
    pub(super) staged: Staged,
    pub(super) admitted: Admitted,
}

impl Announced {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.ask.tags.iter().map(String::as_str).chain(self.ask.template.tag_or_default())
    }

    fn is_replaced_by(&self, new: &Self) -> bool {
        self.tenant == new.tenant
            && self.ask.template.name == new.ask.template.name
            && self.names().any(|tag| new.names().any(|other| other == tag))
    }
}

/// The right to run.
pub(super) struct BuildTurn {
    builds: Arc<BuildQueue>,
    tenant: TenantId,
}

impl Drop for BuildTurn {
    fn drop(&mut self) {
        less(&mut self.builds.lock().running, &self.tenant);
        self.builds.next();
    }
}

fn less(counts: &mut HashMap<TenantId, usize>, tenant: &TenantId) {
    if let Some(count) = counts.get_mut(tenant) {
        *count -= 1;
        if *count == 0 {
            counts.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn tenant(seed: u8) -> TenantId {
        TenantId::from_entropy([seed; 20])
    }

    #[tokio::test]
    async fn a_pile_of_one_tenant_does_not_keep_another_waiting() {
        let builds = Arc::new(BuildQueue::default());
        let (many, one) = (tenant(1), tenant(2));
        let first = builds.turn(&many).await;
        let second = builds.turn(&many).await;
        let mut third = Box::pin(builds.turn(&many));
        assert!((&mut third).now_or_never().is_none(), "a tenant has two at most");
        let other = builds.turn(&one).await;
        drop(other);
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        let third = third.await;
        drop((second, third));
        assert!(builds.lock().running.is_empty());
    }

    #[tokio::test]
    async fn the_server_does_a_few_at_once_and_who_gives_up_takes_no_turn() {
        let builds = Arc::new(BuildQueue::default());
        let mut turns = Vec::new();
        for seed in 0..AT_ONCE as u8 {
            turns.push(builds.turn(&tenant(seed)).await);
        }
        let (first, second) = (tenant(100), tenant(101));
        let mut gone = Box::pin(builds.turn(&first));
        assert!((&mut gone).now_or_never().is_none());
        let mut waits = Box::pin(builds.turn(&second));
        assert!((&mut waits).now_or_never().is_none());
        drop(gone);
        turns.pop();
        let turn = waits.await;
        drop((turns, turn));
        assert!(builds.lock().running.is_empty());
        assert!(builds.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn open_builds_of_a_tenant_are_counted() {
        let builds = Arc::new(BuildQueue::default());
        let mut held: Vec<Admitted> =
            (0..OPEN_PER_TENANT).map(|_| builds.admit(&tenant(1)).expect("room")).collect();
        assert_eq!(builds.admit(&tenant(1)).err().map(|error| error.code), Some(Code::QuotaExceeded));
        assert!(builds.admit(&tenant(2)).is_ok());
        held.pop();
        assert!(builds.admit(&tenant(1)).is_ok());
    }
}
