//! E2B's data plane under attack: tokens of others, signatures for other requests, ambiguous heads, unknown routes, and
//! sandboxes that end in the middle.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, World, json, run_with, until};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use reqwest::Method;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SERVER: &str = "127.0.0.1:7070";

/// A sandbox as E2B's create answers it.
struct Made {
    id: String,
    token: String,
    traffic: Option<String>,
}

async fn make(client: &Client, more: Value) -> Made {
    let mut body = json!({ "templateID": "base", "timeout": 300 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let key = client.key().to_owned();
    let asked = client.raw(Method::POST, "/e2b/v2/sandboxes").header("x-api-key", key).json(&body);
    let answer = asked.send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let made: Value = answer.json().await.unwrap();
    let text = |name: &str| made[name].as_str().map(str::to_owned);
    Made {
        id: text("sandboxID").unwrap(),
        token: text("envdAccessToken").unwrap(),
        traffic: text("trafficAccessToken"),
    }
}

/// All that comes back to these bytes until the server closes or, after its first bytes, is silent for a second.
async fn raw(bytes: &str) -> String {
    let mut stream = TcpStream::connect(SERVER).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut piece = [0; 65_536];
    let mut silence = PATIENCE;
    while let Ok(Ok(size @ 1..)) = tokio::time::timeout(silence, stream.read(&mut piece)).await {
        answer.extend_from_slice(&piece[..size]);
        silence = Duration::from_secs(1);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// A request to a port of a sandbox, by fields.
async fn ask(method: &str, target: &str, id: &str, port: u16, fields: &str, body: &str) -> String {
    let length = body.len();
    raw(&format!(
        "{method} {target} HTTP/1.1\r\nHost: {SERVER}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {port}\r\n\
         Connection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
    ))
    .await
}

fn json_kind(token: &str) -> String {
    format!("Content-Type: application/json\r\nX-Access-Token: {token}\r\n")
}

fn sign(parts: &[&str]) -> String {
    let signature = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(parts.join(":"))));
    signature.replace('+', "%2B").replace('/', "%2F")
}

fn run(body: impl AsyncFnOnce(&World, Client) + Send) {
    run_with(Options::debian(), async |world: &World| {
        let client = world.tenant("e2b").await;
        body(world, client).await;
    });
}

#[test]
fn the_token_of_another_sandbox_opens_nothing() {
    run(async |_, client| {
        let (mine, other) = (make(&client, json!({})).await, make(&client, json!({})).await);
        let zeros = "0".repeat(64);
        for token in [&*other.token, &zeros, "", "x", &mine.token[..63], &format!("{}0", mine.token)] {
            for (method, target) in [
                ("POST", "/process.Process/List"),
                ("POST", "/filesystem.Filesystem/ListDir"),
                ("GET", "/envs"),
                ("GET", "/metrics"),
                ("GET", "/files?path=/etc/passwd"),
            ] {
                let said = ask(method, target, &mine.id, 49_983, &json_kind(token), "{}").await;
                assert_eq!(status(&said), 401, "{target} by {token:?}: {said}");
                assert!(!said.contains("root:"), "{said}");
            }
            let said = ask("POST", "/execute", &mine.id, 49_999, &json_kind(token), r#"{"code":"1"}"#).await;
            assert_eq!(status(&said), 401, "{said}");
        }
        // Two tokens are none, whichever comes first.
        let both = format!("{}X-Access-Token: {}\r\n", json_kind(&mine.token), other.token);
        assert_eq!(status(&ask("POST", "/process.Process/List", &mine.id, 49_983, &both, "{}").await), 401);
        let right =
            ask("POST", "/process.Process/List", &mine.id, 49_983, &json_kind(&mine.token), "{}").await;
        assert_eq!(status(&right), 200, "{right}");
    });
}

#[test]
fn a_signature_opens_its_path_direction_user_and_sandbox_alone() {
    run(async |_, client| {
        let (mine, other) = (make(&client, json!({})).await, make(&client, json!({})).await);
        for made in [&mine, &other] {
            let written = ask(
                "POST",
                "/files?path=/tmp/a",
                &made.id,
                49_983,
                &format!("Content-Type: application/octet-stream\r\nX-Access-Token: {}\r\n", made.token),
                &made.id,
            )
            .await;
            assert_eq!(status(&written), 200, "{written}");
        }
        let read = sign(&["/tmp/a", "read", "", &mine.token]);
        let get = |target: String| async move {
            raw(&format!("GET {target} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n")).await
        };
        let link = get(format!("/files?path=%2Ftmp%2Fa&signature={read}")).await;
        assert!(status(&link) == 200 && link.ends_with(&mine.id), "{link}");
        for target in [
            format!("/files?path=/tmp/b&signature={read}"),
            format!("/files?path=/tmp/../tmp/a&signature={read}"),
            format!("/files?path=/etc/shadow&username=root&signature={read}"),
            format!("/files?path=/tmp/a&username=root&signature={read}"),
            format!("/files?path=/tmp/a&signature={read}&signature_expiration=99999999999"),
            format!("/files?path=/tmp/a&signature={}", sign(&["/tmp/a", "read", "", "no-token"])),
            format!("/files?path=/tmp/a&signature={}", sign(&["/tmp/a", "write", "", &mine.token])),
            "/files?path=/tmp/a&signature=".to_owned(),
            "/files?path=/tmp/a&signature=v1_x".to_owned(),
        ] {
            let said = get(target.clone()).await;
            assert_eq!(status(&said), 401, "{target}: {said}");
        }
        // A link of one sandbox, at another.
        let said =
            ask("GET", &format!("/files?path=/tmp/a&signature={read}"), &other.id, 49_983, "", "").await;
        assert_eq!(status(&said), 401, "{said}");
        // What is there twice could be read in two ways.
        let twice = get(format!("/files?path=/etc/passwd&path=/tmp/a&signature={read}")).await;
        assert_eq!(status(&twice), 400, "{twice}");
        // Another field cannot select another user.
        let as_root = raw(&format!(
            "GET /files?path=/tmp/a&signature={read} HTTP/1.1\r\nHost: {SERVER}\r\nAuthorization: Basic cm9vdDo=\r\nConnection: close\r\n\r\n"
        ))
        .await;
        assert_eq!(status(&as_root), 200);
        // File operations always run as root; only the signature determines the owner of a new file.
        let whose = sign(&["/opt/whose", "write", "", &mine.token]);
        let said = raw(&format!(
            "POST /files?path=/opt/whose&signature={whose} HTTP/1.1\r\nHost: {SERVER}\r\nAuthorization: Basic cm9vdDo=\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
        ))
        .await;
        assert_eq!(status(&said), 200, "{said}");
        assert_eq!(client.sh(&mine.id, "stat -c %U /opt/whose").await.text(), "user");
        let old = sign(&["/tmp/a", "read", "", &mine.token, "5"]);
        let said = get(format!("/files?path=/tmp/a&signature={old}&signature_expiration=5")).await;
        assert!(status(&said) == 401 && said.contains("signature is already expired"), "{said}");
    });
}

#[test]
fn routes_between_the_host_and_its_agent_are_nobodys() {
    run(async |_, client| {
        let mine = make(&client, json!({})).await;
        for target in [
            "/init",
            "/hold",
            "/freeze",
            "/fsfreeze",
            "/archive/pack?path=/",
            "/archive/unpack?dest=/",
            "/atoll.agent.v1.Agent/Attach",
            "/process.Process/../init",
            "/process.Process/%2e%2e/init",
            "/process.Process//Start",
            "//init",
            "/%69nit",
            "/files/../init",
        ] {
            for fields in [json_kind(&mine.token), String::new()] {
                let said = ask("POST", target, &mine.id, 49_983, &fields, "{}").await;
                assert_eq!(status(&said), 404, "{target}: {said}");
            }
        }
        let host = format!("49983-{}.localhost", mine.id);
        let said = raw(&format!(
            "POST /init HTTP/1.1\r\nHost: {host}\r\nX-Access-Token: {}\r\nContent-Length: 2\r\n\r\n{{}}",
            mine.token
        ))
        .await;
        assert_eq!(status(&said), 404);
        // Nor by any other name of that port.
        let said = raw(&format!(
            "GET /p/{}/49983/health HTTP/1.1\r\nHost: {SERVER}\r\nAuthorization: Bearer {}\r\n\r\n",
            mine.id,
            client.key()
        ))
        .await;
        assert!(!matches!(status(&said), 200..=299), "{said}");
    });
}

#[test]
fn heads_that_want_to_be_read_twice_reach_no_agent() {
    run(async |_, client| {
        let mine = make(&client, json!({})).await;
        let hidden = "POST /init HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n\r\n{}";
        let fields = format!(
            "Host: {SERVER}\r\nE2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {}\r\n\
             Content-Type: application/json\r\n",
            mine.id, mine.token
        );
        for lengths in [
            "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 2\r\nContent-Length: 70\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            "Transfer-Encoding : chunked\r\n",
        ] {
            let said =
                raw(&format!("POST /process.Process/List HTTP/1.1\r\n{fields}{lengths}\r\n{{}}{hidden}"))
                    .await;
            assert!(status(&said) >= 400 && said.matches("HTTP/1.1").count() == 1, "{lengths}: {said}");
        }
        // What a head names for removal does not take the agent's token with it, nor leave the user's in its place.
        let named = "Connection: X-Access-Token, Host, Content-Length\r\nContent-Length: 2\r\n";
        let said = raw(&format!("POST /process.Process/List HTTP/1.1\r\n{fields}{named}\r\n{{}}")).await;
        assert_eq!(status(&said), 200, "{said}");
        // A second request after a refused upgrade is not served.
        let upgrade = "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n";
        let said =
            raw(&format!("POST /process.Process/List HTTP/1.1\r\n{fields}{upgrade}\r\n{{}}{hidden}")).await;
        assert_eq!(said.matches("HTTP/1.1").count(), 1, "{said}");
    });
}

#[test]
fn nobody_is_woken_by_a_stranger() {
    run(async |_, client| {
        let more = json!({ "autoPause": true, "autoResume": { "enabled": true } });
        let mine = make(&client, more).await;
        assert_eq!(client.act(&mine.id, "pause").await.status, 200);
        let phase = async || client.sandbox(&mine.id).await["phase"].as_str().unwrap().to_owned();
        for (target, port) in [
            ("/health", 49_983),
            ("/files?path=/etc/passwd", 49_983),
            ("/envs", 49_983),
            ("/execute", 49_999),
        ] {
            for fields in ["", "X-Access-Token: 00\r\n"] {
                let said = ask("GET", target, &mine.id, port, fields, "").await;
                assert!(matches!(status(&said), 401 | 502), "{target}: {said}");
            }
        }
        assert_eq!(phase().await, "paused");
        let said =
            ask("POST", "/process.Process/List", &mine.id, 49_983, &json_kind(&mine.token), "{}").await;
        assert_eq!((status(&said), &*phase().await), (200, "running"), "{said}");
    });
}

#[test]
fn a_stream_whose_sandbox_is_deleted_ends_with_an_error_of_the_call() {
    run(async |_, client| {
        let mine = make(&client, json!({})).await;
        let body = r#"{"process":{"cmd":"/bin/sh","args":["-c","echo begun; sleep 600"]}}"#;
        let mut frame = vec![0u8];
        frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        frame.extend(body.as_bytes());
        let head = format!(
            "POST /process.Process/Start HTTP/1.1\r\nHost: {SERVER}\r\nE2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 49983\r\n\
             X-Access-Token: {}\r\nContent-Type: application/connect+json\r\nContent-Length: {}\r\n\r\n",
            mine.id,
            mine.token,
            frame.len()
        );
        let mut stream = TcpStream::connect(SERVER).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&frame).await.unwrap();
        let mut seen = Vec::new();
        // `begun` in base64.
        while !String::from_utf8_lossy(&seen).contains("YmVndW4") {
            let mut piece = [0; 4096];
            let size = stream.read(&mut piece).await.unwrap();
            assert!(size > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..size]);
        }
        client.remove(&mine.id).await;
        let mut rest = Vec::new();
        // The body ends properly, and the connection may stay open for the next request.
        let ended = tokio::time::timeout(PATIENCE, async {
            while !rest.ends_with(b"0\r\n\r\n") {
                assert!(stream.read_buf(&mut rest).await.unwrap() > 0, "{}", String::from_utf8_lossy(&rest));
            }
        });
        ended.await.expect("the body of the response ends");
        let end_of_stream = br#"{"error":{"code":"unavailable""#;
        let at = rest.windows(end_of_stream.len()).position(|bytes| bytes == end_of_stream);
        let at = at.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&rest)));
        assert_eq!(rest[at - 5], 2, "the error is in the message that ends a Connect stream");
        let said =
            ask("POST", "/process.Process/List", &mine.id, 49_983, &json_kind(&mine.token), "{}").await;
        assert!(status(&said) == 502 && said.contains("was not found"), "{said}");
        let said = ask("GET", "/health", &mine.id, 49_983, "", "").await;
        assert_eq!(status(&said), 502, "{said}");
    });
}

/// Says what it was sent.
const ECHO: &str = r#"
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = str(self.headers).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(said))); self.end_headers(); self.wfile.write(said)
http.server.HTTPServer(("127.0.0.1", 8080), H).serve_forever()
"#;

#[test]
fn ports_of_a_private_sandbox_need_its_token_and_apps_see_none_of_ours() {
    run(async |_, client| {
        let open = make(&client, json!({})).await;
        let private = make(&client, json!({ "network": { "allowPublicTraffic": false } })).await;
        assert!(open.traffic.is_none());
        let traffic = private.traffic.clone().unwrap();
        for made in [&open, &private] {
            let start = json!({ "argv": ["python3", "-c", ECHO], "detach": true });
            let started = client.try_exec(&made.id, start).await;
            assert!(started.status < 300, "{started:?}");
            until("the app listens", async || {
                (client.sh(&made.id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0).then_some(())
            })
            .await;
        }
        let shows = |token: &str| format!("E2B-Traffic-Access-Token: {token}\r\n");
        for fields in [String::new(), shows("x"), shows(&private.token)] {
            let said = ask("GET", "/", &private.id, 8080, &fields, "").await;
            assert_eq!(status(&said), 403, "{said}");
            let said = ask("GET", "/contexts", &private.id, 49_999, &fields, "").await;
            assert_eq!(status(&said), 403, "{said}");
        }
        let fields = format!("{}X-Access-Token: {}\r\nX-Mine: 1\r\n", shows(&traffic), private.token);
        let said = ask("GET", "/", &private.id, 8080, &fields, "").await;
        assert!(status(&said) == 200 && said.contains("X-Mine: 1") || said.contains("x-mine: 1"), "{said}");
        for secret in [&traffic, &private.token] {
            assert!(!said.contains(secret.as_str()), "{said}");
        }
        // The token of ports runs nothing.
        let said =
            ask("POST", "/process.Process/List", &private.id, 49_983, &json_kind(&traffic), "{}").await;
        assert_eq!(status(&said), 401, "{said}");
        let said = ask("GET", "/", &open.id, 8080, "", "").await;
        assert_eq!(status(&said), 200, "{said}");
    });
}
