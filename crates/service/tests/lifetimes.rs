//! Features for fronts: lifetimes that pause, placeholders in the environment, names that move, refusals by phase,
//! changes as they happen. Over the fake provider.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::world::World;
use atoll_model::lifecycle::{PhaseSet, Verb};
use atoll_model::{
    Code, CreateSandbox, LimitsAsk, OnTimeout, Origin, Phase, Storage, TimeoutCounts, TimersAsk,
    UpdateSandbox,
};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{
    Filter, Fork, NewSecret, NewSnapshot, Pause, SecretAbout, SecretChange, SortBy, VerbOptions,
};
use futures::StreamExt;

const MINUTE: Duration = Duration::from_secs(60);
/// After this time the state of a node is read again.
const STATE_OF_NODE: Duration = Duration::from_secs(2);

fn awake_for(timeout_s: u64) -> CreateSandbox {
    CreateSandbox {
        timeout_s: Some(timeout_s),
        timeout_counts: TimeoutCounts::Awake,
        ..CreateSandbox::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_that_counts_awake_stands_still_in_sleep_and_begins_anew() {
    let world = World::new().await;
    let lease = world.try_create(awake_for(60)).await.unwrap();
    let id = lease.id.as_str();
    world.service.sandboxes().pause(&world.admin, id, Pause::default(), true).await.unwrap();
    world.advance(MINUTE * 30).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Paused);
    let resumed = world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
    let now = resumed.phase_at.clone();
    assert_eq!(resumed.timeout_at.unwrap().ms_after(&now), 60_000);
    // One that has not ended gets its full length again too; a longer one is not shortened.
    world.advance(Duration::from_secs(50)).await;
    world.service.sandboxes().pause(&world.admin, id, Pause::default(), true).await.unwrap();
    let resumed = world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
    assert_eq!(resumed.timeout_at.unwrap().ms_after(&resumed.phase_at), 60_000);
    let now = resumed.phase_at.clone();
    assert_eq!(resumed.started_at.as_ref(), Some(&now));
    world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    world.advance(MINUTE * 30).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Stopped);
    world.service.sandboxes().start(&world.admin, id, true).await.unwrap();
    world.advance(MINUTE + Duration::from_secs(1)).await;
    world.until(&lease.id, Phase::Deleted).await;
    // A lifetime that always counts also counts while the sandbox is asleep.
    let always = world.try_create(CreateSandbox { timeout_s: Some(60), ..Default::default() }).await.unwrap();
    world.service.sandboxes().stop(&world.admin, always.id.as_str(), true).await.unwrap();
    world.advance(MINUTE + Duration::from_secs(1)).await;
    world.until(&always.id, Phase::Deleted).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_of_nothing_is_over_now_and_a_longer_one_is_never_shortened() {
    let world = World::new().await;
    let lease = world.try_create(awake_for(60)).await.unwrap();
    let id = lease.id.as_str();
    let at_least = |s| UpdateSandbox { timeout_at_least_s: Some(s), ..Default::default() };
    let same = world.service.sandboxes().update(&world.admin, id, at_least(30)).await.unwrap();
    assert_eq!((same.timeout_s, &same.timeout_at), (Some(60), &lease.timeout_at));
    let longer = world.service.sandboxes().update(&world.admin, id, at_least(90)).await.unwrap();
    assert_eq!(longer.timeout_s, Some(90));
    let over = UpdateSandbox { timeout_s: Some(Some(0)), ..Default::default() };
    world.service.sandboxes().update(&world.admin, id, over).await.unwrap();
    world.advance(Duration::from_secs(1)).await;
    world.until(&lease.id, Phase::Deleted).await;
    let both = UpdateSandbox { timeout_s: Some(None), ..at_least(1) };
    assert_eq!(
        world.service.sandboxes().update(&world.admin, id, both).await.unwrap_err().code,
        Code::InvalidRequest
    );
    let paused = CreateSandbox { on_timeout: OnTimeout::Pause, ..awake_for(60) };
    let paused = world.try_create(paused).await.unwrap();
    let over = UpdateSandbox { timeout_s: Some(Some(0)), ..Default::default() };
    world.service.sandboxes().update(&world.admin, paused.id.as_str(), over).await.unwrap();
    world.advance(Duration::from_secs(1)).await;
    world.until(&paused.id, Phase::Paused).await;
    let again = world.service.sandboxes().resume(&world.admin, paused.id.as_str(), true).await.unwrap();
    assert_eq!(
        again.timeout_at.unwrap().ms_after(&again.phase_at),
        60_000,
        "it does not fall asleep at once"
    );
}

#[tokio::test(start_paused = true)]
async fn words_in_the_environment_mean_each_sandbox_itself() {
    let world = World::new().await;
    let env = [("ID", "{sandbox.id}"), ("FROM", "{sandbox.template}"), ("PLAIN", "a {sandbox.id}")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let lease = world.try_create(CreateSandbox { env, ..Default::default() }).await.unwrap();
    let forked =
        world.service.sandboxes().fork(&world.admin, lease.id.as_str(), Fork::default()).await.unwrap();
    for one in [&lease, &forked.sandboxes[0]] {
        let seen = world.fake.env(&one.id).unwrap();
        assert_eq!((&seen["ID"], &seen["FROM"]), (&one.id.to_string(), &one.template));
        assert_eq!(seen["PLAIN"], "a {sandbox.id}");
        assert_eq!(world.get(&one.id).await.env["ID"], "{sandbox.id}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_environment_is_there_for_the_next_command() {
    let world = World::new().await;
    let env = |name: &str| [(name.to_owned(), "1".to_owned())].into();
    let private_env = [("OLD".to_owned())].into();
    let spec = CreateSandbox { env: env("OLD"), private_env, ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    let (service, who, id) = (&world.service, &world.admin, lease.id.as_str());
    let change = |name: &str| UpdateSandbox { env: Some(env(name)), ..Default::default() };
    let changed = service.sandboxes().update(who, id, change("NEW")).await.unwrap();
    assert_eq!((&changed.env, changed.private_env.len()), (&env("NEW"), 0));
    assert_eq!(world.fake.env(&lease.id).unwrap(), env("NEW"));
    service.sandboxes().pause(who, id, Pause::default(), true).await.unwrap();
    assert_eq!(service.sandboxes().update(who, id, change("X")).await.unwrap_err().code, Code::PhaseConflict);
    service.sandboxes().stop(who, id, true).await.unwrap();
    service.sandboxes().update(who, id, change("LATER")).await.unwrap();
    service.sandboxes().start(who, id, true).await.unwrap();
    assert_eq!(world.fake.env(&lease.id).unwrap(), env("LATER"));
    assert_eq!(service.sandboxes().update(who, id, change("")).await.unwrap_err().code, Code::InvalidRequest);
}

#[tokio::test(start_paused = true)]
async fn commands_start_where_the_create_says() {
    let world = World::new().await;
    let at = |workdir: &str| CreateSandbox { workdir: Some(workdir.to_owned()), ..Default::default() };
    assert_eq!(world.try_create(at("/work")).await.unwrap().workdir, "/work");
    assert_eq!(world.try_create(at("work")).await.unwrap_err().code, Code::InvalidRequest);
}

#[tokio::test(start_paused = true)]
async fn only_what_failed_after_it_ran_is_recovered() {
    let world = World::new().await;
    let lease = world.create().await;
    let id = lease.id.as_str();
    let service = &world.service;
    assert_eq!(
        service.sandboxes().recover(&world.admin, id, true).await.unwrap_err().code,
        Code::PhaseConflict
    );
    world.fake.kill(&lease.id, true);
    assert!(world.until(&lease.id, Phase::Failed).await.is_recoverable());
    assert_eq!(service.sandboxes().recover(&world.admin, id, true).await.unwrap().phase, Phase::Running);
    world.fake.script(ProviderCall::Create, Script::Fail);
    let never =
        world.try_create(CreateSandbox { name: Some("never".to_owned()), ..Default::default() }).await;
    assert!(never.is_err());
    assert!(!service.sandboxes().get(&world.admin, "never").await.unwrap().is_recoverable());
    assert_eq!(
        service.sandboxes().recover(&world.admin, "never", true).await.unwrap_err().code,
        Code::PhaseConflict
    );
    let memory = CreateSandbox { storage: Storage::Memory, ..Default::default() };
    let memory = world.try_create(memory).await.unwrap();
    world.fake.kill(&memory.id, true);
    assert!(!world.until(&memory.id, Phase::Failed).await.is_recoverable());
}

#[tokio::test(start_paused = true)]
async fn a_verb_can_be_refused_where_it_would_do_nothing() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, who, id) = (&world.service, &world.admin, lease.id.as_str());
    let stoppable = VerbOptions::expecting(PhaseSet::of(&[Phase::Running, Phase::Paused]));
    service.sandboxes().stop(who, id, stoppable).await.unwrap();
    let error = service.sandboxes().stop(who, id, stoppable).await.unwrap_err();
    assert_eq!(error.code, Code::PhaseConflict);
    assert!(error.message.contains("stop"), "{}", error.message);
    let refused = error.refused.unwrap();
    assert_eq!((refused.verb, refused.lease.phase), (Verb::Stop, Phase::Stopped));
    // Sizes like those of a machine.
    let cpu = |cpu| LimitsAsk { cpu: Some(cpu), ..LimitsAsk::default() };
    assert_eq!(service.sandboxes().resize(who, id, cpu(0.5)).await.unwrap().limits.cpu_milli, 500);
    service.sandboxes().start(who, id, true).await.unwrap();
    assert_eq!(service.sandboxes().resize(who, id, cpu(0.25)).await.unwrap_err().code, Code::InvalidRequest);
    assert_eq!(service.sandboxes().resize(who, id, cpu(1.0)).await.unwrap().limits.cpu_milli, 1_000);
    service.sandboxes().pause(who, id, Pause::default(), true).await.unwrap();
    assert_eq!(service.sandboxes().resize(who, id, cpu(2.0)).await.unwrap_err().code, Code::PhaseConflict);
}

#[tokio::test(start_paused = true)]
async fn a_resize_is_bounded_by_the_cores_of_the_machine_as_a_create_is() {
    let world = World::new().await;
    let lease = world.create().await;
    world.fake.set_node(|node| node.cpu_total_milli = 2_000);
    world.advance(STATE_OF_NODE).await;
    let (sandboxes, who, id) = (world.service.sandboxes(), &world.admin, lease.id.as_str());
    let cpu = |cpu| LimitsAsk { cpu: Some(cpu), ..LimitsAsk::default() };
    let update = |limits| UpdateSandbox { limits, ..UpdateSandbox::default() };
    for phase in [Phase::Running, Phase::Stopped] {
        assert_eq!(world.get(&lease.id).await.phase, phase);
        for refused in [
            sandboxes.resize(who, id, cpu(33.0)).await.unwrap_err(),
            sandboxes.update(who, id, update(cpu(33.0))).await.unwrap_err(),
        ] {
            assert_eq!(refused.code, Code::InvalidRequest);
            assert!(refused.message.contains("at most 32"), "{}", refused.message);
        }
        assert_eq!(world.get(&lease.id).await.limits, lease.limits);
        sandboxes.stop(who, id, true).await.unwrap();
    }
    assert_eq!(sandboxes.resize(who, id, cpu(32.0)).await.unwrap().limits.cpu_milli, 32_000);
    // A limit of the time when the machine had more cores may become smaller.
    world.fake.set_node(|node| node.cpu_total_milli = 1_000);
    world.advance(STATE_OF_NODE).await;
    assert_eq!(sandboxes.resize(who, id, cpu(20.0)).await.unwrap().limits.cpu_milli, 20_000);
}

#[tokio::test(start_paused = true)]
async fn of_two_callers_that_expect_the_same_phase_one_is_refused() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, who, id) = (&world.service, &world.admin, lease.id.as_str());
    let running = VerbOptions::expecting(PhaseSet::of(&[Phase::Running]));
    let (one, other) = futures::join!(
        service.sandboxes().stop(who, id, running),
        service.sandboxes().stop(who, id, running)
    );
    assert_eq!(one.unwrap().phase, Phase::Stopped);
    let refused = other.unwrap_err().refused.unwrap();
    assert_eq!((refused.verb, refused.lease.phase), (Verb::Stop, Phase::Stopping));
    // What is not a change of phase is guarded alike.
    let expect = running.expect;
    let snapshot = NewSnapshot { expect, ..NewSnapshot::default() };
    let error = service.sandboxes().snapshot(who, id, snapshot).await.unwrap_err();
    assert_eq!(error.refused.unwrap().verb, Verb::Snapshot);
    let error = service.sandboxes().fork(who, id, Fork { expect, ..Fork::default() }).await.unwrap_err();
    assert_eq!(error.refused.unwrap().verb, Verb::Fork);
    let change = UpdateSandbox { timeout_s: Some(Some(60)), ..UpdateSandbox::default() };
    let error =
        service.sandboxes().update_in(who, id, change, PhaseSet::of(&[Phase::Running])).await.unwrap_err();
    assert_eq!(error.refused.unwrap().verb, Verb::Update);
    assert_eq!(world.get(&lease.id).await.timeout_s, None);
}

#[tokio::test(start_paused = true)]
async fn a_resize_is_shown_while_the_driver_is_at_it() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, who, id) = (&world.service, &world.admin, lease.id.as_str());
    let mut changes = service.follow_all(who);
    world.fake.script(ProviderCall::Resize, Script::Hold);
    let more = LimitsAsk { cpu: Some(2.0), ..LimitsAsk::default() };
    let look = async {
        let seen = loop {
            let seen = service.sandboxes().get(who, id).await.unwrap();
            if seen.limits.cpu_milli == 2_000 {
                break seen;
            }
            tokio::task::yield_now().await;
        };
        let listed = service.sandboxes().list(who, Filter::default()).await.unwrap().items;
        world.fake.release();
        (seen, listed)
    };
    let (resized, (seen, listed)) = futures::join!(service.sandboxes().resize(who, id, more), look);
    assert!(seen.resizing && listed[0].resizing);
    assert_eq!(seen.phase, Phase::Running);
    assert!(!resized.unwrap().resizing && !world.get(&lease.id).await.resizing);
    for resizing in [true, false] {
        assert_eq!(changes.next().await.unwrap().lease.resizing, resizing);
    }
    // One that the provider refuses is over too.
    world.fake.script(ProviderCall::Resize, Script::Fail);
    let more = LimitsAsk { cpu: Some(4.0), ..LimitsAsk::default() };
    service.sandboxes().resize(who, id, more).await.unwrap_err();
    assert!(!world.get(&lease.id).await.resizing);
    // Nothing else is shown so.
    let labels =
        UpdateSandbox { labels: Some([("a".to_owned(), "b".to_owned())].into()), ..Default::default() };
    assert!(!service.sandboxes().update(who, id, labels).await.unwrap().resizing);
}

#[tokio::test(start_paused = true)]
async fn a_touch_is_work_and_wakes_nobody() {
    let world = World::new().await;
    let timers = TimersAsk { auto_stop_s: Some(60), ..Default::default() };
    let lease = world.try_create(CreateSandbox { timers, ..Default::default() }).await.unwrap();
    let id = lease.id.as_str();
    let begun = world.service.sandboxes().active_at_ms(&lease).unwrap();
    for _ in 0..3 {
        world.advance(Duration::from_secs(40)).await;
        world.service.sandboxes().touch(&world.admin, id).await.unwrap();
    }
    let touched = world.get(&lease.id).await;
    assert_eq!(touched.phase, Phase::Running);
    assert_eq!(world.service.sandboxes().active_at_ms(&touched), Some(begun + 120_000));
    world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    let asleep = world.service.sandboxes().touch(&world.admin, id).await.unwrap();
    assert_eq!(asleep.phase, Phase::Stopped);
    let stranger = world.stranger().await;
    assert_eq!(world.service.sandboxes().touch(&stranger, id).await.unwrap_err().code, Code::SandboxNotFound);
}

#[tokio::test(start_paused = true)]
async fn who_listens_hears_every_phase_of_what_it_sees() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    let mut mine = world.service.follow_all(&world.admin);
    let mut theirs = world.service.follow_all(&stranger);
    let lease = world.create().await;
    let id = lease.id.as_str();
    world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    world.service.sandboxes().delete(&world.admin, id, true).await.unwrap();
    let mut was = None;
    for phase in
        [Phase::Creating, Phase::Running, Phase::Stopping, Phase::Stopped, Phase::Deleting, Phase::Deleted]
    {
        let change = tokio::time::timeout(MINUTE, mine.next()).await.unwrap().unwrap();
        let before = change.before.as_ref().map(|before| before.phase);
        assert_eq!((&change.lease.id, before, change.lease.phase), (&lease.id, was, phase));
        was = Some(phase);
    }
    let (own, _) = world.service.sandboxes().create(&stranger, CreateSandbox::default(), true).await.unwrap();
    let change = tokio::time::timeout(MINUTE, theirs.next()).await.unwrap().unwrap();
    assert_eq!(change.lease.id, own.id, "what is somebody else's was not told");
    world.service.shutdown(MINUTE).await;
    while let Some(change) = tokio::time::timeout(MINUTE, theirs.next()).await.unwrap() {
        assert_eq!(change.lease.id, own.id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_moves_to_the_newest_snapshot_and_the_former_stays() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, who, id) = (&world.service, &world.admin, lease.id.as_str());
    let ask =
        |memory| NewSnapshot { name: Some("v".to_owned()), memory, replace: true, ..Default::default() };
    let first = service.sandboxes().snapshot(who, id, ask(true)).await.unwrap();
    let second = service.sandboxes().snapshot(who, id, ask(false)).await.unwrap();
    assert_eq!(service.sandboxes().get_snapshot(who, "v").await.unwrap().id, second.id);
    let former = service.sandboxes().get_snapshot(who, first.id.as_str()).await.unwrap();
    assert_eq!((former.name.as_ref(), former.memory), (None, true));
    let taken = service
        .sandboxes()
        .snapshot(who, id, NewSnapshot { replace: false, ..ask(false) })
        .await
        .unwrap_err();
    assert_eq!(taken.code, Code::NameTaken);
    // The agent of its processes still accepts its token.
    let from = Origin::Named(first.id.to_string());
    let made = world.try_create(CreateSandbox { from, ..Default::default() }).await.unwrap();
    assert_eq!(made.phase, Phase::Running);
    // Sandboxes that were created from it are found by it.
    let filter = Filter { made_from: vec![first.id.to_string()], ..Filter::default() };
    let found = service.sandboxes().list(who, filter).await.unwrap().items;
    assert_eq!(found.iter().map(|lease| &lease.id).collect::<Vec<_>>(), [&made.id]);
}

#[tokio::test(start_paused = true)]
async fn a_fork_of_one_may_have_a_name() {
    let world = World::new().await;
    let lease = world.create().await;
    let (service, who, id) = (&world.service, &world.admin, lease.id.as_str());
    let named = |count| Fork { count, name: Some("child".to_owned()), ..Fork::default() };
    let forked = service.sandboxes().fork(who, id, named(1)).await.unwrap();
    assert_eq!(service.sandboxes().get(who, "child").await.unwrap().id, forked.sandboxes[0].id);
    assert_eq!(service.sandboxes().fork(who, id, named(1)).await.unwrap_err().code, Code::NameTaken);
    assert_eq!(service.sandboxes().fork(who, id, named(2)).await.unwrap_err().code, Code::InvalidRequest);
}

#[tokio::test(start_paused = true)]
async fn lists_come_newest_start_first() {
    let world = World::new().await;
    let (one, two) = (world.create().await, world.create().await);
    world.advance(Duration::from_secs(5)).await;
    world.service.sandboxes().restart(&world.admin, one.id.as_str(), true).await.unwrap();
    let started = world.get(&one.id).await.started_at.unwrap().wall_ms;
    let list = |filter| async {
        let page = world.service.sandboxes().list(&world.admin, filter).await.unwrap();
        page.items.into_iter().map(|lease| lease.id).collect::<Vec<_>>()
    };
    let newest = Filter { sort: SortBy::Started, ..Filter::default() };
    assert_eq!(list(newest.clone()).await, [one.id.clone(), two.id.clone()]);
    assert_eq!(list(Filter::default()).await, [two.id.clone(), one.id.clone()]);
    assert_eq!(
        list(Filter { started_after_ms: Some(started), ..newest }).await,
        std::slice::from_ref(&one.id)
    );
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_found_by_id_and_name_and_counts_its_values() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let about = SecretAbout { description: Some("d".to_owned()), ..SecretAbout::default() };
    let new = NewSecret { name: "KEY".to_owned(), value: "one".to_owned(), about };
    let made = service.access().create_secret(who, new).await.unwrap();
    assert_eq!(service.access().get_secret(who, "KEY").await.unwrap(), made);
    assert_eq!(service.access().get_secret(who, made.id.as_str()).await.unwrap(), made);
    world.advance(Duration::from_secs(1)).await;
    let value = SecretChange { value: Some("two".to_owned()), about: None };
    assert!(!format!("{value:?}").contains("two"));
    let changed = service.access().update_secret(who, made.id.as_str(), value).await.unwrap();
    assert_eq!((changed.version, &changed.about), (2, &made.about));
    assert!(changed.changed_at_ms > made.changed_at_ms);
    let hosts = SecretAbout { hosts: vec!["a b\n".to_owned()], ..SecretAbout::default() };
    let odd = SecretChange { value: None, about: Some(hosts) };
    assert_eq!(service.access().update_secret(who, "KEY", odd).await.unwrap_err().code, Code::InvalidRequest);
    let stranger = world.stranger().await;
    for ident in ["KEY", made.id.as_str()] {
        assert_eq!(
            service.access().get_secret(&stranger, ident).await.unwrap_err().code,
            Code::SecretNotFound
        );
        assert_eq!(
            service.access().delete_secret(&stranger, ident).await.unwrap_err().code,
            Code::SecretNotFound
        );
    }
    service.access().delete_secret(who, made.id.as_str()).await.unwrap();
    assert_eq!(service.access().get_secret(who, "KEY").await.unwrap_err().code, Code::SecretNotFound);
}
