//! Where instances live: the [`Provider`] trait, its conformance suite, and a fake for tests.
//!
//! A provider makes and operates instances of sandboxes. It has no policy: the service decides whether a sandbox may be
//! created, when it ends and what it may reach.
//!
//! ```text
//! create ──► instance ──► halt ──► (files only) ──► boot ──► next instance
//!               │ ▲                       │ ▲
//!               │ │ resume                │ └─ unpack ◄─ (archive) ◄─ pack, destroy
//!         pause ▼ │                       └─── rollback to a snapshot
//!             frozen ──► checkpoint ──► (files and memory on disk) ──► restore ──► next instance
//!
//! destroy is legal at any time and idempotent
//! ```
//!
//! - A *sandbox* owns files; an *instance* owns processes. `halt` ends the instance and keeps the files.
//! - Every call names its instance. A provider that no longer has it returns [`ProviderError::Gone`].
//! - The data that the provider needs to find an instance again after a crash is in [`Booted::facts`]; the service
//!   stores it and passes it to [`Provider::adopt`].
//! - When `halt` or `destroy` returns, the instance is unreachable and runs no more code. Slow removals continue in the
//!   background and survive a restart; [`Provider::settle`] waits for them.

#![warn(missing_docs, reason = "implementors of the trait read only these comments")]

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod fake;

mod capability;
mod disk_figures;
mod error;
mod instance;
mod session;
mod stored_files;
pub mod support;
mod verbs;
mod volume;

use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, SandboxId, SnapshotId};
use tokio::sync::broadcast;

pub use atoll_agentapi::ByteStream;
pub use atoll_model::Isolation;
pub use capability::{Capabilities, Capability, DialMode, ProviderDescription};
pub use disk_figures::{DiskFigures, WALK_LIMIT};
pub use error::ProviderError;
pub use instance::*;
pub use session::{
    FileContent, FileStream, ProcessOutput, ProcessSpec, RunningProcess, SessionSupport, StartedProcess,
};
pub use stored_files::{PoolSize, StoredFiles, StoredInventory, StoredKind};
pub use support::*;
pub use volume::{VolumeEntry, VolumeEntryKind, VolumeFiles, VolumeOwner};

/// Where instances live. Implementers: pass [`conformance`], hold no policy, never block the runtime.
///
/// The base is what every provider must do. Each `…_support` method answers one optional part (see [`support`]); callers use the
/// verbs of the parts directly on `dyn Provider`, which refuses a missing part.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Its name in requests and leases, unique in a server: `container`, `fake`, …
    fn name(&self) -> &'static str;

    /// What it is; providers of one kind differ in name only.
    fn kind(&self) -> &'static str {
        self.name()
    }

    /// What it says about itself to people who choose a provider.
    fn description(&self) -> ProviderDescription;

    /// What it can do on this machine. A part whose capability is missing is refused with
    /// [`ProviderError::MissingCapability`].
    fn capabilities(&self) -> Capabilities;

    /// Refuses what no instance of this provider can obey or have. The service asks before it records a sandbox or a policy, so that
    /// a refused request leaves nothing. Does no I/O.
    fn check_demands(&self, _demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Makes the files and the first instance of a sandbox; returns when its agent takes connections, or where the provider has
    /// [`SessionSupport`], when commands can be started. The caller greets the agent.
    /// On error nothing is left.
    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Makes a new instance on the files that `halt` left. On an error the files are unchanged.
    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Ends the instance and keeps the files; a checkpoint is removed. Idempotent.
    async fn halt(&self, target: &Target) -> Result<(), ProviderError>;

    /// Ends the instance and removes everything. Idempotent, and allowed at any time, also during `create`.
    async fn destroy(&self, target: &Target) -> Result<(), ProviderError>;

    /// What it uses now.
    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError>;

    /// Whether sandboxes can be made from this version of a template. A provider that cannot use the layers of this server says
    /// whether it has a copy of its own.
    async fn has_template(&self, _template: &str, _version: &str) -> Result<bool, ProviderError> {
        Ok(self.capabilities().layers)
    }

    /// Whether sandboxes are made from images of its own instead of templates of this server ([`Provider::image`]).
    fn has_images(&self) -> bool {
        false
    }

    /// The image of its own that a name means, or its default without a name. `None`: the provider has no images of its own,
    /// and sandboxes are made from the templates of this server. [`ProviderError::NoTemplate`]: it has images, but not this one.
    async fn image(&self, _name: Option<&str>) -> Result<Option<ProviderImage>, ProviderError> {
        Ok(None)
    }

    /// The working directory of a sandbox where each has a folder of its own instead of an image that names one.
    fn workspace(&self, _sandbox: &SandboxId) -> Option<String> {
        None
    }

    /// Whether folders of this machine can be mounted ([`MountSource::Folder`]). Other mounts need the capability `volume`.
    fn binds_folders(&self) -> bool {
        self.capabilities().volumes
    }

    /// Sandboxes that carry the owner label of this server, with the instance that lives, if one does. Whatever carries no such
    /// label belongs to somebody else: it is not listed, and never touched.
    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError>;

    /// After a restart: says what became of each known instance, and removes instances of this server that are not known, at once or
    /// after a grace time.
    /// `snapshots` are all that are wanted. An instance whose restore was under way is named by its new id, with facts `null`:
    /// where the restore had come to its end it is alive, else the checkpoint is as it was.
    ///
    /// The default compares `known` with [`Provider::owned`]. An engine whose instances can be half made or half ended overrides
    /// it.
    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        _snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        let owned = self.owned().await?;
        for stray in owned.iter().filter(|found| !known.iter().any(|known| known.sandbox == found.sandbox)) {
            self.destroy(&Target { sandbox: stray.sandbox.clone(), instance: None }).await?;
        }
        let fate = |sandbox: &SandboxId, instance: &InstanceId| {
            let found = owned.iter().find(|found| {
                found.sandbox == *sandbox && found.instance.as_ref().is_some_and(|(live, _)| live == instance)
            });
            match found.and_then(|found| found.instance.as_ref()) {
                Some((_, InstanceActivity::Running)) => AdoptionOutcome::Alive,
                Some((_, InstanceActivity::Paused)) => AdoptionOutcome::Frozen,
                None => AdoptionOutcome::Gone,
            }
        };
        let adopted = known.iter().filter_map(|known| {
            let (instance, _) = known.instance.as_ref()?;
            Some(Adopted { instance: instance.clone(), fate: fate(&known.sandbox, instance), facts: None })
        });
        Ok(adopted.collect())
    }

    /// Spontaneous events of instances.
    fn notices(&self) -> broadcast::Receiver<Notice>;

    /// The capacity of this node; the service fills in `live`, `memory_limits_mib`, `live_max` and `overcommit`.
    async fn node(&self) -> Result<Node, ProviderError>;

    /// Looks whether a sandbox of the settings' defaults could be created now, for a test of the settings. Makes nothing.
    async fn check(&self) -> Result<(), ProviderError> {
        self.node().await.map(drop)
    }

    /// What it keeps on the disk of this machine. `None`: nothing, or it is not measured.
    async fn stored(&self) -> Result<Option<StoredInventory>, ProviderError> {
        Ok(None)
    }

    /// Waits until slow removals are done, or the deadline passes.
    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError>;

    /// Commands and files by the provider's own calls, where no agent of Atoll's runs in its instances.
    fn session_support(&self) -> Result<&dyn SessionSupport, ProviderError> {
        Err(self.missing(Capability::Session))
    }

    /// Connections to ports inside an instance.
    fn dial_support(&self) -> Result<&dyn DialSupport, ProviderError> {
        Err(self.missing(Capability::Dial))
    }

    /// Changing the limits of a live instance, or of its files alone.
    fn resize_support(&self) -> Result<&dyn ResizeSupport, ProviderError> {
        Err(self.missing(Capability::Resize))
    }

    /// Freezing an instance with its memory.
    fn pause_support(&self) -> Result<&dyn PauseSupport, ProviderError> {
        Err(self.missing(Capability::Pause))
    }

    /// The memory of a frozen instance on disk.
    fn checkpoint_support(&self) -> Result<&dyn CheckpointSupport, ProviderError> {
        Err(self.missing(Capability::Checkpoint))
    }

    /// Snapshots of files, and of processes where the provider also has [`CheckpointSupport`].
    fn snapshot_support(&self) -> Result<&dyn SnapshotSupport, ProviderError> {
        Err(self.missing(Capability::Snapshot))
    }

    /// The files of a halted sandbox as a stream, for object storage.
    fn archive_support(&self) -> Result<&dyn ArchiveSupport, ProviderError> {
        Err(self.missing(Capability::Archive))
    }

    /// The changes of a halted sandbox as a layer of an image, for builds.
    fn capture_support(&self) -> Result<&dyn CaptureSupport, ProviderError> {
        Err(self.missing(Capability::Capture))
    }

    /// Folders that outlive sandboxes and are mounted into them.
    fn volume_support(&self) -> Result<&dyn VolumeSupport, ProviderError> {
        Err(self.missing(Capability::Volume))
    }

    /// Enforcing what an instance may reach.
    fn egress_support(&self) -> Result<&dyn EgressSupport, ProviderError> {
        Err(self.missing(Capability::Egress))
    }

    /// Instances that are started before they are needed.
    fn pool_support(&self) -> Result<&dyn PoolSupport, ProviderError> {
        Err(self.missing(Capability::Pool))
    }

    /// The refusal of a capability that this provider lacks.
    fn missing(&self, capability: Capability) -> ProviderError {
        missing_capability(self.name(), capability)
    }
}

/// The refusal of a capability that no setting of this machine would give to a provider.
#[must_use]
pub fn missing_capability(provider: &'static str, capability: Capability) -> ProviderError {
    ProviderError::MissingCapability {
        provider,
        capability,
        hint: "choose a provider that has it; `atoll provider ls --wide` shows what each can do".into(),
    }
}

/// The port on which the agent listens inside every sandbox.
pub const AGENT_PORT: u16 = 49_983;
