//! The provider e2b: sandboxes of E2B's service, or of another one with its API.
//!
//! ```text
//! E2bProvider ─► lifecycle ─► api        control calls: create, pause, connect, delete, lists, metrics
//!                 │        └► records    what an object's labels cannot say
//!                 ├─ vendor              the calls that the kit's adoption and watch need
//!                 ├─ snapshots           files that are kept at the service under a name of this server
//!                 ├─ session ─► access   commands and files by the service's own calls (envd)
//!                 └─ ports   ─► access   HTTP to ports through the service's hosts
//! ```
//!
//! | sandbox | object of the service |
//! |---|---|
//! | owner, id, first instance | its metadata `atoll.owner`, `atoll.sandbox`, `atoll.instance` |
//! | running | running; its lifetime is extended before it ends |
//! | paused | paused with memory |
//! | stopped, files kept | paused without memory, or paused and recorded as halted |
//!
//! A create whose answer was lost is found again by the labels. An object with the owner of this server that no sandbox needs is
//! removed after a grace time; any other object is never touched.

mod access;
mod api;
mod lifecycle;
mod ports;
mod records;
mod session;
mod settings;
mod snapshots;
mod vendor;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{ProviderKind, SnapshotId};
use atoll_provider::{
    Adopted, Booted, Capabilities, DialMode, DialSupport, InstanceDemands, InstanceSpec, InstanceUsage,
    Isolation, KnownSandbox, Notice, OwnedSandbox, PauseSupport, Provider, ProviderDescription,
    ProviderError, ProviderImage, SessionSupport, SnapshotSupport, Target,
};
use atoll_remote::{
    DialTasks, FoundNames, LastSuccess, RemoteTable, VendorConnector, VendorWatch, WatchNumber,
    check_vendor_demands,
};
use tokio::sync::broadcast;

use access::E2bAccess;
use api::E2bApi;
use lifecycle::E2bSlot;
use records::InstanceRecords;
use snapshots::{SnapshotCleanup, UnwantedSnapshots};

pub use atoll_remote::ApiKey;
pub use settings::E2bSettings;

/// The sandboxes of one provider. It is kept while the provider is opened again with other settings.
#[derive(Debug, Clone, Default)]
pub struct E2bSandboxes(Arc<RemoteTable<E2bAccess>>);

/// How often and how long the provider waits.
#[derive(Debug, Clone, Copy)]
pub struct E2bTiming {
    /// How often the objects of this server are listed.
    pub watch_every: Duration,
    /// How long an object that no sandbox needs is left alone.
    pub grace: Duration,
    /// How long a stream of output may be silent before it counts as broken.
    pub stream_silence: Duration,
}

impl Default for E2bTiming {
    fn default() -> Self {
        Self {
            watch_every: Duration::from_secs(10),
            grace: Duration::from_secs(120),
            stream_silence: Duration::from_secs(90),
        }
    }
}

/// Everything that a provider needs to open.
#[derive(Debug)]
pub struct E2bConfig {
    /// Its name in requests and leases.
    pub name: &'static str,
    /// The owner label: which server the objects belong to. Others are never touched. Letters and digits only.
    pub owner: String,
    /// A folder of this provider alone.
    pub data: PathBuf,
    /// The settings file's part `e2b`.
    pub settings: E2bSettings,
    /// The sandboxes that an earlier provider of this name knows.
    pub sandboxes: E2bSandboxes,
    /// How often and how long it waits.
    pub timing: E2bTiming,
}

/// The provider `e2b`.
#[derive(Debug)]
pub struct E2bProvider {
    shared: Arc<E2bShared>,
    watch: VendorWatch,
    cleanup: SnapshotCleanup,
}

/// State that all tasks of a provider share.
#[derive(Debug)]
struct E2bShared {
    name: &'static str,
    settings: E2bSettings,
    timing: E2bTiming,
    api: E2bApi,
    records: InstanceRecords,
    table: Arc<RemoteTable<E2bAccess>>,
    watch: WatchNumber,
    connector: VendorConnector,
    streams: DialTasks,
    /// Templates that were found at the service.
    templates: FoundNames,
    /// When the service last answered a check.
    checked: LastSuccess,
    unwanted: UnwantedSnapshots,
}

impl E2bProvider {
    /// Opens the provider. The service need not answer yet: calls fail until it does. Call it in a runtime.
    ///
    /// # Errors
    /// A setting cannot be used, or the folder cannot be made.
    pub fn open(config: E2bConfig) -> Result<Self, ProviderError> {
        let shared = Arc::new(E2bShared {
            name: config.name,
            api: E2bApi::new(&config.settings, config.owner)?,
            settings: config.settings,
            timing: config.timing,
            records: InstanceRecords::open(&config.data)?,
            table: config.sandboxes.0,
            watch: WatchNumber::default(),
            connector: VendorConnector::default(),
            streams: DialTasks::default(),
            templates: FoundNames::default(),
            checked: LastSuccess::default(),
            unwanted: UnwantedSnapshots::default(),
        });
        Ok(Self { shared, watch: VendorWatch::default(), cleanup: SnapshotCleanup::default() })
    }
}

#[async_trait]
impl Provider for E2bProvider {
    fn name(&self) -> &'static str {
        self.shared.name
    }

    fn kind(&self) -> &'static str {
        "e2b"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::Vendor,
            cost: ProviderKind::E2b.cost(),
            best_for: "sandboxes in E2B's cloud, or at a server with its API",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dials: DialMode::Http,
            session: true,
            stdin: true,
            signals: true,
            terminals: true,
            users: true,
            keeps_files: true,
            pauses: true,
            snapshots: true,
            ..Capabilities::default()
        }
    }

    fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        check_vendor_demands(self.shared.name, demands)
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), spec.clone());
        let work = move |slot: Arc<E2bSlot>| async move { shared.create(&own, &slot).await };
        self.shared.table.change(&spec.sandbox, work).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), spec.clone());
        let work = move |slot: Arc<E2bSlot>| async move { shared.boot(&own, &slot).await };
        self.shared.table.change(&spec.sandbox, work).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.clone());
        let work = move |slot: Arc<E2bSlot>| async move { shared.halt(&own, &slot).await };
        self.shared.table.change(&target.sandbox, work).await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.sandbox.clone());
        let work = move |slot: Arc<E2bSlot>| async move { shared.destroy(&own, &slot).await };
        self.shared.table.change(&target.sandbox, work).await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        self.shared.usage(target).await
    }

    async fn has_template(&self, template: &str, _version: &str) -> Result<bool, ProviderError> {
        self.shared.has_template(template).await
    }

    fn has_images(&self) -> bool {
        true
    }

    async fn image(&self, name: Option<&str>) -> Result<Option<ProviderImage>, ProviderError> {
        self.shared.image(name).await.map(Some)
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
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        let adopted = atoll_remote::adopt(&self.shared, known).await?;
        self.shared.sweep_snapshots(&snapshots).await;
        Ok(adopted)
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.watch.start(&self.shared);
        self.cleanup.start(&self.shared);
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

    fn snapshot_support(&self) -> Result<&dyn SnapshotSupport, ProviderError> {
        Ok(self)
    }
}
