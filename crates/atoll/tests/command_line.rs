//! The real binary with a scripted server: its requests, its output and its exit status. Real sandboxes are tested in
//! `tests/`.

#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]

mod commands;
mod errors;
mod keys;
mod lifecycle;
mod mcp;
mod network;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

const ID: &str = "abcdefghijklmnopqrst";

/// A received request.
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

/// The answer with the fields that a real server sends and a script omits.
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
            json!({"tenant": "t", "sandbox": ID, "provider": "container", "state": "ready", "memory": false,
            "template_version": "v", "env_names": [], "user": "user", "disk_mib": 2048, "pids": 256,
            "network": "allow-all", "bytes": 0, "stood_still_us": 0})
        }
        _ if path.starts_with("/v1/secrets") || path.starts_with("/v1/keys") => {
            json!({"created_at": "2026-01-01T00:00:00Z"})
        }
        _ if path.starts_with("/v1/threads") => json!({"items": [], "thread": "t/1", "tenant": "t",
            "provider": "container", "sandbox": null, "phase": null, "created_at": "2026-01-01T00:00:00Z"}),
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

/// A server whose commands give these events.
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
