//! The provider agentbay: sessions of AgentBay's service as sandboxes.
//!
//! ```text
//! AgentbayProvider ─► lifecycle ─► api     actions of the service: create, pause, resume, delete, lists, tools, links
//!                      ├─ vendor           the calls that the kit's adoption and watch need
//!                      ├─ session ─► jobs  commands in the background of a session ─► shell
//!                      │          └► files files in windows                        ─► shell
//!                      └─ ports            HTTP to ports by the service's links
//! ```
//!
//! | sandbox | session of the service |
//! |---|---|
//! | owner, id, instance | its labels `atoll.owner`, `atoll.sandbox`, `atoll.instance` |
//! | running | `RUNNING` |
//! | paused | `PAUSED` |
//! | stopped | none: files do not survive the end of a session |
//!
//! A create whose answer was lost is found again by the labels. A session with the owner of this server that no sandbox needs is
//! removed after a grace time; any other session is never touched.

mod access;
mod api;
mod files;
mod jobs;
mod lifecycle;
mod ports;
mod session;
mod settings;
mod shell;
mod vendor;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, ProviderKind, SandboxId, SnapshotId};
use atoll_provider::{
    Adopted, Booted, Capabilities, DialMode, DialSupport, InstanceDemands, InstanceSpec, InstanceUsage,
    Isolation, KnownSandbox, Notice, OwnedSandbox, PauseSupport, Provider, ProviderDescription,
    ProviderError, ProviderImage, SessionSupport, Target,
};
use atoll_remote::{
    DialTasks, FoundNames, LastSuccess, RemoteObject, RemoteSlot, RemoteTable, VendorConnector, VendorWatch,
    WatchNumber,
};
use tokio::sync::broadcast;

use access::SessionAccess;
use api::AgentbayApi;

pub use atoll_remote::ApiKey;
pub use settings::AgentbaySettings;

type SessionSlot = RemoteSlot<SessionAccess>;
type SessionObject = RemoteObject<SessionAccess>;

/// The sandboxes of one provider. It is kept while the provider is opened again with other settings.
#[derive(Debug, Clone, Default)]
pub struct AgentbaySandboxes(Arc<RemoteTable<SessionAccess>>);

/// How often and how long the provider waits.
#[derive(Debug, Clone, Copy)]
pub struct AgentbayTiming {
    /// How often the sessions of this server are listed.
    pub watch_every: Duration,
    /// How long a session that no sandbox needs is left alone.
    pub grace: Duration,
    /// The first wait between two looks at a session that is being paused, resumed or deleted; later ones are longer.
    pub poll_first: Duration,
}

impl Default for AgentbayTiming {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { watch_every: seconds(10), grace: seconds(120), poll_first: Duration::from_millis(250) }
    }
}

/// Everything that a provider needs to open.
#[derive(Debug)]
pub struct AgentbayConfig {
    /// Its name in requests and leases.
    pub name: &'static str,
    /// The owner label: which server the sessions belong to. Others are never touched.
    pub owner: String,
    /// The settings file's part `agentbay`.
    pub settings: AgentbaySettings,
    /// The sandboxes that an earlier provider of this name knows.
    pub sandboxes: AgentbaySandboxes,
    /// How often and how long it waits.
    pub timing: AgentbayTiming,
    /// Certificates (DER) of authorities that are trusted beside those of the machine.
    pub authorities: Vec<Vec<u8>>,
}

/// The provider `agentbay`.
#[derive(Debug)]
pub struct AgentbayProvider {
    shared: Arc<AgentbayShared>,
    watch: VendorWatch,
}

/// State that all tasks of a provider share.
#[derive(Debug)]
struct AgentbayShared {
    name: &'static str,
    api: AgentbayApi,
    settings: AgentbaySettings,
    timing: AgentbayTiming,
    table: Arc<RemoteTable<SessionAccess>>,
    watch: WatchNumber,
    connector: VendorConnector,
    streams: DialTasks,
    /// Which sandbox and instance a session of this server is. Its labels are asked for once.
    identities: Mutex<HashMap<String, (SandboxId, InstanceId)>>,
    /// Images that were found at the service.
    images: FoundNames,
    /// When the service last answered a check.
    checked: LastSuccess,
}

impl AgentbayProvider {
    /// Opens the provider. The service need not answer yet: calls fail until it does. Call it in a runtime.
    ///
    /// # Errors
    /// A setting cannot be used.
    pub fn open(config: AgentbayConfig) -> Result<Self, ProviderError> {
        let AgentbayConfig { name, owner, settings, sandboxes, timing, authorities } = config;
        let api = AgentbayApi::new(&settings, owner, &authorities)?;
        let connector = VendorConnector::trusting(&authorities);
        let shared = AgentbayShared {
            name,
            api,
            settings,
            timing,
            table: sandboxes.0,
            connector,
            watch: WatchNumber::default(),
            streams: DialTasks::default(),
            identities: Mutex::default(),
            images: FoundNames::default(),
            checked: LastSuccess::default(),
        };
        Ok(Self { shared: Arc::new(shared), watch: VendorWatch::default() })
    }

    /// Runs a change of a sandbox in its turn.
    async fn change<T, W, F>(&self, sandbox: &SandboxId, work: W) -> Result<T, ProviderError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<AgentbayShared>, Arc<SessionSlot>) -> F + Send + 'static,
        F: Future<Output = Result<T, ProviderError>> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        self.shared.table.change(sandbox, move |slot| work(shared, slot)).await
    }
}

#[async_trait]
impl Provider for AgentbayProvider {
    fn name(&self) -> &'static str {
        self.shared.name
    }

    fn kind(&self) -> &'static str {
        "agentbay"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::Vendor,
            cost: ProviderKind::Agentbay.cost(),
            best_for: "sandboxes in Alibaba's cloud, near users in China",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { dials: DialMode::Http, session: true, pauses: true, ..Capabilities::default() }
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

    fn has_images(&self) -> bool {
        true
    }

    fn binds_folders(&self) -> bool {
        false
    }

    fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        self.shared.check_demands(demands)
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.watch.start(&self.shared);
        self.shared.table.notices()
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let own = spec.clone();
        self.change(&spec.sandbox, |shared, slot| async move { shared.create(&own, &slot).await }).await
    }

    /// Nothing is left of a session that has ended.
    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        Err(ProviderError::Gone { sandbox: spec.sandbox.clone() })
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let own = target.clone();
        self.change(&target.sandbox, |shared, slot| async move { shared.halt(&own, &slot).await }).await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let own = target.sandbox.clone();
        self.change(&target.sandbox, |shared, slot| async move { shared.destroy(&own, &slot).await }).await
    }

    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        self.shared.table.settle(deadline).await
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

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        self.shared.usage(target).await
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        self.shared.node().await
    }

    async fn has_template(&self, template: &str, _version: &str) -> Result<bool, ProviderError> {
        self.shared.has_image(template).await
    }

    async fn image(&self, name: Option<&str>) -> Result<Option<ProviderImage>, ProviderError> {
        self.shared.image(name).await.map(Some)
    }
}
