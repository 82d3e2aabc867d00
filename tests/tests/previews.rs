//! Previews through a real server to real apps in sandboxes: who may, what the app sees, what it may answer, streams,
//! tunnels, waking, and what must not pass (N01, N07, N08, N15, N17, N20, N22, N23).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use futures::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

const SERVER: &str = "127.0.0.1:7070";

/// An app that tells what it received, streams, and answers WebSockets; standard library only.
const APP: &str = r#"
import base64, hashlib, json, socketserver, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def body(self):
        if self.headers.get("transfer-encoding", "") == "chunked":
            data = b""
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                data += self.rfile.read(size); self.rfile.readline()
                if size == 0: return data
        return self.rfile.read(int(self.headers.get("content-length") or 0))
    def reply(self, data, kind="application/json", more=()):
        self.send_response(200)
        self.send_header("content-type", kind); self.send_header("content-length", str(len(data)))
        for k, v in more: self.send_header(k, v)
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(data)
    def do_GET(self):
        with open("/tmp/seen", "a") as f: f.write(self.command + " " + self.path + "\n")
        path = self.path.split("?")[0]
        if self.headers.get("upgrade", "").lower() == "websocket": return self.socket()
        if path == "/events":
            self.send_response(200); self.send_header("content-type", "text/event-stream"); self.end_headers()
            self.close_connection = True
            try:
                for n in range(1000):
                    self.wfile.write(b"data: %d\n\n" % n); self.wfile.flush(); time.sleep(0.2)
            except OSError:
                open("/tmp/left", "w").write("yes")
            return
        if path == "/big":
            self.send_response(200); self.send_header("content-length", str(200 << 20)); self.end_headers()
            for _ in range(200): self.wfile.write(b"x" * (1 << 20))
            return
        if path == "/trailers":
            self.send_response(200); self.send_header("transfer-encoding", "chunked"); self.send_header("trailer", "x-sum"); self.end_headers()
            return self.wfile.write(b"2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n")
        if path == "/cookie":
            more = [("set-cookie", "a=1; Domain=localhost"), ("service-worker-allowed", "/"), ("location", "/x"), ("connection", "x-hop"), ("x-hop", "1")]
            return self.reply(b"{}", more=more)
        body = self.body()
        if path == "/count": return self.reply(json.dumps({"bytes": len(body)}).encode())
        headers = [[k.lower(), v] for k, v in self.headers.items()]
        self.reply(json.dumps({"method": self.command, "path": self.path, "headers": headers, "peer": self.client_address[1], "body": body.decode("latin-1")}).encode())
    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET
    def socket(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket"); self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            first = self.rfile.read(2)
            if len(first) < 2 or first[0] & 15 == 8: return
            size = first[1] & 127
            if size == 126: size = int.from_bytes(self.rfile.read(2), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            head = bytes([129, len(data)]) if len(data) < 126 else bytes([129, 126]) + len(data).to_bytes(2, "big")
            self.wfile.write(head + data); self.wfile.flush()

class Server(ThreadingHTTPServer):
    request_queue_size = 256
Server(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
"#;

/// A sandbox with the app as its own command, listening on 127.0.0.1 inside.
async fn app(client: &Client) -> String {
    app_with(client, json!({})).await
}

async fn app_with(client: &Client, more: Value) -> String {
    let mut spec = json!({ "command": ["python3", "-c", APP, "8080"] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let id = client.create(spec).await;
    let listening = async || client.sh(&id, "grep -q ':1F90 ' /proc/net/tcp").await.code == 0;
    until("the app listens", async || listening().await.then_some(())).await;
    id
}

fn http() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(Duration::from_millis(300))
        .timeout(Duration::from_secs(60))
        .build()
        .unwrap()
}

/// A request to a host of the server, whatever names resolve to.
fn ask(method: Method, host: &str, path: &str) -> reqwest::RequestBuilder {
    http().request(method, format!("http://{SERVER}{path}")).header("host", host)
}

fn get(host: &str, path: &str) -> reqwest::RequestBuilder {
    ask(Method::GET, host, path)
}

async fn code(request: reqwest::RequestBuilder) -> (u16, String) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let body: Value = serde_json_of(&answer.bytes().await.unwrap());
    (status, body["code"].as_str().unwrap_or_default().to_owned())
}

fn serde_json_of(bytes: &[u8]) -> Value {
    json_from(bytes).unwrap_or(Value::Null)
}

fn json_from(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

async fn echoed(request: reqwest::RequestBuilder) -> Value {
    let answer = request.send().await.unwrap();
    let (status, bytes) = (answer.status(), answer.bytes().await.unwrap());
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&bytes));
    serde_json_of(&bytes)
}

fn header(echo: &Value, name: &str) -> Vec<String> {
    let all = echo["headers"].as_array().unwrap().iter();
    all.filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned()).collect()
}

fn bearer(client: &Client) -> String {
    format!("Bearer {}", client.key())
}

/// Sends raw bytes and answers with all that comes.
async fn raw(bytes: &str) -> String {
    let mut stream = TcpStream::connect(SERVER).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

#[test]
fn a_port_is_private_and_reached_by_host_and_by_path_with_a_key() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let id = app(&client).await;
        let hosts =
            [format!("8080-{id}.localhost:7070"), format!("{id}-8080.LOCALHOST"), format!("{id}.localhost")];
        for host in &hosts {
            assert_eq!(code(get(host, "/x")).await, (401, "unauthenticated".into()), "{host}");
            assert_eq!(code(get(host, "/x").header("authorization", bearer(&other))).await.0, 404, "{host}");
            let echo = echoed(get(host, "/x?a=%20b").header("authorization", bearer(&client))).await;
            assert_eq!(echo["path"], "/x?a=%20b");
            assert_eq!(header(&echo, "host").concat(), *host);
        }
        let path = format!("/p/{id}/8080");
        assert_eq!(code(get("localhost", &format!("{path}/x"))).await.0, 401);
        let echo = echoed(get("127.0.0.1", &format!("{path}/x?q")).header("x-api-key", client.key())).await;
        assert_eq!(
            (echo["path"].as_str(), &header(&echo, "x-forwarded-prefix")[..]),
            (Some("/x?q"), &[path.clone()][..])
        );
        let slash = get("localhost", &path).header("x-api-key", client.key()).send().await.unwrap();
        assert_eq!(
            (slash.status().as_u16(), slash.headers()["location"].to_str().unwrap()),
            (302, &*format!("{path}/"))
        );
        // What is not there looks like what is another's.
        let nobody = format!("8080-{}.localhost", "z".repeat(20));
        assert_eq!(code(get(&nobody, "/")).await, (401, "unauthenticated".into()));
        assert_eq!(
            code(get(&nobody, "/").header("authorization", bearer(&client))).await,
            (404, "sandbox_not_found".into())
        );
        // The agent's own port is not reachable; its host belongs to E2B's front, which does not accept sandboxes of
        // other fronts.
        for who in [client.key(), w.admin().key()] {
            for (host, path, status) in [
                (format!("49983-{id}.localhost"), "/hold".to_owned(), 502),
                ("localhost".into(), format!("/p/{id}/49983/hold"), 404),
            ] {
                assert_eq!(code(get(&host, &path).header("x-api-key", who)).await.0, status);
            }
        }
        let refused = client.post(&format!("/v1/sandboxes/{id}/previews"), json!({ "port": 49983 })).await;
        refused.refused(400, "invalid_request");
        // The API itself is where it was.
        assert_eq!(http().get(format!("http://{SERVER}/health")).send().await.unwrap().status(), 200);
    });
}

#[test]
fn a_link_opens_one_port_until_it_ends_or_is_closed_and_a_public_port_is_open() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let id = app(&client).await;
        let previews = format!("/v1/sandboxes/{id}/previews");
        other.post(&previews, json!({ "port": 8080 })).await.refused(404, "sandbox_not_found");
        let made = client.post(&previews, json!({ "port": 8080, "expires_s": 600 })).await.ok();
        let (token, preview) = (made["token"].as_str().unwrap(), made["id"].as_str().unwrap());
        let (host, query) = (format!("8080-{id}.localhost"), format!("atoll_token={token}"));
        assert_eq!(made["url"], format!("http://{host}:7070/?{query}"));
        let echo = echoed(get(&host, &format!("/a?b=1&{query}&c"))).await;
        assert_eq!(echo["path"], "/a?b=1&c");
        assert!(!echo.to_string().contains(token), "{echo}");
        assert_eq!(echoed(get("localhost", &format!("/p/{id}/8080/y?{query}"))).await["path"], "/y");
        // A browser goes on without the token.
        let browser =
            get(&host, &format!("/a?{query}&z=1")).header("accept", "text/html").send().await.unwrap();
        assert_eq!(
            (browser.status().as_u16(), browser.headers()["location"].to_str().unwrap()),
            (302, "/a?z=1")
        );
        let cookie = browser.headers()["set-cookie"].to_str().unwrap().to_owned();
        assert!(cookie.contains("HttpOnly") && !cookie.to_lowercase().contains("domain"), "{cookie}");
        let cookie = format!("mine=1; {}", cookie.split(';').next().unwrap());
        let echo = echoed(get(&host, "/a").header("cookie", &cookie)).await;
        assert_eq!(header(&echo, "cookie"), ["mine=1"]);
        let foreign = get(&host, "/a").header("cookie", &cookie).header("origin", "http://9-x.localhost");
        assert_eq!(code(foreign).await, (403, "forbidden".into()));
        let away = get(&host, &format!("//evil.example/?{query}"))
            .header("accept", "text/html")
            .send()
            .await
            .unwrap();
        assert_eq!(away.headers()["location"], "/.//evil.example/");
        // Another port, another sandbox, another token.
        assert_eq!(code(get(&format!("8081-{id}.localhost"), &format!("/?{query}"))).await.0, 403);
        assert_eq!(code(get(&host, &format!("/?{query}0"))).await, (403, "forbidden".into()));
        let listed = client.get(&previews).await.ok();
        assert!(
            listed["items"].as_array().unwrap().len() == 1 && !listed.to_string().contains(token),
            "{listed}"
        );
        assert!(!w.log().contains(token), "a token in the log");
        // Over a restart of the server, then closed.
        w.crash_server().await;
        echoed(get(&host, &format!("/?{query}"))).await;
        client.delete(&format!("{previews}/{preview}")).await.ok();
        assert_eq!(code(get(&host, &format!("/?{query}"))).await.0, 403);
        assert_eq!(code(get(&host, "/").header("cookie", &cookie)).await.0, 403);
        client.delete(&format!("{previews}/{preview}")).await.refused(404, "preview_not_found");
        // Ends by itself.
        let short = client.post(&previews, json!({ "port": 8080, "expires_s": 4 })).await.ok();
        let path = format!("/?atoll_token={}", short["token"].as_str().unwrap());
        echoed(get(&host, &path)).await;
        until("it ends", async || (code(get(&host, &path)).await.0 == 403).then_some(())).await;
        // Open to all.
        let open = client.post(&previews, json!({ "port": 8080, "public": true })).await.ok();
        assert_eq!((open["token"].clone(), open["expires_at"].clone()), (Value::Null, Value::Null));
        echoed(get(&host, "/")).await;
        echoed(get(&host, &path)).await;
        assert_eq!(code(get(&format!("8081-{id}.localhost"), "/")).await.0, 401);
    });
}

/// Attack N11.
#[test]
fn the_app_sees_its_own_credentials_and_none_of_ours() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let host = format!("8080-{id}.localhost");
        let echo = echoed(
            get(&host, "/")
                .header("authorization", bearer(&client))
                .header("x-api-key", "the-apps-own")
                .header("x-forwarded-for", "6.6.6.6")
                .header("x-forwarded-host", "evil")
                .header("x-real-ip", "6.6.6.6")
                .header("forwarded", "for=6.6.6.6")
                .header("connection", "x-gone")
                .header("x-gone", "1")
                .header("te", "trailers"),
        )
        .await;
        assert!(!echo.to_string().contains(client.key()), "{echo}");
        assert!(!echo.to_string().contains("6.6.6.6") && !echo.to_string().contains("evil"), "{echo}");
        assert_eq!(header(&echo, "x-api-key"), ["the-apps-own"]);
        assert_eq!(header(&echo, "x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(header(&echo, "x-forwarded-host").concat(), host);
        assert_eq!(header(&echo, "x-forwarded-proto"), ["http"]);
        assert_eq!(header(&echo, "x-gone"), Vec::<String>::new());
        let echo =
            echoed(get(&host, "/").header("x-api-key", client.key()).header("authorization", "Basic YTpi"))
                .await;
        assert_eq!(header(&echo, "authorization"), ["Basic YTpi"]);
        assert!(!echo.to_string().contains(client.key()), "{echo}");
        // Hops are counted, and a circle ends.
        let hops =
            |n: &str| get(&host, "/").header("x-api-key", client.key()).header("x-atoll-hops", n.to_owned());
        assert_eq!(header(&echoed(hops("3")).await, "x-atoll-hops"), ["4"]);
        assert_eq!(code(hops("8")).await, (508, "loop_detected".into()));
        // On the origin of the API an answer keeps to its page.
        let path = format!("/p/{id}/8080/cookie");
        let answer = get("localhost", &path).header("x-api-key", client.key()).send().await.unwrap();
        let headers = answer.headers();
        assert_eq!(headers["content-security-policy"], "sandbox allow-scripts allow-forms");
        assert_eq!(headers["location"], format!("/p/{id}/8080/x"));
        assert!(!headers.contains_key("set-cookie") && !headers.contains_key("service-worker-allowed"));
        assert!(!headers.contains_key("x-hop"));
        let worker =
            get("localhost", &path).header("x-api-key", client.key()).header("service-worker", "script");
        assert_eq!(code(worker).await.0, 403);
        let own = get(&host, "/cookie").header("x-api-key", client.key()).send().await.unwrap();
        assert_eq!(own.headers()["set-cookie"], "a=1");
    });
}

#[test]
fn hosts_that_are_none_and_messages_that_hide_a_second_are_refused() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let host = format!("8080-{id}.localhost");
        let key = client.key();
        let status = |answer: &str| answer.split(' ').nth(1).unwrap_or("none").to_owned();
        for (head, wanted) in [
            (format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n"), "400"),
            (format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: localhost\r\n"), "400"),
            (format!("GET http://8081-{id}.localhost/ HTTP/1.1\r\nHost: {host}\r\n"), "400"),
            (format!("GET / HTTP/1.1\r\nHost: user@{host}\r\n"), "400"),
            ("GET / HTTP/1.1\r\nHost: nobody.localhost\r\n".to_owned(), "421"),
            (format!("GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n"), "400"),
            (format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: xchunked\r\n"), "400"),
            (format!("POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked, identity\r\n"), "400"),
            (format!("POST / HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n"), "400"),
            (format!("GET / HTTP/1.1\r\nHost : {host}\r\n"), "400"),
            (format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: a\r\n b\r\n"), "400"),
            (format!("CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: {host}\r\n"), "403"),
        ] {
            let answer = raw(&format!("{head}X-Api-Key: {key}\r\nConnection: close\r\n\r\n")).await;
            assert_eq!(status(&answer), wanted, "{head}\n{answer}");
        }
        // A length beside chunks, and nothing behind it is ever a request. More of this in smuggling.rs.
        let hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";
        for lengths in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
        ] {
            let both = format!(
                "POST /both HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\n{lengths}\r\n\r\n0\r\n\r\n{hidden}"
            );
            let answer = raw(&both).await;
            assert_eq!(
                (status(&answer).as_str(), answer.matches("HTTP/1.1 ").count()),
                ("400", 1),
                "{answer}"
            );
        }
        for chunk in
            ["zz\r\nhello\r\n0\r\n\r\n", "5\r\nhelloXX0\r\n\r\n", "-1\r\n\r\n", "ffffffffffffffffff\r\n"]
        {
            let bad = format!(
                "POST /bad HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{hidden}"
            );
            let answer = raw(&bad).await;
            assert!(!answer.contains(" 200 "), "{chunk:?}: {answer}");
        }
        let seen = client.sh(&id, "cat /tmp/seen").await.stdout;
        assert!(!seen.contains("hidden"), "{seen}");
        assert_eq!(echoed(get(&host, "/after").header("x-api-key", key)).await["path"], "/after");
    });
}

#[test]
fn streams_tunnels_and_large_bodies_pass_as_they_come() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let host = format!("8080-{id}.localhost");
        let keyed = |method: Method, path: &str| ask(method, &host, path).header("x-api-key", client.key());
        // Server-sent events come one by one; a client that goes ends the app's side.
        let begun = Instant::now();
        let answer = keyed(Method::GET, "/events").send().await.unwrap();
        let mut events = answer.bytes_stream();
        assert_eq!(&events.next().await.unwrap().unwrap()[..], b"data: 0\n\n");
        assert!(begun.elapsed() < Duration::from_secs(60), "long before the last of them");
        events.next().await.unwrap().unwrap();
        drop(events);
        until("the app sees its client go", async || {
            (client.sh(&id, "cat /tmp/left").await.code == 0).then_some(())
        })
        .await;
        // A socket.
        let mut request = format!("ws://{SERVER}/socket").into_client_request().unwrap();
        request.headers_mut().insert("host", host.parse().unwrap());
        request.headers_mut().insert("x-api-key", client.key().parse().unwrap());
        let stream = TcpStream::connect(SERVER).await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        for text in ["hello", &"x".repeat(5_000)] {
            socket.send(Message::text(text)).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap().into_text().unwrap().as_str(), text);
        }
        let why = client.get(&format!("/v1/sandboxes/{id}/awake")).await.ok();
        assert!(why["idle"] == false, "an open socket is work: {why}");
        drop(socket);
        // Without a key there is no socket.
        let mut request = format!("ws://{SERVER}/socket").into_client_request().unwrap();
        request.headers_mut().insert("host", host.parse().unwrap());
        let stream = TcpStream::connect(SERVER).await.unwrap();
        assert!(tokio_tungstenite::client_async(request, stream).await.is_err());
        // Bodies with a length, in chunks, and after 100 Continue.
        let sent = vec![b'y'; 3 << 20];
        assert_eq!(echoed(keyed(Method::PUT, "/count").body(sent.clone())).await["bytes"], sent.len());
        let pieces = futures::stream::iter((0..48).map(|_| Ok::<_, std::io::Error>(vec![b'z'; 64 << 10])));
        let chunked = keyed(Method::POST, "/count").body(reqwest::Body::wrap_stream(pieces));
        assert_eq!(echoed(chunked).await["bytes"], 48 * (64 << 10));
        let mut stream = TcpStream::connect(SERVER).await.unwrap();
        let head = format!(
            "POST /x HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {}\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n",
            client.key()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0u8; 25];
        stream.read_exact(&mut first).await.unwrap();
        assert!(first.starts_with(b"HTTP/1.1 100 Continue"), "{}", String::from_utf8_lossy(&first));
        stream.write_all(b"hi").await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.starts_with("HTTP/1.1 200") && rest.contains("\"body\": \"hi\""), "{rest}");
        // Trailers pass to who takes them.
        let head = format!(
            "GET /trailers HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {}\r\nTE: trailers\r\nConnection: close, te\r\n\r\n",
            client.key()
        );
        let answer = raw(&head).await;
        assert!(answer.contains("hi\r\n0\r\nx-sum: 42\r\n"), "{answer}");
        // A connection to the app serves one request after the other.
        // It is kept only when its answer was passed on to the end, a moment later.
        let mut last = echoed(keyed(Method::GET, "/")).await["peer"].clone();
        until("a connection is used again", async || {
            let peer = echoed(keyed(Method::GET, "/")).await["peer"].clone();
            let same = peer == last;
            last = peer;
            same.then_some(())
        })
        .await;
        // 200 MB through, with flat memory.
        let before = resident_kib(w.server_pid());
        let mut big = keyed(Method::GET, "/big").send().await.unwrap().bytes_stream();
        let mut got = 0;
        while let Some(piece) = big.next().await {
            got += piece.unwrap().len();
        }
        assert_eq!(got, 200 << 20);
        let grown = resident_kib(w.server_pid()).saturating_sub(before);
        assert!(grown < 32 << 10, "the server grew by {grown} KiB");
        // A client that reads nothing stops the app, not the server.
        let slow = keyed(Method::GET, "/big").send().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(resident_kib(w.server_pid()).saturating_sub(before) < 32 << 10);
        drop(slow);
    });
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_request_wakes_as_the_lease_says_and_a_person_sees_a_page() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let host = format!("8080-{id}.localhost");
        let keyed = |path: &str| get(&host, path).header("x-api-key", client.key());
        for verb in ["pause", "stop"] {
            client.act(&id, verb).await.ok();
            assert_eq!(code(get(&host, "/")).await.0, 401, "who may not, does not wake");
            assert_ne!(client.sandbox(&id).await["phase"], "running");
            assert_eq!(echoed(keyed("/woken")).await["path"], "/woken", "{verb}");
            assert_eq!(client.sandbox(&id).await["phase"], "running");
        }
        // Nothing listens.
        let closed = format!("9-{id}.localhost");
        let program = get(&closed, "/").header("x-api-key", client.key());
        assert_eq!(code(program).await, (503, "port_closed".into()));
        let page = get(&closed, "/").header("x-api-key", client.key()).header("accept", "text/html,*/*");
        let page = page.send().await.unwrap();
        assert_eq!(
            (page.status(), page.headers().contains_key("retry-after")),
            (StatusCode::SERVICE_UNAVAILABLE, true)
        );
        let text = page.text().await.unwrap();
        assert!(
            text.contains("http-equiv=\"refresh\"") && text.contains("no program listens on port 9"),
            "{text}"
        );
        assert!(!text.contains("<script"), "{text}");
        // A person in front of one that stopped gets there by looking again.
        client.act(&id, "stop").await.ok();
        until("the page becomes the app", async || {
            let answer = keyed("/").header("accept", "text/html").send().await.unwrap();
            assert!(matches!(answer.status().as_u16(), 200 | 503), "{answer:?}");
            (answer.status() == 200).then_some(())
        })
        .await;
        // Only by its own verbs.
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "wake": "explicit" })).await.ok();
        client.act(&id, "pause").await.ok();
        assert_eq!(code(keyed("/")).await, (409, "asleep".into()));
        // What is deleted is not reached over an old connection.
        client.act(&id, "resume").await.ok();
        echoed(keyed("/")).await;
        client.remove(&id).await;
        assert_eq!(code(keyed("/")).await, (404, "sandbox_not_found".into()));
    });
}

#[test]
fn the_command_line_opens_lists_and_closes() {
    run(async |w| {
        let admin = w.admin();
        let id = app(&admin).await;
        let atoll = async |args: &[&str]| {
            let mut command = w.command();
            command.args(args);
            let output = w.output(command).await;
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let url = atoll(&["preview", &id, "8080", "--expires", "10m"]).await;
        let path = url.strip_prefix(&format!("http://8080-{id}.localhost:7070")).unwrap().to_owned();
        let host = format!("8080-{id}.localhost");
        echoed(get(&host, &path)).await;
        let listed = json_from(atoll(&["preview", "ls", &id, "--json"]).await.as_bytes()).unwrap();
        let preview = listed[0]["id"].as_str().unwrap();
        assert!(atoll(&["preview", "ls", &id]).await.contains(preview));
        atoll(&["preview", "rm", &id, preview]).await;
        assert_eq!(code(get(&host, &path)).await.0, 403);
    });
}
