//! What a skilled adversary tried against the gate and its limits, and where it once came through: each of these failed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use atoll_tests::connection_probes::{came_to_nothing, fetch, guarded, logged, reach_in_turn, try_one};
use atoll_tests::internet::{GOOD, GREETING, OTHER, Say};
use atoll_tests::{Options, Value, World, json, run_with};
use reqwest::Method;

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

/// Sends one request with a head of so many bytes per connection; prints how many were answered by the server.
const HEADS: &str = r#"
import socket, sys
address, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
good = 0
for n in range(count):
    try:
        s = socket.create_connection((address, 80), 20); s.settimeout(20)
        s.sendall(b"GET /head HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\nX: " + b"x" * size + b"\r\n\r\n")
        if b" 200 " in s.recv(100): good += 1
    except OSError: pass
print(good)
"#;

#[test]
fn what_is_carried_out_in_the_heads_of_requests_counts_against_the_budget() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(
            w,
            &client,
            json!({ "mode": "custom", "allow_domains": ["good.test"], "limits": { "bytes_per_destination": 200_000 } }),
        )
        .await;
        try_one(&client, &id, json!({ "do": "dns", "name": "good.test" })).await;
        let argv = json!(["python3", "-c", HEADS, GOOD, "20", "50000"]);
        let ran = client.exec(&id, json!({ "argv": argv, "timeout_s": 100 })).await;
        let answered: u32 = ran.text().parse().unwrap();
        assert!((3..=4).contains(&answered), "{answered} heads of 50 kB passed a budget of 200 kB");
    });
}

/// Asks the gate as fast as it can, from several processes, and never listens.
const FLOOD: &str = r#"
import os, socket, struct, sys, time
gateway = [socket.inet_ntoa(struct.pack("<I", int(l.split()[2], 16))) for l in open("/proc/net/route").read().splitlines()[1:] if l.split()[1] == "00000000"][0]
q = b"\1\2\1\0\0\1\0\0\0\0\0\0\4evil\4test\0\0\1\0\1"
kids = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((gateway, 53)); s.setblocking(False)
        end, sent = time.time() + float(sys.argv[1]), 0
        while time.time() < end:
            for _ in range(100):
                try: s.send(q); sent += 1
                except OSError: pass
        os.write(1, b"%d\n" % sent)
        os._exit(0)
    kids.append(pid)
for pid in kids: os.waitpid(pid, 0)
"#;

#[test]
fn a_storm_of_questions_is_the_sandboxs_own() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let calm = guarded(w, &other, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let argv = json!(["python3", "-c", FLOOD, "6"]);
        let storm = client.exec(&id, json!({ "argv": argv, "timeout_s": 100 }));
        let work = async {
            tokio::time::sleep(Duration::from_millis(800)).await;
            let tasks: Vec<Value> =
                (0..12).map(|_| json!({ "do": "dns", "name": "good.test", "limit": 5 })).collect();
            reach_in_turn(&other, &calm, json!(tasks)).await
        };
        let (storm, asked) = tokio::join!(storm, work);
        let answered = asked.iter().filter(|result| result["addresses"] == json!([GOOD])).count();
        assert!(
            answered >= 11,
            "{answered} of 12 questions were answered in a storm of {:?}: {asked:?}",
            storm.text()
        );
    });
}

#[test]
fn a_rotated_secret_cannot_blow_a_header_up() {
    run(async |w| {
        let client = w.tenant("acme").await;
        client.post("/v1/secrets", json!({ "name": "A", "value": "x" })).await.ok();
        let text = "{secret:A}".repeat(800);
        let headers: serde_json::Map<String, Value> =
            (0..20).map(|n| (format!("X-Key-{n}"), json!(text))).collect();
        let policy = json!({ "mode": "custom", "transforms": [{ "domain": "api.good.test", "inject_headers": headers }] });
        let id = guarded(w, &client, policy).await;
        let before = resident(w);
        client.send(Method::PUT, "/v1/secrets/A", Some(&json!({ "value": "y".repeat(8192) }))).await.ok();
        let grown = resident(w).saturating_sub(before);
        assert!(grown < 32 << 10, "the server grew by {grown} KiB for 20 headers");
        drop(id);
    });
}

fn resident(w: &World) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.server_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn numbers_at_the_edge_are_taken_or_refused_and_never_half() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let path = format!("/v1/sandboxes/{id}");
        for limits in [
            json!({ "bytes_per_destination": u64::MAX }),
            json!({ "bytes_per_destination": u64::MAX / 2 + 1 }),
            json!({ "bytes_per_destination": i64::MAX }),
            json!({ "up_bytes_per_s": u64::MAX, "down_bytes_per_s": u64::MAX }),
            json!({ "up_bytes_per_s": u64::from(u32::MAX) + 1 }),
            json!({ "down_bytes_per_s": 1000 }),
            json!({ "connections": u32::MAX }),
            json!({ "connections": 1 }),
        ] {
            let policy = json!({ "mode": "custom", "allow_domains": ["good.test"], "allow_cidrs": [format!("{OTHER}/32")], "limits": limits });
            let answer = client.patch(&path, json!({ "network": policy })).await;
            assert!(answer.status < 500, "{limits}: {answer:?}");
            if answer.status == 200 {
                for url in ["http://good.test/".to_owned(), format!("http://{OTHER}/")] {
                    let got = fetch(&client, &id, &url).await;
                    assert_eq!(got.as_deref(), Ok(GREETING), "{limits}: {url}");
                }
            }
        }
    });
}

/// Connects to many ports of one address, as fast as it can.
const SCAN: &str = r#"
import socket, sys, time
address, count = sys.argv[1], int(sys.argv[2])
start, sent = time.time(), 0
for port in range(1, count):
    s = socket.socket(); s.setblocking(False)
    try: s.connect_ex((address, port))
    except OSError: pass
    s.close(); sent += 1
print(sent, time.time() - start)
"#;

#[test]
fn a_scan_does_not_hide_what_others_do() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let id = guarded(w, &client, json!("allow-all")).await;
        let calm = guarded(w, &other, json!("allow-all")).await;
        let argv = json!(["python3", "-c", SCAN, GOOD, "45000"]);
        let ran = client.exec(&id, json!({ "argv": argv, "timeout_s": 110 })).await;
        assert!(ran.text().starts_with("44999 "), "{ran:?}");
        assert_eq!(fetch(&other, &calm, &format!("http://{OTHER}/")).await.as_deref(), Ok(GREETING));
        logged(&other, &calm, json!({ "what": "flow", "verdict": "allowed", "address": OTHER, "port": 80 }))
            .await;
    });
}

/// Opens many downloads and reads none of them.
const HOARD: &str = r#"
import socket, ssl, sys, time
address, count, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tls = ssl._create_unverified_context()
held = []
for n in range(count):
    try:
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096); s.settimeout(20); s.connect((address, port))
        if port == 443: s = tls.wrap_socket(s, server_hostname="good.test")
        s.sendall(b"GET /bytes/3000000 HTTP/1.1\r\nHost: good.test\r\n\r\n")
        held.append(s)
    except OSError: pass
    if n % 100 == 99: time.sleep(0.5)
time.sleep(3)
print(len(held), flush=True)
time.sleep(4)
"#;

#[test]
fn downloads_that_nobody_reads_do_not_fill_the_server() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        try_one(&client, &id, json!({ "do": "dns", "name": "good.test" })).await;
        // Passed on unread first, then request by request: what that one takes may stay with the server.
        for port in ["443", "80"] {
            let before = resident(w);
            let argv = json!(["python3", "-c", HOARD, GOOD, "400", port]);
            let hoard = client.exec(&id, json!({ "argv": argv, "timeout_s": 110 }));
            tokio::pin!(hoard);
            let mut most = 0;
            let hoard = loop {
                tokio::select! {
                    ended = &mut hoard => break ended,
                    () = tokio::time::sleep(Duration::from_millis(200)) => most = most.max(resident(w)),
                }
            };
            let (held, grown) = (hoard.text().parse::<u64>().unwrap(), most.saturating_sub(before));
            assert!(held > 300, "{port}: only {held} are held");
            assert!(grown < held * 400, "{port}: the server grew by {grown} KiB for {held} downloads");
        }
    });
}

#[test]
fn an_answer_that_comes_after_the_policy_changed_opens_nothing() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let (release, released) = tokio::sync::watch::channel(false);
        w.internet.says("good.test", Say::a([GOOD]).held_until(released));
        w.internet.forget();
        let connect = json!({ "do": "tcp", "host": GOOD, "port": 80, "send": "GET / HTTP/1.0\r\nHost: good.test\r\n\r\n" });
        let tasks = json!([{ "do": "dns", "name": "good.test", "limit": 20 }, connect]);
        let ask = reach_in_turn(&client, &id, tasks);
        let narrow = async {
            atoll_tests::until("the question is under way", async || {
                (!w.internet.questions_with("good.test").is_empty()).then_some(())
            })
            .await;
            let policy = json!({ "mode": "custom", "allow_domains": ["other.test"] });
            client.patch(&format!("/v1/sandboxes/{id}"), json!({ "network": policy })).await.ok();
            release.send_replace(true);
        };
        let (results, ()) = tokio::join!(ask, narrow);
        assert_eq!(results[0]["addresses"], json!([]), "{results:?}");
        assert!(came_to_nothing(&results[1]), "{results:?}");
        w.internet.untouched(GOOD, "an answer that came late");
    });
}

#[test]
fn a_narrower_word_of_the_operator_holds_after_a_restart_whatever_else_fails() {
    let floor = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(floor.path(), json!({ "mode": "allow-all" }).to_string()).unwrap();
    let options = Options::debian().env("ATOLL_EGRESS_POLICY", floor.path().display().to_string());
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, json!("allow-all")).await;
        let url = format!("http://{OTHER}/");
        assert_eq!(fetch(&client, &id, &url).await.as_deref(), Ok(GREETING));
        let hold = "python3 -c \"import time; held = b'x' * (64 << 20); open('/tmp/held', 'w'); time.sleep(600)\" >/dev/null 2>&1 &";
        client.sh(&id, hold).await;
        atoll_tests::until("it holds memory", async || {
            (client.sh(&id, "test -e /tmp/held").await.code == 0).then_some(())
        })
        .await;
        w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        // Less memory than it uses: a limit that the kernel refuses, as it would for many other reasons.
        let database = rusqlite::Connection::open(w.data().join("sandbox.db")).unwrap();
        let less =
            "UPDATE sandbox_leases SET lease = json_set(lease, '$.limits.memory_mib', 8) WHERE id = ?1";
        assert_eq!(database.execute(less, [&id]).unwrap(), 1);
        drop(database);
        let narrower = json!({ "mode": "allow-all", "deny_cidrs": [format!("{OTHER}/32")] });
        std::fs::write(floor.path(), narrower.to_string()).unwrap();
        w.start_server().await;
        let log = w.log();
        assert!(
            log.contains("limits or network policy could not be applied again"),
            "the limit was taken: {log}"
        );
        w.internet.forget();
        let client = w.client(client.key());
        let reached = fetch(&client, &id, &url).await;
        assert!(reached.is_err(), "{reached:?}");
        w.internet.untouched(OTHER, "the operator's word");
    });
}
