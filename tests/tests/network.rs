//! What a sandbox reaches and what it never does (A11, N05), in every mode, and while the mode changes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::internet::{DECOYS, GREETING, NAME, PUBLIC};
use atoll_tests::{Client, Options, World, json, namespaces, run, run_with, until};

/// A web request from inside to an address; what it printed. Busybox' own wget looks names up, and its static build dies of it.
async fn fetch(client: &Client, id: &str, host: &str, port: u16) -> String {
    let line = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 20 {host} {port} 2>&1");
    client.exec(id, json!({ "argv": ["/bin/sh", "-c", line], "timeout_s": 60 })).await.stdout
}

async fn reaches(client: &Client, id: &str, host: &str) -> bool {
    fetch(client, id, host, 80).await.contains(GREETING)
}

#[test]
fn an_open_sandbox_reaches_the_internet_by_address_and_by_name() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "network": "allow-all" })).await;
        let get = async |host: &str| {
            let code = format!(
                "import urllib.request; print(urllib.request.urlopen('http://{host}/', timeout=60).read().decode())"
            );
            client.exec(&id, json!({ "argv": ["python3", "-c", code] })).await
        };
        assert_eq!(get(PUBLIC).await.text(), GREETING);
        assert_eq!(
            get(NAME).await.text(),
            GREETING,
            "{}",
            client.sh(&id, "cat /etc/resolv.conf").await.stdout
        );
        let unknown = get("no-such.example.test").await;
        assert!(
            unknown.stderr.contains("Name or service not known") || unknown.stderr.contains("No address"),
            "{unknown:?}"
        );
        // Closed ports are told at once.
        let started = Instant::now();
        let closed = get(&format!("{PUBLIC}:81")).await;
        assert!(
            closed.stderr.contains("refused") && started.elapsed() < Duration::from_secs(30),
            "{closed:?} after {:?}",
            started.elapsed()
        );
    });
}

#[test]
fn a_closed_sandbox_reaches_nothing_and_is_told_at_once() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "network": "deny-all" })).await;
        for target in [PUBLIC, "8.8.8.8", "1.1.1.1"] {
            let started = Instant::now();
            let refused = client.sh(&id, &format!("nc -w 30 {target} 80 < /dev/null")).await;
            assert!(
                refused.code != 0 && started.elapsed() < Duration::from_secs(20),
                "{target}: {refused:?} after {:?}",
                started.elapsed()
            );
        }
        let started = Instant::now();
        let looked = client.exec(&id, json!({ "argv": ["/bin/sh", "-c", format!("nslookup {NAME} 2>&1; nslookup {NAME} {PUBLIC} 2>&1")], "timeout_s": 110 })).await;
        assert!(
            !looked.stdout.contains(&format!("Address: {PUBLIC}"))
                && !looked.stdout.contains(&format!("Address 1: {PUBLIC} ")),
            "not even DNS: {looked:?}"
        );
        assert!(started.elapsed() < Duration::from_secs(90));
        // Its own loopback works.
        let served = client
            .sh(
                &id,
                "mkdir /tmp/www && echo hi > /tmp/www/greeting && httpd -p 127.0.0.1:8099 -h /tmp/www && wget -q -O - http://127.0.0.1:8099/greeting",
            )
            .await;
        assert_eq!(served.stdout.trim(), "hi", "{served:?}");
    });
}

#[test]
fn host_neighbours_private_and_metadata_are_out_of_reach_in_every_mode() {
    // A11, N05.
    run(async |w| {
        control(w).await;
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        let neighbour = other.create(json!({})).await;
        other
            .exec(&neighbour, json!({ "argv": ["httpd", "-p", "80", "-h", "/etc"], "user": "root" }))
            .await
            .text();
        let address = other
            .sh(&neighbour, "ip -4 addr show eth0 | sed -n 's/.*inet \\([0-9.]*\\).*/\\1/p'")
            .await
            .text()
            .to_owned();
        assert!(!address.is_empty());
        for mode in ["allow-all", "deny-all"] {
            let id = client.create(json!({ "network": mode })).await;
            let gateway = client
                .sh(&id, "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'")
                .await
                .text()
                .to_owned();
            let uplinks = uplink_addresses();
            let mut targets: Vec<String> = DECOYS.iter().map(|d| (*d).to_owned()).collect();
            targets.extend([
                address.clone(),
                gateway,
                namespaces::HOST_ADDRESS.to_owned(),
                "0.0.0.0".to_owned(),
                "127.0.0.2".to_owned(),
            ]);
            targets.extend(uplinks);
            let line = format!(
                "cd /tmp; for t in {}; do for p in 80 7070; do (printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 $t $p > got.$t.$p 2>&1) & done; done; wait; grep . got.*",
                targets.join(" ")
            );
            let got = client.exec(&id, json!({ "argv": ["/bin/sh", "-c", line], "timeout_s": 100 })).await;
            let answered: Vec<&str> = got.stdout.lines().filter(|line| !line.contains("nc: ")).collect();
            assert!(answered.is_empty() && got.answer["timed_out"] == false, "{mode}: {answered:?}");
            let sources = "for a in 10.9.9.9 203.0.113.77 169.254.0.1; do ip addr add $a/32 dev eth0 2>&1; done; ip link set eth0 address 02:00:00:00:00:99 2>&1; ip link add dummy0 type veth 2>&1; true";
            let tried = client.sh_root(&id, sources).await;
            assert!(
                tried.stdout.matches("not permitted").count() >= 4,
                "addresses are not the sandbox's to change: {tried:?}"
            );
            assert!(!fetch(&client, &id, "[::1]", 7070).await.contains("status"));
            assert!(!fetch(&client, &id, "[fe80::1%eth0]", 7070).await.contains("status"));
            // No socket of the host is in the file system, and abstract ones are another namespace's.
            let found = client
                .sh_root(&id, "find / -xdev -type s 2>/dev/null; cat /proc/net/unix | grep -c '@' || true")
                .await;
            assert_eq!(found.text(), "0", "{mode}");
            client.remove(&id).await;
        }
    });
}

/// The host itself reaches all decoys: what a sandbox does not reach is closed to it, not absent.
async fn control(w: &World) {
    let _ = w;
    for target in DECOYS.iter().chain([&PUBLIC]) {
        let text = reqwest::get(format!("http://{target}/")).await.unwrap().text().await.unwrap();
        assert_eq!(text, GREETING, "{target}");
    }
}

fn uplink_addresses() -> Vec<String> {
    let text = std::process::Command::new("ip").args(["-4", "-o", "addr"]).output().unwrap().stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let address = |line: &str| line.split_whitespace().nth(3)?.split('/').next().map(str::to_owned);
    text.lines().filter_map(address).filter(|a| !a.starts_with("127.")).collect()
}

#[test]
fn the_policy_changes_while_it_runs_also_for_open_connections() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "network": "allow-all" })).await;
        let path = format!("/v1/sandboxes/{id}");
        assert!(reaches(&client, &id, PUBLIC).await);
        let changed = client.patch(&path, json!({ "network": "deny-all" })).await.ok();
        assert_eq!(changed["network"], "deny-all");
        assert!(!reaches(&client, &id, PUBLIC).await, "closed at once");
        client.patch(&path, json!({ "network": "allow-all" })).await.ok();
        assert!(reaches(&client, &id, PUBLIC).await, "open again");
        // A restart and a crash of the server keep it.
        client.patch(&path, json!({ "network": "deny-all" })).await.ok();
        client.act(&id, "restart").await.ok();
        assert!(!reaches(&client, &id, PUBLIC).await);
        w.crash_server().await;
        assert!(!reaches(&client, &id, PUBLIC).await);
        client.patch(&path, json!({ "network": "allow-all" })).await.ok();
        until("open again", async || reaches(&client, &id, PUBLIC).await.then_some(())).await;
    });
}

#[test]
fn connections_survive_a_crash_of_the_server() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "network": "allow-all" })).await;
        let line = format!(
            "(sleep 2; printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 2) | nc -w 60 {PUBLIC} 80 > /tmp/got 2>&1"
        );
        client.try_exec(&id, json!({ "argv": ["/bin/sh", "-c", line], "detach": true })).await.ok();
        w.crash_server().await;
        until("the answer comes through", async || {
            client.sh(&id, "cat /tmp/got").await.stdout.contains(GREETING).then_some(())
        })
        .await;
    });
}
