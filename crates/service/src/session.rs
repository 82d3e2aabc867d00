//! The session of a running sandbox, which a front, the toolbox and the proxy hold while they use it.
//!
//! The service authorises the caller and wakes the sandbox before it makes a session. While a session is held, the sandbox
//! counts as busy. A session belongs to the processes that ran when it began: it outlives a pause and a restore of their
//! memory, and every call fails once they have ended. Calls wait while the sandbox is paused; only [`SandboxSession::wake`]
//! wakes it.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_agentapi::{
    AgentClient, AgentError, AgentSource, ByteStream, Forwarded, ProcessStream, SetupLocks,
};
use atoll_budget::Account;
use atoll_model::{Code, InstanceId, Isolation, Lease};
use atoll_provider::{ProviderError, Target};
use futures::Stream;
use futures::stream::BoxStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::ServiceError;
use crate::activity::{Busy, during};
use crate::agent::{AgentOperation, refusal};
use crate::follow::Follow;
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{Sandboxes, SandboxesState};
use crate::wake::awake;

/// A running sandbox. Cloning is cheap.
#[derive(Clone)]
pub struct SandboxSession {
    /// The lease as it was when the session began.
    pub lease: Arc<Lease>,
    /// The tenant's part of the byte budget: it is charged for bytes that are held for the sandbox's users.
    pub account: Account,
    pub(crate) handle: Handle,
    pub(crate) inner: Arc<SandboxesState>,
    epoch: u64,
    root_files: bool,
    busy: Arc<Busy>,
    /// Its place among the sessions that are held by a pass.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

impl std::fmt::Debug for SandboxSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxSession").field("sandbox", &self.lease.id).finish_non_exhaustive()
    }
}

impl Sandboxes {
    pub(crate) fn session_with(&self, lease: Arc<Lease>, handle: Handle, busy: Busy) -> SandboxSession {
        SandboxSession {
            account: self.inner.budget.tenant(&lease.tenant),
            lease,
            epoch: handle.activity.epoch(),
            handle,
            inner: Arc::clone(&self.inner),
            root_files: false,
            busy: Arc::new(busy),
            _place: None,
        }
    }
}

impl SandboxSession {
    /// The same session, which takes a place for as long as it is held.
    pub(crate) fn in_place(self, place: OwnedSemaphorePermit) -> Self {
        Self { _place: Some(Arc::new(place)), ..self }
    }

    /// The same session, whose file operations have the rights of the sandbox's root. New files belong to the user.
    #[must_use]
    pub fn with_root_files(&self) -> Self {
        Self { root_files: true, ..self.clone() }
    }

    /// Wakes the sandbox if it was paused since the session began.
    pub async fn wake(&self) -> Result<(), ServiceError> {
        awake(&self.inner, &self.handle).await?;
        if self.is_over() {
            return Err(ServiceError::new(Code::ProcessNotFound, "the processes of the session have ended"));
        }
        Ok(())
    }

    /// The agent, for the service's own work in the sandbox.
    pub(crate) async fn agent(&self) -> Result<AgentClient, ServiceError> {
        self.agent_client().await.map_err(|error| refusal(AgentOperation::Process, error))
    }

    /// Forwards an HTTP request to the agent.
    pub async fn forward<B>(&self, request: http::Request<B>) -> Result<http::Response<Forwarded>, AgentError>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.agent_client().await?.forward(request).await
    }

    /// Whether the agent answers.
    pub async fn health(&self) -> Result<(), AgentError> {
        self.agent_client().await?.health().await
    }

    /// A stream that keeps the sandbox busy until it ends or is dropped.
    pub(crate) fn during<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = T> + Send + 'static,
    ) -> BoxStream<'static, T> {
        during(Arc::clone(&self.busy), stream)
    }

    fn is_over(&self) -> bool {
        self.handle.activity.epoch() != self.epoch
    }

    /// The state of the sandbox once it is not paused.
    async fn resumed(&self) -> Result<DriverState, AgentError> {
        let mut state = self.handle.state.clone();
        let is_resumed = |state: &DriverState| !state.lease.phase.is_suspended();
        let state = state.wait_for(is_resumed).await.map_err(|_| AgentError::Ended)?.clone();
        if self.is_over() { Err(AgentError::Ended) } else { Ok(state) }
    }
}

#[async_trait]
impl AgentSource for SandboxSession {
    async fn agent_client(&self) -> Result<AgentClient, AgentError> {
        let agent = self.resumed().await?.agent.ok_or(AgentError::Ended)?;
        let agent = agent.with_pulse(self.handle.activity.pulse());
        Ok(if self.root_files { agent.with_root_files() } else { agent })
    }

    async fn dial_port(&self, port: u16) -> Result<Box<dyn ByteStream>, AgentError> {
        let lease = self.resumed().await?.lease;
        let instance: InstanceId = lease.instance.clone().ok_or(AgentError::Ended)?;
        let target = Target { sandbox: lease.id.clone(), instance: Some(instance) };
        let provider = self
            .inner
            .providers
            .of(&lease)
            .map_err(|error| AgentError::Connect(std::io::Error::other(error)))?;
        provider.dial(&target, port).await.map_err(|error| match error {
            ProviderError::PortClosed { port } => AgentError::PortClosed { port },
            other => AgentError::Connect(std::io::Error::other(other)),
        })
    }

    fn own_temporary_folder(&self) -> String {
        match self.lease.isolation {
            Isolation::None => atoll_agentapi::host_temporary_folder(self.lease.id.as_str()),
            Isolation::Container | Isolation::Vm | Isolation::Vendor => "/tmp".to_owned(),
        }
    }

    fn keep_following(&self, pid: u32, stream: ProcessStream) -> ProcessStream {
        ProcessStream::new(Follow::new(self.handle.clone(), Arc::clone(&self.busy), pid, stream))
    }

    fn shared_locks(&self) -> SetupLocks {
        self.handle.setup_locks.clone()
    }
}
