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
use atoll_service::{FailPoint, NewVolume, Pause, UpdateVolume, VolumeOwner};
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
    let made = world.service.create_volume(&world.admin, named("data")).await.unwrap();
    assert_eq!((made.volume.size_mib, made.mounted_by, made.used_bytes), (Some(100), 0, Some(0)));
    let taken = world.service.create_volume(&world.admin, named("data")).await.unwrap_err();
    assert_eq!(taken.code, Code::NameTaken);
    world.service.create_volume(&stranger, named("data")).await.unwrap();
    for ident in [made.volume.id.as_str(), "other"] {
        for refused in [
            world.service.get_volume(&stranger, ident).await.map(drop),
            world.service.remove_volume(&stranger, ident).await,
            world.service.copy_volume(&stranger, ident, "copy").await.map(drop),
            world.service.volume_stat(&stranger, ident, "/").await.map(drop),
        ] {
            assert_eq!(refused.unwrap_err().code, Code::VolumeNotFound);
        }
    }
    let refused = world.service.create(&stranger, mounting(made.volume.id.as_str(), "/m", false), true).await;
    assert_eq!(refused.unwrap_err().code, Code::VolumeNotFound);
    assert_eq!(world.service.list_volumes(&stranger).await.unwrap().len(), 1);
    assert_eq!(world.service.list_volumes(&world.admin).await.unwrap().len(), 2);
    world.service.remove_volume(&world.admin, "data").await.unwrap();
    for bad in ["", "a/b", "a:b", "..", "abcdefghijklmnopqrst"] {
        let refused = world.service.create_volume(&world.admin, named(bad)).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest, "{bad}");
    }
    assert_no_leaks(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_mounted_volume_is_in_every_instance_and_is_not_removed() {
    let world = World::new().await;
    let volume = world.service.create_volume(&world.admin, named("data")).await.unwrap().volume;
    let lease = world.try_create(mounting("data", "/mnt/data", false)).await.unwrap();
    let source = MountSource::Volume { volume: volume.id.clone(), sub_path: Some("sub/x".to_owned()) };
    let mounts = || world.fake.mounts(&lease.id).unwrap();
    assert_eq!(
        (&mounts()[0].source, mounts()[0].path.as_str(), mounts()[0].read_only),
        (&source, "/mnt/data", false)
    );
    let in_use = || async {
        let refused = world.service.remove_volume(&world.admin, "data").await.unwrap_err();
        assert_eq!(refused.code, Code::VolumeInUse);
        assert_eq!(world.service.get_volume(&world.admin, "data").await.unwrap().mounted_by, 1);
    };
    in_use().await;
    let id = lease.id.as_str();
    world.service.stop(&world.admin, id, true).await.unwrap();
    in_use().await;
    world.service.start(&world.admin, id, true).await.unwrap();
    assert_eq!(mounts()[0].source, source, "at every boot");
    let disk = Pause { memory: Some(atoll_model::MemoryLocation::Disk) };
    world.service.pause(&world.admin, id, disk, true).await.unwrap();
    in_use().await;
    world.service.resume(&world.admin, id, true).await.unwrap();
    assert_eq!(mounts()[0].source, source, "at every restore");
    // A read-only volume is enforced from the next boot on, whatever the mount says.
    let read_only = UpdateVolume { read_only: Some(true), ..Default::default() };
    world.service.update_volume(&world.admin, "data", read_only).await.unwrap();
    world.service.restart(&world.admin, id, true).await.unwrap();
    assert!(mounts()[0].read_only);
    world.service.delete(&world.admin, id, true).await.unwrap();
    world.service.remove_volume(&world.admin, "data").await.unwrap();
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
    world.service.create_volume(&who, named("one")).await.unwrap();
    let sized = |size| UpdateVolume { size_mib: Some(size), ..Default::default() };
    let refused = world.service.update_volume(&who, "one", sized(251)).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert_eq!(
        world.service.update_volume(&who, "one", sized(150)).await.unwrap().volume.size_mib,
        Some(150)
    );
    world.fake.script(ProviderCall::ResizeVolume, Script::Fail);
    assert!(world.service.update_volume(&who, "one", sized(200)).await.is_err());
    assert_eq!(world.service.get_volume(&who, "one").await.unwrap().volume.size_mib, Some(150), "as before");
    world.service.create_volume(&who, named("two")).await.unwrap();
    let refused = world.service.create_volume(&who, named("three")).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    for size in [0, u32::MAX] {
        let refused = world.service.update_volume(&who, "one", sized(size)).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest);
    }
}

#[tokio::test(start_paused = true)]
async fn no_volume_is_promised_more_than_the_disk_has() {
    let world = World::new().await;
    let who = world.tenant("greedy", Quota::default()).await;
    let huge = NewVolume { size_mib: Some(16 << 20), ..named("huge") };
    let refused = world.service.create_volume(&who, huge).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    world.service.create_volume(&who, named("one")).await.unwrap();
    let sized = UpdateVolume { size_mib: Some(16 << 20), ..Default::default() };
    let refused = world.service.update_volume(&who, "one", sized).await.unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    assert_eq!(world.service.get_volume(&who, "one").await.unwrap().volume.size_mib, Some(100), "as before");
    // The server's default is the operator's word.
    world.fake.set_node(|node| node.disk_free_mib = 5_000);
    let usual = NewVolume { size_mib: None, ..named("usual") };
    world.service.create_volume(&who, usual).await.unwrap();
    assert_no_leaks(&world).await;
}

#[tokio::test(start_paused = true)]
async fn files_are_written_and_read_without_a_sandbox_and_copied() {
    let world = World::new().await;
    let (service, admin) = (&world.service, &world.admin);
    service.create_volume(admin, named("data")).await.unwrap();
    let owner = VolumeOwner { uid: Some(1_000), ..Default::default() };
    let body = std::io::Cursor::new(b"hello".to_vec());
    let entry = service.volume_write(admin, "data", "/a/b.txt", owner, body).await.unwrap();
    assert_eq!(entry.size, 5);
    let copy = service.copy_volume(admin, "data", "copy").await.unwrap();
    assert_eq!(copy.volume.parent, Some(service.get_volume(admin, "data").await.unwrap().volume.id));
    let (_, mut bytes) = service.volume_read(admin, "copy", "/a/b.txt").await.unwrap();
    let mut text = String::new();
    bytes.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    let (entries, more) = service.volume_list(admin, "data", "/", 2).await.unwrap();
    assert_eq!((entries.len(), more), (2, false));
    let missing = service.volume_stat(admin, "data", "/none").await.unwrap_err();
    assert_eq!(missing.code, Code::FileNotFound);
    let read_only = UpdateVolume { read_only: Some(true), ..Default::default() };
    service.update_volume(admin, "data", read_only).await.unwrap();
    let refused = service.volume_remove(admin, "data", "/a").await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    service.volume_remove(admin, "copy", "/a").await.unwrap();
    service.remove_volume(admin, "data").await.unwrap();
    service.remove_volume(admin, "copy").await.unwrap();
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
        world.service.create_volume(&world.admin, named("kept")).await.unwrap();
        world.service.create_volume(&world.admin, named("going")).await.unwrap();
        armed.store(true, Ordering::SeqCst);
        let (service, admin) = (world.service.clone(), world.admin.clone());
        let work = tokio::spawn(async move {
            let _ = service.copy_volume(&admin, "kept", "copy").await;
            let _ = service.remove_volume(&admin, "going").await;
        });
        world.quiet().await;
        let world = world.crash_and_reopen().await;
        work.abort();
        assert_no_leaks(&world).await;
        assert!(world.service.get_volume(&world.admin, "kept").await.is_ok(), "{place}");
        // What was being made is undone, what was being removed is gone.
        let was_made = !matches!(place, "volume.row" | "volume.files");
        assert_eq!(world.service.get_volume(&world.admin, "copy").await.is_ok(), was_made, "{place}");
        assert_eq!(world.service.get_volume(&world.admin, "going").await.is_ok(), !was_made, "{place}");
    }
    let world = World::new().await;
    for script in [Script::Fail, Script::FailAfter] {
        world.fake.script(ProviderCall::CreateVolume, script);
        assert!(world.service.create_volume(&world.admin, named("data")).await.is_err());
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
    let refused = world.service.create_volume(&stranger, folder(&shared)).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    for bad in ["/", "/etc", "/var/run", &format!("{shared}/../.."), "shared"] {
        let refused = world.service.create_volume(&world.admin, folder(bad)).await.unwrap_err();
        assert_eq!(refused.code, Code::Forbidden, "{bad}");
    }
    let made = world.service.create_volume(&world.admin, folder(&shared)).await.unwrap();
    assert_eq!((made.volume.size_mib, made.used_bytes), (None, None));
    let lease = world.try_create(mounting("host", "/m", true)).await.unwrap();
    let mounts = world.fake.mounts(&lease.id).unwrap();
    let source = MountSource::Folder {
        path: root.join("shared"),
        sub_path: Some("sub/x".to_owned()),
        seen_as: (1_234, 1_235),
    };
    assert_eq!((&mounts[0].source, mounts[0].read_only), (&source, true));
    world.service.stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    std::fs::remove_dir(root.join("shared")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("shared")).unwrap();
    let refused = world.service.start(&world.admin, lease.id.as_str(), true).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden, "a link took its place");
    let refused = world.service.volume_stat(&world.admin, "host", "/").await.unwrap_err();
    assert_eq!(refused.code, Code::Unsupported);
}
