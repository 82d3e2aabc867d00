//! The provider `local`: sandboxes are folders of this machine, their agents ordinary processes without isolation.
//!
//! Everything runs as the user of the server and can do what that user can. It is for development and for trusted code.
//!
//! ```text
//! LocalProvider ─┬─ folder     what a sandbox is on disk: owner, workspace, record of its instance
//!                ├─ launch     starts agents and ends them; a launcher for atoll-instances
//!                ├─ instance   a live agent, held by a pidfd
//!                ├─ processes  all processes of an instance, by control group or by tree, and their end
//!                ├─ adopt      after a restart: agents outlive the server
//!                └─ parts      dial, pause, resize
//! ```
//!
//! | part | how |
//! |---|---|
//! | agent | listens on a Unix socket in the folder; its token comes through a pipe and is in no file, argument or variable |
//! | end | a control group of the instance where the machine gives one, else the tree of processes below the agent |
//! | limits, pause | only with control groups |
//! | ports | port `AGENT_PORT` is the agent, every other one is a port of this machine's loopback |

mod adopt;
mod folder;
mod instance;
mod launch;
mod parts;
mod processes;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_cgroup::{Cgroups, DeviceAccess};
use atoll_instances::{DiskSpace, FilesState, InstanceSettings, Instances, failed, node_of_machine};
use atoll_model::policy::placement::Node;
use atoll_model::{ProviderKind, SandboxId, SnapshotId};
use atoll_provider::{
    Adopted, Booted, Capabilities, Capability, DialMode, DialSupport, DiskFigures, InstanceActivity,
    InstanceDemands, InstanceSpec, InstanceUsage, Isolation, KnownSandbox, Notice, OwnedSandbox,
    PauseSupport, Provider, ProviderDescription, ProviderError, ProviderImage, ResizeSupport, Target,
};
use tokio::sync::broadcast;

use folder::{SandboxFolders, WORKSPACE};
use instance::LocalInstance;
use launch::LocalCleaner;
use processes::InstanceProcesses;

/// The only thing that sandboxes are made from: this machine as it is.
const TEMPLATE: &str = "local";
/// How often instances are checked for processes that the kernel ended for lack of memory.
const EVENTS_EVERY: Duration = Duration::from_secs(1);
/// The file with the name of the control group of a data folder.
const CGROUP_FILE: &str = ".cgroup";

/// Everything that a provider needs to open.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Its name in requests and leases.
    pub name: &'static str,
    /// The owner label: which server the folders belong to. Other folders are never touched.
    pub owner: String,
    /// The folder that contains `atoll-agent`.
    pub agent: PathBuf,
    /// The folder of all sandboxes.
    pub data: PathBuf,
    /// The environment of commands, besides what the agent adds: nothing else of the server's is visible inside.
    pub environment: BTreeMap<String, String>,
    /// Ports of this machine that are not reached through a sandbox: those of the server.
    pub refused_ports: Vec<u16>,
    /// Whether instances get control groups.
    pub cgroups: CgroupUse,
}

/// Whether instances get control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupUse {
    /// Where this machine lets the server make them.
    WhereAvailable,
    /// Never: there are no limits and no pause, and processes are found by their parents.
    Never,
}

/// The provider `local`.
#[derive(Debug)]
pub struct LocalProvider {
    shared: Arc<LocalShared>,
}

/// State that all tasks of a provider share.
#[derive(Debug)]
struct LocalShared {
    config: LocalConfig,
    user: String,
    cleaner: LocalCleaner,
    instances: Instances<LocalShared>,
    disk_figures: DiskFigures,
}

impl LocalProvider {
    /// Opens the provider.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub async fn open(config: LocalConfig) -> Result<Self, ProviderError> {
        let (data, owner) = (config.data.clone(), config.owner.clone());
        let use_cgroups = config.cgroups == CgroupUse::WhereAvailable;
        let prepare = move || {
            let folders = SandboxFolders::open(&data, owner)?;
            let cgroups = if use_cgroups { open_cgroups(&folders.root)? } else { None };
            Ok(LocalCleaner { folders, processes: InstanceProcesses { cgroups } })
        };
        let cleaner = blocking(prepare).await.map_err(failed("opening the folder of the provider"))?;
        let instances = Instances::new(Arc::new(cleaner.clone()), InstanceSettings::default());
        let disk_figures = DiskFigures::default();
        let shared = Arc::new(LocalShared { config, user: own_user(), cleaner, instances, disk_figures });
        let watched = Arc::downgrade(&shared);
        shared.instances.spawn(async move {
            loop {
                tokio::time::sleep(EVENTS_EVERY).await;
                let Some(shared) = watched.upgrade() else { return };
                Instances::report_events(&*shared);
            }
        });
        Ok(Self { shared })
    }
}

/// Removes the control group of a data folder whose sandboxes are all deleted.
///
/// # Errors
/// A process is still in it.
pub fn remove_cgroups(data: &Path) -> io::Result<()> {
    match std::fs::read_to_string(data.join(CGROUP_FILE)) {
        Ok(name) => atoll_cgroup::open(name.trim(), DeviceAccess::Host)?.remove_parent(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The control group of a data folder has a random name, so that no other server has the same.
fn open_cgroups(root: &Path) -> io::Result<Option<Arc<dyn Cgroups>>> {
    let file = root.join(CGROUP_FILE);
    let name = match std::fs::read_to_string(&file) {
        Ok(name) => name.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = format!("atoll-local-{}", random_hex(6)?);
            std::fs::write(&file, &name)?;
            name
        }
        Err(error) => return Err(error),
    };
    match atoll_cgroup::open(&name, DeviceAccess::Host) {
        Ok(cgroups) => Ok(Some(cgroups)),
        Err(why) => {
            tracing::info!(%why, "sandboxes without isolation have no limits and cannot be paused on this machine");
            Ok(None)
        }
    }
}

/// The name of the user that this process runs as, or its number.
fn own_user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name = lines.find(|fields| fields.get(2) == Some(&uid.as_str())).map(|fields| fields[0].to_owned());
    name.filter(|name| !name.is_empty()).unwrap_or(uid)
}

fn random_hex(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(hex::encode(random))
}

/// Runs work that blocks; it comes to its end also when the caller goes away.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[async_trait]
impl Provider for LocalProvider {
    fn name(&self) -> &'static str {
        self.shared.config.name
    }

    fn kind(&self) -> &'static str {
        "local"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::None,
            cost: ProviderKind::Local.cost(),
            best_for: ProviderKind::Local.best_for(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let has_cgroups = self.shared.cleaner.processes.cgroups.is_some();
        Capabilities {
            dials: DialMode::Stream,
            keeps_files: true,
            resizes_live: has_cgroups,
            pauses: has_cgroups,
            ..Capabilities::default()
        }
    }

    fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        self.shared.check_demands(demands)
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        Instances::start(&self.shared, spec, FilesState::New).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        Instances::start(&self.shared, spec, FilesState::Kept).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        Instances::halt(&*self.shared, target).await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        self.shared.disk_figures.forget(&target.sandbox);
        Instances::destroy(&*self.shared, target).await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let live = self.shared.live(target)?;
        let processes = self.shared.cleaner.processes.clone();
        let folder = self.shared.cleaner.folders.of(&target.sandbox).join(WORKSPACE);
        let walk = async { blocking(move || folder::bytes_of(&folder)).await.ok() };
        let disk_bytes = self.shared.disk_figures.read(&target.sandbox, walk).await;
        let usage = blocking(move || processes.usage(&live.record)).await;
        Ok(InstanceUsage { disk_bytes, ..usage.map_err(failed("measuring the sandbox"))? })
    }

    async fn has_template(&self, template: &str, _: &str) -> Result<bool, ProviderError> {
        Ok(template == TEMPLATE)
    }

    fn has_images(&self) -> bool {
        true
    }

    async fn image(&self, name: Option<&str>) -> Result<Option<ProviderImage>, ProviderError> {
        match name {
            None | Some(TEMPLATE) => Ok(Some(ProviderImage {
                name: TEMPLATE.to_owned(),
                version: TEMPLATE.to_owned(),
                env: BTreeMap::new(),
                user: self.shared.user.clone(),
                // Each sandbox has its own.
                workdir: String::new(),
            })),
            Some(other) => Err(ProviderError::NoTemplate { template: other.to_owned() }),
        }
    }

    fn workspace(&self, sandbox: &SandboxId) -> Option<String> {
        let folder = self.shared.cleaner.folders.of(sandbox).join(WORKSPACE);
        folder.into_os_string().into_string().ok()
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let shared = Arc::clone(&self.shared);
        let list = move || {
            let folders = &shared.cleaner.folders;
            let owned = folders.list()?.into_iter().map(|sandbox| {
                let target = Target { sandbox: sandbox.clone(), instance: None };
                let live = shared.live(&target).ok();
                let activity = |live: &LocalInstance| match shared.is_frozen(live) {
                    true => InstanceActivity::Paused,
                    false => InstanceActivity::Running,
                };
                let instance = live.map(|live| (live.record.instance.clone(), activity(&live)));
                OwnedSandbox { sandbox, instance }
            });
            Ok(owned.collect())
        };
        blocking(list).await.map_err(failed("listing sandboxes"))
    }

    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        Instances::adopt(&self.shared, known, snapshots).await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.shared.instances.notices()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        let root = self.shared.cleaner.folders.root.clone();
        let measure = move || node_of_machine(DiskSpace::of(&root)?);
        blocking(measure).await.map_err(failed("measuring this machine"))
    }

    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "cleaning up".into(), after: deadline };
        tokio::time::timeout(deadline, self.shared.instances.settle()).await.map_err(late)
    }

    fn dial_support(&self) -> Result<&dyn DialSupport, ProviderError> {
        Ok(self)
    }

    fn resize_support(&self) -> Result<&dyn ResizeSupport, ProviderError> {
        match self.capabilities().resizes_live {
            true => Ok(self),
            false => Err(self.missing(Capability::Resize)),
        }
    }

    fn pause_support(&self) -> Result<&dyn PauseSupport, ProviderError> {
        match self.capabilities().pauses {
            true => Ok(self),
            false => Err(self.missing(Capability::Pause)),
        }
    }
}
