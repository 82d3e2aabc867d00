//! The provider `docker`: sandboxes are containers of a Docker daemon.
//!
//! ```text
//! DockerProvider ─┬─ daemon        calls to the daemon's API: limited in time, typed errors
//!                 ├─ lifecycle     create, boot, halt, destroy: run to their end, also without a caller
//!                 ├─ adoption      what became of containers after a restart of the server
//!                 ├─ agent_folder  what a sandbox sees at /.atoll: the agent and its token
//!                 ├─ slot          turns of a sandbox; its live container
//!                 ├─ dial          connections to ports inside: by network namespace, or by exec_stream
//!                 ├─ mounts        volumes, and folders of this machine, in containers
//!                 ├─ volumes       volumes that the daemon keeps
//!                 ├─ parts         pause, resize
//!                 └─ watch         deaths and lack of memory, from the daemon's events and from pidfds
//! ```
//!
//! | sandbox | container |
//! |---|---|
//! | owner, id, first instance | labels `atoll.owner`, `atoll.sandbox`, `atoll.instance` |
//! | current instance | the part of the container's name after the dot |
//! | first process | the agent, whatever the image is: bound read-only from this machine, or copied in where the daemon is elsewhere |
//! | connections | sockets that are made in the container's network namespace, or one exec that carries all; no port is published |
//! | files | the container's own layer; they are kept while it is stopped |
//!
//! A volume is a named volume of the daemon with the labels `atoll.owner` and `atoll.volume` (see [`volumes`]).
//!
//! The provider keeps no record: after a crash of the server everything is found again by the labels.

mod adoption;
mod agent_folder;
mod daemon;
mod dial;
mod exec_stream;
mod lifecycle;
mod mounts;
mod parts;
mod settings;
mod slot;
mod volumes;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{ProviderKind, SnapshotId};
use atoll_network::{Dialer, DialerConfig};
use atoll_provider::{
    Adopted, Booted, Capabilities, Capability, DialMode, DialSupport, DiskFigures, InstanceDemands,
    InstanceSpec, InstanceUsage, Isolation, KnownSandbox, Notice, OwnedSandbox, PauseSupport, Provider,
    ProviderDescription, ProviderError, ProviderImage, ResizeSupport, Target, VolumeSupport,
};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use agent_folder::AgentFolders;
use daemon::Daemon;
use slot::SandboxSlots;

pub use settings::{DockerNetwork, DockerPull, DockerSettings};

/// LIMIT: notices that a slow listener may be behind; beyond that the listener is informed that it missed some.
const NOTICES: usize = 1_024;
/// LIMIT: copies of volumes at a time; they share one disk, and each may have some hundred folders open.
const COPIES: usize = 2;
/// LIMIT: measurements of volumes at a time.
const MEASUREMENTS: usize = 2;

/// Everything that a provider needs to open.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// Its name in requests and leases.
    pub name: &'static str,
    /// The owner label: which server the containers belong to. Other containers are never touched.
    pub owner: String,
    /// The folder that contains `atoll-agent`; on the file system of `data`, so that it can be linked.
    pub agent: PathBuf,
    /// A folder of this provider alone, which a daemon on this machine sees under the same path.
    pub data: PathBuf,
    /// The settings file's part `docker`.
    pub settings: DockerSettings,
}

/// The provider `docker`.
#[derive(Debug)]
pub struct DockerProvider {
    shared: Arc<Shared>,
    /// Ends with the provider.
    _watch: JoinSet<()>,
}

/// State that all tasks of a provider share.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    settings: DockerSettings,
    daemon: Daemon,
    folders: AgentFolders,
    dialer: Dialer,
    slots: SandboxSlots,
    /// Closed from the beginning, so that it can be waited for at any time; a closed tracker still takes tasks.
    changes: TaskTracker,
    /// Changes take it shared, adoption exclusively.
    adoption: Arc<tokio::sync::RwLock<()>>,
    /// Changes of volumes take it shared, their sweep exclusively.
    volume_sweep: Arc<tokio::sync::RwLock<()>>,
    /// Copies of volumes.
    copies: Semaphore,
    /// Measurements of volumes, each of which looks at every file.
    measurements: Semaphore,
    disk_figures: DiskFigures,
    notices: broadcast::Sender<Notice>,
}

fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    step: &'static str,
) -> impl Fn(E) -> ProviderError {
    move |cause| ProviderError::Failed { step: step.to_owned(), cause: cause.into() }
}

impl DockerProvider {
    /// Opens the provider. The daemon need not run yet: calls fail until it does.
    ///
    /// # Errors
    /// A setting cannot be used, or the folder cannot be made.
    pub async fn open(config: DockerConfig) -> Result<Self, ProviderError> {
        let daemon = Daemon::new(config.settings.daemon()?, &config.owner);
        std::fs::create_dir_all(&config.data).map_err(failed("making the folder of the provider"))?;
        let data = config.data.canonicalize().map_err(failed("finding the folder of the provider"))?;
        let changes = TaskTracker::new();
        changes.close();
        let shared = Arc::new(Shared {
            name: config.name,
            settings: config.settings,
            daemon,
            folders: AgentFolders { agent: config.agent, root: data },
            dialer: Dialer::start(DialerConfig::default()).map_err(failed("starting dialers"))?,
            slots: SandboxSlots::default(),
            changes,
            adoption: Arc::default(),
            volume_sweep: Arc::default(),
            copies: Semaphore::new(COPIES),
            measurements: Semaphore::new(MEASUREMENTS),
            disk_figures: DiskFigures::default(),
            notices: broadcast::Sender::new(NOTICES),
        });
        let mut watch = JoinSet::new();
        watch.spawn(watch::watch(Arc::clone(&shared)));
        Ok(Self { shared, _watch: watch })
    }
}

#[async_trait]
impl Provider for DockerProvider {
    fn name(&self) -> &'static str {
        self.shared.name
    }

    fn kind(&self) -> &'static str {
        "docker"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::Container,
            cost: ProviderKind::Docker.cost(),
            best_for: ProviderKind::Docker.best_for(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dials: DialMode::Stream,
            users: true,
            keeps_files: true,
            resizes_live: true,
            pauses: true,
            // The files of a daemon on another machine cannot be reached without a container.
            volumes: !self.shared.settings.is_remote(),
            ..Capabilities::default()
        }
    }

    fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        self.shared.check_demands(demands)
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let own = spec.clone();
        self.shared
            .change(&spec.sandbox, move |shared, slot| async move { shared.create(&own, &slot).await })
            .await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let own = spec.clone();
        self.shared
            .change(&spec.sandbox, move |shared, slot| async move { shared.boot(&own, &slot).await })
            .await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let own = target.clone();
        self.shared
            .change(&target.sandbox, move |shared, slot| async move { shared.halt(&own, &slot).await })
            .await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let own = target.sandbox.clone();
        self.shared.disk_figures.forget(&own);
        self.shared.change(&target.sandbox, move |shared, _| async move { shared.destroy(&own).await }).await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let live = self.shared.live(target).await?;
        let daemon = &self.shared.daemon;
        let walk = async { daemon.layer_bytes(&live.id).await.ok().flatten() };
        let disk_bytes = self.shared.disk_figures.read(&target.sandbox, walk);
        let (usage, disk_bytes) = futures::join!(daemon.usage(&live.id), disk_bytes);
        Ok(InstanceUsage { disk_bytes, ..usage? })
    }

    async fn has_template(&self, template: &str, _version: &str) -> Result<bool, ProviderError> {
        Ok(self.shared.daemon.image(template).await?.is_some())
    }

    fn has_images(&self) -> bool {
        true
    }

    async fn image(&self, name: Option<&str>) -> Result<Option<ProviderImage>, ProviderError> {
        self.shared.image(name).await.map(Some)
    }

    fn binds_folders(&self) -> bool {
        !self.shared.settings.is_remote()
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let owned = self.shared.daemon.owned().await?.into_iter().map(|found| OwnedSandbox {
            instance: found.activity.map(|activity| (found.instance, activity)),
            sandbox: found.sandbox,
        });
        Ok(owned.collect())
    }

    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        _: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        self.shared.adopt(known).await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.shared.notices.subscribe()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        self.shared.node().await
    }

    async fn check(&self) -> Result<(), ProviderError> {
        self.shared.check().await
    }

    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "changes of containers".into(), after: deadline };
        tokio::time::timeout(deadline, self.shared.changes.wait()).await.map_err(late)
    }

    fn dial_support(&self) -> Result<&dyn DialSupport, ProviderError> {
        Ok(self)
    }

    fn resize_support(&self) -> Result<&dyn ResizeSupport, ProviderError> {
        Ok(self)
    }

    fn pause_support(&self) -> Result<&dyn PauseSupport, ProviderError> {
        Ok(self)
    }

    fn volume_support(&self) -> Result<&dyn VolumeSupport, ProviderError> {
        match self.shared.settings.is_remote() {
            true => Err(self.shared.missing(Capability::Volume)),
            false => Ok(self),
        }
    }
}
