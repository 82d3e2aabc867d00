//! The proxy is no way into other places: no header or URL names a target (N01), no path leads to the agent (N17), a circle
//! ends (N20), an old connection never meets a new sandbox (N22), and credentials stay out of logs and processes (N16).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use atoll_tests::internet::OTHER;
use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, World, json, namespaces, proc, run_with, until};
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SERVER: &str = "127.0.0.1:7070";

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

/// Says its name; what it is asked for is kept in /tmp/seen. `/loop` asks the relay for the same again.
const APP: &str = r#"
import http.client, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
name, relay, keeps = sys.argv[1:4]
class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        with open("/tmp/seen", "a") as f: f.write(self.path + " " + str(dict(self.headers)) + "\n")
        status, data = 200, ("I am " + name).encode()
        if self.path.startswith("/loop"):
            headers = {k: v for k, v in self.headers.items() if keeps == "keeps" or k.lower() in ("host", "authorization", "x-api-key")}
            headers["X-Api-Key"] = self.headers.get("X-Own-Key", "")
            headers["X-Own-Key"] = headers["X-Api-Key"]
            c = http.client.HTTPConnection(relay, 9070, timeout=60)
            try:
                c.request("GET", self.path, headers=headers)
                answer = c.getresponse(); status, data = answer.status, answer.read()
            except OSError as e: status, data = 599, repr(e).encode()
            c.close()
        self.send_response(status); self.send_header("content-length", str(len(data))); self.end_headers()
        self.wfile.write(data)
class Server(ThreadingHTTPServer):
    request_queue_size = 256
Server(("127.0.0.1", 8080), App).serve_forever()
"#;

async fn app(client: &Client, name: &str, keeps: &str) -> String {
    let id = client.create(json!({ "command": ["python3", "-c", APP, name, OTHER, keeps] })).await;
    until("the app listens", async || {
        (client.sh(&id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0).then_some(())
    })
    .await;
    id
}

/// Sends raw bytes and answers with all that comes.
async fn raw(bytes: &str) -> String {
    exchange(SERVER, bytes).await
}

async fn exchange(server: &str, bytes: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn n01_nothing_in_a_request_names_a_target_that_is_not_a_sandbox_of_ours() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        let (id, foreign) = (app(&client, "mine", "keeps").await, app(&other, "theirs", "keeps").await);
        let key = client.key();
        let ask = |line: &str, host: &str, more: String| {
            let text = format!(
                "{line} HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\n{more}Connection: close\r\n\r\n"
            );
            async move { raw(&text).await }
        };
        let mine = format!("8080-{id}.localhost");
        assert!(ask("GET /", &mine, String::new()).await.ends_with("I am mine"), "the control");
        // The host reaches all of these, and the proxy runs on the host.
        let reached =
            exchange("169.254.169.254:80", "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        assert!(reached.await.starts_with("HTTP/1.1 200"), "the control");
        // Its connection was ended by both sides before the witness begins.
        w.internet.forget();
        let targets = [
            "169.254.169.254",
            "127.0.0.1:22",
            "127.0.0.1:80",
            "localhost:80",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "0x7f000001",
            "2130706433",
            "[fd00:ec2::254]",
            "10.1.2.3",
            "192.168.77.1",
            "evil.test",
            "100.64.0.1",
            "203.0.113.2",
        ];
        let headers = [
            "X-Forwarded-Host",
            "X-Forwarded-Server",
            "X-Host",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-Target",
            "X-Sandbox-Host",
            "X-Real-Host",
            "Forwarded: host",
            "X-Atoll-Target",
            "X-Atoll-Address",
            "Location",
        ];
        for target in targets {
            // As the host, as the URL, behind the usual forms, and as a tunnel.
            let forms = [
                ("GET /".to_owned(), target.to_owned()),
                (format!("GET http://{target}/"), mine.clone()),
                (format!("GET http://{target}/"), target.to_owned()),
                ("GET /".to_owned(), format!("80-{target}.localhost")),
                ("GET /".to_owned(), format!("{mine}@{target}")),
                (format!("GET /p/{target}/80/"), "localhost".to_owned()),
                (format!("GET //{target}/"), "localhost".to_owned()),
                (format!("CONNECT {target}"), target.to_owned()),
                (format!("CONNECT {target}:80"), mine.clone()),
            ];
            let answers = join_all(forms.iter().map(|(line, host)| ask(line, host, String::new()))).await;
            for ((line, host), answer) in forms.iter().zip(answers) {
                let is_served = answer.contains("hello from the internet") || answer.contains("I am ");
                let is_tunnel = line.starts_with("CONNECT") && answer.contains(" 200 ");
                assert!(!is_served && !is_tunnel, "{line} {host}: {answer}");
            }
            let named = headers.iter().map(|header| ask("GET /", &mine, format!("{header}: {target}\r\n")));
            for (header, answer) in headers.iter().zip(join_all(named).await) {
                assert!(answer.ends_with("I am mine"), "{header}: {target}: {answer}");
            }
        }
        // Nor another's sandbox, whatever says so.
        for header in headers {
            let answer = ask("GET /", &mine, format!("{header}: 8080-{foreign}.localhost\r\n")).await;
            assert!(answer.ends_with("I am mine"), "{header}: {answer}");
        }
        for host in [
            format!("8080-{foreign}.localhost"),
            format!("8080-{foreign}.LOCALHOST:7070"),
            format!("{foreign}.localhost"),
        ] {
            let answer = ask("GET /", &host, String::new()).await;
            assert!(answer.starts_with("HTTP/1.1 404"), "{host}: {answer}");
        }
        let smuggled =
            ask(&format!("GET /p/{id}/8080/../../../p/{foreign}/8080/"), "localhost", String::new()).await;
        assert!(!smuggled.contains("theirs"), "{smuggled}");
        assert_eq!(other.sh(&foreign, "cat /tmp/seen 2>/dev/null | wc -l").await.text(), "0");
        w.internet.unharmed("targets in requests");
    });
}

#[test]
fn n17_no_way_of_writing_leads_to_the_agent() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client, "mine", "keeps").await;
        for key in [client.key(), w.admin().key()] {
            let ports = [
                "49983",
                "049983",
                "+49983",
                "%34%39%39%38%33",
                "49983%20",
                "4998%33",
                "0xc33f",
                "115519",
                "49983.0",
                "49983,8080",
                "-15553",
                "8080/../49983",
                "8080/..%2f49983",
                "8080/%2e%2e/49983",
                "8080//49983",
                "49983;8080",
                "49983#",
                "４９９８３",
            ];
            let routes = [
                "health",
                "files?path=/etc/passwd",
                "process.Process/List",
                "init",
                "hold",
                "atoll.agent.v1.Agent/Freeze",
                "metrics",
            ];
            for port in ports {
                for (n, route) in routes.iter().enumerate() {
                    let method = if n % 2 == 0 { "GET" } else { "POST" };
                    let more = format!("X-Api-Key: {key}\r\nContent-Length: 0\r\nConnection: close\r\n");
                    let by_path = raw(&format!(
                        "{method} /p/{id}/{port}/{route} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
                    ))
                    .await;
                    let status = by_path.split(' ').nth(1).unwrap_or_default().to_owned();
                    let is_app = by_path.ends_with("I am mine") || by_path.contains("Unsupported method");
                    assert!(
                        ["400", "404", "403", "302", "421", "405", "503"].contains(&&*status) || is_app,
                        "{port} {route}: {by_path}"
                    );
                    assert!(
                        !by_path.contains("root:")
                            && !by_path.contains("connect-")
                            && !by_path.contains("processes"),
                        "{port} {route}: {by_path}"
                    );
                }
                for host in [format!("{port}-{id}.localhost"), format!("{id}-{port}.localhost")] {
                    let answer = raw(&format!("GET /health HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\nConnection: close\r\n\r\n")).await;
                    let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
                    // By its plain number E2B's front stands there, to which a sandbox of another front is as unknown as none.
                    let wanted: &[&str] = match port {
                        "49983" => &["502"],
                        _ => &["400", "404", "403", "421"],
                    };
                    assert!(wanted.contains(&&*status), "{host}: {answer}");
                    for route in &routes[1..] {
                        let answer = raw(&format!("GET /{route} HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\nConnection: close\r\n\r\n")).await;
                        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
                        assert!(
                            ["400", "401", "403", "404", "405", "421", "502"].contains(&&*status),
                            "{host} {route}: {answer}"
                        );
                    }
                }
            }
        }
    });
}

/// Lets the internet in to the server, as an operator with a public address would.
async fn publish(w: &World) {
    let front: SocketAddr = format!("{}:8070", namespaces::HOST_ADDRESS).parse().unwrap();
    let listener = TcpListener::bind(front).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(SERVER).await {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
                }
            });
        }
    });
    w.internet.relays(9070, front).await;
}

#[test]
fn n20_a_circle_through_the_public_url_ends() {
    run(async |w| {
        let client = w.tenant("acme").await;
        publish(w).await;
        let ask = |id: &str| {
            reqwest::Client::builder()
                .no_proxy()
                .build()
                .unwrap()
                .get(format!("http://{SERVER}/loop"))
                .header("host", format!("8080-{id}.localhost"))
                .header("x-api-key", client.key())
                .header("x-own-key", client.key())
        };
        // One that passes headers on: the hops are counted, and the ninth is refused.
        let honest = app(&client, "honest", "keeps").await;
        let answer = ask(&honest).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 508, "{}", answer.text().await.unwrap());
        let rounds: u32 = client.sh(&honest, "grep -c /loop /tmp/seen").await.text().parse().unwrap();
        assert!((2..=16).contains(&rounds), "{rounds} rounds");
        // One that hides them: limited while it lasts, without effect on others, and ended when its client disconnects.
        let witness = w.witness().await;
        let sly = app(&client, "sly", "hides").await;
        let asked = tokio::time::timeout(Duration::from_secs(3), ask(&sly).send()).await;
        drop(asked);
        let began = Instant::now();
        let health = reqwest::get(format!("http://{SERVER}/health")).await.unwrap();
        assert!(health.status() == 200 && began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        client.remove(&sly).await;
        witness.verify().await;
        let descriptors = proc::descriptors(w.server_pid()).len();
        until("its connections end", async || {
            (proc::descriptors(w.server_pid()).len() < descriptors.max(120)).then_some(())
        })
        .await;
    });
}

#[test]
fn n22_an_old_connection_never_speaks_to_a_new_sandbox() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let first = app(&client, "first", "keeps").await;
        let mut kept = TcpStream::connect(SERVER).await.unwrap();
        let request =
            format!("GET /x HTTP/1.1\r\nHost: 8080-{first}.localhost\r\nX-Api-Key: {}\r\n\r\n", client.key());
        kept.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // Head and body may come apart.
        while !String::from_utf8_lossy(&answer).ends_with("I am first") {
            assert!(kept.read_buf(&mut answer).await.unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
        }
        client.remove(&first).await;
        // New ones come until one has the old address; each says who it is.
        for n in 0..3 {
            let second = app(&client, &format!("second{n}"), "keeps").await;
            if kept.write_all(request.as_bytes()).await.is_ok() {
                let mut said = Vec::new();
                let quiet = Duration::from_secs(1);
                while let Ok(Ok(1..)) = tokio::time::timeout(quiet, kept.read_buf(&mut said)).await {}
                let said = String::from_utf8_lossy(&said);
                assert!(said.is_empty() || said.starts_with("HTTP/1.1 404"), "{said}");
            }
            assert_eq!(client.sh(&second, "cat /tmp/seen 2>/dev/null | wc -l").await.text(), "0");
            // A restart is another instance of the same sandbox: the old connection speaks to it only through the proxy's own look-up.
            client.remove(&second).await;
        }
    });
}

#[test]
fn n16_credentials_are_in_no_log_no_process_and_no_answer() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client, "mine", "keeps").await;
        let previews = format!("/v1/sandboxes/{id}/previews");
        let made = client.post(&previews, json!({ "port": 8080, "expires_s": 600 })).await.ok();
        let token = made["token"].as_str().unwrap().to_owned();
        let admin = w.admin().key().to_owned();
        let key = client.key().to_owned();
        let bare = |secret: &str| secret.split_once('_').map_or(secret, |(_, rest)| rest).to_owned();
        let secrets = [bare(&token), bare(&admin), bare(&key)];
        // Used rightly and wrongly, in headers, queries, cookies, paths and bodies.
        let host = format!("8080-{id}.localhost");
        let mut answers = Vec::new();
        for secret in [&token, &admin, &key] {
            for (line, more) in [
                (format!("GET /?atoll_token={secret}"), String::new()),
                (format!("GET /p/{id}/9/?atoll_token={secret}"), String::new()),
                ("GET /".to_owned(), format!("Cookie: atoll_preview={secret}\r\n")),
                ("GET /".to_owned(), format!("Authorization: Bearer {secret}\r\n")),
                ("GET /".to_owned(), format!("Authorization: Basic {secret}\r\n")),
                (format!("GET /v1/sandboxes/{secret}"), format!("X-Api-Key: {secret}\r\n")),
                (format!("GET /{secret}%zz"), format!("Referer: http://x/?atoll_token={secret}\r\n")),
                (format!("CONNECT {secret}:443"), format!("Proxy-Authorization: Bearer {secret}\r\n")),
            ] {
                for host in [host.as_str(), "localhost", "nobody.localhost"] {
                    // Text in the app's own path is visible to the app.
                    if line.contains(&format!("/{secret}")) && host != "localhost" {
                        continue;
                    }
                    answers.push((
                        line.clone(),
                        raw(&format!("{line} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n"))
                            .await,
                    ));
                }
            }
        }
        for (line, answer) in &answers {
            // A cookie is how a browser goes on with its own token, and who writes one into a path reads it in the answer.
            let shown: String =
                answer.lines().filter(|line| !line.to_lowercase().starts_with("set-cookie")).collect();
            for secret in &secrets {
                assert!(
                    !shown.contains(secret.as_str()) || line.contains("%zz") || line.contains("/v1/"),
                    "{line}: {answer}"
                );
            }
        }
        let metrics =
            w.admin().raw(reqwest::Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        let log = w.log();
        let seen = client.sh(&id, "cat /tmp/seen").await.stdout;
        assert!(seen.contains("/ {"), "the control: the app was reached: {seen}");
        for secret in &secrets {
            assert!(!log.contains(secret.as_str()), "in the log");
            assert!(!metrics.contains(secret.as_str()), "in the metrics");
            assert!(!seen.contains(secret.as_str()), "the app saw {secret}: {seen}");
            for process in proc::descendants(proc::own_pid()) {
                for file in ["cmdline", "environ"] {
                    let bytes = std::fs::read(format!("/proc/{}/{file}", process.pid)).unwrap_or_default();
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    assert!(!text.contains(secret.as_str()), "{file} of {} ({})", process.pid, process.name);
                }
            }
        }
    });
}
