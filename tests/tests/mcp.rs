//! MCP on a real server: the official clients drive every tool over both transports in both eras (`tests/mcp/`); requests that are
//! wrong get what the specification says; many clients at once; and what is left when they go away.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use atoll_tests::world::program;
use atoll_tests::{Client, Options, Value, World, json, run, run_with, until};
use reqwest::Method;

/// A request as bytes: its header fields, its body, its key, and the status of the answer.
type RawCase<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, u16);

const NOW: &str = "2026-07-28";

fn folder() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).to_owned()
}

/// What `scripts/get-mcp-sdk` gives; `None` where it cannot be had, which on CI is a failure.
fn sdk(part: &str) -> Option<String> {
    let got = Command::new(folder().join("../scripts/get-mcp-sdk")).arg(part).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "the MCP clients cannot be had: {said}");
    eprintln!("not run: {said}");
    None
}

/// Runs a program of `tests/mcp` over both transports in both eras.
async fn drive(w: &World, client: &Client, make: impl Fn() -> Command) {
    for transport in ["http", "stdio"] {
        for era in ["legacy", "modern"] {
            let mut command = make();
            command
                .args([transport, era])
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", w.folder())
                .env("MCP_URL", format!("{}/mcp", client.base()))
                .env("MCP_KEY", client.key())
                .env("ATOLL_BIN", program())
                .env("ATOLL_URL", client.base())
                .env("ATOLL_API_KEY", client.key());
            let done = w.output(command).await;
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{transport} {era}: {said}");
            assert_eq!(String::from_utf8_lossy(&done.stdout), format!("{transport} {era}: 19 tools\n"));
            let left = client.get("/v1/sandboxes").await.ok();
            assert_eq!(left["items"], json!([]), "{transport} {era}: the sandbox of the client is left");
            let threads = client.get("/v1/threads").await.ok();
            assert_eq!(threads["items"], json!([]), "{transport} {era}: the thread of the client is left");
            for snapshot in client.get("/v1/snapshots").await.ok()["items"].as_array().unwrap() {
                client.delete(&format!("/v1/snapshots/{}", snapshot["id"].as_str().unwrap())).await.ok();
            }
        }
    }
}

#[test]
fn the_official_python_client_drives_every_tool_in_both_eras() {
    let Some(python) = sdk("python") else { return };
    run_with(Options::debian(), async |w| {
        let client = w.tenant("python").await;
        drive(w, &client, || {
            let mut command = Command::new(&python);
            command.arg(folder().join("mcp/drive.py"));
            command
        })
        .await;
    });
}

#[test]
fn the_official_typescript_client_drives_every_tool_in_both_eras() {
    let (Some(node), Some(modules)) = (sdk("node"), sdk("modules")) else { return };
    run_with(Options::debian(), async |w| {
        let client = w.tenant("typescript").await;
        // A program finds its modules beside itself.
        let beside = w.folder().join("mcp-js");
        std::fs::create_dir(&beside).unwrap();
        std::os::unix::fs::symlink(modules, beside.join("node_modules")).unwrap();
        let program = beside.join("drive.mjs");
        std::fs::copy(folder().join("mcp/js/drive.mjs"), &program).unwrap();
        drive(w, &client, || {
            let mut command = Command::new(&node);
            command.arg(&program);
            command
        })
        .await;
    });
}

/// A request of 2026-07-28 with the headers that belong to it.
struct Message {
    body: Value,
    headers: Vec<(&'static str, String)>,
}

fn message(method: &str, params: Value) -> Message {
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": NOW,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "raw", "version": "1" },
    });
    let mut headers = vec![("mcp-protocol-version", NOW.to_owned()), ("mcp-method", method.to_owned())];
    if let Some(name) = params["name"].as_str().or(params["uri"].as_str()) {
        headers.push(("mcp-name", name.to_owned()));
    }
    Message { body: json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }), headers }
}

fn shell(command: &str) -> Message {
    message("tools/call", json!({ "name": "shell", "arguments": { "command": command } }))
}

impl Message {
    fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            self.headers.push((name, value.to_owned()));
        }
        self
    }

    async fn send(&self, client: &Client) -> (u16, Value) {
        let mut request = client.raw(Method::POST, "/mcp").json(&self.body);
        if !self.headers.iter().any(|(name, _)| *name == "accept") {
            request = request.header("accept", "application/json, text/event-stream");
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        // An answer that takes longer than a second is the last event of a stream.
        let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
        (status, serde_json::from_str(last.unwrap_or(&text)).unwrap_or(Value::Null))
    }
}

#[test]
fn wrong_requests_get_what_the_specification_says() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let list = || message("tools/list", json!({}));
        let (status, listed) = list().send(&client).await;
        assert_eq!((status, &listed["result"]["resultType"]), (200, &json!("complete")), "{listed}");
        assert_eq!(listed["result"]["cacheScope"], "public");
        for (wrong, status, code) in [
            (list().header("mcp-protocol-version", ""), 400, -32_020),
            (list().header("mcp-protocol-version", "2025-11-25"), 400, -32_020),
            (list().header("mcp-method", ""), 400, -32_020),
            (list().header("mcp-method", "tools/call"), 400, -32_020),
            (shell("true").header("mcp-name", "other"), 400, -32_020),
            (shell("true").header("mcp-name", ""), 400, -32_020),
            (message("no/such", json!({})), 404, -32_601),
            (message("ping", json!({})), 404, -32_601),
            (message("initialize", json!({ "protocolVersion": 7 })), 200, -32_602),
            (message("tools/call", json!({ "name": "no_such_tool" })), 400, -32_602),
            (message("resources/read", json!({ "uri": "atoll://nothing" })), 400, -32_602),
        ] {
            let (got, answer) = wrong.send(&client).await;
            assert_eq!(
                (got, &answer["error"]["code"]),
                (status, &json!(code)),
                "{answer} for {}",
                wrong.body
            );
            assert_eq!(answer["id"], 7, "{answer}");
        }
        let mut future = list().header("mcp-protocol-version", "2099-01-01");
        future.body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
        let (status, answer) = future.send(&client).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!(-32_022)), "{answer}");
        assert!(answer["error"]["data"]["supported"].as_array().unwrap().contains(&json!(NOW)), "{answer}");
        wrong_http(&client).await;
        old_clients(&client).await;
    });
}

/// What is wrong before there is a message.
async fn wrong_http(client: &Client) {
    let send = async |method: Method, fields: &[(&str, &str)], body: &str, key: &str| {
        let mut request = client.with_key(key).raw(method, "/mcp").body(body.to_owned());
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let json_type = ("content-type", "application/json");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let key = client.key();
    assert_eq!(send(Method::POST, &[json_type], ping, key).await.0, 200);
    let cases: [RawCase<'_>; 20] = [
        (&[json_type], ping, "", 401),
        (&[json_type], ping, "atl_0000000000000000000000000000000000000000", 401),
        (&[json_type, ("origin", "http://evil.example")], ping, key, 403),
        (&[json_type, ("origin", "null")], ping, key, 403),
        (&[json_type, ("origin", "http://evil.example")], ping, "", 403),
        (&[json_type, ("origin", "http://127.0.0.1:7070")], ping, key, 200),
        // A name of somebody else that leads here makes a page of the same origin.
        (&[json_type, ("host", "evil.example"), ("origin", "http://evil.example")], ping, key, 403),
        (&[json_type, ("host", "evil.example:7070")], ping, key, 403),
        (&[json_type, ("host", "localhost:7070"), ("origin", "http://localhost:7070")], ping, key, 200),
        (&[json_type, ("accept", "text/html")], ping, key, 406),
        (&[("content-type", "text/plain")], ping, key, 415),
        (&[], ping, key, 415),
        (&[json_type], "{", key, 400),
        (&[json_type], "", key, 400),
        (&[json_type], r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, key, 400),
        (&[json_type], r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, key, 400),
        (&[json_type, ("mcp-protocol-version", "1999-01-01")], ping, key, 400),
        (&[json_type], r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, key, 202),
        (&[json_type], r#"{"jsonrpc":"2.0","method":"no/such"}"#, key, 202),
        (&[json_type], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, key, 202),
    ];
    for (fields, body, key, status) in cases {
        let (got, text) = send(Method::POST, fields, body, key).await;
        assert_eq!(got, status, "{fields:?} {body}: {text}");
        if status >= 400 {
            let error: Value = serde_json::from_str(&text).unwrap();
            let names_none = error["id"].is_null() || error["id"] == 1;
            assert!(error["error"]["code"].is_i64() && names_none, "{text}");
        }
    }
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        assert_eq!(send(method.clone(), &[json_type], "", key).await.0, 405, "{method}");
    }
    let large =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":"{}"}}}}"#, "x".repeat(11 << 20));
    assert_eq!(send(Method::POST, &[json_type], &large, key).await.0, 413);
}

/// `initialize` agrees on every old revision; a client keeps its sandbox by the session that it was given.
async fn old_clients(client: &Client) {
    let send = async |body: Value, session: Option<&str>| {
        let mut request = client.raw(Method::POST, "/mcp").json(&body);
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        let answer = request.send().await.unwrap();
        let session = answer.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
        (session, answer.json::<Value>().await.unwrap())
    };
    let initialize = |version: &str, name: &str| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": version,
            "capabilities": {}, "clientInfo": { "name": name, "version": "1" } } })
    };
    for (asked, agreed) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        (NOW, "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let (_, answer) = send(initialize(asked, "old"), None).await;
        assert_eq!(answer["result"]["protocolVersion"], agreed, "{answer}");
        assert!(answer["result"].get("resultType").is_none(), "{answer}");
    }
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "shell", "arguments": { "command": "true" } } });
    let mut sandboxes = Vec::new();
    for name in ["one", "two", "one"] {
        let (session, _) = send(initialize("2025-06-18", name), None).await;
        let (_, answer) = send(call.clone(), session.as_deref()).await;
        sandboxes.push(answer["result"]["structuredContent"]["sandbox"].as_str().unwrap().to_owned());
    }
    assert_ne!(sandboxes[0], sandboxes[1]);
    assert_eq!(sandboxes[0], sandboxes[2]);
    let unknown = send(json!({ "jsonrpc": "2.0", "id": 3, "method": "no/such" }), None).await.1;
    assert_eq!(unknown["error"]["code"], -32_601, "{unknown}");
}

/// A request or notification of an older revision, in a session.
async fn old_message(client: &Client, session: &str, body: Value) -> (u16, String) {
    let request = client.raw(Method::POST, "/mcp").json(&body).header("mcp-session-id", session);
    let answer = request.header("accept", "application/json, text/event-stream").send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[test]
fn a_call_ends_its_command_when_it_is_cancelled_or_its_client_goes_away() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (_, first) = shell("true").send(&client).await;
        let sandbox = first["result"]["structuredContent"]["sandbox"].as_str().unwrap().to_owned();
        let runs = async |mark: &str| {
            let seen = client.sh(&sandbox, &format!("ps -o args | grep '^sleep {mark}' | wc -l")).await;
            seen.text().trim() != "0"
        };
        let call = |mark: &str, id: u32| {
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "shell",
                "arguments": { "sandbox": sandbox, "command": format!("sleep {mark}") } } })
        };
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
        let start = |mark: &'static str, session: &'static str| {
            let (own, body) = (client.clone(), call(mark, 7));
            tokio::spawn(async move { old_message(&own, session, body).await })
        };
        let until_runs =
            async |mark: &str| until("the command runs", async || runs(mark).await.then_some(())).await;
        let left = start("4001", "a.1");
        until_runs("4001").await;
        left.abort();
        until("the command has ended", async || (!runs("4001").await).then_some(())).await;
        let task = start("4002", "a.1");
        until_runs("4002").await;
        // Another key and another session of the same key cannot cancel it; nor can a message without a session.
        let stranger = w.tenant("stranger").await;
        for (who, session) in [(&stranger, "a.1"), (&client, "a.2"), (&client, "")] {
            assert_eq!(old_message(who, session, cancel.clone()).await.0, 202);
        }
        assert!(runs("4002").await, "a stranger cancelled it");
        assert_eq!(old_message(&client, "a.1", cancel).await.0, 202);
        let (_, answer) = task.await.unwrap();
        assert!(answer.contains("the request was cancelled"), "{answer}");
        until("the command has ended", async || (!runs("4002").await).then_some(())).await;
    });
}

/// `atoll mcp` as a program on pipes.
struct StdioClient {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl StdioClient {
    fn start(w: &World, client: &Client) -> Self {
        let mut command = w.command();
        command.arg("mcp").env("ATOLL_API_KEY", client.key());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    fn ask(&mut self, line: &str) -> Value {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    fn end(mut self) -> bool {
        drop(self.stdin.take());
        self.child.wait().unwrap().success()
    }
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"shell","arguments":{"command":"true"}}}"#;

#[test]
fn every_stdio_process_has_its_own_sandbox_and_deletes_it() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let (mut one, mut two) = (StdioClient::start(w, &client), StdioClient::start(w, &client));
        let sandbox =
            |answer: Value| answer["result"]["structuredContent"]["sandbox"].as_str().unwrap().to_owned();
        let first = sandbox(one.ask(CALL));
        assert_eq!(first, sandbox(one.ask(CALL)));
        assert_ne!(first, sandbox(two.ask(CALL)));
        // Forks of it, and snapshots of both, end with it.
        let call = |tool: &str, arguments: Value| {
            message("tools/call", json!({ "name": tool, "arguments": arguments })).body.to_string()
        };
        let forked = one.ask(&call("sandbox_fork", json!({ "count": 2 })));
        let fork = forked["result"]["structuredContent"]["items"][0]["sandbox"].clone();
        assert!(fork.is_string(), "{forked}");
        for of in [json!({}), json!({ "sandbox": fork, "name": "kept" })] {
            let taken = one.ask(&call("snapshot", of));
            assert_eq!(taken["result"]["isError"], json!(false), "{taken}");
        }
        assert_eq!(one.ask("nonsense")["error"]["code"], -32_700);
        assert_eq!(one.ask("[]")["error"]["code"], -32_600);
        assert_eq!(one.ask(r#"{"jsonrpc":"2.0","id":"x","method":"no/such"}"#)["id"], "x");
        let long = message("resources/read", json!({ "uri": "x".repeat(200_000) })).body;
        assert_eq!(one.ask(&long.to_string())["error"]["code"], -32_602);
        assert!(one.end() && two.end());
        assert_eq!(client.get("/v1/sandboxes").await.ok()["items"], json!([]));
        assert_eq!(client.get("/v1/threads").await.ok()["items"], json!([]));
        assert_eq!(client.get("/v1/snapshots").await.ok()["items"], json!([]));
        let stranger = client.with_key("atl_0000000000000000000000000000000000000000");
        let mut refused = StdioClient::start(w, &stranger);
        let answer = refused.ask(CALL);
        assert_eq!(
            (&answer["id"], answer["error"]["data"]["code"].as_str()),
            (&json!(2), Some("unauthenticated"))
        );
        assert!(refused.end());
    });
}

#[test]
fn a_client_s_own_sandbox_is_not_paused_for_ever() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let call = |tool: &str| message("tools/call", json!({ "name": tool, "arguments": {} }));
        let timers = async |id: &str| {
            let shown = client.get(&format!("/v1/sandboxes/{id}")).await.ok();
            (shown["phase"].clone(), shown["timeout_s"].clone(), shown["on_timeout"].clone())
        };
        let (_, made) = shell("true").send(&client).await;
        let id = made["result"]["structuredContent"]["sandbox"].as_str().unwrap().to_owned();
        for wakes in [call("sandbox_resume"), shell("true")] {
            let (_, paused) = call("sandbox_pause").send(&client).await;
            assert_eq!(paused["result"]["structuredContent"]["phase"], "paused", "{paused}");
            assert_eq!(timers(&id).await, (json!("paused"), json!(86_400), json!("stop")));
            let (_, woken) = wakes.send(&client).await;
            assert_eq!(woken["result"]["isError"], json!(false), "{woken}");
            assert_eq!(timers(&id).await.1, Value::Null, "it is in use again");
        }
        let other = client.post("/v1/sandboxes", json!({})).await.ok()["id"].as_str().unwrap().to_owned();
        let pause = json!({ "name": "sandbox_pause", "arguments": { "sandbox": other } });
        message("tools/call", pause).send(&client).await;
        assert_eq!(timers(&other).await.1, Value::Null, "only the client's own sandbox gets a limit");
        let own = json!({ "timeout_s": 86_400, "on_timeout": "stop" });
        client.patch(&format!("/v1/sandboxes/{id}"), own).await.ok();
        shell("true").send(&client).await;
        assert_eq!(
            timers(&id).await.1,
            json!(86_400),
            "the user's own lifetime stays, with the same numbers too"
        );
    });
}

/// How many clients there are at once.
const MANY: usize = 100;

#[test]
fn a_hundred_clients_at_once_each_have_their_own_sandbox() {
    // What they may use together is more than a small machine has.
    let options = Options::default().env("ATOLL_OVERCOMMIT", "1000").env("ATOLL_DISK_OVERCOMMIT", "1000");
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let calls = (0..MANY).map(|number| {
            let client = client.clone();
            async move {
                let mut call = shell("echo $RANDOM > mine; cat mine");
                call.body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] =
                    json!(format!("client {number}"));
                let mut seen = Vec::new();
                for _ in 0..3 {
                    let (status, answer) = call.send(&client).await;
                    let value = &answer["result"]["structuredContent"];
                    assert_eq!((status, &value["exit_code"]), (200, &json!(0)), "{answer}");
                    seen.push(value["sandbox"].as_str().unwrap().to_owned());
                }
                assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
                seen.swap_remove(0)
            }
        });
        let mut sandboxes = futures::future::join_all(calls).await;
        sandboxes.sort();
        sandboxes.dedup();
        assert_eq!(sandboxes.len(), MANY);
    });
}
