//! Builds that are announced before their steps are known, and the archives that are sent in between.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::world::World;
use atoll_model::{Build, BuildStatus, Code, LimitsAsk, Principal};
use atoll_service::{
    BuildSource, BuildSteps, DeclaredBuild, DeclaredStep, NewVolume, VolumeOwner, WriteRules,
};

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

async fn announce(world: &World, who: &Principal, name: &str) -> Build {
    let limits = LimitsAsk { memory_mib: Some(700), ..LimitsAsk::default() };
    world.service.builds().announce(who, name.parse().unwrap(), Vec::new(), limits).await.unwrap()
}

fn steps(source: BuildSource) -> BuildSteps {
    BuildSteps { source, settings: Default::default(), no_cache: false, ready_timeout_s: None, auth: None }
}

fn quick() -> BuildSteps {
    steps(BuildSource::Text("FROM scratch\nRUN [\"echo\", \"hello\"]\n".to_owned()))
}

fn copies(hash: &str) -> BuildSteps {
    let copy = DeclaredStep {
        kind: "COPY".to_owned(),
        args: vec!["a.txt".to_owned(), "/a.txt".to_owned()],
        files: Some(hash.to_owned()),
        force: false,
    };
    let base = "nothing-of-that-name".parse().unwrap();
    let declared = DeclaredBuild { base, prepare: Vec::new(), steps: vec![copy], shell: Vec::new() };
    steps(BuildSource::Declared(declared))
}

async fn ended(world: &World, build: &Build) -> Build {
    for _ in 0..2_000 {
        let build = world.service.builds().get(&world.admin, build.id.as_str()).await.unwrap();
        if build.status.is_end() {
            return build;
        }
        world.quiet().await;
    }
    panic!("build {} does not end", build.id);
}

#[tokio::test(start_paused = true)]
async fn an_announced_build_waits_for_its_steps_and_begins_once() {
    let world = World::new().await;
    let build = announce(&world, &world.admin, "app:v1").await;
    assert_eq!(build.status, BuildStatus::Waiting);
    assert!(world.service.builds().is_announced(&build));
    let begun = world.service.builds().begin(&world.admin, build.id.as_str(), quick()).await.unwrap();
    assert_eq!(begun.id, build.id);
    assert!(!world.service.builds().is_announced(&build));
    let again = world.service.builds().begin(&world.admin, build.id.as_str(), quick()).await.unwrap_err();
    assert_eq!(again.code, Code::PhaseConflict);
    let build = ended(&world, &build).await;
    assert_eq!(build.status, BuildStatus::Ready, "{build:?}");
    let record = world.service.templates().get(&world.admin, "app:v1").await.unwrap();
    assert_eq!(record.settings.limits.memory_mib, Some(700), "limits are those of the announcement");
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn an_announced_build_can_be_cancelled_replaced_and_forgotten() {
    let world = World::new().await;
    let cancelled = announce(&world, &world.admin, "one").await;
    let gone = world.service.builds().cancel(&world.admin, cancelled.id.as_str()).await.unwrap();
    assert_eq!(gone.status, BuildStatus::Cancelled);
    let old = announce(&world, &world.admin, "two").await;
    let other = announce(&world, &world.admin, "two:other").await;
    let stranger = world.stranger().await;
    let theirs = announce(&world, &stranger, "two").await;
    let new = announce(&world, &world.admin, "two").await;
    let old = ended(&world, &old).await;
    assert_eq!(old.failure.unwrap().code, Code::PhaseConflict);
    for open in [&other, &theirs, &new] {
        assert!(world.service.builds().is_announced(open), "{}", open.template);
    }
    let foreign = world.service.builds().begin(&stranger, new.id.as_str(), quick()).await.unwrap_err();
    assert_eq!(foreign.code, Code::BuildNotFound);
    // The task of the new build must wait already: its time begins with its first poll.
    world.quiet().await;
    world.advance(Duration::from_secs(4 * 3_600)).await;
    assert_eq!(ended(&world, &new).await.failure.unwrap().code, Code::DeadlineExceeded);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn archives_are_sent_by_ticket_and_belong_to_a_tenant() {
    let world = World::new().await;
    let (service, admin) = (&world.service, &world.admin);
    let build = announce(&world, admin, "app").await;
    let missing = service.builds().begin(admin, build.id.as_str(), copies(HASH)).await.unwrap_err();
    assert!(missing.message.contains("were not uploaded"), "{missing}");
    assert!(service.builds().is_announced(&build), "it can be begun when they are there");
    assert!(!service.builds().has_upload(admin, HASH).await.unwrap());
    let ticket = service.builds().upload_ticket(admin, HASH).unwrap();
    let bytes = || Box::new(std::io::Cursor::new(vec![0; 10_240]));
    for bad in [
        ticket.replacen("0123", "3210", 1),
        ticket[..ticket.len() - 1].to_owned(),
        String::new(),
        "..".to_owned(),
        format!("{ticket}.x"),
    ] {
        assert_eq!(
            service.builds().take_upload(&bad, bytes()).await.unwrap_err().code,
            Code::Forbidden,
            "{bad}"
        );
    }
    service.builds().take_upload(&ticket, bytes()).await.unwrap();
    assert!(service.builds().has_upload(admin, HASH).await.unwrap());
    let stranger = world.stranger().await;
    assert!(!service.builds().has_upload(&stranger, HASH).await.unwrap());
    service.builds().begin(admin, build.id.as_str(), copies(HASH)).await.unwrap();
    let build = ended(&world, &build).await;
    assert_eq!(build.status, BuildStatus::Failed, "there is no such base");
    assert!(service.builds().has_upload(admin, HASH).await.unwrap(), "the next build copies from it too");
    world.advance(Duration::from_secs(3 * 3_600)).await;
    assert_eq!(service.builds().take_upload(&ticket, bytes()).await.unwrap_err().code, Code::Forbidden);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_ticket_ends_with_the_key_that_asked_for_it() {
    let world = World::new().await;
    let (service, stranger) = (&world.service, world.stranger().await);
    let bytes = || Box::new(std::io::Cursor::new(vec![0; 10_240]));
    let ticket = service.builds().upload_ticket(&stranger, HASH).unwrap();
    service.builds().take_upload(&ticket, bytes()).await.unwrap();
    service.access().delete_key(&world.admin, &stranger.key).await.unwrap();
    assert_eq!(service.builds().take_upload(&ticket, bytes()).await.unwrap_err().code, Code::Forbidden);
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_volumes_token_opens_that_volume_alone() {
    let world = World::new().await;
    let (service, admin) = (&world.service, &world.admin);
    let make = |name: &str| {
        service.volumes().create(admin, NewVolume { name: name.to_owned(), ..Default::default() })
    };
    let (one, two) = (make("one").await.unwrap().volume, make("two").await.unwrap().volume);
    let token = service.volumes().token(&one);
    for (id, shown) in [(two.id.as_str(), token.as_str()), (one.id.as_str(), ""), ("../x", &token)] {
        assert_eq!(service.access().admit_volume(id, shown).unwrap_err().code, Code::Unauthenticated, "{id}");
    }
    let grant = service.access().admit_volume(one.id.as_str(), &token).unwrap();
    let owner = VolumeOwner::default();
    let open = service.volumes().open_granted(&grant).await.unwrap();
    let write = |replace| {
        let rules = WriteRules { replace, parents: false };
        open.write("/a.txt", owner, rules, &b"hello"[..])
    };
    write(false).await.unwrap();
    assert_eq!(write(false).await.unwrap_err().code, Code::AlreadyExists);
    write(true).await.unwrap();
    assert_eq!(open.list_all("/", 1).await.unwrap().len(), 1);
    service.volumes().remove(admin, "one").await.unwrap();
    assert_eq!(service.volumes().open_granted(&grant).await.unwrap_err().code, Code::VolumeNotFound);
}
