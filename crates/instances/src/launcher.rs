//! What an engine has to implement.

use std::fmt;
use std::io;
use std::sync::Arc;

use atoll_agentapi::{AgentClient, InitRequest};
use atoll_model::{Limits, SandboxId};
use atoll_provider::{Booted, InstanceSpec, NoticeKind, ProviderError};

use crate::{Instances, PoolKey, RemainsCleaner, SandboxSlot};

/// Whether the files of a sandbox exist before a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilesState {
    /// The start makes them.
    New,
    /// Left by an earlier instance.
    Kept,
}

/// A running instance, as an engine holds it.
pub trait RunningInstance: fmt::Debug + Send + Sync + 'static {
    /// Marks the end of the instance as caused by the server, so that its death is not reported.
    fn expect_end(&self);

    /// Whether the server ends the instance itself.
    fn is_ending(&self) -> bool;

    /// Whether no process of the instance runs.
    fn is_dead(&self) -> io::Result<bool>;

    /// Waits until no process of the instance runs.
    fn dead(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// An instance of the pool.
pub trait ReadyInstance: fmt::Debug + Send + 'static {
    /// Unique among the instances of an engine.
    fn name(&self) -> &str;
}

/// What an ended instance of an engine leaves.
pub type RemainsOf<L> = <<L as InstanceLauncher>::Cleaner as RemainsCleaner>::Remains;

/// Starts and ends instances of one kind: namespaces, a microVM. An engine implements it, owns an [`Instances`], and
/// gets turns, pool, reaper and watchers from there.
pub trait InstanceLauncher: Send + Sync + Sized + 'static {
    /// A running instance with everything that the engine holds of it.
    type Instance: RunningInstance;
    /// An instance that waits to be claimed.
    type Ready: ReadyInstance;
    /// Removes what ended instances leave.
    type Cleaner: RemainsCleaner;

    /// The bookkeeping of this engine.
    fn instances(&self) -> &Instances<Self>;

    /// Starts the instance of a sandbox, from the pool or cold, in the sandbox's turn. Gives up with
    /// [`ProviderError::Gone`] when the slot is doomed. On an error, everything that was made is with the reaper.
    ///
    /// The future is never dropped before its end.
    fn launch(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
        slot: &Arc<SandboxSlot<Self::Instance>>,
    ) -> impl Future<Output = Result<(Arc<Self::Instance>, Booted), ProviderError>> + Send;

    /// Makes an instance unreachable and kills it, frozen or not. Does not wait for its death.
    fn kill(&self, instance: &Arc<Self::Instance>) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// What is left to remove of a killed instance, without the files of its sandbox.
    fn remains(&self, instance: &Self::Instance) -> Result<RemainsOf<Self>, ProviderError>;

    /// Removes the memory that a sandbox has on disk, so that no later start uses it.
    fn remove_memory(&self, sandbox: &SandboxId) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Removes the files of a sandbox whose instance was ended. Their name is free when this returns; the reaper removes them later
    /// under a name that is never used again.
    fn remove_files(&self, sandbox: &SandboxId) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// An event of the instance that was not reported before, such as a process that the kernel ended for lack of
    /// memory. Also asked right before a death is reported: a listener should learn the cause first.
    fn new_event(&self, instance: &Self::Instance) -> Option<NoticeKind>;

    /// Makes an instance for a pool: running, with an agent that answers, without network.
    fn make_ready(
        self: &Arc<Self>,
        key: &PoolKey,
    ) -> impl Future<Output = Result<Self::Ready, ProviderError>> + Send;

    /// Freezes an instance of the pool. One that cannot be frozen is discarded.
    fn freeze_ready(
        &self,
        ready: Self::Ready,
    ) -> impl Future<Output = Result<Self::Ready, ProviderError>> + Send;

    /// The agent of an instance of the pool, and the settings with which it is prepared.
    fn agent_of(self: &Arc<Self>, ready: &Self::Ready) -> io::Result<(AgentClient, InitRequest)>;

    /// As [`InstanceLauncher::freeze_ready`], for an instance whose preparation has ended.
    fn freeze_prepared(
        &self,
        ready: Self::Ready,
    ) -> impl Future<Output = Result<Self::Ready, ProviderError>> + Send;

    /// Whether an instance of the pool is of this version of the template, and still as it was made.
    fn is_usable(&self, ready: &Self::Ready, version: &str) -> bool;

    /// Whether the processes of an instance of the pool leave room within these limits.
    fn has_room(&self, ready: &Self::Ready, limits: &Limits) -> bool;

    /// Ends an instance that will not be claimed.
    fn discard(&self, ready: Self::Ready);
}
