//! Which object of the vendor is which sandbox, as this server knows it, and whose turn it is to change a sandbox.
//!
//! A table outlives the provider that uses it: a provider is opened again when its settings change, and both must see the same.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::{Notice, NoticeKind, ProviderError, Target};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// LIMIT: notices that a slow listener may be behind; beyond that the listener is informed that it missed some.
const NOTICES: usize = 1_024;

/// What the vendor's object of a sandbox does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// Its processes run.
    Running,
    /// Its processes stand still, with their memory.
    Paused,
    /// Its processes have to end, and have not ended yet; its files are kept.
    Ending,
    /// Only its files are there.
    Halted,
}

/// The vendor's object of a sandbox. `A` is what the vendor's calls need to reach it.
#[derive(Debug)]
pub struct RemoteObject<A> {
    /// The vendor's id.
    pub id: String,
    /// The instance that it is, or was before it was halted.
    pub instance: InstanceId,
    /// What it does.
    pub state: ObjectState,
    /// How it is reached; `None`: not asked for yet.
    pub access: Option<Arc<A>>,
    /// When its lifetime at the vendor was set last; `None`: that is not known.
    pub kept_at: Option<Instant>,
}

impl<A> RemoteObject<A> {
    /// Whether it is the instance of a sandbox that runs or is paused.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self.state, ObjectState::Running | ObjectState::Paused)
    }

    /// Whether it is the same object and the same instance of it: an object can be stopped and started as another.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.instance == other.instance
    }

    /// Whether its lifetime at the vendor has to be set again, where that is done so often.
    #[must_use]
    pub fn is_due(&self, every: Duration) -> bool {
        self.state == ObjectState::Running && self.kept_at.is_none_or(|at| at.elapsed() >= every)
    }
}

impl<A> Clone for RemoteObject<A> {
    fn clone(&self) -> Self {
        Self {
            id: self.id.clone(),
            instance: self.instance.clone(),
            state: self.state,
            access: self.access.clone(),
            kept_at: self.kept_at,
        }
    }
}

#[derive(Debug)]
struct SlotState<A> {
    object: Option<RemoteObject<A>>,
    /// A create may have made an object whose id is not known.
    is_doubtful: bool,
    /// The sandbox had an object, and was not destroyed since: where the object is missing, it may be seen again.
    is_known: bool,
}

impl<A> Default for SlotState<A> {
    fn default() -> Self {
        Self { object: None, is_doubtful: false, is_known: false }
    }
}

/// One sandbox.
#[derive(Debug)]
pub struct RemoteSlot<A> {
    /// Held by the call that changes the sandbox.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<SlotState<A>>,
}

impl<A> Default for RemoteSlot<A> {
    fn default() -> Self {
        Self { turn: Arc::default(), state: Mutex::default() }
    }
}

impl<A> RemoteSlot<A> {
    fn lock(&self) -> MutexGuard<'_, SlotState<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its object.
    #[must_use]
    pub fn object(&self) -> Option<RemoteObject<A>> {
        self.lock().object.clone()
    }

    /// Puts an object in the place of the one before.
    pub fn set(&self, object: RemoteObject<A>) {
        let mut state = self.lock();
        (state.object, state.is_known) = (Some(object), true);
    }

    /// The sandbox is no more.
    pub fn clear(&self) {
        *self.lock() = SlotState::default();
    }

    /// The vendor does not have the object of a sandbox that is known. It is remembered: what a vendor does not show for a moment
    /// belongs to the sandbox all the same when it is seen again.
    pub fn lose(&self) {
        let mut state = self.lock();
        (state.object, state.is_known) = (None, true);
    }

    /// Whether the object of a known sandbox is missing.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let state = self.lock();
        state.is_known && state.object.is_none()
    }

    /// Changes its object, if it is still this instance.
    pub fn update(&self, instance: &InstanceId, change: impl FnOnce(&mut RemoteObject<A>)) {
        if let Some(object) = self.lock().object.as_mut().filter(|object| object.instance == *instance) {
            change(object);
        }
    }

    /// Notes whether there may be an object whose id is not known.
    pub fn set_doubtful(&self, is_doubtful: bool) {
        self.lock().is_doubtful = is_doubtful;
    }

    /// Whether there may be an object whose id is not known.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.lock().is_doubtful
    }

    /// Waits for the turn to change the sandbox.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// The turn to change the sandbox, if no change is under way.
    #[must_use]
    pub fn try_turn(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        Arc::clone(&self.turn).try_lock_owned().ok()
    }

    /// Whether a change is under way.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    fn is_empty(&self) -> bool {
        let state = self.lock();
        state.object.is_none() && !state.is_known
    }
}

/// All sandboxes of one provider.
#[derive(Debug)]
pub struct RemoteTable<A> {
    slots: Mutex<HashMap<SandboxId, Arc<RemoteSlot<A>>>>,
    /// Changes take it shared, adoption exclusively.
    adoption: Arc<tokio::sync::RwLock<()>>,
    is_adopted: AtomicBool,
    /// The provider whose watch acts on this table, counted from 1.
    watched_by: AtomicU64,
    /// Objects that belong to no sandbox, by the vendor's id, and since when.
    strays: Mutex<HashMap<String, Instant>>,
    /// Objects of sandboxes that were not known at the adoption, by sandbox: what a create left that the end of a server interrupted.
    leftovers: Mutex<HashMap<SandboxId, Vec<String>>>,
    /// Closed from the beginning, so that it can be waited for at any time; a closed tracker still takes tasks.
    changes: TaskTracker,
    notices: broadcast::Sender<Notice>,
}

impl<A> Default for RemoteTable<A> {
    fn default() -> Self {
        let changes = TaskTracker::new();
        changes.close();
        Self {
            slots: Mutex::default(),
            adoption: Arc::default(),
            is_adopted: AtomicBool::new(false),
            watched_by: AtomicU64::new(0),
            strays: Mutex::default(),
            leftovers: Mutex::default(),
            changes,
            notices: broadcast::Sender::new(NOTICES),
        }
    }
}

impl<A: Send + Sync + 'static> RemoteTable<A> {
    /// Makes the caller the provider that watches the objects. Earlier ones see that by [`Self::is_watched_by`].
    pub fn take_watch(&self) -> u64 {
        self.watched_by.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether no other provider has taken the watch since.
    #[must_use]
    pub fn is_watched_by(&self, watch: u64) -> bool {
        self.watched_by.load(Ordering::SeqCst) == watch
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<RemoteSlot<A>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a sandbox; made when missing.
    #[must_use]
    pub fn of(&self, sandbox: &SandboxId) -> Arc<RemoteSlot<A>> {
        Arc::clone(self.lock().entry(sandbox.clone()).or_default())
    }

    /// The slot of a sandbox, if it has one.
    #[must_use]
    pub fn existing(&self, sandbox: &SandboxId) -> Option<Arc<RemoteSlot<A>>> {
        self.lock().get(sandbox).cloned()
    }

    /// Every slot with an object.
    #[must_use]
    pub fn objects(&self) -> Vec<(SandboxId, Arc<RemoteSlot<A>>, RemoteObject<A>)> {
        let slots = self.lock();
        let found =
            slots.iter().filter_map(|(id, slot)| Some((id.clone(), Arc::clone(slot), slot.object()?)));
        found.collect()
    }

    /// The running or paused object that a call means.
    ///
    /// # Errors
    /// [`ProviderError::Gone`]: there is none, or it is another instance.
    pub fn live(&self, target: &Target) -> Result<(Arc<RemoteSlot<A>>, RemoteObject<A>), ProviderError> {
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let slot = self.existing(&target.sandbox).ok_or_else(gone)?;
        let is_meant = |object: &RemoteObject<A>| {
            object.is_live() && target.instance.as_ref().is_none_or(|wanted| *wanted == object.instance)
        };
        let object = slot.object().filter(is_meant).ok_or_else(gone)?;
        Ok((slot, object))
    }

    /// Runs a change of a sandbox in its turn, to its end, also when the caller goes away.
    ///
    /// # Errors
    /// Those of the change.
    pub async fn change<T, W, F>(self: &Arc<Self>, sandbox: &SandboxId, work: W) -> Result<T, ProviderError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<RemoteSlot<A>>) -> F + Send + 'static,
        F: Future<Output = Result<T, ProviderError>> + Send + 'static,
    {
        let no_adoption = Arc::clone(&self.adoption).read_owned().await;
        let slot = self.of(sandbox);
        // Taken before the task begins: a destroy after a caller that went away must not overtake a create.
        let turn = Arc::clone(&slot.turn).lock_owned().await;
        let (table, sandbox) = (Arc::clone(self), sandbox.clone());
        let task = self.changes.spawn(async move {
            let done = work(Arc::clone(&slot)).await;
            drop((turn, no_adoption));
            table.forget_empty(&sandbox, &slot);
            done
        });
        let failed =
            |cause| ProviderError::Failed { step: "changing the sandbox".into(), cause: Box::new(cause) };
        task.await.map_err(failed)?
    }

    /// Removes a slot that was made only to wait in it. The map and the caller hold it.
    fn forget_empty(&self, sandbox: &SandboxId, slot: &Arc<RemoteSlot<A>>) {
        let mut slots = self.lock();
        let is_current = slots.get(sandbox).is_some_and(|current| Arc::ptr_eq(current, slot));
        if is_current && slot.is_empty() && Arc::strong_count(slot) <= 2 {
            slots.remove(sandbox);
        }
    }

    /// Keeps every change out until it is dropped.
    pub async fn adopting(&self) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.adoption).write_owned().await
    }

    /// From now on the table knows every sandbox of this server: these.
    pub fn set_adopted(&self, sandboxes: &HashSet<SandboxId>) {
        self.lock().retain(|sandbox, _| sandboxes.contains(sandbox));
        self.is_adopted.store(true, Ordering::Release);
    }

    /// Notes the objects of sandboxes that are not known.
    pub fn set_leftovers(&self, leftovers: HashMap<SandboxId, Vec<String>>) {
        *self.leftovers.lock().unwrap_or_else(PoisonError::into_inner) = leftovers;
    }

    /// The objects that an interrupted create of this sandbox left. They are forgotten.
    #[must_use]
    pub fn take_leftovers(&self, sandbox: &SandboxId) -> Vec<String> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox).unwrap_or_default()
    }

    /// The objects of a list that have belonged to no sandbox for at least `grace`. `listed` are the objects of this server: the
    /// vendor's id, and the sandbox that their labels name. One whose sandbox has another object is an older instance of it for
    /// certain; it is left alone only for the time `replaced`.
    #[must_use]
    pub fn expired_strays(
        &self,
        listed: &[(String, SandboxId)],
        replaced: Duration,
        grace: Duration,
    ) -> Vec<String> {
        if !self.is_adopted.load(Ordering::Acquire) {
            return Vec::new();
        }
        let own: HashMap<SandboxId, String> =
            self.objects().into_iter().map(|(sandbox, _, object)| (sandbox, object.id)).collect();
        let is_stray = |(id, sandbox): &&(String, SandboxId)| {
            let is_spare = |slot: Arc<RemoteSlot<A>>| !slot.is_changing() && !slot.is_lost();
            own.get(sandbox) != Some(id) && self.existing(sandbox).is_none_or(is_spare)
        };
        let found: HashMap<&String, bool> =
            listed.iter().filter(is_stray).map(|(id, sandbox)| (id, own.contains_key(sandbox))).collect();
        let mut strays = self.strays.lock().unwrap_or_else(PoisonError::into_inner);
        strays.retain(|id, _| found.contains_key(id));
        let now = Instant::now();
        let expired = found.into_iter().filter(|(id, is_replaced)| {
            let since = *strays.entry((*id).clone()).or_insert(now);
            now - since >= if *is_replaced { replaced.min(grace) } else { grace }
        });
        expired.map(|(id, _)| id.clone()).collect()
    }

    /// Reports once that an object is no more, unless this server removed it or has started another instance of it.
    pub fn report_death(&self, sandbox: &SandboxId, seen: &RemoteObject<A>) {
        let Some(slot) = self.existing(sandbox) else { return };
        let ended = {
            let mut state = slot.lock();
            state.object.take_if(|object| object.is_same(seen))
        };
        if let Some(object) = ended.filter(RemoteObject::is_live) {
            // Without a listener the notice is dropped.
            let _ = self.notices.send(Notice {
                sandbox: sandbox.clone(),
                instance: object.instance,
                what: NoticeKind::Died,
            });
        }
    }

    /// Reports once that the processes of an object ended without a call of this server; its files are kept.
    pub fn report_stop(&self, sandbox: &SandboxId, seen: &RemoteObject<A>) {
        let Some(slot) = self.existing(sandbox) else { return };
        let ended = {
            let mut state = slot.lock();
            let running = state
                .object
                .as_mut()
                .filter(|object| object.is_same(seen) && object.state != ObjectState::Halted);
            running.map(|object| {
                let was_live = object.is_live();
                object.state = ObjectState::Halted;
                object.access = None;
                (object.instance.clone(), was_live)
            })
        };
        if let Some((instance, true)) = ended {
            let _ = self.notices.send(Notice { sandbox: sandbox.clone(), instance, what: NoticeKind::Died });
        }
    }

    /// Deaths of instances.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Waits until all changes are done.
    ///
    /// # Errors
    /// [`ProviderError::Late`].
    pub async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "changes of sandboxes".into(), after: deadline };
        tokio::time::timeout(deadline, self.changes.wait()).await.map_err(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);
    const REPLACED: Duration = Duration::from_secs(10);

    fn sandbox(seed: u8) -> SandboxId {
        SandboxId::from_entropy([seed; 20])
    }

    fn object(id: &str, seed: u8) -> RemoteObject<()> {
        RemoteObject {
            id: id.to_owned(),
            instance: InstanceId::from_entropy([seed; 20]),
            state: ObjectState::Running,
            access: None,
            kept_at: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stray_is_removed_after_the_grace_time_and_an_own_object_never() {
        let table = Arc::new(RemoteTable::<()>::default());
        table.of(&sandbox(1)).set(object("own", 1));
        let listed = [
            ("own".to_owned(), sandbox(1)),
            ("twice".to_owned(), sandbox(1)),
            ("lost".to_owned(), sandbox(2)),
        ];
        let expired = |listed: &[(String, SandboxId)]| {
            let mut expired = table.expired_strays(listed, REPLACED, GRACE);
            expired.sort();
            expired
        };
        tokio::time::advance(GRACE * 2).await;
        assert!(expired(&listed).is_empty(), "nothing is known before the adoption");
        table.set_adopted(&[sandbox(1)].into());
        assert!(expired(&listed).is_empty(), "they are seen for the first time");
        tokio::time::advance(REPLACED).await;
        assert_eq!(expired(&listed), ["twice"], "its sandbox has another one");
        tokio::time::advance(GRACE).await;
        assert_eq!(expired(&listed), ["lost", "twice"]);
        assert!(expired(&listed[..1]).is_empty());
        assert!(expired(&listed).is_empty(), "the time begins again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_of_a_sandbox_that_changes_is_no_stray() {
        let table = Arc::new(RemoteTable::<()>::default());
        table.set_adopted(&HashSet::new());
        let listed = [("new".to_owned(), sandbox(3))];
        let (begun, wait) = tokio::sync::oneshot::channel::<()>();
        let own = Arc::clone(&table);
        let change = tokio::spawn(async move {
            let work = move |slot: Arc<RemoteSlot<()>>| async move {
                let _ = wait.await;
                slot.set(object("new", 3));
                Ok(())
            };
            own.change(&sandbox(3), work).await
        });
        while !table.existing(&sandbox(3)).is_some_and(|slot| slot.is_changing()) {
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            assert!(table.expired_strays(&listed, Duration::ZERO, Duration::ZERO).is_empty());
        }
        begun.send(()).unwrap();
        change.await.unwrap().unwrap();
        assert!(
            table.expired_strays(&listed, Duration::ZERO, Duration::ZERO).is_empty(),
            "it is the sandbox's own now"
        );
    }

    #[tokio::test]
    async fn a_death_is_reported_once_and_only_of_the_object_that_died() {
        let table = RemoteTable::<()>::default();
        let mut notices = table.notices();
        table.of(&sandbox(4)).set(object("one", 4));
        table.report_death(&sandbox(4), &object("other", 4));
        table.report_death(&sandbox(4), &object("one", 5));
        assert!(notices.try_recv().is_err(), "another object, or an earlier instance of it");
        for _ in 0..2 {
            table.report_death(&sandbox(4), &object("one", 4));
        }
        assert_eq!(notices.try_recv().unwrap().what, NoticeKind::Died);
        assert!(notices.try_recv().is_err());
        let target = Target { sandbox: sandbox(4), instance: None };
        assert!(matches!(table.live(&target), Err(ProviderError::Gone { .. })));
    }
}
