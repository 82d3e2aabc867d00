//! Clients that ask and never read, bodies and heads that never end: the server's memory stays within its budget, other tenants are
//! answered meanwhile, and all of it is released afterwards. One server for all of them.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "the figures")]

use std::time::{Duration, Instant};

use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use futures::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const PLAIN: &str = "127.0.0.1:7070";
/// How many clients do not read.
const CLIENTS: usize = 24;
/// MiB beyond what the server had: the share of one tenant (256), and what a debug build needs beside it.
const BOUND_MIB: u64 = 450;
/// How long others may wait for an answer while a machine of two cores reads gigabytes.
const OTHERS_WAIT: Duration = Duration::from_secs(30);

/// A line of `/proc/PID/status`, in MiB.
fn status_mib(w: &World, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", w.server_pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Forgets the peak so far.
fn reset_peak(w: &World) {
    std::fs::write(format!("/proc/{}/clear_refs", w.server_pid()), "5").unwrap();
}

/// A connection with a small window, so that the server can write little that is not read.
async fn connect() -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(PLAIN.parse().unwrap()).await.unwrap()
}

fn request(method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &str) -> String {
    let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request and waits for the first byte of its answer, which stays unread.
async fn ask(request: String) -> TcpStream {
    let mut stream = connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(120), stream.readable()).await.expect("an answer").unwrap();
    stream
}

/// What stands before the body of the answer that a connection has.
async fn head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.windows(4).any(|four| four == b"\r\n\r\n") {
        let mut some = [0; 256];
        match tokio::time::timeout(Duration::from_secs(60), stream.read(&mut some)).await.expect("an answer")
        {
            Ok(0) | Err(_) => break,
            Ok(size) => read.extend_from_slice(&some[..size]),
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

struct Ground<'w> {
    world: &'w World,
    other: Client,
    others: String,
}

impl Ground<'_> {
    /// Holds what `attack` opens, looks at the server, and lets go.
    async fn holds(&self, what: &str, bound_mib: u64, attack: impl AsyncFnOnce() -> Vec<TcpStream>) {
        let before = status_mib(self.world, "VmRSS:");
        reset_peak(self.world);
        let begun = Instant::now();
        let held = attack().await;
        let since = Instant::now();
        let said = self.other.sh(&self.others, "echo here").await;
        let waited = since.elapsed();
        let (peak, pending) = (status_mib(self.world, "VmHWM:"), held.len());
        eprintln!(
            "{what}: {before} MiB became {peak} MiB in {:?}, {pending} held; others waited {waited:?}",
            begun.elapsed()
        );
        assert_eq!(said.text(), "here", "{what}: another tenant is not answered");
        assert!(waited < OTHERS_WAIT, "{what}: another tenant waited {waited:?}");
        assert!(peak < before + bound_mib, "{what}: {before} MiB became {peak} MiB");
        drop(held);
        let admin = self.world.admin();
        until(&format!("{what}: all is released"), async || {
            let page = admin.raw(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
            let held = |name: &str| page.lines().any(|line| line == format!("{name} 0"));
            (held("atoll_held_tenants_bytes") && held("atoll_held_strangers_bytes")).then_some(())
        })
        .await;
    }
}

#[test]
fn clients_that_never_read_or_never_end_do_not_fill_the_servers_memory() {
    raise_descriptors();
    run_with(Options::debian(), async |w| {
        let greedy = w.tenant("greedy").await;
        let other = w.tenant("other").await;
        let others = other.create(json!({})).await;
        let ground = Ground { world: w, other, others };
        let id = greedy.create(json!({})).await;
        let idle = status_mib(w, "VmRSS:");
        let bearer = format!("Bearer {}", greedy.key());
        let post = |path: &str, body: &Value| {
            let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
            request("POST", path, "localhost", &headers, &body.to_string())
        };
        let many = |path: String, body: Value, clients: usize| {
            let one = post(&path, &body);
            async move || join_all((0..clients).map(|_| ask(one.clone()))).await
        };

        // Bytes that are six times larger as JSON.
        let zeros = |bytes: u32| format!("head -c {bytes} /dev/zero");
        let body = json!({ "command": zeros(9_000_000) });
        let attack = many(format!("/v1/sandboxes/{id}/exec"), body, CLIENTS);
        ground.holds("native exec", BOUND_MIB, attack).await;
        let body = json!({ "command": zeros(9_000_000), "timeout": 120 });
        let attack = many(format!("/leap0/v1/sandbox/{id}/process/execute"), body, CLIENTS);
        ground.holds("leap0 process/execute", BOUND_MIB, attack).await;
        let path = format!("/daytona/toolbox/{id}/process");
        let attack = many(format!("{path}/execute"), json!({ "command": zeros(17_000_000) }), CLIENTS);
        ground.holds("daytona process/execute", BOUND_MIB, attack).await;
        // Fewer: what is marked in their output is looked for byte by byte, slowly without optimisation.
        let code = "import sys\nfor _ in range(17): sys.stdout.write(chr(0) * 1000000)";
        let attack =
            many(format!("{path}/code-run"), json!({ "code": code, "language": "python" }), CLIENTS / 3);
        ground.holds("daytona code-run", BOUND_MIB, attack).await;
        sessions(&ground, &greedy, &id, &post).await;
        e2b_files(&ground, &greedy).await;
        leap0_files(&ground, &greedy, &id, &post).await;
        bodies(&ground, &bearer, &id).await;
        heads(&ground).await;
        gives_back(w, idle).await;
        assert!(!w.log().contains("panicked"), "{}", w.log_tail());
    });
}

/// What was freed goes back to the system.
async fn gives_back(w: &World, idle: u64) {
    /// MiB beyond what the server had before: caches, and pages of the allocator that are in use in part.
    const MORE_MIB: u64 = 120;
    let (peak, mut last) = (status_mib(w, "VmRSS:"), 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        last = status_mib(w, "VmRSS:");
        if last < idle + MORE_MIB {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    eprintln!("{idle} MiB before, {peak} MiB right after, {last} MiB {:?} later", begun.elapsed());
    assert!(last < idle + MORE_MIB, "{idle} MiB became {last} MiB and stayed");
}

/// Many files in one answer, which nobody reads. The sandbox's own agent holds little of them and goes on.
async fn leap0_files(ground: &Ground<'_>, greedy: &Client, id: &str, post: &dyn Fn(&str, &Value) -> String) {
    const CLIENTS: usize = 40;
    let instance = greedy.sandbox(id).await["instance"].clone();
    assert_eq!(greedy.sh_root(id, "head -c 20000000 /dev/urandom >/tmp/large").await.code, 0);
    let paths = vec!["/tmp/large"; 100];
    let one = post(&format!("/leap0/v1/sandbox/{id}/filesystem/read-files"), &json!({ "paths": paths }));
    let attack = async || {
        let held = join_all((0..CLIENTS).map(|_| ask(one.clone()))).await;
        assert_eq!(greedy.sh(id, "echo works").await.text(), "works");
        let read = greedy.raw(Method::GET, &format!("/v1/sandboxes/{id}/files?path=/tmp/large"));
        let read = read.send().await.unwrap();
        assert_eq!(read.status(), 200);
        assert_eq!(read.bytes().await.unwrap().len(), 20_000_000);
        held
    };
    ground.holds("leap0 read-files", BOUND_MIB, attack).await;
    assert_eq!(greedy.sandbox(id).await["instance"], instance, "its agent was not ended");
}

/// Every line is marked, so empty ones are the worst.
async fn sessions(ground: &Ground<'_>, greedy: &Client, id: &str, post: &dyn Fn(&str, &Value) -> String) {
    let path = format!("/daytona/toolbox/{id}/process/session");
    let mut requests = Vec::new();
    for n in 0..CLIENTS / 2 {
        let made =
            greedy.raw(Method::POST, &path).json(&json!({ "sessionId": format!("s{n}") })).send().await;
        assert_eq!(made.unwrap().status(), 201);
        let command = "head -c 17000000 /dev/zero | tr '\\0' '\\n'";
        requests.push(post(&format!("{path}/s{n}/exec"), &json!({ "command": command })));
    }
    ground
        .holds("daytona session/exec", BOUND_MIB, async || join_all(requests.into_iter().map(ask)).await)
        .await;
}

/// A download through E2B's data plane is a stream: it waits for its reader.
async fn e2b_files(ground: &Ground<'_>, greedy: &Client) {
    let made =
        greedy.raw(Method::POST, "/e2b/sandboxes").json(&json!({ "templateID": "debian", "secure": true }));
    let made: Value = made.send().await.unwrap().json().await.unwrap();
    let (id, token) = (made["sandboxID"].as_str().unwrap(), made["envdAccessToken"].as_str().unwrap());
    assert_eq!(greedy.sh_root(id, "truncate -s 64M /tmp/large; chmod 644 /tmp/large").await.code, 0);
    let host = format!("49983-{id}.localhost:7070");
    let one = request("GET", "/files?path=/tmp/large&username=root", &host, &[("X-Access-Token", token)], "");
    ground.holds("e2b files", 150, async || join_all((0..CLIENTS).map(|_| ask(one.clone()))).await).await;
}

/// Bodies that lack their last byte. Who finds no room is told so.
async fn bodies(ground: &Ground<'_>, bearer: &str, id: &str) {
    const SIZE: usize = 7_900_000;
    let stdin = "a".repeat(SIZE - 100);
    let whole = json!({ "argv": ["cat"], "stdin": stdin }).to_string();
    let headers = [("Authorization", bearer), ("Content-Type", "application/json")];
    let request = request("POST", &format!("/v1/sandboxes/{id}/exec"), "localhost", &headers, &whole);
    let part = &request[..request.len() - 1];
    let send = async || {
        let mut stream = connect().await;
        // One that is refused need not be taken to its end.
        let (reading, mut writing) = stream.split();
        tokio::select! {
            _ = tokio::time::timeout(Duration::from_secs(60), writing.write_all(part.as_bytes())) => {}
            _ = reading.readable() => {}
        }
        stream
    };
    ground
        .holds("bodies", BOUND_MIB, async || {
            let mut held = join_all((0..100).map(|_| send())).await;
            let refused = async |stream: &mut TcpStream| {
                let is_answered =
                    tokio::time::timeout(Duration::from_millis(1), stream.readable()).await.is_ok();
                if is_answered { Some(head(stream).await) } else { None }
            };
            let mut told = Vec::new();
            for stream in &mut held {
                told.extend(refused(stream).await);
            }
            let full: Vec<_> = told.iter().filter(|head| head.starts_with("HTTP/1.1 429 ")).collect();
            assert!(!full.is_empty(), "none of 100 was refused: {told:?}");
            assert!(full.iter().all(|head| head.to_ascii_lowercase().contains("retry-after: ")), "{full:?}");
            held
        })
        .await;
}

/// Heads without an end, and without a key.
async fn heads(ground: &Ground<'_>) {
    let half = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {}", "x".repeat(60_000));
    ground
        .holds("heads", 300, async || {
            let mut held = Vec::new();
            for _ in 0..60 {
                let some = join_all((0..100).map(|_| async {
                    let mut stream = TcpStream::connect(PLAIN).await.ok()?;
                    let _ =
                        tokio::time::timeout(Duration::from_secs(1), stream.write_all(half.as_bytes())).await;
                    Some(stream)
                }));
                held.extend(some.await.into_iter().flatten());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            held
        })
        .await;
}

fn raise_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}
