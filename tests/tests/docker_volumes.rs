//! Volumes that Debian's Docker keeps: labels and owners, hostile files, interrupted copies, and a whole server.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_model::{ErrorKind, VolumeId};
use atoll_provider::conformance::AgentAccess;
use atoll_provider::{
    Capability, InstanceMount, InstanceSpec, MountSource, Packed, Provider, ProviderError, VolumeEntryKind,
    VolumeOwner,
};
use atoll_tests::docker::Docker;
use atoll_tests::{Client, Value, World, json, run_with, until};
use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt;

use crate::docker_provider::{DockerWorld, assert_missing, fixture, in_docker_world, live, target};
use crate::docker_server::{containers, docker, options};

fn id(number: u8) -> VolumeId {
    VolumeId::from_entropy([number; 20])
}

fn mount(volume: &VolumeId, sub_path: Option<&str>, path: &str, read_only: bool) -> InstanceMount {
    let source = MountSource::Volume { volume: volume.clone(), sub_path: sub_path.map(str::to_owned) };
    InstanceMount { source, path: path.to_owned(), read_only }
}

async fn put(provider: &Arc<dyn Provider>, volume: &VolumeId, path: &str, text: &str) {
    let bytes: Packed = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
    let files = provider.volume_files(volume).await.unwrap();
    files.write(path, VolumeOwner::default(), true, bytes).await.unwrap();
}

async fn get(provider: &Arc<dyn Provider>, volume: &VolumeId, path: &str) -> std::io::Result<String> {
    let (_, mut bytes) = provider.volume_files(volume).await.unwrap().read(path).await?;
    let mut text = String::new();
    bytes.read_to_string(&mut text).await?;
    Ok(text)
}

fn is_unknown<T>(outcome: Result<T, ProviderError>) -> bool {
    matches!(outcome, Err(ProviderError::NoVolume { .. }))
}

impl DockerWorld {
    /// The folder with the files of a volume.
    fn files_of(&self, name: &str) -> PathBuf {
        self.volume(name, "{{.Mountpoint}}").into()
    }

    fn volume(&self, name: &str, format: &str) -> String {
        let text = self.docker().ok(["volume", "inspect", "--format", format, name]);
        String::from_utf8(text).unwrap().trim().to_owned()
    }

    /// Makes what a server of the owner `ours` leaves when it is killed while it copies.
    fn interrupted_draft(&self, volume: &VolumeId) {
        let name = format!("atoll-{volume}.draft");
        let label = format!("atoll.volume={volume}");
        let labels = ["--label", "atoll.owner=ours", "--label", &label, "--label", "atoll.draft=copy"];
        self.docker().ok(["volume", "create"].into_iter().chain(labels).chain([name.as_str()]));
        std::fs::write(self.files_of(&name).join("half"), "half").unwrap();
    }
}

#[test]
fn volumes_have_labels_and_those_of_others_are_never_touched() {
    in_docker_world(|world| async move {
        let (ours, theirs) = (world.provider("ours").await, world.provider("theirs").await);
        let (own, foreign, taken) = (id(1), id(2), id(3));
        ours.create_volume(&own, None).await.unwrap();
        theirs.create_volume(&foreign, None).await.unwrap();
        let bystander = format!("atoll-{taken}");
        for name in ["bystander", bystander.as_str()] {
            world.docker().ok(["volume", "create", name]);
            std::fs::write(world.files_of(name).join("kept"), "kept").unwrap();
        }
        let name = format!("atoll-{own}");
        assert_eq!(world.volume(&name, "{{index .Labels \"atoll.owner\"}}"), "ours");
        assert_eq!(world.volume(&name, "{{index .Labels \"atoll.volume\"}}"), own.as_str());
        assert_eq!(world.volume(&name, "{{.Driver}}"), "local");

        // A size is refused by the name of what is missing, and leaves nothing.
        assert_missing(&ours.create_volume(&id(4), Some(64)).await.unwrap_err(), Capability::DiskLimit);
        assert_missing(&ours.copy_volume(&own, &id(4), Some(64)).await.unwrap_err(), Capability::DiskLimit);
        assert_missing(&ours.resize_volume(&own, 64).await.unwrap_err(), Capability::DiskLimit);
        // A name that somebody else's volume has is refused; that volume cannot be reached.
        let refused = ours.create_volume(&taken, None).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Internal && format!("{refused:?}").contains("another owner"));
        for unreachable in [&foreign, &taken] {
            assert!(is_unknown(ours.volume_bytes(unreachable).await));
            assert!(is_unknown(ours.volume_files(unreachable).await.map(drop)));
            assert!(is_unknown(ours.copy_volume(unreachable, &id(4), None).await));
            let mounts = vec![mount(unreachable, None, "/data", false)];
            let spec = InstanceSpec { mounts, ..fixture(&ours).await.spec() };
            assert!(is_unknown(ours.create(&spec).await));
            ours.remove_volume(unreachable).await.unwrap();
        }
        ours.sweep_volumes(Vec::new()).await.unwrap();
        let mut expected = vec!["bystander".to_owned(), bystander, format!("atoll-{foreign}")];
        expected.sort();
        let mut left = world.volumes();
        left.sort();
        assert_eq!(left, expected, "only the volume of this server was swept");
        assert_eq!(std::fs::read_to_string(world.files_of("bystander").join("kept")).unwrap(), "kept");
        assert_eq!(world.containers(), Vec::<String>::new());
    });
}

#[test]
fn hostile_files_of_a_volume_lead_nowhere() {
    in_docker_world(|world| async move {
        let provider = world.provider("ours").await;
        let (volume, copy) = (id(1), id(2));
        provider.create_volume(&volume, None).await.unwrap();
        let mounts = vec![mount(&volume, None, "/data", false), mount(&volume, Some("part"), "/part", false)];
        let spec = InstanceSpec { mounts, ..fixture(&provider).await.spec() };
        let first = live(&provider, &spec).await;
        let seen = AgentAccess.run(&first, "stat -c %a /data; ls /data").await;
        assert_eq!(
            seen.as_deref(),
            Some("777\npart\n"),
            "files that the image has there are hidden, not copied"
        );
        let made = "mknod /data/disk b 254 0; mknod /data/zero c 1 5; mkfifo /data/pipe; ln -s / /data/root; \
                    ln -s ../../.. /data/up; ln -s /proc/1/root /data/magic; ln -s /etc/passwd /data/passwd; \
                    mkdir -p /data/d; echo x >/data/d/x; ln /data/d/x /data/again; chown 1000:70000 /data/d/x; \
                    chmod 4755 /data/d/x; echo y >/part/y";
        assert_eq!(AgentAccess.run(&first, made).await.as_deref(), Some(""));

        let files = provider.volume_files(&volume).await.unwrap();
        for path in
            ["/disk", "/zero", "/pipe", "/passwd", "/root/etc/passwd", "/up/etc/passwd", "/magic/etc/passwd"]
        {
            assert!(files.read(path).await.is_err(), "{path}");
        }
        assert_eq!(files.stat("/disk").await.unwrap().kind, VolumeEntryKind::Other);
        assert!(provider.volume_bytes(&volume).await.unwrap() < 1 << 20);
        for sub_path in ["root", "up/etc", "magic", "disk", "root/etc"] {
            let mounts = vec![mount(&volume, Some(sub_path), "/data", false)];
            let spec = InstanceSpec { mounts, ..fixture(&provider).await.spec() };
            let refusal = provider.create(&spec).await.unwrap_err();
            assert!(matches!(refusal, ProviderError::NotMountable { .. }), "{sub_path}: {refusal}");
        }

        // A copy of a volume that a sandbox has mounted.
        provider.copy_volume(&volume, &copy, None).await.unwrap();
        let listed = provider.volume_files(&copy).await.unwrap().list("/", 3, 100).await.unwrap();
        let names: Vec<&str> = listed.iter().map(|entry| entry.path.as_str()).collect();
        let expected =
            ["/again", "/d", "/d/x", "/magic", "/part", "/part/y", "/passwd", "/pipe", "/root", "/up"];
        assert_eq!(names, expected, "devices are not copied");
        let x = listed.iter().find(|entry| entry.path == "/d/x").unwrap();
        assert_eq!((x.uid, x.gid, x.mode), (1_000, 70_000, 0o4755));
        let link = listed.iter().find(|entry| entry.path == "/passwd").unwrap();
        assert_eq!((link.kind, link.target.as_deref()), (VolumeEntryKind::Link, Some("/etc/passwd")));
        put(&provider, &copy, "/d/x", "of the copy").await;
        assert_eq!(get(&provider, &volume, "/d/x").await.unwrap(), "x\n");

        // A volume that a container has is not removed under it, and the mounts of a container stay as they are.
        let refused = provider.remove_volume(&volume).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        provider.halt(&first.target).await.unwrap();
        let next = InstanceSpec { instance: fixture(&provider).await.spec().instance, ..spec.clone() };
        let fewer = InstanceSpec { mounts: next.mounts[1..].to_vec(), ..next.clone() };
        assert!(matches!(provider.boot(&fewer).await.unwrap_err(), ProviderError::Unsupported { .. }));
        provider.boot(&next).await.unwrap();
        provider.destroy(&target(&next)).await.unwrap();
        for volume in [volume, copy] {
            provider.remove_volume(&volume).await.unwrap();
        }
        assert_eq!((world.containers(), world.volumes()), (Vec::new(), Vec::new()));
    });
}

/// Attack A05 at Docker: a program inside swaps the folder to mount for a link to the host while containers are made.
#[test]
fn a_raced_sub_path_is_mounted_or_refused_by_name_and_leads_nowhere() {
    in_docker_world(|world| async move {
        let provider = world.provider("ours").await;
        let volume = id(1);
        provider.create_volume(&volume, None).await.unwrap();
        let files = world.files_of(&format!("atoll-{volume}"));
        std::fs::create_dir(files.join("part")).unwrap();
        std::fs::write(files.join("part/own"), "own").unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let racing = Arc::clone(&ended);
        let racer = std::thread::spawn(move || {
            std::os::unix::fs::symlink("/etc", files.join("link")).unwrap();
            let swap = |a: &str, b: &str| std::fs::rename(files.join(a), files.join(b)).unwrap();
            while !racing.load(Ordering::Relaxed) {
                for (a, b) in [("part", "aside"), ("link", "part"), ("part", "link"), ("aside", "part")] {
                    swap(a, b);
                    // The daemon takes a moment between the check of a path and its mount.
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        });
        let (mut mounted, mut refused) = (0, 0);
        for _ in 0..40 {
            let mounts = vec![mount(&volume, Some("part"), "/data", true)];
            let spec = InstanceSpec { mounts, ..fixture(&provider).await.spec() };
            match provider.create(&spec).await {
                Ok(_) => {
                    mounted += 1;
                    provider.destroy(&target(&spec)).await.unwrap();
                }
                Err(ProviderError::NotMountable { path, .. }) => {
                    assert_eq!(path, "/data");
                    refused += 1;
                }
                Err(other) => panic!("{other}: {other:?}"),
            }
        }
        ended.store(true, Ordering::Relaxed);
        racer.join().unwrap();
        assert!(mounted + refused == 40 && refused > 0, "{mounted} mounted, {refused} refused");
        assert_eq!(world.containers(), Vec::<String>::new(), "nothing of a refused container is left");
        provider.remove_volume(&volume).await.unwrap();
    });
}

#[test]
fn interrupted_copies_and_removals_are_swept_or_done_again() {
    in_docker_world(|world| async move {
        let provider = world.provider("ours").await;
        let (source, copy, lost) = (id(1), id(2), id(3));
        provider.create_volume(&source, None).await.unwrap();
        put(&provider, &source, "/a/b", "content").await;

        // Killed while it copied, and between the two steps that complete a copy.
        world.interrupted_draft(&copy);
        assert!(is_unknown(provider.volume_bytes(&copy).await), "half a copy is no volume");
        provider.create_volume(&copy, None).await.unwrap();
        provider.copy_volume(&source, &copy, None).await.unwrap();
        assert_eq!(get(&provider, &copy, "/a/b").await.unwrap(), "content");
        assert_eq!(get(&provider, &copy, "/half").await.unwrap_err().kind(), std::io::ErrorKind::NotFound);
        provider.copy_volume(&lost, &copy, None).await.expect_err("there is no such source");
        put(&provider, &copy, "/a/b", "changed").await;
        provider.copy_volume(&source, &copy, None).await.expect("it is there");
        assert_eq!(get(&provider, &copy, "/a/b").await.unwrap(), "changed", "a complete copy stays as it is");

        world.interrupted_draft(&lost);
        let name = format!("atoll-{source}");
        let beside = world.files_of(&name).parent().unwrap().to_owned();
        std::fs::create_dir_all(beside.join("removed-0123/deep")).unwrap();
        std::fs::create_dir_all(beside.join(".trash-1-removed-4567/0")).unwrap();
        provider.sweep_volumes(vec![source.clone(), lost.clone()]).await.unwrap();
        assert_eq!(world.volumes(), [name], "neither the draft nor the unknown copy");
        assert_eq!(std::fs::read_dir(&beside).unwrap().count(), 1, "its files");
        assert_eq!(get(&provider, &source, "/a/b").await.unwrap(), "content");
        provider.remove_volume(&source).await.unwrap();
        assert_eq!(world.volumes(), Vec::<String>::new());
    });
}

async fn entries(client: &Client, volume: &str) -> Vec<String> {
    let listed = client.get(&format!("/v1/volumes/{volume}/entries?path=/")).await.ok();
    let items = listed["items"].as_array().unwrap();
    items.iter().map(|item| item["path"].as_str().unwrap().to_owned()).collect()
}

fn volumes(docker: &Docker) -> Vec<String> {
    let text = String::from_utf8(docker.ok(["volume", "ls", "-q"])).unwrap();
    text.lines().map(str::to_owned).collect()
}

async fn atoll(w: &World, words: &[&str]) -> (bool, String) {
    let mut command = w.command();
    command.args(words);
    let done = w.output(command).await;
    let text = String::from_utf8_lossy(if done.status.success() { &done.stdout } else { &done.stderr });
    (done.status.success(), text.into_owned())
}

#[test]
fn a_server_makes_mounts_copies_and_removes_volumes_of_docker() {
    run_with(options(), async |w| {
        let docker = docker(w).await;
        let client = w.first_tenant().await;
        let (ok, said) = atoll(w, &["volume", "create", "big", "--size", "1g", "--provider", "docker"]).await;
        assert!(!ok && said.contains("disk_limit"), "{said}");
        assert_eq!(volumes(&docker), Vec::<String>::new());
        let made = atoll(w, &["volume", "create", "data", "--provider", "docker"]).await;
        assert_eq!(made, (true, "data\n".to_owned()));
        let about = client.get("/v1/volumes/data").await.ok();
        assert_eq!((&about["provider"], &about["size_mib"]), (&json!("docker"), &Value::Null), "{about}");
        assert_eq!(volumes(&docker), [format!("atoll-{}", about["id"].as_str().unwrap())]);
        let resized = client.patch("/v1/volumes/data", json!({ "size_mib": 64 })).await;
        assert!(resized.refused(501, "unsupported")["message"].as_str().unwrap().contains("disk_limit"));

        // Two sandboxes share it, over a crash of the server; another provider's sandbox cannot have it.
        let boxed = |mounts: Value| json!({ "provider": "docker", "mounts": mounts });
        let one = client.create(boxed(json!([{ "volume": "data", "path": "/data" }]))).await;
        let part = json!({ "volume": "data", "sub_path": "d", "path": "/part", "read_only": true });
        client.sh(&one, "mkdir /data/d; echo hello >/data/d/note").await;
        let two = client.create(boxed(json!([part]))).await;
        w.crash_server().await;
        assert_eq!(
            client.sh(&two, "cat /part/note; touch /part/x 2>&1 || true").await.text().lines().next(),
            Some("hello")
        );
        client.act(&two, "stop").await.ok();
        client.act(&two, "start").await.ok();
        client.sh(&one, "echo again >>/data/d/note").await;
        assert_eq!(client.sh(&two, "cat /part/note; ls /part").await.text(), "hello\nagain\nnote");
        let elsewhere = json!({ "mounts": [{ "volume": "data", "path": "/data" }] });
        let refused = client.post("/v1/sandboxes", elsewhere).await.refused(400, "invalid_request");
        assert!(refused["message"].as_str().unwrap().contains("docker"), "{refused}");
        client.delete("/v1/volumes/data").await.refused(409, "volume_in_use");

        killed_in_the_middle_of_a_copy(w, &docker, &client, &one).await;
        assert!(atoll(w, &["volume", "cp", "data", "copy"]).await.0);
        assert_eq!(entries(&client, "copy").await, ["/d", "/many"]);
        client.remove(&one).await;
        client.remove(&two).await;
        for name in ["data", "copy"] {
            assert!(atoll(w, &["volume", "rm", name]).await.0);
        }
        assert_eq!((containers(&docker), volumes(&docker)), (Vec::new(), Vec::new()));
    });
}

/// Kills the server when a copy has some of the files, and expects that the next one leaves nothing of it.
async fn killed_in_the_middle_of_a_copy(w: &World, docker: &Docker, client: &Client, sandbox: &str) {
    let many = "mkdir /data/many; cd /data/many; i=0; while [ $i -lt 40000 ]; do : >$i; i=$((i+1)); done";
    client.sh(sandbox, many).await;
    let drafts = || {
        let folders = std::fs::read_dir(w.folder().join("docker/data/volumes")).unwrap().flatten();
        folders.map(|entry| entry.path()).find(|path| path.to_str().unwrap().ends_with(".draft"))
    };
    let copied = || {
        let many = drafts().map(|draft| draft.join("_data/many"));
        many.and_then(|many| std::fs::read_dir(many).ok()).map_or(0, |names| names.take(200).count())
    };
    let mut copy = w.command();
    copy.args(["volume", "cp", "data", "half"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut copy = copy.spawn().unwrap();
    until("the copy has some files", async || (copied() >= 100).then_some(())).await;
    w.stop_server(Signal::SIGKILL).await;
    assert!(drafts().is_some() && copied() >= 100, "it was killed in the middle of the copy");
    assert!(!copy.wait().unwrap().success());
    w.start_server().await;
    until("the draft is swept", async || (volumes(docker).len() == 1).then_some(())).await;
    client.get("/v1/volumes/half").await.refused(404, "volume_not_found");
    assert_eq!(client.sh(sandbox, "ls /data/many | wc -l").await.text(), "40000", "the volume is as it was");
}
