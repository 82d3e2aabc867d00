//! The service: its parts, and how it opens and ends.
//!
//! ```text
//! front ──► service.sandboxes().create, start, exec, …
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

use std::sync::Arc;
use std::time::Duration;

use atoll_budget::{Account, Budget};
use atoll_image::archive::{ArchiveError, Archives};
use atoll_image::{Bounds, ImageError, Images};
use atoll_model::{Isolation, Lease, NodeName, Principal};
use atoll_provider::{Capabilities, ProviderError};
use atoll_store::{Store, StoreError};

use crate::access::{Access, Revocations};
use crate::base::ServiceBase;
use crate::build::{BuildQueue, Builds};
use crate::failpoint::FailPoint;
use crate::providers::ProviderRegistry;
use crate::running_calls::RunningCalls;
use crate::sandboxes::{SandboxParts, Sandboxes};
use crate::snapshots::Uses;
use crate::templates::Templates;
use crate::volumes::Volumes;
use crate::{Clock, ServiceConfig, ServiceError, TemplateSource};

/// All use cases, by part. Cloning is cheap.
#[derive(Clone)]
pub struct Service {
    parts: Arc<ServiceParts>,
}

struct ServiceParts {
    base: Arc<ServiceBase>,
    volumes: Volumes,
    templates: Templates,
    sandboxes: Sandboxes,
    access: Access,
    builds: Builds,
    calls: RunningCalls,
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
    /// Opens over a store and providers: adopts living instances, completes interrupted operations, starts the queues.
    pub async fn open(
        config: ServiceConfig,
        store: Arc<dyn Store>,
        providers: ProviderRegistry,
        templates: Arc<dyn TemplateSource>,
        clock: Arc<dyn Clock>,
    ) -> Result<Service, OpenError> {
        Self::open_with(config, store, providers, templates, clock, FailPoint::none()).await
    }

    /// [`Service::open`] with places at which a test may stop or end it.
    #[doc(hidden)]
    pub async fn open_with(
        config: ServiceConfig,
        store: Arc<dyn Store>,
        providers: ProviderRegistry,
        templates: Arc<dyn TemplateSource>,
        clock: Arc<dyn Clock>,
        failpoint: FailPoint,
    ) -> Result<Service, OpenError> {
        let images = match templates.images() {
            Some(images) => images,
            None => Images::open(config.data.join("images"), Bounds::default())?,
        };
        let archives = Archives::open(&config.archive)?.with_reserve(images.disk());
        let disk = Arc::clone(images.disk());
        let base = Arc::new(ServiceBase::new(config, store, providers, clock, disk, failpoint));
        let service = Self { parts: Arc::new(ServiceParts::new(base, templates, images, archives)) };
        service.start().await?;
        Ok(service)
    }

    /// Finishes what was under way, adopts what lives, and starts the tasks of the service.
    async fn start(&self) -> Result<(), OpenError> {
        let ServiceParts { base, templates, sandboxes, access, builds, .. } = &*self.parts;
        // It is noted before anything is read, so that no change of another node is missed.
        let changes_seen = *base.store.change_head().borrow();
        access.ensure_admin_key().await?;
        let tenants = base.store.tenants().await?;
        base.disk.shares().set_tenants(tenants.iter().map(|tenant| tenant.id.as_str()));
        for tenant in tenants {
            sandboxes.set_tenant_policy(&tenant.id, tenant.network);
            base.providers.set_tenant_list(&tenant.id, tenant.providers);
        }
        // It listens before the adoption, so that a death in between is not missed.
        let open = base.providers.all();
        let notices: Vec<_> = open.iter().map(|provider| provider.notices()).collect();
        let egressed: Vec<_> = open.iter().filter_map(|provider| provider.egress()).collect();
        builds.recover().await?;
        // At the same time: a service that hangs delays the start by its deadline only.
        let adopted =
            futures::future::try_join_all(open.iter().map(|provider| self.adopt_or_close(provider))).await?;
        for ((provider, notices), is_open) in open.iter().zip(notices).zip(adopted) {
            if is_open {
                crate::notices::start(&sandboxes.inner, provider.name(), notices);
            }
        }
        crate::egress::log::start_sweep(&sandboxes.inner);
        for egressed in egressed {
            crate::egress::log::start(&sandboxes.inner, egressed);
        }
        crate::deadlines::start(&sandboxes.inner);
        sandboxes.start_queue();
        crate::idle::start(&sandboxes.inner);
        crate::metrics::start_sampler(&sandboxes.inner);
        crate::feed::start(self, changes_seen);
        crate::housekeeping::start(self);
        crate::providers::start_watch(self);
        templates.refresh_pools();
        Ok(())
    }

    /// Sandboxes, their snapshots, and what runs in them.
    #[must_use]
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.parts.sandboxes
    }

    /// What sandboxes start from.
    #[must_use]
    pub fn templates(&self) -> &Templates {
        &self.parts.templates
    }

    /// Templates that are made from steps.
    #[must_use]
    pub fn builds(&self) -> &Builds {
        &self.parts.builds
    }

    /// Files that outlive sandboxes.
    #[must_use]
    pub fn volumes(&self) -> &Volumes {
        &self.parts.volumes
    }

    /// Keys, tenants, secrets, tokens and previews.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.parts.access
    }

    /// Calls that their clients can cancel.
    #[must_use]
    pub fn calls(&self) -> &RunningCalls {
        &self.parts.calls
    }

    pub(crate) fn base(&self) -> &Arc<ServiceBase> {
        &self.parts.base
    }

    /// The budget for all bytes that this server holds for its callers.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.base().budget
    }

    /// The part of it that belongs to the tenant of a key.
    #[must_use]
    pub fn account_of(&self, who: &Principal) -> Account {
        self.base().budget.tenant(&who.tenant)
    }

    /// The wall time of the service's clock, in milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.base().clock.now().wall_ms
    }

    /// The node of this server.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        self.base().store.node()
    }

    /// Deletes every sandbox of this node, whoever owns it, and snapshots that are kept elsewhere: for the removal of a server.
    pub async fn delete_own_sandboxes(&self) -> Result<(), ServiceError> {
        for handle in self.sandboxes().handles() {
            self.sandboxes().delete_driven(handle, true).await?;
        }
        for snapshot in self.base().store.all_snapshots().await? {
            let Some(provider) = self.base().providers.open(&snapshot.provider) else { continue };
            // Those on this machine go with its files.
            if provider.description().isolation == Isolation::Vendor
                && let Err(error) = provider.remove_snapshot(&snapshot.id).await
            {
                tracing::warn!(snapshot = %snapshot.id, provider = provider.name(), %error, "a snapshot at a service could not be removed");
            }
        }
        Ok(())
    }

    /// Stops every sandbox that uses this machine, and waits for it: for the removal of a server whose files are kept. Paused
    /// sandboxes with their memory on disk, and those at a service, stay as they are.
    pub async fn stop_own_sandboxes(&self) -> Result<(), ServiceError> {
        let is_vendor = |lease: &Lease| {
            self.base().providers.of(lease).is_ok_and(|one| one.description().isolation == Isolation::Vendor)
        };
        for handle in self.sandboxes().handles() {
            if handle.lease().holds_compute() && !is_vendor(&handle.lease()) {
                self.sandboxes().stop_driven(handle).await?;
            }
        }
        Ok(())
    }

    /// What the default provider can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.base().providers.default().capabilities()
    }

    /// What the provider of a sandbox can do; nothing where this server does not have it.
    #[must_use]
    pub fn capabilities_of(&self, lease: &Lease) -> Capabilities {
        self.base().providers.of(lease).map_or_else(|_| Capabilities::default(), |one| one.capabilities())
    }

    /// Ends the service: running work may finish within `grace`. Sandboxes continue to run.
    pub async fn shutdown(&self, grace: Duration) {
        self.base().closing.cancel();
        self.base().tracker.close();
        if tokio::time::timeout(grace, self.base().tracker.wait()).await.is_err() {
            tracing::warn!(?grace, "some work did not finish in time; the next start continues it");
        }
        self.abandon().await;
        self.access().flush_keys().await;
        self.base().store.close().await;
    }

    /// Ends every task where it waits, as a crash would. The store stays open.
    #[doc(hidden)]
    pub async fn abandon(&self) {
        self.base().closing.cancel();
        self.base().kill.cancel();
        self.base().tracker.close();
        self.base().tracker.wait().await;
    }
}

impl ServiceParts {
    /// Every part gets the base and the parts that it calls. None calls a part that calls it.
    fn new(
        base: Arc<ServiceBase>,
        source: Arc<dyn TemplateSource>,
        images: Arc<Images>,
        archives: Archives,
    ) -> Self {
        let (uses, build_queue) = (Uses::default(), Arc::<BuildQueue>::default());
        let revocations = Arc::<Revocations>::default();
        let volumes = Volumes::new(&base);
        let templates = Templates::new(&base, source, images, uses.clone());
        let parts = SandboxParts {
            volumes: volumes.clone(),
            templates: templates.clone(),
            build_queue: Arc::clone(&build_queue),
            revocations: Arc::clone(&revocations),
            archives,
            uses,
        };
        let sandboxes = Sandboxes::new(&base, parts);
        let access = Access::new(&base, sandboxes.clone(), volumes.clone(), revocations);
        let builds = Builds::new(&base, build_queue, templates.clone(), sandboxes.clone(), access.clone());
        let calls = RunningCalls::default();
        Self { base, volumes, templates, sandboxes, access, builds, calls }
    }
}
