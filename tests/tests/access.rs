//! Who gets in, and for how long: withdrawn keys, tokens and previews, wrong keys, pages of other origins, heads that can be
//! read in two ways, and what a stranger can learn about sandboxes.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::time::{Duration, Instant};

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SERVER: &str = "127.0.0.1:7070";
/// LIMIT: what a stream may take to end after its credential was withdrawn.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Streams without end on `/stream`, an echo behind any upgrade, and a kilobyte that unpacks to 64 MiB on `/bomb`.
const APP: &str = r#"
import gzip, http.server, socketserver, time
BOMB = gzip.compress(bytes(64 << 20), 9)
class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.send_response(101); self.send_header("Connection", "Upgrade"); self.send_header("Upgrade", self.headers["Upgrade"]); self.end_headers()
            self.close_connection = True
            while data := self.connection.recv(1024): self.connection.sendall(data)
        elif self.path == "/bomb":
            self.send_response(200); self.send_header("Content-Encoding", "gzip"); self.send_header("Content-Length", str(len(BOMB))); self.end_headers()
            self.wfile.write(BOMB)
        elif self.path == "/stream":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            while True:
                self.wfile.write(b"5\r\ntick\n\r\n"); self.wfile.flush(); time.sleep(0.1)
        else:
            self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *_): pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
Server(("127.0.0.1", 8080), App).serve_forever()
"#;

async fn start_app(client: &Client, id: &str) {
    let started = client.try_exec(id, json!({ "argv": ["python3", "-c", APP], "detach": true })).await;
    assert!(started.status < 300, "{started:?}");
    until("the app listens", async || {
        (client.sh(id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0).then_some(())
    })
    .await;
}

/// A connection on which something comes, or may come at any time.
struct Stream {
    name: &'static str,
    tcp: TcpStream,
    seen: Vec<u8>,
}

impl Stream {
    /// Sends a request and reads the head of its answer.
    async fn open(name: &'static str, request: &str, status: u16) -> Self {
        let mut stream = Self::send(name, request).await;
        stream.until(b"\r\n\r\n").await;
        assert_eq!(status_of(&stream.seen), status, "{name}: {}", String::from_utf8_lossy(&stream.seen));
        stream
    }

    async fn send(name: &'static str, request: &str) -> Self {
        let mut tcp = TcpStream::connect(SERVER).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        Self { name, tcp, seen: Vec::new() }
    }

    async fn until(&mut self, wanted: &[u8]) {
        let found = async {
            while memchr::memmem::find(&self.seen, wanted).is_none() {
                assert!(self.tcp.read_buf(&mut self.seen).await.unwrap() > 0, "{} ended", self.name);
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        let seen = || String::from_utf8_lossy(&self.seen).into_owned();
        assert!(found.is_ok(), "{}: no {:?} in {}", self.name, String::from_utf8_lossy(wanted), seen());
    }

    /// A text in a frame of a client.
    async fn text(&mut self, text: &str) {
        let mut frame = vec![0x81, 0xfe];
        frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.tcp.write_all(&frame).await.unwrap();
    }

    /// Reads to the end; `Err`: it goes on.
    async fn ends_by(mut self, deadline: Instant) -> Result<Vec<u8>, &'static str> {
        let rest = async { while let Ok(1..) = self.tcp.read_buf(&mut self.seen).await {} };
        match tokio::time::timeout_at(deadline.into(), rest).await {
            Ok(()) => Ok(self.seen),
            Err(_) => Err(self.name),
        }
    }
}

fn status_of(answer: &[u8]) -> u16 {
    answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok()).unwrap_or(0)
}

/// A request without a body.
fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {SERVER}\r\n{fields}\r\n")
}

fn post(path: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: {SERVER}\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
}

/// A request for a WebSocket.
fn socket(path: &str, fields: &str) -> String {
    let handshake = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    get(path, &format!("{handshake}{fields}"))
}

fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

/// The whole answer to a request that is the last one of its connection.
async fn whole(request: &str) -> String {
    let stream = Stream::send("a request", request).await;
    let seen = stream.ends_by(Instant::now() + PATIENCE).await.unwrap_or_default();
    String::from_utf8_lossy(&seen).into_owned()
}

/// Fails unless every stream ends in time.
async fn all_end(streams: Vec<Stream>) {
    let deadline = Instant::now() + ENDS_WITHIN;
    let ended = futures::future::join_all(streams.into_iter().map(|stream| stream.ends_by(deadline))).await;
    let open: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    assert!(open.is_empty(), "still open after {ENDS_WITHIN:?}: {open:?}");
}

/// Fails unless every stream is still there.
async fn all_stay(streams: Vec<Stream>) {
    let deadline = Instant::now() + Duration::from_millis(500);
    let ended = futures::future::join_all(streams.into_iter().map(|stream| async move {
        let name = stream.name;
        stream.ends_by(deadline).await.is_ok().then_some(name)
    }))
    .await;
    let ended: Vec<_> = ended.into_iter().flatten().collect();
    assert!(ended.is_empty(), "ended for another's key: {ended:?}");
}

/// A further key of the tenant: its id and the key itself.
async fn further_key(client: &Client) -> (String, String) {
    let made = client.post("/v1/keys", json!({})).await.ok();
    (made["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned())
}

async fn call(client: &Client, path: &str, body: Value) -> Value {
    let answer = client.raw(Method::POST, path).json(&body).send().await.unwrap();
    let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
    assert!(status < 300, "{path}: {status} {text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// What streams can be opened on: a terminal and a running command of each front.
struct Ground {
    id: String,
    terminal: String,
    command: String,
}

async fn ground(client: &Client) -> Ground {
    let id = client.create(json!({})).await;
    start_app(client, &id).await;
    let opened = client
        .post(&format!("/v1/sandboxes/{id}/terminals"), json!({ "thread": "t", "cols": 80, "rows": 24 }))
        .await;
    call(client, &format!("/leap0/v1/sandbox/{id}/pty"), json!({ "id": "l" })).await;
    let toolbox = format!("/daytona/toolbox/{id}/process");
    call(client, &format!("{toolbox}/pty"), json!({ "id": "d" })).await;
    call(client, &format!("{toolbox}/session"), json!({ "sessionId": "s" })).await;
    let run = json!({ "command": "while :; do echo tick; sleep 0.1; done", "runAsync": true });
    let ran = call(client, &format!("{toolbox}/session/s/exec"), run).await;
    Ground {
        terminal: opened.ok()["id"].as_str().unwrap().to_owned(),
        command: ran["cmdId"].as_str().unwrap().to_owned(),
        id,
    }
}

/// Everything that a key can hold open, in every front.
async fn streams_of_key(on: &Ground, key: &str) -> Vec<Stream> {
    let (id, auth) = (&on.id, bearer(key));
    let native = format!("/v1/sandboxes/{id}");
    let run = r#"{"argv":["sh","-c","while :; do echo tick; sleep 0.1; done"]}"#;
    let json = format!("{auth}Content-Type: application/json\r\n");
    let logs = format!("/daytona/toolbox/{id}/process/session/s/command/{}/logs?follow=true", on.command);
    let mut notices = Stream::open(
        "daytona notices",
        &socket("/daytona/api/socket.io/?EIO=4&transport=websocket", ""),
        101,
    )
    .await;
    notices.text(&format!("40{}", json!({ "token": key }))).await;
    notices.until(b"40{\"sid\"").await;
    let in_flight = r#"{"argv":["sleep","600"]}"#;
    vec![
        notices,
        Stream::open(
            "native terminal",
            &socket(&format!("{native}/terminals/{}/ws", on.terminal), &auth),
            101,
        )
        .await,
        Stream::open("native events", &get("/v1/events?follow=1", &auth), 200).await,
        Stream::open("native watch", &get(&format!("{native}/files/watch?path=/tmp"), &auth), 200).await,
        Stream::open("native exec", &post(&format!("{native}/exec/stream"), &json, run), 200).await,
        Stream::open("native logs", &get(&format!("{native}/logs?follow=1"), &auth), 200).await,
        Stream::open("native egress", &get(&format!("{native}/egress?follow=1"), &auth), 200).await,
        Stream::send(
            "native exec under way",
            &post(&format!("{native}/exec"), &format!("{json}Connection: close\r\n"), in_flight),
        )
        .await,
        Stream::open("leap0 terminal", &socket(&format!("/leap0/v1/sandbox/{id}/pty/l/connect"), &auth), 101)
            .await,
        Stream::open(
            "daytona terminal",
            &socket(&format!("/daytona/toolbox/{id}/process/pty/d/connect"), &auth),
            101,
        )
        .await,
        Stream::open("daytona logs", &socket(&logs, &auth), 101).await,
        Stream::open("preview stream", &get(&format!("/p/{id}/8080/stream"), &auth), 200).await,
        Stream::open("preview socket", &socket(&format!("/p/{id}/8080/"), &auth), 101).await,
    ]
}

/// Puts a build context with a Daytona storage session; the status.
async fn put_context(access: &Value) -> u16 {
    let text = |name: &str| access[name].as_str().unwrap();
    let place = format!("{}/{}/{}", text("storageUrl"), text("bucket"), text("organizationId"));
    let put = reqwest::Client::new().put(format!("{place}/{}/context.tar", "a1".repeat(32)));
    let put = put.header("x-amz-security-token", text("sessionToken")).body(vec![0; 1_024]);
    put.send().await.unwrap().status().as_u16()
}

#[test]
fn what_was_given_out_for_a_key_ends_with_the_key() {
    run_with(Options::default(), async |w: &World| {
        let client = w.tenant("acme").await;
        let (id, key) = further_key(&client).await;
        let url = format!("{}/daytona/api/object-storage/push-access", w.admin().base());
        let asked = reqwest::Client::new().get(url).bearer_auth(&key).send().await.unwrap();
        let access: Value = asked.error_for_status().unwrap().json().await.unwrap();
        assert_eq!(put_context(&access).await, 200);
        client.delete(&format!("/v1/keys/{id}")).await.ok();
        assert_eq!(put_context(&access).await, 403);
    });
}

#[test]
fn a_deleted_key_ends_what_it_holds_open_in_every_front() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let on = ground(&client).await;
        let (revoked, key) = further_key(&client).await;
        let (_, kept) = further_key(&client).await;
        let (streams, others) = (streams_of_key(&on, &key).await, streams_of_key(&on, &kept).await);
        client.delete(&format!("/v1/keys/{revoked}")).await.ok();
        all_end(streams).await;
        all_stay(others).await;
        let refused = whole(&get("/v1/sandboxes", &format!("{}Connection: close\r\n", bearer(&key)))).await;
        assert_eq!(status_of(refused.as_bytes()), 401, "{refused}");
        // A caller that deletes its own key gets a response, and no access afterwards.
        let (own, key) = further_key(&client).await;
        let watch = Stream::open("events", &get("/v1/events?follow=1", &bearer(&key)), 200).await;
        w.client(&key).delete(&format!("/v1/keys/{own}")).await.ok();
        all_end(vec![watch]).await;
    });
}

/// A message of Connect's streams.
fn frame(body: &str) -> String {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    format!("\0{}{body}", String::from_utf8(length.to_vec()).unwrap())
}

#[test]
fn replaced_tokens_and_closed_previews_end_what_they_hold_open() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let made = call(
            &client,
            "/e2b/v2/sandboxes",
            json!({ "templateID": "base", "timeout": 300, "network": { "allowPublicTraffic": false } }),
        )
        .await;
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        let (id, token, traffic) = (text("sandboxID"), text("envdAccessToken"), text("trafficAccessToken"));
        start_app(&client, &id).await;
        call(&client, &format!("/daytona/toolbox/{id}/process/pty"), json!({ "id": "d" })).await;
        let e2b = format!(
            "E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {token}\r\nContent-Type: application/connect+json\r\n"
        );
        let start =
            frame(r#"{"process":{"cmd":"/bin/sh","args":["-c","while :; do echo tick; sleep 0.1; done"]}}"#);
        let toolbox = format!("/daytona/toolbox/{id}/process/pty/d/connect?DAYTONA_SANDBOX_AUTH_KEY={token}");
        let ports = format!(
            "E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8080\r\nE2b-Traffic-Access-Token: {traffic}\r\n"
        );
        let of_tokens = vec![
            Stream::open("e2b command", &post("/process.Process/Start", &e2b, &start), 200).await,
            Stream::open(
                "e2b watch",
                &post("/filesystem.Filesystem/WatchDir", &e2b, &frame(r#"{"path":"/tmp"}"#)),
                200,
            )
            .await,
            Stream::open("daytona terminal", &socket(&toolbox, ""), 101).await,
            Stream::open("e2b port", &get("/stream", &ports), 200).await,
        ];
        let previews = format!("/v1/sandboxes/{id}/previews");
        let preview = client.post(&previews, json!({ "port": 8080 })).await.ok();
        let signed = format!("/p/{id}/8080/stream?atoll_token={}", preview["token"].as_str().unwrap());
        let short = client.post(&previews, json!({ "port": 8080, "expires_s": 5 })).await.ok();
        let expiring = format!("/p/{id}/8080/stream?atoll_token={}", short["token"].as_str().unwrap());
        let expiring = Stream::open("preview that expires", &get(&expiring, ""), 200).await;
        let of_preview = vec![
            Stream::open("preview stream", &get(&signed, ""), 200).await,
            Stream::open("preview socket", &socket(&signed, ""), 101).await,
        ];
        call(&client, &format!("/daytona/api/sandbox/{id}/signing-key/rotate"), json!({})).await;
        all_end(of_tokens).await;
        client.delete(&format!("{previews}/{}", preview["id"].as_str().unwrap())).await.ok();
        all_end(of_preview).await;
        let deadline = Instant::now() + Duration::from_secs(5) + ENDS_WITHIN;
        assert!(expiring.ends_by(deadline).await.is_ok(), "a preview ends with its time");
        // Public ports, by a preview and by the sandbox.
        let public = client.post(&previews, json!({ "port": 8080, "public": true })).await.ok();
        let visitor = Stream::open("public preview", &get(&format!("/p/{id}/8080/stream"), ""), 200).await;
        client.delete(&format!("{previews}/{}", public["id"].as_str().unwrap())).await.ok();
        all_end(vec![visitor]).await;
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "public": true })).await.ok();
        let visitor = Stream::open("public sandbox", &get(&format!("/p/{id}/8080/stream"), ""), 200).await;
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "public": false })).await.ok();
        all_end(vec![visitor]).await;
    });
}

/// Attack N13: thousands of wrong keys and tokens from one address, in every front; a valid key still passes.
#[test]
fn wrong_keys_of_one_address_are_throttled_and_valid_ones_pass() {
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let mut guesses = TcpStream::connect(SERVER).await.unwrap();
        let (mut unauthenticated, mut throttled, mut others) = (0, 0, 0);
        for n in 0..3_000 {
            // Meanwhile a valid key of the same address is accepted every time.
            if n % 100 == 0 {
                client.get("/v1/sandboxes").await.ok();
                assert_eq!(w.admin().get("/v1/keys/current").await.ok()["scope"], "admin");
            }
            let asked = get("/v1/sandboxes", &bearer(&format!("atl_{n:040x}")));
            guesses.write_all(asked.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !is_whole(&answer) {
                assert!(guesses.read_buf(&mut answer).await.unwrap() > 0);
            }
            match status_of(&answer) {
                401 => unauthenticated += 1,
                429 => throttled += 1,
                _ => others += 1,
            }
        }
        assert!(
            others == 0 && (100..=400).contains(&unauthenticated),
            "{unauthenticated} {throttled} {others}"
        );
        let wrong = "f".repeat(40);
        let close = "Connection: close\r\n";
        for (front, request) in [
            ("native", get("/v1/sandboxes", &format!("{}{close}", bearer(&wrong)))),
            ("e2b", get("/e2b/v2/sandboxes", &format!("X-API-Key: e2b_{wrong}\r\n{close}"))),
            (
                "e2b agent",
                get(
                    "/envs",
                    &format!(
                        "E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {wrong}\r\n{close}"
                    ),
                ),
            ),
            ("daytona", get("/daytona/api/sandbox", &format!("{}{close}", bearer(&wrong)))),
            ("leap0", get("/leap0/v1/sandboxes", &format!("{}{close}", bearer(&wrong)))),
            ("preview", get(&format!("/p/{id}/8080/?atoll_token={wrong}"), close)),
            ("preview by key", get(&format!("/p/{id}/8080/"), &format!("{}{close}", bearer(&wrong)))),
        ] {
            // A wrong key passes every half second; whoever takes that place is refused for another reason.
            let said = until(&format!("{front} refuses by the throttle"), async || {
                let said = whole(&request).await;
                (status_of(said.as_bytes()) == 429).then_some(said)
            })
            .await;
            assert!(said.to_ascii_lowercase().contains("\r\nretry-after: "), "{front}: {said}");
            assert!(said.contains("too many wrong keys"), "{front}: {said}");
        }
        // Valid keys are not locked out, nor is who shows none told anything new.
        client.get("/v1/sandboxes").await.ok();
        further_key(&client).await;
        assert_eq!(status_of(whole(&get("/v1/sandboxes", close)).await.as_bytes()), 401);
        assert!(w.log().contains("too many wrong credentials from this address"));
    });
}

/// Whether a head with `Content-Length` and its body are there.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    answer.len() >= end + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap())
}

/// Attack N09: a WebSocket to a terminal of each front from a foreign page, and with a key that only a cookie holds.
#[test]
fn pages_of_other_origins_get_no_terminal_in_any_front() {
    let options = Options::debian().env("ATOLL_ALLOW_ORIGIN", "https://app.example");
    run_with(options, async |w| {
        let client = w.tenant("acme").await;
        let on = ground(&client).await;
        let (id, auth) = (&on.id, bearer(client.key()));
        let terminals = [
            format!("/v1/sandboxes/{id}/terminals/{}/ws", on.terminal),
            format!("/daytona/toolbox/{id}/process/pty/d/connect"),
            format!("/daytona/toolbox/{id}/process/session/s/command/{}/logs?follow=true", on.command),
            format!("/leap0/v1/sandbox/{id}/pty/l/connect"),
        ];
        for path in &terminals {
            for (origin, status) in [
                ("", 101),
                ("Origin: http://127.0.0.1:7070\r\n", 101),
                ("Origin: https://app.example\r\n", 101),
                ("Origin: https://evil.example\r\n", 403),
                ("Origin: http://127.0.0.1:7070.evil.example\r\n", 403),
                ("Origin: null\r\n", 403),
                ("Origin: http://127.0.0.1:7070\r\nOrigin: https://evil.example\r\n", 403),
            ] {
                Stream::open("a terminal", &socket(path, &format!("{auth}{origin}")), status).await;
            }
            // A cookie comes along by itself, so it is no key.
            for name in ["key", "atoll_preview", "authorization"] {
                let cookie = format!("Cookie: {name}={}\r\n", client.key());
                Stream::open("a terminal by cookie", &socket(path, &cookie), 401).await;
            }
        }
        let notices =
            socket("/daytona/api/socket.io/?EIO=4&transport=websocket", "Origin: https://evil.example\r\n");
        Stream::open("notices", &notices, 403).await;
    });
}

/// Attack N07: a request without Host, and one with two keys.
#[test]
fn heads_with_two_meanings_are_refused() {
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        let (auth, close) = (bearer(client.key()), "Connection: close\r\n");
        let status = async |request: &str| status_of(whole(request).await.as_bytes());
        for path in
            ["/v1/sandboxes", "/e2b/v2/sandboxes", "/daytona/api/sandbox", "/leap0/v1/sandboxes", "/health"]
        {
            assert_eq!(status(&format!("GET {path} HTTP/1.1\r\n{auth}{close}\r\n")).await, 400, "{path}");
            for twice in [
                format!("{auth}{auth}"),
                format!("{auth}Authorization: Bearer x\r\n"),
                "X-API-Key: a\r\nX-Api-Key: b\r\n".to_owned(),
            ] {
                assert_eq!(status(&get(path, &format!("{twice}{close}"))).await, 400, "{path}: {twice}");
            }
        }
        assert_eq!(status(&get("/v1/sandboxes", &format!("{auth}{close}"))).await, 200);
        assert_eq!(status("GET /health HTTP/1.0\r\n\r\n").await, 200, "HTTP/1.0 knows no Host");
    });
}

/// Attack N14: what a stranger without a key is told about a sandbox and about none must be the same.
#[test]
fn a_stranger_cannot_tell_a_sandbox_from_none() {
    run_with(Options::default(), async |w| {
        let client = w.tenant("acme").await;
        let running = client.create(json!({})).await;
        let paused = client.create(json!({})).await;
        client.act(&paused, "pause").await.ok();
        let none = format!("z{}", "0".repeat(19));
        let ask = async |id: &str, host: &str, path: &str, fields: &str, by_fields: Option<u16>| {
            let (host, fields) = match by_fields {
                None => (host.replace("ID", id), fields.to_owned()),
                Some(port) => (
                    SERVER.to_owned(),
                    format!("{fields}E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {port}\r\n"),
                ),
            };
            let said =
                whole(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n"))
                    .await;
            // Only the name that the stranger said itself, the date and the request's number differ.
            let lines = said.replace(id, "ID");
            let same = lines.lines().filter(|line| !line.to_ascii_lowercase().starts_with("date:"));
            let text: String = same
                .filter(|line| !line.to_ascii_lowercase().starts_with("x-request-id:"))
                .collect::<Vec<_>>()
                .join("\n");
            match text.find("\"request_id\":\"") {
                Some(at) => text[..at].to_owned(),
                None => text,
            }
        };
        for (host, path) in [
            ("49983-ID.localhost", "/health"),
            ("49983-ID.localhost", "/init"),
            ("49983-ID.localhost", "/files?path=/etc/passwd"),
            ("49983-ID.localhost", "/files?path=/etc/passwd&signature=v1_x"),
            ("49983-ID.localhost", "/envs"),
            ("49999-ID.localhost", "/health"),
            ("49999-ID.localhost", "/contexts"),
            ("8080-ID.localhost", "/"),
            ("ID.localhost", "/healthz"),
        ] {
            for fields in ["", "X-Access-Token: 00\r\n", "E2b-Traffic-Access-Token: x\r\n"] {
                let port = host.split('-').next().and_then(|port| port.parse().ok());
                for by_fields in [None, port] {
                    let wanted = ask(&none, host, path, fields, by_fields).await;
                    for id in [&running, &paused] {
                        let said = ask(id, host, path, fields, by_fields).await;
                        assert_eq!(said, wanted, "{host}{path} {fields}{by_fields:?}");
                    }
                }
            }
        }
    });
}

fn rss_mib(w: &World) -> u64 {
    atoll_tests::proc::status(w.server_pid(), "VmRSS").unwrap() / 1024
}

/// Attack N19: compressed bodies that unpack to a hundred times their size, to every front and through a preview.
#[test]
fn compressed_bombs_are_not_unpacked() {
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        start_app(&client, &id).await;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        // A JSON text of 256 MiB, in some 256 KiB.
        encoder.write_all(b"{\"name\":\"").unwrap();
        for _ in 0..256 {
            encoder.write_all(&[b'a'; 1 << 20]).unwrap();
        }
        encoder.write_all(b"\"}").unwrap();
        let bomb = encoder.finish().unwrap();
        let before = rss_mib(w);
        for path in [
            "/v1/sandboxes".to_owned(),
            "/e2b/v2/sandboxes".to_owned(),
            "/daytona/api/sandbox".to_owned(),
            "/leap0/v1/sandbox".to_owned(),
            format!("/v1/sandboxes/{id}/exec"),
            format!("/daytona/toolbox/{id}/process/execute"),
            format!("/leap0/v1/sandbox/{id}/process/execute"),
        ] {
            let mut asked = client.raw(Method::POST, &path);
            asked = asked.header("content-type", "application/json").header("content-encoding", "gzip");
            let answer = asked.body(bomb.clone()).send().await.unwrap();
            let status = answer.status().as_u16();
            assert!(matches!(status, 400 | 413 | 415 | 422), "{path}: {status}");
        }
        // E2B's agent takes gzip where its protocol says so: nothing above its bound is unpacked.
        let made = call(&client, "/e2b/v2/sandboxes", json!({ "templateID": "base", "timeout": 300 })).await;
        let answer = client
            .raw(Method::POST, "/process.Process/List")
            .header("e2b-sandbox-id", made["sandboxID"].as_str().unwrap())
            .header("e2b-sandbox-port", "49983")
            .header("x-access-token", made["envdAccessToken"].as_str().unwrap())
            .header("content-type", "application/json")
            .header("content-encoding", "gzip")
            .body(bomb.clone())
            .send()
            .await
            .unwrap();
        assert!(!answer.status().is_success(), "{}", answer.status());
        // An app's own compressed answer passes as it is.
        for _ in 0..8 {
            let said = client.raw(Method::GET, &format!("/p/{id}/8080/bomb")).send().await.unwrap();
            assert_eq!(said.headers()["content-encoding"], "gzip");
            let size = said.bytes().await.unwrap().len();
            assert!(size < 1 << 20, "{size} bytes came through");
        }
        let after = rss_mib(w);
        assert!(after < before + 64, "{before} MiB became {after} MiB");
        client.get("/v1/sandboxes").await.ok();
    });
}
