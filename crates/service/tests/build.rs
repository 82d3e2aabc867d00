//! Builds over the fake provider: turns, deadlines, ends and restarts, on a clock that only the test moves. The
//! whole-server tests cover the steps with real sandboxes.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::world::{Configure, Options, World};
use atoll_model::{Build, BuildLine, BuildStatus, Code, Principal, ReadyCheck, StartSettings};
use atoll_service::{AFTER_THE_STEPS, BuildFilter, BuildSecret, BuildSource, StartBuild};
use futures::StreamExt;

fn ask(name: &str, dockerfile: &str) -> StartBuild {
    StartBuild::of(name.parse().unwrap(), BuildSource::Text(dockerfile.to_owned()))
}

const ENDLESS: &str = "FROM scratch\nRUN [\"wait\"]\n";
const QUICK: &str = "FROM scratch\nRUN [\"echo\", \"hello\", \"there\"]\n";

async fn begin(world: &World, who: &Principal, name: &str, dockerfile: &str) -> Build {
    world.service.builds().start(who, ask(name, dockerfile), None).await.unwrap()
}

/// Waits in real time, not in that of the clock.
async fn until(world: &World, id: &str, is: impl Fn(&Build) -> bool) -> Build {
    for _ in 0..2_000 {
        let build = world.service.builds().get(&world.admin, id).await.unwrap();
        if is(&build) {
            return build;
        }
        world.quiet().await;
    }
    panic!("{:?}", world.service.builds().get(&world.admin, id).await);
}

async fn ended(world: &World, build: &Build) -> Build {
    until(world, build.id.as_str(), |build| build.status.is_end()).await
}

async fn at_work(world: &World, build: &Build) -> Build {
    until(world, build.id.as_str(), |build| build.step == 1 && build.status == BuildStatus::Building).await
}

async fn log(world: &World, build: &Build) -> Vec<BuildLine> {
    let lines = world.service.builds().log(&world.admin, build.id.as_str(), 0, true).await.unwrap();
    lines.collect().await
}

#[tokio::test(start_paused = true)]
async fn a_build_runs_its_steps_says_what_they_say_and_is_a_template_then() {
    let world = World::new().await;
    let build = begin(&world, &world.admin, "app:v1", QUICK).await;
    assert_eq!(build.status, BuildStatus::Waiting);
    let build = ended(&world, &build).await;
    assert_eq!(build.status, BuildStatus::Ready, "{build:?}");
    assert!(log(&world, &build).await.iter().any(|line| line.text == "hello there" && line.step == 1));
    let record = world.service.templates().get(&world.admin, "app:v1").await.unwrap();
    assert_eq!(Some(record.version), build.version);
    let again = begin(&world, &world.admin, "app:v1", QUICK).await;
    let again = ended(&world, &again).await;
    assert_eq!((again.cached_steps, again.version), (1, build.version));
    let page = world.service.builds().list(&world.admin, BuildFilter::default()).await.unwrap();
    assert_eq!(page.items.len(), 2);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_build_that_never_ends_is_ended_by_the_servers_own_deadline() {
    // The fake sends no keep-alive, so the deadline must come before a client's own timeout.
    let short: Configure = Box::new(|config| config.build_timeout = Duration::from_secs(20));
    let world = World::with(Options { config: Some(short), ..Default::default() }).await;
    let build = begin(&world, &world.admin, "endless", ENDLESS).await;
    at_work(&world, &build).await;
    world.advance(Duration::from_secs(19)).await;
    let known = world.service.builds().get(&world.admin, build.id.as_str()).await.unwrap();
    assert_eq!(known.status, BuildStatus::Building, "{known:?}");
    world.advance(Duration::from_secs(2)).await;
    let build = ended(&world, &build).await;
    assert_eq!(build.failure.as_ref().unwrap().code, Code::DeadlineExceeded, "{build:?}");
    assert_eq!(build.failure.unwrap().step, Some(1));
    world.quiet().await;
    assert!(world.fake.holds().is_empty(), "{:?}", world.fake.holds());
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_build_leaves_nothing_and_others_of_its_tenant_come_next() {
    let world = World::new().await;
    let mut builds = Vec::new();
    for name in ["one", "two", "three"] {
        builds.push(begin(&world, &world.admin, name, ENDLESS).await);
    }
    at_work(&world, &builds[0]).await;
    at_work(&world, &builds[1]).await;
    let third = world.service.builds().get(&world.admin, builds[2].id.as_str()).await.unwrap();
    assert_eq!(third.status, BuildStatus::Waiting, "a tenant has two at once");
    // Another tenant does not wait for them.
    let stranger = world.stranger().await;
    let theirs = begin(&world, &stranger, "theirs", QUICK).await;
    assert_eq!(ended(&world, &theirs).await.status, BuildStatus::Ready);
    let refused = world.service.builds().cancel(&stranger, builds[0].id.as_str()).await.unwrap_err();
    assert_eq!(refused.code, Code::BuildNotFound);
    let gone = world.service.builds().cancel(&world.admin, builds[0].id.as_str()).await.unwrap();
    assert_eq!(gone.status, BuildStatus::Cancelled);
    at_work(&world, &builds[2]).await;
    for build in &builds[1..] {
        world.service.builds().cancel(&world.admin, build.id.as_str()).await.unwrap();
    }
    world.quiet().await;
    assert!(world.fake.holds().is_empty(), "{:?}", world.fake.holds());
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_build_that_hangs_keeps_its_turn_for_a_minute_and_others_begin_then() {
    let long: Configure = Box::new(|config| config.build_timeout = Duration::from_secs(85));
    let world = World::with(Options { config: Some(long), ..Default::default() }).await;
    let mut stuck = Vec::new();
    for name in ["one", "two"] {
        stuck.push(begin(&world, &world.admin, name, ENDLESS).await);
    }
    for build in &stuck {
        at_work(&world, build).await;
    }
    let third = begin(&world, &world.admin, "three", QUICK).await;
    world.advance(Duration::from_secs(50)).await;
    let waits = world.service.builds().get(&world.admin, third.id.as_str()).await.unwrap();
    assert_eq!(waits.status, BuildStatus::Waiting, "{waits:?}");
    world.advance(Duration::from_secs(15)).await;
    assert_eq!(ended(&world, &third).await.status, BuildStatus::Ready);
    for build in &stuck {
        let build = world.service.builds().get(&world.admin, build.id.as_str()).await.unwrap();
        assert_eq!(build.status, BuildStatus::Building, "it goes on: {build:?}");
        world.service.builds().cancel(&world.admin, build.id.as_str()).await.unwrap();
    }
    world.quiet().await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_build_that_waits_for_its_ready_command_holds_no_turn() {
    let world = World::new().await;
    let mut waiting = Vec::new();
    for name in ["one", "two"] {
        let command = Some(vec!["wait".to_owned()]);
        let ready = Some(ReadyCheck::Command { command: "wait".into() });
        let settings = StartSettings { command, ready, ..StartSettings::default() };
        let ask = StartBuild { settings, ..ask(name, QUICK) };
        let build = world.service.builds().start(&world.admin, ask, None).await.unwrap();
        until(&world, build.id.as_str(), |build| build.step_text == AFTER_THE_STEPS).await;
        waiting.push(build);
    }
    let third = begin(&world, &world.admin, "three", QUICK).await;
    assert_eq!(ended(&world, &third).await.status, BuildStatus::Ready);
    for build in &waiting {
        let build = world.service.builds().get(&world.admin, build.id.as_str()).await.unwrap();
        assert_eq!(build.status, BuildStatus::Building, "{build:?}");
        world.service.builds().cancel(&world.admin, build.id.as_str()).await.unwrap();
    }
    world.quiet().await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_builds_have_failed_and_their_sandboxes_and_contexts_are_gone() {
    let world = World::new().await;
    let context = Box::new(std::io::Cursor::new(vec![0; 10_240]));
    let ask = ask("killed", ENDLESS);
    let build = world.service.builds().start(&world.admin, ask, Some(context)).await.unwrap();
    at_work(&world, &build).await;
    let folder = world.data().join("builds").join(build.id.as_str());
    assert!(folder.join("context.tar").exists());
    let world = world.crash_and_reopen().await;
    world.quiet().await;
    let build = world.service.builds().get(&world.admin, build.id.as_str()).await.unwrap();
    assert_eq!(build.status, BuildStatus::Failed);
    assert!(build.failure.unwrap().hint.unwrap().contains("cached"));
    assert!(!folder.join("context.tar").exists() && folder.join("log.jsonl").exists());
    assert!(world.fake.holds().is_empty(), "{:?}", world.fake.holds());
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_or_is_cut_off_is_said_with_its_line() {
    let world = World::new().await;
    for (program, code) in [("false", Some(1)), ("yell", Some(137)), ("no-such-program", None), ("cut", None)]
    {
        let dockerfile = format!("FROM scratch\n\nRUN [\"{program}\"]\n");
        let build = begin(&world, &world.admin, "bad", &dockerfile).await;
        let failure = ended(&world, &build).await.failure.unwrap();
        assert_eq!((failure.step, failure.exit_code), (Some(1), code), "{program}: {failure:?}");
        assert!(failure.message.contains("line 3"), "{failure:?}");
    }
    world.quiet().await;
    assert!(world.fake.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_built_is_refused_before_anything_is_kept() {
    let world = World::new().await;
    let refused =
        async |ask: StartBuild| world.service.builds().start(&world.admin, ask, None).await.unwrap_err().code;
    let no_context = StartBuild::of("x".parse().unwrap(), BuildSource::Dockerfile { path: None });
    assert_eq!(refused(no_context).await, Code::InvalidRequest);
    let secrets = [("a/b".to_owned(), BuildSecret::new("x"))].into();
    assert_eq!(refused(StartBuild { secrets, ..ask("x", QUICK) }).await, Code::InvalidRequest);
    assert!(std::fs::read_dir(world.data().join("builds")).map_or(true, |mut found| found.next().is_none()));
    // A context that is cut off leaves no folder either.
    let broken = tokio_util::io::StreamReader::new(Box::pin(futures::stream::iter([
        Ok(bytes::Bytes::from_static(b"some")),
        Err(std::io::Error::other("gone")),
    ])));
    let answer = world.service.builds().start(&world.admin, ask("x", QUICK), Some(Box::new(broken))).await;
    assert_eq!(answer.unwrap_err().code, Code::InvalidRequest);
    assert!(std::fs::read_dir(world.data().join("builds")).unwrap().next().is_none());
    let uploads = world.data().join("uploads").join(world.admin.tenant.as_str());
    assert!(std::fs::read_dir(uploads).unwrap().next().is_none(), "a part of the context is left");
}

#[tokio::test(start_paused = true)]
async fn failed_builds_of_a_template_are_forgotten_with_their_logs() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    let made = ended(&world, &begin(&world, &world.admin, "app", QUICK).await).await;
    let failing = "FROM scratch\nRUM\n";
    let mut gone = vec![
        begin(&world, &world.admin, "app", failing).await,
        begin(&world, &world.admin, "app:latest", failing).await,
    ];
    for build in &gone {
        assert_eq!(ended(&world, build).await.status, BuildStatus::Failed);
    }
    gone.push(at_work(&world, &begin(&world, &world.admin, "app", ENDLESS).await).await);
    let kept = [
        made,
        begin(&world, &world.admin, "app:other", failing).await,
        begin(&world, &world.admin, "app2", failing).await,
        begin(&world, &stranger, "app", failing).await,
    ];
    world.service.builds().delete_of_template(&world.admin, &"app".parse().unwrap()).await.unwrap();
    for build in &gone {
        let found = world.service.builds().get(&world.admin, build.id.as_str()).await;
        assert_eq!(found.unwrap_err().code, Code::BuildNotFound, "{build:?}");
        assert!(!world.data().join("builds").join(build.id.as_str()).exists());
    }
    for build in &kept {
        ended(&world, build).await;
        assert!(!log(&world, build).await.is_empty());
    }
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_dockerfile_may_name_a_default_template_but_never_gets_the_files_of_the_machine() {
    let world = World::new().await;
    for name in ["daytona", "daytonaio/sandbox:0.4.3", "docker.io/daytonaio/sandbox"] {
        let build = begin(&world, &world.admin, "vendors", &format!("FROM {name}\n")).await;
        let failure = ended(&world, &build).await.failure.unwrap();
        assert_eq!(failure.code, Code::TemplateNotFound, "{failure:?}");
        assert!(failure.hint.unwrap().contains("atoll template make code-interpreter-slim"));
    }
}
