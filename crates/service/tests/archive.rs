//! Files in object storage: all of them are either here or there, whatever fails in between.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::world;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::{
    Code, CreateSandbox, EventKind, Intent, Lease, LimitsAsk, Origin, Phase, Reason, Source, Storage,
    TimersAsk, UpdateSandbox,
};
use atoll_provider::fake::{ProviderCall, Script};

/// A sandbox with a file, which is stopped later.
async fn begin(world: &World) -> Lease {
    let spec = CreateSandbox { name: Some("x".to_owned()), ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    world.fake.files(&lease.id, |files| files.insert("/a".to_owned(), b"precious".to_vec())).unwrap();
    lease
}

fn content(world: &World, lease: &Lease) -> Option<Vec<u8>> {
    world.fake.files(&lease.id, |files| files["/a"].clone())
}

fn chunks(world: &World) -> Vec<PathBuf> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(path).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(&world.data().join("archive"), &mut found);
    found.retain(|path| path.parent().unwrap().ends_with("chunks"));
    found
}

/// The folder for archives cannot be written: a file is in its place.
fn blocked() -> Options {
    let config: world::Configure = Box::new(|config| {
        let place = config.data.join("in-the-way");
        config.archive = place.join("below").to_string_lossy().into_owned();
    });
    Options { config: Some(config), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn an_archive_frees_the_disk_and_comes_back_by_restore_and_by_start() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let lease = begin(&world).await;
    for back_by_start in [false, true] {
        let archived = service.sandboxes().archive(who, "x", true).await.unwrap();
        assert_eq!((archived.phase, archived.intent), (Phase::Archived, Intent::Archive));
        assert!(archived.archive.is_some() && archived.stopped_at.is_some() && archived.instance.is_none());
        world.quiet().await;
        assert_eq!(world.fake.holds(), [], "nothing of it is left here");
        assert_eq!(world.archived(), [lease.id.to_string()]);
        // It stays so over a restart, and asking again changes nothing.
        service.sandboxes().archive(who, "x", true).await.unwrap();
        let back = if back_by_start {
            service.sandboxes().start(who, "x", true).await.unwrap()
        } else {
            let stopped = service.sandboxes().restore(who, "x", true).await.unwrap();
            assert_eq!((stopped.phase, stopped.intent), (Phase::Stopped, Intent::Stop));
            service.sandboxes().start(who, "x", true).await.unwrap()
        };
        assert_eq!(back.phase, Phase::Running);
        assert_eq!(content(&world, &lease).unwrap(), b"precious");
        for _ in 0..20 {
            world.quiet().await;
        }
        assert_eq!(world.get(&lease.id).await.archive, None, "what is here again is not there any more");
        assert_eq!(world.archived(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn an_archived_sandbox_survives_a_crash_and_a_delete_removes_its_objects() {
    let world = World::new().await;
    let lease = begin(&world).await;
    world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    let world = world.crash_and_reopen().await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Archived);
    assert_eq!(world.archived(), [lease.id.to_string()]);
    world.service.sandboxes().delete(&world.admin, "x", true).await.unwrap();
    assert_eq!(world.archived(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_fails_leaves_it_stopped_with_its_files() {
    let world = World::with(blocked()).await;
    let lease = begin(&world).await;
    std::fs::remove_dir_all(world.data().join("in-the-way")).unwrap();
    std::fs::write(world.data().join("in-the-way"), b"").unwrap();
    let error = world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap_err();
    assert_eq!(error.code, Code::ArchiveUnavailable);
    let stopped = world.get(&lease.id).await;
    assert_eq!((stopped.phase, stopped.intent, &stopped.archive), (Phase::Stopped, Intent::Stop, &None));
    world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
    assert_eq!(content(&world, &lease).unwrap(), b"precious");
}

/// Files that need more than their limit when they come back.
async fn too_large(world: &World, timers: TimersAsk) -> Lease {
    let limits = LimitsAsk { disk_mib: Some(64), ..Default::default() };
    let spec = CreateSandbox { name: Some("x".to_owned()), limits, timers, ..Default::default() };
    let lease = world.try_create(spec).await.unwrap();
    world.fake.files(&lease.id, |files| files.insert("/a".to_owned(), vec![7; 66 << 20])).unwrap();
    lease
}

#[tokio::test(start_paused = true)]
async fn files_that_could_not_come_back_are_refused_before_the_sandbox_is_stopped() {
    let world = World::new().await;
    let lease = too_large(&world, TimersAsk::default()).await;
    let sandboxes = world.service.sandboxes();
    for phase in [Phase::Running, Phase::Stopped] {
        let before = world.get(&lease.id).await;
        assert_eq!(before.phase, phase);
        let refused = sandboxes.archive(&world.admin, "x", true).await.unwrap_err();
        assert_eq!(refused.code, Code::DiskFull);
        assert!(refused.message.contains("64 MiB"), "{refused}");
        assert!(refused.hint.unwrap().contains("atoll resize --disk"));
        assert_eq!(world.get(&lease.id).await.generation, before.generation, "nothing has changed");
        sandboxes.stop(&world.admin, "x", true).await.unwrap();
    }
    let larger = UpdateSandbox {
        limits: LimitsAsk { disk_mib: Some(128), ..Default::default() },
        ..Default::default()
    };
    sandboxes.update(&world.admin, "x", larger).await.unwrap();
    sandboxes.archive(&world.admin, "x", true).await.unwrap();
    // Archived, its limit cannot become too small for them.
    let smaller = UpdateSandbox {
        limits: LimitsAsk { disk_mib: Some(64), ..Default::default() },
        ..Default::default()
    };
    let refused = sandboxes.update(&world.admin, "x", smaller).await.unwrap_err();
    assert_eq!(refused.code, Code::PhaseConflict);
    sandboxes.start(&world.admin, "x", true).await.unwrap();
    assert_eq!(content(&world, &lease).unwrap().len(), 66 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_timer_tells_once_that_files_could_not_come_back() {
    let world = World::new().await;
    let timers = TimersAsk { auto_archive_s: Some(20), ..Default::default() };
    let lease = too_large(&world, timers).await;
    let sandboxes = world.service.sandboxes();
    sandboxes.stop(&world.admin, "x", true).await.unwrap();
    let told = async || {
        let events = world.service.events(&world.admin, Some("x"), None, 0).await.unwrap();
        let is_told = |what: &EventKind| match what {
            EventKind::Phase { to: Phase::Stopped, reason: Reason::Provider { message }, .. } => {
                message.contains("64 MiB")
            }
            _ => false,
        };
        events.iter().filter(|event| is_told(&event.what)).count()
    };
    assert_eq!(told().await, 0);
    for _ in 0..48 {
        world.advance(Duration::from_secs(1_800)).await;
        world.quiet().await;
    }
    assert_eq!((world.get(&lease.id).await.phase, told().await), (Phase::Stopped, 1));
    assert_eq!(world.fake.calls(ProviderCall::Pack, &lease.id), 0);
    // With a larger limit it is archived.
    let larger = UpdateSandbox {
        limits: LimitsAsk { disk_mib: Some(128), ..Default::default() },
        ..Default::default()
    };
    sandboxes.update(&world.admin, "x", larger).await.unwrap();
    world.advance(Duration::from_secs(60)).await;
    world.until(&lease.id, Phase::Archived).await;
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_breaks_off_never_counts_as_archived() {
    let world = World::new().await;
    let lease = begin(&world).await;
    for script in [Script::Cut, Script::Fail] {
        world.fake.script(ProviderCall::Pack, script);
        world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap_err();
        let stopped = world.get(&lease.id).await;
        assert_eq!((stopped.phase, &stopped.archive), (Phase::Stopped, &None));
    }
    assert_eq!(content(&world, &lease).unwrap(), b"precious");
    world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    world.service.sandboxes().delete(&world.admin, "x", true).await.unwrap();
    assert_eq!(world.archived(), Vec::<String>::new(), "nor does it leave anything");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_or_lost_archive_is_refused_and_stays_where_it_is() {
    let world = World::new().await;
    let lease = begin(&world).await;
    world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    world.quiet().await;
    let chunk = chunks(&world).pop().unwrap();
    let whole = std::fs::read(&chunk).unwrap();
    let mut bent = whole.clone();
    bent[whole.len() / 2] ^= 1;
    for bad in [Some(bent), Some(whole[..whole.len() / 2].to_vec()), None] {
        match bad {
            Some(bad) => std::fs::write(&chunk, bad).unwrap(),
            None => std::fs::remove_file(&chunk).unwrap(),
        }
        let error = world.service.sandboxes().start(&world.admin, "x", true).await.unwrap_err();
        let now = world.get(&lease.id).await;
        assert_eq!((now.phase, now.intent), (Phase::Archived, Intent::Archive), "{error}");
        assert_eq!(world.fake.holds(), [], "no half of it is here");
    }
    std::fs::write(&chunk, whole).unwrap();
    world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
    assert_eq!(content(&world, &lease).unwrap(), b"precious");
}

#[tokio::test(start_paused = true)]
async fn an_unpack_that_fails_is_tried_again_by_the_next_start() {
    let world = World::new().await;
    let lease = begin(&world).await;
    world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    world.fake.script(ProviderCall::Unpack, Script::Fail);
    world.service.sandboxes().restore(&world.admin, "x", true).await.unwrap_err();
    assert_eq!(world.get(&lease.id).await.phase, Phase::Archived);
    world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
    assert_eq!(content(&world, &lease).unwrap(), b"precious");
}

#[tokio::test(start_paused = true)]
async fn a_start_does_not_wait_for_an_upload() {
    let world = World::new().await;
    let lease = begin(&world).await;
    world.fake.script(ProviderCall::Pack, Script::Hold);
    world.service.sandboxes().archive(&world.admin, "x", false).await.unwrap();
    world.until(&lease.id, Phase::Archiving).await;
    let running = world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
    assert_eq!(running.phase, Phase::Running);
    assert_eq!(content(&world, &lease).unwrap(), b"precious");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_made_from_an_archive_also_on_another_server() {
    let world = World::new().await;
    let lease = begin(&world).await;
    let archived = world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    let key = archived.archive.unwrap().key;
    let place = world.data().join("archive").to_string_lossy().into_owned();
    let config: world::Configure = Box::new(move |config| config.archive = place);
    let other = World::with(Options { config: Some(config), ..Default::default() }).await;
    let from = Origin::Archive { key: key.clone() };
    let copy = other.try_create(CreateSandbox { from: from.clone(), ..Default::default() }).await.unwrap();
    assert_eq!((copy.phase, copy.parent.as_ref()), (Phase::Running, Some(&lease.id)));
    assert!(matches!(copy.source, Source::Archive { .. }) && copy.archive.is_none());
    assert_eq!(content(&other, &copy).unwrap(), b"precious");
    // The archive is its owner's: neither the copy's life nor its end touches it.
    other.service.sandboxes().delete(&other.admin, copy.id.as_str(), true).await.unwrap();
    assert_eq!(world.archived(), [lease.id.to_string()]);

    other.fake.script(ProviderCall::Unpack, Script::Fail);
    let spec = CreateSandbox { name: Some("y".to_owned()), from, ..Default::default() };
    other.try_create(spec).await.unwrap_err();
    let failed = other.service.sandboxes().get(&other.admin, "y").await.unwrap();
    assert_eq!(failed.phase, Phase::Archived);
    other.service.sandboxes().start(&other.admin, "y", true).await.unwrap();
    assert_eq!(content(&other, &failed).unwrap(), b"precious");

    for key in ["x", "../etc/passwd", &format!("{}/{}", lease.id, "0".repeat(64))] {
        let from = Origin::Archive { key: key.to_owned() };
        let error = other.try_create(CreateSandbox { from, ..Default::default() }).await.unwrap_err();
        assert_eq!(error.code, Code::ArchiveNotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn an_archive_whose_template_is_not_here_is_refused_before_anything_is_fetched() {
    let world = World::new().await;
    begin(&world).await;
    let archived = world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    let place = world.data().join("archive").to_string_lossy().into_owned();
    let config: world::Configure = Box::new(move |config| config.archive = place);
    let options = Options { config: Some(config), template_version: Some("2"), ..Default::default() };
    let other = World::with(options).await;
    let from = Origin::Archive { key: archived.archive.unwrap().key };
    let error = other.try_create(CreateSandbox { from, ..Default::default() }).await.unwrap_err();
    assert_eq!(error.code, Code::TemplateNotFound);
    assert!(error.message.contains("base") && error.message.contains("version 1"), "{error}");
    assert!(error.hint.is_some());
    assert_eq!(other.store.live().await.unwrap().len(), 0, "nothing was begun");
}

#[tokio::test(start_paused = true)]
async fn what_came_back_without_anybody_writing_it_down_is_brought_back_again() {
    let reached = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let failpoint = atoll_service::FailPoint::new(move |place| {
        let first = place == "restore.unpacked" && !reached.swap(true, std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move { assert!(!first, "a test asked for a panic") })
    });
    let world = World::with(Options { failpoint: Some(failpoint), ..Default::default() }).await;
    let lease = begin(&world).await;
    world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    world.service.sandboxes().restore(&world.admin, "x", true).await.unwrap_err();
    assert_eq!(world.get(&lease.id).await.phase, Phase::Archived);
    world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
    assert_eq!(content(&world, &lease).unwrap(), b"precious");
}

#[tokio::test(start_paused = true)]
async fn an_archive_of_another_tenant_is_not_found() {
    let world = World::new().await;
    begin(&world).await;
    let archived = world.service.sandboxes().archive(&world.admin, "x", true).await.unwrap();
    let stranger = world.stranger().await;
    let from = Origin::Archive { key: archived.archive.unwrap().key };
    let spec = CreateSandbox { from, ..Default::default() };
    let error = world.service.sandboxes().create(&stranger, spec, true).await.unwrap_err();
    assert_eq!(error.code, Code::ArchiveNotFound);
}

#[tokio::test(start_paused = true)]
async fn files_in_memory_cannot_be_archived() {
    let world = World::new().await;
    let spec = CreateSandbox { storage: Storage::Memory, ..Default::default() };
    let id = world.try_create(spec).await.unwrap().id;
    let error = world.service.sandboxes().archive(&world.admin, id.as_str(), true).await.unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    assert_eq!(world.get(&id).await.phase, Phase::Running);
}
