//! Timers of leases, on a clock that only the test moves: each timer, holds, idleness, restarts and jumps.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::policy::egress::Egress;
use atoll_model::policy::idle::AwakeReason;
use atoll_model::{
    Code, CreateSandbox, EventKind, Lease, LimitsAsk, MemoryLocation, NetworkPolicy, OnExit, OnTimeout,
    Phase, Reason, SandboxId, Storage, TimersAsk, UpdateSandbox,
};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{Exec, HoldAsk, NextTimer, ServiceConfig};
use futures::StreamExt;

const SECOND: Duration = Duration::from_secs(1);

fn timed(timers: TimersAsk) -> CreateSandbox {
    CreateSandbox { timers, ..Default::default() }
}

fn auto_pause(seconds: i64) -> CreateSandbox {
    timed(TimersAsk { auto_pause_s: Some(seconds), ..Default::default() })
}

fn argv(words: &[&str]) -> Exec {
    Exec { argv: words.iter().map(|word| (*word).to_owned()).collect(), ..Default::default() }
}

/// Lets time pass in small steps, each with all of its effects.
async fn pass(world: &World, seconds: u64) {
    for _ in 0..seconds {
        world.advance(SECOND).await;
    }
}

async fn phase(world: &World, id: &SandboxId) -> Phase {
    world.get(id).await.phase
}

async fn reasons_to(world: &World, id: &SandboxId, phase: Phase) -> Vec<Reason> {
    let events = world.service.events(&world.admin, Some(id.as_str()), None, 0).await.unwrap();
    let to = |what: EventKind| match what {
        EventKind::Phase { to, reason, .. } if to == phase => Some(reason),
        _ => None,
    };
    events.into_iter().filter_map(|event| to(event.what)).collect()
}

async fn next(world: &World, lease: &Lease) -> Option<(i64, &'static str)> {
    let awake = world.service.sandboxes().awake(&world.admin, lease.id.as_str()).await.unwrap();
    let now = atoll_service::Clock::now(world.clock.as_ref()).wall_ms;
    awake.next.map(|NextTimer { at_ms, what }| ((at_ms - now + 500) / 1_000, what))
}

#[tokio::test(start_paused = true)]
async fn an_idle_sandbox_is_paused_on_time_and_not_before() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(20)).await.unwrap();
    pass(&world, 18).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running);
    pass(&world, 4).await;
    let paused = world.until(&lease.id, Phase::Paused).await;
    assert_eq!(paused.held, Some(MemoryLocation::Live));
    assert!(world.fake.is_frozen(&lease.id));
    assert_eq!(reasons_to(&world, &lease.id, Phase::Pausing).await, [Reason::Idle]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_sandbox_is_stopped_and_a_stopped_one_deleted() {
    let world = World::new().await;
    let timers = TimersAsk { auto_stop_s: Some(10), auto_delete_s: Some(30), ..Default::default() };
    let lease = world.try_create(timed(timers)).await.unwrap();
    pass(&world, 12).await;
    let stopped = world.until(&lease.id, Phase::Stopped).await;
    assert_eq!(reasons_to(&world, &lease.id, Phase::Stopping).await, [Reason::Idle]);
    assert_eq!(next(&world, &stopped).await.map(|(_, what)| what), Some("delete"));
    pass(&world, 27).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Stopped);
    pass(&world, 4).await;
    world.until(&lease.id, Phase::Deleted).await;
    assert_eq!(reasons_to(&world, &lease.id, Phase::Deleting).await, [Reason::Aged]);
    assert_eq!(world.fake.holds(), []);
}

#[tokio::test(start_paused = true)]
async fn auto_delete_of_zero_deletes_with_the_stop_and_minus_one_never() {
    let world = World::new().await;
    let after = |seconds| timed(TimersAsk { auto_delete_s: Some(seconds), ..Default::default() });
    let at_once = world.try_create(after(0)).await.unwrap();
    let never = world.try_create(after(-1)).await.unwrap();
    for lease in [&at_once, &never] {
        world.service.sandboxes().stop(&world.admin, lease.id.as_str(), false).await.unwrap();
    }
    world.until(&at_once.id, Phase::Deleted).await;
    pass(&world, 5).await;
    world.advance(SECOND * 86_400 * 30).await;
    assert_eq!(phase(&world, &never.id).await, Phase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_paused_one_goes_to_disk_and_a_stopped_one_to_object_storage() {
    let world = World::new().await;
    let timers = TimersAsk { checkpoint_after_s: Some(10), auto_archive_s: Some(20), ..Default::default() };
    let paused = world.try_create(timed(timers)).await.unwrap();
    let stopped = world.try_create(timed(timers)).await.unwrap();
    world
        .service
        .sandboxes()
        .pause(&world.admin, paused.id.as_str(), Default::default(), true)
        .await
        .unwrap();
    world.service.sandboxes().stop(&world.admin, stopped.id.as_str(), true).await.unwrap();
    pass(&world, 8).await;
    assert!(world.fake.is_frozen(&paused.id));
    pass(&world, 4).await;
    assert_eq!(world.until(&paused.id, Phase::Paused).await.held, Some(MemoryLocation::Disk));
    assert!(world.fake.is_checkpointed(&paused.id));
    pass(&world, 6).await;
    assert_eq!(phase(&world, &stopped.id).await, Phase::Stopped);
    pass(&world, 4).await;
    world.until(&stopped.id, Phase::Archived).await;
    assert_eq!(reasons_to(&world, &stopped.id, Phase::Archiving).await, [Reason::Aged]);
}

#[tokio::test(start_paused = true)]
async fn what_was_brought_back_is_not_archived_again_at_once() {
    let world = World::new().await;
    let timers = TimersAsk { auto_archive_s: Some(20), auto_delete_s: Some(60), ..Default::default() };
    let lease = world.try_create(timed(timers)).await.unwrap();
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    pass(&world, 22).await;
    world.until(&lease.id, Phase::Archived).await;
    pass(&world, 20).await;
    world.service.sandboxes().restore(&world.admin, lease.id.as_str(), true).await.unwrap();
    pass(&world, 15).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Stopped);
    assert!(matches!(next(&world, &lease).await, Some((4..=6, "archive"))));
    pass(&world, 6).await;
    world.until(&lease.id, Phase::Archived).await;
    pass(&world, 30).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Archived, "nor deleted by its age before");
    pass(&world, 10).await;
    world.until(&lease.id, Phase::Deleted).await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_absolute_and_may_pause() {
    let world = World::new().await;
    let spec = CreateSandbox { timeout_s: Some(30), on_timeout: OnTimeout::Pause, ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    let (_, busy) = world
        .service
        .sandboxes()
        .exec_stream(&world.admin, lease.id.as_str(), argv(&["wait"]))
        .await
        .unwrap();
    pass(&world, 28).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running);
    pass(&world, 4).await;
    world.until(&lease.id, Phase::Paused).await;
    assert_eq!(reasons_to(&world, &lease.id, Phase::Pausing).await, [Reason::TimedOut]);
    drop(busy);
    pass(&world, 60).await;
    assert_eq!(world.fake.calls(ProviderCall::Pause, &lease.id), 1, "once is enough");
}

#[tokio::test(start_paused = true)]
async fn work_keeps_it_awake_and_awake_says_which() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(10)).await.unwrap();
    let id = lease.id.as_str();
    for second in 0..30u64 {
        world.advance(SECOND).await;
        if second % 2 == 0 {
            world.fake.work(&lease.id, Duration::from_millis(200), 0);
        }
    }
    assert_eq!(phase(&world, &lease.id).await, Phase::Running, "CPU");
    assert_eq!(world.service.sandboxes().awake(&world.admin, id).await.unwrap().because, [AwakeReason::Cpu]);
    for _ in 0..15 {
        world.advance(SECOND * 2).await;
        world.fake.work(&lease.id, Duration::ZERO, 100_000);
    }
    assert_eq!(phase(&world, &lease.id).await, Phase::Running, "what it sends");
    world.advance(SECOND * 2).await;
    assert_eq!(
        world.service.sandboxes().awake(&world.admin, id).await.unwrap().because,
        [AwakeReason::Network]
    );
    // A background load of five thousandths of a core and a few keep-alives do not count as activity.
    for _ in 0..14 {
        world.advance(SECOND).await;
        world.fake.work(&lease.id, Duration::from_millis(5), 50);
    }
    world.until(&lease.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn a_command_that_somebody_waits_for_keeps_it_awake_and_a_detached_one_does_not() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(10)).await.unwrap();
    let id = lease.id.as_str();
    let (_, stream) = world.service.sandboxes().exec_stream(&world.admin, id, argv(&["wait"])).await.unwrap();
    pass(&world, 60).await;
    let awake = world.service.sandboxes().awake(&world.admin, id).await.unwrap();
    assert_eq!((awake.because, awake.idle), (vec![AwakeReason::Command], false));
    drop(stream);
    pass(&world, 8).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running, "idle time begins with its end");
    let awake = world.service.sandboxes().awake(&world.admin, id).await.unwrap();
    assert_eq!((awake.because, awake.idle), (vec![], true));
    pass(&world, 4).await;
    world.until(&lease.id, Phase::Paused).await;
    world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
    world.service.sandboxes().exec(&world.admin, id, Exec { detach: true, ..argv(&["echo"]) }).await.unwrap();
    pass(&world, 12).await;
    world.until(&lease.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_keeps_it_awake_until_it_ends_or_is_released() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(10)).await.unwrap();
    let id = lease.id.as_str();
    let hold = |for_s| HoldAsk { for_s, reason: Some("a build".to_owned()) };
    let held = world.service.sandboxes().hold(&world.admin, id, hold(40)).await.unwrap();
    assert_eq!(held.hold.unwrap().reason.as_deref(), Some("a build"));
    pass(&world, 38).await;
    assert_eq!(world.service.sandboxes().awake(&world.admin, id).await.unwrap().because, [AwakeReason::Hold]);
    assert_eq!(next(&world, &lease).await, Some((12, "pause")), "idle time begins when the hold ends");
    pass(&world, 14).await;
    world.until(&lease.id, Phase::Paused).await;
    world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
    world.service.sandboxes().hold(&world.admin, id, hold(86_400)).await.unwrap();
    pass(&world, 20).await;
    assert_eq!(world.service.sandboxes().release(&world.admin, id).await.unwrap().hold, None);
    pass(&world, 12).await;
    world.until(&lease.id, Phase::Paused).await;
    for for_s in [0, 86_401] {
        let error = world.service.sandboxes().hold(&world.admin, id, hold(for_s)).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_inside_can_hold_it_awake() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(10)).await.unwrap();
    world.fake.hold_inside(&lease.id, 3_600);
    pass(&world, 40).await;
    let awake = world.service.sandboxes().awake(&world.admin, lease.id.as_str()).await.unwrap();
    assert_eq!(awake.because, [AwakeReason::HoldInside]);
    world.fake.hold_inside(&lease.id, 0);
    pass(&world, 5).await;
    assert_eq!(
        phase(&world, &lease.id).await,
        Phase::Running,
        "idle time begins when the hold was seen to end"
    );
    pass(&world, 10).await;
    world.until(&lease.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_server_never_makes_a_timer_fire_early() {
    let world = World::new().await;
    let idle = world.try_create(auto_pause(30)).await.unwrap();
    let timers = TimersAsk { auto_delete_s: Some(30), ..Default::default() };
    let stopped = world.try_create(timed(timers)).await.unwrap();
    world.service.sandboxes().stop(&world.admin, stopped.id.as_str(), true).await.unwrap();
    pass(&world, 25).await;
    let world = world.crash_and_reopen().await;
    world.clock.jump_wall_ms(86_400_000);
    pass(&world, 2).await;
    assert_eq!(phase(&world, &stopped.id).await, Phase::Stopped);
    pass(&world, 26).await;
    assert_eq!(phase(&world, &idle.id).await, Phase::Running, "what nobody saw may have been work");
    world.until(&stopped.id, Phase::Deleted).await;
    pass(&world, 6).await;
    world.until(&idle.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_wall_clock_moves_no_timer() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(20)).await.unwrap();
    world
        .service
        .sandboxes()
        .hold(&world.admin, lease.id.as_str(), HoldAsk { for_s: 10, reason: None })
        .await
        .unwrap();
    world.clock.jump_wall_ms(7 * 86_400_000);
    pass(&world, 15).await;
    world.clock.jump_wall_ms(-30 * 86_400_000);
    pass(&world, 12).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running);
    assert_eq!(next(&world, &lease).await, Some((3, "pause")), "told by the clock on the wall");
    pass(&world, 5).await;
    world.until(&lease.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_never_shortens_and_an_update_may() {
    let world = World::new().await;
    let spec = CreateSandbox { timeout_s: Some(600), ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    let id = lease.id.as_str();
    let same = world.service.sandboxes().extend(&world.admin, id, 60).await.unwrap();
    assert_eq!((same.timeout_at, same.timeout_s), (lease.timeout_at.clone(), Some(600)));
    let longer = world.service.sandboxes().extend(&world.admin, id, 900).await.unwrap();
    assert_eq!(longer.timeout_s, Some(900));
    let change = UpdateSandbox { timeout_s: Some(Some(20)), ..Default::default() };
    world.service.sandboxes().update(&world.admin, id, change).await.unwrap();
    assert_eq!(next(&world, &lease).await, Some((20, "delete")));
    pass(&world, 22).await;
    world.until(&lease.id, Phase::Deleted).await;
    let without = world.create().await;
    let extended = world.service.sandboxes().extend(&world.admin, without.id.as_str(), 60).await.unwrap();
    assert_eq!(extended.timeout_at, None, "what lives for ever is not given an end");
    assert!(world.service.sandboxes().extend(&world.admin, without.id.as_str(), 0).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_archive_that_fails_is_tried_ever_later_and_stays_visible() {
    let world = World::new().await;
    for _ in 0..3 {
        world.fake.script(ProviderCall::Pack, Script::Fail);
    }
    let timers = TimersAsk { auto_archive_s: Some(0), ..Default::default() };
    let lease = world.try_create(timed(timers)).await.unwrap();
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), false).await.unwrap();
    pass(&world, 10).await;
    assert_eq!(world.until(&lease.id, Phase::Stopped).await.phase, Phase::Stopped);
    assert_eq!(world.fake.calls(ProviderCall::Pack, &lease.id), 1);
    assert!(matches!(next(&world, &lease).await, Some((15..=25, "archive"))));
    pass(&world, 25).await;
    assert_eq!(world.fake.calls(ProviderCall::Pack, &lease.id), 2);
    pass(&world, 50).await;
    assert_eq!(world.fake.calls(ProviderCall::Pack, &lease.id), 2);
    pass(&world, 20).await;
    assert_eq!(world.fake.calls(ProviderCall::Pack, &lease.id), 3);
    pass(&world, 130).await;
    world.until(&lease.id, Phase::Archived).await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_cannot_pause_is_no_hot_loop_and_hides_no_other_timer() {
    let world = World::new().await;
    for _ in 0..50 {
        world.fake.script(ProviderCall::Pause, Script::Fail);
    }
    let spec = CreateSandbox { timeout_s: Some(5), on_timeout: OnTimeout::Pause, ..Default::default() };
    let timers = TimersAsk { auto_stop_s: Some(50), ..Default::default() };
    let lease = world.try_create(CreateSandbox { timers, ..spec }).await.unwrap();
    pass(&world, 30).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running);
    assert_eq!(world.fake.calls(ProviderCall::Pause, &lease.id), 1);
    pass(&world, 100).await;
    world.until(&lease.id, Phase::Stopped).await;
    assert!(world.fake.calls(ProviderCall::Pause, &lease.id) <= 3);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_fails_leaves_it_paused_and_is_not_tried_in_a_loop() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Checkpoint, Script::Fail);
    let timers = TimersAsk { checkpoint_after_s: Some(0), ..Default::default() };
    let lease = world.try_create(timed(timers)).await.unwrap();
    world.service.sandboxes().pause(&world.admin, lease.id.as_str(), Default::default(), true).await.unwrap();
    pass(&world, 10).await;
    assert_eq!(world.fake.calls(ProviderCall::Checkpoint, &lease.id), 1);
    let paused = world.get(&lease.id).await;
    assert_eq!((paused.phase, paused.held), (Phase::Paused, Some(MemoryLocation::Live)));
    let running = world.service.sandboxes().resume(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(running.instance, lease.instance, "nothing was lost");
}

#[tokio::test(start_paused = true)]
async fn what_the_provider_cannot_do_is_refused_when_it_is_asked_for() {
    let world = World::new().await;
    world.fake.set_capabilities(|can| {
        can.pauses = false;
        can.checkpoints = false;
    });
    let checkpoint = timed(TimersAsk { checkpoint_after_s: Some(60), ..Default::default() });
    let on_exit = CreateSandbox { on_exit: Some(OnExit::Pause), ..Default::default() };
    let timeout = CreateSandbox { on_timeout: OnTimeout::Pause, timeout_s: Some(9), ..Default::default() };
    for spec in [auto_pause(60), checkpoint, on_exit, timeout] {
        assert_eq!(world.try_create(spec).await.unwrap_err().code, Code::Unsupported);
    }
    let lease = world.create().await;
    let change = UpdateSandbox { on_exit: Some(OnExit::Pause), ..Default::default() };
    let error = world.service.sandboxes().update(&world.admin, lease.id.as_str(), change).await.unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn timers_change_at_run_time() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(300)).await.unwrap();
    let id = lease.id.as_str();
    pass(&world, 20).await;
    let timers = TimersAsk { auto_pause_s: Some(30), ..Default::default() };
    world
        .service
        .sandboxes()
        .update(&world.admin, id, UpdateSandbox { timers, ..Default::default() })
        .await
        .unwrap();
    assert_eq!(next(&world, &lease).await, Some((10, "pause")));
    let timers = TimersAsk { auto_pause_s: Some(-1), auto_stop_s: Some(40), ..Default::default() };
    let updated = UpdateSandbox { timers, ..Default::default() };
    let updated = world.service.sandboxes().update(&world.admin, id, updated).await.unwrap();
    assert_eq!((updated.timers.auto_pause_s, updated.timers.auto_stop_s), (None, Some(40)));
    pass(&world, 22).await;
    world.until(&lease.id, Phase::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_half_way_is_undone_at_the_provider_too() {
    let world = World::new().await;
    let lease = world.create().await;
    world.fake.script(ProviderCall::SetNetwork, Script::Fail);
    let change = UpdateSandbox {
        limits: LimitsAsk { memory_mib: Some(2_048), ..Default::default() },
        network: Some(NetworkPolicy::deny_all()),
        ..Default::default()
    };
    assert!(world.service.sandboxes().update(&world.admin, lease.id.as_str(), change).await.is_err());
    assert_eq!(world.fake.in_force(&lease.id), Some((lease.limits, Arc::new(Egress::open()))));
    assert_eq!(world.get(&lease.id).await.limits, lease.limits);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_timers_in_the_same_second_are_on_time_and_the_others_are_answered() {
    let world = World::new().await;
    let ids: Vec<_> = futures::stream::iter(0..200)
        .map(|_| async { world.try_create(auto_pause(10)).await.unwrap().id })
        .buffered(16)
        .collect()
        .await;
    let beside = world.create().await;
    pass(&world, 9).await;
    let mut slowest = Duration::ZERO;
    // Two seconds after the last of them was due, in steps that leave time for their effects.
    for _ in 0..30 {
        tokio::time::advance(Duration::from_millis(100)).await;
        let asked = std::time::Instant::now();
        world.service.sandboxes().get(&world.admin, beside.id.as_str()).await.unwrap();
        world.service.sandboxes().exec(&world.admin, beside.id.as_str(), argv(&["echo"])).await.unwrap();
        slowest = slowest.max(asked.elapsed());
        world.quiet().await;
    }
    for id in &ids {
        assert_eq!(phase(&world, id).await, Phase::Paused);
    }
    assert!(slowest < SECOND * 5, "{slowest:?}");
    assert_eq!(phase(&world, &beside.id).await, Phase::Running);
}

/// Attack F14.
#[tokio::test(start_paused = true)]
async fn a_thousand_lifetimes_end_in_one_second_and_the_others_are_answered() {
    lifetimes_end_in_one_second(1_000).await;
}

/// Attack F14, with the number of the catalogue.
#[tokio::test(start_paused = true)]
#[ignore = "about a minute; make nightly runs it"]
async fn nightly_ten_thousand_lifetimes_end_in_one_second_and_the_others_are_answered() {
    lifetimes_end_in_one_second(10_000).await;
}

async fn lifetimes_end_in_one_second(count: usize) {
    let config = |config: &mut ServiceConfig| {
        config.live_max = 20_000;
        (config.overcommit, config.disk_overcommit) = (1e6, 1e6);
        config.creates_at_once = 1_000;
    };
    let world = World::with(Options { config: Some(Box::new(config)), ..Options::default() }).await;
    let spec = CreateSandbox { timeout_s: Some(600), ..Default::default() };
    let made: usize = futures::stream::iter(0..count)
        .map(|_| async { world.try_create(spec.clone()).await.map(drop).unwrap() })
        .buffer_unordered(1_000)
        .count()
        .await;
    assert_eq!(made, count);
    let beside = world.create().await;
    tokio::time::advance(SECOND * 601).await;
    let (started, mut slowest) = (std::time::Instant::now(), Duration::ZERO);
    while world.fake.holds().len() > 1 {
        let asked = std::time::Instant::now();
        world.service.sandboxes().get(&world.admin, beside.id.as_str()).await.unwrap();
        world.service.sandboxes().exec(&world.admin, beside.id.as_str(), argv(&["echo"])).await.unwrap();
        slowest = slowest.max(asked.elapsed());
        assert!(started.elapsed() < SECOND * 120, "{} are left", world.fake.holds().len() - 1);
        world.advance(Duration::from_millis(100)).await;
    }
    world.quiet().await;
    assert_eq!(world.store.live().await.unwrap().len(), 1, "nothing of them is left");
    assert_eq!(phase(&world, &beside.id).await, Phase::Running);
    // LIMIT: everything here shares one thread with ten thousand drivers.
    assert!(slowest < SECOND * 10, "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_that_paused_it_begins_anew_when_it_is_woken() {
    let world = World::new().await;
    let spec = CreateSandbox { timeout_s: Some(10), on_timeout: OnTimeout::Pause, ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    pass(&world, 12).await;
    world.until(&lease.id, Phase::Paused).await;
    let woken = world.service.sandboxes().resume(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(woken.phase, Phase::Running);
    pass(&world, 8).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running, "its second lifetime is as long as the first");
    pass(&world, 4).await;
    world.until(&lease.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn idle_time_begins_where_a_hold_is_released() {
    let world = World::new().await;
    let lease = world.try_create(auto_pause(20)).await.unwrap();
    let id = lease.id.as_str();
    world.service.sandboxes().hold(&world.admin, id, HoldAsk { for_s: 3_600, reason: None }).await.unwrap();
    pass(&world, 60).await;
    world.service.sandboxes().release(&world.admin, id).await.unwrap();
    pass(&world, 17).await;
    assert_eq!(phase(&world, &lease.id).await, Phase::Running);
    pass(&world, 5).await;
    world.until(&lease.id, Phase::Paused).await;
}

#[tokio::test(start_paused = true)]
async fn files_in_memory_take_no_timer_that_needs_a_disk() {
    let world = World::new().await;
    for timers in [
        TimersAsk { auto_archive_s: Some(9), ..Default::default() },
        TimersAsk { checkpoint_after_s: Some(9), ..Default::default() },
    ] {
        let spec = CreateSandbox { storage: Storage::Memory, ..timed(timers) };
        assert_eq!(world.try_create(spec).await.unwrap_err().code, Code::Unsupported);
    }
}

#[tokio::test(start_paused = true)]
async fn reading_logs_wakes_nobody() {
    let world = World::new().await;
    let lease = world.try_create(CreateSandbox::default()).await.unwrap();
    let id = lease.id.as_str();
    world.service.sandboxes().pause(&world.admin, id, Default::default(), true).await.unwrap();
    let refused = world.service.sandboxes().logs(&world.admin, id, false).await.err().unwrap();
    assert_eq!(refused.code, Code::Asleep);
    assert_eq!(phase(&world, &lease.id).await, Phase::Paused);
}
