//! The providers of this server, by name. Settings files add and change providers while the server runs; a provider that has
//! sandboxes is never dropped, it only takes no new ones.

mod address;
mod files;
mod settings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use atoll_model::policy::authz;
use atoll_model::policy::providers::{RequestedProvider, may_use};
use atoll_model::{
    Code, Isolation, Lease, OnExit, Principal, ProviderKind, Scope, Snapshot, TenantId, Volume,
};
use atoll_provider::{Capability, Provider};
use atoll_store::ThreadRecord;

use crate::ServiceError;
use crate::sandboxes::printable;
use crate::service::Service;

pub(crate) use files::OpenedProvider;
pub use files::{BuildProvider, ProviderFiles, ProviderRequest};
pub(crate) use settings::start as start_watch;
pub use settings::{ProviderSettingsRecord, ProviderTest};

/// LIMIT: a provider that takes longer to answer counts as unhealthy.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The providers of a server, and which of them a create without a provider uses. Clones share their state.
#[derive(Clone)]
pub struct ProviderRegistry {
    entries: Arc<RwLock<BTreeMap<String, ProviderEntry>>>,
    default: Arc<dyn Provider>,
    tenants: Arc<TenantProviders>,
    files: Option<Arc<ProviderFiles>>,
    /// Providers whose `on_exit` changed and was not given to their sandboxes yet.
    changed_exits: Arc<Mutex<BTreeSet<String>>>,
}

/// A provider by name, or the reason why there is none.
#[derive(Clone)]
struct ProviderEntry {
    kind: String,
    isolation: Option<Isolation>,
    /// `None`: it could not be opened.
    provider: Option<Arc<dyn Provider>>,
    /// Why it takes no new sandboxes; those that it has go on.
    refusal: Option<ServiceError>,
    /// What an orderly end of the server does with its sandboxes that belong to a thread.
    on_exit: OnExit,
}

/// Which tenants may use which providers.
#[derive(Default)]
struct TenantProviders {
    lists: RwLock<HashMap<TenantId, Vec<String>>>,
    first: OnceLock<TenantId>,
}

/// A provider as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRecord {
    /// Its name in requests.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// What separates its sandboxes from their machine; `None`: not known, because its settings cannot be read.
    pub isolation: Option<Isolation>,
    /// What a sandbox costs, in a few words.
    pub cost: &'static str,
    /// What it is best for, in a few words.
    pub best_for: &'static str,
    /// What it can do on this machine.
    pub capabilities: Vec<Capability>,
    /// Why it cannot be used at the moment; `None`: it can.
    pub problem: Option<String>,
    /// Whether a create without a provider uses it.
    pub is_default: bool,
}

impl ProviderEntry {
    fn open(provider: Arc<dyn Provider>) -> Self {
        Self {
            kind: provider.kind().to_owned(),
            isolation: Some(provider.description().isolation),
            provider: Some(provider),
            refusal: None,
            on_exit: OnExit::Pause,
        }
    }

    fn refused(kind: Option<ProviderKind>, refusal: ServiceError) -> Self {
        Self {
            kind: kind.map_or("unknown", ProviderKind::as_str).to_owned(),
            isolation: kind.map(ProviderKind::isolation),
            provider: None,
            refusal: Some(refusal),
            on_exit: OnExit::Pause,
        }
    }
}

impl ProviderRegistry {
    /// One provider, the default.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        let entries = [(provider.name().to_owned(), ProviderEntry::open(Arc::clone(&provider)))];
        Self {
            entries: Arc::new(RwLock::new(entries.into())),
            default: provider,
            tenants: Arc::default(),
            files: None,
            changed_exits: Arc::default(),
        }
    }

    /// Adds a provider; one of the same name is replaced.
    #[must_use]
    pub fn with(self, provider: Arc<dyn Provider>) -> Self {
        self.put(provider.name(), ProviderEntry::open(provider));
        self
    }

    /// Makes the provider with this name the default.
    pub fn with_default(mut self, name: &str) -> Result<Self, ServiceError> {
        self.default = self.named(name)?;
        Ok(self)
    }

    /// Sets what happens by default to sandboxes of threads at this provider when the server ends. Without it they are paused.
    #[must_use]
    pub fn with_on_exit(self, name: &str, on_exit: OnExit) -> Self {
        if let Some(entry) = self.entry(name) {
            self.put(name, ProviderEntry { on_exit, ..entry });
        }
        self
    }

    /// The default of `on_exit` for sandboxes of threads at a provider. Where a pause is not possible they are kept.
    pub(crate) fn on_exit_of(&self, provider: &dyn Provider) -> OnExit {
        match self.entry(provider.name()).map_or(OnExit::Pause, |entry| entry.on_exit) {
            OnExit::Pause if !provider.capabilities().pauses => OnExit::Keep,
            on_exit => on_exit,
        }
    }

    /// The provider that a request names, for something new.
    pub fn named(&self, name: &str) -> Result<Arc<dyn Provider>, ServiceError> {
        let ProviderEntry { provider, refusal, .. } = self.entry(name).ok_or_else(|| self.unknown(name))?;
        match (provider, refusal) {
            (_, Some(refusal)) => Err(refusal.about("provider", "cannot be used")),
            (Some(provider), None) => Ok(provider),
            (None, None) => Err(self.unknown(name)),
        }
    }

    /// The provider that a request names, or the default.
    pub(crate) fn requested(&self, name: Option<&str>) -> Result<Arc<dyn Provider>, ServiceError> {
        self.named(name.unwrap_or(self.default.name()))
    }

    /// The provider of requests that name none.
    #[must_use]
    pub fn default(&self) -> Arc<dyn Provider> {
        self.get(self.default.name()).unwrap_or_else(|| Arc::clone(&self.default))
    }

    /// All providers that are open, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<dyn Provider>> {
        self.entries().values().filter_map(|entry| entry.provider.clone()).collect()
    }

    /// The provider of builds: the default one, or else the first that can capture layers and use them.
    pub(crate) fn for_builds(&self) -> Arc<dyn Provider> {
        let builds = |provider: &Arc<dyn Provider>| {
            let able = provider.capabilities();
            able.captures && able.layers
        };
        std::iter::once(self.default()).chain(self.all()).find(builds).unwrap_or_else(|| self.default())
    }

    /// The provider of a sandbox.
    pub(crate) fn of(&self, lease: &Lease) -> Result<Arc<dyn Provider>, ServiceError> {
        self.owner(&lease.provider, || format!("sandbox {}", lease.id))
    }

    /// The provider that keeps a snapshot.
    pub(crate) fn of_snapshot(&self, snapshot: &Snapshot) -> Result<Arc<dyn Provider>, ServiceError> {
        self.owner(&snapshot.provider, || format!("snapshot {}", snapshot.id))
    }

    /// The provider that keeps a volume.
    pub(crate) fn of_volume(&self, volume: &Volume) -> Result<Arc<dyn Provider>, ServiceError> {
        self.owner(&volume.provider, || format!("volume {}", volume.name))
    }

    /// The provider that a thread is bound to.
    pub(crate) fn of_thread(&self, thread: &ThreadRecord) -> Result<Arc<dyn Provider>, ServiceError> {
        self.owner(&thread.provider, || format!("thread {}", printable(&thread.thread)))
    }

    /// The provider of this name, if it is open, also if it takes nothing new.
    pub(crate) fn open(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.get(name)
    }

    /// Whether a provider of this name is open.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets or removes the list of providers that a tenant may use.
    pub(crate) fn set_tenant_list(&self, tenant: &TenantId, list: Option<Vec<String>>) {
        let mut lists = self.tenants.lists.write().unwrap_or_else(PoisonError::into_inner);
        match list {
            Some(list) => lists.insert(tenant.clone(), list),
            None => lists.remove(tenant),
        };
    }

    /// Notes the tenant that the server made at its first start.
    pub(crate) fn set_first_tenant(&self, tenant: TenantId) {
        self.tenants.first.get_or_init(|| tenant);
    }

    /// Refuses a provider that a tenant may not use for something new.
    pub(crate) fn check_tenant(
        &self,
        tenant: &TenantId,
        provider: &dyn Provider,
    ) -> Result<(), ServiceError> {
        let name = provider.name();
        if self.is_allowed(tenant, name, provider.kind()) {
            return Ok(());
        }
        let message = format!("this tenant may not use provider {name}");
        let hint = "an admin key can allow it: atoll tenant providers NAME --allow PROVIDER";
        Err(ServiceError::new(Code::ProviderNotAllowed, message)
            .about("provider", "is not allowed for this tenant")
            .hint(hint))
    }

    /// Refuses a provider that this caller may not use.
    pub(crate) fn check(&self, who: &Principal, provider: &dyn Provider) -> Result<(), ServiceError> {
        self.check_tenant(&who.tenant, provider)?;
        if self.is_on_host(provider.name()) { Ok(authz::host(who)?) } else { Ok(()) }
    }

    /// Whether sandboxes of this provider are processes of the machine without isolation.
    pub(crate) fn is_on_host(&self, name: &str) -> bool {
        self.entry(name).is_some_and(|entry| entry.kind == ProviderKind::Local.as_str())
    }

    fn is_allowed(&self, tenant: &TenantId, name: &str, kind: &str) -> bool {
        let lists = self.tenants.lists.read().unwrap_or_else(PoisonError::into_inner);
        let list = lists.get(tenant).map(Vec::as_slice);
        let asked = RequestedProvider { name, kind, is_default: name == self.default.name() };
        may_use(list, self.tenants.first.get() == Some(tenant), asked)
    }

    fn owner(&self, name: &str, what: impl FnOnce() -> String) -> Result<Arc<dyn Provider>, ServiceError> {
        let entry = self.entry(name);
        if let Some(provider) = entry.as_ref().and_then(|entry| entry.provider.clone()) {
            return Ok(provider);
        }
        let message = format!(
            "{} belongs to provider {}, which this server does not have; it is kept unchanged",
            what(),
            printable(name)
        );
        let hint = match entry.and_then(|entry| entry.refusal) {
            Some(reason) => reason.message,
            None => format!("start the server with that provider; it has: {}", self.names()),
        };
        Err(ServiceError::new(Code::ProviderNotConfigured, message).hint(hint))
    }

    fn unknown(&self, name: &str) -> ServiceError {
        if name == ProviderKind::Local.as_str() && self.files.is_some() {
            return files::not_enabled(name, ProviderKind::Local);
        }
        ServiceError::new(Code::ProviderNotFound, format!("this server has no provider {}", printable(name)))
            .about("provider", "is not configured on this server")
            .hint(format!("its providers: {}", self.names()))
    }

    /// The names of providers that take new sandboxes.
    fn names(&self) -> String {
        let entries = self.entries();
        let usable = entries.iter().filter(|(_, entry)| entry.refusal.is_none());
        usable.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn entries(&self) -> BTreeMap<String, ProviderEntry> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn entry(&self, name: &str) -> Option<ProviderEntry> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn get(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(name)?.provider.clone()
    }

    fn put(&self, name: &str, entry: ProviderEntry) {
        let on_exit = entry.on_exit;
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let before = entries.insert(name.to_owned(), entry);
        if before.is_none_or(|before| before.provider.is_none() || before.on_exit != on_exit) {
            self.changed_exits.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        }
    }

    /// The providers whose `on_exit` changed since the last call.
    pub(crate) fn take_changed_exits(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed_exits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A provider takes no new sandboxes. One that is open goes on with those that it has.
    fn refuse(&self, name: &str, kind: Option<ProviderKind>, refusal: ServiceError) {
        let entry = match self.entry(name).filter(|entry| entry.provider.is_some()) {
            Some(open) => ProviderEntry { refusal: Some(refusal), ..open },
            None => ProviderEntry::refused(kind, refusal),
        };
        self.put(name, entry);
    }

    /// Forgets a name whose file is gone, if nothing is open under it.
    fn forget(&self, name: &str) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.get(name).is_some_and(|entry| entry.provider.is_none()) {
            entries.remove(name);
        }
    }
}

impl Service {
    /// The providers of this server with their health, by name. A user key sees those that its tenant may use.
    pub async fn providers(&self, who: &Principal) -> Vec<ProviderRecord> {
        let registry = &self.base().providers;
        let is_visible = |name: &str, entry: &ProviderEntry| match who.scope {
            Scope::Admin => true,
            Scope::User | Scope::Member => registry.is_allowed(&who.tenant, name, &entry.kind),
        };
        let entries = registry.entries().into_iter().filter(|(name, entry)| is_visible(name, entry));
        futures::future::join_all(entries.map(|(name, entry)| self.provider_record(name, entry))).await
    }

    async fn provider_record(&self, name: String, entry: ProviderEntry) -> ProviderRecord {
        let is_default = name == self.base().providers.default.name();
        let refusal = entry.refusal.map(|refusal| refusal.message);
        let Some(provider) = entry.provider else {
            let (kind, isolation, problem) = (entry.kind, entry.isolation, refusal);
            let known = ProviderKind::named(&kind);
            let (cost, best_for) = known.map_or(("", ""), |known| (known.cost(), known.best_for()));
            let capabilities = Vec::new();
            return ProviderRecord {
                name,
                kind,
                isolation,
                cost,
                best_for,
                capabilities,
                problem,
                is_default,
            };
        };
        let (able, description) = (provider.capabilities(), provider.description());
        let problem = match refusal {
            Some(refusal) => Some(refusal),
            None => self.problem_of(&provider).await,
        };
        ProviderRecord {
            name,
            kind: entry.kind,
            isolation: Some(description.isolation),
            cost: description.cost,
            best_for: description.best_for,
            capabilities: Capability::ALL.into_iter().filter(|one| able.has(*one)).collect(),
            problem,
            is_default,
        }
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
    fn a_refused_provider_keeps_its_sandboxes_and_takes_no_new_ones() {
        let registry = ProviderRegistry::new(FakeProvider::new()).with(FakeProvider::named("second"));
        let refusal = || ServiceError::new(Code::ProviderNotConfigured, "its file is gone");
        registry.refuse("second", None, refusal());
        registry.forget("second");
        assert_eq!(registry.named("second").err().unwrap().message, "its file is gone");
        assert_eq!(registry.owner("second", String::new).unwrap().name(), "second");
        registry.refuse("third", Some(ProviderKind::E2b), refusal());
        assert_eq!(registry.named("third").err().unwrap().code, Code::ProviderNotConfigured);
        assert_eq!(registry.all().len(), 2);
        registry.forget("third");
        assert_eq!(registry.named("third").err().unwrap().code, Code::ProviderNotFound);
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
