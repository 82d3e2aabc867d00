//! Bad days (catalogue F01 to F04, F16 to F20): crashes at every moment, damaged state, leaks, exhaustion, shutdown.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Answer, Client, Options, World, json, proc, run, run_with, until, until_within};
use futures::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;

/// LIMIT: what happens at once, on a busy machine. What nothing watches takes longer, and so does waiting for an agent.
const SOON: Duration = Duration::from_secs(5);

async fn create_with_key(client: &Client, key: &str) -> reqwest::Result<Answer> {
    let body = json!({ "labels": { "key": key }, "memory_mib": 64 });
    let request = client.raw(Method::POST, "/v1/sandboxes").header("idempotency-key", key).json(&body);
    client.try_judged(request, &Method::POST, "/v1/sandboxes", Some(&body)).await
}

async fn attempt(client: &Client, method: Method, path: &str) -> Option<Answer> {
    client.try_judged(client.raw(method.clone(), path), &method, path, None).await.ok()
}

/// After a crash: every acknowledged sandbox is there, and a retry with the same key finds it.
async fn converges(client: &Client, acknowledged: &BTreeMap<String, String>, asked: &[String]) {
    for (key, id) in acknowledged {
        let found = client.get(&format!("/v1/sandboxes/{id}")).await;
        assert_eq!(found.status, 200, "{key} was acknowledged and is gone: {found}");
    }
    for key in asked {
        let again = until("a retry with the same key converges", async || {
            let answer = create_with_key(client, key).await.unwrap();
            (answer.status < 300).then(|| answer.ok()["id"].as_str().unwrap().to_owned())
        })
        .await;
        if let Some(id) = acknowledged.get(key) {
            assert_eq!(again, *id, "the retry of {key} made a second sandbox");
        }
        let listed = client.get(&format!("/v1/sandboxes?label=key%3D{key}")).await.ok();
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "one sandbox per key: {listed}");
    }
}

#[test]
fn kill_9_at_random_moments_loses_nothing_and_leaks_nothing() {
    // F01.
    run(async |w| {
        let client = w.tenant("acme").await;
        let kept = client.create(json!({ "name": "kept" })).await;
        client.sh(&kept, "echo kept > /home/user/note").await.text();
        let counter = json!({ "argv": ["/bin/sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.05; done"], "detach": true });
        client.try_exec(&kept, counter).await.ok();
        let instance = client.sandbox(&kept).await["instance"].clone();
        let mut last = 0_u64;
        for round in 0..20_u64 {
            let keys: Vec<String> = (0..4).map(|n| format!("r{round}-{n}")).collect();
            // Spread over the first 40 ms by a fixed sequence, so that a failure can be had again.
            let pause = Duration::from_micros((round * 7_919) % 40_000);
            let old = client.get("/v1/sandboxes?limit=100").await.ok();
            let old: Vec<String> = old["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|s| s["id"].as_str().unwrap().to_owned())
                .filter(|id| *id != kept)
                .collect();
            let creates = join_all(keys.iter().map(|key| create_with_key(&client, key)));
            let others = join_all(old.iter().enumerate().map(async |(n, id)| {
                let path = format!("/v1/sandboxes/{id}");
                match n % 4 {
                    0 => attempt(&client, Method::POST, &format!("{path}/stop")).await,
                    1 => attempt(&client, Method::POST, &format!("{path}/restart")).await,
                    _ => attempt(&client, Method::DELETE, &path).await,
                }
            }));
            let killer = async {
                tokio::time::sleep(pause).await;
                w.stop_server(Signal::SIGKILL).await;
            };
            let (made, _, ()) = futures::join!(creates, others, killer);
            let acknowledged: BTreeMap<String, String> = keys
                .iter()
                .zip(made)
                .filter_map(|(key, answer)| {
                    let answer = answer.ok()?;
                    (answer.status < 300)
                        .then(|| (key.clone(), answer.json()["id"].as_str().unwrap().to_owned()))
                })
                .collect();
            w.start_server().await;
            converges(&client, &acknowledged, &keys).await;
            let now = client.sandbox(&kept).await;
            assert_eq!(
                (&now["phase"], &now["instance"]),
                (&json!("running"), &instance),
                "it lived on: {now}"
            );
            last = until("its processes go on", async || {
                let count: u64 = client.sh(&kept, "cat /tmp/count").await.stdout.trim().parse().ok()?;
                (count > last).then_some(count)
            })
            .await;
        }
        assert_eq!(client.sh(&kept, "cat note").await.text(), "kept");
        w.delete_all().await;
        w.leak_check().await;
    });
}

#[test]
fn a_crash_at_every_named_point_of_the_drivers_is_survived() {
    // F01, the named points: the server aborts where `ATOLL_FAIL_AT` says, at the first or second time it comes there.
    run(async |w| {
        let client = w.tenant("acme").await;
        let mut crashed = 0;
        for place in [
            "insert.before",
            "insert.after",
            "effect.before",
            "effect.made",
            "effect.after",
            "advance.before",
            "advance.after",
        ] {
            for time in 1..=2 {
                w.stop_server(Signal::SIGTERM).await;
                w.set_env("ATOLL_FAIL_AT", &format!("{place}:{time}:abort"));
                w.start_server().await;
                let key = format!("{place}-{time}");
                let made = create_with_key(&client, &key).await;
                let mut acknowledged = BTreeMap::new();
                let mut crash = made.is_err();
                if let Ok(answer) = &made
                    && answer.status < 300
                {
                    let id = answer.json()["id"].as_str().unwrap().to_owned();
                    acknowledged.insert(key.clone(), id.clone());
                    let path = format!("/v1/sandboxes/{id}");
                    for (method, tail) in
                        [(Method::POST, "/stop"), (Method::POST, "/start"), (Method::DELETE, "")]
                    {
                        crash = attempt(&client, method, &format!("{path}{tail}")).await.is_none();
                        if crash {
                            break;
                        }
                    }
                }
                crashed += u32::from(crash);
                if crash {
                    until("the abort is over", async || w.server_exit()).await;
                    w.set_env("ATOLL_FAIL_AT", "");
                    w.forget_server();
                    w.start_server().await;
                } else {
                    w.crash_server_with(&[("ATOLL_FAIL_AT", "")]).await;
                }
                // What was deleted and acknowledged stays deleted; what was not is there once.
                for id in acknowledged.values() {
                    let found = client.get(&format!("/v1/sandboxes/{id}")).await;
                    assert_eq!(found.status, 200, "{place} {time}: {found}");
                }
                until("everything rests", async || {
                    let page = client.get("/v1/sandboxes?limit=100").await.ok();
                    let phases: Vec<_> = page["items"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|s| s["phase"].as_str().unwrap().to_owned())
                        .collect();
                    phases
                        .iter()
                        .all(|p| matches!(p.as_str(), "running" | "stopped" | "failed"))
                        .then_some(())
                })
                .await;
                w.delete_all().await;
                w.leak_check().await;
            }
        }
        assert!(crashed >= 10, "only {crashed} of the places were reached");
    });
}

#[test]
fn a_killed_agent_is_a_failed_sandbox_within_seconds() {
    // F02.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "echo kept > /home/user/note").await.text();
        kill(Pid::from_raw(w.agent_pid(&id)), Signal::SIGKILL).unwrap();
        until_within(SOON, "it is failed", async || {
            (client.sandbox(&id).await["phase"] == "failed").then_some(())
        })
        .await;
        let failed = client.sandbox(&id).await;
        assert_eq!(failed["reason"]["code"], "instance_died", "{failed}");
        client.try_exec(&id, json!({ "argv": ["true"] })).await.refused(409, "phase_conflict");
        client.act(&id, "start").await.ok();
        assert_eq!(client.sh(&id, "cat note").await.text(), "kept", "files survive the agent");
        kill(Pid::from_raw(w.agent_pid(&id)), Signal::SIGKILL).unwrap();
        let started = Instant::now();
        client.remove(&id).await;
        assert!(started.elapsed() < SOON, "delete took {:?}", started.elapsed());
        witness.verify().await;
    });
}

#[test]
fn a_stopped_agent_does_not_hold_the_server() {
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        kill(Pid::from_raw(w.agent_pid(&id)), Signal::SIGSTOP).unwrap();
        let started = Instant::now();
        let answer = client.try_exec(&id, json!({ "argv": ["true"], "timeout_s": 2 })).await;
        assert!(matches!(answer.status, 503 | 504) || answer.json()["timed_out"] == true, "{answer}");
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        let started = Instant::now();
        client.remove(&id).await;
        assert!(started.elapsed() < SOON, "delete took {:?}", started.elapsed());
        witness.verify().await;
    });
}

#[test]
fn a_killed_launcher_comes_back_and_sandboxes_live_on() {
    // F02.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let instance = client.sandbox(&id).await["instance"].clone();
        for _ in 0..3 {
            kill(Pid::from_raw(w.launcher_pid()), Signal::SIGKILL).unwrap();
            assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
            let made = client.create(json!({})).await;
            client.sh(&made, "true").await.text();
            let started = Instant::now();
            client.remove(&made).await;
            assert!(started.elapsed() < SOON, "delete took {:?}", started.elapsed());
        }
        let now = client.sandbox(&id).await;
        assert_eq!((&now["phase"], &now["instance"]), (&json!("running"), &instance));
        w.crash_server().await;
        assert_eq!(client.sh(&id, "echo adopted").await.text(), "adopted");
        kill(Pid::from_raw(w.agent_pid(&id)), Signal::SIGKILL).unwrap();
        until_within(SOON, "an adopted one is watched too", async || {
            (client.sandbox(&id).await["phase"] == "failed").then_some(())
        })
        .await;
    });
}

#[test]
fn a_launcher_killed_in_the_middle_fails_no_create_and_no_start() {
    /// LIMIT: a start takes some milliseconds, and later kills meet none.
    const ROUNDS: u64 = 24;
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "echo kept >/tmp/kept").await.text();
        for round in 0..ROUNDS {
            client.act(&id, "stop").await.ok();
            // One that was killed after the last start is replaced at the next.
            if w.find_launcher().is_none() {
                client.remove(&client.create(json!({})).await).await;
            }
            let launcher = until("the server has a launcher", async || w.find_launcher()).await;
            let killed = async {
                tokio::time::sleep(Duration::from_micros(round * 500)).await;
                // Gone already if this one was killed in the round before.
                let _ = kill(Pid::from_raw(launcher), Signal::SIGKILL);
            };
            let create = client.post("/v1/sandboxes", json!({}));
            let (started, made, ()) = tokio::join!(client.act(&id, "start"), create, killed);
            assert!(started.status < 300, "start in round {round}: {started}");
            assert!(made.status < 300, "create in round {round}: {made}");
            assert_eq!(client.sh(&id, "cat /tmp/kept").await.text(), "kept");
            let made = made.ok()["id"].as_str().unwrap().to_owned();
            assert_eq!(client.sandbox(&made).await["phase"], "running");
            client.remove(&made).await;
        }
    });
}

#[test]
fn a_copy_of_the_state_taken_in_mid_write_opens_whole() {
    // F03.
    run(async |w| {
        let client = w.tenant("acme").await;
        for round in 0..4 {
            let writing = tokio::spawn({
                let client = client.clone();
                async move {
                    join_all((0..12).map(|n| {
                        create_with_key(
                            &client,
                            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"][n],
                        )
                    }))
                    .await
                }
            });
            tokio::time::sleep(Duration::from_millis(5 + round * 9)).await;
            let acknowledged = client.get("/v1/sandboxes?limit=100").await.ok();
            w.signal_server(Signal::SIGSTOP);
            let copy = w.folder().join(format!("copy-{round}"));
            copy_state(&w.data(), &copy);
            w.signal_server(Signal::SIGCONT);
            let _ = writing.await.unwrap();
            // Opening it changes it, so the copy that the server will get is not the one that is looked at.
            let looked_at = w.folder().join(format!("looked-at-{round}"));
            copy_state(&copy, &looked_at);
            let database = rusqlite::Connection::open(looked_at.join("sandbox.db")).unwrap();
            let sound: String = database.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(sound, "ok");
            for sandbox in acknowledged["items"].as_array().unwrap() {
                let count: u32 = database
                    .query_row(
                        "select count(*) from sandbox_leases where id = ?1",
                        [sandbox["id"].as_str()],
                        |row| row.get(0),
                    )
                    .unwrap();
                assert_eq!(count, 1, "{} was acknowledged before the copy", sandbox["id"]);
            }
        }
        // The server starts on the last copy, and what the copy does not know is cleaned up.
        let late = client.create(json!({ "name": "after-the-copy" })).await;
        w.stop_server(Signal::SIGKILL).await;
        for name in STATE {
            let _ = std::fs::remove_file(w.data().join(name));
        }
        copy_state(&w.folder().join("copy-3"), &w.data());
        w.start_server().await;
        client.get(&format!("/v1/sandboxes/{late}")).await.refused(404, "sandbox_not_found");
    });
}

const STATE: [&str; 5] = ["sandbox.db", "sandbox.db-wal", "sandbox.db-shm", "secret.key", "admin.key"];

/// Copies what a server keeps in its folder, the sandboxes' files left out.
fn copy_state(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in STATE {
        let _ = std::fs::copy(from.join(name), to.join(name));
    }
}

/// Runs `atoll serve` on a state folder and answers its exit code and what it said; it must not come up.
fn refuses(w: &World, data: &Path) -> (Option<i32>, String) {
    let log = w.folder().join("refused.log");
    let file = std::fs::File::create(&log).unwrap();
    let mut child = w
        .command()
        .env("ATOLL_DATA", data)
        .args(["serve", "--listen", "127.0.0.1:7999"])
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code(), std::fs::read_to_string(&log).unwrap());
        }
        if Instant::now() > limit {
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
            child.wait().unwrap();
            return (None, std::fs::read_to_string(&log).unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn damaged_state_is_refused_with_the_reason_and_never_starts_empty() {
    // F04.
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let (code, said) = refuses(w, &w.data());
        assert!(
            code.is_some_and(|c| c != 0) && said.contains("in use") || said.contains("another"),
            "a second server on one folder: {code:?} {said}"
        );
        // Without the key that seals its tokens a running sandbox could not be reached any more.
        w.stop_server(Signal::SIGTERM).await;
        let (key, away) = (w.data().join("secret.key"), w.folder().join("secret.key"));
        std::fs::rename(&key, &away).unwrap();
        let (code, said) = refuses(w, &w.data());
        assert!(
            code.is_some_and(|c| c != 0) && said.contains("secret.key"),
            "without its key: {code:?} {said}"
        );
        std::fs::rename(&away, &key).unwrap();
        w.start_server().await;
        assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
        client.remove(&id).await;
        w.stop_server(Signal::SIGTERM).await;
        let fresh = |name: &str| {
            let to = w.folder().join(name);
            copy_state(&w.data(), &to);
            to
        };
        let garbage = fresh("garbage");
        std::fs::write(garbage.join("sandbox.db"), vec![0x5a; 40_960]).unwrap();
        let torn = fresh("torn");
        let bytes = std::fs::read(torn.join("sandbox.db")).unwrap();
        let mut torn_bytes = bytes.clone();
        for byte in torn_bytes.iter_mut().skip(4096).take(bytes.len().saturating_sub(4096)) {
            *byte = 0xff;
        }
        std::fs::write(torn.join("sandbox.db"), torn_bytes).unwrap();
        let cut = fresh("cut");
        std::fs::write(cut.join("sandbox.db"), &bytes[..bytes.len().min(6000)]).unwrap();
        for (name, folder) in [("garbage", &garbage), ("torn", &torn), ("cut", &cut)] {
            let _ = std::fs::remove_file(folder.join("sandbox.db-wal"));
            let (code, said) = refuses(w, folder);
            assert!(code.is_some_and(|c| c != 0), "{name} started: {said}");
            assert!(
                said.contains("sandbox.db") || said.contains("database"),
                "{name} does not say what is wrong: {said}"
            );
            assert!(!said.contains("panicked"), "{name}: {said}");
        }
        let file = w.folder().join("a-file");
        std::fs::write(&file, "x").unwrap();
        let (code, said) = refuses(w, &file);
        assert!(code.is_some_and(|c| c != 0) && said.contains("a-file"), "{said}");
        let read_only = fresh("read-only");
        atoll_tests::namespaces::bind_read_only(&read_only, &read_only);
        let (code, said) = refuses(w, &read_only);
        assert!(code.is_some_and(|c| c != 0) && said.to_lowercase().contains("read-only"), "{said}");
        let open = fresh("open");
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Command::new("chown").arg("1000:1000").arg(&open).status().unwrap().success());
        let (code, said) = refuses(w, &open);
        assert!(
            code.is_some_and(|c| c != 0) && said.contains("belongs"),
            "a folder of somebody else: {code:?} {said}"
        );
    });
}

#[test]
fn a_thousand_cycles_leave_everything_flat() {
    // F16.
    run_with(Options { pool: 4, ..Options::default() }, async |w| {
        let client = w.tenant("acme").await;
        let lane = async |cycles: u32| {
            for _ in 0..cycles {
                let id = client.create(json!({ "memory_mib": 32, "disk_mib": 32 })).await;
                client.remove(&id).await;
            }
        };
        let rss = || proc::status(w.server_pid(), "VmRSS").unwrap();
        let launcher_rss = || proc::status(w.launcher_pid(), "VmRSS").unwrap();
        let launcher_fds = || proc::descriptors(w.launcher_pid()).len();
        let rows = || -> BTreeMap<String, i64> {
            let database = w.database();
            ["sandbox_instances", "abstract_terminals", "lease_resource_snapshots"]
                .iter()
                .map(|table| {
                    (
                        (*table).to_owned(),
                        database
                            .query_row(&format!("select count(*) from {table}"), [], |row| row.get(0))
                            .unwrap(),
                    )
                })
                .collect()
        };
        join_all((0..4).map(|_| lane(50))).await;
        w.leak_check().await;
        let (memory, launcher, fds, before_rows) = (rss(), launcher_rss(), launcher_fds(), rows());
        let started = Instant::now();
        join_all((0..4).map(|_| lane(200))).await;
        let took = started.elapsed();
        w.leak_check().await;
        assert!(rss() < memory + 12 * 1024, "the server grew from {memory} to {} KiB", rss());
        assert!(
            launcher_rss() < launcher + 4 * 1024,
            "the launcher grew from {launcher} to {} KiB",
            launcher_rss()
        );
        // While the pool fills up again it holds those of the instance that it is just making.
        until("the launcher holds no more descriptors than before", async || {
            (launcher_fds() <= fds + 4).then_some(())
        })
        .await;
        for (table, count) in rows() {
            assert!(count <= before_rows[&table] + 1_000, "{table} holds {count} rows");
        }
        // LIMIT: several times of what a busy machine needs.
        assert!(took < Duration::from_secs(300), "800 cycles took {took:?}");
    });
}

#[test]
fn a_server_without_descriptors_answers_and_recovers() {
    // F17.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let limit = |count: usize| {
            let done = Command::new("prlimit")
                .args(["--pid", &w.server_pid().to_string(), &format!("--nofile={count}:20000")])
                .status();
            assert!(done.unwrap().success());
        };
        let held = proc::descriptors(w.server_pid()).len();
        limit(held + 6);
        let answers = join_all((0..40).map(async |n| {
            let request = if n % 2 == 0 {
                client.raw(Method::POST, "/v1/sandboxes").json(&json!({}))
            } else {
                client
                    .raw(Method::POST, &format!("/v1/sandboxes/{id}/exec"))
                    .json(&json!({ "argv": ["true"] }))
            };
            request.timeout(Duration::from_secs(8)).send().await.map(|a| a.status().as_u16())
        }))
        .await;
        for status in answers.into_iter().flatten() {
            assert!(
                (200..300).contains(&status) || status == 429 || (500..600).contains(&status),
                "{status}"
            );
        }
        limit(20_000);
        assert!(w.server_exit().is_none(), "the server lives");
        until("it serves again", async || {
            let answer =
                client.raw(Method::GET, "/v1/sandboxes").timeout(Duration::from_secs(10)).send().await;
            answer.is_ok_and(|a| a.status() == 200).then_some(())
        })
        .await;
        client.sh(&id, "true").await.text();
        client.create(json!({})).await;
    });
}

#[test]
fn a_panic_in_a_driver_is_one_failed_request() {
    // F18.
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        w.stop_server(Signal::SIGTERM).await;
        w.set_env("ATOLL_FAIL_AT", "effect.before:1:panic");
        w.start_server().await;
        let answer = client.post("/v1/sandboxes", json!({})).await;
        assert!(answer.status >= 500, "{answer}");
        assert_eq!(answer.code(), "internal", "{answer}");
        assert!(w.log().contains("panicked"), "the test made it panic");
        assert!(w.server_exit().is_none(), "the server lives");
        client.sh(&id, "true").await.text();
        let made = client.create(json!({})).await;
        client.remove(&made).await;
        w.delete_all().await;
    });
}

#[test]
fn shutdown_drains_streams_in_time_and_the_second_signal_is_immediate() {
    // F20.
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "pids": 300 })).await;
        let open = async |w: &World| {
            let path = format!("/v1/sandboxes/{id}/exec/stream");
            let streams = join_all((0..50).map(|_| async {
                client.events(Method::POST, &path, Some(&json!({ "argv": ["sleep", "600"] }))).await
            }))
            .await;
            let followers = join_all(
                (0..50).map(|_| async { client.events(Method::GET, "/v1/events?follow=1", None).await }),
            )
            .await;
            assert!(w.server_exit().is_none());
            (streams, followers)
        };
        let streams = open(w).await;
        let started = Instant::now();
        let status = w.stop_server(Signal::SIGTERM).await;
        assert!(status.success(), "{status}");
        // Two seconds, and what a debug build on a busy machine adds.
        assert!(started.elapsed() < Duration::from_secs(4), "the first took {:?}", started.elapsed());
        drop(streams);
        w.start_server().await;
        assert_eq!(
            client.sh(&id, "ps | grep -c '[s]leep 600'").await.text(),
            "50",
            "commands live on: {}",
            client.sh(&id, "ps").await.stdout
        );
        let streams = open(w).await;
        let started = Instant::now();
        w.signal_server(Signal::SIGTERM);
        tokio::time::sleep(Duration::from_millis(100)).await;
        if w.server_exit().is_none() {
            w.signal_server(Signal::SIGTERM);
        }
        // Less than what the first one gives to streams that do not end.
        until_within(Duration::from_secs(3), "the second signal is immediate", async || w.server_exit())
            .await;
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        drop(streams);
        w.forget_server();
        w.start_server().await;
        client.sh(&id, "true").await.text();
        w.delete_all().await;
    });
}
