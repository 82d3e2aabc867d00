//! IPv6 through the whole server: ranges that a policy names are reached, nothing else is, and who names none has none.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::connection_probes::{came_to_nothing, guarded, logged, reach, try_one};
use atoll_tests::internet::{EVIL6, GOOD, GOOD6, GREETING, HOST6};
use atoll_tests::open_flows::Flow;
use atoll_tests::{Client, Options, Value, World, criu, json, run_with};
use nix::sys::signal::Signal;

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

fn ranges(cidrs: &[&str]) -> Value {
    json!({ "mode": "custom", "allow_cidrs": cidrs })
}

async fn set(client: &Client, id: &str, network: Value) {
    client.patch(&format!("/v1/sandboxes/{id}"), json!({ "network": network })).await.ok();
}

fn get(host: &str) -> Value {
    json!({ "do": "url", "url": format!("http://[{host}]/") })
}

/// Exactly the one address, whatever happened to the sandbox.
async fn only_good(w: &World, client: &Client, id: &str, after: &str) {
    w.internet.forget();
    let good = try_one(client, id, get(GOOD6)).await;
    assert_eq!(good["body"], GREETING, "{after}: {good}");
    let ways = json!([
        get(EVIL6),
        { "do": "udp", "host": EVIL6, "port": 443 },
        { "do": "udp", "host": EVIL6, "port": 7 },
        { "do": "tcp", "host": HOST6, "port": 7070, "send": "GET / HTTP/1.0\r\n\r\n" },
        { "do": "tcp", "host": "fd61:746f:6c6c:8000::1", "port": 7070, "send": "GET / HTTP/1.0\r\n\r\n" },
        { "do": "tcp", "host": "fe80::1%eth0", "port": 7070, "send": "GET / HTTP/1.0\r\n\r\n" },
    ]);
    for (way, result) in ways.as_array().unwrap().iter().zip(reach(client, id, ways.clone()).await) {
        assert!(came_to_nothing(&result), "{after}: {way}: {result}");
    }
    w.internet.unharmed(after);
}

#[test]
fn a_named_range_is_reached_and_nothing_else_through_a_whole_life() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let policy = ranges(&["2001:db8:10::/48", &format!("{HOST6}/128")]);
        let id = guarded(w, &client, policy.clone()).await;
        only_good(w, &client, &id, "created").await;
        let passed = json!({ "verdict": "allowed", "address": GOOD6, "port": 80, "rule": "allow_cidrs" });
        logged(&client, &id, passed).await;
        logged(&client, &id, json!({ "verdict": "refused", "address": EVIL6, "rule": "not in allow_cidrs" }))
            .await;
        logged(&client, &id, json!({ "verdict": "refused", "address": HOST6, "rule": "never: host" })).await;
        // Another sandbox, by its own address.
        let other = guarded(w, &client, policy.clone()).await;
        let line = "awk '$6 == \"eth0\" { print $1 }' /proc/net/if_inet6";
        let hex = client.sh(&other, line).await.stdout.trim().to_owned();
        assert_eq!(hex.len(), 32, "it has one address: {hex}");
        let address = u128::from_str_radix(&hex, 16).map(std::net::Ipv6Addr::from).unwrap().to_string();
        let serve = "import http.server, socket\nclass S(http.server.HTTPServer): address_family = socket.AF_INET6\nS(('::', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()";
        let argv = json!(["python3", "-c", serve]);
        client.try_exec(&other, json!({ "argv": argv, "detach": true })).await.ok();
        let listens = json!({ "do": "tcp", "host": address, "port": 8000, "send": "GET / HTTP/1.0\r\n\r\n" });
        atoll_tests::until("it listens", async || {
            (!came_to_nothing(&try_one(&client, &other, listens.clone()).await)).then_some(())
        })
        .await;
        assert!(came_to_nothing(&try_one(&client, &id, listens).await));
        client.remove(&other).await;
        // A killed server comes back with it, and the connection goes on.
        let flow = Flow::start(&client, &id, "good", &format!("{GOOD6}:7")).await;
        w.stop_server(Signal::SIGKILL).await;
        w.start_server().await;
        flow.goes_on().await;
        only_good(w, &client, &id, "after a crash").await;
        flow.goes_on().await;
        // Taken away and given again, live.
        set(&client, &id, json!("allow-all")).await;
        flow.stands_still().await;
        assert!(came_to_nothing(&try_one(&client, &id, get(GOOD6)).await));
        assert_eq!(client.sh(&id, line).await.stdout.trim(), "");
        let v4 = try_one(&client, &id, json!({ "do": "url", "url": format!("http://{GOOD}/") })).await;
        assert_eq!(v4["body"], GREETING);
        set(&client, &id, policy).await;
        only_good(w, &client, &id, "given again").await;
    });
}

#[test]
fn it_goes_with_pause_restart_fork_and_the_pool() {
    run_with(Options { pool: 1, ..Options::debian() }, async |w| {
        let client = w.tenant("acme").await;
        let policy = ranges(&["2001:db8:10::/48"]);
        let id = guarded(w, &client, policy.clone()).await;
        only_good(w, &client, &id, "claimed").await;
        let path = |tail: &str| format!("/v1/sandboxes/{id}{tail}");
        client.act(&id, "restart").await.ok();
        only_good(w, &client, &id, "restarted").await;
        if criu::at_hand().is_none() {
            return;
        }
        let _flow = Flow::start(&client, &id, "good", &format!("{GOOD6}:7")).await;
        client.post(&path("/pause"), json!({ "memory": "disk" })).await.ok();
        client.act(&id, "resume").await.ok();
        only_good(w, &client, &id, "paused to disk and resumed").await;
        // A copy has another address; connections of the old one do not keep it from coming up.
        let _flow = Flow::start(&client, &id, "kept", &format!("{GOOD6}:7")).await;
        let forked = client.post(&path("/fork"), json!({ "count": 1, "memory": true })).await.ok();
        let child = forked["sandboxes"][0]["id"].as_str().unwrap().to_owned();
        only_good(w, &client, &child, "forked with memory").await;
        client.remove(&child).await;
        // Sockets of an address that was taken away are no reason not to come back, nor is what they could not send.
        let flow = Flow::start(&client, &id, "last", &format!("{GOOD6}:7")).await;
        set(&client, &id, json!("allow-all")).await;
        flow.stands_still().await;
        client.post(&path("/pause"), json!({ "memory": "disk" })).await.ok();
        client.act(&id, "resume").await.ok();
        assert!(came_to_nothing(&try_one(&client, &id, get(GOOD6)).await));
        set(&client, &id, policy).await;
        only_good(w, &client, &id, "given again after the pause").await;
    });
}
