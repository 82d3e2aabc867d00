//! Templates: the sources of sandboxes, by name.
//!
//! ```text
//! name ──► the tenant's own ──► built in (catalog) ──► public ones of others ──► (create with image: pull)
//!              │ name → tag → version (rows)    version → layers, settings (files of `Images`)
//! ```
//!
//! Rows contain the names of a version; files contain its content. Sandboxes, snapshots and pools refer to versions, so
//! a tag may move at any time. Only [`collect`] removes unused files.

mod change;
mod collect;
mod defaults;
mod first_use;
mod pools;
mod pull;
mod resolve;
mod sources;
mod transfer;
mod types;
mod versions;

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

use atoll_image::Images;
use atoll_image::oci::KnownLayers;
use atoll_model::policy::authz;
use atoll_model::{Code, ErrorKind, Lease, Principal, TemplateRef};
use futures::FutureExt;
use futures::future::BoxFuture;

pub use sources::TemplateSources;
pub use types::*;

pub(crate) use collect::VersionHold;
pub(crate) use versions::Publish;

use collect::VersionHolds;
use first_use::FirstUses;
use pull::Pulls;
use resolve::TemplateCache;

use crate::ServiceError;
use crate::base::{ServiceBase, visible};
use crate::snapshots::Uses;

/// Called for each step while a template is made; `Break` cancels.
pub type MakeProgress = Box<dyn FnMut(&str) -> ControlFlow<()> + Send>;

/// Where templates come from: those that this server makes itself, and registries. Calls that are no futures may block; the
/// service makes slow ones on a thread of their own.
pub trait TemplateSource: Send + Sync + 'static {
    /// The built-in template of this name or alias; the ones that are made automatically are made.
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError>;
    /// The exact version of a template that a sandbox was created from; nothing is made.
    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError>;
    /// All built-in templates.
    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError>;
    /// Every name and alias of a built-in template, made or not.
    fn names(&self) -> Result<Vec<String>, ServiceError> {
        Ok(self
            .list()?
            .into_iter()
            .flat_map(|known| std::iter::once(known.name).chain(known.aliases))
            .collect())
    }
    /// Makes a built-in template.
    fn make(&self, name: &str, progress: MakeProgress) -> Result<TemplateRecord, ServiceError>;
    /// Removes a built-in template.
    fn remove(&self, name: &str) -> Result<(), ServiceError>;
    /// The store of layers and versions that provider and catalog use; `None`: the service opens its own.
    fn images(&self) -> Option<Arc<Images>> {
        None
    }
    /// The user and group ids of a name in a template's files; `None` if they do not contain it.
    fn user_ids(&self, _template: &str, _version: &str, _user: &str) -> Option<(u32, u32)> {
        None
    }
    /// Pulls an image. Dropping the future cancels it.
    fn pull(&self, _images: Arc<Images>, _ask: Fetch) -> BoxFuture<'static, Result<Fetched, ServiceError>> {
        async { Err(no_registries()) }.boxed()
    }
    /// Pushes a version to a registry; returns the digest of its manifest. Dropping the future cancels it.
    fn push(
        &self,
        _images: Arc<Images>,
        _version: String,
        _ask: Fetch,
    ) -> BoxFuture<'static, Result<String, ServiceError>> {
        async { Err(no_registries()) }.boxed()
    }
}

/// A request to a registry.
#[derive(Clone)]
pub struct Fetch {
    /// The image.
    pub image: TemplateRef,
    /// The credentials for the registry; `None`: see `operator`.
    pub auth: Option<RegistryAuth>,
    /// Whether the operator's credentials may be used: never for a tenant.
    pub operator: bool,
    /// `linux/amd64` or similar; `None`: that of this machine.
    pub platform: Option<String>,
    /// Layers that the caller has access to. For other layers that are here, the registry must confirm that it has
    /// them.
    pub known: KnownLayers,
    /// Receives the progress.
    pub progress: Progress,
}

/// The result of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The version of the image.
    pub version: String,
    /// The digest of its manifest.
    pub manifest: String,
}

fn no_registries() -> ServiceError {
    ServiceError::new(Code::Unsupported, "this server has no access to registries")
}

/// What sandboxes start from, of all tenants. Cloning is cheap.
#[derive(Clone)]
pub struct Templates {
    inner: Arc<TemplatesState>,
}

struct TemplatesState {
    base: Arc<ServiceBase>,
    cache: TemplateCache,
    images: Arc<Images>,
    holds: VersionHolds,
    pulls: Pulls,
    first_uses: FirstUses,
    /// One change of the pools is told to the provider at a time.
    pool_turn: tokio::sync::Mutex<()>,
    /// Snapshots that are needed right now: some are the warm start of a version.
    uses: Uses,
}

impl Deref for TemplatesState {
    type Target = ServiceBase;

    fn deref(&self) -> &ServiceBase {
        &self.base
    }
}

impl Templates {
    pub(crate) fn new(
        base: &Arc<ServiceBase>,
        source: Arc<dyn TemplateSource>,
        images: Arc<Images>,
        uses: Uses,
    ) -> Self {
        Self {
            inner: Arc::new(TemplatesState {
                base: Arc::clone(base),
                cache: TemplateCache::new(source),
                images,
                holds: VersionHolds::default(),
                pulls: Pulls::default(),
                first_uses: FirstUses::default(),
                pool_turn: tokio::sync::Mutex::default(),
                uses,
            }),
        }
    }

    /// Layers and versions, for builds, which make both.
    pub(crate) fn images(&self) -> &Arc<Images> {
        &self.inner.images
    }

    /// All templates that the key sees: its tenant's, the built-in ones, and public ones of others. One entry per name.
    pub async fn list(&self, who: &Principal) -> Result<Vec<TemplateRecord>, ServiceError> {
        let sources = Arc::clone(&self.inner.cache.sources);
        let mut all = self.inner.run_blocking(move || sources.list()).await?;
        for row in self.inner.store.templates(visible(who)).await? {
            match self.listed(&row).await {
                Ok(Some(record)) => all.push(record),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(template = row.name, %error, "a template is left out of the list");
                }
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// One template by name, `name:tag`, `name@digest` or alias.
    pub async fn get(&self, who: &Principal, word: &str) -> Result<TemplateRecord, ServiceError> {
        let mut record = self.resolve(who, word).await?.record;
        if record.tenant.is_some() {
            record.nodes = self.inner.store.template_nodes(&record.version).await?.into_iter().collect();
        }
        Ok(record)
    }

    /// Says that names of templates mean something else now.
    pub(crate) fn forget_names(&self) {
        self.inner.cache.forget();
    }

    /// The user and group that commands of a sandbox run as, in numbers; `None` where its template does not know the user.
    pub(crate) async fn user_of(&self, lease: &Lease) -> Result<Option<(u32, u32)>, ServiceError> {
        let (user, group) = lease.user.split_once(':').unwrap_or((&lease.user, &lease.user));
        if let (Ok(user), Ok(group)) = (user.parse(), group.parse()) {
            return Ok(Some((user, group)));
        }
        if user == "root" {
            return Ok(Some((0, 0)));
        }
        let sources = Arc::clone(&self.inner.cache.sources);
        let (template, version) = (lease.template.clone(), lease.template_version.clone());
        let user = user.to_owned();
        self.inner.run_blocking(move || Ok(sources.user_ids(&template, &version, &user))).await
    }

    /// Makes a built-in template, telling each step.
    pub async fn make(
        &self,
        who: &Principal,
        name: &str,
        progress: MakeProgress,
    ) -> Result<TemplateRecord, ServiceError> {
        authz::admin(who)?;
        let (sources, name) = (Arc::clone(&self.inner.cache.sources), name.to_owned());
        let made = self.inner.run_blocking(move || sources.make(&name, progress)).await;
        self.inner.cache.forget();
        made
    }
}

impl From<atoll_image::TemplateError> for ServiceError {
    fn from(error: atoll_image::TemplateError) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::TemplateNotFound,
            ErrorKind::Invalid => Code::InvalidRequest,
            ErrorKind::Exists => Code::AlreadyExists,
            ErrorKind::Conflict if matches!(error, atoll_image::TemplateError::Damaged { .. }) => {
                Code::Damaged
            }
            ErrorKind::Conflict => Code::HostChanged,
            ErrorKind::Unsupported => Code::Unsupported,
            ErrorKind::Exhausted => Code::NoCapacity,
            ErrorKind::Unavailable => Code::ToolMissing,
            ErrorKind::Unauthenticated | ErrorKind::Forbidden | ErrorKind::Internal => Code::Internal,
        };
        let says_sizes = matches!(error, atoll_image::TemplateError::NoRoom { .. });
        let message = match code {
            Code::NoCapacity if !says_sizes => "the server's disk has no space for this template".to_owned(),
            _ => error.to_string(),
        };
        let failure = shown(code, message, error.hint()).caused_by(error);
        if code == Code::NoCapacity { failure.retry_after(30) } else { failure }
    }
}

impl From<atoll_image::ImageError> for ServiceError {
    fn from(error: atoll_image::ImageError) -> Self {
        use atoll_image::{ImageError, LayerError};
        let code = match (&error, error.kind()) {
            (ImageError::Template(_), ErrorKind::Exhausted) => Code::NoCapacity,
            (ImageError::Template(_), _) => Code::TemplateNotFound,
            (ImageError::Layer(LayerError::NoRoom { .. }), _) => Code::NoCapacity,
            _ if error.is_damage() => Code::Damaged,
            (_, ErrorKind::NotFound) => Code::TemplateNotFound,
            (_, ErrorKind::Invalid) => Code::InvalidRequest,
            (_, ErrorKind::Exists) => Code::AlreadyExists,
            (_, ErrorKind::Conflict) => Code::Damaged,
            (_, ErrorKind::Unsupported) => Code::Unsupported,
            // The sender or the reader of the data stopped.
            (_, ErrorKind::Unavailable) => Code::InvalidRequest,
            (_, ErrorKind::Exhausted) => Code::PayloadTooLarge,
            (_, ErrorKind::Unauthenticated | ErrorKind::Forbidden | ErrorKind::Internal) => Code::Internal,
        };
        let hint = error.hint();
        let message = match code {
            // An error of the server's own disk contains its own paths.
            Code::Internal => "the files of templates could not be read or written".to_owned(),
            Code::NoCapacity => "the server's disk has no space for this".to_owned(),
            _ => error.to_string(),
        };
        let failure = shown(code, message, hint).caused_by(error);
        if code == Code::NoCapacity { failure.retry_after(30) } else { failure }
    }
}

fn shown(code: Code, message: String, hint: Option<String>) -> ServiceError {
    let shown = ServiceError::new(code, message);
    match hint {
        Some(hint) => shown.hint(hint),
        None => shown,
    }
}
