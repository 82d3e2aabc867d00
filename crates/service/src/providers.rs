//! The providers of this server, by name. The set is fixed when the server opens, so a lookup takes no lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Code, Lease, OnExit, Snapshot, Volume};
use atoll_provider::{Capability, Provider, ProviderDescription};
use atoll_store::ThreadRecord;

use crate::ServiceError;
use crate::sandboxes::printable;
use crate::service::Service;

/// LIMIT: a provider that takes longer to answer counts as unhealthy.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The providers of a server, and which of them a create without a provider uses.
#[derive(Clone)]
pub struct ProviderRegistry {
    providers: BTreeMap<&'static str, Arc<dyn Provider>>,
    default: Arc<dyn Provider>,
    on_exit: BTreeMap<String, OnExit>,
}

/// A provider as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    /// Its name in requests.
    pub name: &'static str,
    /// What it is.
    pub kind: &'static str,
    /// What it says about itself.
    pub description: ProviderDescription,
    /// What it can do on this machine.
    pub capabilities: Vec<Capability>,
    /// Why it cannot be used at the moment; `None`: it can.
    pub problem: Option<String>,
    /// Whether a create without a provider uses it.
    pub is_default: bool,
}

impl ProviderRegistry {
    /// One provider, the default.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        Self {
            providers: [(provider.name(), Arc::clone(&provider))].into(),
            default: provider,
            on_exit: BTreeMap::new(),
        }
    }

    /// Adds a provider; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.insert(provider.name(), provider);
        self
    }

    /// Makes the provider with this name the default.
    pub fn with_default(mut self, name: &str) -> Result<Self, ServiceError> {
        self.default = Arc::clone(self.named(name)?);
        Ok(self)
    }

    /// Sets what happens by default to sandboxes of threads at this provider when the server or the thread ends. Without it
    /// they are paused.
    #[must_use]
    pub fn with_on_exit(mut self, name: &str, on_exit: OnExit) -> Self {
        self.on_exit.insert(name.to_owned(), on_exit);
        self
    }

    /// The default of `on_exit` for sandboxes of threads at a provider. Where a pause is not possible they are kept.
    pub(crate) fn on_exit_of(&self, provider: &dyn Provider) -> OnExit {
        match self.on_exit.get(provider.name()).copied().unwrap_or(OnExit::Pause) {
            OnExit::Pause if !provider.capabilities().pauses => OnExit::Keep,
            on_exit => on_exit,
        }
    }

    /// The provider that a request names.
    pub fn named(&self, name: &str) -> Result<&Arc<dyn Provider>, ServiceError> {
        self.providers.get(name).ok_or_else(|| {
            let message = format!("this server has no provider {}", printable(name));
            ServiceError::new(Code::ProviderNotFound, message)
                .about("provider", "is not configured on this server")
                .hint(format!("its providers: {}", self.names()))
        })
    }

    /// The provider that a request names, or the default.
    pub(crate) fn requested(&self, name: Option<&str>) -> Result<&Arc<dyn Provider>, ServiceError> {
        name.map_or(Ok(&self.default), |name| self.named(name))
    }

    /// The provider of requests that name none.
    #[must_use]
    pub fn default(&self) -> &Arc<dyn Provider> {
        &self.default
    }

    /// All providers, by name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.providers.values()
    }

    /// The provider of builds: the default one, or else the first that can capture layers and use them.
    pub(crate) fn for_builds(&self) -> &Arc<dyn Provider> {
        let builds = |provider: &&Arc<dyn Provider>| {
            let able = provider.capabilities();
            able.captures && able.layers
        };
        std::iter::once(&self.default).chain(self.all()).find(builds).unwrap_or(&self.default)
    }

    /// The provider of a sandbox.
    pub(crate) fn of(&self, lease: &Lease) -> Result<&Arc<dyn Provider>, ServiceError> {
        self.owner(&lease.provider, || format!("sandbox {}", lease.id))
    }

    /// The provider that keeps a snapshot.
    pub(crate) fn of_snapshot(&self, snapshot: &Snapshot) -> Result<&Arc<dyn Provider>, ServiceError> {
        self.owner(&snapshot.provider, || format!("snapshot {}", snapshot.id))
    }

    /// The provider that keeps a volume.
    pub(crate) fn of_volume(&self, volume: &Volume) -> Result<&Arc<dyn Provider>, ServiceError> {
        self.owner(&volume.provider, || format!("volume {}", volume.name))
    }

    /// The provider that a thread is bound to.
    pub(crate) fn of_thread(&self, thread: &ThreadRecord) -> Result<&Arc<dyn Provider>, ServiceError> {
        self.owner(&thread.provider, || format!("thread {}", printable(&thread.thread)))
    }

    /// Whether there is a provider of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.providers.contains_key(name)
    }

    fn owner(&self, name: &str, what: impl FnOnce() -> String) -> Result<&Arc<dyn Provider>, ServiceError> {
        self.providers.get(name).ok_or_else(|| {
            let message = format!(
                "{} belongs to provider {}, which this server does not have; it is kept unchanged",
                what(),
                printable(name)
            );
            let hint = format!("start the server with that provider; it has: {}", self.names());
            ServiceError::new(Code::ProviderNotConfigured, message).hint(hint)
        })
    }

    fn names(&self) -> String {
        self.providers.keys().copied().collect::<Vec<_>>().join(", ")
    }
}

impl Service {
    /// The providers of this server with their health, by name.
    pub async fn providers(&self) -> Vec<ProviderRecord> {
        let registry = &self.base().providers;
        let records = registry.all().map(|provider| async move {
            let able = provider.capabilities();
            ProviderRecord {
                name: provider.name(),
                kind: provider.kind(),
                description: provider.description(),
                capabilities: Capability::ALL.into_iter().filter(|one| able.has(*one)).collect(),
                problem: self.problem_of(provider).await,
                is_default: provider.name() == registry.default.name(),
            }
        });
        futures::future::join_all(records).await
    }

    /// Why a provider cannot be used at the moment.
    pub(crate) async fn problem_of(&self, provider: &Arc<dyn Provider>) -> Option<String> {
        let look = self.base().admission.look(provider.as_ref());
        match tokio::time::timeout(ANSWERS_WITHIN, look).await {
            Ok(Ok(_)) => None,
            Ok(Err(_)) | Err(_) => Some(format!("the provider {} does not answer", provider.name())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use atoll_provider::fake::FakeProvider;

    #[test]
    fn an_unknown_name_is_refused_with_the_names_that_there_are() {
        let registry = ProviderRegistry::new(FakeProvider::new()).with(FakeProvider::named("second"));
        let refused = registry.named("third").err().unwrap();
        assert_eq!(refused.code, Code::ProviderNotFound);
        assert_eq!(refused.hint.as_deref(), Some("its providers: fake, second"));
        assert_eq!(registry.requested(None).unwrap().name(), "fake");
        assert_eq!(registry.with_default("second").unwrap().requested(None).unwrap().name(), "second");
    }

    #[test]
    fn sandboxes_of_threads_are_paused_at_the_end_unless_the_provider_says_otherwise() {
        let (first, second) = (FakeProvider::new(), FakeProvider::named("second"));
        let registry = ProviderRegistry::new(first.clone()).with(second.clone());
        let registry = registry.with_on_exit("second", OnExit::Destroy);
        assert_eq!(registry.on_exit_of(first.as_ref()), OnExit::Pause);
        assert_eq!(registry.on_exit_of(second.as_ref()), OnExit::Destroy);
        for fake in [&first, &second] {
            fake.set_capabilities(|able| able.pauses = false);
        }
        assert_eq!(registry.on_exit_of(first.as_ref()), OnExit::Keep, "it cannot be paused");
        assert_eq!(registry.on_exit_of(second.as_ref()), OnExit::Destroy);
    }

    #[test]
    fn builds_use_a_provider_that_can_capture_layers() {
        let (first, second) = (FakeProvider::new(), FakeProvider::named("second"));
        let registry = ProviderRegistry::new(first.clone()).with(second);
        assert_eq!(registry.for_builds().name(), "fake");
        first.set_capabilities(|able| able.captures = false);
        assert_eq!(registry.for_builds().name(), "second");
    }
}
