//! Volumes: create, mount, copy, remove; the state after a crash; folders of the host.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use crate::world;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::world::{Options, World};
use atoll_model::{Code, CreateSandbox, MountAsk, Quota, VolumeState};
use atoll_provider::MountSource;
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{FailPoint, NewVolume, Pause, UpdateVolume, VolumeOwner, WriteRules};
use tokio::io::AsyncReadExt;

fn named(name: &str) -> NewVolume {
    NewVolume { name: name.to_owned(), size_mib: Some(100), ..Default::default() }
}

fn mounting(volume: &str, path: &str, read_only: bool) -> CreateSandbox {
    let mount = MountAsk {
        volume: volume.to_owned(),
        path: path.to_owned(),
        sub_path: Some("sub/x".to_owned()),
        read_only,
    };
    CreateSandbox { mounts: vec![mount], ..Default::default() }
}

async fn assert_no_leaks(world: &World) {
    let mut known: Vec<_> = Vec::new();
    for (volume, _) in world.store.volumes(None).await.unwrap() {
        assert_eq!(volume.state, VolumeState::Ready, "{volume:?}");
        if volume.folder.is_none() {
            known.push(volume.id);
        }
    }
    known.sort();
    let mut held = world.fake.volumes();
    held.sort();
    assert_eq!(held, known, "volumes leak");
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_its_tenants_alone() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    let made = world.service.volumes().create(&world.admin, named("data")).await.unwrap();
    assert_eq!((made.volume.size_mib, made.mounted_by, made.used_bytes), (Some(100), 0, Some(0)));
    let taken = world.service.volumes().create(&world.admin, named("data")).await.unwrap_err();
    assert_eq!(taken.code, Code::NameTaken);
    world.service.volumes().create(&stranger, named("data")).await.unwrap();
    for ident in [made.volume.id.as_str(), "other"] {
        for refused in [
            world.service.volumes().get(&stranger, ident).await.map(drop),
            world.service.volumes().remove(&stranger, ident).await,
            world.service.volumes().copy(&stranger, ident, "copy").await.map(drop),
            world.service.volumes().open(&stranger, ident).await.map(drop),
        ] {
            assert_eq!(refused.unwrap_err().code, Code::VolumeNotFound);
        }
    }
    let refused = world
        .service
        .sandboxes()
        .create(&stranger, mounting(made.volume.id.as_str(), "/m", false), true)
        .await;
    assert_eq!(refused.unwrap_err().code, Code::VolumeNotFound);
    assert_eq!(world.service.volumes().list(&stranger).await.unwrap().len(), 1);
    assert_eq!(world.service.volumes().list(&world.admin).await.unwrap().len(), 2);
    world.service.volumes().remove(&world.admin, "data").await.unwrap();
    for bad in ["", "a/b", "a:b", "..", "abcdefghijklmnopqrst"] {
        let refused = world.service.volumes().create(&world.admin, named(bad)).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest, "{bad}");
    }
    assert_no_leaks(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_mounted_volume_is_in_every_instance_and_is_not_removed() {
    let world = World::new().await;
    let volume = world.service.volumes().create(&world.admin, named("data")).await.unwrap().volume;
    let lease = world.try_create(mounting("data", "/mnt/data", false)).await.unwrap();
    let source = MountSource::Volume { volume: volume.id.clone(), sub_path: Some("sub/x".to_owned()) };
    let mounts = || world.fake.mounts(&lease.id).unwrap();
    assert_eq!(
        (&mounts()[0].source, mounts()[0].path.as_str(), mounts()[0].read_only),
        (&source, "/mnt/data", false)
    );
    let in_use = || async {
        let refused = world.service.volumes().remove(&world.admin, "data").await.unwrap_err();
        assert_eq!(refused.code, Code::VolumeInUse);
        assert_eq!(world.service.volumes().get(&world.admin, "data").await.unwrap().mounted_by, 1);
    };
    in_use().await;
    let id = lease.id.as_str();
    world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    in_use().await;
    world.service.sandboxes().start(&world.admin, id, true).await.unwrap();
    assert_eq!(mounts()[0].source, source, "at every boot");
    let disk = Pause { memory: Some(atoll_model::MemoryLocation::Disk) };
    world.service.sandboxes().pause(&world.admin, id, disk, true).await.unwrap();
    in_use().await;
    world.service.sandboxes().resume(&world.admin, id, true).await.unwrap();
    assert_eq!(mounts()[0].source, source, "at every restore");
    // A read-only volume is enforced from the next boot on, whatever the mount says.
    let read_only = UpdateVolume { read_only: Some(true), ..Default::default() };
    world.service.volumes().update(&world.admin, "data", read_only).await.unwrap();
    world.service.sandboxes().restart(&world.admin, id, true).await.unwrap();
    assert!(mounts()[0].read_only);
    world.service.sandboxes().delete(&world.admin, id, true).await.unwrap();
    world.service.volumes().remove(&world.admin, "data").await.unwrap();
    let late = world.try_create(mounting("data", "/m", false)).await.unwrap_err();
    assert_eq!(late.code, Code::VolumeNotFound);
    assert!(late.message.contains("data"), "{late}");
    assert_no_leaks(&world).await;
}

#[tokio::test(start_paused = true)]
async fn sizes_are_changed_within_quota_and_use() {
    let world = World::new().await;
    let who =
        world.tenant("small", Quota { volumes: Some(2), volume_mib: Some(250), ..Default::default() }).await;
    world.service.volumes().create(&who, named("one")).await.unwrap();
    let sized = |size| UpdateVolume { size_mib: Some(size), ..Default::default() };
    let refused = world.service.volumes().update(&who, "one", sized(251)).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert_eq!(
        world.service.volumes().update(&who, "one", sized(150)).await.unwrap().volume.size_mib,
        Some(150)
    );
    world.fake.script(ProviderCall::ResizeVolume, Script::Fail);
    assert!(world.service.volumes().update(&who, "one", sized(200)).await.is_err());
    assert_eq!(
        world.service.volumes().get(&who, "one").await.unwrap().volume.size_mib,
        Some(150),
        "as before"
    );
    world.service.volumes().create(&who, named("two")).await.unwrap();
    let refused = world.service.volumes().create(&who, named("three")).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    for size in [0, u32::MAX] {
        let refused = world.service.volumes().update(&who, "one", sized(size)).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest);
    }
}

#[tokio::test(start_paused = true)]
async fn no_volume_is_promised_more_than_the_disk_has() {
    let world = World::new().await;
    let who = world.tenant("greedy", Quota::default()).await;
    let huge = NewVolume { size_mib: Some(16 << 20), ..named("huge") };
    let refused = world.service.volumes().create(&who, huge).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    world.service.volumes().create(&who, named("one")).await.unwrap();
    let sized = UpdateVolume { size_mib: Some(16 << 20), ..Default::default() };
    let refused = world.service.volumes().update(&who, "one", sized).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    assert_eq!(
        world.service.volumes().get(&who, "one").await.unwrap().volume.size_mib,
        Some(100),
        "as before"
    );
    // The operator's default size is always allowed.
    world.fake.set_node(|node| node.disk_free_mib = 5_000);
    let usual = NewVolume { size_mib: None, ..named("usual") };
    world.service.volumes().create(&who, usual).await.unwrap();
    assert_no_leaks(&world).await;
}

#[tokio::test(start_paused = true)]
async fn files_are_written_and_read_without_a_sandbox_and_copied() {
    let world = World::new().await;
    let (service, admin) = (&world.service, &world.admin);
    service.volumes().create(admin, named("data")).await.unwrap();
    let volume = |name: &'static str| async move { service.volumes().open(admin, name).await.unwrap() };
    let owner = VolumeOwner { uid: Some(1_000), ..Default::default() };
    let rules = WriteRules { replace: true, parents: true };
    let body = std::io::Cursor::new(b"hello".to_vec());
    let entry = volume("data").await.write("/a/b.txt", owner, rules, body).await.unwrap();
    assert_eq!(entry.size, 5);
    let copy = service.volumes().copy(admin, "data", "copy").await.unwrap();
    assert_eq!(copy.volume.parent, Some(service.volumes().get(admin, "data").await.unwrap().volume.id));
    let (_, mut bytes) = volume("copy").await.read("/a/b.txt").await.unwrap();
    let mut text = String::new();
    bytes.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    let (entries, more) = volume("data").await.list("/", 2).await.unwrap();
    assert_eq!((entries.len(), more), (2, false));
    let missing = volume("data").await.stat("/none").await.unwrap_err();
    assert_eq!(missing.code, Code::FileNotFound);
    let read_only = UpdateVolume { read_only: Some(true), ..Default::default() };
    service.volumes().update(admin, "data", read_only).await.unwrap();
    let refused = volume("data").await.remove("/a").await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    volume("copy").await.remove("/a").await.unwrap();
    service.volumes().remove(admin, "data").await.unwrap();
    service.volumes().remove(admin, "copy").await.unwrap();
    assert_no_leaks(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_or_a_crash_at_any_point_leaves_nothing_half() {
    for place in ["volume.row", "volume.files", "volume.deleting", "volume.removed"] {
        let armed = Arc::new(AtomicBool::new(false));
        let own = armed.clone();
        let failpoint = FailPoint::new(move |reached| {
            let stops = reached == place && own.load(Ordering::SeqCst);
            Box::pin(async move {
                if stops {
                    std::future::pending::<()>().await;
                }
            })
        });
        let world = World::with(Options { failpoint: Some(failpoint), ..Options::default() }).await;
        world.service.volumes().create(&world.admin, named("kept")).await.unwrap();
        world.service.volumes().create(&world.admin, named("going")).await.unwrap();
        armed.store(true, Ordering::SeqCst);
        let (service, admin) = (world.service.clone(), world.admin.clone());
        let work = tokio::spawn(async move {
            let _ = service.volumes().copy(&admin, "kept", "copy").await;
            let _ = service.volumes().remove(&admin, "going").await;
        });
        world.quiet().await;
        let world = world.crash_and_reopen().await;
        work.abort();
        assert_no_leaks(&world).await;
        assert!(world.service.volumes().get(&world.admin, "kept").await.is_ok(), "{place}");
        // An incomplete creation is undone, an interrupted removal is completed.
        let was_made = !matches!(place, "volume.row" | "volume.files");
        assert_eq!(world.service.volumes().get(&world.admin, "copy").await.is_ok(), was_made, "{place}");
        assert_eq!(world.service.volumes().get(&world.admin, "going").await.is_ok(), !was_made, "{place}");
    }
    let world = World::new().await;
    for script in [Script::Fail, Script::FailAfter] {
        world.fake.script(ProviderCall::CreateVolume, script);
        assert!(world.service.volumes().create(&world.admin, named("data")).await.is_err());
        assert_no_leaks(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn folders_of_the_host_need_the_operator_twice() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("shared")).unwrap();
    let own = root.clone();
    let config: world::Configure = Box::new(move |config| config.volume_roots = vec![own]);
    let world = World::with(Options { config: Some(config), ..Options::default() }).await;
    let stranger = world.stranger().await;
    let folder = |path: &str| NewVolume {
        name: "host".to_owned(),
        folder: Some(path.to_owned()),
        ..Default::default()
    };
    let shared = root.join("shared").to_str().unwrap().to_owned();
    let refused = world.service.volumes().create(&stranger, folder(&shared)).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    for bad in ["/", "/etc", "/var/run", &format!("{shared}/../.."), "shared"] {
        let refused = world.service.volumes().create(&world.admin, folder(bad)).await.unwrap_err();
        assert_eq!(refused.code, Code::Forbidden, "{bad}");
    }
    let made = world.service.volumes().create(&world.admin, folder(&shared)).await.unwrap();
    assert_eq!((made.volume.size_mib, made.used_bytes), (None, None));
    let lease = world.try_create(mounting("host", "/m", true)).await.unwrap();
    let mounts = world.fake.mounts(&lease.id).unwrap();
    let source = MountSource::Folder {
        path: root.join("shared"),
        sub_path: Some("sub/x".to_owned()),
        seen_as: (1_234, 1_235),
    };
    assert_eq!((&mounts[0].source, mounts[0].read_only), (&source, true));
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    std::fs::remove_dir(root.join("shared")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("shared")).unwrap();
    let refused = world.service.sandboxes().start(&world.admin, lease.id.as_str(), true).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden, "a link took its place");
    let refused =
        world.service.volumes().open(&world.admin, "host").await.unwrap().stat("/").await.unwrap_err();
    assert_eq!(refused.code, Code::Unsupported);
}
