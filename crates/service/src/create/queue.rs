//! Creates that wait for a place, because the node or the quota of their tenant is full.
//!
//! ```text
//! create ─► lease (queued) ─► its turn: capacity is promised ─► driver: quota, one write ─► booting, or its image
//!                │                       ▲
//!                │        a place is free: a promise was released, a tenant holds less, a quota was raised
//!                ├─► deleted: cancelled
//!                └─► deleted: the queue timeout passed
//! ```
//!
//! One task gives places, one create after the other, in the order of [`CreateQueue`]. It sleeps until something is
//! released; while creates wait it also looks once a second, for what nobody announces: free memory of the machine, the
//! capacity of a remote provider, usage of the tenant on another node. A queued lease is a row without an instance; after a
//! restart the rows are queued again in their order.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::policy::queue::{Blocked, CreateQueue, QueueFull, QueuedCreate};
use atoll_model::{Code, EventKind, Lease, QueuePlace, SandboxId, TenantId};
use atoll_store::{NewEvent, StoreError};
use futures::StreamExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::admission::NotAdmitted;
use crate::base::shutting_down;
use crate::driver::DriverMessage;
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{Sandboxes, SandboxesState, ask};
use crate::{ServiceConfig, ServiceError};

/// LIMIT: how late a place is noticed that nobody announces; the state of the machine is not read more often either.
const RECHECK: Duration = Duration::from_secs(1);
/// LIMIT: how long a create that is too large for what is free holds up the creates behind it. After that smaller creates of other
/// tenants pass, so that no tenant can stop all others by asking for more than becomes free.
const HOLDS_UP: Duration = Duration::from_secs(30);
/// LIMIT: how long a tenant whose creates held up others cannot do so again.
const HOLDS_UP_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// LIMIT: how long the queue waits for the capacity of one provider. A provider that is slower is asked again a second later.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);
/// LIMIT: events of places that are written at once; the store groups them.
const TOLD_AT_ONCE: usize = 32;

/// The queue of this node.
pub(crate) struct PlaceQueue {
    state: Mutex<QueueState>,
    /// Told when a create may have its place.
    freed: Arc<Notify>,
    /// Told when places have changed.
    moved: Notify,
}

struct QueueState {
    queue: CreateQueue,
    /// Tenants whose quota was full, until they hold less.
    quota_full: BTreeSet<TenantId>,
    /// The tenant whose create is being tried, until it holds less or its quota is changed.
    tried_tenant: Option<TenantId>,
    shortage: Shortage,
    /// How many creates were ahead of each at its last event.
    told: HashMap<SandboxId, u32>,
    /// Since when a tenant holds up a provider with creates that did not fit.
    held_up: HashMap<(TenantId, String), Instant>,
}

/// Where queued creates wait for capacity.
#[derive(Default)]
struct Shortage {
    of_node: bool,
    providers: BTreeSet<String>,
}

/// A create that has its position in the queue and is not stored yet. Without [`QueueEntry::recorded`] it leaves the queue.
pub(crate) struct QueueEntry {
    inner: Arc<SandboxesState>,
    id: SandboxId,
    is_recorded: bool,
}

impl QueueEntry {
    /// The lease is stored and has a driver: it can have its place.
    pub(crate) fn recorded(mut self) {
        self.is_recorded = true;
        self.inner.queue.state().queue.recorded(&self.id);
        self.inner.queue.changed();
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.inner.queue.state().queue.leave(&self.id);
            self.inner.queue.changed();
        }
    }
}

/// A lease as the queue knows it.
pub(crate) fn queued_create(lease: &Lease) -> QueuedCreate {
    QueuedCreate { id: lease.id.clone(), tenant: lease.tenant.clone(), provider: lease.provider.clone() }
}

impl PlaceQueue {
    pub(crate) fn new(config: &ServiceConfig, freed: &Arc<Notify>) -> Self {
        let state = QueueState {
            queue: CreateQueue::new(config.queue_limits),
            quota_full: BTreeSet::new(),
            tried_tenant: None,
            shortage: Shortage::default(),
            told: HashMap::new(),
            held_up: HashMap::new(),
        };
        Self { state: Mutex::new(state), freed: Arc::clone(freed), moved: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.freed.notify_one();
        self.moved.notify_one();
    }

    /// How many creates wait.
    pub(crate) fn len(&self) -> usize {
        self.state().queue.len()
    }

    /// Adds a create that an earlier server has stored.
    pub(crate) fn rejoin(&self, create: QueuedCreate) {
        self.state().queue.rejoin(create);
        self.changed();
    }

    /// The lease no longer waits: it has its place, or it is being deleted.
    pub(crate) fn left(&self, lease: &Lease) {
        let mut state = self.state();
        if lease.phase.is_gone() {
            state.queue.leave(&lease.id);
        } else {
            state.queue.started(&lease.id);
        }
        state.told.remove(&lease.id);
        drop(state);
        self.changed();
    }

    /// A tenant holds less than before, or its quota was changed.
    pub(crate) fn tenant_freed(&self, tenant: &TenantId) {
        let mut state = self.state();
        // A try of this moment may have counted before.
        state.tried_tenant.take_if(|tried| tried == tenant);
        if state.quota_full.remove(tenant) {
            self.freed.notify_one();
        }
    }

    /// A create did not fit the quota of its tenant. It is tried again at once if the tenant holds less by now.
    fn quota_was_full(&self, create: QueuedCreate) {
        let mut state = self.state();
        if state.tried_tenant.take().is_some() {
            state.quota_full.insert(create.tenant);
        }
    }

    /// A lease of a tenant was written: whether that frees a part of its quota.
    pub(crate) fn written(&self, before: &Lease, lease: &Lease) {
        let (old, new) = (&before.limits, &lease.limits);
        let frees = lease.phase.is_gone()
            || (before.holds_compute() && !lease.holds_compute())
            || (new.cpu_milli, new.memory_mib, new.disk_mib) != (old.cpu_milli, old.memory_mib, old.disk_mib);
        if frees {
            self.tenant_freed(&lease.tenant);
        }
        if before.waits_for_place() && !lease.waits_for_place() {
            self.left(lease);
        }
    }

    /// Whether a create that does not fit at its provider lets others pass.
    fn lets_pass(&self, create: &QueuedCreate) -> bool {
        let mut state = self.state();
        state.held_up.retain(|_, since| since.elapsed() < HOLDS_UP_AGAIN_AFTER);
        let whose = (create.tenant.clone(), create.provider.clone());
        let since = *state.held_up.entry(whose).or_insert_with(Instant::now);
        since.elapsed() > HOLDS_UP
    }

    /// Whether queued creates wait for capacity at this provider, so that a create which does not queue may not take it.
    fn is_short(&self, provider: &str) -> bool {
        let Shortage { of_node, providers } = &self.state().shortage;
        *of_node || providers.contains(provider)
    }

    /// Adds the current place to a lease that waits.
    pub(crate) fn show(&self, lease: &mut Lease) {
        if lease.waits_for_place()
            && let Some(wait) = &mut lease.queue
        {
            wait.place = self.state().queue.place(&lease.id);
        }
    }

    pub(crate) fn shown(&self, lease: &Lease) -> Lease {
        let mut lease = lease.clone();
        self.show(&mut lease);
        lease
    }

    fn next(&self, blocked: &Blocked) -> Option<QueuedCreate> {
        self.state().queue.next(blocked).cloned()
    }

    /// The places that listeners have to be told: of new creates, and of those with at most half as many ahead as before.
    fn untold(&self) -> Vec<(QueuedCreate, QueuePlace)> {
        let mut state = self.state();
        let mut places = state.queue.places();
        places.retain(|(create, place)| {
            let known = state.told.get(&create.id).copied();
            let is_news = known.is_none_or(|ahead| place.ahead < ahead && place.ahead <= ahead / 2);
            if is_news {
                state.told.insert(create.id.clone(), place.ahead);
            }
            is_news
        });
        places
    }
}

/// The result of a turn.
enum Turn {
    /// It has its place.
    Taken,
    /// It no longer waits.
    Gone,
    /// The whole node is full.
    NodeFull,
    /// Its provider is full, or does not say.
    ProviderFull,
    /// Its tenant's quota is full.
    QuotaFull,
    /// It could not be tried.
    Later(ServiceError),
}

impl Sandboxes {
    /// Gives a new lease its position in the queue. A create that could not even run on an empty node is refused.
    pub(super) async fn queued(&self, lease: &Lease) -> Result<QueueEntry, ServiceError> {
        let (inner, provider) = (&self.inner, self.inner.providers.of(lease)?);
        if !inner.disk.takes_records() {
            return Err(StoreError::NoSpace.into());
        }
        inner.admission.check_alone(provider.as_ref(), lease).await?;
        inner.queue.state().queue.join(queued_create(lease)).map_err(queue_full)?;
        Ok(QueueEntry { inner: Arc::clone(inner), id: lease.id.clone(), is_recorded: false })
    }

    /// Refuses a create that would overtake queued ones.
    pub(crate) fn refuse_overtaking(&self, lease: &Lease) -> Result<(), ServiceError> {
        if lease.build.is_some() || !self.inner.queue.is_short(&lease.provider) {
            return Ok(());
        }
        Err(ServiceError::new(Code::NoCapacity, "this node has no capacity: queued creates wait for it")
            .hint("create with queue: true to wait for your turn")
            .retry_after(5))
    }

    /// Waits until a create no longer waits for its place; its queue timeout ends that.
    pub(super) async fn until_placed(&self, mut handle: Handle) -> Result<(), ServiceError> {
        match handle.state.wait_for(|state: &DriverState| !state.lease.waits_for_place()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(shutting_down()),
        }
    }

    /// A tenant has another quota: its queued creates may fit.
    pub(crate) fn quota_changed(&self, tenant: &TenantId) {
        self.inner.queue.tenant_freed(tenant);
    }

    /// How many creates wait for a place on this node.
    #[must_use]
    pub fn queued_creates(&self) -> usize {
        self.inner.queue.len()
    }

    /// Starts the tasks that give places and tell them.
    pub(crate) fn start_queue(&self) {
        let (own, teller) = (self.clone(), self.clone());
        self.inner.spawn(async move {
            loop {
                let is_waiting = own.give_places().await;
                tokio::select! {
                    () = own.inner.closing.cancelled() => return,
                    () = own.inner.place_freed.notified() => {}
                    () = tokio::time::sleep(RECHECK), if is_waiting => own.inner.queue.state().quota_full.clear(),
                }
            }
        });
        self.inner.spawn(async move {
            loop {
                tokio::select! {
                    () = teller.inner.closing.cancelled() => return,
                    () = teller.inner.queue.moved.notified() => {}
                }
                teller.tell_places().await;
            }
        });
    }

    /// Gives every free place to the create whose turn it is. Returns whether creates still wait.
    async fn give_places(&self) -> bool {
        let queue = &self.inner.queue;
        let mut tried = BTreeSet::new();
        let mut shortage = Shortage::default();
        loop {
            let tenants = queue.state().quota_full.union(&tried).cloned().collect();
            let blocked = Blocked { tenants, providers: shortage.providers.clone() };
            let Some(create) = queue.next(&blocked).filter(|_| !shortage.of_node) else { break };
            queue.state().tried_tenant = Some(create.tenant.clone());
            match self.give_place(&create).await {
                Turn::Taken => {}
                Turn::Gone => {
                    queue.state().queue.leave(&create.id);
                }
                Turn::NodeFull => shortage.of_node = true,
                Turn::ProviderFull if queue.lets_pass(&create) => drop(tried.insert(create.tenant)),
                Turn::ProviderFull => drop(shortage.providers.insert(create.provider)),
                Turn::QuotaFull => queue.quota_was_full(create),
                Turn::Later(error) => {
                    tracing::warn!(sandbox = %create.id, %error, cause = ?error.cause, "a queued create waits on");
                    tried.insert(create.tenant);
                }
            }
        }
        let mut state = queue.state();
        state.shortage = shortage;
        !state.queue.is_empty()
    }

    /// Promises capacity to a create, and lets its driver record that it has its place.
    async fn give_place(&self, create: &QueuedCreate) -> Turn {
        let Some(handle) = self.inner.registry.get(&create.id) else { return Turn::Gone };
        let lease = handle.lease();
        if !lease.waits_for_place() {
            return Turn::Gone;
        }
        self.inner.failpoint.reach("queue.turn").await;
        let placed = Lease { queue: None, ..lease.as_ref().clone() };
        if let Err(turn) = self.promise_place(&placed).await {
            return turn;
        }
        self.inner.failpoint.reach("queue.reserved").await;
        let Err(error) = ask(&handle, |reply| DriverMessage::Place { reply }).await else {
            self.inner.failpoint.reach("queue.placed").await;
            return Turn::Taken;
        };
        // It may have been written although the answer was lost with its driver.
        if handle.lease().holds_compute() {
            return Turn::Gone;
        }
        self.inner.admission.take_back(&create.id);
        match error.code {
            Code::QuotaExceeded => Turn::QuotaFull,
            _ if !handle.lease().waits_for_place() => Turn::Gone,
            _ => Turn::Later(error),
        }
    }

    async fn promise_place(&self, lease: &Lease) -> Result<(), Turn> {
        let inner = &self.inner;
        let provider = inner.providers.of(lease).map_err(|_| Turn::ProviderFull)?;
        if !inner.disk.takes_records() {
            return Err(Turn::NodeFull);
        }
        match self.admit_beside_uploads(lease).await {
            Err(full) if full.code == Code::QuotaExceeded => return Err(Turn::QuotaFull),
            admitted => admitted.map_err(Turn::Later)?,
        }
        let reserved = inner.admission.reserve(provider.as_ref(), lease);
        // A provider that hangs must not keep the creates of the others waiting.
        let Ok(reserved) = tokio::time::timeout(ANSWERS_WITHIN, reserved).await else {
            return Err(Turn::ProviderFull);
        };
        reserved.map_err(|full| match full {
            NotAdmitted::NoRoom(full) if full.is_of_node() => Turn::NodeFull,
            NotAdmitted::NoRoom(full) if full.is_of_tenant() => Turn::QuotaFull,
            NotAdmitted::NoRoom(_) | NotAdmitted::Node(_) => Turn::ProviderFull,
            // The machine has become smaller. Others must not wait behind it.
            NotAdmitted::TooLarge { .. } | NotAdmitted::TooManyCores(_) => Turn::Later(full.into()),
        })
    }

    async fn tell_places(&self) {
        let untold = futures::stream::iter(self.inner.queue.untold());
        untold.for_each_concurrent(TOLD_AT_ONCE, |(create, place)| self.tell_place(create, place)).await;
    }

    async fn tell_place(&self, create: QueuedCreate, place: QueuePlace) {
        let still_waits = |handle: Handle| handle.lease().waits_for_place();
        if !self.inner.registry.get(&create.id).is_some_and(still_waits) {
            return;
        }
        let event = NewEvent {
            at: self.inner.clock.now(),
            instance: None,
            what: EventKind::Queued { place },
            by: None,
        };
        if let Err(error) = self.inner.store.record(create.tenant, create.id.clone(), event).await {
            tracing::warn!(sandbox = %create.id, %error, "an event could not be written");
        }
    }
}

fn queue_full(full: QueueFull) -> ServiceError {
    ServiceError::new(Code::NoCapacity, full.to_string()).retry_after(30)
}

/// The answer to a caller that waited for a place in vain.
pub(crate) fn queue_timed_out(lease: &Lease) -> ServiceError {
    let message = format!("sandbox {} was queued, and no place was free for it in time", lease.id);
    ServiceError::new(Code::QueueTimedOut, message)
        .hint("it is deleted; create it again, with a longer queue_timeout_s, or free places first")
        .retry_after(10)
}
