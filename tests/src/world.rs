//! A whole Atoll on its own ground: server, state folder, keys, internet; and the audit at its end.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::canary::Canary;
use crate::client::Client;
use crate::contract::Contract;
use crate::data_folder::DataFolderView;
use crate::internet::Internet;
use crate::leaks::{Holdings, Marks};
use crate::namespaces;
use crate::neighbour::NeighbourMonitor;
use crate::{poll, proc, template};

/// Where the server of every world listens; each has its own loopback.
pub const LISTEN: &str = "127.0.0.1:7070";

/// How the server of a world is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The default template.
    pub template: &'static str,
    /// Templates that are there; the default is always.
    pub templates: Vec<&'static str>,
    /// Ready instances kept; none makes what a test sees simpler.
    pub pool: u32,
    /// More environment for the server.
    pub env: Vec<(&'static str, String)>,
    /// Whether the end of the test is an ordinary end of the server, with an audit.
    pub audit: bool,
    /// Whether it has a certificate for sandboxes' own hosts, so that it serves TLS.
    pub tls: bool,
    /// The state folder is on a file system of its own, of so many MiB.
    pub disk_mib: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            template: "busybox",
            templates: Vec::new(),
            pool: 0,
            env: Vec::new(),
            audit: true,
            tls: false,
            disk_mib: None,
        }
    }
}

impl Options {
    /// With python, git and sudo inside.
    pub fn debian() -> Self {
        Self { template: "debian", templates: vec!["busybox"], ..Self::default() }
    }

    /// One more variable in the server's environment.
    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }
}

/// Everything a test needs.
pub struct World {
    /// What is outside.
    pub internet: Internet,
    /// What must not change.
    pub canary: Canary,
    options: Options,
    folder: tempfile::TempDir,
    server: Mutex<Option<Child>>,
    contract: OnceLock<Arc<Contract>>,
    marks: Mutex<Marks>,
    more_env: Mutex<Vec<(String, String)>>,
    waited_for: Mutex<BTreeSet<i32>>,
    baseline: Mutex<Holdings>,
}

/// Runs a test in a world of its own.
pub fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::default(), body);
}

/// Runs a test in a world of its own, set up as told.
pub fn run_with(options: Options, body: impl AsyncFnOnce(&World) + Send) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    // Here, where packages can still be fetched: a world has an internet of its own.
    for name in options.templates.iter().chain([&options.template]).filter(|name| **name != "host") {
        template::shared(name);
    }
    nix::sys::prctl::set_child_subreaper(true).expect("subreaper");
    end_everything_on_terminate();
    namespaces::in_own_namespaces(move |internet| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let world = World::open(options, internet);
            let outcome = AssertUnwindSafe(async {
                world.begin().await;
                body(&world).await;
                world.finish().await;
            });
            let outcome = outcome.catch_unwind().await;
            if outcome.is_err() {
                world.report();
            }
            world.wipe();
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        runtime.shutdown_timeout(Duration::from_secs(2));
    });
}

/// A runner that loses patience sends SIGTERM: what descends from the test must not outlive it.
fn end_everything_on_terminate() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let kind = tokio::signal::unix::SignalKind::terminate();
                tokio::signal::unix::signal(kind).expect("a signal").recv().await;
            });
            for _ in 0..20 {
                kill_descendants();
                std::thread::sleep(Duration::from_millis(10));
            }
            std::process::abort();
        });
    });
}

fn kill_descendants() {
    for process in proc::descendants(proc::own_pid()) {
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
    }
}

impl World {
    fn open(options: Options, internet: Internet) -> Self {
        let parent =
            std::env::var_os("ATOLL_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let folder =
            tempfile::Builder::new().prefix("atoll-test-").tempdir_in(parent).expect("a state folder");
        let data = folder.path().join("data");
        if let Some(mib) = options.disk_mib {
            namespaces::mount_small_disk(&folder.path().join("disk.img"), &data, mib);
        }
        for name in options.templates.iter().chain([&options.template]) {
            // `host` is made by the server out of the host itself.
            if *name != "host" {
                template::link(&data.join("templates"), name);
            }
        }
        std::fs::write(folder.path().join("roots.pem"), internet.authority_pem()).expect("roots");
        let canary = Canary::take(folder.path(), &[&program()]);
        let marks = Marks { data, cgroups: BTreeSet::new(), server: None };
        Self {
            internet,
            canary,
            options,
            folder,
            server: Mutex::default(),
            contract: OnceLock::new(),
            marks: Mutex::new(marks),
            more_env: Mutex::default(),
            waited_for: Mutex::default(),
            baseline: Mutex::default(),
        }
    }

    /// Starts the server, finds this world's marks with a first sandbox and counts what there is without one.
    async fn begin(&self) {
        if self.options.tls {
            let mut init = self.command();
            init.args(["tls", "init"]);
            let done = self.output(init).await;
            assert!(done.status.success(), "atoll tls init: {}", String::from_utf8_lossy(&done.stderr));
        }
        self.start_server().await;
        if !self.options.audit {
            return;
        }
        let first = self.admin().create(json!({ "network": "deny-all" })).await;
        let agent = self.agent_pid(&first);
        lock(&self.marks).cgroups = self.cgroup_parents(&first, agent);
        self.admin().remove(&first).await;
        let ready = usize::try_from(self.options.pool).expect("a small pool");
        poll::until("the pool is full", async || {
            let groups = lock(&self.marks).cgroups.clone();
            let is_full = self.holdings().count("cgroups") >= ready * groups.len();
            // One in which something is still being started does not stand still yet.
            (is_full && groups.iter().all(|parent| proc::stand_still(parent))).then_some(())
        })
        .await;
        let settled = self.settled().await;
        *lock(&self.baseline) = settled;
    }

    /// The cgroup folders of this world's server, one per hierarchy that it uses. Never a folder of another process:
    /// everything below is removed at the end.
    fn cgroup_parents(&self, sandbox: &str, agent: i32) -> BTreeSet<PathBuf> {
        let name = self.facts(sandbox).expect("facts")["cgroup"].as_str().expect("a name").to_owned();
        let own = proc::cgroups(agent)
            .into_values()
            .filter(|home| home.file_name().is_some_and(|last| *last == *name));
        let parents: BTreeSet<PathBuf> =
            own.filter_map(|home| home.parent().map(Path::to_path_buf)).collect();
        assert!(
            !parents.is_empty()
                && parents.iter().all(|parent| parent.display().to_string().contains("atoll")),
            "{parents:?}"
        );
        parents
    }

    /// Counts until two counts in a row are equal: endings behind the answers are over.
    async fn settled(&self) -> Holdings {
        let mut last = self.holdings();
        poll::until("the machine settles", async || {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let now = self.holdings();
            let same = now == last;
            last = now;
            same.then(|| last.clone())
        })
        .await
    }

    /// What this world holds on the machine now.
    pub fn holdings(&self) -> Holdings {
        self.reap();
        Holdings::take(&lock(&self.marks))
    }

    /// What it held before the test.
    pub fn baseline(&self) -> Holdings {
        lock(&self.baseline).clone()
    }

    /// Fails unless everything the test made is gone.
    pub async fn leak_check(&self) {
        let before = self.baseline();
        let started = Instant::now();
        loop {
            let leaked = self.holdings().leaked_since(&before);
            if leaked.is_empty() {
                return;
            }
            assert!(started.elapsed() < poll::PATIENCE, "left behind:\n  {}", leaked.join("\n  "));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Deletes every sandbox, every snapshot and every volume of every tenant.
    pub async fn delete_all(&self) {
        self.delete_all_snapshots().await;
        self.delete_all_sandboxes().await;
        let volumes = self.admin().get("/v1/volumes").await.ok();
        for found in volumes["items"].as_array().expect("items") {
            let id = found["id"].as_str().expect("id");
            self.admin().delete(&format!("/v1/volumes/{id}")).await.ok();
        }
    }

    async fn delete_all_sandboxes(&self) {
        loop {
            let page = self.admin().get("/v1/sandboxes?limit=100").await.ok();
            let ids: Vec<String> = page["items"]
                .as_array()
                .expect("items")
                .iter()
                .map(|s| s["id"].as_str().expect("id").to_owned())
                .collect();
            if ids.is_empty() {
                return;
            }
            for id in ids {
                self.admin().remove(&id).await;
            }
        }
    }

    async fn delete_all_snapshots(&self) {
        loop {
            let page = self.admin().get("/v1/snapshots?limit=100").await.ok();
            let items = page["items"].as_array().expect("items");
            if items.is_empty() {
                return;
            }
            for found in items {
                let id = found["id"].as_str().expect("id");
                self.admin().delete(&format!("/v1/snapshots/{id}")).await.ok();
            }
        }
    }

    async fn finish(&self) {
        if !self.options.audit {
            return;
        }
        self.delete_all().await;
        self.leak_check().await;
        let changes = self.canary.changes();
        assert!(changes.is_empty(), "the host was changed: {changes:?}");
        let status = self.stop_server(Signal::SIGTERM).await;
        assert!(status.success(), "the server ended with {status}");
        let left = poll::until("launcher and pool end with the server", async || {
            self.reap();
            let left = proc::descendants(proc::own_pid());
            left.is_empty().then_some(left)
        });
        left.await;
        assert!(!self.log().contains("panicked at"), "the server panicked:\n{}", self.log_tail());
    }

    /// Starts the server and waits until it answers.
    pub async fn start_server(&self) {
        self.spawn_server();
        poll::until("the server answers", async || {
            if let Some(status) = self.server_exit() {
                panic!("the server ended with {status} instead of answering:\n{}", self.log_tail());
            }
            let health = reqwest::get(format!("http://{LISTEN}/health")).await;
            health.is_ok_and(|answer| answer.status() == 200).then_some(())
        })
        .await;
        if self.contract.get().is_none() {
            let document =
                reqwest::get(format!("http://{LISTEN}/v1/openapi.json")).await.expect("the document");
            let document: Value = document.json().await.expect("the document is JSON");
            let _ = self.contract.set(Arc::new(Contract::new(document)));
        }
    }

    /// Starts the server without waiting.
    pub fn spawn_server(&self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("a log");
        let child = self
            .command()
            .args(["serve", "--listen", LISTEN])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        lock(&self.marks).server = Some(child.id().cast_signed());
        *lock(&self.server) = Some(child);
    }

    /// The `atoll` program, pointed at this world.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program());
        command
            .env_remove("ATOLL_API_KEY")
            .env("ATOLL_DATA", self.data())
            .env("ATOLL_URL", format!("http://{LISTEN}"))
            .env("ATOLL_TEMPLATE", self.options.template)
            .env("ATOLL_POOL", self.options.pool.to_string())
            .env("ATOLL_MAKE_TEMPLATES", "never")
            // The default one belongs to the machine.
            .env("ATOLL_SOCKET", "off")
            // What was added to the machine of a test run must not change what a test sees.
            .env("ATOLL_NO_HOST_CA", "true")
            .env("HOME", self.folder.path())
            .env("NO_COLOR", "1")
            // What the gate verifies upstream servers by, beside the host's roots.
            .env("ATOLL_EGRESS_ROOTS", self.folder.path().join("roots.pem"))
            .env("ATOLL_CACHE", atoll_image::default_cache_dir());
        for (name, value) in &self.options.env {
            command.env(name, value);
        }
        command.envs(lock(&self.more_env).iter().cloned());
        command
    }

    /// One more variable for the next start of the server; empty takes it away again.
    pub fn set_env(&self, name: &str, value: &str) {
        let mut more = lock(&self.more_env);
        more.retain(|(known, _)| known != name);
        if !value.is_empty() {
            more.push((name.to_owned(), value.to_owned()));
        }
    }

    /// The launcher of the server that runs now.
    pub fn launcher_pid(&self) -> i32 {
        self.find_launcher().expect("the server has a launcher")
    }

    /// As [`World::launcher_pid`], `None` while one that died is being replaced.
    pub fn find_launcher(&self) -> Option<i32> {
        let is_launcher = |pid: i32| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|b| *b == 0).any(|word| word == b"launcher"))
        };
        let below = proc::descendants(self.server_pid());
        below.iter().map(|p| p.pid).find(|pid| is_launcher(*pid))
    }

    /// The server's process id.
    pub fn server_pid(&self) -> i32 {
        lock(&self.server).as_ref().expect("a server").id().cast_signed()
    }

    /// How the server ended, if it did.
    pub fn server_exit(&self) -> Option<ExitStatus> {
        lock(&self.server).as_mut().and_then(|child| child.try_wait().expect("wait"))
    }

    /// Sends the server a signal.
    pub fn signal_server(&self, signal: Signal) {
        kill(Pid::from_raw(self.server_pid()), signal).expect("the server takes a signal");
    }

    /// Sends the server a signal and waits for its end.
    pub async fn stop_server(&self, signal: Signal) -> ExitStatus {
        self.signal_server(signal);
        let ended = poll::until("the server ends", async || self.server_exit()).await;
        lock(&self.server).take();
        lock(&self.marks).server = None;
        ended
    }

    /// Kills the server with -9 and starts it again on the same state.
    pub async fn crash_server(&self) {
        self.stop_server(Signal::SIGKILL).await;
        self.start_server().await;
    }

    /// As [`World::crash_server`], with other variables for the next one.
    pub async fn crash_server_with(&self, env: &[(&str, &str)]) {
        self.stop_server(Signal::SIGKILL).await;
        env.iter().for_each(|(name, value)| self.set_env(name, value));
        self.start_server().await;
    }

    /// A server that ended by itself is no longer ours to watch.
    pub fn forget_server(&self) {
        lock(&self.server).take();
        lock(&self.marks).server = None;
    }

    /// The client with the admin key.
    pub fn admin(&self) -> Client {
        let key =
            std::fs::read_to_string(self.data().join("admin.key")).expect("the server wrote its admin key");
        self.client(key.trim())
    }

    /// A client with any key.
    pub fn client(&self, key: &str) -> Client {
        let contract = self.contract.get().expect("the server has answered").clone();
        Client::new(&format!("http://{LISTEN}"), key, contract)
    }

    /// A new tenant without quota, and a client for it.
    pub async fn tenant(&self, name: &str) -> Client {
        self.tenant_with(name, json!({})).await
    }

    /// A new tenant with a quota, and a client for it.
    pub async fn tenant_with(&self, name: &str, quota: Value) -> Client {
        self.admin().post("/v1/tenants", json!({ "name": name, "quota": quota })).await.ok();
        let key = self.admin().post("/v1/keys", json!({ "tenant": name, "scope": "user" })).await.ok();
        self.client(key["secret"].as_str().expect("a secret"))
    }

    /// A client with a user key of the first tenant, the one that the server made by itself.
    pub async fn first_tenant(&self) -> Client {
        let key = self.admin().post("/v1/keys", json!({ "scope": "user" })).await.ok();
        self.client(key["secret"].as_str().expect("a secret"))
    }

    /// A neighbour of another tenant whose heart beats from now on.
    pub async fn witness(&self) -> NeighbourMonitor {
        let client = self.tenant("witness").await;
        NeighbourMonitor::start(client, "busybox").await
    }

    /// The state folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A folder beside the state, for the test's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where templates of this world are.
    pub fn templates(&self) -> PathBuf {
        self.data().join("templates")
    }

    /// The first process of a sandbox, as the host sees it.
    pub fn agent_pid(&self, sandbox: &str) -> i32 {
        self.find_agent(sandbox).unwrap_or_else(|| panic!("no agent of {sandbox}"))
    }

    /// As [`World::agent_pid`], `None` when there is none.
    pub fn find_agent(&self, sandbox: &str) -> Option<i32> {
        self.eye().find_agent(sandbox)
    }

    /// The state folder, looked at from the host; may outlive a borrow of the world.
    pub fn eye(&self) -> DataFolderView {
        DataFolderView::new(&self.data())
    }

    fn facts(&self, sandbox: &str) -> Option<Value> {
        self.eye().facts(sandbox)
    }

    /// The database, read-only.
    pub fn database(&self) -> rusqlite::Connection {
        self.eye().database()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// All that the server has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// The end of the log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Waits for orphans that were handed to the test process.
    pub fn reap(&self) {
        let server = lock(&self.server).as_ref().map(|child| child.id().cast_signed());
        let kept: BTreeSet<i32> = lock(&self.waited_for).iter().copied().chain(server).collect();
        proc::reap_orphans(&kept);
    }

    /// A process of the test itself, which does not count as an orphan until [`World::end_adopted`].
    pub fn adopt(&self, child: Child) -> i32 {
        let pid = child.id().cast_signed();
        lock(&self.waited_for).insert(pid);
        // Ended and waited for by its number.
        drop(child);
        pid
    }

    /// Ends such a process at once.
    pub fn end_adopted(&self, pid: i32) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        let _ = nix::sys::wait::waitpid(Pid::from_raw(pid), None);
        lock(&self.waited_for).remove(&pid);
    }

    /// Runs a command to its end and reaps orphans meanwhile, as the machine's init would.
    pub async fn output(&self, mut command: Command) -> std::process::Output {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("a command starts");
        let pid = child.id().cast_signed();
        lock(&self.waited_for).insert(pid);
        let mut done = tokio::task::spawn_blocking(move || child.wait_with_output().expect("it ends"));
        loop {
            let tick = tokio::time::timeout(Duration::from_millis(20), &mut done).await;
            if let Ok(output) = tick {
                lock(&self.waited_for).remove(&pid);
                return output.expect("it was waited for");
            }
            self.reap();
        }
    }

    fn report(&self) {
        eprintln!("--- end of the server's log ---\n{}\n---", self.log_tail());
    }

    /// Whatever happened: no process and no cgroup of this world stays.
    fn wipe(&self) {
        let marks = lock(&self.marks).clone();
        for _ in 0..50 {
            for cgroup in &marks.cgroups {
                crate::leaks::thaw_below(cgroup);
            }
            self.reap();
            if proc::descendants(proc::own_pid()).is_empty() {
                break;
            }
            kill_descendants();
            if let Some(child) = lock(&self.server).as_mut() {
                let _ = child.try_wait();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for cgroup in &marks.cgroups {
            crate::leaks::remove_below(cgroup);
            let _ = std::fs::remove_dir(cgroup);
        }
        crate::leaks::unmount_below(self.folder.path());
    }
}

/// The binary under test, with its agent inside: `ATOLL_BIN`, or the one that cargo built beside the tests.
pub fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("ATOLL_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().expect("the test's own path");
    let beside = own.ancestors().nth(2).expect("target/PROFILE").join("atoll");
    assert!(beside.exists(), "{} is not built: cargo build -p atoll, or set ATOLL_BIN", beside.display());
    beside
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
