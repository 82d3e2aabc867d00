//! Every verb of the optional parts as a method of `dyn Provider`: the part is looked up, and a missing one is refused.

use std::sync::Arc;

use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, MemoryLocation, SnapshotId, VolumeId};
use tokio::sync::broadcast;

use crate::{
    Booted, ByteStream, Egressed, InsideListener, InstanceSpec, Packed, PoolWish, Provider, ProviderError,
    RolledBack, Snapshotted, Target, VolumeFiles,
};

impl dyn Provider {
    /// [`DialSupport::dial`](crate::DialSupport::dial), where the provider has it.
    pub async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        self.dial_support()?.dial(target, port).await
    }

    /// [`DialSupport::listen`](crate::DialSupport::listen), where the provider has it.
    pub async fn listen(
        &self,
        target: &Target,
        port: u16,
    ) -> Result<Option<Box<dyn InsideListener>>, ProviderError> {
        self.dial_support()?.listen(target, port).await
    }

    /// [`ResizeSupport::resize`](crate::ResizeSupport::resize), where the provider has it.
    pub async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        self.resize_support()?.resize(target, limits).await
    }

    /// [`PauseSupport::pause`](crate::PauseSupport::pause), where the provider has it.
    pub async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        self.pause_support()?.pause(target).await
    }

    /// [`PauseSupport::resume`](crate::PauseSupport::resume), where the provider has it.
    pub async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        self.pause_support()?.resume(target).await
    }

    /// [`CheckpointSupport::checkpoint`](crate::CheckpointSupport::checkpoint), where the provider has it.
    pub async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError> {
        self.checkpoint_support()?.checkpoint(target).await
    }

    /// [`CheckpointSupport::restore`](crate::CheckpointSupport::restore), where the provider has it.
    pub async fn restore(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        self.checkpoint_support()?.restore(spec).await
    }

    /// [`SnapshotSupport::snapshot`](crate::SnapshotSupport::snapshot), where the provider has it.
    pub async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        self.snapshot_support()?.snapshot(target, snapshot, memory).await
    }

    /// [`SnapshotSupport::verify_snapshot`](crate::SnapshotSupport::verify_snapshot), where the provider has it.
    pub async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError> {
        self.snapshot_support()?.verify_snapshot(snapshot, seal).await
    }

    /// [`SnapshotSupport::remove_snapshot`](crate::SnapshotSupport::remove_snapshot), where the provider has it.
    pub async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        self.snapshot_support()?.remove_snapshot(snapshot).await
    }

    /// [`SnapshotSupport::rollback`](crate::SnapshotSupport::rollback), where the provider has it.
    pub async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        self.snapshot_support()?.rollback(target, snapshot, seal, limits).await
    }

    /// [`ArchiveSupport::pack`](crate::ArchiveSupport::pack), where the provider has it.
    pub async fn pack(&self, target: &Target) -> Result<Packed, ProviderError> {
        self.archive_support()?.pack(target).await
    }

    /// [`ArchiveSupport::check_pack`](crate::ArchiveSupport::check_pack), where the provider has it.
    pub async fn check_pack(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        self.archive_support()?.check_pack(target, limits).await
    }

    /// [`ArchiveSupport::unpack`](crate::ArchiveSupport::unpack), where the provider has it.
    pub async fn unpack(&self, target: &Target, limits: &Limits, files: Packed) -> Result<(), ProviderError> {
        self.archive_support()?.unpack(target, limits, files).await
    }

    /// [`CaptureSupport::capture`](crate::CaptureSupport::capture), where the provider has it.
    pub async fn capture(
        &self,
        target: &Target,
        template: &str,
        template_version: &str,
    ) -> Result<Packed, ProviderError> {
        self.capture_support()?.capture(target, template, template_version).await
    }

    /// [`VolumeSupport::create_volume`](crate::VolumeSupport::create_volume), where the provider has it.
    pub async fn create_volume(&self, volume: &VolumeId, size_mib: Option<u32>) -> Result<(), ProviderError> {
        self.volume_support()?.create_volume(volume, size_mib).await
    }

    /// [`VolumeSupport::copy_volume`](crate::VolumeSupport::copy_volume), where the provider has it.
    pub async fn copy_volume(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.volume_support()?.copy_volume(from, to, size_mib).await
    }

    /// [`VolumeSupport::resize_volume`](crate::VolumeSupport::resize_volume), where the provider has it.
    pub async fn resize_volume(&self, volume: &VolumeId, size_mib: u32) -> Result<(), ProviderError> {
        self.volume_support()?.resize_volume(volume, size_mib).await
    }

    /// [`VolumeSupport::volume_bytes`](crate::VolumeSupport::volume_bytes), where the provider has it.
    pub async fn volume_bytes(&self, volume: &VolumeId) -> Result<u64, ProviderError> {
        self.volume_support()?.volume_bytes(volume).await
    }

    /// [`VolumeSupport::remove_volume`](crate::VolumeSupport::remove_volume), where the provider has it.
    pub async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        self.volume_support()?.remove_volume(volume).await
    }

    /// [`VolumeSupport::volume_files`](crate::VolumeSupport::volume_files), where the provider has it.
    pub async fn volume_files(&self, volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        self.volume_support()?.volume_files(volume).await
    }

    /// [`VolumeSupport::sweep_volumes`](crate::VolumeSupport::sweep_volumes), where the provider has it.
    pub async fn sweep_volumes(&self, known: Vec<VolumeId>) -> Result<(), ProviderError> {
        match self.volume_support() {
            Ok(volumes) => volumes.sweep_volumes(known).await,
            Err(_) => Ok(()),
        }
    }

    /// [`EgressSupport::set_network`](crate::EgressSupport::set_network), where the provider has it.
    pub async fn set_network(&self, target: &Target, egress: Arc<Egress>) -> Result<(), ProviderError> {
        self.egress_support()?.set_network(target, egress).await
    }

    /// [`EgressSupport::authority`](crate::EgressSupport::authority), where the provider has it.
    pub fn authority(&self, egress: &Egress) -> Option<String> {
        self.egress_support().ok()?.authority(egress)
    }

    /// [`EgressSupport::egress`](crate::EgressSupport::egress), where the provider has it.
    pub fn egress(&self) -> Option<broadcast::Receiver<Egressed>> {
        Some(self.egress_support().ok()?.egress())
    }

    /// [`PoolSupport::wish_pool`](crate::PoolSupport::wish_pool), where the provider has it.
    pub async fn wish_pool(&self, wishes: Vec<PoolWish>) {
        if let Ok(pool) = self.pool_support() {
            pool.wish_pool(wishes).await;
        }
    }

    /// [`PoolSupport::pooled`](crate::PoolSupport::pooled), where the provider has it.
    pub fn pooled(&self, template: &str, version: &str) -> usize {
        self.pool_support().map_or(0, |pool| pool.pooled(template, version))
    }
}
