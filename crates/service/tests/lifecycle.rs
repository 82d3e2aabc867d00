//! Drivers over the fake provider: operations, failures, deadlines, late results.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::policy::egress;
use atoll_model::{
    Code, CreateSandbox, EventKind, Lease, Limits, LimitsAsk, MemoryLocation, NetworkPolicy, OnTimeout,
    Phase, Quota, Reason, Scope, UpdateSandbox, Wake,
};
use atoll_provider::NoticeKind;
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{Created, Exec, FailPoint, Filter, NewKey, Pause};
use futures::StreamExt;

const MINUTE: Duration = Duration::from_secs(60);

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.to_owned()), ..Default::default() }
}

fn argv(words: &[&str]) -> Exec {
    Exec { argv: words.iter().map(|word| (*word).to_owned()).collect(), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn a_created_sandbox_runs_and_is_written_down() {
    let world = World::new().await;
    let lease = world.create().await;
    assert_eq!((lease.phase, lease.generation), (Phase::Running, 2), "two commits, no more");
    assert_eq!(world.store.lease(&lease.id).await.unwrap().unwrap(), lease);
    assert_eq!(world.fake.holds(), [(lease.id.clone(), lease.instance.clone())]);
    let out =
        world.service.sandboxes().exec(&world.admin, lease.id.as_str(), argv(&["echo", "hi"])).await.unwrap();
    assert_eq!((out.exit_code, out.stdout.to_vec()), (0, b"hi\n".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn how_a_command_ended_is_told_as_a_shell_would() {
    let world = World::new().await;
    let id = world.create().await.id;
    let run = |word: &'static str| world.service.sandboxes().exec(&world.admin, id.as_str(), argv(&[word]));
    assert_eq!(run("false").await.unwrap().exit_code, 1);
    let killed = run("yell").await.unwrap();
    assert_eq!((killed.exit_code, killed.signal, killed.stderr.to_vec()), (137, Some(9), b"ow\n".to_vec()));
    let late = run("late").await.unwrap();
    assert_eq!((late.exit_code, late.timed_out), (124, true));
    assert_eq!(run("no-such-program").await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(run("cut").await.unwrap_err().code, Code::SandboxUnavailable);
}

fn with_command(words: &[&str]) -> CreateSandbox {
    let command = words.iter().map(|word| (*word).to_owned()).collect();
    CreateSandbox { command: Some(command), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn a_start_command_that_fails_is_in_the_lease_until_the_next_boot() {
    let world = World::new().await;
    let missing = world.try_create(with_command(&["w2"])).await.unwrap();
    let failure = missing.command_failure.unwrap();
    assert_eq!((failure.exit_code, failure.message.as_str()), (127, "no such program"));
    assert_eq!(missing.phase, Phase::Running, "its files are there to find the reason");

    let ended = world.try_create(with_command(&["false"])).await.unwrap();
    let failure = loop {
        match world.get(&ended.id).await.command_failure {
            Some(failure) => break failure,
            None => crate::world::breathe().await,
        }
    };
    assert_eq!(failure.exit_code, 1);
    assert_eq!(failure.message, "the start command ended with status 1");
    let events = world.service.events(&world.admin, Some(ended.id.as_str()), None, 100).await.unwrap();
    let field = "command_failure".to_owned();
    let is_told = events.iter().any(|event| match &event.what {
        EventKind::Updated { fields } => fields.contains(&field),
        _ => false,
    });
    assert!(is_told, "{events:?}");

    let stopped = world.service.sandboxes().stop(&world.admin, missing.id.as_str(), true).await.unwrap();
    assert!(stopped.command_failure.is_some(), "it is kept until the next boot");
    for (words, failed) in [(&["echo", "x"][..], false), (&["wait"], false)] {
        let lease = world.try_create(with_command(words)).await.unwrap();
        world.quiet().await;
        assert_eq!(world.get(&lease.id).await.command_failure.is_some(), failed, "{words:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_fails_is_failed_and_cleaned_up() {
    for script in [Script::Fail, Script::FailAfter, Script::Panic] {
        let world = World::new().await;
        world.fake.script(ProviderCall::Create, script);
        let error = world.try_create(named("x")).await.unwrap_err();
        assert_eq!(error.code, Code::Internal);
        let lease = world.service.sandboxes().get(&world.admin, "x").await.unwrap();
        assert_eq!(lease.phase, Phase::Failed);
        world.quiet().await;
        assert_eq!(world.fake.calls(ProviderCall::Halt, &lease.id), 1, "cleanup was called");
        assert_eq!(world.fake.holds(), []);
        let lost = world.service.sandboxes().start(&world.admin, "x", true).await.unwrap_err();
        assert_eq!(lost.hint.as_deref(), Some("delete it and create a new one"));
        let gone = world.service.sandboxes().delete(&world.admin, "x", true).await.unwrap();
        assert_eq!(gone.phase, Phase::Deleted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_create_leaves_nothing_and_its_name_is_free() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::Refuse);
    let refused = world.try_create(named("x")).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (Code::NoCapacity, "no scripted space left"));
    assert_eq!(world.store.live().await.unwrap().len(), 0);
    assert_eq!(world.fake.holds(), []);
    assert_eq!(world.try_create(named("x")).await.unwrap().phase, Phase::Running);
    // A repeated request is a new try.
    world.fake.script(ProviderCall::Create, Script::Refuse);
    let keyed = CreateSandbox { idempotency_key: Some("k".to_owned()), ..named("z") };
    world.try_create(keyed.clone()).await.unwrap_err();
    let made = world.try_create(keyed.clone()).await.unwrap();
    assert_eq!((made.phase, world.try_create(keyed).await.unwrap().id), (Phase::Running, made.id));
    // A caller that does not wait reads the reason from the sandbox.
    world.fake.script(ProviderCall::Create, Script::Refuse);
    let (lease, _) = world.service.sandboxes().create(&world.admin, named("y"), false).await.unwrap();
    let failed = world.until(&lease.id, Phase::Failed).await;
    assert!(matches!(failed.reason, Reason::Provider { message } if message == "no scripted space left"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_failed_is_done_when_the_provider_answers_again() {
    let world = World::new().await;
    let lease = world.create().await;
    world.fake.script(ProviderCall::Halt, Script::Fail);
    let sandboxes = world.service.sandboxes();
    sandboxes.stop(&world.admin, lease.id.as_str(), true).await.unwrap_err();
    world.until(&lease.id, Phase::Stopped).await;
    let started = sandboxes.start(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(started.phase, Phase::Running);
    // A sandbox that died is not stopped by the end of what is left of it.
    world.fake.kill(&lease.id, true);
    world.until(&lease.id, Phase::Failed).await;
    world.quiet().await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Failed);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_refuses_its_settings_fails_the_create() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::WrongToken);
    let error = world.try_create(named("x")).await.unwrap_err();
    assert_eq!(error.code, Code::SandboxUnavailable);
    let lease = world.service.sandboxes().get(&world.admin, "x").await.unwrap();
    assert_eq!(lease.phase, Phase::Failed);
    world.quiet().await;
    assert_eq!(
        world.fake.holds(),
        [(lease.id, None)],
        "the instance was ended, the files wait for the delete"
    );
    world.service.sandboxes().delete(&world.admin, "x", true).await.unwrap();
    assert_eq!(world.fake.holds(), []);
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_not_there_is_named() {
    let world = World::new().await;
    // `broken` is in the catalog and not at the provider; `unknown` is in neither.
    for template in ["broken", "unknown"] {
        let spec = CreateSandbox { template: Some(template.to_owned()), ..Default::default() };
        let error = world.try_create(spec).await.unwrap_err();
        assert_eq!(error.code, Code::TemplateNotFound);
        assert!(error.message.contains(template), "{error}");
    }
    assert_eq!(world.fake.holds(), []);
}

#[tokio::test(start_paused = true)]
async fn a_delete_during_create_leaves_nothing() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::Hold);
    let (lease, _) = world.service.sandboxes().create(&world.admin, named("x"), false).await.unwrap();
    assert_eq!(lease.phase, Phase::Creating);
    let deleting = world.service.sandboxes().delete(&world.admin, "x", false).await.unwrap();
    assert_eq!(deleting.phase, Phase::Deleting);
    world.fake.release();
    world.until(&lease.id, Phase::Deleted).await;
    assert_eq!(world.fake.holds(), []);
    assert!(world.service.stats().late_effects_total >= 1, "the create's success came late and was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_create_that_hangs_is_dropped_and_destroyed() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::Hold);
    let (lease, _) = world.service.sandboxes().create(&world.admin, named("x"), false).await.unwrap();
    world.quiet().await;
    world.service.sandboxes().delete(&world.admin, "x", false).await.unwrap();
    world.advance(Duration::from_secs(6)).await;
    world.until(&lease.id, Phase::Deleted).await;
    assert_eq!(world.fake.holds(), []);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_changes_nothing() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::Hold);
    {
        let create = world.service.sandboxes().create(&world.admin, named("x"), true);
        tokio::pin!(create);
        let until = async { while world.service.sandboxes().get(&world.admin, "x").await.is_err() {} };
        tokio::select! { _ = &mut create => panic!("held"), () = until => {} }
    }
    world.fake.release();
    let id = world.service.sandboxes().get(&world.admin, "x").await.unwrap().id;
    world.until(&id, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn stop_start_and_restart_make_new_instances_on_the_same_files() {
    let world = World::new().await;
    let explicit = CreateSandbox { wake: Wake::Explicit, ..Default::default() };
    let first = world.try_create(explicit).await.unwrap();
    let id = first.id.as_str();
    world.fake.files(&first.id, |files| files.insert("/a".to_owned(), vec![1])).unwrap();
    let stopped = world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    assert_eq!((stopped.phase, &stopped.instance), (Phase::Stopped, &None));
    assert_eq!(
        world.service.sandboxes().stop(&world.admin, id, true).await.unwrap().generation,
        stopped.generation
    );
    let refused = world.service.sandboxes().exec(&world.admin, id, argv(&["echo"])).await.unwrap_err();
    assert_eq!(refused.code, Code::Asleep);
    let started = world.service.sandboxes().start(&world.admin, id, true).await.unwrap();
    assert_ne!(started.instance, first.instance);
    let again = world.service.sandboxes().restart(&world.admin, id, true).await.unwrap();
    assert_eq!(again.phase, Phase::Running);
    assert_ne!(again.instance, started.instance);
    assert_eq!(world.fake.files(&first.id, |files| files.len()), Some(1));
    assert_eq!(world.fake.holds(), [(again.id.clone(), again.instance)]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_room_says_so_and_leaves_it_stopped() {
    let world = World::new().await;
    let lease = world.create().await;
    world.fake.script(ProviderCall::Halt, Script::Hold);
    let restart = world.service.sandboxes().restart(&world.admin, lease.id.as_str(), true);
    let squeeze = async {
        world.until(&lease.id, Phase::Stopping).await;
        world.advance(Duration::from_secs(2)).await;
        world.fake.set_node(|node| node.memory_free_mib = 0);
        world.fake.release();
    };
    let (restarted, ()) = futures::future::join(restart, squeeze).await;
    assert_eq!(restarted.unwrap_err().code, Code::NoCapacity);
    assert_eq!(world.get(&lease.id).await.phase, Phase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn verbs_that_do_not_fit_the_phase_say_what_would_help() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::Hold);
    let (lease, _) =
        world.service.sandboxes().create(&world.admin, CreateSandbox::default(), false).await.unwrap();
    let error = world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap_err();
    assert_eq!((error.code, error.hint.as_deref()), (Code::PhaseConflict, Some("wait until it runs")));
    world.fake.release();
}

#[tokio::test(start_paused = true)]
async fn a_timeout_fires_on_time_and_not_early_after_a_jump_of_the_clock() {
    let world = World::new().await;
    let timed = |on_timeout| CreateSandbox { timeout_s: Some(60), on_timeout, ..Default::default() };
    let deleted = world.try_create(timed(OnTimeout::Delete)).await.unwrap();
    let stopped = world.try_create(timed(OnTimeout::Stop)).await.unwrap();
    world.clock.jump_wall_ms(3_600_000);
    world.advance(Duration::from_secs(59)).await;
    assert_eq!(world.get(&deleted.id).await.phase, Phase::Running);
    world.clock.jump_wall_ms(-7_200_000);
    world.advance(Duration::from_millis(1_500)).await;
    world.until(&deleted.id, Phase::Deleted).await;
    let lease = world.until(&stopped.id, Phase::Stopped).await;
    assert_eq!(lease.timeout_s, Some(60));
    assert_eq!(world.fake.holds(), [(stopped.id, None)]);
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_can_be_extended_and_removed() {
    let world = World::new().await;
    let spec = CreateSandbox { timeout_s: Some(60), ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    let set = |timeout_s| UpdateSandbox { timeout_s: Some(timeout_s), ..Default::default() };
    world.service.sandboxes().update(&world.admin, lease.id.as_str(), set(Some(300))).await.unwrap();
    world.advance(MINUTE * 2).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    world.service.sandboxes().update(&world.admin, lease.id.as_str(), set(None)).await.unwrap();
    world.advance(MINUTE * 10).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_passing_phase_that_lasts_too_long_fails() {
    let world = World::new().await;
    world.fake.script(ProviderCall::Create, Script::Hold);
    let (lease, _) =
        world.service.sandboxes().create(&world.admin, CreateSandbox::default(), false).await.unwrap();
    world.quiet().await;
    world.advance(MINUTE + Duration::from_secs(1)).await;
    let failed = world.until(&lease.id, Phase::Failed).await;
    assert_eq!(failed.reason, Reason::Overdue);
    world.advance(Duration::from_secs(6)).await;
    assert_eq!(world.fake.holds(), []);
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_fails_is_tried_until_it_works() {
    let world = World::new().await;
    let lease = world.create().await;
    for _ in 0..3 {
        world.fake.script(ProviderCall::Destroy, Script::Fail);
    }
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), false).await.unwrap();
    for _ in 0..4 {
        world.advance(Duration::from_secs(5)).await;
    }
    world.until(&lease.id, Phase::Deleted).await;
    assert_eq!(world.fake.calls(ProviderCall::Destroy, &lease.id), 4);
    let again = world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(again.phase, Phase::Deleted);
}

#[tokio::test(start_paused = true)]
async fn a_delete_at_a_provider_that_is_down_answers_soon_and_goes_on() {
    let world = World::new().await;
    let lease = world.create().await;
    for _ in 0..5 {
        world.fake.script(ProviderCall::Destroy, Script::Fail);
    }
    let sandboxes = world.service.sandboxes();
    let three_seconds = async {
        for _ in 0..6 {
            world.advance(Duration::from_millis(500)).await;
        }
        world.get(&lease.id).await.phase
    };
    let (answer, phase) =
        tokio::join!(sandboxes.delete(&world.admin, lease.id.as_str(), true), three_seconds);
    assert!(answer.unwrap_err().message.contains("is being deleted"));
    assert_eq!(phase, Phase::Deleting);
    let destroys = || world.fake.calls(ProviderCall::Destroy, &lease.id);
    // In steps that are shorter than the waits between the calls: later calls would pass the deadline of the phase, which starts
    // one more.
    for _ in 0..80 {
        if destroys() == 6 {
            break;
        }
        world.advance(Duration::from_secs(1)).await;
    }
    world.until(&lease.id, Phase::Deleted).await;
    assert_eq!(destroys(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_death_makes_it_failed_and_it_can_be_started_again() {
    let world = World::new().await;
    let lease = world.create().await;
    world.fake.kill(&lease.id, true);
    let failed = world.until(&lease.id, Phase::Failed).await;
    assert_eq!((failed.reason, failed.instance), (Reason::InstanceDied, None));
    let running = world.service.sandboxes().start(&world.admin, lease.id.as_str(), true).await.unwrap();
    // A late notice of the first instance must not affect the second.
    world.fake.tell(&lease.id, lease.instance.as_ref().unwrap(), NoticeKind::Died);
    world.quiet().await;
    assert_eq!(world.get(&lease.id).await, running);
}

#[tokio::test(start_paused = true)]
async fn limits_and_policy_are_put_in_force_or_taken_back() {
    let world = World::new().await;
    let lease = world.create().await;
    let change = UpdateSandbox {
        limits: LimitsAsk { memory_mib: Some(1_024), ..Default::default() },
        network: Some(NetworkPolicy::deny_all()),
        ..Default::default()
    };
    let updated = world.service.sandboxes().update(&world.admin, lease.id.as_str(), change).await.unwrap();
    let closed = egress::compile(&egress::TenantFloor::default(), None, &NetworkPolicy::deny_all(), &[]);
    assert_eq!(world.fake.in_force(&lease.id), Some((updated.limits, std::sync::Arc::new(closed))));
    world.fake.script(ProviderCall::Resize, Script::Fail);
    let change = UpdateSandbox {
        limits: LimitsAsk { memory_mib: Some(2_048), ..Default::default() },
        ..Default::default()
    };
    assert!(world.service.sandboxes().update(&world.admin, lease.id.as_str(), change).await.is_err());
    assert_eq!(world.get(&lease.id).await.limits.memory_mib, 1_024);
}

#[tokio::test(start_paused = true)]
async fn the_same_idempotency_key_makes_one_sandbox() {
    let world = World::new().await;
    let keyed = |name: &str| CreateSandbox { idempotency_key: Some("k".to_owned()), ..named(name) };
    let creates = (0..20).map(|_| world.service.sandboxes().create(&world.admin, keyed("x"), true));
    let made = futures::future::join_all(creates).await;
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    assert!(made.iter().all(|(lease, _)| lease.id == made[0].0.id));
    assert_eq!(made.iter().filter(|(_, created)| *created == Created::New).count(), 1);
    let other = world.service.sandboxes().create(&world.admin, keyed("y"), true).await.unwrap_err();
    assert_eq!(other.code, Code::IdempotencyMismatch);
    assert_eq!(world.fake.holds().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_create_is_answered_also_when_it_took_the_last_place() {
    let world =
        World::with(Options { config: Some(Box::new(|config| config.live_max = 1)), ..Default::default() })
            .await;
    let keyed = CreateSandbox { idempotency_key: Some("k".to_owned()), ..Default::default() };
    let first = world.try_create(keyed.clone()).await.unwrap();
    let (again, created) = world.service.sandboxes().create(&world.admin, keyed, true).await.unwrap();
    assert_eq!((again.id, created), (first.id, Created::Replayed));
    assert_eq!(world.try_create(CreateSandbox::default()).await.unwrap_err().code, Code::NoCapacity);
}

#[tokio::test(start_paused = true)]
async fn racing_creates_meet_quota_and_room_exactly() {
    let world =
        World::with(Options { config: Some(Box::new(|config| config.live_max = 25)), ..Default::default() })
            .await;
    let tenant = world
        .service
        .access()
        .create_tenant(&world.admin, "small", Quota { sandboxes: Some(10), ..Default::default() })
        .await
        .unwrap();
    let key = NewKey { tenant: Some("small".to_owned()), scope: Scope::User, name: None };
    let key = world.service.access().create_key(&world.admin, key).await.unwrap();
    let user = world.service.access().authenticate(&key.secret).await.unwrap();
    assert_eq!(user.tenant, tenant.id);
    let creates = (0..20).map(|_| world.service.sandboxes().create(&user, CreateSandbox::default(), true));
    let outcomes = futures::future::join_all(creates).await;
    let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 10);
    assert!(refused.iter().all(|error| error.code == Code::QuotaExceeded));
    // The refused ones gave their room back: fifteen more fit, the sixteenth does not.
    let creates =
        (0..16).map(|_| world.service.sandboxes().create(&world.admin, CreateSandbox::default(), true));
    let outcomes = futures::future::join_all(creates).await;
    let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].code, refused[0].retry_after_s), (Code::NoCapacity, Some(5)));
    assert_eq!(world.service.access().tenant_usage(&user, "small").await.unwrap().0.sandboxes, 10);
}

#[tokio::test(start_paused = true)]
async fn tenants_do_not_see_each_other() {
    let world = World::new().await;
    let lease = world.try_create(named("mine")).await.unwrap();
    world.service.access().create_tenant(&world.admin, "other", Quota::default()).await.unwrap();
    let key = NewKey { tenant: Some("other".to_owned()), scope: Scope::User, name: None };
    let key = world.service.access().create_key(&world.admin, key).await.unwrap();
    let other = world.service.access().authenticate(&key.secret.replace("atl_", "e2b_")).await.unwrap();
    for ident in [lease.id.as_str(), "mine", &lease.id.as_str()[..6]] {
        let errors = [
            world.service.sandboxes().get(&other, ident).await.unwrap_err(),
            world.service.sandboxes().delete(&other, ident, true).await.unwrap_err(),
            world.service.sandboxes().exec(&other, ident, argv(&["echo"])).await.unwrap_err(),
            world.service.events(&other, Some(ident), None, 10).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.code == Code::SandboxNotFound), "{errors:?}");
    }
    assert!(world.service.sandboxes().list(&other, Filter::default()).await.unwrap().items.is_empty());
    assert!(world.service.events(&other, None, None, 10).await.unwrap().is_empty());
    assert_eq!(world.service.access().list_tenants(&other).await.unwrap_err().code, Code::Forbidden);
    let admin_key = NewKey { tenant: None, scope: Scope::Admin, name: None };
    assert_eq!(world.service.access().create_key(&other, admin_key).await.unwrap_err().code, Code::Forbidden);
    world.service.access().delete_key(&world.admin, &key.key.id).await.unwrap();
    assert_eq!(
        world.service.access().authenticate(&key.secret).await.unwrap_err().code,
        Code::Unauthenticated
    );
    let last = world.service.access().delete_key(&world.admin, &world.admin.key).await.unwrap_err();
    assert_eq!(last.code, Code::Forbidden);
}

#[tokio::test(start_paused = true)]
async fn a_follower_gets_every_event_once_and_in_order() {
    let world = World::new().await;
    let before = world.try_create(named("before")).await.unwrap();
    let follower = world.service.follow_events(&world.admin, None, Some(0)).await.unwrap();
    let creates =
        (0..30).map(|_| world.service.sandboxes().create(&world.admin, CreateSandbox::default(), true));
    let collect = follower.take(62).collect::<Vec<_>>();
    let (_, seen) = futures::future::join(futures::future::join_all(creates), collect).await;
    assert!(seen.is_sorted_by(|a, b| a.seq < b.seq));
    let to = |phase| {
        seen.iter().filter(|e| matches!(&e.what, EventKind::Phase { to, .. } if *to == phase)).count()
    };
    assert_eq!((to(Phase::Creating), to(Phase::Running)), (31, 31));
    assert_eq!(seen[0].sandbox, before.id);
    let own = world.service.events(&world.admin, Some("before"), None, 0).await.unwrap();
    assert_eq!(own.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_driver_is_contained() {
    let armed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let trip = armed.clone();
    let failpoint = FailPoint::new(move |place| {
        let trips = place == "advance.before" && trip.swap(false, std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move { assert!(!trips, "scripted") })
    });
    let world = World::with(Options { failpoint: Some(failpoint), ..Default::default() }).await;
    let (one, beside) = (world.create().await, world.create().await);
    armed.store(true, std::sync::atomic::Ordering::SeqCst);
    let error = world.service.sandboxes().stop(&world.admin, one.id.as_str(), true).await.unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert_eq!(world.get(&beside.id).await.phase, Phase::Running);
    let stopped = world.service.sandboxes().stop(&world.admin, one.id.as_str(), true).await.unwrap();
    assert_eq!(stopped.phase, Phase::Stopped, "its driver lives on");
    armed.store(true, std::sync::atomic::Ordering::SeqCst);
    let made = world.try_create(CreateSandbox::default()).await.unwrap_err();
    assert_eq!(made.code, Code::Internal);
    world.quiet().await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn samples_are_taken_and_bounded() {
    let world = World::with(Options {
        config: Some(Box::new(|config| {
            config.sample_every = Duration::from_secs(10);
            config.samples_kept = 3;
        })),
        ..Default::default()
    })
    .await;
    let lease = world.create().await;
    for _ in 0..5 {
        world.fake.work(&lease.id, Duration::ZERO, 1_000);
        world.advance(Duration::from_secs(10)).await;
    }
    let history =
        world.service.sandboxes().metrics_history(&world.admin, lease.id.as_str(), None, 0).await.unwrap();
    assert_eq!(history.len(), 3);
    let sent: Vec<_> = history.iter().map(|sample| sample.sent_bytes).collect();
    assert_eq!(sent, [Some(3_000), Some(4_000), Some(5_000)]);
    assert_eq!((history[2].received_bytes, history[2].received_kbps), (Some(0), Some(0.0)));
    assert!(history[2].sent_kbps.is_some_and(|kbps| (kbps - 0.8).abs() < 0.01), "{:?}", history[2]);
    let now = world.service.sandboxes().metrics_now(&world.admin, lease.id.as_str()).await.unwrap();
    assert_eq!((now.pids, now.limits), (1, Limits::default()));
}

#[tokio::test(start_paused = true)]
async fn a_template_in_use_is_not_removed() {
    let world = World::new().await;
    let lease = world.create().await;
    let error = world.service.templates().remove(&world.admin, "base").await.unwrap_err();
    assert_eq!(error.code, Code::TemplateInUse);
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.templates().remove(&world.admin, "base").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_nearly_right_gets_a_hint() {
    let world = World::new().await;
    world.try_create(named("build-1")).await.unwrap();
    let error = world.service.sandboxes().get(&world.admin, "biuld-1").await.unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("did you mean build-1?"));
    let taken = world.try_create(named("build-1")).await.unwrap_err();
    assert_eq!(taken.code, Code::NameTaken);
}

#[tokio::test(start_paused = true)]
async fn a_death_that_is_told_late_does_not_fail_a_sandbox_whose_memory_is_on_disk() {
    let world = World::new().await;
    let lease = world.create().await;
    let disk = Pause { memory: Some(MemoryLocation::Disk) };
    let paused = world.service.sandboxes().pause(&world.admin, lease.id.as_str(), disk, true).await.unwrap();
    assert_eq!((paused.phase, paused.held), (Phase::Paused, Some(MemoryLocation::Disk)));
    for instance in [lease.instance, paused.instance].iter().flatten() {
        world.fake.tell(&lease.id, instance, NoticeKind::Died);
    }
    world.quiet().await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Paused);
    world.service.sandboxes().resume(&world.admin, lease.id.as_str(), true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn default_limits_of_a_request_count_where_nothing_else_says_one() {
    let world = World::new().await;
    let default_limits = LimitsAsk { cpu: Some(2.0), memory_mib: Some(4_096), ..LimitsAsk::default() };
    let limits = LimitsAsk { memory_mib: Some(256), ..LimitsAsk::default() };
    let own = Limits::default();
    for (spec, cpu_milli, memory_mib) in [
        (CreateSandbox::default(), own.cpu_milli, own.memory_mib),
        (CreateSandbox { default_limits, ..CreateSandbox::default() }, 2_000, 4_096),
        (CreateSandbox { default_limits, limits, ..CreateSandbox::default() }, 2_000, 256),
    ] {
        let made = world.try_create(spec).await.unwrap().limits;
        assert_eq!((made.cpu_milli, made.memory_mib, made.disk_mib), (cpu_milli, memory_mib, own.disk_mib));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_leaves_its_machine_stops_what_runs_or_is_frozen_and_nothing_else() {
    let world = World::new().await;
    let (runs, frozen, on_disk) = (world.create().await, world.create().await, world.create().await);
    let sandboxes = world.service.sandboxes();
    for (lease, memory) in [(&frozen, MemoryLocation::Live), (&on_disk, MemoryLocation::Disk)] {
        let pause = Pause { memory: Some(memory) };
        sandboxes.pause(&world.admin, lease.id.as_str(), pause, true).await.unwrap();
    }
    world.service.stop_own_sandboxes().await.unwrap();
    let phase = async |lease: &Lease| world.get(&lease.id).await.phase;
    assert_eq!([phase(&runs).await, phase(&frozen).await], [Phase::Stopped, Phase::Stopped]);
    assert_eq!(phase(&on_disk).await, Phase::Paused, "its memory is kept");
    // A second call, as after an interrupted one, finds nothing to do.
    world.service.stop_own_sandboxes().await.unwrap();
    sandboxes.resume(&world.admin, runs.id.as_str(), true).await.unwrap();
}
