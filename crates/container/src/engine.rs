//! The provider `container`: the state of a running engine, and how it is opened and closed.
//!
//! Every sandbox has a [`SandboxSlot`] with a lock for turns. Create, boot, halt and destroy of one sandbox never run
//! at the same time; those of different sandboxes may. A create runs as a task of its own, so a caller that goes away
//! does not leave a half-made instance.

mod adopt;
mod blocking_pool;
mod claim;
mod cold_start;
mod instance;
mod mounts;
mod pack;
mod pause;
mod pool;
mod prepared_pool;
mod provide;
mod reaper;
mod resize;
mod restore;
mod snapshot;
mod support;
mod volumes;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_disk::Reserve;
use atoll_image::Catalog;
use atoll_model::{EgressRecord, InstanceId, Limits, SandboxId};
use atoll_network::{
    Dialer, DialerConfig, Gate, Router, RouterConfig, RouterError, RouterHandle, SandboxNetworks, Upstreams,
};
use atoll_provider::{Egressed, Notice, Prepare, ProviderError};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;

use crate::block::{BlockError, Numbers};
use crate::checkpoint::{Checkpoints, Criu};
use crate::failpoint::FailPoint;
use crate::launcher::protocol::{Hello, Times};
use crate::launcher::{LaunchError, Launcher, LauncherCommand};
use atoll_storage::{Layers, StorageChoice, StorageError};
use blocking_pool::BlockingPool;
use instance::Live;
use reaper::{HostResources, Reaper};

/// LIMIT: egress decisions that a slow listener may be behind; beyond that the log has a gap, which the log reports.
const EGRESSED: usize = 4_096;
/// LIMIT: notices that a slow listener may be behind; beyond that the listener is informed that it missed some.
const NOTICES: usize = 1_024;
/// LIMIT: threads finish their job in milliseconds.
const STOP_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// The settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The server's data folder.
    pub data: PathBuf,
    /// The machine-wide table of servers.
    pub machine: PathBuf,
    /// How to run the launcher.
    pub launcher: LauncherCommand,
    /// Where layers live.
    pub storage: StorageChoice,
    /// The disk space that stays free on the disk of the data folder.
    pub disk: Arc<Reserve>,
    /// Number of ready instances to keep per template name.
    pub pool: BTreeMap<String, usize>,
    /// Limits of instances in the pool; a claim with other limits changes them.
    pub pool_limits: Limits,
    /// Starts processes in ready instances before they are frozen.
    pub prepare: Option<Arc<dyn Prepare>>,
    /// Whether to use the code for old kernels; `None`: decided by the kernel version.
    pub legacy: Option<bool>,
    /// A file to use instead of the agent that this server carries.
    pub agent: Option<PathBuf>,
    /// Folders with templates that are on separate mounts.
    pub template_folders: Vec<PathBuf>,
    /// The DNS servers that the gate asks; `None`: those of the host.
    pub name_servers: Option<Vec<std::net::SocketAddr>>,
    /// Where a test ends the server.
    pub failpoint: FailPoint,
}

impl EngineConfig {
    /// The default settings for a data folder.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            machine: "/run/atoll".into(),
            launcher: LauncherCommand::myself(),
            storage: StorageChoice::Best,
            disk: Reserve::new(1 << 30),
            pool: BTreeMap::new(),
            pool_limits: Limits::default(),
            prepare: None,
            legacy: None,
            agent: None,
            template_folders: Vec::new(),
            name_servers: None,
            failpoint: FailPoint::default(),
        }
    }
}

/// The engine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The block of numbers of this server.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The storage of layers.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The router.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// The launcher.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Another step.
    #[error("cannot {step}")]
    Step {
        step: &'static str,
        #[source]
        cause: io::Error,
    },
}

fn step(step: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |cause| OpenError::Step { step, cause }
}

/// Duration of each step, in microseconds.
pub type Timings = Vec<(String, u32)>;

/// The number of ready instances of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStats {
    /// The template's name.
    pub template: String,
    /// The exact version; `None`: the newest.
    pub version: Option<String>,
    /// How many are ready.
    pub ready: usize,
    /// How many the pool should hold.
    pub wanted: usize,
}

/// The provider `container`.
#[derive(Debug)]
pub struct Engine {
    inner: Arc<EngineShared>,
}

/// State that all tasks of an engine share.
#[derive(Debug)]
struct EngineShared {
    config: EngineConfig,
    catalog: Arc<Catalog>,
    launcher: Launcher,
    resources: Arc<HostResources>,
    router: Router,
    reaper: Reaper,
    blocking: BlockingPool,
    dialer: Dialer,
    checkpoints: Checkpoints,
    /// CRIU, or why it cannot be used.
    criu: Result<Criu, String>,
    boot_id: String,
    /// The server's UTS namespace, to return to after entering a sandbox's.
    own_uts: Arc<OwnedFd>,
    places: Mutex<HashMap<SandboxId, Arc<SandboxSlot>>>,
    pool: Mutex<pool::Pools>,
    pool_wanted: Arc<Notify>,
    /// Starts take it shared, adoption exclusively: a sweep must not find half-made instances.
    adoption: Arc<tokio::sync::RwLock<()>>,
    /// Held while a ready instance is being made.
    filling: tokio::sync::Mutex<()>,
    /// Instances of an earlier server may still exist, with numbers that this server would hand out again.
    needs_adoption: AtomicBool,
    is_closing: AtomicBool,
    starting: AtomicUsize,
    /// When the last start that a caller waited for ended.
    last_start: Mutex<Option<std::time::Instant>>,
    cold_starts: AtomicU64,
    last_times: Mutex<Times>,
    /// Step times of the last checkpoint or restore.
    memory_times: Mutex<Times>,
    /// Snapshots that are being made, and whether each is to be removed when it is done.
    making: Mutex<HashMap<atoll_model::SnapshotId, bool>>,
    notices: broadcast::Sender<Notice>,
    egressed: broadcast::Sender<Egressed>,
    tasks: Mutex<JoinSet<()>>,
}

/// The state of one sandbox in this engine.
#[derive(Debug, Default)]
struct SandboxSlot {
    /// Held by the operation that changes the sandbox.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The sandbox is to be removed: a create under way gives up.
    doomed: AtomicBool,
    doom: Notify,
    live: Mutex<Option<(InstanceId, Arc<Live>)>>,
}

impl SandboxSlot {
    fn live(&self) -> Option<(InstanceId, Arc<Live>)> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_live(&self, live: Option<(InstanceId, Arc<Live>)>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }

    /// Makes a create under way give up.
    fn condemn(&self) {
        self.doomed.store(true, Ordering::SeqCst);
        self.doom.notify_waiters();
    }

    fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::SeqCst)
    }

    async fn doomed(&self) {
        loop {
            let told = self.doom.notified();
            if self.is_doomed() {
                return;
            }
            told.await;
        }
    }
}

impl Engine {
    /// Opens or makes everything that outlives the server, and starts the launcher. Call it in the host's network
    /// namespace.
    pub async fn open(mut config: EngineConfig, catalog: Arc<Catalog>) -> Result<Self, OpenError> {
        crate::sys::raise_descriptors().map_err(step("raise the limit of descriptors"))?;
        let blocking = tokio::task::spawn_blocking({
            let config = config.clone();
            move || OpenedEngine::open(&config)
        });
        let opened = blocking.await.map_err(|_| step("open the engine")(io::ErrorKind::Other.into()))??;
        config.data = opened.data;
        let launcher = Launcher::new(config.launcher.clone(), opened.hello);
        launcher.warm().await?;
        let needs_adoption = !opened.resources.cgroups.list().map_err(step("list cgroups"))?.is_empty();
        let (reaper, reaping) = Reaper::new(Arc::clone(&opened.resources));
        let inner = Arc::new(EngineShared {
            catalog,
            launcher,
            resources: opened.resources,
            router: opened.router,
            reaper,
            blocking: BlockingPool::start().map_err(step("start threads"))?,
            dialer: Dialer::start(DialerConfig::default()).map_err(step("start dialers"))?,
            checkpoints: opened.checkpoints,
            criu: opened.criu,
            boot_id: instance::boot_id().map_err(step("read the boot id"))?,
            own_uts: Arc::new(
                std::fs::File::open("/proc/self/ns/uts").map_err(step("open our UTS namespace"))?.into(),
            ),
            places: Mutex::default(),
            pool: Mutex::default(),
            pool_wanted: Arc::new(Notify::new()),
            adoption: Arc::default(),
            filling: tokio::sync::Mutex::new(()),
            needs_adoption: AtomicBool::new(needs_adoption),
            is_closing: AtomicBool::new(false),
            starting: AtomicUsize::new(0),
            last_start: Mutex::default(),
            cold_starts: AtomicU64::new(0),
            last_times: Mutex::default(),
            memory_times: Mutex::default(),
            making: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            egressed: opened.egressed,
            tasks: Mutex::new(JoinSet::new()),
            config,
        });
        inner.spawn(reaping);
        let weak = Arc::downgrade(&inner);
        inner.spawn(watch::memory(weak.clone()));
        inner.spawn(watch::housekeeping(weak.clone()));
        inner.spawn(watch::flows(weak.clone()));
        inner.spawn(pool::keep_filled(weak));
        if let Some(gate) = opened.gate {
            inner.spawn(async move {
                if let Err(cause) = gate.run().await {
                    tracing::error!(%cause, "the egress gate ended");
                }
            });
        }
        Ok(Self { inner })
    }

    /// Ends the ready instances, which only this server uses. Sandboxes continue.
    pub async fn close(&self) {
        self.inner.is_closing.store(true, Ordering::SeqCst);
        // Waits for an instance that is being made; none is begun after it.
        let filling = self.inner.filling.lock().await;
        self.inner.drain_pool();
        drop(filling);
        self.inner.starts_end().await;
        self.inner.reaper.settle().await;
    }

    /// Step times of the last cold start.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.inner.last_times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Step times of the last checkpoint or restore.
    #[must_use]
    pub fn memory_timings(&self) -> Timings {
        self.inner.memory_times.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How full the pools are.
    #[must_use]
    pub fn pool_stats(&self) -> Vec<PoolStats> {
        self.inner.pool_stats()
    }

    /// The pid of the launcher, if it runs.
    pub async fn launcher_pid(&self) -> Option<u32> {
        self.inner.launcher.pid().await
    }

    /// The block of this server; the names of its links and cgroups contain it.
    #[must_use]
    pub fn block(&self) -> u16 {
        self.inner.router.block().number()
    }

    /// The layout of control groups: `v1` or `v2`.
    #[must_use]
    pub fn cgroup_layout(&self) -> &'static str {
        self.inner.resources.cgroups.layout()
    }

    /// Removes everything that outlives the server. No sandbox may be left.
    pub async fn uninstall(self) -> Result<(), OpenError> {
        self.close().await;
        let mut inner = Arc::clone(&self.inner);
        let mut tasks = std::mem::take(&mut *inner.lock_tasks());
        drop(self);
        tasks.shutdown().await;
        // A thread may still use one of them.
        let begun = std::time::Instant::now();
        let inner = loop {
            match Arc::try_unwrap(inner) {
                Ok(inner) => break inner,
                Err(_) if begun.elapsed() > STOP_WITHIN => {
                    return Err(step("stop all work")(io::ErrorKind::ResourceBusy.into()));
                }
                Err(shared) => inner = shared,
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        };
        remove_cgroups(inner.resources.cgroups.as_ref()).await.map_err(step("remove our cgroups"))?;
        inner.router.teardown()?;
        drop(inner.launcher);
        let data = inner.config.data.clone();
        inner.resources.layers.remove_all_snapshots().map_err(step("remove snapshots"))?;
        inner
            .resources
            .layers
            .sweep_volumes(&std::collections::HashSet::new())
            .map_err(step("remove volumes"))?;
        atoll_storage::unmount(&data).map_err(step("unmount the pool"))?;
        match Arc::try_unwrap(inner.resources)
            .map(|resources| Arc::try_unwrap(resources.numbers).map(Mutex::into_inner))
        {
            Ok(Ok(numbers)) => Ok(numbers.unwrap_or_else(PoisonError::into_inner).forget()?),
            _ => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.lock_tasks().abort_all();
    }
}

impl EngineShared {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.lock_tasks();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn lock_tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.resources.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn router(&self) -> MutexGuard<'_, RouterHandle> {
        self.resources.networks.router()
    }

    fn places(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<SandboxSlot>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, sandbox: &SandboxId) -> Arc<SandboxSlot> {
        Arc::clone(self.places().entry(sandbox.clone()).or_default())
    }
}

/// The parts of an engine that are opened with blocking calls.
struct OpenedEngine {
    data: PathBuf,
    hello: Hello,
    resources: Arc<HostResources>,
    router: Router,
    gate: Option<Gate>,
    egressed: broadcast::Sender<Egressed>,
    checkpoints: Checkpoints,
    criu: Result<Criu, String>,
}

impl OpenedEngine {
    fn open(config: &EngineConfig) -> Result<Self, OpenError> {
        let data = &config.data;
        std::fs::create_dir_all(data.join("stage")).map_err(step("make the data folder"))?;
        let data = data.canonicalize().map_err(step("find the data folder"))?;
        let legacy = config.legacy.unwrap_or_else(is_old_kernel);
        let numbers = Numbers::open(&config.machine, &data)?;
        let block = numbers.block();
        let layers = Layers::open(&data, config.storage, legacy, &config.disk)?;
        let agent =
            crate::agent_binary::install(&data, config.agent.as_deref()).map_err(step("write the agent"))?;
        let cgroups = crate::cgroup::open(&format!("atoll-{}", block.number()))
            .map_err(step("set up control groups"))?;
        let router = Router::open(RouterConfig { block, pin: data.join("router") })?;
        let handle = router.handle()?;
        let upstreams = config.name_servers.clone().map_or_else(Upstreams::of_host, Upstreams::fixed);
        let egressed = broadcast::Sender::new(EGRESSED);
        let told = egressed.clone();
        // Without a listener the record is dropped.
        let log = move |sandbox: &SandboxId, record: EgressRecord| {
            let _ = told.send(Egressed { sandbox: sandbox.clone(), record });
        };
        let networks = SandboxNetworks::open(&router, handle, upstreams, Arc::new(log))
            .map_err(step("watch over what leaves sandboxes"))?;
        let gate = networks.gate().cloned();
        let mut needed =
            vec![data.join("pool"), data.join("templates"), data.join("images"), PathBuf::from("/usr")];
        needed.extend(config.template_folders.iter().cloned());
        let checkpoints = Checkpoints::open(&data.join("pool"), config.failpoint.clone())
            .map_err(step("make the folder of checkpoints"))?;
        let criu = Criu::open(&data);
        match &criu {
            Ok(criu) => needed.extend(criu.program().parent().map(PathBuf::from)),
            Err(why) => tracing::info!(why, "memory cannot be written to disk on this machine"),
        }
        let resources = HostResources {
            cgroups,
            layers: Arc::new(layers),
            networks,
            numbers: Arc::new(Mutex::new(numbers)),
            failpoint: config.failpoint.clone(),
        };
        let hello = Hello { stage: data.join("stage"), agent, needed, legacy };
        Ok(Self { data, hello, resources: Arc::new(resources), router, gate, egressed, checkpoints, criu })
    }
}

/// Whether the kernel is older than 6.15, the first version that takes overlay layers as detached descriptors.
/// `ATOLL_LEGACY_KERNEL=1` forces it.
fn is_old_kernel() -> bool {
    if std::env::var_os("ATOLL_LEGACY_KERNEL").is_some_and(|value| value == "1") {
        return true;
    }
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 15)
}

/// Adds the name of the failed step to an error.
fn failed<E: Into<Box<dyn Error + Send + Sync>>>(step: &'static str) -> impl Fn(E) -> ProviderError {
    move |cause| ProviderError::Failed { step: step.to_owned(), cause: cause.into() }
}

/// Removes the cgroup folder of this server. A killed process leaves its cgroup only when its memory is freed, which
/// can take long on a busy machine.
async fn remove_cgroups(cgroups: &dyn crate::cgroup::Cgroups) -> io::Result<()> {
    let begun = std::time::Instant::now();
    loop {
        match cgroups.remove_parent() {
            Err(busy) if busy.kind() == io::ErrorKind::ResourceBusy => {
                if begun.elapsed() > STOP_WITHIN {
                    let left = cgroups.list().unwrap_or_default();
                    return Err(io::Error::new(busy.kind(), format!("{busy}; still there: {left:?}")));
                }
            }
            other => return other,
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
