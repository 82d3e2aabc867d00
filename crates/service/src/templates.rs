//! Templates, as far as the use cases need them. The catalog on disk is behind one small trait, so that drivers are
//! tested without a root filesystem.

mod surface;
mod types;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::authz;
use atoll_model::{Code, ErrorKind, Principal};
use tokio::time::Instant;

pub use types::*;

use crate::ServiceError;
use crate::service::{Inner, Service};

/// Told each step while a template is made; `Break` cancels.
pub type MakeProgress = Box<dyn FnMut(&str) -> ControlFlow<()> + Send>;

/// Where templates are kept. All calls may block; the service makes slow ones on a thread of their own.
pub trait Templates: Send + Sync + 'static {
    /// The template of this name or alias; the ones that make themselves are made.
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError>;
    /// The very version of a template that a sandbox was made from; nothing is made.
    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError>;
    /// All of them.
    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError>;
    /// Makes a built-in one.
    fn make(&self, name: &str, progress: MakeProgress) -> Result<TemplateRecord, ServiceError>;
    /// Removes it.
    fn remove(&self, name: &str) -> Result<(), ServiceError>;
}

/// What was resolved a moment ago. A create must not wait for a look at the whole catalog.
pub(crate) struct TemplateCache {
    templates: Arc<dyn Templates>,
    known: Mutex<HashMap<String, (Instant, TemplateRecord)>>,
}

/// LIMIT: a template that changes is noticed a second later at most; the engine checks again when it boots.
const FRESH: Duration = Duration::from_secs(1);
/// LIMIT: names that people try; beyond that the cache starts anew.
const KNOWN_MAX: usize = 256;

impl TemplateCache {
    pub(crate) fn new(templates: Arc<dyn Templates>) -> Self {
        Self { templates, known: Mutex::default() }
    }

    pub(crate) async fn resolve(&self, inner: &Inner, name: &str) -> Result<TemplateRecord, ServiceError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some((at, record)) = known
            && at.elapsed() < FRESH
        {
            return Ok(record);
        }
        let (templates, asked) = (Arc::clone(&self.templates), name.to_owned());
        let record = blocking(inner, move || templates.resolve(&asked)).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(name.to_owned(), (Instant::now(), record.clone()));
        Ok(record)
    }

    /// Whether exactly this version is here; [`Code::TemplateNotFound`] if not.
    pub(crate) async fn need(&self, inner: &Inner, name: &str, version: &str) -> Result<(), ServiceError> {
        let templates = Arc::clone(&self.templates);
        let (wanted, exactly) = (name.to_owned(), version.to_owned());
        match blocking(inner, move || templates.pinned(&wanted, &exactly)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code, Code::TemplateNotFound | Code::HostChanged) => {
                let message = format!("template {name} of version {version} is not here");
                let hint = match name {
                    "host" => "template host is each machine's own: bring it back where it was archived",
                    _ => "make the template here from what it was made from there (copy ATOLL_CACHE first)",
                };
                Err(ServiceError::new(Code::TemplateNotFound, message).hint(hint).caused_by(error))
            }
            Err(error) => Err(error),
        }
    }

    fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Runs blocking work on a thread for it, tracked like every other task.
async fn blocking<T: Send + 'static>(
    inner: &Inner,
    work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
) -> Result<T, ServiceError> {
    let failed = || ServiceError::new(Code::Internal, "the work on templates ended early");
    let task = inner.spawn(async move { tokio::task::spawn_blocking(work).await });
    match task.await {
        Ok(Some(Ok(outcome))) => outcome,
        _ => Err(failed()),
    }
}

impl Service {
    /// All templates.
    pub async fn list_templates(&self, _who: &Principal) -> Result<Vec<TemplateRecord>, ServiceError> {
        let templates = Arc::clone(&self.inner.templates.templates);
        blocking(&self.inner, move || templates.list()).await
    }

    /// One template by name or alias.
    pub async fn get_template(&self, _who: &Principal, name: &str) -> Result<TemplateRecord, ServiceError> {
        self.inner.templates.resolve(&self.inner, name).await
    }

    /// Makes a built-in template, telling each step.
    pub async fn make_template(
        &self,
        who: &Principal,
        name: &str,
        progress: MakeProgress,
    ) -> Result<TemplateRecord, ServiceError> {
        authz::admin(who)?;
        let (templates, name) = (Arc::clone(&self.inner.templates.templates), name.to_owned());
        let made = blocking(&self.inner, move || templates.make(&name, progress)).await;
        self.inner.templates.forget();
        made
    }

    /// Removes a template that no sandbox was made from.
    pub async fn remove_template(&self, who: &Principal, name: &str) -> Result<(), ServiceError> {
        authz::admin(who)?;
        let record = self.get_template(who, name).await?;
        let users = self.inner.store.template_users(&record.name).await?;
        if users > 0 {
            let message = format!("template {} is used by {users} sandboxes", record.name);
            return Err(ServiceError::new(Code::TemplateInUse, message)
                .hint(format!("delete them first: GET /v1/sandboxes?template={}", record.name)));
        }
        let kept = self.inner.store.all_snapshots().await?;
        let kept = kept.iter().filter(|snapshot| snapshot.template == record.name).count();
        if kept > 0 {
            let message = format!("template {} lies beneath {kept} snapshots", record.name);
            return Err(ServiceError::new(Code::TemplateInUse, message).hint("delete them first"));
        }
        let templates = Arc::clone(&self.inner.templates.templates);
        let removed = blocking(&self.inner, move || templates.remove(&record.name)).await;
        self.inner.templates.forget();
        removed
    }
}

impl Templates for atoll_image::Catalog {
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError> {
        Ok(record(&*self.get(name)?))
    }

    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError> {
        Ok(record(&*atoll_image::Catalog::pinned(self, name, version)?))
    }

    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError> {
        Ok(atoll_image::Catalog::list(self)?.iter().map(|template| record(template)).collect())
    }

    fn make(&self, name: &str, mut progress: MakeProgress) -> Result<TemplateRecord, ServiceError> {
        Ok(record(&*atoll_image::Catalog::make(self, name, &mut *progress)?))
    }

    fn remove(&self, name: &str) -> Result<(), ServiceError> {
        Ok(atoll_image::Catalog::remove(self, name)?)
    }
}

fn record(manifest: &atoll_image::Manifest) -> TemplateRecord {
    TemplateRecord {
        name: manifest.name.clone(),
        version: manifest.digest.clone(),
        aliases: manifest.aliases.clone(),
        kind: match manifest.kind {
            atoll_image::Kind::Host => "host".to_owned(),
            atoll_image::Kind::Rootfs => "rootfs".to_owned(),
        },
        user: manifest.default_user.clone(),
        workdir: manifest.workdir.clone(),
        env: manifest.env.clone(),
        sudo: manifest.sudo,
        command: manifest.start_command.clone(),
        created_at_ms: manifest.created_at.as_millisecond(),
        ..TemplateRecord::default()
    }
}

impl From<atoll_image::TemplateError> for ServiceError {
    fn from(error: atoll_image::TemplateError) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::TemplateNotFound,
            ErrorKind::Invalid => Code::InvalidRequest,
            ErrorKind::Exists => Code::AlreadyExists,
            ErrorKind::Conflict => Code::HostChanged,
            ErrorKind::Unsupported => Code::Unsupported,
            ErrorKind::Unavailable | ErrorKind::Exhausted => Code::ToolMissing,
            ErrorKind::Unauthenticated | ErrorKind::Forbidden | ErrorKind::Internal => Code::Internal,
        };
        let shown = Self::new(code, error.to_string());
        match error.hint() {
            Some(hint) => shown.hint(hint).caused_by(error),
            None => shown.caused_by(error),
        }
    }
}
