//! A real server with the provider `agentbay`, over TLS: from create to delete, over a crash of the server; and the example that
//! does one task at every provider.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "the table of the example is shown")]

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_tests::agentbay::{AgentbayService, KEY};
use atoll_tests::fault_proxy::{Fault, FaultProxy};
use atoll_tests::{Client, Options, Value, World, json, run_with, until};

use crate::remote_server::{CrashRequest, CrashWorld, RemoteService};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SERVER: &str = "127.0.0.1:7070";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Writes the settings of a provider and waits until the server has opened it.
pub(crate) async fn configure(world: &World, name: &str, settings: &Value) {
    let folder = world.data().join("sandboxes");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(".new"), settings.to_string()).unwrap();
    std::fs::rename(folder.join(".new"), folder.join(format!("{name}.json"))).unwrap();
    until("the server notices the settings", async || {
        let listed = world.admin().get("/v1/providers").await.ok();
        let is_open = |item: &Value| item["name"] == name && item["problem"].is_null();
        listed["items"].as_array().unwrap().iter().any(is_open).then_some(())
    })
    .await;
}

/// A service over TLS that the server of this world trusts, and the provider `bay` for it. Its sessions are sandboxes of the same
/// server.
pub(crate) async fn with_service(world: &World) -> (AgentbayService, FaultProxy) {
    with_service_of(world, world.tenant("vendor").await).await
}

/// As [`with_service`]; its sessions are sandboxes of an account.
async fn with_service_of(world: &World, account: Client) -> (AgentbayService, FaultProxy) {
    let service = AgentbayService::start(account).await;
    let proxy = FaultProxy::start_tls(service.address).await;
    let authority = format!("localhost:{}", proxy.address.port());
    service.set_public(&authority);
    let trusted = world.folder().join("authority.pem");
    std::fs::write(&trusted, &proxy.authority_pem).unwrap();
    world.set_env("SSL_CERT_FILE", &trusted.display().to_string());
    world.crash_server().await;
    let settings = json!({ "provider": "agentbay", "agentbay": {
        "api_key": KEY, "endpoint": authority, "image_id": "code_latest", "context_path": "/workspace" } });
    configure(world, "bay", &settings).await;
    (service, proxy)
}

/// A provider keeps its settings and its owner label.
pub(crate) fn forget_providers(world: &World) {
    for folder in ["sandboxes", "providers"] {
        std::fs::remove_dir_all(world.data().join(folder)).unwrap();
    }
}

async fn preview(client: &Client, id: &str, port: u16) -> (u16, String) {
    let host = format!("{port}-{id}.localhost:7070");
    let request = reqwest::Client::new().get(format!("http://{SERVER}/")).header("host", host);
    let answer = request.bearer_auth(client.key()).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[test]
fn a_sandbox_at_agentbay_is_used_paused_adopted_and_deleted() {
    run_with(Options::default(), async |w| {
        let (service, proxy) = with_service(w).await;
        let client = w.first_tenant().await;
        // The first create is done, and its reply lost.
        let mut is_first = true;
        proxy.set_rule(move |_, path| {
            let loses = path.contains("Action=CreateMcpSession") && std::mem::take(&mut is_first);
            if loses { Fault::LoseReply } else { Fault::None }
        });
        let id = client.create(json!({ "provider": "bay", "name": "box" })).await;
        let about = client.sandbox(&id).await;
        assert_eq!((&about["provider"], &about["isolation"]), (&json!("bay"), &json!("vendor")), "{about}");
        assert_eq!(service.sessions("atoll.sandbox", &id).len(), 1);

        use_it(&client, &id).await;
        let missing = crate::moving::atoll(w, &["exec", &id, "no-such-program"]).await;
        assert_eq!(missing.status.code(), Some(127), "{missing:?}");
        refusals(&client, &id).await;

        client.act(&id, "pause").await.ok();
        let session = service.sessions("atoll.sandbox", &id)[0].0.clone();
        assert_eq!(service.status(&session), Some("PAUSED"));
        w.crash_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "paused");
        client.act(&id, "resume").await.ok();
        w.crash_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "running");
        assert_eq!(client.sh(&id, "cat /workspace/a").await.text(), "text of a file");
        assert_eq!(
            preview(&client, &id, 8080).await,
            (200, "page\n".to_owned()),
            "its processes are the same"
        );
        client.remove(&id).await;
        assert_eq!(service.sessions("atoll.sandbox", &id), []);
        assert!(!w.log().contains("akm-") && !w.log().contains("link-token"), "a secret is in the log");
        forget_providers(w);
    });
}

/// Commands, files and ports.
async fn use_it(client: &Client, id: &str) {
    let ran = client.sh(id, "pwd; echo error >&2; exit 3").await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "/workspace\n", "error\n"));
    client.write_file(id, "/workspace/a", "text of a file").await.ok();
    assert_eq!(client.sh(id, "cat a").await.text(), "text of a file");
    client.sh(id, "printf 'made inside' >b; chmod 640 b").await;
    assert_eq!(client.read_file(id, "/workspace/b").await.bytes, "made inside");
    client
        .sh(id, "mkdir /tmp/www; echo page >/tmp/www/index.html; httpd -p 127.0.0.1:8080 -h /tmp/www")
        .await;
    assert_eq!(preview(client, id, 8080).await, (200, "page\n".to_owned()));
    let metrics = client.get(&format!("/v1/sandboxes/{id}/metrics")).await.ok();
    assert!(metrics.to_string().contains("memory"), "{metrics}");
}

/// What does not exist at such a service is refused by the name of what is missing, and changes nothing.
async fn refusals(client: &Client, id: &str) {
    let refused = async |path: &str, body: Value, word: &str| {
        let refusal = client.post(path, body).await.refused(501, "unsupported");
        assert!(refusal["message"].as_str().unwrap().contains(word), "{refusal}");
    };
    let sandbox = |path: &str| format!("/v1/sandboxes/{id}{path}");
    refused(&sandbox("/stop"), json!({}), "keep_files").await;
    refused(&sandbox("/snapshots"), json!({}), "snapshot").await;
    refused(&sandbox("/terminals"), json!({ "thread": "t", "cols": 80, "rows": 24 }), "terminal").await;
    let input = json!({ "argv": ["cat"], "stdin": "text" });
    refused(&sandbox("/exec"), input, "stdin").await;
    let more = |field: &str, value: Value| {
        let mut body = json!({ "provider": "bay" });
        body[field] = value;
        body
    };
    refused("/v1/sandboxes", more("network", json!({ "mode": "deny-all" })), "egress").await;
    refused("/v1/sandboxes", more("memory_mib", json!(256)), "limit").await;
    refused("/v1/sandboxes", more("auto_stop_s", json!(60)), "keep_files").await;
    refused("/v1/sandboxes", more("user", json!("nobody")), "user").await;
    let image = more("template", json!("no-such-image"));
    client.post("/v1/sandboxes", image).await.refused(404, "template_not_found");
    let limits = client.patch(&sandbox(""), json!({ "memory_mib": 128 })).await;
    limits.refused(501, "unsupported");
    assert_eq!(client.sandbox(id).await["phase"], "running");
}

/// The answer to a request as it is written.
async fn raw_preview(client: &Client, id: &str, port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(SERVER).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {port}-{id}.localhost:7070\r\nx-api-key: {}\r\nconnection: close\r\n\r\n",
        client.key()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[test]
fn a_link_to_the_network_of_this_server_is_not_followed() {
    run_with(Options::default(), async |w| {
        let (service, _proxy) = with_service(w).await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "bay" })).await;
        client
            .sh(&id, "mkdir /tmp/www; echo page >/tmp/www/index.html; httpd -p 127.0.0.1:8080 -h /tmp/www")
            .await;
        // The link has a path of its own, which no request leaves.
        assert_eq!(preview(&client, &id, 8080).await.0, 200);
        for path in ["/../x", "/a/%2e%2e/%2E%2e/x", "/..%2f..%2fx", "/%252e%252e/x"] {
            let answer = raw_preview(&client, &id, 8080, path).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{path}: {answer}");
        }
        // Every port has a link of its own, which is asked for once.
        let trap = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plain = format!("http://{}/ports/x?token=link-token", trap.local_addr().unwrap());
        let links = [
            (9001, plain.as_str(), "without TLS"),
            (9002, "https://169.254.169.254/latest/meta-data?token=link-token", "metadata"),
            (9003, "https://[fe80::1]/x", "not public"),
            (9004, "https://[::ffff:169.254.169.254]/x", "metadata"),
            (9005, "https://100.64.0.1/x", "sandboxes"),
        ];
        for (port, link, word) in links {
            service.set_false_link(link);
            let (status, said) = preview(&client, &id, port).await;
            assert!(status >= 500 && said.contains(word), "{link}: {status} {said}");
            assert!(!said.contains("link-token"), "{said}");
        }
        let called = tokio::time::timeout(std::time::Duration::ZERO, trap.accept()).await;
        assert!(called.is_err(), "a plain link was followed");
        client.remove(&id).await;
        forget_providers(w);
    });
}

#[test]
fn a_crash_at_every_step_leaves_one_session_or_none() {
    run_with(Options::default(), async |w| {
        // The sessions are at a server of their own: only the other one dies.
        let backing = RemoteService::start(w, "busybox").await;
        let (service, _proxy) = with_service_of(w, backing.account().await).await;
        let crashes = CrashWorld { world: w, client: w.first_tenant().await, provider: "bay" };
        let can = |request| !matches!(request, CrashRequest::Stop | CrashRequest::Start);
        crashes.die_everywhere(can, async || service.labels("atoll.sandbox")).await;
        forget_providers(w);
        backing.uninstall().await;
    });
}

#[test]
fn one_task_runs_at_every_provider_and_makes_one_table() {
    let got = Command::new(here("scripts/get-agentbay-sdk")).output().expect("the script");
    if !got.status.success() {
        assert!(std::env::var_os("CI").is_none(), "{}", String::from_utf8_lossy(&got.stderr));
        eprintln!("not run: {}", String::from_utf8_lossy(&got.stderr));
        return;
    }
    // Of that environment only httpx is used, on which the SDK of Atoll depends.
    let python = String::from_utf8_lossy(&got.stdout).trim().to_owned();
    run_with(Options::default().env("ATOLL_ALLOW_LOCAL", "true"), async |w| {
        let (service, _proxy) = with_service(w).await;
        let account = w.tenant("e2b-account").await;
        let e2b = json!({ "provider": "e2b", "e2b": { "api_key": account.key(), "template": "busybox", "cwd": "/workspace",
            "api_url": format!("http://{SERVER}/e2b"), "sandbox_url": format!("http://{SERVER}") } });
        configure(w, "cloud", &e2b).await;
        let mut command = Command::new(&python);
        command
            .arg(here("examples/providers/task.py"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", w.folder())
            .env("PYTHONPATH", here("sdk/python/src"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("ATOLL_URL", w.admin().base())
            .env("ATOLL_API_KEY", w.admin().key());
        let done = w.output(command).await;
        let table = String::from_utf8_lossy(&done.stdout).into_owned();
        eprintln!("{table}{}", String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{table}");
        for name in ["container", "local", "bay", "cloud"] {
            let line = table.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
            assert!(line.ends_with("  ok") && line.matches(" s").count() >= 3, "{line}");
        }
        assert_eq!(service.count("DeleteSessionAsync"), 1);
        forget_providers(w);
    });
}
