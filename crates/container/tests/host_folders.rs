//! A sandbox leaves nothing in a folder of the host that gives its owner's rights to another user of the host.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{World, in_world, instance_id, target};
use atoll_agentapi::StartProcess;
use atoll_provider::support::*;
use atoll_provider::{Booted, InstanceMount, InstanceSpec, MountSource, Provider, ProviderError};

/// The owner of the folder, and another user of the host.
const OWNER: u32 = 4_321;
const STRANGER: u32 = 4_322;
const SPECIAL: u32 = 0o6000;

/// A folder of the owner that every user of the host may enter.
fn lent() -> (tempfile::TempDir, PathBuf) {
    let host = tempfile::Builder::new().prefix("atoll-lent-").tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(host.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = host.path().join("f");
    std::fs::create_dir(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(OWNER), Some(OWNER)).unwrap();
    (host, path)
}

fn mounted(world: &World, host: &Path, read_only: bool) -> InstanceSpec {
    let path = host.canonicalize().unwrap();
    let source = MountSource::Folder { path, sub_path: None, seen_as: (1000, 1000) };
    let mounts = vec![InstanceMount { source, path: "/host".into(), read_only }];
    InstanceSpec { mounts, ..world.spec() }
}

fn probe() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("special_bits");
    let source = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("tests/special_bits.c");
    let built = Command::new("cc").args(["-O1", "-static", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(built.success());
    std::fs::read(program).unwrap()
}

/// Puts the probe into the sandbox, and gives the owner a name.
async fn prepare(world: &World, spec: &InstanceSpec, booted: &Booted) {
    world.agent(spec, booted).write_bytes("/probe", Some("root"), Some(0o755), probe()).await.unwrap();
    let own = "id -u owner 2>/dev/null || echo 'owner:x:1000:1000::/:/bin/sh' >>/etc/passwd";
    world.sh(spec, booted, own).await;
}

/// Every file below a folder, as the host sees it.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match std::fs::symlink_metadata(&path).unwrap() {
            about if about.is_dir() => files(&path, into),
            about if about.is_file() => into.push(path),
            _ => {}
        }
    }
}

/// What the stranger can do with the files below `folder`: those with which it gains rights, and how many ran.
fn gains(folder: &Path) -> (Vec<String>, usize) {
    let (mut all, mut gained, mut ran) = (Vec::new(), Vec::new(), 0);
    files(folder, &mut all);
    for path in &all {
        let about = std::fs::metadata(path).unwrap();
        let mut value = [0; 64];
        let has_capability = rustix::fs::lgetxattr(path, "security.capability", &mut value[..]).is_ok();
        if about.mode() & SPECIAL != 0 || has_capability {
            gained.push(format!("{}: {:o}, capability {has_capability}", path.display(), about.mode()));
        }
        if about.size() == 0 || about.mode() & 0o001 == 0 {
            continue;
        }
        let said = Command::new(path).uid(STRANGER).gid(STRANGER).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        ran += 1;
        if said.trim() != format!("{STRANGER} {STRANGER} {STRANGER} {STRANGER}") {
            gained.push(format!("{} ran as {said}", path.display()));
        }
    }
    (gained, ran)
}

#[test]
fn no_file_in_a_folder_of_the_host_gives_its_owners_rights_to_another_user() {
    in_world(
        |_| {},
        |world| async {
            let (_keep, host) = lent();
            let spec = mounted(&world, &host, false);
            let booted = world.create(&spec).await;
            prepare(&world, &spec, &booted).await;
            // Root inside makes no files there, but it may change those of the owner.
            for (user, line) in [
                ("owner", "mkdir -m 777 /host/owner && /probe /host/owner"),
                ("root", "/probe /host/owner plain"),
            ] {
                let (code, said) = world.sh_as(&spec, &booted, user, line).await;
                assert_eq!(code, 0, "{said}");
                let worked: Vec<&str> = said.lines().filter_map(|line| line.strip_suffix(" 0")).collect();
                assert_eq!(worked, ["plain"], "{user}: {said}");
            }
            // Tools, the agent's own work for callers, and archives.
            let archive = "mkdir /tmp/in && cp /probe /tmp/in/x && tar -C /tmp/in -cf /tmp/a.tar x && \
            cd /host/owner && tar -xpf /tmp/a.tar; cp -p /probe /host/owner/copied; chmod u+s,g+s /host/owner/copied; \
            install -m 6755 /probe /host/owner/installed; true";
            world.sh_as(&spec, &booted, "owner", archive).await;
            let agent = world.agent(&spec, &booted);
            for mode in [0o4755, 0o2755] {
                let asked = agent.write_bytes("/host/owner/by-api", Some("owner"), Some(mode), probe()).await;
                let error = asked.unwrap_err().to_string();
                assert!(error.contains("set-user-ID"), "{error}");
            }
            assert!(!host.join("owner/by-api").exists(), "nothing is left of it");
            agent.write_bytes("/host/owner/by-api", Some("owner"), Some(0o755), probe()).await.unwrap();
            let (gained, ran) = gains(&host);
            assert_eq!(gained, Vec::<String>::new());
            assert!(ran > 10, "{ran} programs ran");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_tree_with_special_bits_is_unpacked_without_them_and_folders_inherit_their_group() {
    in_world(
        |_| {},
        |world| async {
            let (_keep, host) = lent();
            // New folders in it get the bit from the kernel. It gives nobody rights.
            std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o2775)).unwrap();
            let spec = mounted(&world, &host, false);
            let booted = world.create(&spec).await;
            prepare(&world, &spec, &booted).await;
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o6755);
            header.set_size(3);
            archive.append_data(&mut header, "x", &b"abc"[..]).unwrap();
            let bytes = bytes::Bytes::from(archive.into_inner().unwrap());
            let body = futures::stream::iter([Ok::<_, std::io::Error>(bytes)]);
            let to = atoll_agentapi::Unpack::below("/host");
            world.agent(&spec, &booted).unpack(&to, Some("owner"), body).await.unwrap();
            assert_eq!(std::fs::metadata(host.join("x")).unwrap().mode() & 0o7777, 0o755);
            let (code, said) =
                world.sh_as(&spec, &booted, "owner", "mkdir -p /host/d/e && cp /probe /host/d/p").await;
            assert_eq!(code, 0, "{said}");
            assert_eq!(std::fs::metadata(host.join("d/e")).unwrap().mode() & 0o7777, 0o2755);
            let (mut all, mut special) = (Vec::new(), Vec::new());
            files(&host, &mut all);
            special.extend(all.iter().filter(|path| std::fs::metadata(path).unwrap().mode() & SPECIAL != 0));
            assert_eq!(special, Vec::<&PathBuf>::new());
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn only_a_writable_folder_of_the_host_takes_the_bits_away() {
    in_world(
        |_| {},
        |world| async {
            let (_keep, host) = lent();
            let caps = "grep CapBnd /proc/self/status | cut -f2";
            for (spec, refuses) in [
                (world.spec(), false),
                (mounted(&world, &host, true), false),
                (mounted(&world, &host, false), true),
            ] {
                let booted = world.create(&spec).await;
                prepare(&world, &spec, &booted).await;
                let (code, said) = world.sh(&spec, &booted, "chmod 4755 /probe").await;
                assert_eq!(code != 0, refuses, "{said}");
                let expected = if refuses { "00000000000405fb" } else { "00000000800405fb" };
                assert_eq!(world.sh(&spec, &booted, caps).await.1, expected);
                world.destroy(&spec).await;
            }
            world
        },
    );
}

#[test]
fn the_agent_works_without_openat2() {
    in_world(
        |_| {},
        |world| async {
            let (_keep, host) = lent();
            let spec = mounted(&world, &host, false);
            let booted = world.create(&spec).await;
            prepare(&world, &spec, &booted).await;
            let agent = world.agent(&spec, &booted);
            let made = "mkdir -p /host/a/b && echo text >/host/a/f && ln -s a /host/l && ln -s /etc/hostname /host/h";
            let (code, said) = world.sh_as(&spec, &booted, "owner", made).await;
            assert_eq!(code, 0, "{said}");
            let read = agent.read_file("/host/l/f", Some("owner"), None).await.unwrap();
            assert_eq!(read.read_to_end(100).await.unwrap(), b"text\n");
            let (listed, _) = agent.list_dir("/host", Some("owner"), 3).await.unwrap();
            assert_eq!(listed.len(), 5, "{listed:?}");
            agent.write_bytes("/host/l/deep/er/w", Some("owner"), None, b"w".to_vec()).await.unwrap();
            assert_eq!(std::fs::read(host.join("a/deep/er/w")).unwrap(), b"w");
            agent.move_entry("/host/a/f", "/tmp/moved", Some("root")).await.unwrap();
            agent.remove("/host/a/deep", Some("owner")).await.unwrap();
            assert!(!host.join("a/deep").exists());
            for magic in ["/proc/self/root/etc/hostname", "/proc/1/cwd/etc/hostname"] {
                assert!(agent.read_file(magic, Some("root"), None).await.is_err(), "{magic}");
            }
            let in_folder = |cwd: &str| StartProcess {
                cmd: "/bin/pwd".into(),
                user: Some("owner".into()),
                cwd: cwd.into(),
                timeout: Some(Duration::from_secs(20)),
                ..StartProcess::default()
            };
            let said = agent.run(in_folder("/host/l/b"), 1_000).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "/host/a/b");
            assert!(agent.run(in_folder("/proc/self/root"), 1_000).await.is_err());
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn memory_of_a_sandbox_that_could_set_the_bits_gets_no_folder_to_write_to() {
    in_world(
        |_| {},
        |world| async {
            if !world.engine.capabilities().checkpoints {
                return world;
            }
            let (_keep, host) = lent();
            let mut spec = mounted(&world, &host, true);
            let booted = world.create(&spec).await;
            // The agent runs when it answers.
            world.sh(&spec, &booted, "true").await;
            world.engine.pause(&target(&spec)).await.unwrap();
            world.engine.checkpoint(&target(&spec)).await.unwrap();
            spec.instance = instance_id();
            let mut writes = spec.clone();
            writes.mounts[0].read_only = false;
            let error = world.engine.restore(&writes).await.unwrap_err();
            let is_it = matches!(&error, ProviderError::NotMountable { path, .. } if path == "/host");
            assert!(is_it, "{error:?}");
            world.engine.restore(&spec).await.unwrap();
            world.destroy(&spec).await;
            // With the folder to write to from the beginning, it comes back with the bits refused.
            let mut spec = mounted(&world, &host, false);
            let booted = world.create(&spec).await;
            world.sh(&spec, &booted, "true").await;
            world.engine.pause(&target(&spec)).await.unwrap();
            world.engine.checkpoint(&target(&spec)).await.unwrap();
            spec.instance = instance_id();
            let back = world.engine.restore(&spec).await.unwrap();
            let back = Booted { agent_token: booted.agent_token, ..back };
            let (code, said) = world.sh(&spec, &back, "touch /x; chmod 4755 /x").await;
            assert_ne!(code, 0, "{said}");
            world.destroy(&spec).await;
            world
        },
    );
}
