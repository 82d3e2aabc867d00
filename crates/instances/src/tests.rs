//! The bookkeeping with a launcher that makes nothing: its instances are entries of a table.

#![allow(clippy::disallowed_methods, reason = "tests own their tasks")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod adopt;
mod lifecycle;
mod pools;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_agentapi::{AgentClient, InitRequest};
use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, SandboxId, Storage};
use atoll_provider::{Booted, FilesOrigin, InstanceSpec, Notice, NoticeKind, ProviderError, Target};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinHandle;

use crate::{
    FilesState, InstanceLauncher, InstanceSettings, Instances, PoolKey, ReadyInstance, RemainsCleaner,
    RunningInstance, SandboxSlot,
};

/// LIMIT: everything here takes microseconds; a loaded machine may take longer.
const WITHIN: Duration = Duration::from_secs(20);

/// The machine: the names of everything that exists, which the launcher makes and the reaper removes.
#[derive(Debug, Default)]
struct Host {
    things: Mutex<BTreeSet<String>>,
    /// Running instances by name, as a later server would find them.
    running: Mutex<HashMap<String, Arc<Running>>>,
    /// How often a removal still fails.
    failures: AtomicUsize,
    removals: AtomicUsize,
}

impl Host {
    fn things(&self) -> Vec<String> {
        self.things.lock().unwrap().iter().cloned().collect()
    }

    fn make(&self, name: &str) {
        assert!(self.things.lock().unwrap().insert(name.to_owned()), "{name} exists already");
    }

    fn run(&self, name: &str) -> Arc<Running> {
        self.make(name);
        let running =
            Arc::new(Running { dead: watch::Sender::new(false), has_event: AtomicBool::new(false) });
        self.running.lock().unwrap().insert(name.to_owned(), Arc::clone(&running));
        running
    }
}

impl RemainsCleaner for Host {
    type Remains = Vec<String>;

    fn try_clear(&self, remains: &mut Vec<String>, tries: u32) -> io::Result<bool> {
        self.removals.fetch_add(1, Ordering::SeqCst);
        let before = self.failures.load(Ordering::SeqCst);
        if before > 0 {
            self.failures.store(before - 1, Ordering::SeqCst);
            return if tries.is_multiple_of(2) { Ok(false) } else { Err(io::ErrorKind::ResourceBusy.into()) };
        }
        for name in remains.drain(..) {
            self.things.lock().unwrap().remove(&name);
            self.running.lock().unwrap().remove(&name);
        }
        Ok(true)
    }
}

/// The process of an instance.
#[derive(Debug)]
struct Running {
    dead: watch::Sender<bool>,
    /// Something happened that was not reported yet.
    has_event: AtomicBool,
}

#[derive(Debug)]
struct FakeInstance {
    name: String,
    running: Arc<Running>,
    ending: AtomicBool,
}

impl FakeInstance {
    fn new(name: &str, running: Arc<Running>) -> Self {
        Self { name: name.to_owned(), running, ending: AtomicBool::new(false) }
    }

    fn die(&self) {
        self.running.dead.send_replace(true);
    }
}

impl RunningInstance for FakeInstance {
    fn expect_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    fn is_dead(&self) -> io::Result<bool> {
        Ok(*self.running.dead.borrow())
    }

    async fn dead(&self) -> io::Result<()> {
        self.running.dead.subscribe().wait_for(|dead| *dead).await.map_err(io::Error::other)?;
        Ok(())
    }
}

#[derive(Debug)]
struct FakeReady {
    instance: FakeInstance,
    version: String,
}

impl ReadyInstance for FakeReady {
    fn name(&self) -> &str {
        &self.instance.name
    }
}

struct FakeLauncher {
    instances: Instances<FakeLauncher>,
    host: Arc<Host>,
    /// A launch takes one permit before it ends.
    permits: Semaphore,
    /// The sandboxes whose launches are under way.
    launching: watch::Sender<Vec<SandboxId>>,
    /// The newest version of the template, which the pools hold.
    version: Mutex<String>,
    made: AtomicUsize,
}

/// A launcher for so many launches; the test may add permits for more.
fn launcher(settings: InstanceSettings, permits: usize) -> Arc<FakeLauncher> {
    let host = Arc::new(Host::default());
    on_host(&host, settings, permits)
}

fn on_host(host: &Arc<Host>, settings: InstanceSettings, permits: usize) -> Arc<FakeLauncher> {
    Arc::new(FakeLauncher {
        instances: Instances::new(Arc::clone(host), settings),
        host: Arc::clone(host),
        permits: Semaphore::new(permits),
        launching: watch::Sender::new(Vec::new()),
        version: Mutex::new("one".into()),
        made: AtomicUsize::new(0),
    })
}

impl FakeLauncher {
    fn pooled(&self, template: &str) -> (usize, usize) {
        let stats = self.instances.pool_stats();
        let found = stats.iter().find(|stats| stats.template == template);
        found.map_or((0, 0), |stats| (stats.ready, stats.wanted))
    }
}

impl InstanceLauncher for FakeLauncher {
    type Instance = FakeInstance;
    type Ready = FakeReady;
    type Cleaner = Host;

    fn instances(&self) -> &Instances<Self> {
        &self.instances
    }

    async fn launch(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
        slot: &Arc<SandboxSlot<FakeInstance>>,
    ) -> Result<(Arc<FakeInstance>, Booted), ProviderError> {
        let booted = |from_pool| Booted { facts: serde_json::Value::Null, agent_token: None, from_pool };
        if let Some(ready) =
            Instances::take_ready(&**self, &spec.template, &spec.template_version, &spec.limits)
        {
            return Ok((Arc::new(ready.instance), booted(true)));
        }
        let (name, layer) = (spec.instance.as_str(), format!("files of {}", spec.sandbox));
        let running = self.host.run(name);
        if files == FilesState::New {
            self.host.make(&layer);
        }
        self.launching.send_modify(|all| all.push(spec.sandbox.clone()));
        let launched = tokio::select! {
            biased;
            () = slot.doomed() => Err(ProviderError::Gone { sandbox: spec.sandbox.clone() }),
            permit = self.permits.acquire() => {
                permit.unwrap().forget();
                Ok((Arc::new(FakeInstance::new(name, running)), booted(false)))
            }
        };
        let at = |all: &Vec<SandboxId>| all.iter().position(|one| *one == spec.sandbox).unwrap();
        self.launching.send_modify(|all| drop(all.swap_remove(at(all))));
        if launched.is_err() {
            self.instances.reaper().take(vec![name.to_owned(), layer]);
        }
        launched
    }

    async fn kill(&self, instance: &Arc<FakeInstance>) -> Result<(), ProviderError> {
        instance.die();
        Ok(())
    }

    fn remains(&self, instance: &FakeInstance) -> Result<Vec<String>, ProviderError> {
        Ok(vec![instance.name.clone()])
    }

    async fn remove_memory(&self, _sandbox: &SandboxId) -> Result<(), ProviderError> {
        Ok(())
    }

    async fn remove_files(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        let layer = format!("files of {sandbox}");
        if self.host.things.lock().unwrap().remove(&layer) {
            let aside = format!("{layer}, aside {}", self.made.fetch_add(1, Ordering::SeqCst));
            self.host.make(&aside);
            self.instances.reaper().take(vec![aside]);
        }
        Ok(())
    }

    fn new_event(&self, instance: &FakeInstance) -> Option<NoticeKind> {
        instance.running.has_event.swap(false, Ordering::SeqCst).then_some(NoticeKind::OutOfMemory)
    }

    async fn make_ready(self: &Arc<Self>, key: &PoolKey) -> Result<FakeReady, ProviderError> {
        let newest = self.version.lock().unwrap().clone();
        let version = key.version.clone().unwrap_or(newest);
        let name = format!("ready {}", self.made.fetch_add(1, Ordering::SeqCst));
        Ok(FakeReady { instance: FakeInstance::new(&name, self.host.run(&name)), version })
    }

    async fn freeze_ready(&self, ready: FakeReady) -> Result<FakeReady, ProviderError> {
        Ok(ready)
    }

    fn agent_of(self: &Arc<Self>, _ready: &FakeReady) -> io::Result<(AgentClient, InitRequest)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn freeze_prepared(&self, ready: FakeReady) -> Result<FakeReady, ProviderError> {
        Ok(ready)
    }

    fn is_usable(&self, ready: &FakeReady, version: &str) -> bool {
        ready.version == version
    }

    fn has_room(&self, _ready: &FakeReady, limits: &Limits) -> bool {
        limits.memory_mib > 1
    }

    fn discard(&self, ready: FakeReady) {
        ready.instance.expect_end();
        ready.instance.die();
        self.instances.reaper().take(vec![ready.instance.name]);
    }
}

fn sandbox(number: u8) -> SandboxId {
    SandboxId::from_entropy([number; 20])
}

fn instance(number: u8) -> InstanceId {
    InstanceId::from_entropy([number; 20])
}

fn spec(of: u8, number: u8) -> InstanceSpec {
    InstanceSpec {
        sandbox: sandbox(of),
        instance: instance(number),
        template: "debian".into(),
        template_version: "one".into(),
        limits: Limits::default(),
        network: Arc::new(Egress::closed()),
        storage: Storage::Disk,
        hostname: "sandbox".into(),
        origin: FilesOrigin::Template,
        mounts: Vec::new(),
    }
}

fn target(of: u8) -> Target {
    Target { sandbox: sandbox(of), instance: None }
}

fn start(
    launcher: &Arc<FakeLauncher>,
    spec: InstanceSpec,
    files: FilesState,
) -> JoinHandle<Result<Booted, ProviderError>> {
    let launcher = Arc::clone(launcher);
    tokio::spawn(async move { Instances::start(&launcher, &spec, files).await })
}

/// Waits until exactly these sandboxes are being launched.
async fn launching(launcher: &FakeLauncher, wanted: &[SandboxId]) {
    let mut now = launcher.launching.subscribe();
    let reached = now.wait_for(|all| all.as_slice() == wanted);
    tokio::time::timeout(WITHIN, reached).await.expect("in time").unwrap();
}

async fn until(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < WITHIN, "{what} did not become true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn next(notices: &mut broadcast::Receiver<Notice>) -> Notice {
    tokio::time::timeout(WITHIN, notices.recv()).await.expect("in time").unwrap()
}
