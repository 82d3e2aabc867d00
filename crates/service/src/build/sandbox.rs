//! The sandbox of one step: created from a version, used through its agent, halted, and deleted when the step ends. It
//! is a sandbox of the tenant like any other: quota, network policy and limits apply.

use std::sync::Arc;

use atoll_agentapi::AgentClient;
use atoll_model::{
    BuildId, Code, CreateSandbox, Lease, OnTimeout, Phase, Principal, Reason, TemplateRef, Wake,
};
use atoll_provider::{Packed, Target};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::ServiceError;
use crate::activity::ActivityKind;
use crate::base::shutting_down;
use crate::driver::{Action, DriverMessage};
use crate::registry::Handle;
use crate::sandboxes::{EndWait, Sandboxes, ask, is_under_way, tell};
use crate::session::SandboxSession;

/// Creates the sandboxes of one build, and ensures that none is left.
#[derive(Clone)]
pub(super) struct BuildSandboxes {
    pub(super) sandboxes: Sandboxes,
    pub(super) who: Principal,
    pub(super) build: BuildId,
    /// Running creates: they are never dropped, so that each sandbox is known when the build ends.
    creates: TaskTracker,
}

/// A running sandbox of a build. It is deleted when this is dropped.
pub(super) struct StepSandbox {
    sandboxes: Sandboxes,
    handle: Handle,
    pub(super) agent: AgentClient,
    /// Keeps the sandbox busy, so that no timer acts on it.
    _session: SandboxSession,
}

impl BuildSandboxes {
    pub(super) fn new(sandboxes: Sandboxes, who: Principal, build: BuildId) -> Self {
        Self { sandboxes, who, build, creates: TaskTracker::new() }
    }

    /// Creates one and waits until it runs.
    pub(super) async fn make(&self, spec: CreateSandbox) -> Result<StepSandbox, ServiceError> {
        let own = self.clone();
        let spec = CreateSandbox {
            build: Some(self.build.clone()),
            provider: Some(self.sandboxes.inner.providers.for_builds().name().to_owned()),
            on_timeout: OnTimeout::Delete,
            wake: Wake::Explicit,
            ..spec
        };
        let create = self.creates.track_future(async move {
            let (lease, _) = own.sandboxes.create(&own.who, spec, false).await?;
            own.sandboxes.handle(&lease.id).ok_or_else(shutting_down)
        });
        let handle = self.sandboxes.inner.spawn(create).await.ok().flatten().ok_or_else(shutting_down)??;
        let mut guard = Deleted { handle: Some(handle.clone()) };
        self.sandboxes.until_made(handle.clone()).await?;
        let session = self.sandboxes.session_by(handle.clone(), ActivityKind::Command).await?;
        let agent = session.agent().await?;
        guard.handle = None;
        Ok(StepSandbox { sandboxes: self.sandboxes.clone(), handle, agent, _session: session })
    }

    /// Deletes all remaining sandboxes, and waits for that.
    pub(super) async fn clear(&self) {
        self.creates.close();
        self.creates.wait().await;
        let all = self.sandboxes.handles();
        let own = all.into_iter().filter(|handle| handle.lease().build.as_ref() == Some(&self.build));
        futures::future::join_all(own.map(|handle| async move {
            delete(&handle);
            let gone = self
                .sandboxes
                .until_within(handle.clone(), EndWait::Boot, |state| state.lease.phase == Phase::Deleted);
            if let Err(error) = gone.await
                && handle.lease().phase != Phase::Deleted
            {
                tracing::warn!(sandbox = %handle.lease().id, %error, "a sandbox of a build is not deleted yet");
            }
        }))
        .await;
    }
}

impl StepSandbox {
    pub(super) fn lease(&self) -> Arc<Lease> {
        self.handle.lease()
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(super) fn target(&self) -> Target {
        let lease = self.handle.lease();
        Target { sandbox: lease.id.clone(), instance: lease.instance.clone() }
    }

    /// Halts the sandbox and returns its changes; the sandbox must be kept until they are read.
    pub(super) async fn changes(&self) -> Result<Packed, ServiceError> {
        let handle = &self.handle;
        ask(handle, |reply| DriverMessage::verb(Action::Stop, Reason::Requested, reply)).await?;
        let lease =
            self.sandboxes.until_within(handle.clone(), EndWait::Boot, |state| !is_under_way(state)).await?;
        if lease.phase != Phase::Stopped {
            let failure = handle.state.borrow().failure.clone();
            return Err(failure.unwrap_or_else(|| {
                ServiceError::new(Code::SandboxUnavailable, "the sandbox of this step ended")
            }));
        }
        let target = Target { sandbox: lease.id.clone(), instance: None };
        let provider = self.sandboxes.inner.providers.of(&lease)?;
        Ok(provider.capture(&target, &lease.template, &lease.template_version).await?)
    }
}

impl Drop for StepSandbox {
    fn drop(&mut self) {
        delete(&self.handle);
    }
}

/// Deletes a sandbox that was not used.
struct Deleted {
    handle: Option<Handle>,
}

impl Drop for Deleted {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            delete(handle);
        }
    }
}

/// Requests the deletion without waiting; the end of the build waits.
fn delete(handle: &Handle) {
    let (reply, _) = oneshot::channel();
    if let Err(error) = tell(handle, DriverMessage::verb(Action::Delete, Reason::Completed, reply))
        && handle.lease().phase != Phase::Deleted
    {
        tracing::warn!(sandbox = %handle.lease().id, %error, "a sandbox of a build could not be deleted");
    }
}

/// The reference from which a sandbox is created with exactly this version.
pub(super) fn exactly(name: &str, version: &str) -> String {
    let digest = Some(version.to_owned());
    TemplateRef { name: name.to_owned(), tag: None, digest }.to_string()
}
