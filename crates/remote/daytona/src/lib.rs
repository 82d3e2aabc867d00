//! The provider daytona: sandboxes of Daytona's service, or of another one with its API.
//!
//! ```text
//! DaytonaProvider ─► lifecycle ─► api       control calls: create, start, stop, delete, labels, lists
//!                     ├─ pause              pause and resume
//!                     ├─ vendor             the calls that the kit's adoption and watch need
//!                     ├─ session ─► process, terminal, files ─► toolbox ─► scripts   commands and files
//!                     └─ ports              HTTP to ports through the service's hosts
//! ```
//!
//! | sandbox | object of the service |
//! |---|---|
//! | owner, id, instance | its labels `atoll.owner`, `atoll.sandbox`, `atoll.instance`; the last one is written again before a start |
//! | running | started |
//! | paused | paused, with its memory |
//! | stopped, files kept | stopped, or archived |
//!
//! A create whose answer was lost is found again by the labels, and refused by the service if it is made twice, because its name is
//! unique. An object with the owner of this server that no sandbox needs is removed after a grace time; any other object is never
//! touched.

mod api;
mod files;
mod lifecycle;
mod pause;
mod ports;
mod process;
mod scripts;
mod session;
mod settings;
mod terminal;
mod toolbox;
mod vendor;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{ProviderKind, SnapshotId};
use atoll_provider::{
    Adopted, Booted, Capabilities, DialMode, DialSupport, InstanceDemands, InstanceSpec, InstanceUsage,
    Isolation, KnownSandbox, Notice, OwnedSandbox, PauseSupport, Provider, ProviderDescription,
    ProviderError, ProviderImage, SessionSupport, Target,
};
use atoll_remote::{
    DialTasks, FoundNames, LastSuccess, RemoteTable, VendorConnector, VendorWatch, WatchNumber,
    check_vendor_demands,
};
use tokio::sync::broadcast;

use api::DaytonaApi;
use lifecycle::DaytonaSlot;
use toolbox::DaytonaAccess;

pub use atoll_remote::ApiKey;
pub use settings::DaytonaSettings;

/// The sandboxes of one provider. It is kept while the provider is opened again with other settings.
#[derive(Debug, Clone, Default)]
pub struct DaytonaSandboxes(Arc<RemoteTable<DaytonaAccess>>);

/// How often and how long the provider waits.
#[derive(Debug, Clone, Copy)]
pub struct DaytonaTiming {
    /// How often the objects of this server are listed.
    pub watch_every: Duration,
    /// How long an object that no sandbox needs is left alone.
    pub grace: Duration,
    /// How long a stream of output may be silent before it counts as broken.
    pub stream_silence: Duration,
}

impl Default for DaytonaTiming {
    fn default() -> Self {
        let (watch_every, grace) = (Duration::from_secs(10), Duration::from_secs(120));
        Self { watch_every, grace, stream_silence: Duration::from_secs(60) }
    }
}

/// Everything that a provider needs to open.
#[derive(Debug)]
pub struct DaytonaConfig {
    /// Its name in requests and leases.
    pub name: &'static str,
    /// The owner label: which server the objects belong to. Others are never touched. Letters and digits only.
    pub owner: String,
    /// The settings file's part `daytona`.
    pub settings: DaytonaSettings,
    /// The sandboxes that an earlier provider of this name knows.
    pub sandboxes: DaytonaSandboxes,
    /// How often and how long it waits.
    pub timing: DaytonaTiming,
}

/// The provider `daytona`.
#[derive(Debug)]
pub struct DaytonaProvider {
    shared: Arc<DaytonaShared>,
    watch: VendorWatch,
}

/// State that all tasks of a provider share.
#[derive(Debug)]
struct DaytonaShared {
    name: &'static str,
    settings: DaytonaSettings,
    timing: DaytonaTiming,
    api: DaytonaApi,
    table: Arc<RemoteTable<DaytonaAccess>>,
    watch: WatchNumber,
    connector: VendorConnector,
    streams: DialTasks,
    /// Snapshots that were found at the service.
    snapshots: FoundNames,
    /// When the service last answered a check.
    checked: LastSuccess,
}

impl DaytonaProvider {
    /// Opens the provider. The service need not answer yet: calls fail until it does. Call it in a runtime.
    ///
    /// # Errors
    /// A setting cannot be used.
    pub fn open(config: DaytonaConfig) -> Result<Self, ProviderError> {
        let DaytonaConfig { name, owner, settings, sandboxes, timing } = config;
        let api = DaytonaApi::new(&settings, owner)?;
        let shared = DaytonaShared {
            name,
            settings,
            timing,
            api,
            table: sandboxes.0,
            watch: WatchNumber::default(),
            connector: VendorConnector::default(),
            streams: DialTasks::default(),
            snapshots: FoundNames::default(),
            checked: LastSuccess::default(),
        };
        Ok(Self { shared: Arc::new(shared), watch: VendorWatch::default() })
    }
}

#[async_trait]
impl Provider for DaytonaProvider {
    fn name(&self) -> &'static str {
        self.shared.name
    }

    fn kind(&self) -> &'static str {
        "daytona"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::Vendor,
            cost: ProviderKind::Daytona.cost(),
            best_for: "sandboxes in Daytona's cloud, or at a server with its API",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dials: DialMode::Http,
            session: true,
            stdin: true,
            signals: true,
            terminals: true,
            keeps_files: true,
            pauses: true,
            ..Capabilities::default()
        }
    }

    fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        check_vendor_demands(self.shared.name, demands)
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let (shared, made) = (Arc::clone(&self.shared), spec.clone());
        let work = move |slot: Arc<DaytonaSlot>| async move { shared.create(&made, &slot).await };
        self.shared.table.change(&spec.sandbox, work).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let (shared, next) = (Arc::clone(&self.shared), spec.clone());
        let work = move |slot: Arc<DaytonaSlot>| async move { shared.boot(&next, &slot).await };
        self.shared.table.change(&spec.sandbox, work).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let (shared, which) = (Arc::clone(&self.shared), target.clone());
        let work = move |slot: Arc<DaytonaSlot>| async move { shared.halt(&which, &slot).await };
        self.shared.table.change(&target.sandbox, work).await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let (shared, whose) = (Arc::clone(&self.shared), target.sandbox.clone());
        let work = move |slot: Arc<DaytonaSlot>| async move { shared.destroy(&whose, &slot).await };
        self.shared.table.change(&target.sandbox, work).await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        self.shared.usage(target).await
    }

    async fn has_template(&self, template: &str, version: &str) -> Result<bool, ProviderError> {
        Ok(version == lifecycle::IMAGE_VERSION || self.shared.has_template(template).await?)
    }

    fn has_images(&self) -> bool {
        true
    }

    async fn image(&self, name: Option<&str>) -> Result<Option<ProviderImage>, ProviderError> {
        Ok(Some(self.shared.image(name).await?))
    }

    fn binds_folders(&self) -> bool {
        false
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        atoll_remote::owned_sandboxes(&*self.shared).await
    }

    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        _: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        atoll_remote::adopt(&self.shared, known).await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.watch.start(&self.shared);
        self.shared.table.notices()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        self.shared.node().await
    }

    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        self.shared.table.settle(deadline).await
    }

    fn session_support(&self) -> Result<&dyn SessionSupport, ProviderError> {
        Ok(self)
    }

    fn dial_support(&self) -> Result<&dyn DialSupport, ProviderError> {
        Ok(self)
    }

    fn pause_support(&self) -> Result<&dyn PauseSupport, ProviderError> {
        Ok(self)
    }
}
