//! Volumes and folders of the host in sandboxes, on a real kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common;
use crate::common::snapshot_helpers;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::snapshot_helpers::{folders, legacy, plain, snapshot_id, writable_mib};
use crate::common::{World, in_world, in_world_below, instance_id, target};
use atoll_container::EngineConfig;
use atoll_model::VolumeId;
use atoll_provider::support::*;
use atoll_provider::{
    AdoptionOutcome, FilesOrigin, InstanceMount, InstanceSpec, KnownSandbox, MountSource, Provider,
    ProviderError,
};

fn volume_id() -> VolumeId {
    let bytes: Vec<u8> = common::sandbox_id().as_str().bytes().rev().take(20).collect();
    VolumeId::from_entropy(bytes.try_into().unwrap())
}

async fn volume(world: &World, size_mib: u32) -> VolumeId {
    let id = volume_id();
    let size = world.engine.capabilities().limits_disk.then_some(size_mib);
    world.engine.create_volume(&id, size).await.unwrap();
    id
}

fn at(volume: &VolumeId, path: &str) -> InstanceMount {
    let source = MountSource::Volume { volume: volume.clone(), sub_path: None };
    InstanceMount { source, path: path.into(), read_only: false }
}

fn sub(volume: &VolumeId, sub_path: &str, path: &str) -> InstanceMount {
    let source = MountSource::Volume { volume: volume.clone(), sub_path: Some(sub_path.into()) };
    InstanceMount { source, path: path.into(), read_only: false }
}

fn folder(host: &Path, sub_path: Option<&str>, path: &str) -> InstanceMount {
    let source = MountSource::Folder {
        path: host.canonicalize().unwrap(),
        sub_path: sub_path.map(str::to_owned),
        seen_as: (1000, 1000),
    };
    InstanceMount { source, path: path.into(), read_only: false }
}

fn with(world: &World, mounts: Vec<InstanceMount>) -> InstanceSpec {
    InstanceSpec { mounts, ..world.spec() }
}

async fn refused(world: &World, mounts: Vec<InstanceMount>) -> ProviderError {
    let spec = with(world, mounts);
    let error = world.engine.create(&spec).await.expect_err("it is refused");
    world.engine.settle(Duration::from_secs(10)).await.unwrap();
    assert!(!world.layer(&spec).exists(), "nothing is left");
    error
}

fn shared(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let data = volume(&world, 64).await;
        let mounts = vec![at(&data, "/data"), sub(&data, "a/b", "/mnt/deep/er")];
        let (one, two) = (with(&world, mounts.clone()), with(&world, mounts));
        let (first, second) = (world.create(&one).await, world.create(&two).await);
        assert!(!first.from_pool);
        world
            .said(&one, &first, "echo hello >/data/x; echo sub >/mnt/deep/er/y; chown 1000:33 /data/x")
            .await;
        assert_eq!(
            world.said(&two, &second, "cat /data/x /mnt/deep/er/y /data/a/b/y").await,
            "hello\nsub\nsub"
        );
        assert_eq!(
            world.said(&two, &second, "stat -c %u:%g /data/x").await,
            "1000:33",
            "ids are the same everywhere"
        );
        // Any user may write.
        world.sh_as(&two, &second, "nobody", "echo mine >/data/mine").await;
        assert_eq!(world.said(&one, &first, "cat /data/mine").await, "mine");
        let flags = world.said(&one, &first, "grep ' /data ' /proc/self/mountinfo").await;
        assert!(flags.contains("nosuid") && flags.contains("nodev"), "{flags}");
        let disk = world.config.data.join("pool/volumes").join(data.as_str()).join("files/x");
        let seen = std::fs::metadata(&disk).unwrap();
        assert_eq!((seen.uid(), seen.gid()), (1000, 33), "canonical on disk");
        world.destroy(&one).await;
        assert_eq!(world.said(&two, &second, "cat /data/x").await, "hello", "it outlives sandboxes");
        world.destroy(&two).await;
        world.engine.remove_volume(&data).await.unwrap();
        world
    });
}

#[test]
fn two_sandboxes_write_one_volume_and_see_each_other() {
    shared(plain);
}

#[test]
fn two_sandboxes_write_one_volume_on_plain_folders() {
    shared(folders);
}

#[test]
fn two_sandboxes_write_one_volume_by_the_paths_for_old_kernels() {
    shared(legacy);
}

#[test]
fn a_sandbox_with_a_volume_is_never_from_the_pool() {
    in_world(
        |config| config.pool = [("busybox".to_owned(), 2)].into(),
        |world| async {
            let data = volume(&world, 64).await;
            while world.engine.pool_stats()[0].ready < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let spec = with(&world, vec![at(&data, "/data")]);
            let booted = world.create(&spec).await;
            assert!(!booted.from_pool);
            world.said(&spec, &booted, "touch /data/x").await;
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn read_only_means_that_nothing_is_written() {
    in_world(plain, |world| async {
        let data = volume(&world, 64).await;
        let memory = InstanceMount {
            source: MountSource::Memory { size_mib: 1 },
            path: "/run/secrets".into(),
            read_only: false,
        };
        let mounts =
            vec![at(&data, "/data"), InstanceMount { read_only: true, ..at(&data, "/seen") }, memory];
        let spec = with(&world, mounts);
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo x >/data/x; grep x /seen/x").await;
        for line in [
            "echo y >/seen/x",
            "rm /seen/x",
            "mkdir /seen/d",
            "chmod 777 /seen/x",
            "mount -o remount,rw /seen",
        ] {
            let (code, said) = world.sh(&spec, &booted, line).await;
            assert_ne!(code, 0, "{line}: {said}");
        }
        world
            .said(
                &spec,
                &booted,
                "echo s >/run/secrets/s; grep -q 'secrets.*tmpfs' /proc/mounts || cat /proc/mounts",
            )
            .await;
        assert!(!world.layer(&spec).join("upper/run/secrets/s").exists());
        // Not even the requested folder is made.
        let missing = InstanceMount { read_only: true, ..sub(&data, "no/such", "/seen") };
        let error = refused(&world, vec![missing]).await;
        assert!(matches!(&error, ProviderError::NotMountable { .. }), "{error:?}");
        world.said(&spec, &booted, "test ! -e /data/no").await;
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn a_full_volume_is_full_inside_only() {
    in_world(plain, |world| async {
        let (data, other) = (volume(&world, 32).await, volume(&world, 32).await);
        let spec = with(&world, vec![at(&data, "/data"), at(&other, "/other")]);
        let booted = world.create(&spec).await;
        let written = writable_mib(&world, &spec, &booted, "/data/big").await;
        assert!((28..=32).contains(&written), "{written}");
        world.said(&spec, &booted, "echo fine >/other/x; echo fine >/root/x").await;
        let used = world.engine.volume_bytes(&data).await.unwrap();
        assert!(used > 28 << 20, "{used}");
        let small = world.engine.resize_volume(&data, 8).await;
        assert!(matches!(small, Err(ProviderError::BelowUse { .. })), "{small:?}");
        world.engine.resize_volume(&data, 64).await.unwrap();
        let more = writable_mib(&world, &spec, &booted, "/data/more").await;
        assert!((28..=34).contains(&more), "{more}");
        let files = world.engine.volume_files(&data).await.unwrap();
        files.remove("/big").await.unwrap();
        world.said(&spec, &booted, "test ! -e /data/big").await;
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn links_in_the_way_are_refused_and_never_followed() {
    in_world(plain, |world| async {
        let data = volume(&world, 64).await;
        let mut spec = with(&world, vec![at(&data, "/data/in")]);
        let booted = world.create(&spec).await;
        // A template could contain the same.
        world
            .said(&spec, &booted, "mv /data /moved; ln -s /proc /data; mkdir /data2; ln -s .. /data2/up")
            .await;
        world.engine.halt(&target(&spec)).await.unwrap();
        for (path, why) in [
            ("/data/in", "link"),
            ("/data", "link"),
            ("/data2/up/x", "link"),
            ("/etc/hosts/x", "link"),
            ("/proc/x", "reserves"),
            ("/sys", "reserves"),
            ("/dev/shm", "reserves"),
            ("/.atoll/bin", "reserves"),
            ("/a/../b", "normalized"),
            ("/", "normalized"),
            ("data", "normalized"),
        ] {
            spec.instance = instance_id();
            spec.mounts = vec![at(&data, path)];
            let error = world.engine.boot(&spec).await.expect_err(path);
            let is_it = matches!(&error, ProviderError::NotMountable { why: said, .. } if said.contains(why));
            assert!(is_it, "{path}: {error:?}");
        }
        // Its files are as they were.
        spec.instance = instance_id();
        spec.mounts = vec![at(&data, "/data2/in")];
        let booted = world.engine.boot(&spec).await.unwrap();
        world.said(&spec, &booted, "touch /data2/in/x; test -L /data").await;
        world.destroy(&spec).await;
        let unknown = refused(&world, vec![at(&volume_id(), "/data")]).await;
        assert!(matches!(unknown, ProviderError::NoVolume { .. }), "{unknown:?}");
        world
    });
}

#[test]
fn a_sub_path_never_leads_out_of_its_volume() {
    in_world(plain, |world| async {
        let data = volume(&world, 64).await;
        let spec = with(&world, vec![at(&data, "/data")]);
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "ln -s / /data/root; ln -s ../.. /data/up; mkdir /data/d; ln -s /etc /data/d/e; touch /data/f").await;
        for path in ["root", "up", "d/e", "root/etc", "f", "../x", "f/x"] {
            let error = refused(&world, vec![sub(&data, path, "/x")]).await;
            assert!(
                matches!(error, ProviderError::NotMountable { .. } | ProviderError::Failed { .. }),
                "{path}: {error:?}"
            );
        }
        // A program that keeps replacing a folder by a symbolic link gets folders of the volume mounted, or none.
        world
            .said(
                &spec,
                &booted,
                "mkdir /data/race; setsid sh -c 'while :; do mv /data/race /data/r2; ln -s /etc /data/race; rm /data/race; mv /data/r2 /data/race; done' >/dev/null 2>&1 &",
            )
            .await;
        let mut mounted = 0;
        for _ in 0..30 {
            let other = with(&world, vec![sub(&data, "race/in", "/x")]);
            if let Ok(booted) = world.engine.create(&other).await {
                mounted += 1;
                assert_eq!(
                    world.said(&other, &booted, "ls -A /x; cd /x/..; ls -d /x/.. /x/../etc").await,
                    "/x/..\n/x/../etc"
                );
                world.destroy(&other).await;
            }
        }
        eprintln!("{mounted} of 30 were mounted");
        world.destroy(&spec).await;
        world
    });
}

fn lent(owner: u32) -> (tempfile::TempDir, PathBuf) {
    let host = tempfile::Builder::new().prefix("atoll-lent-").tempdir_in("/var/tmp").unwrap();
    let path = host.path().join("f");
    std::fs::create_dir(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
    std::fs::write(path.join("theirs"), "of root").unwrap();
    std::fs::set_permissions(path.join("theirs"), std::fs::Permissions::from_mode(0o644)).unwrap();
    (host, path)
}

#[test]
fn a_folder_of_the_host_is_its_owners_on_both_sides() {
    in_world(plain, |world| async {
        let (_keep, host) = lent(4_321);
        let mounts = vec![folder(&host, None, "/host"), folder(&host, Some("new/er"), "/sub")];
        let spec = with(&world, mounts);
        let booted = world.create(&spec).await;
        assert_eq!(world.said(&spec, &booted, "stat -c %u:%g /host /sub").await, "1000:1000\n1000:1000");
        assert_eq!(world.said(&spec, &booted, "stat -c %u:%g /host/theirs").await, "65534:65534", "nobody's");
        let own = "adduser -D -u 1000 -s /bin/sh owner 2>/dev/null || echo 'owner:x:1000:1000::/:/bin/sh' >>/etc/passwd";
        world.said(&spec, &booted, own).await;
        let (code, said) = world.sh_as(&spec, &booted, "owner", "echo x >/host/made; mkdir /sub/d").await;
        assert_eq!(code, 0, "{said}");
        let made = std::fs::metadata(host.join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (4_321, 4_321));
        assert_eq!(std::fs::metadata(host.join("new/er/d")).unwrap().uid(), 4_321);
        let (code, _) = world.sh_as(&spec, &booted, "owner", "echo x >>/host/theirs").await;
        assert_ne!(code, 0);
        let (code, _) = world.sh(&spec, &booted, "echo x >>/host/theirs").await;
        assert_ne!(code, 0, "root inside is not root of the host");
        assert_eq!(std::fs::read_to_string(host.join("theirs")).unwrap(), "of root");
        world.destroy(&spec).await;
        host_folders_refused(&world).await;
        world
    });
}

#[test]
fn a_folder_on_a_disk_of_its_own_is_mounted_and_what_is_mounted_below_it_is_not() {
    in_world(plain, |world| async {
        // The launcher has detached this mount, as all others that it does not need.
        let disk = tempfile::Builder::new().prefix("atoll-lent-").tempdir_in("/dev/shm").unwrap();
        std::os::unix::fs::chown(disk.path(), Some(4_321), Some(4_321)).unwrap();
        std::fs::write(disk.path().join("x"), "there").unwrap();
        let mut spec = with(&world, vec![folder(disk.path(), None, "/host")]);
        spec.storage = atoll_model::Storage::Memory;
        let booted = world.create(&spec).await;
        assert_eq!(world.said(&spec, &booted, "cat /host/x").await, "there");
        world.destroy(&spec).await;
        let shm = InstanceMount { read_only: true, ..folder(Path::new("/dev"), None, "/host") };
        let spec = with(&world, vec![shm]);
        if let Ok(booted) = world.engine.create(&spec).await {
            assert_eq!(
                world.said(&spec, &booted, "ls -A /host/shm; cat /host/null 2>&1 | grep -c denied").await,
                "1"
            );
            world.destroy(&spec).await;
        }
        world
    });
}

async fn host_folders_refused(world: &World) {
    let (_keep, roots) = lent(0);
    let error = refused(world, vec![folder(&roots, None, "/host")]).await;
    assert!(matches!(&error, ProviderError::NotMountable { why, .. } if why.contains("root")), "{error:?}");
    // A program of root's group must not be left to sandboxes either.
    let (_keep, of_group) = lent(4_321);
    std::os::unix::fs::chown(&of_group, None, Some(0)).unwrap();
    let error = refused(world, vec![folder(&of_group, None, "/host")]).await;
    assert!(matches!(&error, ProviderError::NotMountable { why, .. } if why.contains("group")), "{error:?}");
    // Ids that no sandbox has: added to its first id they would be an id of another sandbox, or overflow.
    let (_keep, lent_out) = lent(4_321);
    for seen_as in [(65_536, 0), (0, u32::MAX)] {
        let source = MountSource::Folder { path: lent_out.canonicalize().unwrap(), sub_path: None, seen_as };
        let mount = InstanceMount { source, path: "/host".into(), read_only: false };
        assert!(matches!(refused(world, vec![mount]).await, ProviderError::NotMountable { .. }));
    }
    let read_only = InstanceMount { read_only: true, ..folder(&roots, None, "/host") };
    let spec = with(world, vec![read_only]);
    let booted = world.create(&spec).await;
    assert_eq!(world.said(&spec, &booted, "cat /host/theirs").await, "of root");
    assert_ne!(world.sh(&spec, &booted, "touch /host/x").await.0, 0);
    world.destroy(&spec).await;
    let missing = InstanceMount { read_only: true, ..folder(&roots, Some("no"), "/host") };
    assert!(matches!(refused(world, vec![missing]).await, ProviderError::NotMountable { .. }));
    // The path was a folder when it was checked.
    let (_keep, mine) = lent(4_321);
    let mount = folder(&mine, None, "/host");
    std::fs::rename(&mine, mine.with_file_name("moved")).unwrap();
    std::os::unix::fs::symlink("/etc", &mine).unwrap();
    let error = refused(world, vec![mount]).await;
    assert!(matches!(&error, ProviderError::NotMountable { why, .. } if why.contains("link")), "{error:?}");
}

#[test]
fn mounts_stay_over_stop_and_start_snapshot_fork_rollback_and_adoption() {
    in_world(plain, |world| async {
        let data = volume(&world, 64).await;
        let mut spec = with(&world, vec![at(&data, "/data")]);
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo 1 >/data/x; echo 1 >/root/x").await;
        let made = world.snap(&spec).await;
        assert!(std::fs::read_dir(world.snapshot_files(&made.0).join("data")).unwrap().next().is_none());
        world.said(&spec, &booted, "echo 2 >/data/x; echo 2 >/root/x").await;
        let fork = InstanceSpec { mounts: spec.mounts.clone(), ..world.fork_of(&spec, &made) };
        let forked = world.create(&fork).await;
        assert_eq!(world.said(&fork, &forked, "cat /root/x /data/x").await, "1\n2");
        world.destroy(&fork).await;
        let booted = world.rolled_back(&mut spec, &made).await;
        assert_eq!(world.said(&spec, &booted, "cat /root/x /data/x").await, "1\n2");
        world.engine.pause(&target(&spec)).await.unwrap();
        world.engine.resume(&target(&spec)).await.unwrap();
        world.said(&spec, &booted, "echo 3 >/data/x").await;
        let known = KnownSandbox {
            sandbox: spec.sandbox.clone(),
            instance: Some((spec.instance.clone(), booted.facts.clone())),
            storage: spec.storage,
            limits: spec.limits,
            network: std::sync::Arc::clone(&spec.network),
            paused: false,
        };
        let world = world.reopen().await;
        let fates = world.engine.adopt(vec![known], vec![made.0.clone()]).await.unwrap();
        assert_eq!(fates[0].fate, AdoptionOutcome::Alive);
        // The state that a server leaves when it dies while it removes a folder.
        let room = world.config.data.join("pool/volumes").join(data.as_str());
        std::fs::create_dir_all(room.join(".trash-1-removed-a/0/b")).unwrap();
        std::fs::create_dir(room.join("removed-c")).unwrap();
        world.engine.sweep_volumes(vec![data.clone()]).await.unwrap();
        assert_eq!(std::fs::read_dir(&room).unwrap().count(), 1, "the files, and nothing else");
        assert_eq!(world.said(&spec, &booted, "cat /data/x; echo 4 >/data/x").await, "3");
        world.engine.halt(&target(&spec)).await.unwrap();
        spec.instance = instance_id();
        let booted = world.engine.boot(&spec).await.unwrap();
        assert_eq!(world.said(&spec, &booted, "cat /data/x").await, "4");
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world.engine.sweep_volumes(vec![]).await.unwrap();
        assert!(snapshot_helpers::in_pool(&world, "volumes").is_empty());
        world
    });
}

const HOLD: &str = "setsid sh -c 'exec 3>>/data/log 4</data/read; echo $$ >/data/pid; while :; do echo tick >&3; sleep 0.05; done' </dev/null >/dev/null 2>&1 &";

fn checkpoints(below: &str, adjust: fn(&mut EngineConfig)) {
    in_world_below(below, adjust, |world| async {
        if !world.engine.capabilities().checkpoints {
            return world;
        }
        let data = volume(&world, 64).await;
        let (_keep, host) = lent(4_321);
        let mounts = vec![
            at(&data, "/data"),
            sub(&data, "s", "/a/b"),
            sub(&data, "t", "/a_b"),
            InstanceMount { read_only: true, ..folder(&host, None, "/host with space") },
            InstanceMount {
                source: MountSource::Memory { size_mib: 4 },
                path: "/m".into(),
                read_only: false,
            },
        ];
        let mut spec = with(&world, mounts);
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo r >/data/read; echo s >/a/b/s; echo t >/a_b/t; echo m >/m/m").await;
        world.said(&spec, &booted, HOLD).await;
        world.said(&spec, &booted, "while [ ! -s /data/log ]; do sleep 0.01; done").await;
        let snapshot = snapshot_id();
        let made = world
            .engine
            .snapshot(&target(&spec), &snapshot, true)
            .await
            .unwrap_or_else(|e| panic!("{}", common::chain(&e)));
        world.engine.pause(&target(&spec)).await.unwrap();
        world.engine.checkpoint(&target(&spec)).await.unwrap_or_else(|e| panic!("{}", common::chain(&e)));
        spec.instance = instance_id();
        let less = InstanceSpec { mounts: spec.mounts[..2].to_vec(), ..spec.clone() };
        let error = world.engine.restore(&less).await.unwrap_err();
        assert!(matches!(&error, ProviderError::NotMountable { path, .. } if path == "/a_b"), "{error:?}");
        let back = world.engine.restore(&spec).await.unwrap_or_else(|e| panic!("{}", common::chain(&e)));
        let back = atoll_provider::Booted { agent_token: booted.agent_token.clone(), ..back };
        let look = "cat /a/b/s /a_b/t /m/m; cat '/host with space/theirs'; n=$(wc -l </data/log); sleep 0.3; \
            [ $(wc -l </data/log) -gt $n ] && echo; echo on; touch '/host with space/x' 2>/dev/null || echo ro";
        assert_eq!(world.said(&spec, &back, look).await, "s\nt\nm\nof root\non\nro");
        // A fork with the same processes and the same volume.
        let origin =
            FilesOrigin::Snapshot { snapshot: snapshot.clone(), seal: made.seal.clone(), memory: true };
        let fork = InstanceSpec { origin, mounts: spec.mounts.clone(), ..world.spec() };
        let forked = world.engine.create(&fork).await.unwrap_or_else(|e| panic!("{}", common::chain(&e)));
        let forked = atoll_provider::Booted { agent_token: booted.agent_token.clone(), ..forked };
        assert_eq!(world.said(&fork, &forked, look).await, "s\nt\nm\nof root\non\nro");
        world.said(&fork, &forked, "echo seen >/data/seen").await;
        assert_eq!(world.said(&spec, &back, "cat /data/seen").await, "seen");
        world.destroy(&fork).await;
        // Once more to disk: the restored instance has its mounts too.
        world.engine.pause(&target(&spec)).await.unwrap();
        world.engine.checkpoint(&target(&spec)).await.unwrap();
        spec.instance = instance_id();
        let back = world.engine.restore(&spec).await.unwrap();
        let back = atoll_provider::Booted { agent_token: booted.agent_token, ..back };
        assert_eq!(world.said(&spec, &back, "cat /a/b/s").await, "s");
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&snapshot).await.unwrap();
        world
    });
}

#[test]
fn memory_comes_back_from_disk_with_its_volumes() {
    checkpoints("/var/tmp", plain);
}

#[test]
fn memory_comes_back_with_its_volumes_by_the_paths_for_old_kernels() {
    checkpoints("/var/tmp", legacy);
}

#[test]
fn memory_comes_back_from_disk_where_the_data_folder_is_below_tmp() {
    checkpoints("/tmp", plain);
}
