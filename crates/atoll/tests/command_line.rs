//! The real binary against a scripted server: what is sent, what is printed where, and with which status it ends.
//! What real sandboxes do is tested in `tests/`.

#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

const ID: &str = "abcdefghijklmnopqrst";

/// One request as it came.
#[derive(Debug, Clone)]
struct Request {
    line: String,
    key: Option<String>,
    body: Vec<u8>,
}

impl Request {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// An answer: status, content type, body.
type Answer = (u16, &'static str, String);

struct Server {
    url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    data: tempfile::TempDir,
}

impl Server {
    fn start(script: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (script, log) = (Arc::new(script), Arc::clone(&seen));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                std::thread::spawn(move || while answer(&stream, &*script, &log).is_some() {});
            }
        });
        let data = tempfile::tempdir().expect("temporary folder");
        std::fs::write(data.path().join("admin.key"), "atl_secret\n").expect("writable");
        Self { url, seen, data }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
        command
            .args(words)
            .env_clear()
            .env("ATOLL_URL", &self.url)
            .env("ATOLL_DATA", self.data.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the binary runs")
    }

    fn seen(&self, line: &str) -> Vec<Request> {
        let seen = self.seen.lock().expect("no test panicked here");
        seen.iter().filter(|request| request.line.starts_with(line)).cloned().collect()
    }
}

fn answer(stream: &TcpStream, script: &dyn Fn(&Request) -> Answer, log: &Mutex<Vec<Request>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let (mut length, mut chunked, mut key) = (0, false, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let (name, value) = match header.trim().split_once(": ") {
            Some((name, value)) => (name.to_ascii_lowercase(), value),
            None => break,
        };
        match name.as_str() {
            "content-length" => length = value.parse().ok()?,
            "transfer-encoding" => chunked = value == "chunked",
            "authorization" => key = Some(value.to_owned()),
            _ => {}
        }
    }
    let body = if chunked { chunks(&mut reader)? } else { exactly(&mut reader, length)? };
    let request = Request { line: line.trim().trim_end_matches(" HTTP/1.1").to_owned(), key, body };
    let (status, kind, mut text) = script(&request);
    if status < 300 && kind == "application/json" {
        text = completed(&request.line, &text);
    }
    log.lock().expect("no test panicked here").push(request);
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nx-request-id: req-1\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    let mut stream = stream;
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes())).ok()
}

/// The answer with the fields that a real server sends and a script leaves out.
fn completed(line: &str, text: &str) -> String {
    let Ok(mut answer) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    let path = line.split([' ', '?']).nth(1).unwrap_or_default();
    let rest = match path {
        "/health" => json!({"status": "ok", "version": "0.1.0"}),
        "/v1/events" => json!({"tenant": "t"}),
        "/v1/sandboxes" if line.starts_with("GET") && !answer["items"].is_array() => json!({"items": []}),
        "/v1/templates" => {
            json!({"version": "v", "tags": [], "aliases": [], "public": false, "kind": "rootfs",
            "made_from": "built-in", "user": "user", "workdir": "/", "env": {}, "sudo": false, "warm": false,
            "labels": {}, "notes": [], "created_at": "2026-01-01T00:00:00Z"})
        }
        _ if path.ends_with("/egress/policy") => json!({}),
        _ if path.ends_with("/egress") => {
            json!({"at": "2026-01-01T00:00:00Z", "what": "dns", "sent": 0, "received": 0})
        }
        _ if path.ends_with("/exec") => {
            json!({"timed_out": false, "truncated": false, "pid": 7, "duration_ms": 1})
        }
        _ if path.contains("/files") => {
            json!({"name": "x", "path": "/x", "kind": "file", "size": 0, "mode": "0644",
            "owner": "user", "group": "user", "modified_at": "2026-01-01T00:00:00Z"})
        }
        _ if path.contains("/snapshots") => {
            json!({"tenant": "t", "sandbox": ID, "state": "ready", "memory": false,
            "template_version": "v", "env_names": [], "user": "user", "disk_mib": 2048, "pids": 256,
            "network": "allow-all", "bytes": 0, "stood_still_us": 0})
        }
        _ if path.starts_with("/v1/secrets") || path.starts_with("/v1/keys") => {
            json!({"created_at": "2026-01-01T00:00:00Z"})
        }
        _ if path.starts_with("/v1/threads") => json!({"items": []}),
        _ => json!({"tenant": "t", "env_names": [], "private_env": [], "provider": "container",
            "template_version": "v", "user": "user", "disk_mib": 2048, "pids": 256, "network": "allow-all",
            "storage": "disk", "mounts": [], "intent": "run", "reason": {"code": "completed"}, "generation": 1,
            "on_timeout": "delete", "timeout_counts": "always", "on_exit": "keep", "wake": "any", "public": false,
            "phase_at": "2026-01-01T00:00:00Z"}),
    };
    let list = ["items", "sandboxes"].into_iter().find(|name| answer[*name].is_array());
    let objects = match list {
        Some(name) => answer[name].as_array_mut().expect("an array").iter_mut().collect(),
        None => vec![&mut answer],
    };
    for object in objects.into_iter().filter_map(Value::as_object_mut) {
        for (field, value) in rest.as_object().expect("an object") {
            object.entry(field).or_insert_with(|| value.clone());
        }
    }
    answer.to_string()
}

fn exactly(reader: &mut impl Read, length: usize) -> Option<Vec<u8>> {
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok().map(|()| body)
}

fn chunks(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        reader.read_line(&mut size).ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        body.extend(exactly(reader, size)?);
        exactly(reader, 2)?;
        if size == 0 {
            return Some(body);
        }
    }
}

fn ok(value: Value) -> Answer {
    (200, "application/json", value.to_string())
}

fn refused(status: u16, code: &str, message: &str) -> Answer {
    let body = json!({"code": code, "message": message, "hint": null, "request_id": "req-1"});
    (status, "application/json", body.to_string())
}

fn sandbox() -> Value {
    json!({"id": ID, "name": "box", "template": "host", "phase": "running", "cpu": 1.0, "memory_mib": 512,
           "workdir": "/home/user", "labels": {}, "created_at": "2026-01-01T00:00:00Z", "timeout_at": null})
}

/// A server whose commands do what the events say.
fn with_events(events: &'static str) -> Server {
    Server::start(move |request| match request.line.as_str() {
        "GET /health" => ok(json!({"status": "ok", "version": "0.1.0"})),
        line if line.ends_with("/exec/stream") || line.ends_with("/code/stream") => {
            (200, "text/event-stream", events.to_owned())
        }
        line if line.starts_with("DELETE") && line.ends_with("/stdin") => (204, "", String::new()),
        line if line.ends_with("/stdin") => (204, "", String::new()),
        line if line.starts_with("POST /v1/sandboxes?") => (201, "application/json", sandbox().to_string()),
        _ => ok(sandbox()),
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn run_passes_streams_and_status_through_and_deletes() {
    let server = with_events(
        "event: start\ndata: {\"pid\":7}\n\nevent: stdout\ndata: {\"data\":\"42\\n\"}\n\n\
         event: stderr\ndata: {\"data_base64\":\"/w==\"}\n\nevent: exit\ndata: {\"exit_code\":3}\n\n",
    );
    let output = server.run(&["run", "--memory", "64m", "--", "python3", "-c", "print(6*7)"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "42\n"));
    assert_eq!(output.stderr, b"\xff");
    let created = &server.seen("POST /v1/sandboxes?wait=1")[0];
    assert_eq!(created.json()["memory_mib"], 64);
    assert_eq!(created.key.as_deref(), Some("Bearer atl_secret"));
    let ran = &server.seen(&format!("POST /v1/sandboxes/{ID}/exec/stream"))[0];
    assert_eq!(ran.json(), json!({"argv": ["python3", "-c", "print(6*7)"]}));
    assert_eq!(server.seen("DELETE").len(), 1);
}

#[test]
fn timeouts_and_signals_have_the_status_of_a_shell() {
    for (exit, want) in
        [("{\"exit_code\":124,\"timed_out\":true}", 124), ("{\"exit_code\":137,\"signal\":9}", 137)]
    {
        let events = format!("event: start\ndata: {{\"pid\":7}}\n\nevent: exit\ndata: {exit}\n\n");
        let server = with_events(events.leak());
        assert_eq!(server.run(&["run", "--timeout", "1s", "sleep", "9"]).status.code(), Some(want));
    }
}

#[test]
fn our_own_failures_are_125_and_say_what_to_try() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /health" => ok(json!({})),
        _ => refused(503, "no_capacity", "this node has no capacity"),
    });
    let output = server.run(&["run", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(text(&output.stderr), "error: this node has no capacity\n   id: req-1 (no_capacity)\n");
    assert_eq!(server.run(&["run", "--memory", "lots", "true"]).status.code(), Some(125));
    assert_eq!(server.run(&["--json", "run", "--memory", "lots", "true"]).status.code(), Some(125));
}

#[test]
fn a_missing_command_is_127_and_one_that_cannot_start_126() {
    let server = Server::start(|_| refused(400, "invalid_argument", "command not found: 'nope'"));
    assert_eq!(server.run(&["exec", "box", "nope"]).status.code(), Some(127));
    let server = Server::start(|_| refused(400, "invalid_argument", "'/etc': permission denied"));
    assert_eq!(server.run(&["exec", "box", "/etc"]).status.code(), Some(126));
}

#[test]
fn piped_input_is_sent_and_ended() {
    let server = with_events(
        "event: start\ndata: {\"pid\":7}\n\n: a while passes\n\nevent: exit\ndata: {\"exit_code\":0}\n\n",
    );
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(b"hello").expect("writable");
    std::io::Seek::rewind(&mut file).expect("seekable");
    let output = server.command(&["exec", "-i", "box", "cat"]).stdin(file).output().expect("runs");
    assert!(output.status.success());
    let ran = &server.seen("POST /v1/sandboxes/box/exec/stream")[0];
    assert_eq!(ran.json(), json!({"argv": ["cat"], "stdin": "hello"}));
}

#[test]
fn exec_without_i_leaves_stdin_to_the_loop_around_it() {
    let server = with_events("event: start\ndata: {\"pid\":7}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n");
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(b"one\ntwo\n").expect("writable");
    std::io::Seek::rewind(&mut file).expect("seekable");
    let shared = file.try_clone().expect("a second handle with the same position");
    let output = server.command(&["exec", "box", "cat"]).stdin(shared).output().expect("runs");
    assert!(output.status.success());
    assert_eq!(server.seen("POST /v1/sandboxes/box/exec/stream")[0].json(), json!({"argv": ["cat"]}));
    let mut left = String::new();
    file.read_to_string(&mut left).expect("readable");
    assert_eq!(left, "one\ntwo\n", "exec must not read what it was not told to");
}

#[test]
fn code_prints_where_things_belong_and_ends_with_its_status() {
    let server = with_events(
        "event: start\ndata: {\"context\":\"c\",\"execution_count\":1}\n\n\
         event: stdout\ndata: {\"data\":\"out\\n\"}\n\nevent: stderr\ndata: {\"data\":\"err\\n\"}\n\n\
         event: result\ndata: {\"is_main\":true,\"text\":\"42\",\"png\":\"iVBOR\"}\n\n\
         event: exception\ndata: {\"name\":\"E\",\"value\":\"v\",\"traceback\":\"\"}\n\n\
         event: end\ndata: {\"timed_out\":false}\n\n",
    );
    let done = server.run(&["code", "box", "-l", "js", "-e", "A=1", "--timeout", "5s", "--", "6*7"]);
    assert_eq!(
        (done.status.code(), text(&done.stdout), text(&done.stderr)),
        (Some(1), "out\n42\n", "err\nE: v\n")
    );
    let sent = server.seen("POST /v1/sandboxes/box/code/stream")[0].json();
    let body = json!({"code": "6*7", "language": "javascript", "env": {"A": "1"}, "timeout_s": 5.0});
    assert_eq!(sent, body);
    server.run(&["code", "box", "--context", "c", "x"]);
    let sent = server.seen("POST /v1/sandboxes/box/code/stream")[1].json();
    assert_eq!(sent, json!({"code": "x", "context": "c"}));

    let cut = with_events("event: stdout\ndata: {\"data\":\"half\"}\n\n").run(&["code", "box", "x"]);
    assert_eq!((cut.status.code(), text(&cut.stdout)), (Some(125), "half"));
    let lost = "event: error\ndata: {\"code\":\"sandbox_unavailable\",\"message\":\"gone\"}\n\n";
    let lost = with_events(lost).run(&["code", "box", "x"]);
    assert!(lost.status.code() == Some(125) && text(&lost.stderr).contains("gone"), "{lost:?}");
}

#[test]
fn wrong_usage_is_json_where_json_was_asked_for() {
    let server = Server::start(|_| ok(Value::Null));
    for words in [&["--json", "create", "--no-such-option"][..], &["cp", "--json", "one"]] {
        let output = server.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(said["code"], "usage", "{said}");
        assert!(
            said["message"].as_str().is_some_and(|text| !text.is_empty() && !text.contains("error:")),
            "{said}"
        );
    }
}

#[test]
fn help_is_a_command_too() {
    let server = Server::start(|_| ok(Value::Null));
    for words in [&["help"][..], &["help", "cp"], &["help", "template", "make"]] {
        let output = server.run(words);
        assert!(output.status.success() && text(&output.stdout).contains("Usage:"), "{words:?}");
    }
}

#[test]
fn a_built_in_template_that_is_not_made_is_made_and_not_pulled() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /v1/templates" => ok(json!({"items": [{"name": "host"}]})),
        _ => refused(404, "template_not_found", "there is no template code-interpreter"),
    });
    let output = server.run(&["create", "-T", "code-interpreter"]);
    let said = text(&output.stderr);
    assert!(said.contains("atoll template make code-interpreter") && !said.contains("pull"), "{said}");
}

#[test]
fn with_json_a_command_is_one_object() {
    let result = json!({"exit_code": 4, "signal": null, "timed_out": false, "stdout": "x", "stderr": "",
        "truncated": false, "pid": 7, "duration_ms": 1, "of a newer server": true});
    let answer = result.clone();
    let server = Server::start(move |_| ok(answer.clone()));
    let output = server.run(&["--json", "exec", "box", "--", "sh", "-c", "exit 4"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).expect("JSON"), result);
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let server = Server::start(|_| refused(409, "phase_conflict", "it is stopped"));
    let output = server.run(&["inspect", "box", "--json"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    let said: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!((&said["code"], &said["request_id"]), (&json!("phase_conflict"), &json!("req-1")));
}

#[test]
fn an_unknown_name_gets_the_nearest_one() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /v1/sandboxes?limit=200" => ok(json!({"items": [sandbox()]})),
        _ => refused(404, "sandbox_not_found", "there is no sandbox bix"),
    });
    let output = server.run(&["inspect", "bix"]);
    assert!(text(&output.stderr).contains("did you mean box?"), "{}", text(&output.stderr));
}

#[test]
fn create_prints_one_object_or_only_the_id() {
    let server = with_events("");
    let output = server.run(&["create", "--name", "box", "--label", "a=b", "--json"]);
    let made: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(made["id"], ID);
    let output = server.run(&["create", "--timeout", "1h", "--", "python3", "-m", "http.server"]);
    assert_eq!(text(&output.stdout), format!("{ID}\n"));
    let sent = server.seen("POST /v1/sandboxes");
    assert_eq!(sent[0].json(), json!({"name": "box", "labels": {"a": "b"}}));
    assert_eq!(sent[1].json(), json!({"timeout_s": 3600, "command": ["python3", "-m", "http.server"]}));
}

#[test]
fn lists_follow_every_page() {
    let server = Server::start(|request| {
        let next = if request.line.contains("cursor=") { Value::Null } else { json!("more") };
        ok(json!({"items": [sandbox()], "next_cursor": next}))
    });
    let output = server.run(&["ls", "-q"]);
    assert_eq!(text(&output.stdout), format!("{ID}\n{ID}\n"));
}

#[test]
fn events_follow_every_page() {
    let server = Server::start(|request| {
        let first = if request.line.contains("after=1000") { 1_001 } else { 1 };
        let last = if first == 1 { 1_000 } else { 1_002 };
        let page: Vec<Value> = (first..=last)
            .map(|seq| json!({"seq": seq, "sandbox": ID, "at": "2026-01-01T00:00:00Z", "kind": "out_of_memory"}))
            .collect();
        ok(json!({ "items": page }))
    });
    let output = server.run(&["events"]);
    assert_eq!(text(&output.stdout).lines().count(), 1_002);
}

#[test]
fn without_a_key_the_hint_says_where_one_was_looked_for() {
    let server = Server::start(|_| {
        let body = json!({"code": "unauthenticated", "message": "this request needs a key", "hint": "send a header"});
        (401, "application/json", body.to_string())
    });
    std::fs::remove_file(server.data.path().join("admin.key")).expect("it was there");
    let output = server.run(&["ls"]);
    let said = text(&output.stderr);
    assert!(
        said.contains("ATOLL_API_KEY") && said.contains(&*server.data.path().to_string_lossy()),
        "{said}"
    );
}

#[test]
fn a_mistyped_option_starts_nothing() {
    let server = with_events("");
    assert_eq!(server.run(&["run", "--memry", "64m", "true"]).status.code(), Some(125));
    assert_eq!(server.run(&["create", "--nam", "box"]).status.code(), Some(2));
    assert!(server.seen("").is_empty());
}

#[test]
fn a_terminal_without_one_is_our_failure() {
    let server = with_events("");
    assert_eq!(server.run(&["exec", "-t", "box", "sh"]).status.code(), Some(125));
    assert_eq!(server.run(&["sh", "box"]).status.code(), Some(2));
}

#[test]
fn rm_goes_on_past_a_failure_and_says_so_in_its_status() {
    let server = Server::start(|request| {
        if request.line.contains("gone") { refused(404, "sandbox_not_found", "gone") } else { ok(sandbox()) }
    });
    let output = server.run(&["rm", "gone", "box"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "box\n"));
    assert_eq!(server.run(&["rm", "-f", "gone", "box"]).status.code(), Some(0));
    assert_eq!(server.run(&["rm", "--all"]).status.code(), Some(0), "nothing to ask about");
}

#[test]
fn verbs_of_life_send_what_was_said() {
    let server = Server::start(|request| {
        if request.line.contains("/fork") {
            return ok(json!({"sandboxes": [sandbox()], "memory": false, "memory_refused": "no CRIU here"}));
        }
        ok(sandbox())
    });
    for (words, line, body) in [
        (&["pause", "box"][..], "POST /v1/sandboxes/box/pause", Value::Null),
        (&["pause", "--memory", "disk", "a"], "POST /v1/sandboxes/a/pause", json!({"memory": "disk"})),
        (&["resume", "box"], "POST /v1/sandboxes/box/resume", Value::Null),
        (&["resize", "box", "--memory", "1g"], "PATCH /v1/sandboxes/box", json!({"memory_mib": 1_024})),
        (&["snapshot", "box"], "POST /v1/sandboxes/box/snapshots", json!({})),
        (
            &["snapshot", "create", "c", "--name", "n", "--memory"],
            "POST /v1/sandboxes/c/snapshots",
            json!({"name": "n", "memory": true}),
        ),
        (&["snapshot", "verify", "n"], "POST /v1/snapshots/n/verify", Value::Null),
        (&["snapshot", "rm", "n"], "DELETE /v1/snapshots/n", Value::Null),
        (&["rollback", "box", "n"], "POST /v1/sandboxes/box/rollback", json!({"snapshot": "n"})),
        (&["fork", "box", "-n", "2"], "POST /v1/sandboxes/box/fork", json!({"count": 2})),
        (&["archive", "box"], "POST /v1/sandboxes/box/archive", Value::Null),
        (&["restore", "box"], "POST /v1/sandboxes/box/restore", Value::Null),
        (&["restore", "--from", "k"], "POST /v1/sandboxes?wait=1", json!({"archive": "k"})),
        (
            &["hold", "box", "90m", "--reason", "r"],
            "POST /v1/sandboxes/box/hold",
            json!({"for_s": 5_400, "reason": "r"}),
        ),
        (&["hold", "box", "--release"], "DELETE /v1/sandboxes/box/hold", Value::Null),
        (&["extend", "box", "1h"], "POST /v1/sandboxes/box/extend", json!({"seconds": 3_600})),
        (&["thread", "end", "t/1"], "DELETE /v1/threads/t%2F1", Value::Null),
    ] {
        let output = server.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        let seen = server.seen(line);
        assert_eq!(seen.first().map(Request::json), Some(body), "{words:?}");
    }
    let output = server.run(&["fork", "box", "--memory"]);
    assert_eq!(text(&output.stdout), format!("{ID}\n"));
    assert!(text(&output.stderr).contains("no CRIU here"), "{}", text(&output.stderr));
    assert_eq!(server.run(&["resize", "box"]).status.code(), Some(2), "nothing to change");
}

#[test]
fn work_that_outlasts_the_servers_patience_is_waited_for() {
    let looks = std::sync::atomic::AtomicU32::new(0);
    let server = Server::start(move |request| {
        if request.line.starts_with("POST") {
            return refused(504, "deadline_exceeded", "it takes long; the work goes on");
        }
        let first = looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        let mut shown = sandbox();
        shown["phase"] = json!(if first { "archiving" } else { "archived" });
        ok(shown)
    });
    let output = server.run(&["archive", "box"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "box\n"), "{}", text(&output.stderr));
    assert!(server.seen("GET").len() >= 2);
}

#[test]
fn several_are_gone_through_past_a_failure() {
    let server = Server::start(|request| {
        if request.line.contains("/b/") { refused(409, "asleep", "no") } else { ok(sandbox()) }
    });
    let output = server.run(&["pause", "a", "b", "c"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "a\nc\n"));
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
    let server = Server::start(|_| {
        let many: Vec<Value> = std::iter::repeat_with(sandbox).take(5_000).collect();
        ok(json!({"items": many, "next_cursor": null}))
    });
    let mut child = server
        .command(&["ls"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), ""));
}

#[test]
fn no_server_is_said_with_the_way_to_start_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    let output = command.env_clear().args(["--url", "http://127.0.0.1:1", "ls"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("atoll serve"), "{}", text(&output.stderr));
}

#[test]
fn the_admin_key_is_not_shown_to_another_machine() {
    let server = with_events("");
    // It leads here, and says nothing about where it leads.
    let url = server.url.replace("127.0.0.1", "0.0.0.0");
    let output = server.command(&["--url", &url, "inspect", "box"]).output().expect("runs");
    let seen = server.seen("GET");
    assert!(!seen.is_empty() && seen.iter().all(|request| request.key.is_none()), "{seen:?} {output:?}");
}

#[test]
fn files_go_in_and_come_out() {
    let server = Server::start(|request| {
        let line = request.line.as_str();
        if line.contains("/files/stat?path=%2Ftmp%2Fx") {
            ok(json!({"name": "x", "path": "/tmp/x", "kind": "file", "size": 2, "mode": "4750"}))
        } else if line.contains("/files/stat") {
            refused(404, "file_not_found", "no such file")
        } else if line.starts_with("GET") && line.contains("/files?path=") {
            (200, "application/octet-stream", "hi".to_owned())
        } else {
            ok(sandbox())
        }
    });
    let here = tempfile::tempdir().expect("temporary folder");
    let (source, target) = (here.path().join("in"), here.path().join("out"));
    std::fs::write(&source, "data").expect("writable");
    let source = source.to_str().expect("text");
    assert!(server.run(&["cp", source, "box:/tmp/new"]).status.success());
    let sent = &server.seen("PUT")[0];
    assert!(sent.line.contains("path=%2Ftmp%2Fnew") && sent.line.contains("mode=644"), "{}", sent.line);
    assert_eq!(sent.body, b"data");
    assert!(server.run(&["cp", "box:/tmp/x", target.to_str().expect("text")]).status.success());
    assert_eq!(std::fs::read(&target).expect("written"), b"hi");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&target).expect("there").permissions());
    assert_eq!(mode & 0o7777, 0o750);
    assert_eq!(text(&server.run(&["cp", "box:/tmp/x", "-"]).stdout), "hi");
    assert_eq!(server.run(&["cp", source, "elsewhere"]).status.code(), Some(2));
}

/// A server that has one sandbox with this policy, and says back what it was told.
fn with_network(network: Value) -> Server {
    let held = sandbox();
    Server::start(move |request| {
        let mut shown = held.clone();
        shown["network"] = network.clone();
        match request.line.as_str() {
            line if line.starts_with("POST /v1/sandboxes?") => (201, "application/json", shown.to_string()),
            _ => ok(shown),
        }
    })
}

#[test]
fn network_options_are_one_policy() {
    let server = with_network(json!("allow-all"));
    let policy = server.data.path().join("policy.json");
    std::fs::write(&policy, r#"{"mode": "custom", "allow_domains": ["a.com"]}"#).expect("writable");
    let file = policy.to_str().expect("text");
    let words =
        ["create", "--network", file, "--allow-domain", "b.com", "--inject", "c.com:X=1", "--up", "1m"];
    assert!(server.run(&words).status.success());
    assert_eq!(
        server.seen("POST /v1/sandboxes?")[0].json()["network"],
        json!({"mode": "custom", "allow_domains": ["a.com", "b.com"],
            "transforms": [{"domain": "c.com", "inject_headers": {"X": "1"}}], "limits": {"up_bytes_per_s": 1_048_576}})
    );
    let refused = server.run(&["create", "--network", "alow-all"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("alow-all"), "{}", text(&refused.stderr));
    let refused = server.run(&["run", "--network", "alow-all", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(server.seen("POST").len(), 1, "nothing was asked of the server");
}

#[test]
fn an_update_adds_to_what_a_sandbox_has_and_network_begins_anew() {
    let server = with_network(json!({"mode": "custom", "allow_domains": ["a.com"],
        "transforms": [{"domain": "a.com", "inject_headers": {"X": "…"}}]}));
    assert!(server.run(&["update", "box", "--allow-domain", "b.com"]).status.success());
    assert!(server.run(&["update", "box", "--network", "deny-all"]).status.success());
    assert!(
        server.run(&["update", "box", "--network", "custom", "--allow-domain", "b.com"]).status.success()
    );
    let sent: Vec<Value> =
        server.seen("PATCH /v1/sandboxes/box").iter().map(|r| r.json()["network"].clone()).collect();
    assert_eq!(
        sent,
        [
            json!({"mode": "custom", "allow_domains": ["a.com", "b.com"],
                "transforms": [{"domain": "a.com", "inject_headers": {"X": "…"}}]}),
            json!("deny-all"),
            json!({"mode": "custom", "allow_domains": ["b.com"]}),
        ]
    );
}

#[test]
fn the_egress_log_is_a_table_or_json_and_its_policy_a_file() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /v1/sandboxes/box/egress/policy" => ok(json!({"mode": "custom", "allow_domains": ["a.com"]})),
        line if line.contains("follow=1") => {
            let record = json!({"at": "2026-01-01T00:00:00Z", "what": "dns", "verdict": "refused", "name": "evil.com",
                "rule": "not in allow_domains", "sent": 0, "received": 0});
            let lost = json!({"at": "2026-01-01T00:00:00Z", "what": "lost", "verdict": "failed",
                "rule": "3 records were lost", "sent": 0, "received": 0});
            let events = format!("event: dns\ndata: {record}\n\nevent: lost\ndata: {lost}\n\n");
            (200, "text/event-stream", events)
        }
        _ => ok(
            json!({"items": [{"at": "2026-01-01T00:00:00Z", "what": "tls", "verdict": "allowed", "name": "a.com",
            "address": "203.0.113.7", "port": 443, "sent": 10, "received": 2048, "rule": "allow_domains: a.com"}]}),
        ),
    });
    let listed = server.run(&["egress", "box", "-n", "5", "--verdict", "allowed"]);
    let lines: Vec<&str> = text(&listed.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("a.com:443 (203.0.113.7)") && lines[1].contains("2 KiB"), "{lines:?}");
    assert_eq!(server.seen("GET /v1/sandboxes/box/egress?limit=5&verdict=allowed").len(), 1);
    let json_out = server.run(&["--json", "egress", "box"]);
    assert!(serde_json::from_slice::<Value>(&json_out.stdout).expect("JSON").is_array());
    let policy = server.run(&["egress", "box", "--policy"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&policy.stdout).expect("JSON"),
        json!({"mode": "custom", "allow_domains": ["a.com"]})
    );
    let followed = server.run(&["egress", "box", "-f"]);
    assert!(text(&followed.stdout).contains("refused  dns   evil.com"), "{}", text(&followed.stdout));
    assert!(text(&followed.stderr).contains("3 records were lost"), "{}", text(&followed.stderr));
}

#[test]
fn a_secret_comes_from_stdin_a_file_or_a_variable_and_is_never_printed() {
    let server = Server::start(|request| match request.line.as_str() {
        "POST /v1/secrets" => (201, "application/json", json!({"name": "A", "used_by": 0}).to_string()),
        "DELETE /v1/secrets/used" => refused(409, "secret_in_use", "sandbox x uses the secret used"),
        line if line.starts_with("DELETE") => (204, "", String::new()),
        _ => ok(json!({"name": "A", "used_by": 1})),
    });
    let mut child = server
        .command(&["secret", "create", "A"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("piped").write_all(b"canary\n").expect("written");
    let piped = child.wait_with_output().expect("it ends");
    assert_eq!((piped.status.code(), text(&piped.stdout)), (Some(0), "A\n"));
    let file = server.data.path().join("value");
    std::fs::write(&file, "canary").expect("writable");
    let from_file = server.run(&["secret", "rotate", "A", "--from-file", file.to_str().expect("text")]);
    let from_env = server
        .command(&["secret", "rotate", "A", "--from-env", "V"])
        .env("V", "canary")
        .output()
        .expect("runs");
    for output in [&piped, &from_file, &from_env] {
        assert!(output.status.success() && !text(&output.stdout).contains("canary"), "{output:?}");
    }
    assert_eq!(server.seen("POST /v1/secrets")[0].json(), json!({"name": "A", "value": "canary"}));
    let rotated = server.seen("PUT /v1/secrets/A");
    assert!(rotated.len() == 2 && rotated.iter().all(|r| r.json() == json!({"value": "canary"})));
    for words in [
        &["secret", "create", "A"][..],
        &["secret", "create", "A", "--from-env", "NOT_SET_AT_ALL"],
        &["secret", "create", "A", "--from-file", "/nowhere/at/all"],
    ] {
        assert_eq!(server.run(words).status.code(), Some(2), "{words:?}");
    }
    let removed = server.run(&["secret", "rm", "used", "B"]);
    assert_eq!((removed.status.code(), text(&removed.stdout)), (Some(1), "B\n"));
    assert!(text(&removed.stderr).contains("uses the secret"), "{}", text(&removed.stderr));
}

#[test]
fn a_run_that_learns_prints_the_policy_before_its_sandbox_goes() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /health" => ok(json!({"status": "ok"})),
        line if line.ends_with("/egress/policy") => {
            ok(json!({"allow_domains": ["pypi.org"], "mode": "custom"}))
        }
        line if line.contains("/egress?") => ok(json!({"items": [
            {"name": "evil.example", "rule": "tenant: not in allow_domains", "verdict": "refused"}]})),
        line if line.ends_with("/exec/stream") => (
            200,
            "text/event-stream",
            "event: start\ndata: {\"pid\":7}\n\nevent: exit\ndata: {\"exit_code\":3}\n\n".to_owned(),
        ),
        line if line.ends_with("/exec") => ok(json!({"exit_code": 3, "stdout": "", "stderr": ""})),
        _ => ok(sandbox()),
    });
    let output = server.run(&["run", "--learn", "--", "job"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), ""));
    assert!(said.contains("{\n  \"mode\": \"custom\",\n  \"allow_domains\": [\n    \"pypi.org\""), "{said}");
    assert!(said.contains("--network FILE"), "{said}");
    assert!(said.contains("evil.example (tenant: not in allow_domains)"), "{said}");
    let order: Vec<String> = server.seen("").into_iter().map(|request| request.line).collect();
    let at = |end: &str| order.iter().position(|line| line.contains(end)).expect("was asked");
    assert!(at("/egress/policy") < at("DELETE"), "{order:?}");

    let file = server.data.path().join("policy.json");
    let name = file.to_str().expect("text");
    let output = server.run(&["run", "--json", "--learn", "--policy-out", name, "--", "job"]);
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["learned"], json!({"allow_domains": ["pypi.org"], "mode": "custom"}));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("there")).expect("JSON");
    assert_eq!((written, output.status.code()), (result["learned"].clone(), Some(3)));
}

#[test]
fn a_key_for_an_sdk_is_a_new_one_and_the_admins_only_where_that_was_said() {
    let server = Server::start(|request| match request.line.as_str() {
        "POST /v1/keys" => {
            ok(json!({"id": "k1", "tenant": "default", "scope": "user", "secret": "atl_fresh"}))
        }
        _ => ok(json!({})),
    });
    let output = server.run(&["env", "leap0", "--with-key", "--proxy", "never"]);
    assert!(text(&output.stdout).contains("LEAP0_API_KEY='atl_fresh'"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("tenant default"), "{}", text(&output.stderr));
    assert_eq!(server.seen("POST /v1/keys")[0].json(), json!({"name": "env-leap0", "scope": "user"}));
    let output = server.run(&["env", "leap0", "--with-key", "--admin", "--proxy", "never"]);
    assert!(text(&output.stdout).contains("LEAP0_API_KEY='atl_secret'"));
    assert_eq!(server.seen("POST /v1/keys").len(), 1);
    assert!(!server.run(&["env", "leap0", "--admin"]).status.success());

    let of_tenant = Server::start(|_| refused(403, "forbidden", "only an admin makes keys"));
    let output = of_tenant.run(&["env", "e2b", "--with-key", "--proxy", "never"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("E2B_API_KEY='e2b_secret'"), "{shown}");
    assert!(text(&output.stderr).contains("the key that you use") && output.status.success());

    let stranger = Server::start(|_| refused(401, "unauthenticated", "the API key is not known"));
    let output = stranger.run(&["env", "e2b", "--with-key"]);
    let said = text(&output.stderr);
    assert!(said.contains("is not a key of") && text(&output.stdout) == "false\n", "{said}");
}

#[test]
fn a_slip_is_answered_with_what_was_meant() {
    let server = Server::start(|request| match request.line.as_str() {
        "POST /v1/secrets" => refused(409, "already_exists", "there is a secret A"),
        "PUT /v1/secrets/B" => refused(404, "secret_not_found", "there is no secret B"),
        "POST /v1/sandboxes/box/previews" => {
            refused(400, "invalid_request", "expires_s must be between 1 and 2592000 seconds")
        }
        line if line.starts_with("DELETE") => refused(404, "preview_not_found", "box has no preview x"),
        line if line.starts_with("GET /v1/tenants") => ok(json!({"items": []})),
        _ => refused(400, "invalid_request", "network.allow_domains[0] is not valid: no at line 1 column 58"),
    });
    let piped = |words: &[&str]| {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(b"s3cret").expect("writable");
        std::io::Seek::rewind(&mut file).expect("seekable");
        server.command(words).stdin(file).output().expect("runs")
    };
    for (output, hint) in [
        (piped(&["secret", "create", "A"]), "atoll secret rotate A"),
        (piped(&["secret", "rotate", "B"]), "atoll secret create B"),
        (server.run(&["secret", "create", "A", "hunter2-value"]), "--from-env"),
        (server.run(&["preview", "box", "80", "--expires", "60d"]), "30d"),
        (server.run(&["preview", "rm", "box", "x"]), "atoll preview ls box"),
        (server.run(&["tenant", "network", "acme"]), "atoll tenant ls"),
        (server.run(&["create", "--allow-domain", "203.0.113.7"]), "--allow-cidr"),
        (server.run(&["update", "box", "--allow-cidr", "a.com"]), "--allow-domain"),
    ] {
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(" hint:") && said.contains(hint), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let output = server.run(&["create", "--allow-domain", "http://x"]);
    let said = text(&output.stderr);
    assert!(said.contains("not valid: no\n") && !said.contains("line 1"), "{said}");
}
