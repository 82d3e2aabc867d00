//! Sandboxes whose image is built or pulled first: ordinary leases that wait, over the fake provider, on a clock that
//! only the test moves.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::{
    BuildStatus, Code, CreateSandbox, EventKind, Lease, Phase, Principal, Quota, Reason, SandboxId, Stage,
};
use atoll_service::{BuildSource, FailPoint, Filter, ServiceError, StartBuild};
use futures::FutureExt;

const ENDLESS: &str = "FROM scratch\nRUN [\"wait\"]\n";
const QUICK: &str = "FROM scratch\nRUN [\"echo\", \"hello\"]\n";
const BAD: &str = "FROM scratch\nRUN [\"false\"]\n";

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.to_owned()), ..Default::default() }
}

async fn built(
    world: &World,
    who: &Principal,
    spec: CreateSandbox,
    dockerfile: &str,
) -> Result<Lease, ServiceError> {
    let build = StartBuild::of("app".parse().unwrap(), BuildSource::Text(dockerfile.to_owned()));
    world.service.builds().create_sandbox(who, spec, build, None).await.map(|(lease, _)| lease)
}

async fn until_stage(world: &World, id: &SandboxId, stage: Stage) -> Lease {
    for _ in 0..2_000 {
        let lease = world.get(id).await;
        if lease.stage == stage {
            return lease;
        }
        world.quiet().await;
    }
    panic!("{:?}", world.get(id).await);
}

async fn build_status(world: &World, lease: &Lease) -> BuildStatus {
    let id = lease.image_build.as_ref().unwrap();
    world.service.builds().get(&world.admin, id.as_str()).await.unwrap().status
}

async fn list(world: &World, phases: Vec<Phase>) -> Vec<SandboxId> {
    let filter = Filter { phases, ..Default::default() };
    let page = world.service.sandboxes().list(&world.admin, filter).await.unwrap();
    page.items.into_iter().map(|lease| lease.id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_waits_for_its_build_and_boots_then() {
    let world = World::new().await;
    let spec = CreateSandbox {
        timeout_s: Some(60),
        env: [("OWN".to_owned(), "1".to_owned())].into(),
        ..named("app")
    };
    let lease = built(&world, &world.admin, spec, QUICK).await.unwrap();
    assert_eq!((lease.phase, lease.stage), (Phase::Creating, Stage::Queued));
    assert_eq!((&lease.instance, &lease.timeout_at, lease.template.as_str()), (&None, &None, "app"));
    let refused = world.service.sandboxes().processes(&world.admin, lease.id.as_str()).await;
    assert!(refused.is_err(), "it has no instance");
    let lease = world.until(&lease.id, Phase::Running).await;
    assert_eq!(build_status(&world, &lease).await, BuildStatus::Ready);
    assert_eq!((lease.stage, &lease.awaits, lease.env["OWN"].as_str()), (Stage::Booting, &None, "1"));
    assert!(!lease.template_version.is_empty() && lease.instance.is_some());
    let began = lease.timeout_at.as_ref().unwrap().wall_ms - 60_000;
    assert!(began >= lease.created_at.wall_ms && began <= lease.started_at.unwrap().wall_ms);
    let events = world.service.events(&world.admin, Some(lease.id.as_str()), None, 0).await.unwrap();
    let told: Vec<String> = events
        .into_iter()
        .map(|event| match event.what {
            EventKind::Phase { to, .. } => to.as_str().to_owned(),
            EventKind::Stage { stage } => stage.as_str().to_owned(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(told, ["creating", "building", "booting", "running"]);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_build_leaves_a_failed_sandbox_that_says_why_until_it_is_deleted() {
    let world = World::new().await;
    let lease = built(&world, &world.admin, named("app"), BAD).await.unwrap();
    let (id, service) = (lease.id.as_str(), &world.service);
    let failed = world.until(&lease.id, Phase::Failed).await;
    assert!(failed.failed_in_build() && !failed.is_recoverable());
    let Reason::ImageUnavailable { message } = &failed.reason else { panic!("{:?}", failed.reason) };
    assert!(message.starts_with("step 1: ") && message.contains("line 2"), "{message}");
    let refused = service.sandboxes().start(&world.admin, id, true).await.unwrap_err();
    assert_eq!(refused.code, Code::PhaseConflict);
    assert_eq!(
        service.sandboxes().recover(&world.admin, id, true).await.unwrap_err().code,
        Code::PhaseConflict
    );
    let taken = world.try_create(named("app")).await.unwrap_err();
    assert_eq!(taken.code, Code::NameTaken);
    service.sandboxes().delete(&world.admin, id, true).await.unwrap();
    world.try_create(named("app")).await.unwrap();
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_sandbox_takes_its_place_and_a_delete_cancels_its_build() {
    let world = World::new().await;
    let mine = world.tenant("mine", Quota { sandboxes: Some(1), ..Default::default() }).await;
    let lease = built(&world, &mine, named("app"), ENDLESS).await.unwrap();
    until_stage(&world, &lease.id, Stage::Building).await;
    // The step of its own build runs in its place.
    for _ in 0..2_000 {
        if !world.fake.holds().is_empty() {
            break;
        }
        world.quiet().await;
    }
    assert_eq!(world.fake.holds().len(), 1, "the sandbox of the step");
    let full = world.service.sandboxes().create(&mine, CreateSandbox::default(), true).await.unwrap_err();
    assert_eq!(full.code, Code::QuotaExceeded);
    let creating = list(&world, vec![Phase::Creating]).await;
    assert_eq!(creating.as_slice(), std::slice::from_ref(&lease.id), "one list, and it is there once");
    for verb in ["stop", "pause", "start"] {
        let id = lease.id.as_str();
        let refused = match verb {
            "stop" => world.service.sandboxes().stop(&mine, id, true).await,
            "pause" => world.service.sandboxes().pause(&mine, id, Default::default(), true).await,
            _ => world.service.sandboxes().start(&mine, id, true).await,
        };
        assert_eq!(refused.unwrap_err().code, Code::PhaseConflict, "{verb}");
    }
    let gone = world.service.sandboxes().delete(&mine, lease.id.as_str(), true).await.unwrap();
    assert_eq!((gone.phase, gone.awaits), (Phase::Deleted, None));
    for _ in 0..2_000 {
        if build_status(&world, &lease).await.is_end() && world.fake.holds().is_empty() {
            break;
        }
        world.quiet().await;
    }
    assert_eq!(build_status(&world, &lease).await, BuildStatus::Cancelled);
    world.service.sandboxes().create(&mine, named("app"), true).await.unwrap();
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn no_build_begins_for_a_sandbox_that_is_refused() {
    let world = World::new().await;
    world.try_create(named("app")).await.unwrap();
    let refused = built(&world, &world.admin, named("app"), ENDLESS).await.unwrap_err();
    assert_eq!(refused.code, Code::NameTaken);
    let builds = world.service.builds().list(&world.admin, Default::default()).await.unwrap();
    assert!(builds.items.is_empty(), "{builds:?}");
    assert!(std::fs::read_dir(world.data().join("builds")).unwrap().next().is_none(), "nothing is staged");
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_a_waiting_sandbox_is_found_again_and_says_that_its_build_ended() {
    let mut world = World::new().await;
    for (name, stage) in [("one", Stage::Building), ("two", Stage::Building), ("three", Stage::Queued)] {
        let lease = built(&world, &world.admin, named(name), ENDLESS).await.unwrap();
        until_stage(&world, &lease.id, stage).await;
    }
    world = world.crash_and_reopen().await;
    for name in ["one", "two", "three"] {
        let found = world.service.sandboxes().get(&world.admin, name).await.unwrap();
        let failed = world.until(&found.id, Phase::Failed).await;
        let Reason::ImageUnavailable { message } = &failed.reason else { panic!("{:?}", failed.reason) };
        assert!(message.contains("the server ended"), "{message}");
        assert_eq!(world.try_create(named(name)).await.unwrap_err().code, Code::NameTaken);
        world.service.sandboxes().delete(&world.admin, name, true).await.unwrap();
        world.try_create(named(name)).await.unwrap();
    }
    world.assert_no_leaks().await;
}

/// Holds every pull at the moment when its files exist and its name does not.
fn held_pulls() -> (FailPoint, std::sync::Arc<tokio::sync::Semaphore>) {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let own = gate.clone();
    let hook = FailPoint::new(move |place| {
        let own = own.clone();
        async move {
            if place == "pull.files" {
                drop(own.acquire().await);
            }
        }
        .boxed()
    });
    (hook, gate)
}

fn image(image: &str) -> CreateSandbox {
    CreateSandbox { image: Some(image.to_owned()), ..named("box") }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_waits_for_its_image_and_a_pull_goes_on_after_a_crash() {
    let (failpoint, _gate) = held_pulls();
    let world = World::with(Options { failpoint: Some(failpoint), ..Default::default() }).await;
    let (lease, _) =
        world.service.sandboxes().create(&world.admin, image("python:3.12"), false).await.unwrap();
    assert_eq!((lease.phase, lease.stage, &lease.instance), (Phase::Creating, Stage::Queued, &None));
    let pulling = until_stage(&world, &lease.id, Stage::Pulling).await;
    assert_eq!((pulling.template.as_str(), pulling.image_build), ("python:3.12", None));
    // The wait for an image does not count as a slow boot.
    world.advance(Duration::from_secs(3_600)).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Creating);
    let world = world.crash_and_reopen().await;
    let lease = world.until(&lease.id, Phase::Running).await;
    assert_eq!((lease.template.as_str(), lease.awaits), ("python:3.12", None));
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_fails_is_told_to_who_waits_and_kept_for_who_does_not() {
    let world = World::new().await;
    let refused = world.try_create(image("none")).await.unwrap_err();
    assert_eq!(refused.code, Code::ImageNotFound);
    world.quiet().await;
    assert_eq!(list(&world, vec![]).await, [], "the answer said it all");
    let (lease, _) = world.service.sandboxes().create(&world.admin, image("none"), false).await.unwrap();
    let failed = world.until(&lease.id, Phase::Failed).await;
    assert!(matches!(failed.reason, Reason::ImageUnavailable { .. }) && !failed.failed_in_build());
    let odd = world.try_create(image("http://x/y")).await.unwrap_err();
    assert_eq!(odd.code, Code::InvalidRequest, "what is no image is refused before anything is written");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_an_image_ends_after_a_day() {
    let (failpoint, _gate) = held_pulls();
    let world = World::with(Options { failpoint: Some(failpoint), ..Default::default() }).await;
    let (lease, _) =
        world.service.sandboxes().create(&world.admin, image("python:3.12"), false).await.unwrap();
    until_stage(&world, &lease.id, Stage::Pulling).await;
    world.advance(Duration::from_secs(25 * 3_600)).await;
    assert_eq!(world.until(&lease.id, Phase::Failed).await.reason, Reason::Overdue);
}
