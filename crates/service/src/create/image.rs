//! Sandboxes whose image is not here: the lease is recorded first, then the image is built or pulled, then the sandbox
//! boots.
//!
//! ```text
//! create ─► lease (queued) ─► building, pulling ─► booting ─► running
//!                  └──────────────┴─► failed: kept with the reason until it is deleted
//! ```
//!
//! One task per waiting sandbox runs the wait and informs the driver. It ends with the wait: the deletion of the
//! sandbox cancels its build. After a restart of the server a pull begins again; a build does not continue, so its
//! sandbox fails.

use std::sync::Arc;

use atoll_model::{
    AwaitedImage, BuildId, Code, CreateSandbox, Lease, MountAsk, Origin, Principal, Stage, StartRequest,
    TemplateRef,
};

use super::base::{Base, CreationBase};
use crate::base::shutting_down;
use crate::build::PreparedBuild;
use crate::driver::{DriverMessage, ImageProgress};
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{Sandboxes, SandboxesState};
use crate::{CreateWait, Created, PullImage, ServiceError};

/// The image that a sandbox in creation waits for.
pub(crate) struct ImageWait {
    sandboxes: Sandboxes,
    build: Option<PreparedBuild>,
    /// The template of the catalogue that is made at its first use.
    template: Option<&'static str>,
}

impl Sandboxes {
    /// Creates a sandbox that waits for the result of a build.
    pub(crate) async fn create_from_build(
        &self,
        who: &Principal,
        spec: CreateSandbox,
        build: PreparedBuild,
    ) -> Result<(Lease, Created), ServiceError> {
        let wait = ImageWait { sandboxes: self.clone(), build: Some(build), template: None };
        let idempotency = self.idempotency(&who.tenant, &spec);
        self.create_waiting(who, spec, idempotency, Some(wait), false).await
    }

    /// The wait for the image of a create, if the image is not here.
    pub(super) async fn missing_image(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
    ) -> Result<Option<ImageWait>, ServiceError> {
        let (Some(image), Origin::Template) = (&spec.image, &spec.from) else { return Ok(None) };
        let provider = self.inner.providers.requested(spec.provider.as_deref())?;
        if self.image_at(&provider, spec).await?.is_some() {
            return Ok(None);
        }
        match self.inner.templates.resolve(who, image).await {
            Err(error) if error.code == Code::TemplateNotFound => {
                reference(image)?;
                Ok(Some(ImageWait { sandboxes: self.clone(), build: None, template: None }))
            }
            known => known.map(|_| None),
        }
    }

    /// The wait for a template of the catalogue that is made at its first use, if the create waits for it; otherwise it is
    /// refused until the template is made.
    pub(super) async fn missing_template(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
        wait: CreateWait,
    ) -> Result<Option<ImageWait>, ServiceError> {
        let word = match &spec.from {
            Origin::Template if spec.image.is_none() => {
                spec.template.as_deref().unwrap_or(&self.inner.config.default_template)
            }
            Origin::Named(word) => word,
            Origin::Template | Origin::Snapshot { .. } | Origin::Archive { .. } => return Ok(None),
        };
        let templates = &self.inner.templates;
        let Some(name) = templates.made_at_first_use(word) else { return Ok(None) };
        if self.inner.providers.requested(spec.provider.as_deref())?.has_images() {
            return Ok(None);
        }
        match templates.resolve(who, word).await {
            Err(error) if error.code == Code::TemplateNotFound => {}
            known => return known.map(|_| None),
        }
        let is_named = matches!(spec.from, Origin::Named(_));
        if is_named && self.get_snapshot(who, word).await.is_ok() {
            return Ok(None);
        }
        if !wait.for_template && spec.queue.is_none() {
            return templates.refuse_until_made(name).await.map(|()| None);
        }
        templates.begin_first_use(name).await?;
        Ok(Some(ImageWait { sandboxes: self.clone(), build: None, template: Some(name) }))
    }

    /// Waits, up to a limit, until a sandbox no longer waits for its image.
    pub(super) async fn until_image(&self, mut handle: Handle) -> Result<(), ServiceError> {
        let (limit, lease) = (self.inner.config.pull_wait, handle.lease());
        let is_over = |state: &DriverState| !state.lease.waits_for_image();
        match tokio::time::timeout(limit, handle.state.wait_for(is_over)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(shutting_down()),
            Err(_) => {
                let message = format!(
                    "image {} was not here within {} s; sandbox {} still waits for it",
                    lease.template,
                    limit.as_secs(),
                    lease.id
                );
                Err(ServiceError::new(Code::DeadlineExceeded, message)
                    .hint(format!("get sandbox {} again, or delete it", lease.id))
                    .retry_after(10))
            }
        }
    }
}

impl ImageWait {
    /// The wait of a sandbox that an earlier server wrote down.
    pub(crate) fn again(inner: &Arc<SandboxesState>) -> Self {
        Self { sandboxes: Sandboxes { inner: Arc::clone(inner) }, build: None, template: None }
    }

    pub(super) fn build(&self) -> Option<BuildId> {
        self.build.as_ref().map(|build| build.id().clone())
    }

    /// The lease's base until the image is here.
    pub(super) fn base(&self, spec: &CreateSandbox) -> CreationBase {
        let built = self.build.as_ref().map(PreparedBuild::template);
        let named = built.or_else(|| self.template.map(str::to_owned));
        let template = named.or_else(|| spec.image.clone()).unwrap_or_default();
        CreationBase::of(Base::awaited(template, self.sandboxes.inner.config.default_limits))
    }

    /// Begins to build or pull. The task owns the wait: the caller may disconnect.
    pub(crate) fn start(self, handle: Handle) {
        let inner = Arc::clone(&self.sandboxes.inner);
        let closing = inner.closing.clone();
        inner.spawn(async move {
            closing.run_until_cancelled(self.run(handle)).await;
        });
    }

    async fn run(self, handle: Handle) {
        let Self { sandboxes, build, template: _ } = self;
        let lease = handle.lease();
        let begun = match build {
            Some(build) => build.begin().await.map(|_| ()),
            None => Ok(()),
        };
        let mut watched = handle.state.clone();
        let image = async {
            begun?;
            sandboxes.image_of(&handle, &lease).await
        };
        let progress = tokio::select! {
            biased;
            // An error means that its driver ended, and the sandbox with it.
            _ = watched.wait_for(|state| !state.lease.waits_for_image()) => {
                lease.image_build.iter().for_each(|build| sandboxes.inner.build_queue.stop(build));
                return;
            }
            made = image => made.map_or_else(ImageProgress::Failed, |base| ImageProgress::Ready(Box::new(base))),
        };
        tell(&handle, progress).await;
    }
}

impl Sandboxes {
    /// Builds or pulls the image of a sandbox, and returns its base.
    async fn image_of(&self, handle: &Handle, lease: &Lease) -> Result<CreationBase, ServiceError> {
        let Some(AwaitedImage { requested_by, start }) = &lease.awaits else {
            return Err(ServiceError::new(Code::Internal, "the sandbox waits for no image"));
        };
        match &lease.image_build {
            Some(build) => {
                if self.inner.build_queue.until_begun(build).await {
                    tell(handle, ImageProgress::Stage(Stage::Building)).await;
                }
                self.inner.build_queue.until_built(&*self.inner.store, build).await?;
            }
            // Another sandbox may have pulled it since this one was requested.
            None if self.inner.templates.resolve(requested_by, &lease.template).await.is_ok() => {}
            None if let Some(name) = self.inner.templates.made_at_first_use(&lease.template) => {
                tell(handle, ImageProgress::Stage(Stage::Building)).await;
                self.inner.templates.until_first_use(name).await?;
            }
            None => {
                let ask = PullImage { image: reference(&lease.template)?, auth: None, platform: None };
                let pull = self.inner.templates.pull_in_turn(requested_by, ask).await?;
                tell(handle, ImageProgress::Stage(Stage::Pulling)).await;
                pull.landed().await?;
            }
        }
        self.base_of(requested_by, &spec_of(lease, start)).await
    }
}

/// The part of the request that determines the base of a sandbox.
fn spec_of(lease: &Lease, start: &StartRequest) -> CreateSandbox {
    let mounts = lease.mounts.iter().map(|mount| MountAsk {
        volume: mount.volume.to_string(),
        path: mount.path.clone(),
        sub_path: mount.sub_path.clone(),
        read_only: mount.read_only,
    });
    CreateSandbox {
        template: Some(lease.template.clone()),
        provider: Some(lease.provider.clone()),
        user: start.user.clone(),
        workdir: start.workdir.clone(),
        command: start.command.clone(),
        entrypoint: start.entrypoint,
        storage: lease.storage,
        mounts: mounts.collect(),
        private_env: lease.private_env.clone(),
        ..CreateSandbox::default()
    }
}

fn reference(image: &str) -> Result<TemplateRef, ServiceError> {
    image.parse().map_err(|bad: atoll_model::BadTemplateRef| ServiceError::field("image", bad.to_string()))
}

/// Informs the driver. An error means that the driver ended: with the sandbox, or with the server.
async fn tell(handle: &Handle, progress: ImageProgress) {
    let _ = handle.mailbox.send(DriverMessage::Image(progress).into()).await;
}
