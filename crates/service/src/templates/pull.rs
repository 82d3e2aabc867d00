//! Pulls images: one pull per image, tenant and credentials, shared by all callers.
//!
//! A pull continues as long as a caller or a sandbox waits for it. A sandbox that is created from the image waits as
//! long as it exists, even if its caller disconnects.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use atoll_image::DiffId;
use atoll_image::oci::KnownLayers;
use atoll_model::{Code, MadeFrom, Principal, Scope, TemplateRef, TenantId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Fetch, Progress, Progressed, Publish, PullImage, RegistryAuth, TemplateRecord, Templates, VersionHold,
};
use crate::ServiceError;

/// LIMIT: concurrent pulls of one server; more only share the same connection.
const FLIGHTS_MAX: usize = 64;
/// LIMIT: concurrent pulls of one tenant.
const FLIGHTS_PER_TENANT: usize = 8;
/// How long a sandbox waits before it tries to begin its pull again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Running pulls.
#[derive(Default)]
pub(super) struct Pulls(Mutex<HashMap<PullKey, Weak<PullInFlight>>>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct PullKey {
    tenant: TenantId,
    image: TemplateRef,
    auth: Option<RegistryAuth>,
    platform: Option<String>,
    operator: bool,
}

type Outcome = Option<Result<TemplateRecord, ServiceError>>;

/// One pull. It is cancelled when the last holder drops it.
pub(crate) struct PullInFlight {
    done: watch::Receiver<Outcome>,
    listeners: Arc<Mutex<Vec<Progress>>>,
    stop: CancellationToken,
}

impl Drop for PullInFlight {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Templates {
    /// Fetches an image from its registry and keeps it as a template of the caller's tenant under the name and tag it has
    /// there. Dropping the future cancels it, unless another waits for the same image.
    pub async fn pull(
        &self,
        who: &Principal,
        ask: PullImage,
        progress: Progress,
    ) -> Result<TemplateRecord, ServiceError> {
        self.flight(who, ask, progress)?.landed().await
    }

    /// The base of a step or a sandbox: a template by reference, or else the pulled image of that name. It is held
    /// until the result's hold is dropped.
    pub(crate) async fn base_version(
        &self,
        who: &Principal,
        reference: &TemplateRef,
        auth: Option<RegistryAuth>,
        platform: Option<&str>,
        progress: Progress,
    ) -> Result<(TemplateRecord, VersionHold), ServiceError> {
        let word = reference.to_string();
        match self.resolve(who, &word).await {
            Ok(found) => return Ok((found.record, found.hold)),
            Err(error) if error.code == Code::TemplateNotFound => {}
            Err(error) => return Err(error),
        }
        let ask = PullImage { image: reference.clone(), auth, platform: platform.map(str::to_owned) };
        self.pull(who, ask, progress).await?;
        let found = self.resolve(who, &word).await?;
        Ok((found.record, found.hold))
    }

    /// Begins to pull an image that a sandbox waits for, as soon as the limits allow one more pull.
    pub(crate) async fn pull_in_turn(
        &self,
        who: &Principal,
        ask: PullImage,
    ) -> Result<Arc<PullInFlight>, ServiceError> {
        loop {
            match self.flight(who, ask.clone(), Arc::new(|_| {})) {
                Err(error) if error.code == Code::NoCapacity => tokio::time::sleep(LOOK_AGAIN).await,
                begun => return begun,
            }
        }
    }

    /// Joins a running pull, or begins one.
    fn flight(
        &self,
        who: &Principal,
        ask: PullImage,
        progress: Progress,
    ) -> Result<Arc<PullInFlight>, ServiceError> {
        let key = PullKey {
            tenant: who.tenant.clone(),
            image: ask.image,
            auth: ask.auth,
            platform: ask.platform,
            // A tenant must not use the operator's credentials.
            operator: who.scope == Scope::Admin,
        };
        let mut flights = self.inner.pulls.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if let Some(flight) = flights.get(&key).and_then(Weak::upgrade)
            && flight.done.borrow().is_none()
        {
            flight.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(progress);
            return Ok(flight);
        }
        let own = flights.keys().filter(|other| other.tenant == key.tenant).count();
        if flights.len() >= FLIGHTS_MAX || own >= FLIGHTS_PER_TENANT {
            let message = format!(
                "{} images are already being downloaded",
                if own < FLIGHTS_PER_TENANT { flights.len() } else { own }
            );
            return Err(ServiceError::new(Code::NoCapacity, message).retry_after(10));
        }
        let (told, done) = watch::channel(None);
        let flight = Arc::new(PullInFlight {
            done,
            listeners: Arc::new(Mutex::new(vec![progress])),
            stop: CancellationToken::new(),
        });
        flights.insert(key.clone(), Arc::downgrade(&flight));
        let (own, stop, listeners) = (self.clone(), flight.stop.clone(), Arc::clone(&flight.listeners));
        self.inner.spawn(async move {
            let fetched = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = own.inner.closing.cancelled() => Err(crate::base::shutting_down()),
                fetched = own.fetch(&key, listeners) => fetched,
            };
            let _ = told.send(Some(fetched));
        });
        Ok(flight)
    }

    async fn fetch(
        &self,
        key: &PullKey,
        listeners: Arc<Mutex<Vec<Progress>>>,
    ) -> Result<TemplateRecord, ServiceError> {
        let inner = &self.inner;
        let progress: Progress = Arc::new(move |news: Progressed| {
            for listener in listeners.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                listener(news.clone());
            }
        });
        let _working = inner.images.begin();
        let ask = Fetch {
            image: key.image.clone(),
            auth: key.auth.clone(),
            operator: key.operator,
            platform: key.platform.clone(),
            known: self.known_layers(&key.tenant, key.operator).await?,
            progress,
        };
        let fetched = inner.cache.sources.pull(Arc::clone(&inner.images), ask).await?;
        let _held = self.hold_digest(&fetched.version)?;
        inner.failpoint.reach("pull.files").await;
        self.publish(Publish {
            tenant: &key.tenant,
            template: &key.image,
            tags: &[],
            version: &fetched.version,
            made_from: MadeFrom::Image,
            manifest: Some(fetched.manifest),
            warm: None,
            notes: Vec::new(),
        })
        .await
    }
}

impl Templates {
    /// The layers of all templates that a tenant can see. An admin key can see all layers.
    async fn known_layers(&self, tenant: &TenantId, is_admin: bool) -> Result<KnownLayers, ServiceError> {
        if is_admin {
            return Ok(Arc::new(|_| true));
        }
        let mut versions = BTreeSet::new();
        for row in self.inner.store.templates(Some(tenant)).await? {
            let known = self.inner.store.template_versions(&row.tenant, &row.name).await?;
            versions.extend(known.into_iter().map(|known| known.version));
        }
        let images = Arc::clone(&self.inner.images);
        let layers: HashSet<DiffId> = self
            .inner
            .run_blocking(move || {
                let found = versions.iter().filter_map(|version| images.version(version).ok());
                Ok(found.flat_map(|version| version.layers).collect())
            })
            .await?;
        Ok(Arc::new(move |layer| layers.contains(layer)))
    }
}

impl PullInFlight {
    /// Waits for its end.
    pub(crate) async fn landed(&self) -> Result<TemplateRecord, ServiceError> {
        let mut done = self.done.clone();
        match done.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(crate::base::shutting_down())),
            Err(_) => Err(crate::base::shutting_down()),
        }
    }
}
