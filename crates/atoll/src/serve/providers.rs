//! Opens the providers of settings files: the one place that knows which kind is which type.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use atoll_docker::{DockerConfig, DockerProvider, DockerSettings};
use atoll_local::{CgroupUse, LocalConfig, LocalProvider};
use atoll_model::{Code, ProviderKind};
use atoll_provider::Provider;
use atoll_remote_agentbay::{
    AgentbayConfig, AgentbayProvider, AgentbaySandboxes, AgentbaySettings, AgentbayTiming,
};
use atoll_remote_daytona::{
    DaytonaConfig, DaytonaProvider, DaytonaSandboxes, DaytonaSettings, DaytonaTiming,
};
use atoll_remote_e2b::{E2bConfig, E2bProvider, E2bSandboxes, E2bSettings, E2bTiming};
use atoll_service::{BuildProvider, ProviderFiles, ProviderRequest, ServiceError};

use super::settings::Settings;
use crate::environment;

/// The settings files below DATA, with the variables of this process. Sandboxes without isolation do not reach `port`, on
/// which the server listens.
pub(super) fn files(settings: &Settings, port: Option<u16>) -> ProviderFiles {
    let tls_port = settings.tls.as_ref().map(|tls| tls.listen.port());
    let builder = ProviderBuilder {
        data: settings.data.clone(),
        agent: settings.agent.clone(),
        own_ports: port.into_iter().chain(tls_port).collect(),
        local: tokio::sync::Mutex::default(),
        e2b: Mutex::default(),
        agentbay: Mutex::default(),
        daytona: Mutex::default(),
    };
    ProviderFiles::new(&settings.data, Arc::new(builder), environment::provider_variables())
        .allowing_local(settings.allow_local)
}

/// Where the sandboxes of the provider `local` are.
pub(super) fn local_folder(data: &Path) -> PathBuf {
    data.join("local")
}

struct ProviderBuilder {
    data: PathBuf,
    /// The agent to use instead of the embedded one.
    agent: Option<PathBuf>,
    own_ports: Vec<u16>,
    /// By name. Their settings have no fields, so one that is open stays as it is.
    local: tokio::sync::Mutex<HashMap<&'static str, Arc<LocalProvider>>>,
    /// What the providers of kind `e2b` know, by name; a provider that is opened again goes on with it.
    e2b: Mutex<HashMap<&'static str, E2bSandboxes>>,
    /// The same of kind `daytona`.
    daytona: Mutex<HashMap<&'static str, DaytonaSandboxes>>,
    /// The same for the kind `agentbay`.
    agentbay: Mutex<HashMap<&'static str, AgentbaySandboxes>>,
}

impl ProviderBuilder {
    async fn local(&self, name: &'static str) -> Result<Arc<dyn Provider>, ServiceError> {
        let mut open = self.local.lock().await;
        if let Some(provider) = open.get(name) {
            return Ok(Arc::clone(provider) as Arc<dyn Provider>);
        }
        let (data, given) = (self.data.clone(), self.agent.clone());
        let install = move || atoll_container::install_agent(&data, given.as_deref());
        let installed = tokio::task::spawn_blocking(install).await.unwrap_or_else(|e| Err(e.into()));
        let agent = installed.map_err(|cause| {
            ServiceError::new(Code::Internal, "the agent could not be written").caused_by(cause)
        })?;
        let config = LocalConfig {
            name,
            owner: format!("{name}@{}", self.data.display()),
            agent,
            data: local_folder(&self.data),
            environment: environment::for_local_commands(),
            refused_ports: self.own_ports.clone(),
            cgroups: CgroupUse::WhereAvailable,
        };
        let provider = Arc::new(LocalProvider::open(config).await.map_err(ServiceError::from)?);
        open.insert(name, Arc::clone(&provider));
        Ok(provider)
    }

    async fn docker(&self, request: &ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        let settings = DockerSettings::from_section(request.settings.section.clone())?;
        let folder = self.folder(request);
        let prepared = owner_of(&folder).and_then(|owner| {
            Ok((owner, atoll_container::install_agent(&self.data, self.agent.as_deref())?))
        });
        let (owner, agent) = prepared.map_err(|cause| no_folder(request, &cause))?;
        let data = folder.join("sandboxes");
        let config = DockerConfig { name: request.name, owner, agent, data, settings };
        Ok(Arc::new(DockerProvider::open(config).await?))
    }

    fn e2b(&self, request: &ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        let settings = E2bSettings::from_section(request.settings.section.clone())?;
        let folder = self.folder(request);
        let owner = owner_of(&folder).map_err(|cause| no_folder(request, &cause))?;
        let mut known = self.e2b.lock().unwrap_or_else(PoisonError::into_inner);
        let sandboxes = known.entry(request.name).or_default().clone();
        let (data, timing) = (folder.join("sandboxes"), E2bTiming::default());
        let config = E2bConfig { name: request.name, owner, data, settings, sandboxes, timing };
        Ok(Arc::new(E2bProvider::open(config)?))
    }

    fn daytona(&self, request: &ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        let settings = DaytonaSettings::from_section(request.settings.section.clone())?;
        let owner = owner_of(&self.folder(request)).map_err(|cause| no_folder(request, &cause))?;
        let mut known = self.daytona.lock().unwrap_or_else(PoisonError::into_inner);
        let sandboxes = known.entry(request.name).or_default().clone();
        let timing = DaytonaTiming::default();
        let config = DaytonaConfig { name: request.name, owner, settings, sandboxes, timing };
        Ok(Arc::new(DaytonaProvider::open(config)?))
    }

    fn agentbay(&self, request: &ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        let owner = owner_of(&self.folder(request)).map_err(|cause| no_folder(request, &cause))?;
        let mut known = self.agentbay.lock().unwrap_or_else(PoisonError::into_inner);
        let config = AgentbayConfig {
            name: request.name,
            owner,
            settings: AgentbaySettings::from_section(request.settings.section.clone())?,
            sandboxes: known.entry(request.name).or_default().clone(),
            timing: AgentbayTiming::default(),
            authorities: Vec::new(),
        };
        Ok(Arc::new(AgentbayProvider::open(config)?))
    }

    /// The folder of a provider that has an owner of its own.
    fn folder(&self, request: &ProviderRequest) -> PathBuf {
        self.data.join("providers").join(request.name)
    }
}

fn no_folder(request: &ProviderRequest, cause: &io::Error) -> ServiceError {
    let message = format!("the folder of provider {} cannot be made: {cause}", request.name);
    ServiceError::new(Code::Internal, message)
}

#[async_trait]
impl BuildProvider for ProviderBuilder {
    async fn build(&self, request: ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        match request.kind {
            ProviderKind::Docker => self.docker(&request).await,
            ProviderKind::Local => self.local(request.name).await,
            ProviderKind::E2b => self.e2b(&request),
            ProviderKind::Daytona => self.daytona(&request),
            ProviderKind::Agentbay => self.agentbay(&request),
            // The engine is opened before; the service never asks for a second one.
            ProviderKind::Container => Err(not_yet(&request)),
        }
    }
}

/// The owner of a provider's instances: a random name, made once for each provider of each data folder.
fn owner_of(folder: &Path) -> io::Result<String> {
    let file = folder.join("owner");
    match std::fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return Ok(read?.trim().to_owned()),
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(folder)?;
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let owner = hex::encode(random);
    let fresh = folder.join("owner.new");
    std::fs::write(&fresh, &owner)?;
    std::fs::File::open(&fresh)?.sync_all()?;
    std::fs::rename(&fresh, &file)?;
    Ok(owner)
}

/// The kind is known and its settings are valid, but this version has no code for it.
fn not_yet(request: &ProviderRequest) -> ServiceError {
    let kind = request.kind.as_str();
    let message =
        format!("provider {} cannot be used: this version cannot drive the kind {kind} yet", request.name);
    ServiceError::new(Code::Unsupported, message).hint("its settings are kept; choose another provider")
}
