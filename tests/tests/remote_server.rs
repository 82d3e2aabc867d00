//! A real server whose sandboxes are those of another Atoll server, by its E2B or its Daytona API: from create to delete, over
//! crashes of the server at every named step.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_tests::fault_proxy::{Fault, FaultProxy};
use atoll_tests::terminal::Screen;
use atoll_tests::{Client, Options, Value, World, json, proc, run_with, template, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;

use crate::moving::atoll;

const SERVER: &str = "127.0.0.1:7070";
pub(crate) const SERVICE: &str = "127.0.0.1:7171";

/// What differs between the kinds of providers.
pub(crate) struct ServerKind {
    /// The settings of the provider `cloud`: the address of the service, the key of the account, the template.
    settings: fn(address: &str, key: &str, template: &str) -> Value,
    /// Where objects are made.
    pub(crate) create_path: &'static str,
    /// Whether the service keeps memory over a pause.
    pauses: bool,
    /// Whether the service keeps snapshots.
    snapshots: bool,
    /// A part of what is said about the price.
    cost: &'static str,
    /// Whether the service tells where a symbolic link leads.
    tells_links: bool,
}

pub(crate) static E2B: ServerKind = ServerKind {
    settings: |address, key, template| {
        json!({ "provider": "e2b", "e2b": {
            "api_key": key, "api_url": format!("{address}/e2b"), "template": template, "sandbox_url": address,
            "cwd": "/workspace" } })
    },
    create_path: "/e2b/v2/sandboxes",
    pauses: true,
    snapshots: true,
    cost: "about 0.15 $ per hour",
    tells_links: true,
};

pub(crate) static DAYTONA: ServerKind = ServerKind {
    settings: |address, key, template| {
        json!({ "provider": "daytona", "daytona": {
            "api_key": key, "api_url": format!("{address}/daytona/api"), "snapshot": template,
            "user": "root", "cwd": "/workspace" } })
    },
    create_path: "/daytona/api/sandbox",
    pauses: true,
    snapshots: false,
    cost: "Daytona account",
    tells_links: false,
};

/// The service: a server of its own, with its own folder and database.
pub(crate) struct RemoteService<'w> {
    world: &'w World,
    pid: i32,
}

impl<'w> RemoteService<'w> {
    fn data(world: &World) -> PathBuf {
        world.folder().join("service")
    }

    fn command(world: &World) -> Command {
        let mut command = world.command();
        command.env("ATOLL_DATA", Self::data(world)).env("ATOLL_URL", format!("http://{SERVICE}"));
        command
    }

    pub(crate) async fn start(world: &'w World, template: &'static str) -> Self {
        template::link(&Self::data(world).join("templates"), template);
        let log = std::fs::File::create(world.folder().join("service.log")).unwrap();
        let child = Self::command(world)
            .args(["serve", "--listen", SERVICE, "--tls-port", "0"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let pid = world.adopt(child);
        until("the service answers", async || {
            let is_over = proc::Process::read(pid).is_none_or(|found| found.state == 'Z');
            let said = || std::fs::read_to_string(world.folder().join("service.log")).unwrap_or_default();
            assert!(!is_over, "the service ended: {}", said());
            let health = reqwest::get(format!("http://{SERVICE}/health")).await;
            health.is_ok_and(|answer| answer.status() == 200).then_some(())
        })
        .await;
        Self { world, pid }
    }

    /// A client with a user key of the service.
    pub(crate) async fn account(&self) -> Client {
        let admin = std::fs::read_to_string(Self::data(self.world).join("admin.key")).unwrap();
        let admin = self.world.admin().at(&format!("http://{SERVICE}"), admin.trim());
        let key = admin.post("/v1/keys", json!({ "scope": "user" })).await.ok();
        admin.with_key(key["secret"].as_str().unwrap())
    }

    /// Ends it in order, and removes all that outlives it.
    pub(crate) async fn uninstall(self) {
        kill(Pid::from_raw(self.pid), Signal::SIGTERM).unwrap();
        until("the service ends", async || {
            proc::Process::read(self.pid).is_none_or(|found| found.state == 'Z').then_some(())
        })
        .await;
        self.world.end_adopted(self.pid);
        let mut uninstall = Self::command(self.world);
        uninstall.args(["server", "uninstall", "--force"]);
        let done = self.world.output(uninstall).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Writes the settings of the provider `cloud` and waits until the server has opened it.
pub(crate) async fn configure(
    world: &World,
    kind: &ServerKind,
    proxy: &FaultProxy,
    key: &str,
    template: &str,
) {
    let settings = (kind.settings)(&format!("http://{}", proxy.address), key, template);
    let files = world.data().join("sandboxes");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join(".cloud.json"), settings.to_string()).unwrap();
    std::fs::rename(files.join(".cloud.json"), files.join("cloud.json")).unwrap();
    let admin = world.admin();
    until("the server notices the settings", async || {
        let listed = admin.get("/v1/providers").await.ok();
        let is_open = |item: &Value| item["name"] == "cloud" && item["problem"].is_null();
        listed["items"].as_array().unwrap().iter().any(is_open).then_some(())
    })
    .await;
}

async fn preview(client: &Client, id: &str, port: u16) -> (u16, String) {
    let host = format!("{port}-{id}.localhost:7070");
    let request = reqwest::Client::new().get(format!("http://{SERVER}/")).header("host", host);
    let answer = request.bearer_auth(client.key()).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

pub(crate) async fn objects(account: &Client) -> Vec<Value> {
    account.get("/v1/sandboxes?limit=100").await.ok()["items"].as_array().unwrap().clone()
}

#[test]
fn a_sandbox_at_e2b_is_used_paused_adopted_and_deleted() {
    a_sandbox_is_used_adopted_and_deleted(&E2B);
}

#[test]
fn a_sandbox_at_daytona_is_used_stopped_adopted_and_deleted() {
    a_sandbox_is_used_adopted_and_deleted(&DAYTONA);
}

fn a_sandbox_is_used_adopted_and_deleted(kind: &'static ServerKind) {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "busybox").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, kind, &proxy, account.key(), "busybox").await;
        let client = w.first_tenant().await;

        // The first create is done, and its reply lost.
        let mut is_first = true;
        proxy.set_rule(move |method, path| {
            let loses = method == "POST" && path == kind.create_path && std::mem::take(&mut is_first);
            if loses { Fault::LoseReply } else { Fault::None }
        });
        let id = client.create(json!({ "provider": "cloud", "name": "box" })).await;
        let about = client.sandbox(&id).await;
        assert_eq!((&about["provider"], &about["isolation"]), (&json!("cloud"), &json!("vendor")), "{about}");
        let listed = client.get("/v1/providers").await.ok();
        let cloud = listed["items"].as_array().unwrap().iter().find(|one| one["name"] == "cloud").unwrap();
        assert!(cloud["cost"].as_str().unwrap().contains(kind.cost), "{cloud}");
        let at_service = objects(&account).await;
        assert_eq!(at_service.len(), 1, "{at_service:?}");
        assert_eq!(at_service[0]["labels"]["atoll.sandbox"], id.as_str());

        use_it(&client, &id).await;
        copies(w, &client, &id, kind.tells_links).await;
        refusals(&client).await;
        if !kind.snapshots {
            let path = format!("/v1/sandboxes/{id}/snapshots");
            let refused = client.post(&path, json!({})).await.refused(501, "unsupported");
            assert!(refused["message"].as_str().unwrap().contains("snapshot"), "{refused}");
        }
        let terminal = open_terminal(&client, &id).await;

        if kind.pauses {
            client.act(&id, "pause").await.ok();
            assert_eq!(objects(&account).await[0]["phase"], "paused");
            w.crash_server().await;
            assert_eq!(client.sandbox(&id).await["phase"], "paused");
            client.act(&id, "resume").await.ok();
        } else {
            let refused = client.act(&id, "pause").await.refused(501, "unsupported");
            assert!(refused["message"].as_str().unwrap().contains("pause"), "{refused}");
        }
        w.crash_server().await;
        assert_eq!(client.sandbox(&id).await["phase"], "running");
        assert_eq!(client.sh(&id, "cat /workspace/a").await.text(), "text of a file");
        assert_eq!(
            preview(&client, &id, 8080).await,
            (200, "page\n".to_owned()),
            "its processes are the same"
        );
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("echo at=$(pwd) mark=$MARK\n").await;
        screen.wait_for("at=/tmp mark=kept").await;
        drop(screen);

        client.act(&id, "stop").await.ok();
        assert_eq!(objects(&account).await[0]["phase"], "stopped");
        client.act(&id, "start").await.ok();
        assert_eq!(client.sh(&id, "cat /workspace/a").await.text(), "text of a file");
        client.remove(&id).await;
        assert_eq!(objects(&account).await, Vec::<Value>::new());
        let records = std::fs::read_dir(w.data().join("providers/cloud/sandboxes"));
        assert_eq!(records.map_or(0, Iterator::count), 0);
        no_neighbour_waits(w, &client, &proxy).await;
        assert!(!w.log().contains(account.key()), "the key is in the log");
        std::fs::remove_file(w.data().join("sandboxes/cloud.json")).unwrap();
        // A provider keeps its owner label and its address.
        std::fs::remove_dir_all(w.data().join("providers")).unwrap();
        service.uninstall().await;
    });
}

#[test]
fn a_sandbox_that_daytona_cannot_pause_is_stopped_and_says_so() {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "busybox").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, &DAYTONA, &proxy, account.key(), "busybox").await;
        let client = w.first_tenant().await;
        // A class of sandboxes without memory snapshots, and an older service that has no such call.
        for status in [422, 404] {
            proxy.set_rule(
                move |_, path| {
                    if path.ends_with("/pause") { Fault::Answer(status, "") } else { Fault::None }
                },
            );
            let id = client.create(json!({ "provider": "cloud", "thread": format!("t{status}") })).await;
            client.write_file(&id, "/workspace/kept", "kept").await.ok();
            let paused = client.act(&id, "pause").await.ok();
            assert_eq!(paused["phase"], "stopped", "{paused}");
            let reason = paused["reason"].to_string();
            assert!(reason.contains("pause") && reason.contains("stopped instead"), "{reason}");
            assert_eq!(objects(&account).await[0]["phase"], "stopped");
            client.act(&id, "start").await.ok();
            let done = client.session(Method::POST, &format!("{id}/pause?provider=cloud")).await;
            assert_eq!((&done["ok"], &done["action"]), (&json!(true), &json!("stop")), "{done}");
            client.act(&id, "start").await.ok();
            // The orderly end of the server, whose default for threads is a pause.
            w.stop_server(Signal::SIGTERM).await;
            assert_eq!(objects(&account).await[0]["phase"], "stopped");
            w.start_server().await;
            assert_eq!(client.sandbox(&id).await["phase"], "stopped");
            client.act(&id, "start").await.ok();
            assert_eq!(client.sh(&id, "cat /workspace/kept").await.text(), "kept");
            client.remove(&id).await;
        }
        std::fs::remove_file(w.data().join("sandboxes/cloud.json")).unwrap();
        std::fs::remove_dir_all(w.data().join("providers")).unwrap();
        service.uninstall().await;
    });
}

#[test]
fn a_service_that_hangs_at_the_start_is_taken_up_later() {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "busybox").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, &E2B, &proxy, account.key(), "busybox").await;
        let client = w.first_tenant().await;
        let remote = client.create(json!({ "provider": "cloud" })).await;
        client.write_file(&remote, "/workspace/kept", "kept").await.ok();
        proxy.set_rule(|_, _| Fault::Hang);
        let begun = Instant::now();
        w.crash_server().await;
        assert!(begun.elapsed() < Duration::from_secs(45), "the start took {:?}", begun.elapsed());
        let own = client.create(json!({})).await;
        assert_eq!(client.sh(&own, "echo here").await.text(), "here");
        client.remove(&own).await;
        let refused = client.post(&format!("/v1/sandboxes/{remote}/exec"), json!({ "argv": ["true"] })).await;
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(client.sandbox(&remote).await["phase"], "running", "nothing is decided about it");
        proxy.set_rule(|_, _| Fault::None);
        until("the provider is open again", async || {
            let listed = w.admin().get("/v1/providers").await.ok();
            let is_open = |item: &Value| item["name"] == "cloud" && item["problem"].is_null();
            listed["items"].as_array().unwrap().iter().any(is_open).then_some(())
        })
        .await;
        assert_eq!(client.sh(&remote, "cat /workspace/kept").await.text(), "kept");
        client.remove(&remote).await;
        assert_eq!(objects(&account).await, Vec::<Value>::new());
        std::fs::remove_file(w.data().join("sandboxes/cloud.json")).unwrap();
        std::fs::remove_dir_all(w.data().join("providers")).unwrap();
        service.uninstall().await;
    });
}

/// Commands, files and ports.
async fn use_it(client: &Client, id: &str) {
    assert_eq!(client.sh(id, "pwd; echo $((6 * 7)); exit 3").await.code, 3);
    assert_eq!(client.sh(id, "pwd").await.text(), "/workspace");
    client.write_file(id, "/workspace/a", "text of a file").await.ok();
    assert_eq!(client.sh(id, "cat a").await.text(), "text of a file");
    client.sh(id, "printf 'made inside' >/workspace/b; chmod 640 /workspace/b").await;
    assert_eq!(client.read_file(id, "/workspace/b").await.bytes, "made inside");
    client
        .sh(id, "mkdir /tmp/www; echo page >/tmp/www/index.html; httpd -p 127.0.0.1:8080 -h /tmp/www")
        .await;
    assert_eq!(preview(client, id, 8080).await, (200, "page\n".to_owned()));
    let (status, said) = preview(client, id, 8081).await;
    assert!(status == 502 && said.contains("8081"), "{status} {said}");
    let metrics = client.get(&format!("/v1/sandboxes/{id}/metrics")).await.ok();
    assert!(metrics.to_string().contains("memory"), "{metrics}");
}

/// Copies folders in both directions, reads a file of `/proc` whole, and expects exit status 127 for a missing program.
pub(crate) async fn copies(w: &World, client: &Client, id: &str, tells_links: bool) {
    let (here, back) = (w.folder().join("tree"), w.folder().join("back"));
    std::fs::create_dir_all(here.join("sub")).unwrap();
    std::fs::write(here.join("sub/file"), "carried").unwrap();
    std::os::unix::fs::symlink("sub/file", here.join("link")).unwrap();
    let there = format!("{id}:/workspace/tree");
    for (from, to) in [(here.to_str().unwrap(), there.as_str()), (there.as_str(), back.to_str().unwrap())] {
        let copied = atoll(w, &["cp", from, to]).await;
        assert!(copied.status.success(), "{from} -> {to}: {copied:?}");
    }
    assert_eq!(
        client.sh(id, "cd /workspace/tree && readlink link && cat link").await.text(),
        "sub/file\ncarried"
    );
    assert_eq!(std::fs::read_to_string(back.join("sub/file")).unwrap(), "carried");
    assert_eq!(back.join("link").is_symlink(), tells_links);
    let archive = client.get(&format!("/v1/sandboxes/{id}/files/archive?path=/workspace/tree")).await;
    let mut archive = tar::Archive::new(&archive.bytes[..]);
    let names: Vec<_> =
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
    assert!(names.contains(&"tree/link".into()) && names.contains(&"tree/sub/file".into()), "{names:?}");
    assert!(client.read_file(id, "/proc/version").await.bytes.starts_with(b"Linux"));
    let missing = atoll(w, &["exec", id, "no-such-program"]).await;
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
}

async fn open_terminal(client: &Client, id: &str) -> String {
    let body = json!({ "thread": "t", "cols": 80, "rows": 24 });
    let terminal = client.post(&format!("/v1/sandboxes/{id}/terminals"), body).await.ok();
    let terminal = terminal["id"].as_str().unwrap().to_owned();
    let mut screen = Screen::attach(client, id, &terminal).await;
    screen.input("cd /tmp; export MARK=kept; echo re''ady\n").await;
    screen.wait_for("ready").await;
    terminal
}

/// What does not exist at such a service names what is missing.
async fn refusals(client: &Client) {
    let rules =
        json!({ "provider": "cloud", "network": { "mode": "custom", "allow_domains": ["pypi.org"] } });
    let refused = client.post("/v1/sandboxes", rules).await.refused(501, "unsupported");
    assert!(refused["message"].as_str().unwrap().contains("egress"), "{refused}");
    let template = json!({ "provider": "cloud", "template": "no-such-template" });
    let refused = client.post("/v1/sandboxes", template).await.refused(404, "template_not_found");
    assert!(refused["hint"].as_str().unwrap().contains("of the account at that service"), "{refused}");
}

/// A service that hangs delays no call for another provider.
async fn no_neighbour_waits(w: &World, client: &Client, proxy: &FaultProxy) {
    let own = client.create(json!({})).await;
    let commands = async || {
        let started = Instant::now();
        for _ in 0..20 {
            assert_eq!(client.sh(&own, "echo here").await.text(), "here");
        }
        started.elapsed()
    };
    let before = commands().await;
    proxy.set_rule(|_, _| Fault::Hang);
    let hanging = async { w.admin().post_empty("/v1/providers/cloud/test").await.ok()["problem"].clone() };
    let (problem, during) = tokio::join!(hanging, commands());
    assert!(problem.is_string(), "{problem}");
    assert!(during < before * 5 + Duration::from_secs(5), "{before:?} before, {during:?} during");
    proxy.set_rule(|_, _| Fault::None);
    client.remove(&own).await;
}

/// What is asked when the server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CrashRequest {
    Create,
    Pause,
    Resume,
    Stop,
    Start,
    Delete,
}

/// The places of a remote create, pause, resume, stop, start and delete. Some lie behind the answer.
const CRASHES: &[(&str, &[CrashRequest])] = &[
    ("insert.before", &[CrashRequest::Create]),
    ("insert.after", &[CrashRequest::Create]),
    ("effect.before", &[CrashRequest::Create, CrashRequest::Stop, CrashRequest::Start, CrashRequest::Delete]),
    ("effect.made", &[CrashRequest::Create, CrashRequest::Start]),
    ("effect.after", &[CrashRequest::Create, CrashRequest::Stop, CrashRequest::Start, CrashRequest::Delete]),
    (
        "advance.before",
        &[CrashRequest::Create, CrashRequest::Stop, CrashRequest::Start, CrashRequest::Delete],
    ),
    ("advance.after", &[CrashRequest::Create, CrashRequest::Stop, CrashRequest::Start, CrashRequest::Delete]),
    ("pause.before", &[CrashRequest::Pause]),
    ("pause.frozen", &[CrashRequest::Pause]),
    ("resume.before", &[CrashRequest::Resume]),
    ("resume.after", &[CrashRequest::Resume]),
];
/// LIMIT: how long a place behind the answer is waited for.
const BEHIND_THE_ANSWER: Duration = Duration::from_millis(1_500);

#[test]
fn a_crash_at_every_step_leaves_one_object_or_none_at_e2b() {
    a_crash_at_every_step_leaves_one_object_or_none(&E2B);
}

#[test]
fn a_crash_at_every_step_leaves_one_object_or_none_at_daytona() {
    a_crash_at_every_step_leaves_one_object_or_none(&DAYTONA);
}

fn a_crash_at_every_step_leaves_one_object_or_none(kind: &'static ServerKind) {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "busybox").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, kind, &proxy, account.key(), "busybox").await;
        let crashes = CrashWorld { world: w, client: w.first_tenant().await, provider: "cloud" };
        let can = |request| kind.pauses || !matches!(request, CrashRequest::Pause | CrashRequest::Resume);
        let sandboxes = async || {
            let listed = objects(&account).await;
            let label = |item: &Value| item["labels"]["atoll.sandbox"].as_str().unwrap().to_owned();
            listed.iter().map(label).collect::<Vec<_>>()
        };
        crashes.die_everywhere(can, sandboxes).await;
        std::fs::remove_file(w.data().join("sandboxes/cloud.json")).unwrap();
        std::fs::remove_dir_all(w.data().join("providers")).unwrap();
        service.uninstall().await;
    });
}

/// A server that dies at places that a test names, with a sandbox of a provider.
pub(crate) struct CrashWorld<'w> {
    pub(crate) world: &'w World,
    pub(crate) client: Client,
    pub(crate) provider: &'static str,
}

impl CrashWorld<'_> {
    /// Lets the server die at every place of every request that the provider can do. `sandboxes` tells which sandboxes have an
    /// object at the service, once for each object.
    pub(crate) async fn die_everywhere(
        &self,
        can: impl Fn(CrashRequest) -> bool,
        sandboxes: impl AsyncFn() -> Vec<String>,
    ) {
        let fail_at = self.listen_for_places().await;
        let mut missed = Vec::new();
        for (place, requests) in CRASHES {
            for request in requests.iter().filter(|request| can(**request)) {
                if !self.die_at(&fail_at, place, *request).await {
                    missed.push(format!("{place} by {request:?}"));
                }
                self.judge(&format!("{place} by {request:?}"), *request, &sandboxes).await;
            }
        }
        assert!(missed.len() <= 2, "places that were not reached: {missed:?}");
        self.world.crash_server_with(&[("ATOLL_FAIL_AT", "")]).await;
    }

    /// Starts the server anew, so that it dies at the place that this file names.
    pub(crate) async fn listen_for_places(&self) -> PathBuf {
        let fail_at = self.world.folder().join("fail-at");
        self.world.crash_server_with(&[("ATOLL_FAIL_AT", &format!("@{}", fail_at.display()))]).await;
        fail_at
    }

    /// Asks for a change while the server dies at a place of it; answers whether the place was reached. The server runs again.
    async fn die_at(&self, fail_at: &std::path::Path, place: &str, request: CrashRequest) -> bool {
        let client = &self.client;
        let new = json!({ "provider": self.provider, "name": "box" });
        if request != CrashRequest::Create {
            let id = client.create(new.clone()).await;
            client.write_file(&id, "/workspace/kept", "kept").await.ok();
            match request {
                CrashRequest::Start => drop(client.act(&id, "stop").await.ok()),
                CrashRequest::Resume => drop(client.act(&id, "pause").await.ok()),
                _ => {}
            }
        }
        let (method, path, body) = match request {
            CrashRequest::Create => ("POST", "/v1/sandboxes", Some(new)),
            CrashRequest::Pause => ("POST", "/v1/sandboxes/box/pause", None),
            CrashRequest::Resume => ("POST", "/v1/sandboxes/box/resume", None),
            CrashRequest::Stop => ("POST", "/v1/sandboxes/box/stop", None),
            CrashRequest::Start => ("POST", "/v1/sandboxes/box/start", None),
            CrashRequest::Delete => ("DELETE", "/v1/sandboxes/box", None),
        };
        self.ask_and_die(fail_at, place, (method, path, body)).await
    }

    /// Sends a request while the server dies at a place; answers whether the place was reached. The server runs again.
    pub(crate) async fn ask_and_die(
        &self,
        fail_at: &std::path::Path,
        place: &str,
        (method, path, body): (&str, &str, Option<Value>),
    ) -> bool {
        let w = self.world;
        std::fs::write(fail_at, place).unwrap();
        let asked = reqwest::Client::new()
            .request(method.parse().unwrap(), format!("http://{SERVER}{path}"))
            .bearer_auth(self.client.key());
        let asked = body.into_iter().fold(asked, |asked, body| asked.json(&body));
        // The connection breaks where the server dies.
        let _ = asked.send().await;
        let answered = Instant::now();
        let is_over = until("the server dies, or the place was not reached", async || {
            let is_dead = w.server_exit().is_some();
            (is_dead || answered.elapsed() > BEHIND_THE_ANSWER).then_some(is_dead)
        })
        .await;
        if is_over {
            w.forget_server();
            w.start_server().await;
        } else {
            let _ = std::fs::remove_file(fail_at);
            w.crash_server().await;
        }
        is_over
    }

    /// After the start of the next server there is one sandbox with one object, or neither; then everything is removed.
    async fn judge(&self, what: &str, request: CrashRequest, sandboxes: &impl AsyncFn() -> Vec<String>) {
        let client = &self.client;
        let (own, at_service) = until(what, async || {
            let own = objects(client).await;
            let passing = ["creating", "starting", "stopping", "deleting", "pausing", "resuming"];
            let rests = own.iter().all(|item| !passing.contains(&item["phase"].as_str().unwrap()));
            let at_service = sandboxes().await;
            (rests && own.len() == at_service.len()).then_some((own, at_service))
        })
        .await;
        assert!(own.len() <= 1, "{what}: {own:?}");
        if request != CrashRequest::Create && request != CrashRequest::Delete {
            assert_eq!(own.len(), 1, "{what}: nothing is lost");
        }
        for (sandbox, labelled) in own.iter().zip(&at_service) {
            let id = sandbox["id"].as_str().unwrap();
            assert_eq!(labelled, id, "{what}");
            if request != CrashRequest::Create && sandbox["phase"] != "failed" {
                if sandbox["phase"] != "running" {
                    client.act(id, "start").await.ok();
                }
                assert_eq!(client.sh(id, "cat /workspace/kept").await.text(), "kept", "{what}");
            }
            client.remove(id).await;
        }
        assert_eq!(sandboxes().await, Vec::<String>::new(), "{what}");
    }
}
