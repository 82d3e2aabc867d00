//! The provider `container`: the state of a running engine, and how it is opened and closed.
//!
//! The engine is an [`InstanceLauncher`](atoll_instances::InstanceLauncher): it makes and ends instances out of
//! namespaces. Slots, turns, pool, reaper and adoption are those of [`Instances`].

mod adopt;
mod claim;
mod cold_start;
mod instance;
mod launch;
mod mounts;
mod pack;
mod pause;
mod pool;
mod provide;
mod reaper;
mod resize;
mod restore;
mod snapshot;
mod support;
mod volumes;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_cgroup::DeviceAccess;
use atoll_image::Catalog;
use atoll_instances::{BlockError, BlockingPool, InstanceSettings, Instances, Numbers, PoolStats, failed};
use atoll_model::{EgressRecord, Limits, SandboxId};
use atoll_network::{
    Dialer, DialerConfig, Gate, Router, RouterConfig, RouterError, RouterHandle, SandboxNetworks, Upstreams,
};
use atoll_provider::{Egressed, Prepare};
use tokio::sync::broadcast;

use crate::checkpoint::{Checkpoints, Criu};
use crate::failpoint::FailPoint;
use crate::launcher::protocol::{Hello, Times};
use crate::launcher::{LaunchError, Launcher, LauncherCommand};
use atoll_storage::{Layers, Reserve, StorageChoice, StorageError};
use instance::Live;
use reaper::HostResources;

/// The slot of a sandbox of this engine.
type SandboxSlot = atoll_instances::SandboxSlot<Live>;

/// LIMIT: egress decisions that a slow listener may be behind; beyond that the log has a gap, which the log reports.
const EGRESSED: usize = 4_096;
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
    instances: Instances<EngineShared>,
    blocking: BlockingPool,
    dialer: Dialer,
    checkpoints: Checkpoints,
    /// CRIU, or why it cannot be used.
    criu: Result<Criu, String>,
    boot_id: String,
    /// The server's UTS namespace, to return to after entering a sandbox's.
    own_uts: Arc<OwnedFd>,
    cold_starts: AtomicU64,
    last_times: Mutex<Times>,
    /// Step times of the last checkpoint or restore.
    memory_times: Mutex<Times>,
    /// Snapshots that are being made, and whether each is to be removed when it is done.
    making: Mutex<HashMap<atoll_model::SnapshotId, bool>>,
    egressed: broadcast::Sender<Egressed>,
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
        let settings =
            InstanceSettings { pools: config.pool.clone(), prepare: config.prepare.clone(), needs_adoption };
        let instances = Instances::new(Arc::clone(&opened.resources), settings);
        let inner = Arc::new(EngineShared {
            catalog,
            launcher,
            resources: opened.resources,
            router: opened.router,
            instances,
            blocking: BlockingPool::start().map_err(step("start threads"))?,
            dialer: Dialer::start(DialerConfig::default()).map_err(step("start dialers"))?,
            checkpoints: opened.checkpoints,
            criu: opened.criu,
            boot_id: instance::boot_id().map_err(step("read the boot id"))?,
            own_uts: Arc::new(
                std::fs::File::open("/proc/self/ns/uts").map_err(step("open our UTS namespace"))?.into(),
            ),
            cold_starts: AtomicU64::new(0),
            last_times: Mutex::default(),
            memory_times: Mutex::default(),
            making: Mutex::default(),
            egressed: opened.egressed,
            config,
        });
        let weak = Arc::downgrade(&inner);
        inner.instances.spawn(watch::memory(weak.clone()));
        inner.instances.spawn(watch::housekeeping(weak.clone()));
        inner.instances.spawn(watch::flows(weak));
        Instances::keep_pools_filled(&inner);
        if let Some(gate) = opened.gate {
            inner.instances.spawn(async move {
                if let Err(cause) = gate.run().await {
                    tracing::error!(%cause, "the egress gate ended");
                }
            });
        }
        Ok(Self { inner })
    }

    /// Ends the ready instances, which only this server uses. Sandboxes continue.
    pub async fn close(&self) {
        Instances::close(&*self.inner).await;
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
        self.inner.instances.pool_stats()
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
        self.leave_machine(StoredFiles::Remove).await
    }

    /// Removes the server's control groups, its router and its mounts. No sandbox may run. With the files kept, the next
    /// engine on this folder has its sandboxes, snapshots and volumes again.
    pub async fn leave_machine(self, files: StoredFiles) -> Result<(), OpenError> {
        self.close().await;
        let mut inner = Arc::clone(&self.inner);
        let mut tasks = inner.instances.take_tasks();
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
        if files == StoredFiles::Remove {
            let layers = &inner.resources.layers;
            layers.remove_all_snapshots().map_err(step("remove snapshots"))?;
            layers.sweep_volumes(&std::collections::HashSet::new()).map_err(step("remove volumes"))?;
        }
        atoll_storage::unmount(&data).map_err(step("unmount the pool"))?;
        match Arc::try_unwrap(inner.resources)
            .map(|resources| Arc::try_unwrap(resources.numbers).map(Mutex::into_inner))
        {
            Ok(Ok(numbers)) => Ok(numbers.unwrap_or_else(PoisonError::into_inner).forget()?),
            _ => Ok(()),
        }
    }
}

/// What happens to snapshots and volumes when an engine leaves a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredFiles {
    /// They stay in the data folder.
    Keep,
    /// They are removed.
    Remove,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.instances.abort_tasks();
    }
}

impl EngineShared {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.resources.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn router(&self) -> MutexGuard<'_, RouterHandle> {
        self.resources.networks.router()
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
        let cgroups = atoll_cgroup::open(&format!("atoll-{}", block.number()), DeviceAccess::Sandbox)
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

/// Removes the cgroup folder of this server. A killed process leaves its cgroup only when its memory is freed, which
/// can take long on a busy machine.
async fn remove_cgroups(cgroups: &dyn atoll_cgroup::Cgroups) -> io::Result<()> {
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
