//! The source of a new sandbox, before its own settings: a template, a snapshot or an archive.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_image::archive::ArchivedSandbox;
use atoll_image::default_names;
use atoll_model::{
    ArchiveRef, Code, CreateSandbox, DEFAULT_TAG, Lease, Limits, LimitsAsk, NetworkPolicy, Origin, Principal,
    ReadyCheck, SandboxId, Snapshot, Source, StartRequest, Storage, TemplateRef, policy::placement,
};
use atoll_provider::{Isolation, Provider, ProviderError, ProviderImage};

use crate::sandboxes::{Sandboxes, printable};
use crate::snapshots::Seed;
use crate::templates::VersionHold;
use crate::{ServiceError, TemplateRecord};

impl Sandboxes {
    /// The source of a sandbox, before its own settings.
    pub(crate) async fn base_of(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
    ) -> Result<CreationBase, ServiceError> {
        match &spec.from {
            Origin::Template => self.base_of_template(who, spec).await,
            Origin::Named(word) => self.base_named(who, spec, word).await,
            Origin::Snapshot { snapshot, memory } => {
                let snapshot = self.get_snapshot(who, snapshot).await?;
                refuse_other_template(spec, &snapshot.template)?;
                self.refuse_other_provider(spec, &snapshot)?;
                let for_memory = |message: &str| {
                    Err(ServiceError::new(Code::InvalidRequest, message)
                        .hint("create it without the memory of the snapshot"))
                };
                if *memory && !snapshot.memory {
                    return for_memory("memory: the snapshot holds files only");
                }
                if *memory && spec.storage == Storage::Memory {
                    return for_memory("memory: needs storage disk");
                }
                let seed = Arc::new(Seed::of(&self.inner, &snapshot.id, *memory).await?);
                Ok(CreationBase {
                    seed: Some(seed),
                    ..CreationBase::of(Base::of_snapshot(snapshot, *memory))
                })
            }
            Origin::Archive { key } => {
                let (archive, about) = self.archived(who, key).await?;
                refuse_other_template(spec, &about.template)?;
                if spec.storage == Storage::Memory {
                    return Err(ServiceError::new(
                        Code::InvalidRequest,
                        "storage: an archive can be restored to disk only",
                    ));
                }
                // Its files lie on that very version: who has another one need not wait for the download.
                self.inner.templates.need(&about.template, &about.template_version).await?;
                let hold = self.inner.templates.hold_digest(&about.template_version).ok();
                Ok(CreationBase { hold, ..CreationBase::of(Base::of_archive(archive, about)) })
            }
        }
    }

    /// The template with this name, or else the snapshot; with its processes if it has some and the request allows
    /// that.
    async fn base_named(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
        word: &str,
    ) -> Result<CreationBase, ServiceError> {
        let named = CreateSandbox { template: Some(word.to_owned()), from: Origin::Template, ..spec.clone() };
        let missing = match self.base_of_template(who, &named).await {
            Err(error) if error.code == Code::TemplateNotFound => error,
            found => return found,
        };
        let snapshot = match self.get_snapshot(who, word).await {
            Err(error) if error.code == Code::SnapshotNotFound => {
                let message = format!("there is no template and no snapshot {}", printable(word));
                return Err(ServiceError { message, ..missing });
            }
            found => found?,
        };
        self.refuse_other_provider(spec, &snapshot)?;
        let memory = snapshot.memory && spec.storage == Storage::Disk && spec.mounts.is_empty();
        let seed = Arc::new(Seed::of(&self.inner, &snapshot.id, memory).await?);
        Ok(CreationBase { seed: Some(seed), ..CreationBase::of(Base::of_snapshot(snapshot, memory)) })
    }

    /// The limits of a sandbox whose request and template name none.
    async fn default_limits(
        &self,
        provider: &dyn Provider,
        spec: &CreateSandbox,
    ) -> Result<Limits, ServiceError> {
        let own = self.inner.config.default_limits;
        if spec.default_limits == LimitsAsk::default() {
            return Ok(own);
        }
        let machine = self.inner.admission.look(provider).await?;
        Ok(placement::bounded_default(&machine, spec.default_limits).resolve(own)?)
    }

    async fn base_of_template(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
    ) -> Result<CreationBase, ServiceError> {
        let provider = self.inner.providers.requested(spec.provider.as_deref())?;
        if let Some(image) = self.image_at(&provider, spec).await? {
            let limits = self.inner.config.default_limits;
            return Ok(CreationBase::of(Base::of_image(image, limits)));
        }
        let word = spec.template.as_deref().unwrap_or(&self.inner.config.default_template);
        let exact = word.parse::<TemplateRef>().ok().filter(|exact| exact.digest.is_some());
        let found = match (&spec.image, exact) {
            // One that is not here is waited for before: see `missing_image`.
            (Some(image), _) => self.inner.templates.resolve(who, image).await?,
            // Steps of a build begin from what the step before made, which nobody names.
            (None, Some(exact)) if spec.build.is_some() => {
                match self.inner.templates.resolve_version(&exact).await {
                    Err(error) if error.code == Code::TemplateNotFound => {
                        self.inner.templates.resolve(who, word).await?
                    }
                    found => found?,
                }
            }
            (None, _) => self.inner.templates.resolve(who, word).await?,
        };
        let TemplateRecord { name, version, .. } = &found.record;
        if !provider.has_template(name, version).await? {
            return Err(no_copy(name, provider.name()));
        }
        let default = self.default_limits(provider.as_ref(), spec).await?;
        let limits = found
            .record
            .settings
            .limits
            .resolve(default)
            .map_err(|bad| ServiceError::new(Code::InvalidRequest, format!("the template's {bad}")))?;
        let mut base = Base::of_template(&found.record, limits, spec.entrypoint);
        let ready = found.record.ready.clone().filter(|_| base.command.is_some() && spec.command.is_none());
        let Some(warm) = found.warm.filter(|_| can_start_warm(provider.as_ref(), spec)) else {
            return Ok(CreationBase { base, seed: None, hold: Some(found.hold), ready });
        };
        match Seed::of(&self.inner, &warm, true).await {
            // The processes of a warm start are at the provider of the build.
            Ok(seed) if seed.provider != provider.name() => {
                Ok(CreationBase { base, seed: None, hold: Some(found.hold), ready })
            }
            Ok(seed) => {
                base.source = Source::Snapshot { snapshot: warm, memory: true, fork: false };
                // Its processes were ready when they were kept. A ready command may take long, so it does not run
                // again.
                let ready = ready.filter(|check| !matches!(check, ReadyCheck::Command { .. }));
                Ok(CreationBase { base, seed: Some(Arc::new(seed)), hold: Some(found.hold), ready })
            }
            // This is slower, but correct.
            Err(error) => {
                tracing::warn!(template = word, %error, "the warm start of a template is missing; the sandbox boots instead");
                Ok(CreationBase { base, seed: None, hold: Some(found.hold), ready })
            }
        }
    }

    /// Whether sandboxes of a provider, or of the server's default, are made from images of its own.
    pub fn uses_own_images(&self, provider: Option<&str>) -> Result<bool, ServiceError> {
        Ok(self.inner.providers.requested(provider)?.has_images())
    }

    /// Whether a provider, or the server's default, can archive the files of a sandbox.
    pub fn can_archive(&self, provider: Option<&str>) -> Result<bool, ServiceError> {
        Ok(self.inner.providers.requested(provider)?.capabilities().packs)
    }

    /// The image of a provider that has images of its own. Templates of this server and the default names of the vendors' SDKs
    /// mean the provider's default.
    pub(super) async fn image_at(
        &self,
        provider: &Arc<dyn Provider>,
        spec: &CreateSandbox,
    ) -> Result<Option<ProviderImage>, ServiceError> {
        if !provider.has_images() {
            return Ok(None);
        }
        let default = self.inner.config.default_template.as_str();
        let is_ours = |name: &&str| *name == default || default_names::is_built_in(name);
        let template = spec.template.as_deref().filter(|name| !is_ours(name));
        let image = spec.image.as_deref().filter(|name| default_names::candidates(name).is_none());
        let named = image.or(template);
        match provider.image(named).await {
            Err(ProviderError::NoTemplate { template }) => Err(no_image(&template, provider.as_ref())),
            found => Ok(found?),
        }
    }

    /// A snapshot is used where it is kept.
    fn refuse_other_provider(&self, spec: &CreateSandbox, snapshot: &Snapshot) -> Result<(), ServiceError> {
        let provider = self.inner.providers.of_snapshot(snapshot)?;
        let kept = provider.name();
        match &spec.provider {
            Some(asked) if asked != kept => Err(ServiceError::field(
                "provider",
                format!("snapshot {} is kept by provider {kept}", snapshot.id),
            )
            .hint("leave provider out")),
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether processes that already run can satisfy the request.
fn can_start_warm(provider: &dyn Provider, spec: &CreateSandbox) -> bool {
    provider.capabilities().checkpoints
        && spec.storage == Storage::Disk
        && spec.command.is_none()
        && spec.user.is_none()
        && spec.workdir.is_none()
        && spec.mounts.is_empty()
        && spec.private_env.is_empty()
        && spec.build.is_none()
}

fn no_copy(template: &str, provider: &str) -> ServiceError {
    let message = format!("template {template} has no copy for provider {provider}");
    ServiceError::new(Code::TemplateNotFound, message)
        .hint("that provider cannot use the layers of this server; choose another provider, or a template that it has")
}

fn no_image(image: &str, provider: &dyn Provider) -> ServiceError {
    let message = format!("provider {} has no image {}", provider.name(), printable(image));
    let hint = match provider.description().isolation {
        Isolation::Vendor => {
            "name a template or snapshot of the account at that service, or leave it out: then the provider's default is used"
        }
        Isolation::None | Isolation::Container | Isolation::Vm => {
            "load or pull it at that provider first, as with docker pull or docker load; or choose another image"
        }
    };
    ServiceError::new(Code::TemplateNotFound, message).hint(hint)
}

/// Fills in the working directory where the provider has a folder per sandbox instead of an image that names one.
pub(crate) fn use_workspace(lease: &mut Lease, provider: &dyn Provider) {
    if lease.workdir.is_empty()
        && let Some(folder) = provider.workspace(&lease.id)
    {
        lease.workdir = folder;
    }
}

/// The source of a sandbox.
pub(crate) struct CreationBase {
    pub(crate) base: Base,
    pub(crate) seed: Option<Arc<Seed>>,
    /// Keeps its files from being collected until the lease records that they are needed.
    pub(crate) hold: Option<VersionHold>,
    /// The check whether its start command is ready.
    pub(super) ready: Option<ReadyCheck>,
}

impl CreationBase {
    pub(super) const fn of(base: Base) -> Self {
        Self { base, seed: None, hold: None, ready: None }
    }
}

/// The settings of a template, a snapshot or an archive for a new sandbox.
pub(crate) struct Base {
    template: String,
    template_version: String,
    env: BTreeMap<String, String>,
    user: String,
    workdir: String,
    command: Option<Vec<String>>,
    pub(super) limits: Limits,
    pub(super) network: Option<NetworkPolicy>,
    pub(super) source: Source,
    /// The provider that keeps the source; `None`: any.
    pub(super) provider: Option<String>,
    parent: Option<SandboxId>,
}

impl Base {
    /// Whether commands run as this user without a request for it.
    pub(super) fn has_user(&self, user: &str) -> bool {
        self.user == user
    }

    /// The base for an image that is not here yet.
    pub(super) fn awaited(template: String, limits: Limits) -> Self {
        Self {
            template,
            template_version: String::new(),
            env: BTreeMap::new(),
            user: "root".to_owned(),
            workdir: "/".to_owned(),
            command: None,
            limits,
            network: None,
            source: Source::Template,
            provider: None,
            parent: None,
        }
    }

    /// Applies this base to a lease; the request has precedence. Limits and network are already in the lease.
    pub(crate) fn apply_to(self, lease: &mut Lease, asked: &StartRequest) {
        let mut env = self.env;
        env.append(&mut lease.env);
        lease.env = env;
        let user = asked.user.clone().unwrap_or_else(|| self.user.clone());
        let workdir = if user == "root" && self.user != "root" { "/root".to_owned() } else { self.workdir };
        lease.user = user;
        lease.workdir = asked.workdir.clone().unwrap_or(workdir);
        lease.command = asked.command.clone().or(self.command);
        lease.template = self.template;
        lease.template_version = self.template_version;
        lease.source = self.source;
        lease.parent = self.parent;
    }

    fn of_template(template: &TemplateRecord, limits: Limits, entrypoint: bool) -> Self {
        let mut env = template.env.clone();
        if let Some(port) = template.port {
            // Previews use this port, and programs read it.
            env.entry("PORT".to_owned()).or_insert_with(|| port.to_string());
        }
        let name = match template.tag.as_deref() {
            Some(tag) if tag != DEFAULT_TAG => format!("{}:{tag}", template.name),
            Some(_) | None => template.name.clone(),
        };
        Self {
            template: name,
            template_version: template.version.clone(),
            env,
            user: template.user.clone(),
            workdir: template.workdir.clone(),
            command: template.command.clone().or_else(|| template.program().filter(|_| entrypoint)),
            limits,
            network: None,
            source: Source::Template,
            provider: None,
            parent: None,
        }
    }

    fn of_image(image: ProviderImage, limits: Limits) -> Self {
        Self {
            template_version: image.version,
            env: image.env,
            user: image.user,
            workdir: image.workdir,
            ..Self::awaited(image.name, limits)
        }
    }

    fn of_snapshot(snapshot: Snapshot, memory: bool) -> Self {
        Self {
            template: snapshot.template,
            template_version: snapshot.template_version,
            env: snapshot.env,
            user: snapshot.user,
            workdir: snapshot.workdir,
            command: snapshot.command,
            limits: snapshot.limits,
            network: Some(snapshot.network),
            source: Source::Snapshot { snapshot: snapshot.id, memory, fork: false },
            provider: Some(snapshot.provider),
            parent: Some(snapshot.sandbox),
        }
    }

    fn of_archive(archive: ArchiveRef, about: ArchivedSandbox) -> Self {
        Self {
            template: about.template,
            template_version: about.template_version,
            env: about.env,
            user: about.user,
            workdir: about.workdir,
            command: about.command,
            limits: about.limits,
            network: None,
            source: Source::Archive { archive },
            provider: None,
            parent: Some(about.sandbox),
        }
    }
}

/// A snapshot or an archive depends on its own template; another one below it would change its files.
fn refuse_other_template(spec: &CreateSandbox, template: &str) -> Result<(), ServiceError> {
    match &spec.template {
        Some(asked) if asked != template => Err(ServiceError::field(
            "template",
            format!("the snapshot or archive was made from template {template}"),
        )
        .hint("leave template out")),
        Some(_) | None => Ok(()),
    }
}
