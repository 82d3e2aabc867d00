//! The optional parts of a provider. A provider implements the ones that it can, and answers itself in the matching method of
//! [`Provider`](crate::Provider); all others answer [`ProviderError::MissingCapability`].

use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, MemoryLocation, SnapshotId, VolumeId};
use tokio::sync::broadcast;

use crate::{
    Booted, ByteStream, Egressed, InstanceSpec, Packed, PoolWish, ProviderError, RolledBack, Snapshotted,
    Target, VolumeFiles,
};

/// Connections to ports inside an instance.
#[async_trait]
pub trait DialSupport: Send + Sync {
    /// A byte stream to a port inside, also to servers that listen on loopback only. With
    /// [`DialMode::Http`](crate::DialMode::Http) the caller speaks HTTP/1.1 on it.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError>;

    /// Takes the connections that programs inside make to `127.0.0.1:port` there. `None`: a program inside has the port, and keeps
    /// it. A provider that cannot do this keeps the default.
    async fn listen(
        &self,
        _target: &Target,
        port: u16,
    ) -> Result<Option<Box<dyn InsideListener>>, ProviderError> {
        Err(ProviderError::Unsupported {
            what: format!("answering port {port} inside a sandbox"),
            hint: "use the provider container".into(),
        })
    }
}

/// Connections that programs inside an instance make to one port. Dropping it gives the port back.
#[async_trait]
pub trait InsideListener: Send {
    /// The next connection; `None` when the instance has ended. Cancel-safe.
    async fn accept(&mut self) -> Option<Box<dyn ByteStream>>;
}

/// Changing the limits of a live instance, or of its files alone.
#[async_trait]
pub trait ResizeSupport: Send + Sync {
    /// Changes the limits of a live instance (or of the files alone).
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError>;
}

/// Freezing an instance with its memory.
#[async_trait]
pub trait PauseSupport: Send + Sync {
    /// Freezes every process where it stands; memory stays, connections stay. Answers when all stand still. Idempotent; one
    /// that is checkpointed stays so. [`MemoryLocation`] says where the memory is.
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError>;

    /// Thaws a frozen instance. Idempotent. On error it is frozen as before.
    async fn resume(&self, target: &Target) -> Result<(), ProviderError>;
}

/// The memory of a frozen instance on disk.
#[async_trait]
pub trait CheckpointSupport: Send + Sync {
    /// Brings the memory of a frozen instance to disk, checks it, and only then ends the processes. Idempotent. On error, and
    /// when it is dropped half way, it is frozen as before. When it returns the checkpoint survives a crash of the host.
    async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError>;

    /// Makes a new instance, named by the spec, from the sandbox's checkpoint; returns when its agent takes connections. The
    /// checkpoint is spent at the moment when its processes run again, and not before. On error it is as it was.
    async fn restore(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;
}

/// Snapshots of files, and of processes where the provider also has [`CheckpointSupport`].
#[async_trait]
pub trait SnapshotSupport: Send + Sync {
    /// Keeps the sandbox at this moment under a name of its own: files, and with `memory` the processes. A running one stands
    /// still meanwhile and runs on. Nobody else changes the sandbox at the same time. On error nothing is left.
    async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError>;

    /// Reads all of a snapshot and says whether it is whole; [`ProviderError::Damaged`] if not. Every use makes a quick check
    /// by itself.
    async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError>;

    /// Removes a snapshot. Idempotent.
    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError>;

    /// Ends the instance, if there is one, and puts the files (and where the snapshot has them, the processes, as a checkpoint)
    /// back to a snapshot. Idempotent; after a crash the files are the old or the new ones, never a mixture.
    async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError>;
}

/// The files of a halted sandbox as a stream, for object storage.
#[async_trait]
pub trait ArchiveSupport: Send + Sync {
    /// The files of a halted sandbox as one stream that [`ArchiveSupport::unpack`] of any machine understands.
    async fn pack(&self, target: &Target) -> Result<Packed, ProviderError>;

    /// Refuses with [`ProviderError::TooLargeToPack`] files that [`ArchiveSupport::unpack`] could not make again within these
    /// limits. Of a sandbox that is not halted it is an estimate.
    async fn check_pack(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let (_, _) = (target, limits);
        Ok(())
    }

    /// Makes the files of a sandbox from such a stream. All or nothing: on error and after a crash there are none.
    async fn unpack(&self, target: &Target, limits: &Limits, files: Packed) -> Result<(), ProviderError>;
}

/// The changes of a halted sandbox as a layer of an image, for builds.
#[async_trait]
pub trait CaptureSupport: Send + Sync {
    /// What a halted sandbox changed over its template, as the tar of an OCI layer: whiteouts, hard links, xattrs and
    /// canonical ids. One that did nothing gives an empty layer. A name that no layer can tell fails the stream, which says
    /// which.
    async fn capture(
        &self,
        target: &Target,
        template: &str,
        template_version: &str,
    ) -> Result<Packed, ProviderError>;
}

/// Folders that outlive sandboxes and are mounted into them.
#[async_trait]
pub trait VolumeSupport: Send + Sync {
    /// Makes an empty volume of at most so many MiB; `None`: it has no limit of its own. Idempotent. All or nothing.
    async fn create_volume(&self, volume: &VolumeId, size_mib: Option<u32>) -> Result<(), ProviderError>;

    /// Makes a volume with the files of another as they are at this moment; `size_mib` is its own, and
    /// [`ProviderError::BelowUse`] where that is below what it begins with. All or nothing.
    async fn copy_volume(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError>;

    /// Changes how much it may hold; [`ProviderError::BelowUse`] below what it does.
    async fn resize_volume(&self, volume: &VolumeId, size_mib: u32) -> Result<(), ProviderError>;

    /// Bytes in use.
    async fn volume_bytes(&self, volume: &VolumeId) -> Result<u64, ProviderError>;

    /// Removes it with its files. Idempotent. The caller makes sure that no sandbox mounts it.
    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError>;

    /// Its files, without a sandbox.
    async fn volume_files(&self, volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError>;

    /// After a restart: removes what an interrupted create or copy left, and volumes that are not in `known`.
    async fn sweep_volumes(&self, known: Vec<VolumeId>) -> Result<(), ProviderError>;
}

/// Enforcing what an instance may reach.
#[async_trait]
pub trait EgressSupport: Send + Sync {
    /// Changes what a live instance may reach. Connections that are still allowed go on.
    async fn set_network(&self, target: &Target, egress: Arc<Egress>) -> Result<(), ProviderError>;

    /// The certificate authority that a sandbox has to trust for its requests to be changed on their way; PEM.
    /// `None`: nothing is changed, or this provider cannot. The same egress always has the same.
    fn authority(&self, egress: &Egress) -> Option<String>;

    /// Decisions about outgoing connections, as they happen.
    fn egress(&self) -> broadcast::Receiver<Egressed>;
}

/// Instances that are started before they are needed.
#[async_trait]
pub trait PoolSupport: Send + Sync {
    /// Which instances to keep ready, beside those of the configuration. Replaces the earlier request.
    async fn wish_pool(&self, wishes: Vec<PoolWish>);

    /// How many instances of a template's version are ready now.
    fn pooled(&self, template: &str, version: &str) -> usize;
}
