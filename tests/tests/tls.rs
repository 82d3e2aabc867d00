//! TLS, HTTP/2, gRPC, `CONNECT` and the fields of fronts through a real server: `atoll tls`, `atoll env`, certificates that
//! change while it runs.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use atoll_tests::poll::PATIENCE;
use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use bytes::Bytes;
use nix::sys::signal::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PLAIN: &str = "127.0.0.1:7070";
const TLS: &str = "127.0.0.1:7443";

/// Tells the head of what it gets. On 8081 it speaks HTTP/2 as a gRPC server does: a message back, then trailers.
const APP: &str = r#"
import json, socket, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        while self.headers.get("transfer-encoding") == "chunked":
            size = int(self.rfile.readline(), 16)
            body += self.rfile.read(size); self.rfile.readline()
            if not size: break
        data = json.dumps({"path": self.path, "headers": [[k.lower(), v] for k, v in self.headers.items()], "body": body.decode()}).encode()
        self.send_response(200); self.send_header("content-length", str(len(data))); self.end_headers(); self.wfile.write(data)
    do_POST = do_GET
def frame(kind, flags, stream, data=b""):
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data
def text(s): return bytes([len(s)]) + s
def grpc(c):
    f = c.makefile("rb")
    if f.read(24) != b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": return c.close()
    c.sendall(frame(4, 0, 0))
    got = {}
    while True:
        head = f.read(9)
        if len(head) < 9: return
        size, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        data = f.read(size)
        if kind == 4 and not flags & 1: c.sendall(frame(4, 1, 0))
        if kind == 6 and not flags & 1: c.sendall(frame(6, 1, 0, data))
        if kind == 0:
            got[stream] = got.get(stream, b"") + data
            if size: c.sendall(frame(8, 0, 0, size.to_bytes(4, "big")) + frame(8, 0, stream, size.to_bytes(4, "big")))
        if kind in (0, 1) and flags & 1:
            c.sendall(frame(1, 4, stream, b"\x88\x00" + text(b"content-type") + text(b"application/grpc")))
            c.sendall(frame(0, 0, stream, got.get(stream, b"")))
            c.sendall(frame(1, 5, stream, b"\x00" + text(b"grpc-status") + text(b"0")))
def many():
    s = socket.create_server(("127.0.0.1", 8081))
    while True:
        c, _ = s.accept()
        threading.Thread(target=grpc, args=(c,), daemon=True).start()
threading.Thread(target=many, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", 8080), App).serve_forever()
"#;

async fn app(client: &Client) -> String {
    let id = client.create(json!({ "command": ["python3", "-c", APP] })).await;
    let listening = async || {
        client.sh(&id, "grep -q ':1F90 ' /proc/net/tcp && grep -q ':1F91 ' /proc/net/tcp").await.code == 0
    };
    until("the app listens", async || listening().await.then_some(())).await;
    id
}

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options { tls: true, ..Options::debian() }, body);
}

async fn tls_is_open() -> TcpStream {
    until("TLS is open", async || TcpStream::connect(TLS).await.ok()).await
}

/// A connector that trusts the server's own authority only.
fn connector(w: &World, protocols: &[&str]) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(w.data().join("tls/ca.pem")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn secure<I: AsyncRead + AsyncWrite + Unpin>(
    w: &World,
    io: I,
    name: &str,
    protocols: &[&str],
) -> std::io::Result<TlsStream<I>> {
    connector(w, protocols).connect(ServerName::try_from(name.to_owned()).unwrap(), io).await
}

/// One request over HTTP/1, and all that comes.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), host: &str, more: &str) -> String {
    let head = format!("GET /x?y HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn echoed(answer: &str) -> Value {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.parse().unwrap()
}

fn header(echo: &Value, name: &str) -> Vec<String> {
    let all = echo["headers"].as_array().unwrap().iter();
    all.filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned()).collect()
}

struct Got {
    status: u16,
    body: Bytes,
    trailers: Option<http::HeaderMap>,
}

/// One request over HTTP/2.
async fn ask_http2(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: http::Request<()>,
    body: Option<&'static [u8]>,
) -> Got {
    let (mut sender, connection) = h2::client::handshake(io).await.unwrap();
    let connection = tokio::spawn(connection);
    let (answer, mut sends) = sender.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        sends.send_data(Bytes::from_static(body), true).unwrap();
    }
    let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap();
    let status = answer.status().as_u16();
    let mut receives = answer.into_body();
    let mut all = Vec::new();
    while let Some(piece) = receives.data().await {
        let piece = piece.unwrap();
        receives.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    let trailers = receives.trailers().await.unwrap();
    connection.abort();
    Got { status, body: all.into(), trailers }
}

#[test]
fn a_sandbox_is_reached_over_tls_by_names_that_every_client_takes() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let key = format!("X-Api-Key: {}\r\n", client.key());
        for name in [
            format!("{id}.atoll.localhost"),
            format!("{id}-8080.atoll.localhost"),
            format!("8080-{id}.atoll.localhost"),
        ] {
            let mut stream = secure(w, tls_is_open().await, &name, &["http/1.1"]).await.unwrap();
            let echo = echoed(&ask(&mut stream, &format!("{name}:7443"), &key).await);
            assert_eq!(header(&echo, "x-forwarded-proto"), ["https"]);
            assert!(!echo.to_string().contains(client.key()), "{echo}");
        }
        // The API and plain refusals, over HTTP/2 too.
        let stream = secure(w, tls_is_open().await, "localhost", &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let health = http::Request::get("https://localhost:7443/health").body(()).unwrap();
        assert_eq!(ask_http2(stream, health, None).await.status, 200);
        // What the authority may not sign for is no name of this server.
        assert!(secure(w, tls_is_open().await, "example.com", &["h2"]).await.is_err());
        // OpenSSL has its own idea of wildcards.
        let line = format!(
            "openssl s_client -connect {TLS} -servername {id}.atoll.localhost -verify_hostname {id}.atoll.localhost -verify_return_error -CAfile {} </dev/null",
            w.data().join("tls/ca.pem").display()
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]);
        let output = w.output(command).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn http2_and_grpc_pass_on_both_ports_with_their_trailers() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        let name = format!("{id}-8080.atoll.localhost");
        let plain = http::Request::post(format!("http://{name}/p?q=1"))
            .header("x-api-key", client.key())
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(())
            .unwrap();
        let got = ask_http2(TcpStream::connect(PLAIN).await.unwrap(), plain, Some(b"hello")).await;
        let echo: Value = std::str::from_utf8(&got.body).unwrap().parse().unwrap();
        assert_eq!(
            (got.status, echo["path"].as_str(), echo["body"].as_str()),
            (200, Some("/p?q=1"), Some("hello"))
        );
        assert_eq!(
            (header(&echo, "host"), header(&echo, "cookie")),
            (vec![name], vec!["a=1; b=2".to_owned()])
        );
        let name = format!("{id}-8081.atoll.localhost");
        let call = |scheme: &str| {
            http::Request::post(format!("{scheme}://{name}/pkg.Service/Call"))
                .header("x-api-key", client.key())
                .header("content-type", "application/grpc+proto")
                .header("te", "trailers")
                .body(())
                .unwrap()
        };
        for _ in 0..2 {
            let got =
                ask_http2(TcpStream::connect(PLAIN).await.unwrap(), call("http"), Some(b"\0\0\0\0\x02hi"))
                    .await;
            assert_eq!((got.status, &got.body[..]), (200, &b"\0\0\0\0\x02hi"[..]));
            assert_eq!(got.trailers.unwrap()["grpc-status"], "0");
        }
        let stream = secure(w, tls_is_open().await, &name, &["h2"]).await.unwrap();
        let got = ask_http2(stream, call("https"), Some(b"\0\0\0\0\0")).await;
        assert_eq!((got.status, got.trailers.unwrap()["grpc-status"].clone()), (200, "0".parse().unwrap()));
        // Who may not, may not over HTTP/2.
        let bare = http::Request::get(format!("http://{name}/")).body(()).unwrap();
        assert_eq!(ask_http2(TcpStream::connect(PLAIN).await.unwrap(), bare, None).await.status, 401);
        // Names that disagree.
        let two = http::Request::get(format!("http://{name}/")).header("host", "localhost").body(()).unwrap();
        assert_eq!(ask_http2(TcpStream::connect(PLAIN).await.unwrap(), two, None).await.status, 400);
    });
}

#[test]
fn connect_leads_to_this_server_and_nowhere_else() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = app(&client).await;
        drop(tls_is_open().await);
        let connect = async |target: &str| {
            let mut stream = TcpStream::connect(PLAIN).await.unwrap();
            stream
                .write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let mut head = Vec::new();
            while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                assert!(stream.read_buf(&mut head).await.unwrap() > 0);
            }
            (stream, String::from_utf8_lossy(&head).into_owned())
        };
        let key = format!("Authorization: Bearer {}\r\n", client.key());
        for target in [format!("{id}.atoll.localhost:443"), format!("8080-{id}.atoll.localhost:7443")] {
            let (stream, head) = connect(&target).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            let name = target.split(':').next().unwrap().to_owned();
            let mut stream = secure(w, stream, &name, &["http/1.1"]).await.unwrap();
            let echo = echoed(&ask(&mut stream, &name, &key).await);
            assert_eq!(header(&echo, "x-forwarded-for"), ["127.0.0.1"]);
        }
        let (mut stream, head) = connect("127.0.0.1:7070").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        // Not one inside the other.
        stream.write_all(b"CONNECT 127.0.0.1:7070 HTTP/1.1\r\nHost: 127.0.0.1:7070\r\n\r\n").await.unwrap();
        let mut piece = [0; 64];
        let size = stream.read(&mut piece).await.unwrap();
        assert!(piece[..size].starts_with(b"HTTP/1.1 403"), "{}", String::from_utf8_lossy(&piece[..size]));
        for target in [
            "example.com:443",
            "169.254.169.254:80",
            "127.0.0.1:22",
            "127.0.0.2:7070",
            "[::ffff:127.0.0.1]:7070",
            "localhost:1",
            &format!("{id}.localhost:80"),
        ] {
            let (_, head) = connect(target).await;
            assert!(head.starts_with("HTTP/1.1 403"), "{target}: {head}");
        }
    });
}

#[test]
fn the_fields_of_a_front_name_a_sandbox_and_what_they_name_is_all_that_counts() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let id = app(&client).await;
        let ask = async |key: &str, more: &str| {
            let mut stream = TcpStream::connect(PLAIN).await.unwrap();
            ask(&mut stream, "127.0.0.1:7070", &format!("X-Api-Key: {key}\r\n{more}")).await
        };
        let fields = format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8080\r\n");
        let echo = echoed(&ask(client.key(), &fields).await);
        assert_eq!(echo["path"], "/x?y");
        // As the SDKs whose fields these are want it; what is another's looks like what is not there.
        let unknown = "E2b-Sandbox-Id: aaaaaaaaaaaaaaaaaaaa\r\nE2b-Sandbox-Port: 8080\r\n";
        for (key, fields) in [(other.key(), fields.as_str()), (client.key(), unknown)] {
            let answer = ask(key, fields).await;
            assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("was not found"), "{answer}");
        }
        for bad in [
            "E2b-Sandbox-Id: 169.254.169.254\r\n".to_owned(),
            format!("{fields}E2b-Sandbox-Port: 81\r\n"),
            format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 127.0.0.1:22\r\n"),
        ] {
            assert!(ask(client.key(), &bad).await.starts_with("HTTP/1.1 400"), "{bad}");
        }
        // The agent is behind its own token, whatever names its port; a sandbox of another front looks like none.
        let agent = format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\n");
        let answer = ask(client.key(), &agent).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("was not found"), "{answer}");
    });
}

#[test]
fn the_variables_name_the_tls_port_of_the_server_before_it_has_a_certificate() {
    run_with(Options::default().env("ATOLL_TLS_PORT", "8443"), async |w| {
        let atoll = async |args: &[&str]| {
            let mut command = w.command();
            command.args(args);
            String::from_utf8(w.output(command).await.stdout).unwrap()
        };
        atoll(&["tls", "init"]).await;
        for (sdk, more) in [("leap0", &[][..]), ("e2b", &["--tls"])] {
            let text = atoll(&[&["env", sdk, "--proxy", "never"], more].concat()).await;
            assert!(text.contains(":8443'") && !text.contains("7443"), "{text}");
        }
        // The audit of the data folder knows no certificate.
        std::fs::remove_dir_all(w.data().join("tls")).unwrap();
    });
}

#[test]
fn a_certificate_is_exchanged_while_the_server_runs_and_a_broken_one_is_not_taken() {
    run(async |w| {
        let shown = async || {
            let stream = secure(w, tls_is_open().await, "localhost", &["http/1.1"]).await.ok()?;
            Some(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
        };
        let atoll = async |args: &[&str]| {
            let mut command = w.command();
            command.args(args);
            let output = w.output(command).await;
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let first = shown().await.unwrap();
        let (done, path) = atoll(&["tls", "init"]).await;
        assert!(done && path.trim() == w.data().join("tls/ca.pem").display().to_string(), "{path}");
        w.signal_server(Signal::SIGHUP);
        // The same authority: who trusted it still does.
        let second =
            until("the new one is shown", async || shown().await.filter(|shown| *shown != first)).await;
        std::fs::write(w.data().join("tls/cert.pem"), "broken").unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(shown().await, Some(second.clone()));
        assert!(atoll(&["tls", "init"]).await.0);
        until("it is whole again", async || shown().await.filter(|shown| *shown != second)).await;
        // Another domain needs another authority.
        assert!(!atoll(&["tls", "init", "--domain", "preview.example.com"]).await.0);
        assert!(atoll(&["tls", "show"]).await.1.contains("*.atoll.localhost"));
        assert!(atoll(&["tls", "ca"]).await.1.starts_with("-----BEGIN CERTIFICATE-----"));
        // What an SDK needs, and never a key unless it was asked for.
        let (_, text) = atoll(&["env", "leap0", "--proxy", "never"]).await;
        assert!(text.contains("export LEAP0_BASE_URL='http://127.0.0.1:7070/leap0'\n"), "{text}");
        assert!(text.contains("export LEAP0_SANDBOX_DOMAIN='atoll.localhost:7443'\n"), "{text}");
        assert!(text.contains("SSL_CERT_FILE=") && !text.contains("KEY="), "{text}");
        let (_, text) =
            atoll(&["env", "e2b", "--tls", "--proxy", "always", "--with-key", "--shell", "fish"]).await;
        assert!(text.contains("set -gx E2B_API_KEY 'e2b_") && text.contains("set -gx HTTPS_PROXY"), "{text}");
        let mut shell = std::process::Command::new("sh");
        let program = w.command().get_program().to_string_lossy().into_owned();
        shell.args(["-c", &format!("eval \"$({program} env daytona)\"; printf %s \"$DAYTONA_API_URL\"")]);
        shell.env("ATOLL_DATA", w.data()).env("ATOLL_URL", format!("http://{PLAIN}"));
        assert_eq!(
            String::from_utf8(w.output(shell).await.stdout).unwrap(),
            format!("http://{PLAIN}/daytona/api")
        );
    });
}
