//! Programs that take as much as they can (catalogue C01 to C07, C10 to C12): they affect only their own sandbox.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::{Client, World, json, probe, proc, run, until};
use futures::future::join_all;
use reqwest::Method;

/// LIMIT: the catalogue promises two seconds, and a busy machine takes a few times as long. One that waited for an agent or for
/// processes that ignore a signal would take longer.
const DELETE_MAX: Duration = Duration::from_secs(6);

async fn deleted_in_time(client: &Client, id: &str) {
    let started = Instant::now();
    client.remove(id).await;
    assert!(started.elapsed() < DELETE_MAX, "delete took {:?}", started.elapsed());
}

async fn start(client: &Client, id: &str, hog: &str, arguments: &[&str]) {
    let argv: Vec<&str> = [&[hog], arguments].concat();
    let answer = client.try_exec(id, json!({ "argv": argv, "detach": true })).await;
    assert_eq!(answer.status, 202, "{answer}");
}

/// The server's memory may not follow what a sandbox does.
struct Flat {
    pid: i32,
    before: u64,
}

impl Flat {
    fn now(w: &World) -> Self {
        let pid = w.server_pid();
        Self { pid, before: proc::status(pid, "VmRSS").unwrap() }
    }

    fn check(&self) {
        let after = proc::status(self.pid, "VmRSS").unwrap();
        assert!(after < self.before + 40 * 1024, "the server grew from {} to {after} KiB", self.before);
    }
}

#[test]
fn a_fork_bomb_stays_in_its_box() {
    // C01.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "pids": 100, "memory_mib": 128 })).await;
        let hog = probe::install(&client, &id, "hog").await;
        start(&client, &id, &hog, &["bomb"]).await;
        let home = proc::cgroups(w.agent_pid(&id))["pids"].clone();
        let count =
            || std::fs::read_to_string(home.join("pids.current")).unwrap().trim().parse::<u32>().unwrap();
        until("the bomb fills its box", async || (count() >= 100).then_some(())).await;
        assert!(count() <= 100);
        // A command either finds a gap or is refused at once, and never hangs.
        for _ in 0..10 {
            let started = Instant::now();
            let answer = client.try_exec(&id, json!({ "argv": ["/bin/true"], "timeout_s": 5 })).await;
            let fair = answer.status == 200 || answer.code() == "sandbox_exhausted";
            assert!(fair && started.elapsed() < Duration::from_secs(20), "{answer}");
        }
        assert_eq!(client.sandbox(&id).await["phase"], "running");
        client.get(&format!("/v1/sandboxes/{id}/metrics")).await.ok();
        deleted_in_time(&client, &id).await;
        witness.verify().await;
    });
}

#[test]
fn memory_bombs_of_every_kind_are_ended_inside() {
    // C02.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let flat = Flat::now(w);
        let id = client.create(json!({ "memory_mib": 64, "disk_mib": 512, "pids": 64 })).await;
        let hog = probe::install(&client, &id, "hog").await;
        let home = proc::cgroups(w.agent_pid(&id))["memory"].clone();
        let mut killed = 0;
        for kind in ["anonymous", "memfd", "tmpfs", "pipes", "sockets", "threads", "cache"] {
            let ran = client.exec(&id, json!({ "argv": [hog, kind], "timeout_s": 20 })).await;
            let stopped = ran.code == 137
                || ran.code == 124
                || ran.stdout.contains("ENOMEM")
                || ran.stdout.contains("ENOSPC")
                || ran.stdout.contains("EMFILE")
                || ran.stdout.contains("EAGAIN")
                || ran.stdout.contains("EDQUOT")
                || ran.stdout.contains("ENFILE")
                || ran.stdout.contains("ENOBUFS");
            assert!(stopped, "{kind}: {ran:?}");
            killed += u32::from(ran.code == 137);
            let most: u64 = std::fs::read_to_string(home.join("memory.max_usage_in_bytes"))
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            assert!(most <= 64 << 20, "{kind} got {most} bytes");
            assert_eq!(
                client.sh(&id, "rm -f /dev/shm/hog-shm /home/user/hog-cache; echo alive").await.text(),
                "alive",
                "after {kind}"
            );
        }
        assert!(killed >= 2, "{killed} were ended for memory");
        until("the event is told", async || {
            let events = client.get(&format!("/v1/events?sandbox={id}")).await.ok();
            events["items"].as_array().unwrap().iter().any(|e| e["kind"] == "out_of_memory").then_some(())
        })
        .await;
        assert_eq!(client.sandbox(&id).await["phase"], "running", "the agent survives it");
        let server: i32 = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", w.server_pid()))
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let child = client.sh(&id, "cat /proc/self/oom_score_adj").await;
        assert!(child.text().parse::<i32>().unwrap() >= server + 300, "the kernel takes a sandbox first");
        let lowered = client.sh_root(&id, "echo -1000 > /proc/self/oom_score_adj; echo 0 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj").await;
        assert!(lowered.stdout.trim().parse::<i32>().unwrap() >= 0, "A08: {lowered:?}");
        flat.check();
        deleted_in_time(&client, &id).await;
        witness.verify().await;
    });
}

#[test]
fn processes_that_will_not_die_die_with_their_sandbox() {
    // C03, C04.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "pids": 300 })).await;
        let hog = probe::install(&client, &id, "hog").await;
        start(&client, &id, &hog, &["stubborn"]).await;
        start(&client, &id, &hog, &["zombies", "200"]).await;
        client.exec(&id, json!({ "argv": [hog, "orphans", "2000"], "timeout_s": 60 })).await.text();
        let home = proc::cgroups(w.agent_pid(&id))["pids"].clone();
        until("orphans and zombies are reaped", async || {
            let left: u32 =
                std::fs::read_to_string(home.join("pids.current")).unwrap().trim().parse().unwrap();
            (left < 60).then_some(())
        })
        .await;
        until("every zombie is reaped", async || {
            (client.sh(&id, "ps -o stat | grep -c Z").await.stdout.trim() == "0").then_some(())
        })
        .await;
        let stopped = Instant::now();
        client.act(&id, "stop").await.ok();
        assert!(stopped.elapsed() < Duration::from_secs(10), "stop took {:?}", stopped.elapsed());
        assert!(
            !proc::descendants(proc::own_pid()).iter().any(|p| p.name == "hog"),
            "none is left on the host"
        );
        client.act(&id, "start").await.ok();
        start(&client, &id, "/tmp/hog", &["stubborn"]).await;
        deleted_in_time(&client, &id).await;
        until("none is left on the host", async || {
            w.reap();
            (!proc::descendants(proc::own_pid()).iter().any(|p| p.name == "hog")).then_some(())
        })
        .await;
        witness.verify().await;
    });
}

#[test]
fn a_burning_processor_is_shared_fairly() {
    // C06.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "cpu": 0.5 })).await;
        let hog = probe::install(&client, &id, "hog").await;
        let path = format!("/v1/sandboxes/{id}/metrics");
        let before = client.get(&path).await.ok()["cpu_us"].as_f64().unwrap();
        let started = Instant::now();
        let ran =
            client.exec(&id, json!({ "argv": [hog, "burn", "5"], "user": "root", "timeout_s": 60 })).await;
        assert!(ran.text().starts_with("burned "), "real time is denied: {ran:?}");
        let used = client.get(&path).await.ok()["cpu_us"].as_f64().unwrap() - before;
        let share = used / 1e6 / started.elapsed().as_secs_f64();
        assert!(share < 0.6, "half a core was {share:.2} cores");
        deleted_in_time(&client, &id).await;
        witness.verify().await;
    });
}

#[test]
fn a_flood_of_output_to_a_client_that_does_not_read_is_bounded() {
    // C07.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 128 })).await;
        let flat = Flat::now(w);
        let flood = json!({ "command": "cat /dev/zero", "timeout_s": 6 });
        let path = format!("/v1/sandboxes/{id}/exec/stream");
        let deaf: Vec<_> =
            join_all((0..4).map(|_| client.raw(Method::POST, &path).json(&flood).send())).await;
        let detached = client
            .try_exec(
                &id,
                json!({ "argv": ["/bin/sh", "-c", "yes nonewline | tr -d '\\n'"], "detach": true }),
            )
            .await;
        let pid = detached.ok()["pid"].as_u64().unwrap();
        // Collected output has a cap and says so.
        let capped =
            client.exec(&id, json!({ "command": "head -c 40000000 /dev/zero | tr '\\0' 'x'" })).await;
        assert_eq!(capped.answer["truncated"], true);
        assert!(capped.stdout.len() <= 16 << 20, "{}", capped.stdout.len());
        tokio::time::sleep(Duration::from_secs(2)).await;
        flat.check();
        // A reader that comes late or slowly is told what it lost.
        let mut late = client
            .events(Method::GET, &format!("/v1/sandboxes/{id}/processes/{pid}/attach?tail=1"), None)
            .await;
        late.find("stdout").await;
        drop(late);
        drop(deaf);
        client
            .post(&format!("/v1/sandboxes/{id}/processes/{pid}/signal"), json!({ "signal": "KILL" }))
            .await
            .ok();
        assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
        flat.check();
        deleted_in_time(&client, &id).await;
        witness.verify().await;
    });
}

#[test]
fn a_flood_of_input_to_a_process_that_does_not_read_is_bounded() {
    // C10.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 128 })).await;
        let flat = Flat::now(w);
        let pid = client.try_exec(&id, json!({ "argv": ["sleep", "600"], "detach": true })).await.ok()["pid"]
            .as_u64()
            .unwrap();
        let stdin = format!("/v1/sandboxes/{id}/processes/{pid}/stdin");
        let chunk = bytes::Bytes::from(vec![b'x'; 1 << 20]);
        let endless = move || {
            let chunk = chunk.clone();
            reqwest::Body::wrap_stream(futures::stream::iter(
                (0..256).map(move |_| Ok::<_, std::io::Error>(chunk.clone())),
            ))
        };
        let sends = join_all((0..3).map(|_| {
            client.raw(Method::POST, &stdin).body(endless()).timeout(Duration::from_secs(4)).send()
        }))
        .await;
        for sent in sends.into_iter().flatten() {
            assert!(
                sent.status().as_u16() >= 400,
                "256 MiB into a pipe that nobody reads: {}",
                sent.status()
            );
        }
        flat.check();
        assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
        client.delete(&stdin).await;
        client
            .post(&format!("/v1/sandboxes/{id}/processes/{pid}/signal"), json!({ "signal": "KILL" }))
            .await
            .ok();
        deleted_in_time(&client, &id).await;
        witness.verify().await;
    });
}

#[test]
fn a_hundred_signals_and_deletes_at_once_have_one_outcome() {
    // C11.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let pid = client.try_exec(&id, json!({ "argv": ["sleep", "600"], "detach": true })).await.ok()["pid"]
            .as_u64()
            .unwrap();
        let path = format!("/v1/sandboxes/{id}/processes/{pid}/signal");
        let kills = join_all((0..100).map(|_| client.post(&path, json!({ "signal": "KILL" })))).await;
        assert!(kills.iter().all(|a| a.status < 300 || a.code() == "process_not_found"));
        assert!(kills.iter().any(|a| a.status < 300));
        let path = format!("/v1/sandboxes/{id}");
        let deletes = join_all((0..100).map(|_| client.delete(&path))).await;
        for answer in &deletes {
            assert!(answer.status == 200 || answer.status == 202, "{answer}");
        }
        assert_eq!(client.sandbox(&id).await["phase"], "deleted");
        let events = client.get(&format!("/v1/events?sandbox={id}&limit=100")).await.ok();
        let gone = events["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["kind"] == "phase" && e["to"] == "deleted")
            .count();
        assert_eq!(gone, 1, "deleted once");
        // Everything at once on one sandbox ends in a known phase.
        let id = client.create(json!({})).await;
        join_all((0..30).map(|n| client.act(&id, ["stop", "start", "restart"][n % 3]))).await;
        until("it rests", async || {
            let phase = client.sandbox(&id).await["phase"].as_str().unwrap().to_owned();
            matches!(phase.as_str(), "running" | "stopped" | "failed").then_some(())
        })
        .await;
        deleted_in_time(&client, &id).await;
    });
}

#[test]
fn descriptors_watches_and_shared_memory_are_counted_per_sandbox() {
    // C12.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 256 })).await;
        let hog = probe::install(&client, &id, "hog").await;
        let keys = || std::fs::read_to_string("/proc/keys").unwrap_or_default().lines().count();
        let (host_ipc, host_keys) = (ipc_of_host(), keys());
        for kind in ["descriptors", "watches", "ipc"] {
            let ran = client.exec(&id, json!({ "argv": [hog, kind], "timeout_s": 20 })).await;
            assert!(ran.code == 0 || ran.code == 137, "{kind}: {ran:?}");
            assert_eq!(client.sh(&id, "echo alive").await.text(), "alive");
        }
        let held = json!({ "argv": ["/bin/sh", "-c", format!("for i in 1 2 3 4 5 6; do {hog} ipc; done; (sleep 100 3< /dev/null) & exec sleep 100")], "detach": true });
        client.try_exec(&id, held).await.ok();
        assert_eq!(ipc_of_host(), host_ipc, "nothing of it is on the host");
        // The file API still opens, watches and lists.
        client.write_file(&id, "/home/user/x", "x").await.ok();
        let neighbour = client.create(json!({})).await;
        assert_eq!(client.sh(&neighbour, "cat /proc/sysvipc/shm | wc -l").await.text(), "1");
        deleted_in_time(&client, &id).await;
        until("keyrings are given back", async || (keys() <= host_keys + 4).then_some(())).await;
        witness.verify().await;
    });
}

fn ipc_of_host() -> usize {
    ["shm", "sem", "msg"]
        .iter()
        .map(|kind| std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap().lines().count())
        .sum()
}

#[test]
fn a_stranger_with_a_reused_process_id_is_never_signalled() {
    // C05: while the server is down the sandbox dies, and its pid may belong to another process.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let agent = w.agent_pid(&id);
        w.stop_server(nix::sys::signal::Signal::SIGKILL).await;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(agent), nix::sys::signal::Signal::SIGKILL).unwrap();
        until("the agent is gone", async || {
            w.reap();
            proc::Process::read(agent).is_none().then_some(())
        })
        .await;
        let mut stranger = take_pid(agent);
        w.start_server().await;
        let gone = client.sandbox(&id).await;
        assert_eq!(
            (&gone["phase"], &gone["reason"]["code"]),
            (&json!("failed"), &json!("lost_while_down")),
            "{gone}"
        );
        client.remove(&id).await;
        if let Some(stranger) = &mut stranger {
            assert!(stranger.try_wait().unwrap().is_none(), "the stranger was killed");
            stranger.kill().unwrap();
            stranger.wait().unwrap();
        }
    });
}

/// Starts a process under exactly that pid, where the kernel lets us choose it.
fn take_pid(pid: i32) -> Option<std::process::Child> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    if child.id().cast_signed() == pid {
        return Some(child);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
