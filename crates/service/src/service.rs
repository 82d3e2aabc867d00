//! The service: its parts, and how it opens and ends.
//!
//! ```text
//! front ──► Service::create, start, exec, …
//!                 │ mailbox (bounded)
//!                 ▼
//!            driver per sandbox ── step() ──► store (compare-and-set)
//!                 ▲        │ effect                │ events
//!                 │        ▼                       ▼
//!  deadlines, notices   provider               followers
//! ```
//!
//! Every task belongs to the tracker. `closing` asks tasks to end after their current work, `kill` drops them where
//! they wait. In both cases sandboxes continue to run.

use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_budget::{Account, Budget};
use atoll_image::archive::{ArchiveError, Archives};
use atoll_image::{Bounds, ImageError, Images};
use atoll_model::{Principal, TenantId};
use atoll_provider::{Capabilities, Provider, ProviderError};
use atoll_store::{Store, StoreError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::Admission;
use crate::auth_throttle::AuthThrottle;
use crate::build::Builds;
use crate::changes::Changes;
use crate::deadlines::Deadlines;
use crate::egress::Layers;
use crate::egress::log::EgressLogs;
use crate::failpoint::FailPoint;
use crate::idle::IdleCheckLimiter;
use crate::invites::Invites;
use crate::keys::KeyCache;
use crate::metrics::CpuMemory;
use crate::preview::PreviewCache;
use crate::registry::Registry;
use crate::request_scope::Revocations;
use crate::snapshots::Uses;
use crate::templates::{Pulls, TemplateCache, VersionHolds};
use crate::volumes::VolumeTurns;
use crate::{Clock, ServiceConfig, Templates};

/// All use cases. Cloning is cheap.
#[derive(Clone)]
pub struct Service {
    pub(crate) inner: Arc<ServiceShared>,
}

pub(crate) struct ServiceShared {
    pub(crate) config: ServiceConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) archives: Archives,
    pub(crate) templates: TemplateCache,
    pub(crate) images: Arc<Images>,
    pub(crate) holds: VersionHolds,
    pub(crate) pulls: Pulls,
    pub(crate) pool_turn: tokio::sync::Mutex<()>,
    pub(crate) volume_turns: VolumeTurns,
    pub(crate) builds: Arc<Builds>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: Registry,
    pub(crate) deadlines: Deadlines,
    pub(crate) looks: IdleCheckLimiter,
    pub(crate) admission: Admission,
    pub(crate) uses: Uses,
    /// Only one name is moved from snapshot to snapshot at a time.
    pub(crate) snapshot_names: tokio::sync::Mutex<()>,
    pub(crate) creates: Semaphore,
    /// The budget of bytes that are held for callers.
    pub(crate) budget: Budget,
    pub(crate) keys: KeyCache,
    pub(crate) invites: Invites,
    pub(crate) auth_throttle: AuthThrottle,
    pub(crate) revocations: Arc<Revocations>,
    pub(crate) previews: PreviewCache,
    pub(crate) cpu: CpuMemory,
    pub(crate) counters: Counters,
    pub(crate) layers: Layers,
    /// The tenant that the server created at its first start; set before the adoption.
    pub(crate) first_tenant: OnceLock<TenantId>,
    pub(crate) logs: EgressLogs,
    pub(crate) changes: Changes,
    pub(crate) failpoint: FailPoint,
    tracker: TaskTracker,
    pub(crate) closing: CancellationToken,
    kill: CancellationToken,
}

/// Counters since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) created: AtomicU64,
    pub(crate) from_pool: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) late_effects: AtomicU64,
}

/// The service cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be read or written.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// The provider cannot list its instances.
    #[error("the provider {provider} cannot adopt its instances")]
    Adopt {
        provider: &'static str,
        /// The cause.
        #[source]
        cause: ProviderError,
    },
    /// The network policies cannot be compiled.
    #[error("the network policies cannot be read")]
    Policy(#[source] crate::ServiceError),
    /// The folder for layers and versions cannot be used.
    #[error("layers of templates cannot be stored in their folder")]
    Images(#[from] ImageError),
    /// The location of archives cannot be used.
    #[error("archives cannot be stored at the configured place")]
    Archive(#[from] ArchiveError),
    /// The admin key cannot be written or read.
    #[error("cannot {action} {}", path.display())]
    AdminKey {
        action: &'static str,
        path: std::path::PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
}

impl OpenError {
    /// The kind of the failure.
    #[must_use]
    pub fn kind(&self) -> atoll_model::ErrorKind {
        match self {
            Self::Store(cause) => cause.kind(),
            Self::Adopt { cause, .. } => cause.kind(),
            Self::Policy(cause) => cause.kind(),
            Self::Images(cause) => cause.kind(),
            Self::Archive(cause) => cause.kind(),
            Self::AdminKey { .. } => atoll_model::ErrorKind::Unavailable,
        }
    }
}

impl Service {
    /// Opens over a store and a provider: adopts living instances, completes interrupted operations, starts the queues.
    pub async fn open(
        config: ServiceConfig,
        store: Arc<dyn Store>,
        provider: Arc<dyn Provider>,
        templates: Arc<dyn Templates>,
        clock: Arc<dyn Clock>,
    ) -> Result<Service, OpenError> {
        Self::open_with(config, store, provider, templates, clock, FailPoint::none()).await
    }

    /// [`Service::open`] with places at which a test may stop or end it.
    #[doc(hidden)]
    pub async fn open_with(
        config: ServiceConfig,
        store: Arc<dyn Store>,
        provider: Arc<dyn Provider>,
        templates: Arc<dyn Templates>,
        clock: Arc<dyn Clock>,
        failpoint: FailPoint,
    ) -> Result<Service, OpenError> {
        let images = match templates.images() {
            Some(images) => images,
            None => Images::open(config.data.join("images"), Bounds::default())?,
        };
        let archives = Archives::open(&config.archive)?.with_reserve(images.disk());
        let logs = EgressLogs::new(&config.data, images.disk());
        let inner = Arc::new(ServiceShared {
            creates: Semaphore::new(config.creates_at_once),
            budget: Budget::default(),
            admission: Admission::new(&config),
            config,
            store,
            provider,
            archives,
            uses: Uses::default(),
            snapshot_names: tokio::sync::Mutex::default(),
            templates: TemplateCache::new(templates),
            images,
            holds: VersionHolds::default(),
            pulls: Pulls::default(),
            pool_turn: tokio::sync::Mutex::default(),
            volume_turns: VolumeTurns::default(),
            builds: Arc::default(),
            clock,
            registry: Registry::default(),
            deadlines: Deadlines::default(),
            looks: IdleCheckLimiter::default(),
            keys: KeyCache::default(),
            invites: Invites::default(),
            auth_throttle: AuthThrottle::default(),
            revocations: Arc::default(),
            previews: PreviewCache::default(),
            cpu: CpuMemory::default(),
            counters: Counters::default(),
            layers: Layers::default(),
            first_tenant: OnceLock::new(),
            logs,
            changes: Changes::default(),
            failpoint,
            tracker: TaskTracker::new(),
            closing: CancellationToken::new(),
            kill: CancellationToken::new(),
        });
        let service = Service { inner };
        service.ensure_admin_key().await?;
        for tenant in service.inner.store.tenants().await? {
            service.inner.layers.put(&tenant.id, tenant.network);
        }
        // It listens before the adoption, so that a death in between is not missed.
        let (notices, egressed) = (service.inner.provider.notices(), service.inner.provider.egress());
        crate::build::recover(&service.inner).await?;
        crate::adopt::adopt(&service.inner).await?;
        crate::volumes::sweep(&service.inner).await?;
        crate::notices::start(&service.inner, notices);
        if let Some(egressed) = egressed {
            crate::egress::log::start(&service.inner, egressed);
        }
        crate::deadlines::start(&service.inner);
        crate::idle::start(&service.inner);
        crate::metrics::start_sampler(&service.inner);
        crate::housekeeping::start(&service.inner);
        service.refresh_pools();
        Ok(service)
    }

    /// The budget for all bytes that this server holds for its callers.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    /// The part of it that belongs to the tenant of a key.
    #[must_use]
    pub fn account_of(&self, who: &Principal) -> Account {
        self.inner.budget.tenant(&who.tenant)
    }

    /// The wall time of the service's clock, in milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.inner.clock.now().wall_ms
    }

    /// The optional capabilities of the provider.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.provider.capabilities()
    }

    /// Ends the service: running work may finish within `grace`. Sandboxes continue to run.
    pub async fn shutdown(&self, grace: Duration) {
        self.inner.closing.cancel();
        self.inner.tracker.close();
        if tokio::time::timeout(grace, self.inner.tracker.wait()).await.is_err() {
            tracing::warn!(?grace, "some work did not finish in time; the next start continues it");
        }
        self.abandon().await;
        crate::housekeeping::flush_keys(&self.inner).await;
        self.inner.store.close().await;
    }

    /// Ends every task where it waits, as a crash would. The store stays open.
    #[doc(hidden)]
    pub async fn abandon(&self) {
        self.inner.closing.cancel();
        self.inner.kill.cancel();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
    }
}

impl ServiceShared {
    /// Starts a task that belongs to the service.
    pub(crate) fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(self.kill.clone().run_until_cancelled_owned(task))
    }
}
