//! Creates that wait for a place on a full server, over the fake provider. The clock stands still unless a test moves it:
//! what starts here was woken, not found by a timer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests own their tasks")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::world::{Options, World, breathe};
use atoll_model::policy::queue::QueueLimits;
use atoll_model::{
    Code, CreateSandbox, EventKind, Lease, LimitsAsk, MemoryLocation, Phase, Principal, QueueAsk, QueuePlace,
    Quota, Reason, SandboxId, Stage, UpdateSandbox,
};
use atoll_service::{Created, FailPoint, Pause};
use tokio_util::sync::CancellationToken;

fn places(live_max: u64) -> Options {
    Options { config: Some(Box::new(move |config| config.live_max = live_max)), ..Default::default() }
}

fn queued() -> CreateSandbox {
    CreateSandbox { queue: Some(QueueAsk::default()), ..CreateSandbox::default() }
}

async fn enqueue(world: &World, who: &Principal, spec: CreateSandbox) -> Lease {
    let (lease, created) = world.service.sandboxes().create(who, spec, false).await.unwrap();
    assert_eq!(created, Created::New);
    lease
}

async fn place(world: &World, id: &SandboxId) -> Option<(u32, u32)> {
    let lease = world.get(id).await;
    lease.queue.and_then(|wait| wait.place).map(|QueuePlace { position, ahead }| (position, ahead))
}

async fn delete(world: &World, id: &SandboxId) {
    world.service.sandboxes().delete(&world.admin, id.as_str(), true).await.unwrap();
}

/// Waits until something is so, in real time.
async fn until(world: &World, what: &str, is: impl AsyncFn() -> bool) {
    for _ in 0..20_000 {
        if is().await {
            return;
        }
        breathe().await;
    }
    panic!("not in time: {what}; {} creates wait", world.service.sandboxes().queued_creates());
}

#[tokio::test(start_paused = true)]
async fn a_full_server_queues_creates_and_starts_them_in_order() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    assert_eq!(
        world.try_create(CreateSandbox::default()).await.unwrap_err().code,
        Code::NoCapacity,
        "at once"
    );
    let spec = CreateSandbox { timeout_s: Some(60), ..queued() };
    let first = enqueue(&world, &world.admin, spec).await;
    assert_eq!((first.phase, first.stage, &first.instance), (Phase::Creating, Stage::Queued, &None));
    assert_eq!((first.timeout_at.clone(), first.holds_compute()), (None, false));
    let second = enqueue(&world, &world.admin, queued()).await;
    assert_eq!(place(&world, &first.id).await, Some((1, 0)));
    assert_eq!(place(&world, &second.id).await, Some((2, 1)));
    delete(&world, &running.id).await;
    let first = world.until(&first.id, Phase::Running).await;
    assert!(first.queue.is_none() && first.timeout_at.is_some(), "its lifetime begins with the boot");
    until(&world, "the second one moves up", async || place(&world, &second.id).await == Some((1, 0))).await;
    let refused = world.try_create(CreateSandbox::default()).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    delete(&world, &first.id).await;
    world.until(&second.id, Phase::Running).await;
    assert_eq!(world.service.sandboxes().queued_creates(), 0);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn with_free_places_a_queued_create_runs_like_any_other() {
    let world = World::with(places(2)).await;
    let lease = world.try_create(queued()).await.unwrap();
    assert_eq!((lease.phase, lease.stage), (Phase::Running, Stage::Booting));
    world.try_create(CreateSandbox::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_say_where_a_create_is() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(enqueue(&world, &world.admin, queued()).await.id);
    }
    let last = waiting.last().unwrap().clone();
    let told = async || {
        let events = world.service.events(&world.admin, Some(last.as_str()), Some(0), 100).await.unwrap();
        let aheads = events.into_iter().filter_map(|event| match event.what {
            EventKind::Queued { place } => Some(place.ahead),
            _ => None,
        });
        aheads.collect::<Vec<_>>()
    };
    until(&world, "the first event", async || told().await == [4]).await;
    delete(&world, &running.id).await;
    for (ahead, id) in waiting[..4].iter().enumerate() {
        world.until(id, Phase::Running).await;
        let ahead = u32::try_from(3 - ahead).unwrap();
        until(&world, "it moves up", async || place(&world, &last).await.is_some_and(|at| at.1 == ahead))
            .await;
        world.quiet().await;
        delete(&world, id).await;
    }
    world.until(&last, Phase::Running).await;
    assert_eq!(told().await, [4, 2, 1, 0], "one each time that half as many are ahead");
}

#[tokio::test(start_paused = true)]
async fn tenants_take_turns() {
    let world = World::with(places(1)).await;
    let (many, few) =
        (world.tenant("many", Quota::default()).await, world.tenant("few", Quota::default()).await);
    let mut running = world.create().await.id;
    let mut names: HashMap<SandboxId, String> = HashMap::new();
    for (who, name) in [(&many, "m1"), (&many, "m2"), (&many, "m3"), (&few, "f1"), (&few, "f2")] {
        let spec = CreateSandbox { name: Some(name.to_owned()), ..queued() };
        names.insert(enqueue(&world, who, spec).await.id, name.to_owned());
    }
    let mut order = Vec::new();
    while !names.is_empty() {
        delete(&world, &running).await;
        until(&world, "the next one runs", async || {
            world.fake.holds().iter().any(|(id, instance)| names.contains_key(id) && instance.is_some())
        })
        .await;
        running = world.fake.holds().into_iter().map(|(id, _)| id).find(|id| names.contains_key(id)).unwrap();
        world.until(&running, Phase::Running).await;
        order.push(names.remove(&running).unwrap());
    }
    assert_eq!(order, ["m1", "f1", "m2", "f2", "m3"]);
}

#[tokio::test(start_paused = true)]
async fn a_queued_create_can_be_cancelled_and_its_caller_is_told() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    let service = world.service.clone();
    let (who, spec) = (world.admin.clone(), CreateSandbox { name: Some("box".to_owned()), ..queued() });
    let caller = tokio::spawn(async move { service.sandboxes().create(&who, spec, true).await });
    until(&world, "it is queued", async || world.service.sandboxes().queued_creates() == 1).await;
    let second = enqueue(&world, &world.admin, queued()).await;
    until(&world, "it has a name", async || world.service.sandboxes().get(&world.admin, "box").await.is_ok())
        .await;
    let cancelled = world.service.sandboxes().get(&world.admin, "box").await.unwrap();
    delete(&world, &cancelled.id).await;
    assert_eq!(caller.await.unwrap().unwrap_err().code, Code::PhaseConflict);
    assert_eq!(world.get(&cancelled.id).await.queue, None);
    assert_eq!(place(&world, &second.id).await, Some((1, 0)));
    delete(&world, &running.id).await;
    world.until(&second.id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_ends_with_an_error_that_says_so() {
    let world = World::with(places(1)).await;
    world.create().await;
    let wait = |timeout_s| CreateSandbox { queue: Some(QueueAsk { timeout_s }), ..CreateSandbox::default() };
    let service = world.service.clone();
    let (who, spec) = (world.admin.clone(), CreateSandbox { name: Some("box".to_owned()), ..wait(Some(5)) });
    let caller = tokio::spawn(async move { service.sandboxes().create(&who, spec, true).await });
    until(&world, "it is queued", async || world.service.sandboxes().queued_creates() == 1).await;
    let patient = enqueue(&world, &world.admin, wait(Some(3_600))).await;
    world.advance(Duration::from_secs(6)).await;
    let error = caller.await.unwrap().unwrap_err();
    assert_eq!((error.code, error.retry_after_s.is_some()), (Code::QueueTimedOut, true));
    let gone = world.store.list(atoll_store::LeaseQuery {
        phases: vec![Phase::Deleted],
        limit: 10,
        ..Default::default()
    });
    until(&world, "it is deleted", async || world.store.live().await.unwrap().len() == 2).await;
    let gone = gone.await.unwrap().items.remove(0);
    assert_eq!(gone.reason, Reason::QueueTimedOut);
    assert!(gone.queue.unwrap().timed_out_at.is_some());
    assert_eq!(place(&world, &patient.id).await, Some((1, 0)), "its name and its position are free");
    enqueue(&world, &world.admin, CreateSandbox { name: Some("box".to_owned()), ..queued() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_quota_is_waited_for_and_blocks_no_other_tenant() {
    let world = World::with(places(10)).await;
    let small = world.tenant("small", Quota { sandboxes: Some(1), ..Default::default() }).await;
    let other = world.tenant("other", Quota::default()).await;
    let first = world.service.sandboxes().create(&small, queued(), true).await.unwrap().0;
    let second = enqueue(&world, &small, queued()).await;
    let third = enqueue(&world, &small, queued()).await;
    world.service.sandboxes().create(&other, queued(), true).await.unwrap();
    world.service.sandboxes().create(&other, CreateSandbox::default(), true).await.unwrap();
    assert_eq!(world.get(&second.id).await.phase, Phase::Creating);
    let usage = world.store.usage(&small.tenant).await.unwrap();
    assert_eq!(usage.sandboxes, 1, "queued ones count as nothing");
    delete(&world, &first.id).await;
    world.until(&second.id, Phase::Running).await;
    assert_eq!(world.get(&third.id).await.phase, Phase::Creating);
    let more = Quota { sandboxes: Some(2), ..Default::default() };
    world.service.access().set_quota(&world.admin, "small", more).await.unwrap();
    world.until(&third.id, Phase::Running).await;
    let huge =
        CreateSandbox { limits: LimitsAsk { memory_mib: Some(900), ..LimitsAsk::default() }, ..queued() };
    let quota = Quota { memory_mib: Some(800), ..Default::default() };
    world.service.access().set_quota(&world.admin, "small", quota).await.unwrap();
    let refused = world.service.sandboxes().create(&small, huge, false).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded, "it would wait in vain");
}

#[tokio::test(start_paused = true)]
async fn everything_that_frees_a_place_wakes_the_queue() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    let stopped = enqueue(&world, &world.admin, queued()).await;
    world.service.sandboxes().stop(&world.admin, running.id.as_str(), true).await.unwrap();
    world.until(&stopped.id, Phase::Running).await;

    let paused = enqueue(&world, &world.admin, queued()).await;
    let disk = Pause { memory: Some(MemoryLocation::Disk) };
    world.service.sandboxes().pause(&world.admin, stopped.id.as_str(), disk, true).await.unwrap();
    world.until(&paused.id, Phase::Running).await;

    let died = enqueue(&world, &world.admin, queued()).await;
    world.fake.kill(&paused.id, true);
    world.until(&died.id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn memory_that_a_resize_gives_back_is_a_place() {
    let options = Options { config: Some(Box::new(|config| config.overcommit = 1.0)), ..Default::default() };
    let world = World::with(options).await;
    world.fake.set_node(|node| {
        node.memory_total_mib = 1_024;
        node.memory_free_mib = 100_000;
    });
    let large = CreateSandbox {
        limits: LimitsAsk { memory_mib: Some(1_000), ..LimitsAsk::default() },
        ..CreateSandbox::default()
    };
    let running = world.try_create(large.clone()).await.unwrap();
    let impossible = LimitsAsk { memory_mib: Some(2_000), ..LimitsAsk::default() };
    let refused = world.try_create(CreateSandbox { limits: impossible, ..queued() }).await.unwrap_err();
    assert_ne!(refused.code, Code::QueueTimedOut, "{refused}");
    let small = LimitsAsk { memory_mib: Some(512), ..LimitsAsk::default() };
    let waiting = enqueue(&world, &world.admin, CreateSandbox { limits: small, ..queued() }).await;
    world.quiet().await;
    assert_eq!(world.get(&waiting.id).await.phase, Phase::Creating);
    let change = UpdateSandbox { limits: small, ..UpdateSandbox::default() };
    world.service.sandboxes().update(&world.admin, running.id.as_str(), change).await.unwrap();
    world.until(&waiting.id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_create_that_is_too_large_holds_up_other_tenants_for_a_while_only() {
    let options = Options { config: Some(Box::new(|config| config.overcommit = 1.0)), ..Default::default() };
    let world = World::with(options).await;
    world.fake.set_node(|node| {
        node.memory_total_mib = 1_024;
        node.memory_free_mib = 100_000;
    });
    let of = |memory_mib| LimitsAsk { memory_mib: Some(memory_mib), ..LimitsAsk::default() };
    world.try_create(CreateSandbox { limits: of(200), ..CreateSandbox::default() }).await.unwrap();
    let large = enqueue(&world, &world.admin, CreateSandbox { limits: of(1_000), ..queued() }).await;
    let other = world.tenant("other", Quota::default()).await;
    let small = enqueue(&world, &other, CreateSandbox { limits: of(64), ..queued() }).await;
    let direct = || CreateSandbox { limits: of(64), ..CreateSandbox::default() };
    world.quiet().await;
    assert_eq!(world.get(&small.id).await.phase, Phase::Creating, "it is not overtaken at once");
    let refused = world.service.sandboxes().create(&other, direct(), true).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    world.advance(Duration::from_secs(35)).await;
    world.until(&small.id, Phase::Running).await;
    world.service.sandboxes().create(&other, direct(), true).await.expect("a place is free");
    assert_eq!(world.get(&large.id).await.phase, Phase::Creating);
}

#[tokio::test(start_paused = true)]
async fn capacity_that_nobody_announces_is_found_within_a_second() {
    let world = World::new().await;
    world.fake.set_node(|node| node.memory_free_mib = 0);
    let waiting = enqueue(&world, &world.admin, queued()).await;
    world.quiet().await;
    assert_eq!(world.get(&waiting.id).await.phase, Phase::Creating);
    world.fake.set_node(|node| node.memory_free_mib = 20_000);
    world.advance(Duration::from_millis(1_100)).await;
    world.until(&waiting.id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_limited_per_tenant_and_in_all() {
    let limits = QueueLimits { total: 3, per_tenant: 2 };
    let options = Options {
        config: Some(Box::new(move |config| (config.live_max, config.queue_limits) = (1, limits))),
        ..Default::default()
    };
    let world = World::with(options).await;
    world.create().await;
    let (other, third) = (world.stranger().await, world.tenant("third", Quota::default()).await);
    let first = enqueue(&world, &world.admin, queued()).await;
    enqueue(&world, &world.admin, queued()).await;
    let refused = world.service.sandboxes().create(&world.admin, queued(), false).await.unwrap_err();
    assert_eq!((refused.code, refused.message.contains("tenant")), (Code::NoCapacity, true));
    enqueue(&world, &other, queued()).await;
    let refused = world.service.sandboxes().create(&third, queued(), false).await.unwrap_err();
    assert_eq!((refused.code, refused.message.contains("node")), (Code::NoCapacity, true));
    delete(&world, &first.id).await;
    enqueue(&world, &world.admin, queued()).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_create_finds_its_queued_sandbox() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    let keyed = CreateSandbox { idempotency_key: Some("k".to_owned()), ..queued() };
    let first = enqueue(&world, &world.admin, keyed.clone()).await;
    let (again, created) = world.service.sandboxes().create(&world.admin, keyed, false).await.unwrap();
    assert_eq!((again.id, created), (first.id.clone(), Created::Replayed));
    assert_eq!(world.service.sandboxes().queued_creates(), 1);
    delete(&world, &running.id).await;
    world.until(&first.id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_create_pulls_its_image_once_it_has_its_place() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    let spec = CreateSandbox { image: Some("python:3.12".to_owned()), ..queued() };
    let lease = enqueue(&world, &world.admin, spec).await;
    world.quiet().await;
    assert_eq!(world.fetches.lock().unwrap().len(), 0);
    assert_eq!(place(&world, &lease.id).await, Some((1, 0)));
    let world = reopen(world, 1).await;
    assert_eq!(place(&world, &lease.id).await, Some((1, 0)));
    delete(&world, &running.id).await;
    let lease = world.until(&lease.id, Phase::Running).await;
    assert_eq!((lease.template.as_str(), world.fetches.lock().unwrap().len()), ("python:3.12", 1));
}

/// Ends the server as a crash would and starts the next one with so many places.
async fn reopen(mut world: World, live_max: u64) -> World {
    let dir = world.crash().await;
    World::open(dir, world.fake.clone(), world.clock.clone(), places(live_max)).await
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_queue_and_its_order() {
    let world = World::with(places(1)).await;
    let running = world.create().await;
    let other = world.stranger().await;
    let (a, b) =
        (enqueue(&world, &world.admin, queued()).await, enqueue(&world, &world.admin, queued()).await);
    let c = enqueue(&world, &other, queued()).await;
    let late = CreateSandbox { queue: Some(QueueAsk { timeout_s: Some(30) }), ..CreateSandbox::default() };
    let late = enqueue(&world, &world.admin, late).await;
    let world = reopen(world, 1).await;
    for (id, at) in [(&a.id, (1, 0)), (&c.id, (1, 1)), (&b.id, (2, 2)), (&late.id, (3, 3))] {
        assert_eq!(place(&world, id).await, Some(at));
    }
    world.advance(Duration::from_secs(31)).await;
    world.until(&late.id, Phase::Deleted).await;
    for (before, id) in [(&running.id, &a.id), (&a.id, &c.id), (&c.id, &b.id)] {
        delete(&world, before).await;
        world.until(id, Phase::Running).await;
    }
    world.assert_no_leaks().await;
}

/// A server that stops for good when a place is reached for the nth time.
fn stops_at(wanted: &'static str, nth: usize) -> (FailPoint, CancellationToken) {
    let (reached, stopped) = (Arc::new(Mutex::new(0_usize)), CancellationToken::new());
    let told = stopped.clone();
    let failpoint = FailPoint::new(move |place| {
        let (reached, told) = (Arc::clone(&reached), told.clone());
        Box::pin(async move {
            let is_dead = {
                let mut reached = reached.lock().unwrap();
                *reached += usize::from(place == wanted);
                *reached >= nth
            };
            if is_dead {
                told.cancel();
                std::future::pending::<()>().await;
            }
        })
    });
    (failpoint, stopped)
}

#[tokio::test(start_paused = true)]
async fn whenever_the_server_dies_every_queued_create_gets_its_place_once() {
    for place in
        ["queue.turn", "queue.reserved", "advance.before", "advance.after", "queue.placed", "effect.before"]
    {
        for nth in [1, 3] {
            let (failpoint, stopped) = stops_at(place, nth);
            let options = Options { failpoint: Some(failpoint), ..places(3) };
            let world = World::with(options).await;
            let mut ids = BTreeSet::new();
            for _ in 0..6 {
                let create = world.service.sandboxes().create(&world.admin, queued(), false);
                tokio::select! {
                    made = create => ids.insert(made.unwrap().0.id),
                    () = stopped.cancelled() => break,
                };
            }
            // In real time: the store works on a thread of its own, for which a paused clock does not wait.
            until(&world, "the server stops", async || stopped.is_cancelled()).await;
            let world = reopen(world, 6).await;
            until(&world, place, async || {
                let live = world.store.live().await.unwrap();
                live.iter().all(|(lease, _)| lease.phase == Phase::Running)
            })
            .await;
            let live: BTreeSet<_> =
                world.store.live().await.unwrap().into_iter().map(|(lease, _)| lease.id).collect();
            assert!(ids.is_subset(&live), "{place} {nth}: an acknowledged create is lost");
            for id in &live {
                // The row is written a moment before the driver shows it.
                world.until(id, Phase::Running).await;
            }
            world.assert_no_leaks().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_creates_pass_through_fifty_places() {
    let world = World::with(places(50)).await;
    let mut tenants = Vec::new();
    for name in ["one", "two", "three", "four", "five"] {
        tenants.push(world.tenant(name, Quota::default()).await);
    }
    // The first tenant asks for half of all, and first.
    let shares = [500, 200, 150, 100, 50];
    let mut waiting: BTreeMap<SandboxId, usize> = BTreeMap::new();
    for (of, (who, share)) in tenants.iter().zip(shares).enumerate() {
        let creates = (0..share).map(|_| world.service.sandboxes().create(who, queued(), false));
        for made in futures::future::join_all(creates).await {
            waiting.insert(made.unwrap().0.id, of);
        }
    }
    assert_eq!(waiting.len(), 1_000);
    // Half way the server dies.
    let world = run_until(world, &mut waiting, 500).await;
    let world = reopen(world, 50).await;
    let world = run_until(world, &mut waiting, 0).await;
    assert_eq!(world.service.sandboxes().queued_creates(), 0);
    let failed =
        world.store.live().await.unwrap().into_iter().filter(|(lease, _)| lease.phase == Phase::Failed);
    assert_eq!(failed.count(), 0);
    world.assert_no_leaks().await;
}

/// Deletes every sandbox that runs, until so many are left that never ran. No more than fifty run at once.
async fn run_until(world: World, waiting: &mut BTreeMap<SandboxId, usize>, left: usize) -> World {
    for _ in 0..20_000 {
        let holds = world.fake.holds();
        assert!(
            holds.iter().filter(|(_, instance)| instance.is_some()).count() <= 50 + 50,
            "deletes are under way"
        );
        let running: Vec<_> =
            holds.into_iter().filter(|(_, instance)| instance.is_some()).map(|(id, _)| id).collect();
        let mut ended = Vec::new();
        for id in running {
            if world.get(&id).await.phase == Phase::Running {
                waiting.remove(&id);
                ended.push(id);
            }
        }
        let deletes =
            ended.iter().map(|id| world.service.sandboxes().delete(&world.admin, id.as_str(), true));
        futures::future::join_all(deletes).await.into_iter().for_each(|deleted| drop(deleted.unwrap()));
        if waiting.len() <= left {
            return world;
        }
        breathe().await;
    }
    panic!("{} creates never ran", waiting.len());
}
