//! Disks that are full: the reserve that every writer asks (issue 12, C3), the pool that tenants share (C4), and the row B15 of
//! the catalogue. Each server has its state folder on a small file system of its own.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::path::{Path, PathBuf};

use atoll_tests::image::{self, Layer, Packing};
use atoll_tests::{Client, Options, World, criu, json, run_with, until};
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;
/// What the servers of these tests are told to keep free.
const RESERVE_MIB: u64 = 128;

fn options(disk_mib: u32) -> Options {
    let options = Options { disk_mib: Some(disk_mib), audit: false, ..Options::default() };
    options.env("ATOLL_DISK_RESERVE", format!("{RESERVE_MIB}m"))
}

/// Another program's file on the disk of the state folder.
struct Filler(PathBuf);

impl Filler {
    fn new(w: &World) -> Self {
        Self(w.data().join("filler"))
    }

    /// Takes all space but so much.
    fn leave(&self, bytes: u64) {
        self.free();
        let free = free_bytes(self.0.parent().unwrap());
        let file = File::create(&self.0).unwrap();
        // The file itself needs some of it: the rest is taken in small steps.
        let most = free.saturating_sub(bytes + 4 * MIB);
        assert!(most == 0 || grown(&file, most), "the disk has less room than it says");
        for step in [MIB, 64 << 10, 4096] {
            while bytes == 0 && grown(&file, step) {}
        }
    }

    fn free(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn grown(file: &File, bytes: u64) -> bool {
    let (at, bytes) = (file.metadata().unwrap().len().cast_signed(), bytes.cast_signed());
    nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::empty(), at, bytes).is_ok()
}

fn free_bytes(at: &Path) -> u64 {
    let disk = nix::sys::statvfs::statvfs(at).unwrap();
    disk.blocks_available() * disk.fragment_size()
}

/// Bytes that do not compress.
fn noise(mib: u64) -> Vec<u8> {
    atoll_tests::state_model::make(7, usize::try_from(mib * MIB).unwrap())
}

/// Where Daytona's SDKs put the context of a build, and the token that lets them.
async fn storage_session(w: &World, client: &Client) -> (String, String) {
    let url = format!("{}/daytona/api/object-storage/push-access", w.admin().base());
    let answer = reqwest::Client::new().get(url).bearer_auth(client.key()).send().await.unwrap();
    let access: serde_json::Value = answer.error_for_status().unwrap().json().await.unwrap();
    let text = |name: &str| access[name].as_str().unwrap().to_owned();
    let place = format!("{}/{}/{}", text("storageUrl"), text("bucket"), text("organizationId"));
    (place, text("sessionToken"))
}

async fn put_object(session: &(String, String), hash: &str, body: Vec<u8>) -> (u16, String) {
    let url = format!("{}/{hash}/context.tar", session.0);
    let put = reqwest::Client::new().put(url).header("x-amz-security-token", &session.1).body(body);
    let answer = put.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

fn files_below(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

#[test]
fn every_writer_leaves_the_reserve_alone_and_uploads_count_for_their_tenant() {
    // C3.
    run_with(options(3_000), async |w: &World| {
        let client = w.tenant("acme").await;
        let kept = client.create(json!({ "disk_mib": 200, "memory_mib": 256 })).await;
        client.write_file(&kept, "/home/user/big", noise(60)).await.ok();
        let session = storage_session(w, &client).await;
        let filler = Filler::new(w);
        filler.leave((RESERVE_MIB + 40) * MIB);
        let reserve_is_there = || {
            let free = free_bytes(&w.data()) / MIB;
            assert!(free >= RESERVE_MIB - 1, "{free} MiB are left");
        };
        // Uploads.
        let hash = "ab".repeat(16);
        let (status, said) = put_object(&session, &hash, noise(60)).await;
        assert_eq!(status, 507, "{said}");
        assert!(said.contains("<Code>InsufficientStorage</Code>"), "{said}");
        assert_eq!(files_below(&w.data().join("builds")), 0, "half an upload is left");
        assert_eq!(files_below(&w.data().join("uploads")), 0, "half an upload is left");
        reserve_is_there();
        // Archives: refused, and the sandbox has its files still.
        let refused = client.act(&kept, "archive").await;
        refused.refused(503, "no_capacity");
        assert_eq!(files_below(&w.data().join("archive")), 0, "pieces of an archive are left");
        reserve_is_there();
        client.act(&kept, "start").await.ok();
        assert_eq!(client.sh(&kept, "wc -c < big").await.text(), (60 * MIB).to_string());
        // Images.
        let large = image::busybox().layer(&Layer::new().file("large", 0o644, noise(60)), Packing::Plain);
        client.import("large", large.docker_archive("x")).await.refused(503, "no_capacity");
        reserve_is_there();
        // What fits still goes in, and deleting works.
        assert_eq!(put_object(&session, &hash, noise(1)).await.0, 200);
        client.remove(&kept).await;
        // With room everything works again.
        filler.free();
        let (status, said) = put_object(&session, &hash, noise(60)).await;
        assert_eq!(status, 200, "{said}");
        // Uploads count against the tenant's disk quota, and so leave less for its sandboxes.
        let small = w.tenant_with("small", json!({ "disk_mib": 70 })).await;
        let session = storage_session(w, &small).await;
        let (status, said) = put_object(&session, &hash, noise(80)).await;
        assert_eq!((status, said.contains("<Code>QuotaExceeded</Code>")), (403, true), "{said}");
        assert_eq!(put_object(&session, &hash, noise(20)).await.0, 200);
        let body = json!({ "disk_mib": 60, "memory_mib": 64 });
        small.post("/v1/sandboxes", body).await.refused(429, "quota_exceeded");
        small.create(json!({ "disk_mib": 50, "memory_mib": 64 })).await;
    });
}

/// Whatever is asked on a full disk is answered by a word of ours, and never by half of it.
async fn everything_new_is_refused(w: &World, client: &Client, running: &str) {
    let entries = |folder: &str| std::fs::read_dir(w.data().join(folder)).unwrap().count();
    let (layers, snapshots) = (entries("pool/layers"), entries("pool/snapshots"));
    let sandboxes = count(client, "/v1/sandboxes").await;
    client
        .post("/v1/sandboxes", json!({ "memory_mib": 64, "disk_mib": 16 }))
        .await
        .refused(503, "no_capacity");
    let path = |tail: &str| format!("/v1/sandboxes/{running}{tail}");
    client.post(&path("/snapshots"), json!({})).await.refused(503, "no_capacity");
    client.post(&path("/fork"), json!({})).await.refused(503, "no_capacity");
    client.post("/v1/volumes", json!({ "name": "v", "size_mib": 16 })).await.refused(503, "no_capacity");
    client.post("/v1/secrets", json!({ "name": "A", "value": "x" })).await.refused(503, "no_capacity");
    let archive = image::busybox().docker_archive("x");
    client.import("small", archive).await.refused(503, "no_capacity");
    assert_eq!(count(client, "/v1/sandboxes").await, sandboxes);
    until("nothing is left of what was refused", async || (entries("pool/layers") == layers).then_some(()))
        .await;
    assert_eq!((entries("pool/snapshots"), entries("pool/volumes")), (snapshots, 0));
    // What is here goes on.
    assert_eq!(client.sh(running, "echo hello > note; cat note").await.text(), "hello");
}

async fn count(client: &Client, path: &str) -> usize {
    client.get(path).await.ok()["items"].as_array().unwrap().len()
}

fn database_is_sound(w: &World) {
    let sound: String = w.database().query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[test]
fn b15_a_full_disk_of_the_host_is_refused_in_words_and_loses_nothing() {
    // B15. Another program takes all space; then also what was set aside.
    run_with(options(3_000), async |w: &World| {
        let client = w.tenant("acme").await;
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(client.create(json!({ "memory_mib": 64, "disk_mib": 64 })).await);
        }
        let taken = client.post(&format!("/v1/sandboxes/{}/snapshots", ids[0]), json!({})).await;
        let snapshot = taken.ok()["id"].as_str().unwrap().to_owned();
        let filler = Filler::new(w);
        // The second time the headroom goes: whatever is left of it must not be taken before the delete.
        for left in [8 * MIB, 0] {
            filler.leave(left);
            everything_new_is_refused(w, &client, &ids[0]).await;
        }
        // Deleting works: the space set aside for it is used.
        client.delete(&format!("/v1/snapshots/{snapshot}")).await.ok();
        client.remove(&ids.pop().unwrap()).await;
        assert!(!w.data().join("headroom").exists(), "the headroom was given up");
        database_is_sound(w);
        // A server that was killed starts on a full disk, and finds its sandboxes.
        w.crash_server().await;
        assert_eq!(client.sh(&ids[0], "cat note").await.text(), "hello");
        everything_new_is_refused(w, &client, &ids[0]).await;
        client.remove(&ids.pop().unwrap()).await;
        // The headroom is used up too: no write succeeds, the error reports that, and nothing is broken.
        for _ in 0..3 {
            filler.free();
            filler.leave(0);
            let path = format!("/v1/sandboxes/{}", ids[0]);
            let answers = [
                client.patch(&path, json!({ "labels": { "full": "x".repeat(4_000) } })).await,
                client.post("/v1/sandboxes", json!({ "memory_mib": 64, "disk_mib": 16 })).await,
                client.act(&ids[0], "stop").await,
                client.act(&ids[0], "start").await,
            ];
            for answer in answers {
                assert!(answer.status < 300 || answer.code() == "no_capacity", "{answer}");
            }
        }
        filler.free();
        w.crash_server().await;
        database_is_sound(w);
        assert!(w.data().join("headroom").exists(), "the headroom is set aside again");
        assert_eq!(client.get("/v1/sandboxes").await.ok()["items"].as_array().unwrap().len(), ids.len());
        client.create(json!({ "memory_mib": 64, "disk_mib": 64 })).await;
        for id in ids {
            client.remove(&id).await;
        }
        w.stop_server(Signal::SIGTERM).await;
        database_is_sound(w);
    });
}

#[test]
fn a_full_pool_leaves_pause_and_snapshot_to_others() {
    // C4.
    if criu::at_hand().is_none() {
        return;
    }
    run_with(options(1_200), async |w: &World| {
        let (attacker, victim) = (w.tenant("attacker").await, w.tenant("victim").await);
        let limits = json!({ "memory_mib": 64, "disk_mib": 250 });
        let kept = victim.create(limits.clone()).await;
        victim.sh(&kept, "echo kept > note").await.text();
        let beat = json!({ "argv": ["/bin/sh", "-c", "while :; do date +%s%N > /tmp/beat; sleep 0.1; done"], "detach": true });
        victim.try_exec(&kept, beat).await.ok();
        let mut hogs = Vec::new();
        for _ in 0..4 {
            let made = attacker.post("/v1/sandboxes", limits.clone()).await;
            if made.status == 503 {
                break;
            }
            hogs.push(made.ok()["id"].as_str().unwrap().to_owned());
        }
        assert!(hogs.len() >= 3, "only {} fit", hogs.len());
        for hog in &hogs {
            attacker.sh(hog, "cat /dev/urandom > full; sync; true").await;
        }
        let said =
            attacker.sh(&hogs[0], "head -c 9000000 /dev/urandom > more; sync more && echo written").await;
        assert!(!said.stdout.contains("written"), "the pool took all of it");
        // Others bring their memory to disk, come back, and take a snapshot.
        let path = |tail: &str| format!("/v1/sandboxes/{kept}{tail}");
        let paused = victim.post(&path("/pause"), json!({ "memory": "disk" })).await.ok();
        assert_eq!((&paused["phase"], &paused["held"]), (&json!("paused"), &json!("disk")), "{paused}");
        victim.act(&kept, "resume").await.ok();
        assert_eq!(victim.sh(&kept, "cat note").await.text(), "kept");
        victim.post(&path("/snapshots"), json!({ "name": "s", "memory": true })).await.ok();
        // A stopped sandbox starts, and whatever is deleted goes.
        victim.act(&kept, "stop").await.ok();
        victim.act(&kept, "start").await.ok();
        for hog in &hogs {
            attacker.remove(hog).await;
        }
        until("there is room again", async || {
            let said =
                victim.sh(&kept, "head -c 9000000 /dev/urandom > more && sync more && echo written").await;
            said.stdout.contains("written").then_some(())
        })
        .await;
        // An operator who promises nothing twice has creates refused instead.
        w.crash_server_with(&[("ATOLL_DISK_OVERCOMMIT", "1")]).await;
        let mut beyond_share = None;
        for _ in 0..8 {
            let made = attacker.post("/v1/sandboxes", limits.clone()).await;
            if made.status >= 300 {
                beyond_share = Some(made);
                break;
            }
        }
        let said = beyond_share.expect("a share has an end").refused(429, "quota_exceeded").to_string();
        assert!(said.contains("disk share of this tenant") && said.contains("--tenant-disk-share"), "{said}");
        w.crash_server_with(&[("ATOLL_TENANT_DISK_SHARE", "100%")]).await;
        let mut refused = None;
        for _ in 0..8 {
            let made = attacker.post("/v1/sandboxes", limits.clone()).await;
            if made.status >= 300 {
                refused = Some(made);
                break;
            }
        }
        let refused = refused.expect("promises have an end");
        let said = refused.refused(503, "no_capacity");
        assert!(said.to_string().contains("MiB of committable disk"), "{said}");
        victim.act(&kept, "stop").await.ok();
        victim.act(&kept, "start").await.ok();
    });
}

/// Fills a sandbox until the kernel refuses; answers how many MiB are in the file.
async fn flood(client: &Client, id: &str) -> u64 {
    let line = "(cat /dev/urandom > full; sync full) 2> /dev/null; (wc -c < full) 2> /dev/null || echo 0";
    client.sh(id, line).await.text().trim().parse::<u64>().unwrap() / MIB
}

#[test]
fn one_tenant_cannot_fill_the_pool_for_others() {
    // Attack R2: with default settings another's sandbox got EDQUOT with 20 of 300 MiB used.
    run_with(options(2_000), async |w: &World| {
        let (attacker, victim) = (w.tenant("attacker").await, w.tenant("victim").await);
        let kept = victim.create(json!({ "memory_mib": 64, "disk_mib": 300 })).await;
        victim.sh(&kept, "head -c 20971520 /dev/urandom > first; sync").await.text();
        let limits = json!({ "memory_mib": 64, "disk_mib": 600 });
        let mut hogs = Vec::new();
        for _ in 0..3 {
            hogs.push(attacker.create(limits.clone()).await);
        }
        // The server dies in the middle of it; the groups are the kernel's.
        let line = "cat /dev/urandom > early";
        let beat = json!({ "argv": ["/bin/sh", "-c", line], "detach": true });
        attacker.try_exec(&hogs[0], beat).await.ok();
        w.crash_server().await;
        let mut taken = 0;
        for hog in &hogs {
            taken += flood(&attacker, hog).await;
        }
        assert!(taken > 100, "the attacker got {taken} MiB only");
        // New sandboxes of the attacker are refused, and the refusal says whose space is used up.
        let refused = attacker.post("/v1/sandboxes", json!({ "memory_mib": 64, "disk_mib": 16 })).await;
        let said = refused.refused(503, "no_capacity");
        assert!(said.to_string().contains("share of this tenant"), "{said}");
        // The other writes all that it was promised, and makes new ones.
        let line = "head -c 262144000 /dev/urandom > second && sync second && echo written";
        assert_eq!(victim.sh(&kept, line).await.text(), "written");
        let more = victim.create(json!({ "memory_mib": 64, "disk_mib": 100 })).await;
        let line = "head -c 83886080 /dev/urandom > third && sync third && echo written";
        assert_eq!(victim.sh(&more, line).await.text(), "written");
        // A larger share takes effect while the sandboxes run.
        let settings = [("ATOLL_TENANT_DISK_SHARE", "75%")];
        w.crash_server_with(&settings).await;
        until("the attacker may write again", async || {
            let line = "head -c 9000000 /dev/urandom > more && sync more && echo written";
            attacker.sh(&hogs[1], line).await.stdout.contains("written").then_some(())
        })
        .await;
        for hog in &hogs {
            attacker.remove(hog).await;
        }
    });
}

#[test]
fn a_provider_without_disk_limits_is_not_refused_for_disk() {
    run_with(options(1_200).env("ATOLL_ALLOW_LOCAL", "true"), async |w: &World| {
        let client = w.first_tenant().await;
        // The default limit of 2 GiB is more than this disk has.
        let refused = client.post("/v1/sandboxes", json!({})).await.refused(503, "no_capacity");
        let hint = refused["hint"].as_str().unwrap();
        assert!(hint.contains("--disk") && !hint.contains("queue"), "{refused}");
        let id = client.create(json!({ "provider": "local" })).await;
        client.remove(&id).await;
    });
}

/// Attack F17: the file system below the state refuses every write from one moment to the next, as after an I/O error.
#[test]
fn a_state_folder_that_takes_no_more_writes_is_a_typed_error_and_ends_nothing() {
    run_with(options(3_000), async |w: &World| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "disk_mib": 64, "memory_mib": 64, "timeout_s": 600 })).await;
        let sleep = json!({ "argv": ["sleep", "1000"], "detach": true });
        let pid = client.exec(&id, sleep).await.answer["pid"].clone();
        let secret = json!({ "name": "kept", "value": "x" });
        client.post("/v1/secrets", secret).await.ok();
        // The journal is given up, which is what ext4 does when its disk fails.
        let aborted =
            std::process::Command::new("mount").args(["-o", "remount,abort"]).arg(w.data()).output().unwrap();
        let written = std::fs::write(w.data().join("probe"), "x");
        assert!(written.is_err(), "the disk still takes writes: {aborted:?}");
        for (path, body) in [
            ("/v1/sandboxes".to_owned(), json!({ "disk_mib": 16 })),
            ("/v1/volumes".to_owned(), json!({ "name": "late" })),
            ("/v1/secrets".to_owned(), json!({ "name": "late", "value": "x" })),
            (format!("/v1/sandboxes/{id}/snapshots"), json!({})),
            (format!("/v1/sandboxes/{id}/pause"), json!({ "memory": "disk" })),
            (format!("/v1/sandboxes/{id}/extend"), json!({ "seconds": 3_600 })),
            ("/v1/builds".to_owned(), json!({ "template": "app", "dockerfile": "FROM busybox\nRUN true\n" })),
        ] {
            let answer = client.post(&path, body).await;
            assert!(answer.status >= 500, "{answer}");
            assert!(!answer.code().is_empty(), "{answer}");
        }
        assert_eq!(client.get("/v1/sandboxes").await.ok()["items"].as_array().unwrap().len(), 1);
        assert_eq!(client.sandbox(&id).await["phase"], "running", "what runs goes on");
        let processes = client.get(&format!("/v1/sandboxes/{id}/processes")).await.ok();
        assert!(processes["items"].as_array().unwrap().iter().any(|one| one["pid"] == pid), "{processes}");
        assert!(w.server_exit().is_none() && !w.log().contains("panicked at"), "{}", w.log());
        // What was acknowledged is there: read from a copy, since nothing can be written beside it.
        w.stop_server(Signal::SIGKILL).await;
        let copy = w.folder().join("copy");
        std::fs::create_dir(&copy).unwrap();
        for name in ["sandbox.db", "sandbox.db-wal"] {
            std::fs::copy(w.data().join(name), copy.join(name)).unwrap();
        }
        let database = rusqlite::Connection::open(copy.join("sandbox.db")).unwrap();
        let count = |query: &str| -> i64 { database.query_row(query, [], |row| row.get(0)).unwrap() };
        assert_eq!(count("select count(*) from sandbox_leases where observed != 'deleted'"), 1);
        assert_eq!(count("select count(*) from secrets"), 1);
    });
}
