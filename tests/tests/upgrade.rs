//! Upgrades and the way back: a data folder of an older version, and a database of a newer one. `scripts/nightly upgrade` does the
//! same with a program of an earlier commit and sandboxes that run.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atoll_tests::{Options, World, json, run, run_with, until};
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};

/// The last commit of 0.1.0 before templates had memory of their sandboxes' names: schema 11.
const OLD: &str = include_str!("../upgrade/96755ff2.sql");
const OLD_KEY: &str = include_str!("../upgrade/secret.key");
const OLD_ADMIN: &str = "atl_0123456789abcdef0123456789abcdef01234567\n";
/// What that version wrote into `DATA/node`: the node, and the id of the folder.
const OLD_NODE: (&str, &str) = ("vm", "39488e5e05ece817f3ad");

/// Every file below DATA, without what is mounted there: content and the times of its last changes. Sandboxes that run write to
/// the pool's file, and files of templates have links in data folders of other tests, which sets the time of their change.
fn fingerprint(data: &Path) -> BTreeMap<PathBuf, String> {
    let device = data.metadata().unwrap().dev();
    let (mut left, mut found) = (vec![data.to_path_buf()], BTreeMap::new());
    while let Some(path) = left.pop() {
        let about = path.symlink_metadata().unwrap();
        if about.dev() != device {
            continue;
        }
        let mut text = format!("{} {}", about.mode(), about.len());
        let is_pool = path.file_name().unwrap() == "pool.btrfs";
        if !is_pool {
            text += &format!(" {}", about.mtime_nsec());
        }
        if !is_pool && !path.starts_with(data.join("templates")) {
            text += &format!(" {}", about.ctime_nsec());
        }
        if about.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if about.is_file() && !is_pool {
            text += &hex::encode(Sha256::digest(std::fs::read(&path).unwrap()));
        }
        found.insert(path, text);
    }
    found
}

fn set_schema(data: &Path, version: u32, writer: &str) {
    let database = rusqlite::Connection::open(data.join("sandbox.db")).unwrap();
    database.execute("UPDATE meta SET value = ?1 WHERE key = 'schema_writer'", [writer]).unwrap();
    database.pragma_update(None, "user_version", version).unwrap();
}

#[test]
fn a_database_of_a_newer_version_is_refused_before_anything_is_touched() {
    run(async |w: &World| {
        let client = w.first_tenant().await;
        let id = client.create(json!({ "memory_mib": 64, "disk_mib": 64 })).await;
        client.sh(&id, "echo kept > note").await.text();
        let known: u32 = w.database().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        w.stop_server(Signal::SIGTERM).await;
        set_schema(&w.data(), 99, "9.8.7");
        let before = fingerprint(&w.data());
        for line in [&["serve", "--listen", "127.0.0.1:7070"][..], &["server", "uninstall", "--force"]] {
            let mut command = w.command();
            command.args(line);
            let output = w.output(command).await;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                !output.status.success() && said.contains("was written by Atoll 9.8.7 (schema 99)"),
                "{said}"
            );
            assert!(said.contains("docs/upgrade.md"), "{said}");
            let after = fingerprint(&w.data());
            let changed: Vec<_> =
                after.iter().filter(|(path, text)| before.get(*path) != Some(*text)).collect();
            assert!(changed.is_empty() && before.len() == after.len(), "{line:?} changed {changed:?}");
        }
        // Nothing was lost by the attempt.
        set_schema(&w.data(), known, env!("CARGO_PKG_VERSION"));
        w.start_server().await;
        assert_eq!(client.sh(&id, "cat note").await.text(), "kept");
        client.remove(&id).await;
    });
}

/// Puts the data folder of the older version in place of the one that the world made.
fn install_old(w: &World) {
    let data = w.data();
    for name in ["sandbox.db", "sandbox.db-wal", "sandbox.db-shm", "sandbox.db-servers", "lock"] {
        let _ = std::fs::remove_file(data.join(name));
    }
    std::fs::write(data.join("secret.key"), OLD_KEY).unwrap();
    std::fs::write(data.join("admin.key"), OLD_ADMIN).unwrap();
    let db = data.join("sandbox.db");
    std::fs::write(data.join("node"), format!("{}\n{}\n{}\n", OLD_NODE.0, OLD_NODE.1, db.display())).unwrap();
    rusqlite::Connection::open(&db).unwrap().execute_batch(OLD).unwrap();
    // The settings of a provider, and a key beside it.
    let settings = r#"{"provider": "docker", "on_exit": "keep", "docker": {"image": "python:3.12-slim", "mount_path": "/workspace", "host": "unix:///nowhere.sock"}}"#;
    std::fs::create_dir_all(data.join("sandboxes")).unwrap();
    std::fs::write(data.join("sandboxes/boxes.json"), settings).unwrap();
    std::fs::write(data.join("config.env"), "E2B_API_KEY=e2b_old\n").unwrap();
}

#[test]
fn a_data_folder_of_an_older_version_is_taken_over_with_every_phase() {
    let options = Options { audit: false, ..Options::default() };
    run_with(options, async |w: &World| {
        w.stop_server(Signal::SIGTERM).await;
        install_old(w);
        w.start_server().await;
        let admin = w.admin();
        let phases = async || -> BTreeMap<String, String> {
            let found = admin.get("/v1/sandboxes?limit=100").await.ok();
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            found["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| (text(&one["name"]), text(&one["phase"])))
                .collect()
        };
        // What rested rests; what was under way comes to rest, and nothing but what was being deleted is gone.
        let resting = ["running", "paused", "stopped", "archived", "failed"];
        let settled = until("every sandbox rests", async || {
            let now = phases().await;
            let is_done = now.values().all(|phase| resting.contains(&phase.as_str()));
            (is_done && !now.contains_key("old-deleting")).then_some(now)
        })
        .await;
        for (name, phase) in
            [("stop1", "stopped"), ("old-failed", "failed"), ("old-archived", "archived"), ("run1", "failed")]
        {
            assert_eq!(settled.get(name).map(String::as_str), Some(phase), "{settled:?}");
        }
        let under_way =
            ["creating", "pausing", "paused", "resuming", "stopping", "starting", "archiving", "restoring"];
        assert!(under_way.iter().all(|phase| settled.contains_key(&format!("old-{phase}"))), "{settled:?}");
        for (path, name) in [("/v1/snapshots", "clean"), ("/v1/volumes", "data"), ("/v1/secrets", "KEY")] {
            let found = admin.get(path).await.ok();
            assert!(
                found["items"].as_array().unwrap().iter().any(|one| one["name"] == name),
                "{path}: {found}"
            );
        }
        let run1 = admin.get("/v1/sandboxes/run1").await.ok();
        assert_eq!(run1["labels"]["team"], "x", "{run1}");
        // Values of the environment are not shown.
        let query = "SELECT json_extract(lease, '$.env.A') FROM sandbox_leases WHERE id = ?1";
        let kept: String = w.database().query_row(query, [run1["id"].as_str()], |row| row.get(0)).unwrap();
        assert_eq!(kept, "b");
        let settings = admin.get("/v1/providers/boxes/settings").await.ok().to_string();
        assert!(settings.contains("python:3.12-slim") && settings.contains("keep"), "{settings}");
        let written: String = w
            .database()
            .query_row("SELECT value FROM meta WHERE key = 'schema_writer'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(written, env!("CARGO_PKG_VERSION"));
        // It is a server like any other, also after another start.
        w.crash_server().await;
        let client = w.admin();
        let id = client.create(json!({ "memory_mib": 64, "disk_mib": 64 })).await;
        client.remove(&id).await;
        assert!(!w.log().contains("panicked at"), "{}", w.log());
    });
}
