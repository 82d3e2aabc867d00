//! The code interpreter at its port inside a sandbox: for programs in sandboxes of E2B's front, through pauses and restarts of the
//! server, and with nothing else of the host behind it.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Client, Options, World, json, run_with};
use reqwest::Method;
use serde_json::Value;

/// Asks the port inside. Prints the status and the body, or the kind of the failure.
const ASK: &str = r#"
import json, sys, urllib.error, urllib.request
method, path, body = sys.argv[1], sys.argv[2], sys.argv[3].encode() if len(sys.argv) > 3 else None
request = urllib.request.Request("http://127.0.0.1:49999" + path, data=body, method=method)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
except OSError as failed:
    print("no", failed)
"#;

fn options() -> Options {
    Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
}

/// A sandbox as E2B's SDK makes it, with the program that asks.
async fn make(client: &Client, template: &str) -> String {
    let body = json!({ "templateID": template, "timeout": 600 });
    let asked = client.raw(Method::POST, "/e2b/v2/sandboxes").header("x-api-key", client.key().to_owned());
    let answer = asked.json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let id = answer.json::<Value>().await.unwrap()["sandboxID"].as_str().unwrap().to_owned();
    client.write_file(&id, "/tmp/ask.py", ASK).await.ok();
    id
}

async fn ask(client: &Client, id: &str, arguments: &str) -> String {
    client.sh(id, &format!("python3 /tmp/ask.py {arguments}")).await.stdout
}

#[test]
fn programs_inside_find_the_interpreter_and_nothing_else() {
    run_with(options(), async |world: &World| {
        let client = world.tenant("e2b").await;
        let id = make(&client, "code-interpreter-v1").await;
        assert_eq!(ask(&client, &id, "GET /health").await, "200 \"OK\"\n");
        // As its user, without any token; the kernel is that of callers from outside.
        let said = ask(&client, &id, r#"POST /execute '{"code": "kept = 41"}'"#).await;
        assert!(said.contains("end_of_execution"), "{said}");
        let said = ask(&client, &id, r#"POST /execute '{"code": "kept + 1"}'"#).await;
        assert!(said.contains(r#""text":"42""#), "{said}");
        let contexts = ask(&client, &id, "GET /contexts").await;
        assert!(contexts.contains("python") && contexts.contains("javascript"), "{contexts}");
        for path in ["/", "/v1/sandboxes", "/e2b/sandboxes", "/health/..", "/p/x/80/", "/mcp", "/docs"] {
            let said = ask(&client, &id, &format!("GET {path}")).await;
            assert!(said.starts_with("404 "), "{path}: {said}");
        }
        // No other sandbox can be named.
        let other = make(&client, "code-interpreter-v1").await;
        let fields = format!("-H 'E2b-Sandbox-Id: {other}' -H 'Host: 49999-{other}.localhost'");
        let said = client.sh(&id, &format!("curl -s {fields} http://127.0.0.1:49999/contexts")).await.stdout;
        assert_eq!(said, ask(&client, &id, "GET /contexts").await.replacen("200 ", "", 1).trim_end());
        // Sandboxes without kernels, and those of other fronts, have the port for themselves.
        let base = make(&client, "base").await;
        let native = client.create(json!({ "template": "code-interpreter-slim" })).await;
        client.write_file(&native, "/tmp/ask.py", ASK).await.ok();
        for id in [&base, &native] {
            assert!(ask(&client, id, "GET /health").await.starts_with("no "));
            let served = "cd /tmp && (python3 -m http.server 49999 >/dev/null 2>&1 </dev/null & ) && sleep 1";
            client.sh(id, served).await;
            assert!(ask(&client, id, "GET /ask.py").await.starts_with("200 "), "{id}");
        }
    });
}

#[test]
fn the_port_inside_comes_back_after_a_pause_to_disk_and_after_a_kill_of_the_server() {
    run_with(options(), async |world: &World| {
        let client = world.tenant("e2b").await;
        let id = make(&client, "code-interpreter-v1").await;
        // A connection is open over everything that follows, and a program waits for the kernel on it.
        let waits = r#"(python3 /tmp/ask.py POST /execute '{"code": "import time; time.sleep(3600)"}' >/tmp/said 2>&1 </dev/null &)"#;
        client.sh(&id, &format!("{waits}; sleep 1")).await;
        for memory in ["live", "disk"] {
            client.post(&format!("/v1/sandboxes/{id}/pause"), json!({ "memory": memory })).await.ok();
            client.act(&id, "resume").await.ok();
            assert_eq!(ask(&client, &id, "GET /health").await, "200 \"OK\"\n", "{memory}");
        }
        world.crash_server().await;
        assert_eq!(ask(&client, &id, "GET /health").await, "200 \"OK\"\n", "after a kill");
        client.act(&id, "stop").await.ok();
        client.act(&id, "start").await.ok();
        client.write_file(&id, "/tmp/ask.py", ASK).await.ok();
        assert_eq!(ask(&client, &id, "GET /health").await, "200 \"OK\"\n", "after a start");
        client.remove(&id).await;
        world.leak_check().await;
    });
}

#[test]
fn connections_from_inside_are_bounded_and_do_not_wake_or_disturb() {
    run_with(options(), async |world: &World| {
        let client = world.tenant("e2b").await;
        let (id, other) =
            (make(&client, "code-interpreter-v1").await, make(&client, "code-interpreter-v1").await);
        // Hundreds of silent connections, and heads without an end.
        let many = r#"
import socket, time
held = []
for n in range(300):
    one = socket.socket(); one.settimeout(5)
    try:
        one.connect(("127.0.0.1", 49999)); one.send(b"GET /health HTTP/1.1\r\nA: " + b"x" * (n * 100))
    except OSError:
        break
    held.append(one)
open("/tmp/held", "w").write(str(len(held)))
time.sleep(3600)
"#;
        client.write_file(&id, "/tmp/many.py", many).await.ok();
        client.sh(&id, "(python3 /tmp/many.py >/dev/null 2>&1 </dev/null &); while [ ! -s /tmp/held ]; do sleep 0.1; done").await;
        assert_eq!(ask(&client, &other, "GET /health").await, "200 \"OK\"\n");
        // Beside the socket that listens, at most 16 are taken by the server; the others wait in the kernel's queue.
        let taken = inside_sockets(world, &id);
        assert!(taken <= 16, "{taken} connections of the server");
        // A request that comes while the sandbox is paused does not wake it.
        client.act(&id, "pause").await.ok();
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(client.sandbox(&id).await["phase"], "paused");
    });
}

/// How many connections from inside the sandbox the server holds.
fn inside_sockets(world: &World, id: &str) -> usize {
    let agent = world.agent_pid(id);
    let server = format!("/proc/{}/fd", world.server_pid());
    let held: std::collections::HashSet<String> = std::fs::read_dir(server)
        .unwrap()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|to| Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{agent}/net/tcp")).unwrap();
    // The local port is 49999 in hex, and the state is not that of a listener.
    table
        .lines()
        .filter(|line| line.contains(":C34F ") && line.split_whitespace().nth(3) == Some("01"))
        .filter(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(":C34F")))
        .filter(|line| line.split_whitespace().nth(9).is_some_and(|inode| held.contains(inode)))
        .count()
}
