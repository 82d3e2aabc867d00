//! Settings of providers as operations of an admin key: read, replace, remove, test; and the task that notices changed
//! files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::policy::authz;
use atoll_model::{Code, Principal, ProviderKind, ProviderSettings, TenantId};
use atoll_provider::{Notice, Provider};
use atoll_store::TenantRecord;
use serde_json::Value;
use tokio::sync::broadcast;

use super::files::{ProviderFiles, check, unusable};
use super::{ANSWERS_WITHIN, OpenedProvider};
use crate::ServiceError;
use crate::service::{OpenError, Service};

/// LIMIT: a test asks the service, and for `docker` also a registry.
const TEST_WITHIN: Duration = Duration::from_secs(20);
/// LIMIT: how long a changed file may go unnoticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The settings of a provider as they may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderSettingsRecord {
    /// Its name.
    pub name: String,
    /// The file, without its secrets.
    pub settings: Value,
    /// Where each value comes from that can also be set by a variable.
    pub sources: BTreeMap<String, String>,
    /// Why it cannot be used; `None`: it can.
    pub problem: Option<String>,
}

/// What a test of a provider found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderTest {
    /// What is wrong, in one sentence; `None`: nothing.
    pub problem: Option<String>,
    /// What would help.
    pub hint: Option<String>,
}

impl Service {
    /// The settings of a provider, without its secrets.
    pub async fn provider_settings(
        &self,
        who: &Principal,
        name: &str,
    ) -> Result<ProviderSettingsRecord, ServiceError> {
        authz::admin(who)?;
        let files = self.provider_files()?;
        self.catch_up(files, name).await;
        let settings = self.settings_of(files, name)?;
        let mut record = self.settings_record(files, name, &settings);
        if !files.is_in_effect(name) {
            // Its state is that of other settings than those that are shown.
            record.problem = Some(format!("the changed settings of provider {name} are being tried"));
        }
        Ok(record)
    }

    /// Takes up changed files of a provider, so that its settings and its state belong together. A provider that does not
    /// answer is waited for only briefly; the work goes on.
    async fn catch_up(&self, files: &ProviderFiles, name: &str) {
        if files.is_in_effect(name) {
            return;
        }
        let own = self.clone();
        let reload = async move {
            own.reload_providers().await;
            Ok(())
        };
        // If it takes longer, the caller learns that.
        let _ = tokio::time::timeout(ANSWERS_WITHIN, self.base().run_detached(reload)).await;
    }

    /// Replaces the settings of a provider. Secrets that the request leaves out are kept; an empty text removes one.
    pub async fn set_provider_settings(
        &self,
        who: &Principal,
        name: &str,
        document: &Value,
    ) -> Result<ProviderSettingsRecord, ServiceError> {
        authz::admin(who)?;
        let files = self.provider_files()?;
        let settings = check(name, document).map_err(|bad| ServiceError::field(&bad.field, bad.problem))?;
        let (own, files, name, key) = (self.clone(), Arc::clone(files), name.to_owned(), who.key.clone());
        let change = async move {
            let _turn = files.changes.lock().await;
            // Wrong earlier settings have no secrets that could be kept.
            let earlier = files.read(&name).ok().flatten();
            let earlier = earlier.unwrap_or_else(|| ProviderSettings::of(settings.kind));
            let settings = settings.keeping_secrets_of(&earlier);
            own.check_address(&files, &name, &settings).await?;
            files.write(&name, &settings).map_err(|cause| not_written(&name, cause))?;
            tracing::info!(provider = name, %key, kind = settings.kind.as_str(), "the settings of a provider were changed");
            own.reload_in_turn().await;
            Ok(own.settings_record(&files, &name, &settings))
        };
        self.base().run_detached(change).await
    }

    /// Removes the settings of a provider. Sandboxes that it has go on; new ones are refused.
    pub async fn remove_provider_settings(&self, who: &Principal, name: &str) -> Result<(), ServiceError> {
        authz::admin(who)?;
        let files = self.provider_files()?;
        atoll_model::check_provider_name(name).map_err(|_| self.base().providers.unknown(name))?;
        let (own, files, name, key) = (self.clone(), Arc::clone(files), name.to_owned(), who.key.clone());
        let change = async move {
            let _turn = files.changes.lock().await;
            match std::fs::remove_file(files.path(&name)) {
                Ok(()) => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                    return Err(own.base().providers.unknown(&name).hint("it has no settings file"));
                }
                Err(cause) => return Err(not_written(&name, cause)),
            }
            tracing::info!(provider = name, %key, "the settings of a provider were removed");
            own.reload_in_turn().await;
            Ok(())
        };
        self.base().run_detached(change).await
    }

    /// Checks the settings of a provider, opens it and asks it for a sign of life. A kind that this version cannot drive is
    /// refused.
    pub async fn test_provider(&self, who: &Principal, name: &str) -> Result<ProviderTest, ServiceError> {
        authz::admin(who)?;
        match self.try_provider(name).await {
            Ok(()) => Ok(ProviderTest { problem: None, hint: None }),
            Err(error) if matches!(error.code, Code::Unsupported | Code::ProviderNotFound) => Err(error),
            Err(error) => Ok(ProviderTest { problem: Some(error.message), hint: error.hint }),
        }
    }

    async fn try_provider(&self, name: &str) -> Result<(), ServiceError> {
        let registry = &self.base().providers;
        let opened = match registry.files().map(|files| (files, self.settings_of(files, name))) {
            Some((files, Ok(settings))) => files.open(name, &settings).await?,
            // It is open without a file.
            Some((_, Err(error))) if error.code == Code::ProviderNotFound => None,
            Some((_, Err(error))) => return Err(error),
            None => None,
        };
        let provider = match opened {
            Some(opened) => opened,
            None => registry.named(name)?,
        };
        match tokio::time::timeout(TEST_WITHIN, provider.check()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(unusable(name, &ServiceError::from(error).message)),
            Err(_) => Err(unusable(name, &format!("it did not answer within {TEST_WITHIN:?}"))),
        }
    }

    fn provider_files(&self) -> Result<&Arc<ProviderFiles>, ServiceError> {
        let none = || ServiceError::new(Code::Unsupported, "this server has no settings files for providers");
        self.base().providers.files().ok_or_else(none)
    }

    /// The settings in the file of a provider; the embedded engine without a file has its defaults.
    fn settings_of(&self, files: &ProviderFiles, name: &str) -> Result<ProviderSettings, ServiceError> {
        let registry = &self.base().providers;
        atoll_model::check_provider_name(name).map_err(|_| registry.unknown(name))?;
        files.read(name)?.or_else(|| files.needs_no_file(name)).ok_or_else(|| registry.unknown(name))
    }

    fn settings_record(
        &self,
        files: &ProviderFiles,
        name: &str,
        settings: &ProviderSettings,
    ) -> ProviderSettingsRecord {
        let sources = files.resolve(settings).sources;
        let refusal = self.base().providers.entry(name).and_then(|entry| entry.refusal);
        ProviderSettingsRecord {
            name: name.to_owned(),
            settings: settings.shown(),
            sources: sources
                .iter()
                .map(|(field, source)| ((*field).to_owned(), source.to_string()))
                .collect(),
            problem: refusal.map(|refusal| refusal.message),
        }
    }

    /// Reads the settings files again. The first provider under a name adopts what it has before it takes something new.
    pub(crate) async fn reload_providers(&self) {
        if let Some(files) = self.base().providers.files() {
            let _turn = files.changes.lock().await;
            self.reload_in_turn().await;
        }
    }

    /// [`Self::reload_providers`] for a caller that holds [`ProviderFiles::changes`].
    async fn reload_in_turn(&self) {
        let registry = &self.base().providers;
        for opened in registry.read_files().await {
            let (name, kind) = (opened.provider.name(), opened.settings.kind);
            let checked = match registry.files() {
                Some(files) => self.check_place(files, &opened.provider, &opened.settings).await,
                None => Ok(()),
            };
            if let Err(refusal) = checked {
                registry.postpone(name, kind, refusal).await;
            } else if let Err(error) = self.take_provider(opened).await {
                self.close_provider(name, &error).await;
            }
        }
        for name in registry.take_changed_exits() {
            if let Some(provider) = registry.get(&name) {
                self.sandboxes().set_on_exit_of(&name, registry.on_exit_of(provider.as_ref())).await;
            }
        }
        if let Some(files) = registry.files() {
            files.note_in_effect().await;
        }
    }

    async fn check_place(
        &self,
        files: &ProviderFiles,
        provider: &Arc<dyn Provider>,
        settings: &ProviderSettings,
    ) -> Result<(), ServiceError> {
        self.check_address(files, provider.name(), settings).await?;
        self.check_account(files, provider, settings).await
    }

    async fn take_provider(&self, opened: OpenedProvider) -> Result<(), OpenError> {
        let provider = Arc::clone(&opened.provider);
        let registry = &self.base().providers;
        let current = registry.get(provider.name());
        let is_new = !current.is_some_and(|current| Arc::ptr_eq(&current, &provider));
        // It listens before the adoption, so that a death in between is not missed.
        let heard = is_new.then(|| provider.notices());
        if !registry.has(provider.name()) {
            self.adopt_at(&provider).await?;
        }
        if let Some(notices) = heard {
            self.listen_to(&provider, notices);
        }
        if let Some(files) = registry.files() {
            files.keep_address(provider.name(), &opened.settings);
        }
        registry.install(opened);
        tracing::info!(provider = provider.name(), kind = provider.kind(), "a provider was opened");
        Ok(())
    }

    async fn adopt_at(&self, provider: &Arc<dyn Provider>) -> Result<(), OpenError> {
        let only = [Arc::clone(provider)];
        crate::adopt::adopt(&self.sandboxes().inner, &only).await?;
        self.volumes().sweep(&only).await
    }

    /// Adopts what a provider has when the server starts. One of a settings file that cannot list its instances is tried again
    /// later; the server starts without it. Answers whether it is open.
    pub(crate) async fn adopt_or_close(&self, provider: &Arc<dyn Provider>) -> Result<bool, OpenError> {
        if let Some(files) = self.base().providers.files()
            && let Ok(Some(settings)) = files.read(provider.name())
        {
            if let Err(refusal) = self.check_place(files, provider, &settings).await {
                tracing::warn!(provider = provider.name(), "{refusal}");
                self.base().providers.close(provider.name(), refusal).await;
                return Ok(false);
            }
            files.keep_address(provider.name(), &settings);
        }
        match self.adopt_at(provider).await {
            Err(error @ OpenError::Adopt { .. }) if provider.kind() != ProviderKind::Container.as_str() => {
                if self.close_provider(provider.name(), &error).await {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
            outcome => outcome.map(|()| true),
        }
    }

    /// Closes a provider that cannot list its instances; answers whether a settings file opens it again.
    async fn close_provider(&self, name: &str, error: &OpenError) -> bool {
        tracing::warn!(provider = name, %error, cause = ?std::error::Error::source(error), "a provider could not be used");
        let why = match error {
            OpenError::Adopt { cause, .. } => format!("it cannot list its instances: {cause}"),
            _ => "it cannot list its instances".to_owned(),
        };
        let refusal = unusable(name, &why);
        self.base().providers.close(name, refusal).await
    }

    /// Follows the notices and the egress decisions of a provider.
    fn listen_to(&self, provider: &Arc<dyn Provider>, notices: broadcast::Receiver<Notice>) {
        let inner = &self.sandboxes().inner;
        crate::notices::start(inner, provider.name(), notices);
        if let Some(egressed) = provider.egress() {
            crate::egress::log::start(inner, egressed);
        }
    }

    /// Sets or removes the list of providers that a tenant may use. Existing sandboxes stay.
    pub async fn set_tenant_providers(
        &self,
        who: &Principal,
        tenant: &str,
        providers: Option<Vec<String>>,
    ) -> Result<TenantRecord, ServiceError> {
        authz::admin(who)?;
        for name in providers.iter().flatten() {
            atoll_model::check_provider_name(name)
                .map_err(|bad| ServiceError::field("providers", format!("{name:?} {}", bad.problem)))?;
            // `local` may be enabled later.
            if self.base().providers.entry(name).is_none() && name != ProviderKind::Local.as_str() {
                return Err(self.base().providers.unknown(name));
            }
        }
        let record = self.base().tenant(tenant).await?;
        self.base().store.set_tenant_providers(&record.id, providers.clone()).await?;
        self.base().providers.set_tenant_list(&record.id, providers.clone());
        tracing::info!(tenant = %record.id, key = %who.key, set = providers.is_some(), "a tenant's list of providers was changed");
        Ok(TenantRecord { providers, ..record })
    }

    /// Reads a list that another node changed.
    pub(crate) async fn reload_tenant_providers(&self, tenant: &TenantId) {
        match self.base().store.tenant(tenant.as_str()).await {
            Ok(Some(record)) => self.base().providers.set_tenant_list(tenant, record.providers),
            Ok(None) => {}
            Err(error) => tracing::warn!(%tenant, %error, "a changed list of providers could not be read"),
        }
    }
}

/// Notices changed settings files.
pub(crate) fn start(service: &Service) {
    if service.base().providers.files().is_none() {
        return;
    }
    let own = service.clone();
    service.base().spawn(async move {
        let closing = own.base().closing.clone();
        while closing.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            own.reload_providers().await;
        }
    });
}

fn not_written(name: &str, cause: std::io::Error) -> ServiceError {
    ServiceError::new(Code::Internal, format!("the settings of provider {name} could not be written"))
        .hint("check the space and the permissions of DATA/sandboxes")
        .caused_by(cause)
}
