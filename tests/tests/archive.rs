//! Archives in a real S3, with everything that goes wrong on the way there and back.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use atoll_tests::s3::{Fault, KEY, Proxy, Rule, S3, SECRET};
use atoll_tests::soak::calls::Shared;
use atoll_tests::soak::kept::{Kept, Version};
use atoll_tests::state_model::Dice;
use atoll_tests::{Options, Value, World, json, run, run_with, template, until};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::moving;

/// A server that archives to an S3 of its own, with a proxy in between.
struct Cloud {
    s3: S3,
    proxy: Proxy,
    shared: Shared,
}

impl Cloud {
    async fn new(w: &World) -> Self {
        let s3 = S3::start(&w.folder().join("s3"));
        let proxy = Proxy::start(&s3).await;
        let place = proxy.place();
        w.crash_server_with(&[
            ("ATOLL_ARCHIVE", &place),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ])
        .await;
        let shared = Shared::quiet(w, w.tenant("acme").await);
        Self { s3, proxy, shared }
    }

    /// A sandbox with some megabytes that do not compress.
    async fn sandbox(&self, seed: u64) -> Kept {
        let mut kept = Kept::create(&self.shared, json!({ "disk_mib": 200 }), seed).await;
        let bytes = atoll_tests::state_model::make(seed, 3_000_000);
        self.shared.client.write_file(&kept.id, "/home/user/big", bytes).await.ok();
        kept.change(&self.shared, &mut Dice::new(seed)).await;
        kept
    }

    async fn archive(&self, kept: &mut Kept) -> Value {
        let archived = self.shared.client.act(&kept.id, "archive").await.ok();
        assert_eq!(archived["phase"], "archived", "{archived}");
        kept.is_intact(&self.shared, "archived").await
    }

    async fn start(&self, kept: &mut Kept) {
        self.shared.client.act(&kept.id, "start").await.ok();
        kept.is_intact(&self.shared, "running").await;
        self.big_is_whole(&kept.id).await;
    }

    async fn big_is_whole(&self, id: &str) {
        let read = self.shared.client.read_file(id, "/home/user/big").await;
        assert!(read.status == 200 && read.bytes.len() == 3_000_000, "{} {}", read.status, read.bytes.len());
    }
}

#[test]
fn an_archive_goes_to_s3_and_comes_back() {
    run(async |w| {
        let cloud = Cloud::new(w).await;
        let mut kept = cloud.sandbox(1).await;
        let archived = cloud.archive(&mut kept).await;
        assert!(archived["archive"]["stored_bytes"].as_u64().unwrap() > 3_000_000, "{archived}");
        assert_eq!(cloud.s3.manifests().len(), 1);
        w.crash_server().await;
        cloud.start(&mut kept).await;
        until("nothing is left in object storage", async || cloud.s3.manifests().is_empty().then_some(()))
            .await;
        // Twice, and with a request that wakes; restore alone rests.
        cloud.archive(&mut kept).await;
        cloud.big_is_whole(&kept.id).await;
        kept.is_intact(&cloud.shared, "running").await;
        cloud.archive(&mut kept).await;
        cloud.shared.client.act(&kept.id, "restore").await.ok();
        kept.is_intact(&cloud.shared, "stopped").await;
        cloud.shared.client.act(&kept.id, "restore").await.ok();
        cloud.archive(&mut kept).await;
        // Deleting an archived sandbox removes its objects.
        cloud.shared.client.remove(&kept.id).await;
        until("its objects are gone", async || cloud.s3.manifests().is_empty().then_some(())).await;
    });
}

/// Attack B08: the hole of a file takes no space in an archive, nor while it is made and unpacked.
#[test]
fn holes_of_a_terabyte_stay_holes_in_archives_and_snapshots() {
    let options = Options { disk_mib: Some(4_000), ..Options::default() }.env("ATOLL_DISK_RESERVE", "128m");
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "disk_mib": 128 })).await;
        client.sh(&id, moving::HOLES).await.text();
        let described = client.sh(&id, moving::DESCRIBE_HOLES).await.text().to_owned();
        let free = moving::free_bytes(w);
        let begun = Instant::now();
        let archived = client.act(&id, "archive").await.ok();
        assert!(archived["archive"]["stored_bytes"].as_u64().unwrap() < 4 << 20, "{archived}");
        client.act(&id, "restore").await.ok();
        client.act(&id, "start").await.ok();
        assert_eq!(client.sh(&id, moving::DESCRIBE_HOLES).await.text(), described);
        let made = client.post(&format!("/v1/sandboxes/{id}/fork"), json!({ "count": 1 })).await.ok();
        let fork = made["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(client.sh(&fork, moving::DESCRIBE_HOLES).await.text(), described);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        moving::disk_is_free(w, free, "an archive");
        client.remove(&fork).await;
        client.remove(&id).await;
    });
}

#[test]
fn an_archive_can_be_taken_up_by_another_server() {
    run(async |w| {
        let cloud = Cloud::new(w).await;
        let mut kept = cloud.sandbox(2).await;
        let archived = cloud.archive(&mut kept).await;
        let key = archived["archive"]["key"].as_str().unwrap().to_owned();
        let other = w.folder().join("other-machine");
        template::link(&other.join("templates"), "busybox");
        let linked = std::process::Command::new("cp")
            .arg("-a")
            .arg(w.templates().join("keeper"))
            .arg(other.join("templates"))
            .status();
        assert!(linked.unwrap().success());
        let log = std::fs::File::create(w.folder().join("other.log")).unwrap();
        let mut command = w.command();
        command.env("ATOLL_DATA", &other).args(["serve", "--listen", "127.0.0.1:7071"]);
        let mut child =
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let admin = until("the other server answers", async || {
            let health = reqwest::get("http://127.0.0.1:7071/health").await;
            health.is_ok_and(|answer| answer.status() == 200).then_some(())?;
            std::fs::read_to_string(other.join("admin.key")).ok()
        })
        .await;
        let there = cloud.shared.client.at("http://127.0.0.1:7071", admin.trim());
        let made = there.post("/v1/sandboxes", json!({ "archive": key })).await.ok();
        assert_eq!((&made["phase"], &made["template"]), (&json!("running"), &json!("keeper")), "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        let elsewhere = Shared { client: there.clone(), ..Shared::quiet(w, there.clone()) };
        let mut copy = Kept::new(id.clone(), kept.may.iter().map(Version::without_memory).collect());
        copy.is_intact(&elsewhere, "running").await;
        assert_eq!(there.read_file(&id, "/home/user/big").await.bytes.len(), 3_000_000);
        there
            .post("/v1/sandboxes", json!({ "archive": format!("{key}0") }))
            .await
            .refused(404, "archive_not_found");
        there.post("/v1/sandboxes", json!({ "archive": "no/such" })).await.refused(404, "archive_not_found");
        there.remove(&id).await;
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
        until("the other server ends", async || child.try_wait().unwrap()).await;
        let mut uninstall = w.command();
        uninstall.env("ATOLL_URL", "http://127.0.0.1:7071").env("ATOLL_DATA", &other).args([
            "server",
            "uninstall",
            "--force",
        ]);
        let done = w.output(uninstall).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // The first one still has it.
        cloud.start(&mut kept).await;
        cloud.shared.client.remove(&kept.id).await;
    });
}

/// Attack F09.
#[test]
fn faults_on_the_way_lose_nothing() {
    run(async |w| {
        let cloud = Cloud::new(w).await;
        let mut kept = cloud.sandbox(3).await;
        let client = &cloud.shared.client;
        let mut dice = Dice::new(55);
        let some = |fault, method, times| Rule { fault, method, path: "", skip: 0, times };
        // What passes is waited out: errors, resets, slow links, on the way there and back.
        for rules in [
            vec![some(Fault::Status(500), "PUT", 2), some(Fault::Status(503), "GET", 2)],
            vec![some(Fault::Reset, "PUT", 1), some(Fault::Reset, "GET", 1)],
            vec![some(Fault::Slow(4_000_000), "PUT", 3), some(Fault::Slow(4_000_000), "GET", 3)],
        ] {
            cloud.proxy.now(&rules);
            cloud.archive(&mut kept).await;
            cloud.start(&mut kept).await;
            kept.ensure_holder(&cloud.shared, 8).await.unwrap();
            kept.change(&cloud.shared, &mut dice).await;
        }
        // What stays is an answer, and nothing has changed: its files are here and nothing counts as archived.
        for (method, path) in [("PUT", "chunks"), ("PUT", ".json"), ("GET", "list-type")] {
            cloud.proxy.now(&[Rule { path, ..Rule::always(Fault::Status(403), method) }]);
            client.act(&kept.id, "archive").await.refused(503, "archive_unavailable");
            kept.is_intact(&cloud.shared, "stopped").await;
            assert_eq!(cloud.s3.manifests().len(), 0, "{method} {path}");
            cloud.proxy.now(&[]);
            cloud.start(&mut kept).await;
            kept.ensure_holder(&cloud.shared, 9).await.unwrap();
        }
        // The way back: truncated answers are not files, and the sandbox stays archived.
        cloud.archive(&mut kept).await;
        cloud.proxy.now(&[Rule { path: "chunks", ..Rule::always(Fault::Status(403), "GET") }]);
        client.act(&kept.id, "start").await.refused(503, "archive_unavailable");
        kept.is_intact(&cloud.shared, "archived").await;
        let woken = client.try_exec(&kept.id, json!({ "argv": ["true"] })).await;
        woken.refused(503, "wake_failed");
        cloud.proxy.now(&[some(Fault::Truncated, "GET", 2)]);
        let started = client.act(&kept.id, "start").await;
        assert!(
            started.status < 300 || matches!(started.code().as_str(), "archive_unavailable" | "damaged"),
            "{started}"
        );
        cloud.proxy.now(&[]);
        cloud.start(&mut kept).await;
        client.remove(&kept.id).await;
    });
}

/// Attack F10.
#[test]
fn what_is_killed_half_way_does_not_count() {
    run(async |w| {
        let mut cloud = Cloud::new(w).await;
        let mut kept = cloud.sandbox(4).await;
        let client = cloud.shared.client.clone();
        // The server dies in the middle of the upload.
        for round in 0..4_u64 {
            cloud.proxy.now(&[Rule::always(Fault::Slow(3_000_000), "PUT")]);
            let path = kept.path("/archive");
            let upload = client.raw(reqwest::Method::POST, &path).send();
            let killer = async {
                tokio::time::sleep(Duration::from_millis(100 + round * 250)).await;
                w.stop_server(Signal::SIGKILL).await;
            };
            let _ = futures::join!(upload, killer);
            kept.may = kept.may.iter().map(Version::without_memory).chain(kept.may.clone()).collect();
            kept.loosen();
            if cloud.s3.manifests().is_empty() {
                assert!(w.eye().layer(&kept.id).exists(), "without an archive the files must be here");
            }
            cloud.proxy.now(&[]);
            w.start_server().await;
            kept.settle(&cloud.shared, &["running", "stopped", "archived"]).await.unwrap();
            kept.verify(&cloud.shared).await.unwrap();
            cloud.start(&mut kept).await;
            kept.ensure_holder(&cloud.shared, round).await.unwrap();
        }
        // The storage dies in the middle of it and comes back.
        cloud.proxy.now(&[Rule::always(Fault::Slow(3_000_000), "PUT")]);
        let archiving = tokio::spawn({
            let (client, id) = (client.clone(), kept.id.clone());
            async move { client.act(&id, "archive").await }
        });
        tokio::time::sleep(Duration::from_millis(400)).await;
        cloud.s3.kill();
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(w.eye().layer(&kept.id).exists(), "not archived, so its files are here");
        cloud.s3.revive().await;
        cloud.proxy.now(&[]);
        let archived = archiving.await.unwrap();
        assert!(archived.status < 300 || archived.code() == "archive_unavailable", "{archived}");
        kept.settle(&cloud.shared, &["stopped", "archived"]).await.unwrap();
        cloud.start(&mut kept).await;
        client.remove(&kept.id).await;
        until("its objects are gone", async || cloud.s3.manifests().is_empty().then_some(())).await;
    });
}

#[test]
fn a_damaged_archive_is_refused_and_stays_where_it_is() {
    run(async |w| {
        let cloud = Cloud::new(w).await;
        let mut kept = cloud.sandbox(5).await;
        cloud.archive(&mut kept).await;
        let chunk = cloud.s3.objects().into_iter().find(|path| {
            path.to_string_lossy().contains("chunks") && path.metadata().is_ok_and(|m| m.len() > 100_000)
        });
        let chunk = chunk.expect("a piece");
        let whole = std::fs::read(&chunk).unwrap();
        for (what, bytes) in [
            ("a bit", whole.iter().enumerate().map(|(n, b)| if n == 77_777 { b ^ 1 } else { *b }).collect()),
            ("an end", whole[..whole.len() - 1].to_vec()),
            ("everything", Vec::new()),
        ] {
            std::fs::write(&chunk, &bytes).unwrap();
            cloud.shared.client.act(&kept.id, "start").await.refused(409, "damaged");
            let now = kept.is_intact(&cloud.shared, "archived").await;
            assert!(
                now["reason"]["message"].as_str().is_some_and(|m| m.contains("damaged")),
                "{what}: {now}"
            );
        }
        std::fs::remove_file(&chunk).unwrap();
        let gone = cloud.shared.client.act(&kept.id, "start").await;
        assert!(matches!(gone.code().as_str(), "damaged" | "archive_not_found"), "{gone}");
        std::fs::write(&chunk, &whole).unwrap();
        cloud.start(&mut kept).await;
        cloud.shared.client.remove(&kept.id).await;
    });
}

#[test]
fn a_full_archive_place_leaves_the_files_here() {
    run(async |w| {
        let place = w.folder().join("small-place");
        std::fs::create_dir(&place).unwrap();
        mount(Some("tmpfs"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=2m")).unwrap();
        w.crash_server_with(&[("ATOLL_ARCHIVE", place.to_str().unwrap())]).await;
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let mut kept = Kept::create(&shared, json!({}), 6).await;
        shared
            .client
            .write_file(&kept.id, "/home/user/big", atoll_tests::state_model::make(6, 3_000_000))
            .await
            .ok();
        shared.client.act(&kept.id, "archive").await.refused(503, "no_capacity");
        kept.is_intact(&shared, "stopped").await;
        shared.client.act(&kept.id, "start").await.ok();
        kept.is_intact(&shared, "running").await;
        shared.client.sh(&kept.id, "rm /home/user/big").await.text();
        let archived = shared.client.act(&kept.id, "archive").await.ok();
        assert_eq!(archived["phase"], "archived");
        shared.client.act(&kept.id, "start").await.ok();
        kept.is_intact(&shared, "running").await;
        shared.client.remove(&kept.id).await;
        let left = std::fs::read_dir(&place).unwrap().count();
        w.crash_server_with(&[("ATOLL_ARCHIVE", "")]).await;
        umount(&place).unwrap();
        assert_eq!(left, 0, "pieces of the upload that failed are gone too");
    });
}
