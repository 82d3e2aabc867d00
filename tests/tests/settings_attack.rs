//! Files of settings that change under the server: links, pipes and devices in the place of `DATA/sandboxes/NAME.json` and
//! `DATA/config.env`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_tests::{Value, World, json, proc, run, until};
use futures::future::join_all;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use reqwest::Method;

/// Something in a file of the host that is no setting.
const SECRET: &str = "canary-of-another-file";

/// What the name of a settings file leads to in turn.
fn targets(w: &World) -> Vec<PathBuf> {
    let at = |name: &str| w.folder().join(name);
    let valid = json!({ "provider": "docker", "docker": { "host": "unix:///nowhere.sock" } });
    std::fs::write(at("valid"), valid.to_string()).unwrap();
    std::fs::write(at("foreign"), SECRET).unwrap();
    mkfifo(&at("pipe"), Mode::S_IRUSR).unwrap();
    [at("valid"), at("pipe"), at("foreign"), at("missing"), w.folder().to_owned(), "/dev/zero".into()].into()
}

/// Swaps what a name leads to until it is told to end.
fn race(targets: Vec<PathBuf>, names: Vec<PathBuf>, ended: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            for (target, name) in
                targets.iter().flat_map(|target| names.iter().map(move |name| (target, name)))
            {
                let fresh = name.with_file_name(".raced");
                symlink(target, &fresh).unwrap();
                std::fs::rename(fresh, name).unwrap();
            }
        }
    })
}

fn replace(name: &Path, text: &str) {
    let fresh = name.with_file_name(".fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(fresh, name).unwrap();
}

async fn problem(w: &World, name: &str) -> Option<String> {
    let listed = w.admin().get("/v1/providers").await.ok();
    let found = listed["items"].as_array().unwrap().iter().find(|item| item["name"] == name)?.clone();
    Some(found["problem"].as_str().unwrap_or_default().to_owned())
}

/// Attack A21: what was checked is what is read, whatever the name means a moment later.
#[test]
fn settings_that_are_swapped_for_links_pipes_and_devices_hold_up_nobody() {
    run(async |w| {
        let raced = w.data().join("sandboxes/raced.json");
        let config = w.data().join("config.env");
        let ended = Arc::new(AtomicBool::new(false));
        let racer = race(targets(w), vec![raced.clone(), config.clone()], Arc::clone(&ended));
        let (admin, begun, mut said) = (w.admin(), Instant::now(), String::new());
        while begun.elapsed() < Duration::from_secs(6) {
            let asked = Instant::now();
            let shown = (0..8).map(|_| admin.get("/v1/providers/raced/settings"));
            for answer in join_all(shown).await {
                assert!(answer.status != 500, "{answer}");
                said.push_str(&String::from_utf8_lossy(&answer.bytes));
            }
            admin.get("/health").await.ok();
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        }
        // The server still notices settings, while the race goes on.
        let other = w.data().join("sandboxes/other.json");
        replace(&other, "{\"provider\": \"docker\", \"docker\": {\"imgae\": 1}}");
        until("another file is noticed", async || {
            problem(w, "other").await.is_some_and(|why| why.contains("docker.imgae")).then_some(())
        })
        .await;
        ended.store(true, Ordering::Relaxed);
        racer.join().unwrap();
        assert!(!said.contains(SECRET), "the content of a foreign file was told");
        let peak_kib = proc::status(w.server_pid(), "VmHWM").unwrap();
        assert!(peak_kib < 400 << 10, "the server had {peak_kib} KiB");
        for file in [raced, config, other] {
            std::fs::remove_file(file).unwrap();
        }
        until("the removal is noticed", async || problem(w, "raced").await.is_none().then_some(())).await;
        std::fs::remove_dir_all(w.data().join("providers")).unwrap();
    });
}

/// Attack A21: a name that a write is about to use leads to another file.
#[test]
fn settings_are_never_written_through_a_link() {
    run(async |w| {
        let (victim, folder) = (w.folder().join("victim"), w.data().join("sandboxes"));
        std::fs::write(&victim, "as it was").unwrap();
        symlink(&victim, folder.join(".planted.json.new")).unwrap();
        symlink(&victim, folder.join("planted.json")).unwrap();
        let admin = w.admin();
        let set = async || {
            let settings = json!({ "provider": "docker", "docker": { "host": "unix:///nowhere.sock" } });
            admin.send(Method::PUT, "/v1/providers/planted/settings", Some(&settings)).await
        };
        for _ in 0..2 {
            set().await;
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
        }
        let _ = std::fs::remove_file(folder.join("planted.json"));
        let done = set().await;
        assert!(done.status != 500, "{done}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
        let written = std::fs::symlink_metadata(folder.join("planted.json")).unwrap();
        assert!(written.is_file(), "a file of its own");
        let text = std::fs::read_to_string(folder.join("planted.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["provider"], "docker");
        std::fs::remove_file(folder.join("planted.json")).unwrap();
        let _ = std::fs::remove_dir_all(w.data().join("providers"));
    });
}
