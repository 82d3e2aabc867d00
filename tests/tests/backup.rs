//! Backups of a busy server, restored into an empty folder and served from there; kills in the middle of both, damaged files and
//! wrong keys.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_tests::client::escape;
use atoll_tests::connection_probes::guarded;
use atoll_tests::internet::GREETING;
use atoll_tests::{Client, Options, Value, World, criu, json, proc, run, run_with, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;

const SECOND: &str = "127.0.0.1:7171";

/// A folder of its own, to restore into and to serve from.
struct Restored<'w> {
    world: &'w World,
    data: PathBuf,
}

impl<'w> Restored<'w> {
    fn new(world: &'w World) -> Self {
        Self { world, data: world.folder().join("restored") }
    }

    fn command(&self) -> Command {
        let mut command = self.world.command();
        command.env("ATOLL_DATA", &self.data).env("ATOLL_URL", format!("http://{SECOND}"));
        command
    }

    async fn run(&self, words: &[&str]) -> Output {
        let mut command = self.command();
        command.args(words);
        self.world.output(command).await
    }

    fn spawn_server(&self) -> i32 {
        let mut options = std::fs::OpenOptions::new();
        let log = options.create(true).append(true).open(self.world.folder().join("second.log")).unwrap();
        let mut command = self.command();
        command.args(["serve", "--listen", SECOND, "--tls-port", "0"]).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.world.adopt(child)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.world.folder().join("second.log")).unwrap_or_default()
    }

    async fn start(&self) -> i32 {
        let pid = self.spawn_server();
        let started = Instant::now();
        until("the restored server answers", async || {
            let health = reqwest::get(format!("http://{SECOND}/health")).await;
            let is_up = health.is_ok_and(|answer| answer.status() == 200);
            assert!(is_up || started.elapsed() < Duration::from_secs(50), "{}", self.log());
            is_up.then_some(())
        })
        .await;
        pid
    }

    /// The client of the first server, at the second one.
    fn client(&self, of_first: &Client) -> Client {
        of_first.at(&format!("http://{SECOND}"), of_first.key())
    }

    async fn stop(&self, pid: i32) {
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        until("the restored server ends", async || {
            proc::Process::read(pid).is_none_or(|found| found.state == 'Z').then_some(())
        })
        .await;
        self.world.end_adopted(pid);
    }

    /// Removes everything of it from the machine.
    async fn uninstall(&self) {
        let done = self.run(&["server", "uninstall", "--force"]).await;
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn atoll(w: &World, words: &[&str]) -> Output {
    let mut command = w.command();
    command.args(words);
    w.output(command).await
}

/// As [`atoll`], fails unless it succeeded.
async fn ok(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words).await;
    assert!(done.status.success(), "atoll {words:?}: {}", text(&done.stderr));
    text(&done.stdout)
}

fn passphrase(w: &World, name: &str, content: &str) -> String {
    let path = w.folder().join(name);
    std::fs::write(&path, format!("{content}\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn backup_file(w: &World) -> String {
    w.folder().join("monday").to_str().unwrap().to_owned()
}

async fn write_volume(client: &Client, volume: &str, path: &str, bytes: &'static str) {
    let path = format!("/v1/volumes/{volume}/files?path={}", escape(path));
    client.judged(client.raw(Method::PUT, &path).body(bytes), &Method::PUT, &path, None).await.ok();
}

async fn phase(client: &Client, id: &str) -> String {
    client.sandbox(id).await["phase"].as_str().unwrap().to_owned()
}

/// Copies in the pool that belong to a backup.
fn copies(data: &Path) -> Vec<PathBuf> {
    let folders =
        ["layers", "volumes", "snapshots", "memory"].map(|kind| data.join("pool/backup").join(kind));
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    entries.map(|entry| entry.path()).collect()
}

/// Sandboxes in every state, and what else a server keeps.
struct Contents {
    tenant: Client,
    stopped: String,
    paused: Option<String>,
    running: String,
    built: String,
    snapshot: String,
}

impl Contents {
    async fn make(w: &World) -> Self {
        let tenant = w.tenant("acme").await;
        tenant.post("/v1/volumes", json!({ "name": "shared", "size_mib": 64 })).await.ok();
        write_volume(&tenant, "shared", "/kept", "in the volume").await;
        tenant.post("/v1/secrets", json!({ "name": "MODEL_KEY", "value": "s3cret" })).await.ok();
        let stopped = tenant.create(json!({ "name": "stopped" })).await;
        let line =
            "cd; echo stopped > word; truncate -s 1073741824 holes; echo end >> holes; ln word hard; sync";
        tenant.sh(&stopped, line).await.text();
        let snapshot = tenant.post(&format!("/v1/sandboxes/{stopped}/snapshots"), json!({})).await.ok();
        tenant.sh(&stopped, "cd; echo later > word").await.text();
        tenant.act(&stopped, "stop").await.ok();
        let paused = match criu::at_hand() {
            Some(_) => Some(Self::paused(&tenant).await),
            None => None,
        };
        let mounts = json!([{ "volume": "shared", "path": "/data" }]);
        let running = tenant.create(json!({ "name": "running", "mounts": mounts })).await;
        let writes = "cd; echo running > word; (while :; do echo x >> log; echo y >> /data/log; done) >/dev/null 2>&1 &";
        tenant.sh(&running, writes).await.text();
        let built = Self::built(w).await;
        let snapshot = snapshot["id"].as_str().unwrap().to_owned();
        Self { tenant, stopped, paused, running, built, snapshot }
    }

    async fn paused(tenant: &Client) -> String {
        let paused = tenant.create(json!({ "name": "paused" })).await;
        tenant.sh(&paused, "echo in memory > /tmp/word; sleep 100000 & echo $! > /tmp/pid").await.text();
        let pause = format!("/v1/sandboxes/{paused}/pause");
        tenant.post(&pause, json!({ "memory": "disk" })).await.ok();
        paused
    }

    /// A sandbox of a template that only this server has; of the first tenant.
    async fn built(w: &World) -> String {
        let folder = w.folder().join("app");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("Dockerfile"), "FROM busybox\nRUN echo built > /built\n").unwrap();
        ok(w, &["template", "build", "-t", "app:v1", folder.to_str().unwrap()]).await;
        let built = w.admin().create(json!({ "name": "built", "template": "app:v1" })).await;
        w.admin().act(&built, "stop").await.ok();
        built
    }

    /// Everything is at another server as it was here.
    async fn assert_whole(&self, w: &World, at: &Restored<'_>) {
        let (client, admin) = (at.client(&self.tenant), at.client(&w.admin()));
        assert_eq!(phase(&client, &self.stopped).await, "stopped");
        assert_eq!(phase(&client, &self.running).await, "stopped");
        client.act(&self.stopped, "start").await.ok();
        let seen = "cd; cat word hard; tail -c 4 holes; stat -c '%h %s' word holes";
        let seen = client.sh(&self.stopped, seen).await.text().to_owned();
        assert_eq!(seen, "later\nlater\nend\n2 6\n1 1073741828");
        let blocks = client.sh(&self.stopped, "cd; stat -c %b holes").await.text().parse::<u64>().unwrap();
        assert!(blocks < 4_096, "holes stay holes: {blocks} blocks");
        client.act(&self.running, "start").await.ok();
        let log = "cd; cat word; test -s log && test -s /data/log && cat /data/kept";
        assert_eq!(client.sh(&self.running, log).await.text(), "running\nin the volume");
        if let Some(paused) = &self.paused {
            assert_eq!(phase(&client, paused).await, "paused");
            let alive = client.sh(paused, "cat /tmp/word; kill -0 $(cat /tmp/pid) && echo alive").await;
            assert_eq!(alive.text(), "in memory\nalive", "its processes go on");
        }
        admin.act(&self.built, "start").await.ok();
        assert_eq!(admin.sh(&self.built, "cat /built").await.text(), "built");
        let again = admin.create(json!({ "template": "app:v1" })).await;
        assert_eq!(admin.sh(&again, "cat /built").await.text(), "built");
        let rolled = client
            .post(&format!("/v1/sandboxes/{}/rollback", self.stopped), json!({ "snapshot": self.snapshot }))
            .await
            .ok();
        assert_eq!(rolled["id"], json!(self.stopped));
        client.act(&self.stopped, "start").await.ok();
        assert_eq!(client.sh(&self.stopped, "cat ~/word").await.text(), "stopped", "the snapshot is whole");
        let secrets = client.get("/v1/secrets").await.ok();
        assert_eq!(secrets["items"][0]["name"], json!("MODEL_KEY"), "{secrets}");
        let fresh = admin.post("/v1/keys", json!({ "tenant": "acme", "scope": "user" })).await.ok();
        assert!(fresh["secret"].is_string(), "{fresh}");
    }
}

/// The events of a sandbox, oldest first.
async fn events(client: &Client, sandbox: &str) -> Vec<Value> {
    let events = client.get(&format!("/v1/events?sandbox={sandbox}")).await.ok();
    let events = events["items"].as_array().unwrap().clone();
    assert!(events.iter().any(|event| event["by"].is_object()), "{events:?}");
    events
}

/// Creates and deletes sandboxes as long as it is not ended.
struct BusyTenant {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    deleted: Arc<AtomicU32>,
    before: u32,
}

impl BusyTenant {
    async fn start(w: &World) -> Self {
        let tenant = w.tenant("busy").await;
        let deleted = Arc::new(AtomicU32::new(0));
        let task = || {
            let (tenant, deleted) = (tenant.clone(), Arc::clone(&deleted));
            tokio::spawn(async move {
                loop {
                    let id = tenant.create(json!({})).await;
                    tenant.sh(&id, "echo short > /tmp/short").await.text();
                    tenant.remove(&id).await;
                    deleted.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let tasks = vec![task(), task()];
        until("sandboxes come and go", async || (deleted.load(Ordering::Relaxed) > 1).then_some(())).await;
        let before = deleted.load(Ordering::Relaxed);
        Self { tasks, deleted, before }
    }

    /// Fails unless sandboxes came and went since the start.
    async fn end(self) {
        for task in self.tasks {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
        let deleted = self.deleted.load(Ordering::Relaxed) - self.before;
        assert!(deleted > 1, "{deleted} sandboxes were created and deleted meanwhile");
    }
}

/// Sandboxes that came or went while the backup was made are whole or gone.
async fn assert_all_usable(admin: &Client) {
    let items = until("every sandbox rests", async || {
        let page = admin.get("/v1/sandboxes?limit=100").await.ok();
        let items = page["items"].as_array().unwrap().clone();
        items
            .iter()
            .all(|found| ["stopped", "paused", "running"].contains(&found["phase"].as_str().unwrap()))
            .then_some(items)
    })
    .await;
    for found in items.iter().filter(|found| found["name"].is_null()) {
        let id = found["id"].as_str().unwrap();
        // What was being created is created again.
        if found["phase"] == json!("stopped") {
            admin.act(id, "start").await.ok();
        }
        admin.remove(id).await;
    }
}

#[test]
fn a_busy_server_comes_back_whole_from_its_backup() {
    run(async |w| {
        let contents = Contents::make(w).await;
        let (file, pass) = (backup_file(w), passphrase(w, "pass", "correct horse"));
        let (before, busy) = (events(&contents.tenant, &contents.stopped).await, BusyTenant::start(w).await);
        let words = ["--json", "server", "backup", &file, "--with-keys", "--passphrase-file", &pass];
        let said: Value = serde_json::from_str(&ok(w, &words).await).unwrap();
        busy.end().await;
        let report = &said["backup"];
        assert!(report["content_bytes"].as_u64() > report["file_bytes"].as_u64(), "{said}");
        assert!(report["stopped"].as_array().unwrap().contains(&json!("running")), "{said}");
        assert_eq!(copies(&w.data()), Vec::<PathBuf>::new());
        assert!(!Path::new(&format!("{file}.partial")).exists());
        let raw = std::fs::read(&file).unwrap();
        let key = std::fs::read(w.data().join("secret.key")).unwrap();
        assert!(!raw.windows(key.len()).any(|part| part == key), "the key is not readable in the file");
        let at = Restored::new(w);
        let restored = at.run(&["server", "restore", &file, "--passphrase-file", &pass]).await;
        assert!(restored.status.success(), "{}", text(&restored.stderr));
        let pid = at.start().await;
        assert_all_usable(&at.client(&w.admin())).await;
        contents.assert_whole(w, &at).await;
        let after = events(&at.client(&contents.tenant), &contents.stopped).await;
        assert_eq!(after[..before.len()], before, "with who asked for what");
        at.stop(pid).await;
        at.uninstall().await;
    });
}

/// Runs a command, which ends at this place as if it was killed.
async fn killed(w: &World, mut command: Command, place: &str) {
    command.env("ATOLL_FAIL_AT", format!("{place}:2:abort"));
    let done = w.output(command).await;
    assert_eq!(done.status.signal(), Some(Signal::SIGABRT as i32), "{place}: {}", text(&done.stderr));
}

/// A volume that no sandbox uses, with a file that takes a while to pack.
async fn large_volume(w: &World) {
    let admin = w.admin();
    admin.post("/v1/volumes", json!({ "name": "large", "size_mib": 512 })).await.ok();
    let mounts = json!([{ "volume": "large", "path": "/data" }]);
    let id = admin.create(json!({ "mounts": mounts })).await;
    let line = "cd /data; head -c 150000000 /dev/urandom > much; md5sum much > sum; sync";
    admin.sh(&id, line).await.text();
    admin.remove(&id).await;
}

/// A sandbox that sees that volume.
async fn assert_large_volume(admin: &Client) {
    let mounts = json!([{ "volume": "large", "path": "/data" }]);
    let id = admin.create(json!({ "mounts": mounts })).await;
    assert!(admin.sh(&id, "cd /data; md5sum -c sum").await.text().contains("OK"));
}

#[test]
fn a_kill_in_the_middle_of_either_leaves_nothing_that_counts() {
    run(async |w| {
        large_volume(w).await;
        let file = backup_file(w);
        let partial = PathBuf::from(format!("{file}.partial"));
        let mut command = w.command();
        command.args(["server", "backup", &file]);
        killed(w, command, "backup.writing").await;
        assert!(partial.exists() && !Path::new(&file).exists(), "a partial backup has no final name");
        assert!(!copies(&w.data()).is_empty());
        // The next start of the server removes the copies.
        w.crash_server().await;
        assert_eq!(copies(&w.data()), Vec::<PathBuf>::new());
        ok(w, &["server", "backup", &file]).await;
        assert!(!partial.exists());

        let at = Restored::new(w);
        let key = w.data().join("secret.key").to_str().unwrap().to_owned();
        let words = ["server", "restore", &file, "--key-file", &key];
        for place in ["restore.records", "restore.volumes"] {
            let mut command = at.command();
            command.args(words);
            killed(w, command, place).await;
            let refused = at.run(&["serve", "--listen", SECOND, "--tls-port", "0"]).await;
            let said = text(&refused.stderr);
            assert!(!refused.status.success() && said.contains("has not ended"), "{place}: {said}");
            assert!(said.contains("server restore"), "{said}");
        }
        let again = at.run(&words).await;
        assert!(again.status.success(), "{}", text(&again.stderr));
        let pid = at.start().await;
        // No sandbox is made of it, so it is in the backup by name.
        let made = at.run(&["template", "make", "busybox"]).await;
        assert!(made.status.success(), "{}", text(&made.stderr));
        assert_large_volume(&at.client(&w.admin())).await;
        at.stop(pid).await;
        at.uninstall().await;
    });
}

/// Puts the key into requests to one name.
fn policy_with_key() -> Value {
    json!({
        "mode": "custom",
        "allow_domains": ["api.good.test"],
        "transforms": [{
            "domain": "api.good.test",
            "inject_headers": { "Authorization": "Bearer {secret:MODEL_KEY}" },
        }],
    })
}

#[test]
fn old_keys_and_the_value_of_a_secret_work_after_a_restore() {
    run_with(Options::debian(), async |w| {
        let tenant = w.tenant("acme").await;
        tenant.post("/v1/secrets", json!({ "name": "MODEL_KEY", "value": "canary-5f1d0c9e" })).await.ok();
        let id = guarded(w, &tenant, policy_with_key()).await;
        let made = w.admin().post("/v1/keys", json!({ "tenant": "acme", "scope": "user" })).await.ok();
        let revoked = w.client(made["secret"].as_str().unwrap());
        w.admin().delete(&format!("/v1/keys/{}", made["id"].as_str().unwrap())).await.ok();
        let file = backup_file(w);
        ok(w, &["server", "backup", &file]).await;
        let at = Restored::new(w);
        let key = w.data().join("secret.key").to_str().unwrap().to_owned();
        let restored = at.run(&["server", "restore", &file, "--key-file", &key]).await;
        assert!(restored.status.success(), "{}", text(&restored.stderr));
        let pid = at.start().await;
        let client = at.client(&tenant);
        client.act(&id, "start").await.ok();
        let ran = client.sh(&id, "curl -sS https://api.good.test/restored").await;
        assert_eq!(ran.text(), GREETING, "{ran:?}");
        let request =
            w.internet.requests().into_iter().find(|request| request.target().starts_with("/restored"));
        let shown = request.and_then(|request| request.header("authorization"));
        assert_eq!(shown.as_deref(), Some("Bearer canary-5f1d0c9e"));
        assert_eq!(at.client(&revoked).get("/v1/sandboxes").await.status, 401, "what was revoked stays so");
        at.stop(pid).await;
        at.uninstall().await;
    });
}

async fn refused(at: &Restored<'_>, words: &[&str]) -> String {
    let done = at.run(words).await;
    assert!(!done.status.success(), "{words:?} was accepted");
    let left = std::fs::read_dir(&at.data).map_or(0, Iterator::count);
    assert_eq!(left, 0, "{words:?} left something: {}", text(&done.stderr));
    text(&done.stderr)
}

#[test]
fn damaged_backups_and_wrong_keys_are_refused_and_change_nothing() {
    run(async |w| {
        let id = w.admin().create(json!({ "name": "box" })).await;
        w.admin().sh(&id, "head -c 3000000 /dev/urandom > /tmp/file").await.text();
        let (file, pass) = (backup_file(w), passphrase(w, "pass", "correct horse"));
        ok(w, &["server", "backup", &file, "--with-keys", "--passphrase-file", &pass]).await;
        let again = atoll(w, &["server", "backup", &file]).await;
        assert!(text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
        let at = Restored::new(w);
        let restore = async |file: &str, more: &[&str]| {
            refused(&at, &[&["server", "restore", file], more].concat()).await
        };
        let wrong = passphrase(w, "wrong", "correct horsf");
        assert!(restore(&file, &["--passphrase-file", &wrong]).await.contains("passphrase is wrong"));
        let other = passphrase(w, "other.key", &"00".repeat(32));
        assert!(restore(&file, &["--key-file", &other]).await.contains("is not the key of this backup"));
        let plain = w.folder().join("plain").to_str().unwrap().to_owned();
        ok(w, &["server", "backup", &plain]).await;
        let said = restore(&plain, &[]).await;
        assert!(said.contains("does not contain the sealing key") && said.contains("--key-file"), "{said}");

        let with_pass = ["--passphrase-file", &pass];
        let damaged = w.folder().join("damaged").to_str().unwrap().to_owned();
        let length = std::fs::metadata(&file).unwrap().len();
        for cut in [length - 1, length / 2, 100] {
            std::fs::copy(&file, &damaged).unwrap();
            std::fs::OpenOptions::new().write(true).open(&damaged).unwrap().set_len(cut).unwrap();
            let said = restore(&damaged, &with_pass).await;
            assert!(said.contains("truncated") || said.contains("malformed"), "{cut}: {said}");
        }
        for at_byte in [length / 3, length - 60, length - 10] {
            std::fs::copy(&file, &damaged).unwrap();
            let mut changed = std::fs::OpenOptions::new().read(true).write(true).open(&damaged).unwrap();
            changed.seek(SeekFrom::Start(at_byte)).unwrap();
            let mut byte = [0];
            std::io::Read::read_exact(&mut changed, &mut byte).unwrap();
            changed.seek(SeekFrom::Start(at_byte)).unwrap();
            changed.write_all(&[byte[0] ^ 4]).unwrap();
            let said = restore(&damaged, &with_pass).await;
            assert!(said.contains("damaged"), "{at_byte}: {said}");
        }
        // A stream is seen to be cut at its end only: everything is undone then.
        let mut command = at.command();
        let line =
            format!("head -c {} {file} | \"$0\" server restore - --passphrase-file {pass}", length - 20);
        let program = command.get_program().to_owned();
        let environment: Vec<_> =
            command.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        command = Command::new("sh");
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["-c", &line]).arg(program);
        let done = w.output(command).await;
        let said = text(&done.stderr);
        assert!(!done.status.success() && said.contains("truncated"), "{said}");
        assert_eq!(std::fs::read_dir(&at.data).map_or(0, Iterator::count), 0, "{said}");

        std::fs::write(at.data.join("file"), "mine").unwrap();
        let done = at.run(&["server", "restore", &file, "--passphrase-file", &pass]).await;
        assert!(text(&done.stderr).contains("is not empty"), "{}", text(&done.stderr));
        assert_eq!(std::fs::read(at.data.join("file")).unwrap(), b"mine");
    });
}
