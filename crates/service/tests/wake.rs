//! Requests for sandboxes that are asleep: woken once, for permitted callers, within limits; and what they leave
//! behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::lifecycle::{PhaseSet, Verb};
use atoll_model::{
    Code, CreateSandbox, EventKind, Lease, MemoryLocation, OnExit, OnTimeout, Phase, Principal, Quota,
    Reason, SandboxId, Scope, TimersAsk, UpdateSandbox, Wake,
};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{
    Clock, Exec, ExecEvent, Filter, Fork, NewKey, Pause, VerbOptions, WakeMemory, WakeRequest, WakeTimeout,
};
use futures::StreamExt;

const SECOND: Duration = Duration::from_secs(1);

fn argv(words: &[&str]) -> Exec {
    Exec { argv: words.iter().map(|word| (*word).to_owned()).collect(), ..Default::default() }
}

async fn paused(world: &World, spec: CreateSandbox, memory: MemoryLocation) -> Lease {
    let lease = world.try_create(spec).await.unwrap();
    let ask = Pause { memory: Some(memory) };
    world.service.sandboxes().pause(&world.admin, lease.id.as_str(), ask, true).await.unwrap()
}

async fn echo(world: &World, who: &Principal, lease: &Lease) -> Result<String, atoll_service::ServiceError> {
    let out = world.service.sandboxes().exec(who, lease.id.as_str(), argv(&["echo", "hi"])).await?;
    Ok(String::from_utf8_lossy(&out.stdout.to_vec()).into_owned())
}

async fn reasons_to(world: &World, id: &SandboxId, phase: Phase) -> Vec<Reason> {
    let events = world.service.events(&world.admin, Some(id.as_str()), None, 0).await.unwrap();
    let to = |what: EventKind| match what {
        EventKind::Phase { to, reason, .. } if to == phase => Some(reason),
        _ => None,
    };
    events.into_iter().filter_map(|event| to(event.what)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_wakes_what_is_paused_stopped_or_archived() {
    let world = World::new().await;
    for memory in [MemoryLocation::Live, MemoryLocation::Disk] {
        let lease = paused(&world, CreateSandbox::default(), memory).await;
        assert_eq!(echo(&world, &world.admin, &lease).await.unwrap(), "hi\n");
        assert_eq!(reasons_to(&world, &lease.id, Phase::Resuming).await, [Reason::Woken]);
    }
    let stopped = world.create().await;
    world.service.sandboxes().stop(&world.admin, stopped.id.as_str(), true).await.unwrap();
    assert_eq!(echo(&world, &world.admin, &stopped).await.unwrap(), "hi\n");
    assert_eq!(reasons_to(&world, &stopped.id, Phase::Starting).await, [Reason::Woken]);
    let archived = world.create().await;
    world.service.sandboxes().archive(&world.admin, archived.id.as_str(), true).await.unwrap();
    assert_eq!(echo(&world, &world.admin, &archived).await.unwrap(), "hi\n");
    assert_eq!(world.get(&archived.id).await.phase, Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_requests_wake_it_once() {
    let world = World::new().await;
    let lease = paused(&world, CreateSandbox::default(), MemoryLocation::Disk).await;
    let requests = (0..1_000).map(|_| echo(&world, &world.admin, &lease));
    let answers = futures::future::join_all(requests).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap() == "hi\n"));
    assert_eq!(world.fake.calls(ProviderCall::Restore, &lease.id), 1);
    assert_eq!(reasons_to(&world, &lease.id, Phase::Resuming).await, [Reason::Woken]);
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_may_wait_are_told_when_to_come_back() {
    let fewer = Options { config: Some(Box::new(|config| config.wake_waiters = 64)), ..Default::default() };
    let world = World::with(fewer).await;
    let lease = paused(&world, CreateSandbox::default(), MemoryLocation::Live).await;
    world.fake.script(ProviderCall::Resume, Script::Hold);
    let requests = (0..100).map(|_| echo(&world, &world.admin, &lease));
    let release = async {
        world.quiet().await;
        world.fake.release();
    };
    let (answers, ()) = futures::future::join(futures::future::join_all(requests), release).await;
    let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 36);
    assert!(refused.iter().all(|error| error.code == Code::WakeFailed && error.retry_after_s == Some(1)));
    assert_eq!(world.fake.calls(ProviderCall::Resume, &lease.id), 1);
}

#[tokio::test(start_paused = true)]
async fn only_start_and_resume_wake_what_says_so() {
    let world = World::new().await;
    let explicit = CreateSandbox { wake: Wake::Explicit, ..Default::default() };
    let lease = paused(&world, explicit, MemoryLocation::Live).await;
    let error = echo(&world, &world.admin, &lease).await.unwrap_err();
    assert_eq!(error.code, Code::Asleep);
    assert!(error.hint.unwrap().contains("resume"));
    assert!(world.fake.is_frozen(&lease.id));
    // A request during another caller's resume waits for that.
    world.fake.script(ProviderCall::Resume, Script::Hold);
    world.service.sandboxes().resume(&world.admin, lease.id.as_str(), false).await.unwrap();
    let release = async {
        world.quiet().await;
        world.fake.release();
    };
    let (answer, ()) = futures::future::join(echo(&world, &world.admin, &lease), release).await;
    assert_eq!(answer.unwrap(), "hi\n");
    let change = UpdateSandbox { wake: Some(Wake::Any), ..Default::default() };
    world.service.sandboxes().update(&world.admin, lease.id.as_str(), change).await.unwrap();
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(echo(&world, &world.admin, &lease).await.unwrap(), "hi\n");
}

#[tokio::test(start_paused = true)]
async fn a_wake_that_fails_says_why_and_the_next_may_succeed() {
    let world = World::new().await;
    let lease = paused(&world, CreateSandbox::default(), MemoryLocation::Disk).await;
    world.fake.script(ProviderCall::Restore, Script::Fail);
    let requests = (0..10).map(|_| echo(&world, &world.admin, &lease));
    for answer in futures::future::join_all(requests).await {
        let error = answer.unwrap_err();
        assert_eq!(error.code, Code::WakeFailed);
        assert!(error.message.contains("could not be woken"), "{}", error.message);
    }
    assert_eq!(world.get(&lease.id).await.phase, Phase::Paused);
    assert_eq!(echo(&world, &world.admin, &lease).await.unwrap(), "hi\n");
    // Without room it sleeps on.
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.fake.set_node(|node| node.memory_free_mib = 0);
    tokio::time::advance(SECOND * 2).await;
    let error = echo(&world, &world.admin, &lease).await.unwrap_err();
    assert_eq!(error.code, Code::WakeFailed);
    assert!(error.retry_after_s.is_some());
    assert_eq!(world.get(&lease.id).await.phase, Phase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_wake_has_a_deadline_and_the_work_goes_on() {
    let world = World::new().await;
    let lease = paused(&world, CreateSandbox::default(), MemoryLocation::Live).await;
    world.fake.script(ProviderCall::Resume, Script::Hold);
    let late = async {
        world.quiet().await;
        world.advance(SECOND * 61).await;
    };
    let (answer, ()) = futures::future::join(echo(&world, &world.admin, &lease), late).await;
    assert_eq!(answer.unwrap_err().code, Code::WakeFailed);
    world.fake.release();
    world.until(&lease.id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn who_may_not_use_it_does_not_wake_it_and_looking_does_not_either() {
    let world = World::new().await;
    let lease = paused(&world, CreateSandbox::default(), MemoryLocation::Live).await;
    world.service.access().create_tenant(&world.admin, "other", Quota::default()).await.unwrap();
    let key = NewKey { tenant: Some("other".to_owned()), scope: Scope::User, name: None };
    let key = world.service.access().create_key(&world.admin, key).await.unwrap();
    let other = world.service.access().authenticate(&key.secret).await.unwrap();
    assert_eq!(echo(&world, &other, &lease).await.unwrap_err().code, Code::SandboxNotFound);
    let id = lease.id.as_str();
    world.service.sandboxes().get(&world.admin, id).await.unwrap();
    world.service.sandboxes().list(&world.admin, Filter::default()).await.unwrap();
    world.service.sandboxes().awake(&world.admin, id).await.unwrap();
    world.service.sandboxes().lineage(&world.admin, id).await.unwrap();
    world.service.events(&world.admin, Some(id), None, 0).await.unwrap();
    world.service.sandboxes().metrics_history(&world.admin, id, None, 0).await.unwrap();
    world.service.sandboxes().list_terminals(&world.admin, id).await.unwrap();
    world.service.sandboxes().snapshots(&world.admin, Default::default()).await.unwrap();
    for _ in 0..30 {
        world.advance(SECOND).await;
    }
    assert!(world.fake.is_frozen(&lease.id));
    assert_eq!(world.fake.calls(ProviderCall::Resume, &lease.id), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_failed_or_goes_is_not_woken() {
    let world = World::new().await;
    let lease = world.create().await;
    world.fake.kill(&lease.id, true);
    world.until(&lease.id, Phase::Failed).await;
    assert_eq!(echo(&world, &world.admin, &lease).await.unwrap_err().code, Code::PhaseConflict);
    assert_eq!(world.get(&lease.id).await.phase, Phase::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_while_it_falls_asleep_is_served() {
    let world = World::new().await;
    let timers = TimersAsk { auto_pause_s: Some(5), ..Default::default() };
    let lease = world.try_create(CreateSandbox { timers, ..Default::default() }).await.unwrap();
    world.fake.script(ProviderCall::Pause, Script::Hold);
    while world.get(&lease.id).await.phase == Phase::Running {
        world.advance(SECOND).await;
    }
    let release = async {
        world.quiet().await;
        world.fake.release();
    };
    let (answer, ()) = futures::future::join(echo(&world, &world.admin, &lease), release).await;
    assert_eq!(answer.unwrap(), "hi\n");
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    assert_eq!(reasons_to(&world, &lease.id, Phase::Pausing).await, [Reason::Idle]);
}

fn at_least(seconds: u64) -> WakeRequest {
    WakeRequest { timeout: WakeTimeout::AtLeast(seconds), ..WakeRequest::default() }
}

fn lives_for(lease: &Lease, world: &World) -> i64 {
    lease.timeout_at.as_ref().unwrap().ms_after(&world.clock.now())
}

#[tokio::test(start_paused = true)]
async fn a_wake_sets_the_lifetime_with_the_phase_and_says_what_it_found() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let spec = || CreateSandbox { timeout_s: Some(600), on_timeout: OnTimeout::Pause, ..Default::default() };
    let lease = world.try_create(spec()).await.unwrap();
    let id = lease.id.as_str();
    // One that runs has its lifetime lengthened, never cut.
    let kept = service.sandboxes().wake(who, id, at_least(60), true).await.unwrap();
    assert_eq!((kept.found, lives_for(&kept.lease, &world)), (Phase::Running, 600_000));
    let longer = service.sandboxes().wake(who, id, at_least(900), true).await.unwrap();
    assert_eq!((longer.found, lives_for(&longer.lease, &world)), (Phase::Running, 900_000));
    // One that is asleep gets exactly what was asked for, and what happens at its end.
    service.sandboxes().pause(who, id, Pause::default(), true).await.unwrap();
    let request = WakeRequest { on_timeout: Some(OnTimeout::Delete), ..at_least(60) };
    let woken = service.sandboxes().wake(who, id, request, true).await.unwrap();
    assert_eq!((woken.found, woken.lease.phase), (Phase::Paused, Phase::Running));
    assert_eq!((lives_for(&woken.lease, &world), woken.lease.on_timeout), (60_000, OnTimeout::Delete));
    assert_eq!(world.fake.calls(ProviderCall::Resume, &lease.id), 1);
    // A caller that does not want one that runs is refused, and nothing is changed.
    let asleep = VerbOptions::expecting(PhaseSet::RESTING.without(PhaseSet::of(&[Phase::Running])));
    let refused =
        service.sandboxes().wake(who, id, at_least(3_600), asleep).await.unwrap_err().refused.unwrap();
    assert_eq!((refused.verb, refused.lease.phase), (Verb::Wake, Phase::Running));
    assert_eq!(lives_for(&world.get(&lease.id).await, &world), 60_000);
}

#[tokio::test(start_paused = true)]
async fn a_wake_without_memory_boots_from_the_files() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let lease = paused(&world, CreateSandbox::default(), MemoryLocation::Live).await;
    let request = WakeRequest { memory: WakeMemory::Drop, ..WakeRequest::default() };
    let woken = service.sandboxes().wake(who, lease.id.as_str(), request, true).await.unwrap();
    assert_eq!((woken.found, woken.lease.phase), (Phase::Paused, Phase::Running));
    assert_eq!(world.fake.calls(ProviderCall::Resume, &lease.id), 0);
    assert_eq!(world.fake.calls(ProviderCall::Boot, &lease.id), 1);
    // One that runs keeps its processes.
    let same = service.sandboxes().wake(who, lease.id.as_str(), request, true).await.unwrap();
    assert_eq!(same.lease.instance, woken.lease.instance);
}

#[tokio::test(start_paused = true)]
async fn a_wake_in_the_middle_of_a_stop_starts_it_when_that_is_over() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let lease = world.create().await;
    world.fake.script(ProviderCall::Halt, Script::Hold);
    service.sandboxes().stop(who, lease.id.as_str(), false).await.unwrap();
    let release = async {
        world.quiet().await;
        world.fake.release();
    };
    let wakes = futures::future::join(
        service.sandboxes().wake(who, lease.id.as_str(), WakeRequest::default(), true),
        echo(&world, who, &lease),
    );
    let ((woken, answer), ()) = futures::future::join(wakes, release).await;
    let woken = woken.unwrap();
    assert_eq!((woken.found, woken.lease.phase), (Phase::Stopping, Phase::Running));
    assert_eq!(answer.unwrap(), "hi\n");
    assert_eq!(world.fake.calls(ProviderCall::Boot, &lease.id), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wake_that_is_refused_leaves_the_lifetime_as_it_was() {
    let world = World::new().await;
    let quota = Quota { sandboxes: None, cpu_milli: Some(1_000), ..Quota::default() };
    let who = world.tenant("small", quota).await;
    let service = &world.service;
    let spec = || CreateSandbox { timeout_s: Some(600), ..Default::default() };
    let (first, _) = service.sandboxes().create(&who, spec(), true).await.unwrap();
    service.sandboxes().stop(&who, first.id.as_str(), true).await.unwrap();
    service.sandboxes().create(&who, spec(), true).await.unwrap();
    let before = world.get(&first.id).await;
    let error = service.sandboxes().wake(&who, first.id.as_str(), at_least(60), true).await.unwrap_err();
    assert_eq!(error.code, Code::QuotaExceeded, "{error}");
    assert_eq!(world.get(&first.id).await.timeout_at, before.timeout_at);
}

#[tokio::test(start_paused = true)]
async fn a_stream_stands_still_with_its_sandbox() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    let (_, mut stream) =
        world.service.sandboxes().exec_stream(&world.admin, id, argv(&["wait"])).await.unwrap();
    world.service.sandboxes().pause(&world.admin, id, Pause::default(), true).await.unwrap();
    for _ in 0..10 {
        world.advance(SECOND * 600).await;
        assert!(futures::poll!(stream.next()).is_pending(), "silence counts only while it runs");
    }
    world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
    world.advance(SECOND * 60).await;
    assert!(futures::poll!(stream.next()).is_pending());
    world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    let end = stream.next().await;
    assert!(matches!(end, Some(ExecEvent::Lost(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_restore_a_reader_goes_on_where_it_was() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    let (_, mut stream) =
        world.service.sandboxes().exec_stream(&world.admin, id, argv(&["tell"])).await.unwrap();
    let collected = world.service.sandboxes().exec(&world.admin, id, argv(&["tell"]));
    let play = async {
        let mut told = match stream.next().await {
            Some(ExecEvent::Stdout(data)) => data.to_vec(),
            other => panic!("{other:?}"),
        };
        world
            .service
            .sandboxes()
            .pause(&world.admin, id, Pause { memory: Some(MemoryLocation::Disk) }, true)
            .await
            .unwrap();
        world.advance(SECOND * 3_600).await;
        assert!(futures::poll!(stream.next()).is_pending(), "it waits, and wakes nobody");
        assert!(world.fake.is_checkpointed(&lease.id));
        let running = world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
        assert_ne!(running.instance, lease.instance);
        while let Some(event) = stream.next().await {
            match event {
                ExecEvent::Stdout(data) => told.extend_from_slice(&data),
                ExecEvent::Exit { exit_code: 0, .. } => return told,
                other => panic!("{other:?}"),
            }
        }
        panic!("no exit");
    };
    let (collected, told) = futures::future::join(collected, play).await;
    assert_eq!(told, b"to be continued", "no byte is lost and none comes twice");
    assert_eq!(collected.unwrap().stdout.to_vec(), b"to be continued");
}

#[tokio::test(start_paused = true)]
async fn a_silent_command_outlives_many_restores() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    let (_, mut stream) =
        world.service.sandboxes().exec_stream(&world.admin, id, argv(&["wait"])).await.unwrap();
    for _ in 0..6 {
        world
            .service
            .sandboxes()
            .pause(&world.admin, id, Pause { memory: Some(MemoryLocation::Disk) }, true)
            .await
            .unwrap();
        assert!(futures::poll!(stream.next()).is_pending());
        world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
        world.quiet().await;
        assert!(futures::poll!(stream.next()).is_pending());
        world.advance(SECOND * 60).await;
    }
    assert!(futures::poll!(stream.next()).is_pending());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_server_pauses_and_deletes_what_is_bound_to_it() {
    let world = World::new().await;
    let bound = |on_exit| CreateSandbox { on_exit: Some(on_exit), ..Default::default() };
    let kept = world.try_create(bound(OnExit::Keep)).await.unwrap();
    let paused = world.try_create(bound(OnExit::Pause)).await.unwrap();
    let deleted = world.try_create(bound(OnExit::Destroy)).await.unwrap();
    let asleep = world.try_create(bound(OnExit::Pause)).await.unwrap();
    world.service.sandboxes().stop(&world.admin, asleep.id.as_str(), true).await.unwrap();
    world.service.exit(SECOND * 10).await;
    assert_eq!(world.get(&kept.id).await.phase, Phase::Running);
    assert_eq!(world.get(&paused.id).await.phase, Phase::Paused);
    assert_eq!(world.get(&deleted.id).await.phase, Phase::Deleted);
    assert_eq!(world.get(&asleep.id).await.phase, Phase::Stopped);
    assert_eq!(reasons_to(&world, &paused.id, Phase::Pausing).await, [Reason::Exit]);
    let world = world.crash_and_reopen().await;
    assert_eq!(world.get(&paused.id).await.phase, Phase::Paused, "it sleeps until somebody needs it");
    assert_eq!(echo(&world, &world.admin, &paused).await.unwrap(), "hi\n");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_server_waits_for_nobody_for_ever() {
    let world = World::new().await;
    let spec = CreateSandbox { on_exit: Some(OnExit::Pause), ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    world.fake.script(ProviderCall::Pause, Script::Hold);
    let late = async {
        world.quiet().await;
        world.advance(SECOND * 11).await;
    };
    futures::future::join(world.service.exit(SECOND * 10), late).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Pausing);
    world.fake.release();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_thread_touches_its_sandboxes_and_no_others() {
    let world = World::new().await;
    let bound = |thread: &str, on_exit| CreateSandbox {
        thread: Some(thread.to_owned()),
        on_exit: Some(on_exit),
        ..Default::default()
    };
    let paused = world.try_create(bound("t-1", OnExit::Pause)).await.unwrap();
    // Further sandboxes of a thread are forks.
    let fork = async |on_exit| {
        let fork = Fork { count: 1, ..Fork::default() };
        let mut forked =
            world.service.sandboxes().fork(&world.admin, paused.id.as_str(), fork).await.unwrap();
        let child = forked.sandboxes.remove(0);
        let change = UpdateSandbox { on_exit: Some(on_exit), ..Default::default() };
        world.service.sandboxes().update(&world.admin, child.id.as_str(), change).await.unwrap()
    };
    let (deleted, kept) = (fork(OnExit::Destroy).await, fork(OnExit::Keep).await);
    let beside = world.try_create(bound("t-2", OnExit::Destroy)).await.unwrap();
    let mut touched = world.service.sandboxes().end_thread(&world.admin, "t-1").await.unwrap();
    touched.sort_by_key(|lease| lease.phase.as_str());
    let phases: Vec<_> = touched.iter().map(|lease| lease.phase).collect();
    assert_eq!(phases, [Phase::Deleted, Phase::Paused, Phase::Running]);
    for (lease, phase) in [
        (&paused, Phase::Paused),
        (&deleted, Phase::Deleted),
        (&kept, Phase::Running),
        (&beside, Phase::Running),
    ] {
        assert_eq!(world.get(&lease.id).await.phase, phase);
    }
    world.service.access().create_tenant(&world.admin, "other", Quota::default()).await.unwrap();
    let key = NewKey { tenant: Some("other".to_owned()), scope: Scope::User, name: None };
    let key = world.service.access().create_key(&world.admin, key).await.unwrap();
    let other = world.service.access().authenticate(&key.secret).await.unwrap();
    assert_eq!(world.service.sandboxes().end_thread(&other, "t-2").await.unwrap(), []);
    assert_eq!(world.get(&beside.id).await.phase, Phase::Running);
}
