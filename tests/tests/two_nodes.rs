//! Two servers with a data folder each on one database: each serves its own sandboxes, also after a `kill -9` of either.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::{Client, Options, Value, World, json, proc, run_with, template, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;

pub(crate) const SECOND: &str = "127.0.0.1:7171";
/// LIMIT: how long a revoked key may be used at the other node.
const REVOKED_WITHIN: Duration = Duration::from_secs(1);

/// The second server, node `b`, on the database of the world's own server.
pub(crate) struct SecondServer<'w> {
    world: &'w World,
    pid: i32,
}

impl<'w> SecondServer<'w> {
    fn data(world: &World) -> PathBuf {
        world.folder().join("data-b")
    }

    fn command(world: &World) -> Command {
        let mut command = world.command();
        command.env("ATOLL_DATA", Self::data(world)).env("ATOLL_URL", format!("http://{SECOND}"));
        command.env("ATOLL_NODE", "b").env("ATOLL_DATABASE", world.data().join("sandbox.db"));
        command
    }

    /// Its folder has the templates and the key that seals the rows of the database.
    pub(crate) fn prepare(world: &World) {
        template::link(&Self::data(world).join("templates"), "busybox");
        std::fs::copy(world.data().join("secret.key"), Self::data(world).join("secret.key")).unwrap();
    }

    pub(crate) async fn start(world: &'w World) -> Self {
        let mut options = std::fs::OpenOptions::new();
        let log = options.create(true).append(true).open(world.folder().join("second.log")).unwrap();
        let child = Self::command(world)
            .args(["serve", "--listen", SECOND, "--tls-port", "0"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let pid = world.adopt(child);
        let started = Instant::now();
        until("the second server answers", async || {
            let health = reqwest::get(format!("http://{SECOND}/health")).await;
            let is_up = health.is_ok_and(|answer| answer.status() == 200);
            assert!(is_up || started.elapsed() < Duration::from_secs(50), "{}", Self::log(world));
            is_up.then_some(())
        })
        .await;
        Self { world, pid }
    }

    fn log(world: &World) -> String {
        std::fs::read_to_string(world.folder().join("second.log")).unwrap_or_default()
    }

    /// Kills it with -9.
    pub(crate) fn kill(&self) {
        self.world.end_adopted(self.pid);
    }

    /// Kills it with -9 and starts it again.
    async fn crash(self) -> Self {
        self.world.end_adopted(self.pid);
        Self::start(self.world).await
    }

    /// Ends it in order, and removes all that outlives it.
    pub(crate) async fn uninstall(self) {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM).unwrap();
        until("the second server ends", async || {
            proc::Process::read(self.pid).is_none_or(|found| found.state == 'Z').then_some(())
        })
        .await;
        self.world.end_adopted(self.pid);
        let mut uninstall = Self::command(self.world);
        // The folder knows its node and its database.
        uninstall.env_remove("ATOLL_NODE").env_remove("ATOLL_DATABASE");
        uninstall.args(["server", "uninstall", "--force"]);
        let done = self.world.output(uninstall).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

pub(crate) fn node_a() -> Options {
    Options::default().env("ATOLL_NODE", "a")
}

/// A sandbox with a file and a process of its own.
async fn marked(client: &Client, word: &str) -> String {
    let id = client.create(json!({})).await;
    let done = client.sh(&id, &format!("echo {word} > /tmp/word; sleep 100000 & echo $! > /tmp/pid")).await;
    assert_eq!(done.code, 0, "{done:?}");
    id
}

async fn assert_whole(client: &Client, id: &str, word: &str) {
    let seen = client.sh(id, "cat /tmp/word; kill -0 $(cat /tmp/pid) && echo alive").await;
    assert_eq!(seen.stdout, format!("{word}\nalive\n"), "{seen:?}");
}

async fn nodes_of(client: &Client, path: &str) -> Vec<(String, String)> {
    let page = client.get(path).await.ok();
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
    let mut found: Vec<_> =
        page["items"].as_array().unwrap().iter().map(|item| (text(item, "id"), text(item, "node"))).collect();
    found.sort();
    found
}

async fn create_with_key(client: &Client, key: &str) -> String {
    let body = json!({ "labels": { "made": "once" } });
    let request = client.raw(Method::POST, "/v1/sandboxes").header("idempotency-key", key).json(&body);
    let answer = client.judged(request, &Method::POST, "/v1/sandboxes", Some(&body)).await.ok();
    answer["id"].as_str().unwrap().to_owned()
}

fn sorted(mut pairs: Vec<(String, String)>) -> Vec<(String, String)> {
    pairs.sort();
    pairs
}

#[test]
fn each_server_serves_its_own_sandboxes_over_kill_and_restart_of_either() {
    run_with(node_a(), async |w| {
        SecondServer::prepare(w);
        let mut second = SecondServer::start(w).await;
        let a = w.admin();
        let b = a.at(&format!("http://{SECOND}"), a.key());
        let (on_a, on_b) = (marked(&a, "first").await, marked(&b, "second").await);
        let both = sorted(vec![(on_a.clone(), "a".to_owned()), (on_b.clone(), "b".to_owned())]);
        let (pid_a, pid_b) = (w.agent_pid(&on_a), w.agent_pid(&on_b));
        for round in 0..2 {
            for client in [&a, &b] {
                assert_eq!(nodes_of(client, "/v1/sandboxes").await, both, "round {round}");
            }
            for (wrong, id, node) in [(&a, &on_b, "b"), (&b, &on_a, "a")] {
                let path = format!("/v1/sandboxes/{id}");
                let exec = wrong.try_exec(id, json!({ "argv": ["true"] })).await;
                for refused in [exec, wrong.act(id, "stop").await, wrong.delete(&path).await] {
                    let error = refused.refused(421, "wrong_node");
                    assert!(error.to_string().contains(&format!("node {node}")), "{error}");
                }
                assert_eq!(wrong.get(&path).await.ok()["node"], json!(node));
            }
            assert_whole(&a, &on_a, "first").await;
            assert_whole(&b, &on_b, "second").await;
            assert_eq!((w.agent_pid(&on_a), w.agent_pid(&on_b)), (pid_a, pid_b), "round {round}");
            if round == 0 {
                w.stop_server(Signal::SIGKILL).await;
                assert_whole(&b, &on_b, "second").await;
                w.start_server().await;
                second = second.crash().await;
            }
        }
        // The first server ends in order while the other was killed: neither misses the log of the other.
        w.end_adopted(second.pid);
        assert!(w.stop_server(Signal::SIGTERM).await.success());
        second = SecondServer::start(w).await;
        w.start_server().await;
        assert_whole(&a, &on_a, "first").await;
        assert_whole(&b, &on_b, "second").await;
        a.remove(&on_a).await;
        assert_eq!(nodes_of(&b, "/v1/sandboxes").await, [(on_b.clone(), "b".to_owned())]);
        assert_whole(&b, &on_b, "second").await;
        // Its remaining sandbox goes with it.
        second.uninstall().await;
        assert_eq!(nodes_of(&a, "/v1/sandboxes").await, []);
    });
}

#[test]
fn names_and_keys_hold_across_both_servers() {
    run_with(node_a(), async |w| {
        SecondServer::prepare(w);
        let second = SecondServer::start(w).await;
        let a = w.admin();
        let b = a.at(&format!("http://{SECOND}"), a.key());
        // Names and idempotency keys are rows of the one database.
        a.create(json!({ "name": "web" })).await;
        b.post("/v1/sandboxes", json!({ "name": "web" })).await.refused(409, "name_taken");
        let once = create_with_key(&a, "k1").await;
        assert_eq!(create_with_key(&b, "k1").await, once);
        let volume = json!({ "name": "data", "size_mib": 16 });
        a.post("/v1/volumes", volume.clone()).await.ok();
        b.post("/v1/volumes", volume).await.refused(409, "name_taken");
        b.delete("/v1/volumes/data").await.refused(421, "wrong_node");
        let mounts = json!({ "mounts": [{ "volume": "data", "path": "/data" }] });
        b.post("/v1/sandboxes", mounts).await.refused(421, "wrong_node");
        // Events of both in one order, at either server.
        let mut events = b.events(Method::GET, "/v1/events?follow=1", None).await;
        let new = a.create(json!({})).await;
        let seen = events.next().await.unwrap();
        assert_eq!(seen.data["sandbox"], json!(new));
        drop(events);
        // A key that is revoked at one server is refused at the other, and its streams end there.
        let made = a.post("/v1/keys", json!({ "scope": "user" })).await.ok();
        let user = b.with_key(made["secret"].as_str().unwrap());
        user.get("/v1/sandboxes").await.ok();
        let mut stream = user.events(Method::GET, "/v1/events?follow=1", None).await;
        a.delete(&format!("/v1/keys/{}", made["id"].as_str().unwrap())).await.ok();
        let revoked = Instant::now();
        until("the key is refused at the other server", async || {
            let refused = user.get("/v1/sandboxes").await.status == 401;
            assert!(refused || revoked.elapsed() < REVOKED_WITHIN, "the key is still accepted");
            refused.then_some(())
        })
        .await;
        while stream.next_within(REVOKED_WITHIN).await.expect("its stream ends").is_some() {}
        assert!(revoked.elapsed() < 2 * REVOKED_WITHIN, "{:?}", revoked.elapsed());
        second.uninstall().await;
    });
}

#[test]
fn a_server_that_does_not_fit_the_database_is_refused() {
    run_with(node_a(), async |w| {
        let refused = async |env: &[(&str, &str)], says: &str| {
            let mut serve = SecondServer::command(w);
            serve.envs(env.iter().copied());
            serve.args(["serve", "--listen", SECOND, "--tls-port", "0"]);
            let done = w.output(serve).await;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(!done.status.success() && said.contains(says), "{says}: {said}");
        };
        std::fs::create_dir_all(SecondServer::data(w)).unwrap();
        refused(&[], "secret.key is missing").await;
        std::fs::write(SecondServer::data(w).join("secret.key"), "5a".repeat(32)).unwrap();
        refused(&[], "not the key").await;
        std::fs::copy(w.data().join("secret.key"), SecondServer::data(w).join("secret.key")).unwrap();
        refused(&[("ATOLL_NODE", "a")], "node a").await;
        refused(&[("ATOLL_DATABASE", "postgres://host/atoll")], "only SQLite").await;
        refused(&[("ATOLL_NODE", "a b")], "name of a node").await;
        assert_eq!(w.admin().get("/v1/sandboxes").await.ok()["items"], json!([]));
    });
}
