//! The adoption and the watch, with a vendor that is a table in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, SandboxId, Storage};
use atoll_provider::{AdoptionOutcome, KnownSandbox, NoticeKind, ProviderError, Target};

use super::*;

const GRACE: Duration = Duration::from_secs(60);
const LIST_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);

#[derive(Default)]
struct World {
    /// By id: the seed of the sandbox and of the instance, and the state.
    objects: BTreeMap<&'static str, (u8, VendorState)>,
    /// Objects whose calls never end.
    hanging: BTreeSet<&'static str>,
    /// Objects whose calls fail.
    failing: BTreeSet<&'static str>,
    kept_alive: BTreeMap<String, u32>,
    /// Objects that lists do not contain, although they are there.
    unlisted: BTreeSet<&'static str>,
    revived: Vec<String>,
    rested: Vec<String>,
    ended: Vec<String>,
    removed: Vec<String>,
}

struct TestVendor {
    table: Arc<RemoteTable<()>>,
    number: WatchNumber,
    world: Mutex<World>,
}

fn sandbox(seed: u8) -> SandboxId {
    SandboxId::from_entropy([seed; 20])
}

fn instance(seed: u8) -> InstanceId {
    InstanceId::from_entropy([seed; 20])
}

fn known(seed: u8, has_instance: bool, paused: bool) -> KnownSandbox {
    KnownSandbox {
        sandbox: sandbox(seed),
        instance: has_instance.then(|| (instance(seed), serde_json::Value::Null)),
        storage: Storage::Disk,
        limits: Limits::default(),
        network: Arc::new(Egress::open()),
        paused,
    }
}

impl TestVendor {
    fn with(objects: &[(&'static str, u8, VendorState)]) -> Arc<Self> {
        let objects = objects.iter().map(|(id, seed, state)| (*id, (*seed, *state))).collect();
        let world = Mutex::new(World { objects, ..World::default() });
        Arc::new(Self { table: Arc::default(), number: WatchNumber::default(), world })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn state(&self, seed: u8) -> Option<ObjectState> {
        self.table.existing(&sandbox(seed)).and_then(|slot| slot.object()).map(|object| object.state)
    }

    async fn answer(&self, id: &str) -> Result<(), ProviderError> {
        if self.world().hanging.contains(id) {
            std::future::pending::<()>().await;
        }
        let failed = ProviderError::Transient { what: "calling".to_owned(), why: "a test".to_owned() };
        if self.world().failing.contains(id) { Err(failed) } else { Ok(()) }
    }

    fn set(&self, id: &str, state: VendorState) {
        if let Some((_, now)) = self.world().objects.get_mut(id) {
            *now = state;
        }
    }
}

#[async_trait]
impl Vendor for TestVendor {
    type Access = ();

    fn name(&self) -> &'static str {
        "test"
    }

    fn table(&self) -> &Arc<RemoteTable<()>> {
        &self.table
    }

    fn watch_number(&self) -> &WatchNumber {
        &self.number
    }

    fn watch_timing(&self) -> WatchTiming {
        WatchTiming { list_every: LIST_EVERY, keep_alive_every: Some(KEEP_ALIVE_EVERY), grace: GRACE }
    }

    async fn list(&self) -> Result<Vec<OwnedObject<VendorState>>, ProviderError> {
        let owned = |(id, (seed, state)): (&&str, &(u8, VendorState))| OwnedObject {
            id: (*id).to_owned(),
            sandbox: sandbox(*seed),
            instance: instance(*seed),
            state: *state,
            started_at: String::new(),
        };
        let world = self.world();
        let listed = world.objects.iter().filter(|(id, _)| !world.unlisted.contains(*id));
        Ok(listed.map(owned).collect())
    }

    async fn look(&self, _: &SandboxId, id: &str) -> Result<Option<VendorState>, ProviderError> {
        self.answer(id).await?;
        Ok(self.world().objects.get(id).map(|(_, state)| *state))
    }

    async fn keep_alive(&self, id: &str) -> Result<Option<()>, CallError> {
        *self.world().kept_alive.entry(id.to_owned()).or_default() += 1;
        Ok(Some(()))
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.answer(id).await?;
        self.world().objects.remove(id);
        self.world().removed.push(id.to_owned());
        Ok(())
    }

    async fn revive(&self, target: &Target, slot: &RemoteSlot<()>) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        self.answer(&object.id).await?;
        self.set(&object.id, VendorState::Running);
        self.world().revived.push(object.id.clone());
        slot.update(&object.instance, |object| object.access = Some(Arc::new(())));
        Ok(())
    }

    async fn rest(&self, target: &Target, _: &RemoteSlot<()>) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        self.set(&object.id, VendorState::Paused);
        self.world().rested.push(object.id);
        Ok(())
    }

    async fn end(
        &self,
        _: &SandboxId,
        slot: &RemoteSlot<()>,
        object: &RemoteObject<()>,
    ) -> Result<(), ProviderError> {
        self.answer(&object.id).await?;
        self.set(&object.id, VendorState::Stopped);
        self.world().ended.push(object.id.clone());
        slot.set(RemoteObject { state: ObjectState::Halted, ..object.clone() });
        Ok(())
    }
}

async fn fates(vendor: &Arc<TestVendor>, known: Vec<KnownSandbox>) -> Vec<AdoptionOutcome> {
    adopt(vendor, known).await.unwrap().into_iter().map(|adopted| adopted.fate).collect()
}

#[tokio::test(start_paused = true)]
async fn an_adoption_says_what_became_of_each_object() {
    use AdoptionOutcome::{Alive, Frozen, Gone};
    let vendor = TestVendor::with(&[
        ("runs", 1, VendorState::Running),
        ("paused", 2, VendorState::Paused),
        ("was-resumed", 3, VendorState::Paused),
        ("stopping", 4, VendorState::Stopping),
        ("stopped", 5, VendorState::Stopped),
        ("unwanted", 6, VendorState::Running),
    ]);
    let wanted = vec![
        known(1, true, false),
        known(2, true, true),
        known(3, true, false),
        known(4, true, false),
        known(5, true, false),
        known(6, false, false),
        known(7, true, false),
    ];
    assert_eq!(fates(&vendor, wanted).await, [Alive, Frozen, Alive, Gone, Gone, Gone]);
    let states: Vec<_> = (1..=7).map(|seed| vendor.state(seed)).collect();
    use ObjectState::{Halted, Paused, Running};
    let halted = Some(Halted);
    assert_eq!(states, [Some(Running), Some(Paused), Some(Running), halted, halted, halted, None]);
    assert_eq!(vendor.world().revived, ["was-resumed"]);
    assert_eq!(vendor.world().ended, ["stopping", "unwanted"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_hangs_or_fails_keeps_no_other_waiting_and_is_tried_again() {
    let vendor = TestVendor::with(&[
        ("hangs", 1, VendorState::Paused),
        ("fails", 2, VendorState::Running),
        ("runs", 3, VendorState::Running),
    ]);
    vendor.world().hanging.insert("hangs");
    vendor.world().failing.insert("fails");
    let watch = VendorWatch::default();
    watch.start(&vendor);
    let begun = tokio::time::Instant::now();
    let wanted = vec![known(1, true, false), known(2, false, false), known(3, true, false)];
    let alive = [AdoptionOutcome::Alive, AdoptionOutcome::Alive];
    assert_eq!(fates(&vendor, wanted).await, alive);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(vendor.state(2), Some(ObjectState::Ending));
    let unwanted = Target { sandbox: sandbox(2), instance: None };
    assert!(vendor.table.live(&unwanted).is_err(), "an object that has to end is no instance");
    vendor.world().hanging.clear();
    vendor.world().failing.clear();
    tokio::time::sleep(LIST_EVERY * 4).await;
    assert_eq!(vendor.world().revived, ["hangs"]);
    assert_eq!(
        (vendor.world().ended.clone(), vendor.state(2)),
        (vec!["fails".to_owned()], Some(ObjectState::Halted))
    );
}

#[tokio::test(start_paused = true)]
async fn strays_are_left_alone_for_the_grace_time_and_lifetimes_wait_for_none() {
    let vendor = TestVendor::with(&[
        ("own", 1, VendorState::Running),
        ("a-stray", 2, VendorState::Running),
        ("another", 3, VendorState::Running),
        ("twice", 1, VendorState::Running),
    ]);
    vendor.world().hanging.insert("a-stray");
    let watch = VendorWatch::default();
    watch.start(&vendor);
    // The oldest object is that of the sandbox; of two of one age the one whose id is first.
    assert_eq!(fates(&vendor, vec![known(1, true, false)]).await, [AdoptionOutcome::Alive]);
    tokio::time::sleep(GRACE - LIST_EVERY).await;
    assert_eq!(vendor.world().removed, ["twice"], "an older object of a sandbox is removed at the next list");
    let kept_before = vendor.world().kept_alive["own"];
    tokio::time::sleep(GRACE * 3).await;
    assert_eq!(vendor.world().removed, ["twice", "another"], "one of them hangs");
    let kept = vendor.world().kept_alive["own"] - kept_before;
    assert!(kept >= 8, "a lifetime is set again on time while a removal hangs: {kept}");
    vendor.world().hanging.clear();
    tokio::time::sleep(LIST_EVERY * 4).await;
    assert_eq!(vendor.world().removed, ["twice", "another", "a-stray"]);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_done_again_removes_what_it_left() {
    let vendor = TestVendor::with(&[("left", 1, VendorState::Running), ("other", 2, VendorState::Running)]);
    fates(&vendor, Vec::new()).await;
    remove_leftovers(&*vendor, &sandbox(1)).await;
    assert_eq!(vendor.world().removed, ["left"]);
    remove_leftovers(&*vendor, &sandbox(1)).await;
    assert_eq!(vendor.world().removed, ["left"], "each is removed once");
}

#[tokio::test(start_paused = true)]
async fn what_happens_at_the_vendor_is_reported_once() {
    let vendor = TestVendor::with(&[("stops", 1, VendorState::Running), ("goes", 2, VendorState::Running)]);
    let watch = VendorWatch::default();
    watch.start(&vendor);
    let mut notices = vendor.table.notices();
    fates(&vendor, vec![known(1, true, false), known(2, true, false)]).await;
    vendor.set("stops", VendorState::Stopped);
    vendor.world().objects.remove("goes");
    tokio::time::sleep(LIST_EVERY * 3).await;
    let mut died = BTreeSet::new();
    while let Ok(notice) = notices.try_recv() {
        assert_eq!(notice.what, NoticeKind::Died);
        assert!(died.insert(notice.sandbox), "it is reported once");
    }
    assert_eq!(died, [sandbox(1), sandbox(2)].into());
    assert_eq!((vendor.state(1), vendor.state(2)), (Some(ObjectState::Halted), None));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_a_list_lacks_is_looked_at_and_one_that_comes_back_is_kept() {
    let vendor =
        TestVendor::with(&[("changes", 1, VendorState::Running), ("stopped", 2, VendorState::Stopped)]);
    vendor.world().unlisted.extend(["changes", "stopped"]);
    let watch = VendorWatch::default();
    watch.start(&vendor);
    let running = KnownSandbox {
        instance: Some((instance(1), serde_json::json!({ "object": "changes" }))),
        ..known(1, false, false)
    };
    assert_eq!(fates(&vendor, vec![running, known(2, false, false)]).await, [AdoptionOutcome::Alive]);
    assert_eq!((vendor.state(1), vendor.state(2)), (Some(ObjectState::Running), None));
    // Nothing that belongs to a sandbox is removed because a vendor did not show it.
    vendor.world().unlisted.clear();
    tokio::time::sleep(GRACE * 3).await;
    assert_eq!(vendor.world().removed, [""; 0]);
    assert_eq!((vendor.state(1), vendor.state(2)), (Some(ObjectState::Running), Some(ObjectState::Halted)));
}

#[tokio::test(start_paused = true)]
async fn what_runs_although_it_is_paused_or_stopped_here_is_put_to_rest() {
    let vendor =
        TestVendor::with(&[("paused", 1, VendorState::Paused), ("stopped", 2, VendorState::Stopped)]);
    let watch = VendorWatch::default();
    watch.start(&vendor);
    fates(&vendor, vec![known(1, true, true), known(2, false, false)]).await;
    for id in ["paused", "stopped"] {
        vendor.set(id, VendorState::Running);
    }
    tokio::time::sleep(LIST_EVERY * 3).await;
    assert_eq!(vendor.world().rested, ["paused"]);
    assert_eq!(vendor.world().ended, ["stopped"]);
    assert_eq!((vendor.state(1), vendor.state(2)), (Some(ObjectState::Paused), Some(ObjectState::Halted)));
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_old_settings_reports_and_removes_nothing() {
    let vendor = TestVendor::with(&[("own", 1, VendorState::Running)]);
    let watch = VendorWatch::default();
    watch.start(&vendor);
    fates(&vendor, vec![known(1, true, false)]).await;
    vendor.table.take_watch();
    vendor.world().objects.clear();
    tokio::time::sleep(LIST_EVERY * 3).await;
    assert_eq!(vendor.state(1), Some(ObjectState::Running));
    let (_, object) = vendor.table.live(&Target { sandbox: sandbox(1), instance: None }).unwrap();
    assert!(!still_runs(&*vendor, &sandbox(1), &object).await);
    assert_eq!(vendor.state(1), Some(ObjectState::Running));
}
