//! Threads: the provider and the sandbox that a conversation has, sessions, and the orderly end of a server.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::{Code, CreateSandbox, Lease, OnExit, Phase, Quota, Reason, UpdateSandbox};
use atoll_provider::fake::{FakeProvider, ProviderCall, Script};
use atoll_service::{Created, Filter, Fork, NewSnapshot, ServiceError, SnapshotFilter, ThreadFilter};

const SECOND: Duration = Duration::from_secs(1);

fn with_second() -> (Options, Arc<FakeProvider>) {
    let second = FakeProvider::named("second");
    (Options { second: Some(Arc::clone(&second)), ..Options::default() }, second)
}

fn talk(thread: &str) -> CreateSandbox {
    CreateSandbox { thread: Some(thread.to_owned()), ..CreateSandbox::default() }
}

fn at(provider: &str, thread: &str) -> CreateSandbox {
    CreateSandbox { provider: Some(provider.to_owned()), ..talk(thread) }
}

async fn create(world: &World, spec: CreateSandbox) -> Result<(Lease, Created), ServiceError> {
    world.service.sandboxes().create(&world.admin, spec, true).await
}

async fn delete(world: &World, lease: &Lease) {
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bound_thread_answers_its_sandbox_and_no_other_provider() {
    let (options, _second) = with_second();
    let world = World::with(options).await;
    let (first, created) = create(&world, at("second", "t")).await.unwrap();
    assert_eq!((created, first.provider.as_str()), (Created::New, "second"));
    // Without a provider the thread's own is meant; other fields do not matter any more.
    for spec in [talk("t"), at("second", "t"), CreateSandbox { template: Some("none".into()), ..talk("t") }] {
        let (again, created) = create(&world, spec).await.unwrap();
        assert_eq!((again.id, created), (first.id.clone(), Created::Bound));
    }
    let refused = create(&world, at("fake", "t")).await.unwrap_err();
    assert_eq!(refused.code, Code::ThreadBound);
    assert!(refused.message.contains("second") && refused.hint.is_some(), "{refused:?}");
    assert_eq!(create(&world, at("thrid", "t")).await.unwrap_err().code, Code::ProviderNotFound);

    delete(&world, &first).await;
    assert_eq!(create(&world, at("fake", "t")).await.unwrap_err().code, Code::ThreadBound, "for good");
    let (second, created) = create(&world, talk("t")).await.unwrap();
    assert_eq!((created, second.provider.as_str()), (Created::New, "second"));
    assert_ne!(second.id, first.id);
    let all = world.service.sandboxes().list(&world.admin, Filter::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_key_returns_its_sandbox_and_a_new_key_that_of_the_thread() {
    let world = World::new().await;
    let keyed = |key: &str| CreateSandbox { idempotency_key: Some(key.to_owned()), ..talk("t") };
    let (first, _) = create(&world, keyed("a")).await.unwrap();
    assert_eq!(create(&world, keyed("a")).await.unwrap().1, Created::Replayed);
    let (bound, created) = create(&world, keyed("b")).await.unwrap();
    assert_eq!((bound.id, created), (first.id.clone(), Created::Bound));
    delete(&world, &first).await;
    let (replayed, created) = create(&world, keyed("a")).await.unwrap();
    assert_eq!((replayed.id, created), (first.id, Created::Replayed), "the key was used for that one");
    assert_eq!(create(&world, keyed("c")).await.unwrap().1, Created::New);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_creates_of_one_thread_make_one_sandbox() {
    let world = World::new().await;
    let all = futures::future::join_all((0..100).map(|_| create(&world, talk("t")))).await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|(_, created)| *created == Created::New).count(), 1);
    assert!(all.iter().all(|(lease, _)| lease.id == all[0].0.id && lease.phase == Phase::Running));
    assert_eq!(world.fake.holds().len(), 1);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_thread_whose_sandbox_failed_or_sleeps_answers_it_as_it_is() {
    let world = World::new().await;
    let (lease, _) = create(&world, talk("t")).await.unwrap();
    world.fake.kill(&lease.id, true);
    world.until(&lease.id, Phase::Failed).await;
    let (failed, created) = create(&world, talk("t")).await.unwrap();
    assert_eq!((failed.phase, created), (Phase::Failed, Created::Bound));
    world.service.sandboxes().start(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(create(&world, talk("t")).await.unwrap().0.phase, Phase::Stopped, "a create wakes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_thread_whose_first_create_failed_can_try_again_and_elsewhere() {
    let (options, second) = with_second();
    let world = World::with(options).await;
    second.script(ProviderCall::Create, Script::Fail);
    let refused = create(&world, at("second", "t")).await.unwrap_err();
    let failed = world.service.sandboxes().list(&world.admin, Filter::default()).await.unwrap().items;
    assert_eq!((failed[0].phase, failed[0].thread.clone()), (Phase::Failed, None), "{refused:?}");
    let (made, created) = create(&world, at("fake", "t")).await.unwrap();
    assert_eq!((made.phase, created), (Phase::Running, Created::New));
    assert_eq!(create(&world, at("second", "t")).await.unwrap_err().code, Code::ThreadBound);

    // A later sandbox that fails does not unbind the thread.
    delete(&world, &made).await;
    world.advance(SECOND).await;
    world.fake.script(ProviderCall::Create, Script::Fail);
    create(&world, talk("t")).await.unwrap_err();
    assert_eq!(create(&world, at("second", "t")).await.unwrap_err().code, Code::ThreadBound);
    assert_eq!(create(&world, talk("t")).await.unwrap().0.provider, "fake");
}

#[tokio::test(start_paused = true)]
async fn threads_belong_to_their_tenant() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    let (mine, _) = create(&world, talk("t")).await.unwrap();
    let sandboxes = world.service.sandboxes();
    assert_eq!(sandboxes.thread(&stranger, "t").await.unwrap_err().code, Code::ThreadNotFound);
    assert_eq!(sandboxes.threads(&stranger, ThreadFilter::default()).await.unwrap().items, []);
    assert_eq!(sandboxes.thread(&world.admin, "t").await.unwrap().sandbox.unwrap().0, mine.id);
    let (theirs, created) = sandboxes.create(&stranger, talk("t"), true).await.unwrap();
    assert_eq!(created, Created::New, "another tenant's thread is another thread");
    let found = sandboxes.find_session(&stranger, None, "t").await.unwrap();
    assert_eq!(found.id, theirs.id);
    // The admin key sees both, and means that of its own tenant.
    assert_eq!(sandboxes.thread(&world.admin, "t").await.unwrap().sandbox.unwrap().0, mine.id);
    assert_eq!(sandboxes.find_session(&world.admin, None, "t").await.unwrap().id, mine.id);
    // Of two that are not its own, none is meant.
    let third = world.tenant("third", Quota::default()).await;
    for who in [&stranger, &third] {
        sandboxes.create(who, talk("theirs"), true).await.unwrap();
    }
    for refused in [
        sandboxes.thread(&world.admin, "theirs").await.map(drop),
        sandboxes.find_session(&world.admin, None, "theirs").await.map(drop),
        sandboxes.end_thread(&world.admin, "theirs").await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code, Code::Ambiguous);
    }
    // A tool client ends only what its own key made.
    sandboxes.end_client(&world.admin, "theirs").await.unwrap();
    assert!(sandboxes.thread(&third, "theirs").await.unwrap().sandbox.is_some());
    for bad in ["", "a\nb", &"x".repeat(256)] {
        assert_eq!(sandboxes.thread(&stranger, bad).await.unwrap_err().code, Code::InvalidRequest);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_named_by_id_thread_or_prefix_at_a_provider() {
    let (options, _second) = with_second();
    let world = World::with(options).await;
    let (first, _) = create(&world, at("second", "talk")).await.unwrap();
    let sandboxes = world.service.sandboxes();
    let code = async |provider: Option<&str>, ident: &str| {
        sandboxes.find_session(&world.admin, provider, ident).await.map_err(|error| error.code)
    };
    for ident in [first.id.as_str(), "talk", &first.id.as_str()[..6]] {
        assert_eq!(code(None, ident).await.unwrap().id, first.id, "{ident}");
        assert_eq!(code(Some("second"), ident).await.unwrap().id, first.id, "{ident}");
        assert_eq!(code(Some("fake"), ident).await.unwrap_err(), Code::SandboxNotFound, "{ident}");
        assert_eq!(code(Some("third"), ident).await.unwrap_err(), Code::ProviderNotFound, "{ident}");
    }
    let fork = Fork { count: 1, ..Fork::default() };
    let forked = sandboxes.fork(&world.admin, first.id.as_str(), fork).await.unwrap();
    assert_eq!(forked.sandboxes[0].thread.as_deref(), Some("talk"));
    assert_eq!(code(None, "talk").await.unwrap_err(), Code::Ambiguous);
    assert_eq!(code(None, first.id.as_str()).await.unwrap().id, first.id);
    let bound = create(&world, talk("talk")).await.unwrap();
    assert_eq!(bound.0.id, first.id, "a fork is not the sandbox of the thread");
    delete(&world, &first).await;
    assert_eq!(code(None, first.id.as_str()).await.unwrap_err(), Code::SandboxNotFound);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_thread_without_sandboxes_frees_its_name() {
    let (options, _second) = with_second();
    let world = World::with(options).await;
    let sandboxes = world.service.sandboxes();
    let (first, _) = create(&world, at("second", "t")).await.unwrap();
    sandboxes.end_thread(&world.admin, "t").await.unwrap();
    assert_eq!(world.get(&first.id).await.phase, Phase::Paused);
    assert_eq!(create(&world, at("fake", "t")).await.unwrap_err().code, Code::ThreadBound);
    let change = UpdateSandbox { on_exit: Some(OnExit::Destroy), ..Default::default() };
    sandboxes.update(&world.admin, first.id.as_str(), change).await.unwrap();
    sandboxes.end_thread(&world.admin, "t").await.unwrap();
    assert_eq!(sandboxes.thread(&world.admin, "t").await.unwrap_err().code, Code::ThreadNotFound);
    assert_eq!(create(&world, at("fake", "t")).await.unwrap().0.provider, "fake");
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_does_not_hide_the_sandbox_of_a_thread() {
    let world = World::new().await;
    let who = world.tenant("small", Quota { sandboxes: Some(1), ..Quota::default() }).await;
    let sandboxes = world.service.sandboxes();
    let (first, _) = sandboxes.create(&who, talk("t"), true).await.unwrap();
    for key in [None, Some("key".to_owned())] {
        let spec = CreateSandbox { idempotency_key: key, ..talk("t") };
        assert_eq!(sandboxes.create(&who, spec, true).await.unwrap().0.id, first.id);
    }
    let refused = sandboxes.create(&who, talk("other"), true).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert_eq!(sandboxes.threads(&who, ThreadFilter::default()).await.unwrap().items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn on_exit_is_the_providers_for_threads_and_keep_for_others() {
    let (options, second) = with_second();
    let world = World::with(options).await;
    let on_exit = async |spec| create(&world, spec).await.unwrap().0.on_exit;
    assert_eq!(on_exit(CreateSandbox::default()).await, OnExit::Keep);
    assert_eq!(on_exit(talk("a")).await, OnExit::Pause);
    for asked in [OnExit::Keep, OnExit::Destroy] {
        let spec = CreateSandbox { on_exit: Some(asked), ..talk(&format!("{asked:?}")) };
        assert_eq!(on_exit(spec).await, asked);
    }
    second.set_capabilities(|able| able.pauses = false);
    assert_eq!(on_exit(at("second", "b")).await, OnExit::Keep, "that provider cannot pause");
}

/// Ends the server in good order while the provider does not answer.
async fn late_exit(world: &World, call: ProviderCall) {
    world.fake.script(call, Script::Hold);
    let late = async {
        world.quiet().await;
        world.advance(SECOND * 11).await;
    };
    futures::future::join(world.service.exit(SECOND * 10), late).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_orderly_end_did_not_finish_is_finished_at_the_next_start() {
    let mut world = World::new().await;
    let kept = world.create().await;
    let (pauses, _) = create(&world, talk("a")).await.unwrap();
    let spec = CreateSandbox { on_exit: Some(OnExit::Destroy), ..talk("b") };
    let (goes, _) = create(&world, spec).await.unwrap();
    // Only the marks are written.
    world.store.begin_exits().await.unwrap();
    let dir = world.crash().await;
    let world = World::reopen(dir, world.fake.clone(), world.clock.clone()).await;
    let paused = world.until(&pauses.id, Phase::Paused).await;
    assert!(world.fake.is_frozen(&paused.id));
    world.until(&goes.id, Phase::Deleted).await;
    assert_eq!(world.get(&kept.id).await.phase, Phase::Running);
    world.quiet().await;
    assert_eq!(world.store.pending_exits().await.unwrap(), []);
    // It acts once: what runs again stays so.
    world.service.sandboxes().resume(&world.admin, pauses.id.as_str(), true).await.unwrap();
    let world = world.crash_and_reopen().await;
    world.quiet().await;
    assert_eq!(world.get(&pauses.id).await.phase, Phase::Running, "a crash is no exit");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_took_too_long_is_finished_before_any_request() {
    let mut world = World::new().await;
    let spec = CreateSandbox { on_exit: Some(OnExit::Destroy), ..CreateSandbox::default() };
    let goes = world.try_create(spec).await.unwrap();
    late_exit(&world, ProviderCall::Destroy).await;
    assert_eq!(world.get(&goes.id).await.phase, Phase::Deleting);
    let dir = world.crash().await;
    world.fake.release();
    let world = World::reopen(dir, world.fake.clone(), world.clock.clone()).await;
    world.until(&goes.id, Phase::Deleted).await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_left_in_time_is_left_alone_at_the_next_start() {
    let world = World::new().await;
    let (lease, _) = create(&world, talk("t")).await.unwrap();
    world.service.exit(SECOND * 10).await;
    let before = world.get(&lease.id).await;
    assert_eq!((before.phase, &before.reason), (Phase::Paused, &Reason::Exit));
    let world = world.crash_and_reopen().await;
    assert_eq!(world.store.pending_exits().await.unwrap(), [], "cleared before the first request");
    assert_eq!(world.get(&lease.id).await.generation, before.generation);
    let (bound, created) = create(&world, talk("t")).await.unwrap();
    assert_eq!((bound.id, created), (lease.id, Created::Bound), "the binding outlives the server");
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_client_made_ends_with_its_own_sandbox() {
    let world = World::new().await;
    let (who, sandboxes) = (&world.admin, world.service.sandboxes());
    let made = async |thread: &str| {
        let spec = CreateSandbox { thread: Some(thread.to_owned()), ..CreateSandbox::default() };
        let own = world.try_create(spec).await.unwrap();
        let ask = Fork { count: 1, ..Fork::default() };
        let fork = sandboxes.fork(who, own.id.as_str(), ask).await.unwrap().sandboxes.remove(0);
        for id in [&own.id, &fork.id] {
            sandboxes.snapshot(who, id.as_str(), NewSnapshot::default()).await.unwrap();
        }
        (own, fork)
    };
    let snapshots = async || sandboxes.snapshots(who, SnapshotFilter::default()).await.unwrap().items.len();
    let (other, other_fork) = made("transient-chat").await;
    let (ended, ended_fork) = made("transient-mcp-1").await;
    let (left, left_fork) = made("transient-mcp-2").await;
    assert_eq!(snapshots().await, 6);
    sandboxes.end_client(who, "transient-mcp-1").await.unwrap();
    for id in [&ended.id, &ended_fork.id] {
        assert_eq!(world.get(id).await.phase, Phase::Deleted);
    }
    assert_eq!(snapshots().await, 4);
    // A timer, or another client, deleted the sandboxes of these two; housekeeping finds what the tool client left.
    for id in [&left.id, &other.id] {
        sandboxes.delete(who, id.as_str(), true).await.unwrap();
    }
    assert_eq!(world.get(&left_fork.id).await.phase, Phase::Running);
    for _ in 0..22 {
        world.advance(std::time::Duration::from_secs(60)).await;
    }
    world.until(&left_fork.id, Phase::Deleted).await;
    assert_eq!(world.get(&other_fork.id).await.phase, Phase::Running, "a thread of a user keeps its forks");
    assert_eq!(snapshots().await, 2);
}
