//! The policy of a running sandbox: changed without dropping what stays allowed, never open in between, and the same after
//! a crash, a pause, a fork, a snapshot and a claim.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::connection_probes::{
    ROOTS, came_to_nothing, fetch, guarded, reach, trust_the_internet, try_one,
};
use atoll_tests::internet::{EVIL, GREETING, OTHER, SHARED};
use atoll_tests::open_flows::{Flow, hammer};
use atoll_tests::{Client, Options, Value, World, criu, json, run_with, until};
use nix::sys::signal::Signal;

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

async fn set(client: &Client, id: &str, network: Value) {
    client.patch(&format!("/v1/sandboxes/{id}"), json!({ "network": network })).await.ok();
}

fn policy(domains: Value, cidrs: Value) -> Value {
    json!({ "mode": "custom", "allow_domains": domains, "allow_cidrs": cidrs })
}

#[test]
fn a_change_ends_what_it_forbids_and_nothing_else() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let wide =
            policy(json!(["good.test", "other.test"]), json!([format!("{SHARED}/32"), format!("{EVIL}/32")]));
        let narrow = policy(json!(["good.test"]), json!([format!("{SHARED}/32")]));
        let id = guarded(w, &client, wide.clone()).await;
        let good = Flow::start(&client, &id, "good", "https://good.test/drip").await;
        let plain = Flow::start(&client, &id, "plain", "http://good.test/drip").await;
        let other = Flow::start(&client, &id, "other", "https://other.test/drip").await;
        let shared = Flow::start(&client, &id, "shared", &format!("{SHARED}:7")).await;
        let evil = Flow::start(&client, &id, "evil", &format!("{EVIL}:7")).await;
        set(&client, &id, narrow.clone()).await;
        tokio::join!(other.stands_still(), evil.stands_still());
        w.internet.forget();
        for flow in [&good, &plain, &shared] {
            flow.goes_on().await;
        }
        assert!(fetch(&client, &id, "https://other.test/").await.is_err());
        for address in [OTHER, EVIL] {
            w.internet.untouched(address, "after the change");
        }
        // Wider again: what went on goes on, and what ended can begin anew.
        set(&client, &id, wide).await;
        assert_eq!(fetch(&client, &id, "https://other.test/").await.as_deref(), Ok(GREETING));
        let again = Flow::start(&client, &id, "again", &format!("{EVIL}:7")).await;
        for flow in [&good, &plain, &shared, &again] {
            flow.goes_on().await;
        }
        // The same policy once more, and one that only says it with other words.
        let same = policy(json!(["*", "good.test"]), json!(["198.51.100.0/24"]));
        set(&client, &id, same).await;
        for flow in [&good, &plain, &shared, &again] {
            flow.goes_on().await;
        }
        // Closed altogether, through the gate and directly.
        set(&client, &id, json!("deny-all")).await;
        tokio::join!(good.stands_still(), plain.stands_still(), shared.stands_still(), again.stands_still());
        w.internet.forget();
        assert!(fetch(&client, &id, "https://good.test/").await.is_err());
        assert!(w.internet.requests().is_empty() && w.internet.questions().is_empty());
        // A refused change changes nothing.
        set(&client, &id, narrow).await;
        let path = format!("/v1/sandboxes/{id}");
        let bad = policy(json!(["good.test"]), json!(["10.0.0.0/8"]));
        client.patch(&path, json!({ "network": bad })).await.refused(400, "invalid_request");
        assert_eq!(fetch(&client, &id, "https://good.test/").await.as_deref(), Ok(GREETING));
        assert!(fetch(&client, &id, "https://other.test/").await.is_err());
        w.internet.unharmed("closed");
    });
}

#[test]
fn a_hundred_changes_under_fire_never_let_a_forbidden_packet_pass() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let closed = policy(json!(["good.test"]), json!([format!("{OTHER}/32")]));
        let open = [
            policy(json!(["good.test"]), json!([format!("{OTHER}/32"), format!("{EVIL}/32")])),
            policy(json!(["good.test", "evil.test"]), json!([format!("{OTHER}/32")])),
            policy(json!(["good.test", "*"]), json!([format!("{OTHER}/32"), "198.51.100.64/26"])),
        ];
        let id = guarded(w, &client, closed.clone()).await;
        let good = Flow::start(&client, &id, "good", "https://good.test/drip").await;
        let other = Flow::start(&client, &id, "other", &format!("{OTHER}:7")).await;
        hammer(&client, &id, EVIL, "evil.test", 300).await;
        let (mut reached, mut slowest) = (0, Duration::ZERO);
        for round in 0..50 {
            set(&client, &id, open[round % open.len()].clone()).await;
            // A busy machine may not run the hammer for a while.
            let opened = Instant::now();
            while w.internet.packets(EVIL).is_empty() && opened.elapsed() < Duration::from_secs(2) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            reached += usize::from(!w.internet.packets(EVIL).is_empty());
            let began = Instant::now();
            set(&client, &id, closed.clone()).await;
            slowest = slowest.max(began.elapsed());
            // What the kernel had already let pass is on the wire for a moment; the rest is after the change.
            tokio::time::sleep(Duration::from_millis(80)).await;
            w.internet.forget();
            tokio::time::sleep(Duration::from_millis(25)).await;
            w.internet.untouched(EVIL, &format!("round {round}"));
        }
        assert!(reached > 25, "the fire was none: {reached} of 50 open moments were used");
        assert!(slowest < Duration::from_secs(10), "a change took {slowest:?}");
        good.goes_on().await;
        other.goes_on().await;
        w.internet.unharmed("the last change");
    });
}

#[test]
fn a_killed_server_leaves_no_door_open_and_comes_back_with_every_policy() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let narrow = policy(json!(["good.test"]), json!([format!("{OTHER}/32")]));
        let id = guarded(w, &client, narrow.clone()).await;
        let shut = guarded(w, &client, json!("deny-all")).await;
        let shown = client.sandbox(&id).await["network"].clone();
        let other = Flow::start(&client, &id, "other", &format!("{OTHER}:7")).await;
        assert_eq!(fetch(&client, &id, "https://good.test/").await.as_deref(), Ok(GREETING));
        hammer(&client, &id, EVIL, "evil.test", 300).await;
        hammer(&client, &shut, EVIL, "evil.test", 300).await;
        let hammered = async || {
            let line = "grep -c python3 /proc/[0-9]*/comm | grep -c ':1'";
            client.sh(&shut, line).await.stdout.trim().parse::<u32>().is_ok_and(|count| count > 0)
        };
        until("the fire burns", async || hammered().await.then_some(())).await;
        for _ in 0..3 {
            w.stop_server(Signal::SIGKILL).await;
            tokio::time::sleep(Duration::from_millis(400)).await;
            w.internet.unharmed("without a server");
            w.start_server().await;
            w.internet.unharmed("just after the start");
        }
        assert!(hammered().await, "the fire still burns");
        other.goes_on().await;
        until("names are answered again", async || {
            fetch(&client, &id, "https://good.test/").await.is_ok().then_some(())
        })
        .await;
        assert!(fetch(&client, &id, "https://other.test/").await.is_err());
        assert_eq!(client.sandbox(&id).await["network"], shown);
        assert_eq!(client.sandbox(&shut).await["network"], "deny-all");
        // And changes still take hold.
        set(&client, &id, policy(json!(["other.test"]), json!([]))).await;
        assert!(fetch(&client, &id, "https://good.test/").await.is_err());
        assert_eq!(fetch(&client, &id, "https://other.test/").await.as_deref(), Ok(GREETING));
        other.stands_still().await;
        w.internet.unharmed("after the restarts");
        assert!(w.internet.questions_with("evil.test").is_empty());
    });
}

/// Exactly the good name, whatever happened to the sandbox.
async fn only_good(w: &World, client: &Client, id: &str, after: &str) {
    trust_the_internet(client, id, w.internet.authority_pem()).await;
    w.internet.forget();
    let get = "GET / HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n";
    let results = reach(
        client,
        id,
        json!([
            { "do": "url", "url": "https://good.test/", "ca": ROOTS },
            { "do": "url", "url": "http://evil.test/" },
            { "do": "tcp", "host": EVIL, "port": 80, "send": get },
            { "do": "udp", "host": EVIL, "port": 443 },
        ]),
    )
    .await;
    assert_eq!(results[0]["body"], GREETING, "{after}: {}", results[0]);
    for result in &results[1..] {
        assert!(came_to_nothing(result), "{after}: {result}");
    }
    w.internet.unharmed(after);
    assert!(w.internet.questions_with("evil").is_empty(), "{after}");
}

#[test]
fn the_policy_goes_with_pause_stop_fork_and_snapshot() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, policy(json!(["good.test"]), json!([]))).await;
        only_good(w, &client, &id, "created").await;
        let path = |tail: &str| format!("/v1/sandboxes/{id}{tail}");
        client.post(&path("/pause"), json!({ "memory": "live" })).await.ok();
        client.act(&id, "resume").await.ok();
        only_good(w, &client, &id, "paused and resumed").await;
        client.act(&id, "stop").await.ok();
        client.act(&id, "start").await.ok();
        only_good(w, &client, &id, "stopped and started").await;
        client.act(&id, "restart").await.ok();
        only_good(w, &client, &id, "restarted").await;
        let forked = client.post(&path("/fork"), json!({ "count": 1 })).await.ok();
        let child = forked["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        only_good(w, &client, &child, "forked").await;
        client.remove(&child).await;
        client.post(&path("/snapshots"), json!({ "name": "kept" })).await.ok();
        let restored = client.create(json!({ "snapshot": "kept" })).await;
        only_good(w, &client, &restored, "made from its snapshot").await;
        client.remove(&restored).await;
        // Asked for otherwise, it is otherwise.
        let wide = client.create(json!({ "snapshot": "kept", "network": "allow-all" })).await;
        assert_eq!(
            try_one(&client, &wide, json!({ "do": "url", "url": "http://evil.test/" })).await["body"],
            GREETING
        );
        client.remove(&wide).await;
        w.internet.forget();
        if criu::at_hand().is_some() {
            client.post(&path("/pause"), json!({ "memory": "disk" })).await.ok();
            client.act(&id, "resume").await.ok();
            only_good(w, &client, &id, "paused to disk and resumed").await;
            let forked = client.post(&path("/fork"), json!({ "count": 1, "memory": true })).await.ok();
            let child = forked["sandboxes"][0]["id"].as_str().unwrap().to_owned();
            only_good(w, &client, &child, "forked with memory").await;
        }
    });
}

#[test]
fn a_claim_from_the_pool_has_its_policy_before_its_first_packet() {
    run_with(Options { pool: 3, ..Options::debian() }, async |w| {
        let client = w.tenant("acme").await;
        // The first thing that runs is an attack; the network is there when it runs, and so is the policy.
        for round in 0..5 {
            let attack = "import socket, time\nend = time.time() + 1.5\nwhile time.time() < end:\n    for t in ('198.51.100.66', '10.1.2.3'):\n        try: socket.create_connection((t, 80), 0.2)\n        except OSError: pass\n    try: socket.getaddrinfo('evil.test', 80)\n    except OSError: pass\n    time.sleep(0.05)\n";
            let spec = json!({ "command": ["python3", "-c", attack], "network": policy(json!(["good.test"]), json!([])) });
            let id = client.create(spec).await;
            only_good(w, &client, &id, &format!("claim {round}")).await;
            client.remove(&id).await;
        }
        w.internet.unharmed("claims");
        assert!(w.internet.questions_with("evil").is_empty());
    });
}

/// Sends as fast as it can and reads nothing back before it has to; tells how it ended.
const UPLOAD: &str = r#"
import socket, sys, threading
s = socket.create_connection((sys.argv[1], 7), 60)
s.settimeout(None)
def read():
    try:
        while s.recv(1 << 16): pass
    except OSError: pass
threading.Thread(target=read, daemon=True).start()
open("/tmp/uploads", "w").close()
try:
    while True: s.sendall(b"x" * (1 << 20))
except OSError as e: open("/tmp/uploaded", "w").write(repr(e))
"#;

#[test]
fn what_was_not_yet_sent_is_no_reason_not_to_come_back() {
    run(async |w| {
        if criu::at_hand().is_none() {
            return;
        }
        let client = w.tenant("acme").await;
        let id = guarded(w, &client, policy(json!([]), json!([format!("{SHARED}/32")]))).await;
        for round in 0..5 {
            client.sh(&id, "rm -f /tmp/uploads /tmp/uploaded").await;
            let argv = json!(["python3", "-c", UPLOAD, SHARED]);
            client.try_exec(&id, json!({ "argv": argv, "detach": true })).await.ok();
            let is_there = async |name: &str| client.sh(&id, &format!("test -e {name}")).await.code == 0;
            until("it uploads", async || is_there("/tmp/uploads").await.then_some(())).await;
            client.post(&format!("/v1/sandboxes/{id}/pause"), json!({ "memory": "disk" })).await.ok();
            // Whatever the socket sends now is answered by a reset.
            set(&client, &id, json!("deny-all")).await;
            client.act(&id, "resume").await.ok();
            until(&format!("round {round}: it ended"), async || {
                is_there("/tmp/uploaded").await.then_some(())
            })
            .await;
            set(&client, &id, policy(json!([]), json!([format!("{SHARED}/32")]))).await;
        }
    });
}
