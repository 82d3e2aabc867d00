//! The optional parts of a provider that the engine has: all of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_instances::{Instances, RunningInstance};
use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, MemoryLocation, SnapshotId, VolumeId};
use atoll_network::DialError;
use atoll_provider::{
    ArchiveSupport, Booted, ByteStream, CaptureSupport, CheckpointSupport, DialSupport, EgressSupport,
    Egressed, InsideListener, InstanceSpec, Packed, PauseSupport, PoolSupport, PoolWish, ProviderError,
    ResizeSupport, RolledBack, SnapshotSupport, Snapshotted, Target, VolumeFiles, VolumeSupport,
};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use super::instance::Live;
use super::{Engine, failed};

/// LIMIT: a connection inside the machine.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// LIMIT: when descriptors run out, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[async_trait]
impl DialSupport for Engine {
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let live = self.inner.instances.live(target)?;
        match self.inner.dialer.dial(live.netns(), port, DIAL_WITHIN).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(DialError::Refused { port }) => Err(ProviderError::PortClosed { port }),
            Err(DialError::TimedOut { port }) => {
                Err(ProviderError::Late { what: format!("connecting to port {port}"), after: DIAL_WITHIN })
            }
            Err(DialError::Busy) => Err(ProviderError::Exhausted { what: "room for connections".into() }),
            Err(other @ DialError::Failed { .. }) => Err(failed("connecting")(other)),
        }
    }

    async fn listen(
        &self,
        target: &Target,
        port: u16,
    ) -> Result<Option<Box<dyn InsideListener>>, ProviderError> {
        let live = self.inner.instances.live(target)?;
        let listener =
            self.inner.dialer.listen(live.netns(), port).await.map_err(failed("listening inside"))?;
        Ok(listener.map(|listener| Box::new(InstanceListener { listener, live }) as Box<dyn InsideListener>))
    }
}

/// Ends with its instance, whose network namespace it keeps.
struct InstanceListener {
    listener: TcpListener,
    live: Arc<Live>,
}

#[async_trait]
impl InsideListener for InstanceListener {
    async fn accept(&mut self) -> Option<Box<dyn ByteStream>> {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.live.dead() => return None,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    // Best effort: without it answers are only slower.
                    let _ = stream.set_nodelay(true);
                    return Some(Box::new(stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection from inside a sandbox");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

#[async_trait]
impl ResizeSupport for Engine {
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        self.inner.resize(target, limits).await
    }
}

#[async_trait]
impl PauseSupport for Engine {
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        self.inner.pause(target).await
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        self.inner.resume(target).await
    }
}

#[async_trait]
impl CheckpointSupport for Engine {
    async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError> {
        self.inner.checkpoint(target).await
    }

    async fn restore(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        self.inner.restore(spec).await
    }
}

#[async_trait]
impl SnapshotSupport for Engine {
    async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        self.inner.snapshot(target, snapshot, memory).await
    }

    async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError> {
        self.inner.verify_snapshot(snapshot, seal).await
    }

    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        self.inner.remove_snapshot(snapshot).await
    }

    async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        self.inner.rollback(target, snapshot, seal, limits).await
    }
}

#[async_trait]
impl ArchiveSupport for Engine {
    async fn pack(&self, target: &Target) -> Result<Packed, ProviderError> {
        self.inner.pack(target).await
    }

    async fn check_pack(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        self.inner.check_pack(target, limits).await
    }

    async fn unpack(&self, target: &Target, limits: &Limits, files: Packed) -> Result<(), ProviderError> {
        self.inner.unpack(target, limits, files).await
    }
}

#[async_trait]
impl CaptureSupport for Engine {
    async fn capture(
        &self,
        target: &Target,
        template: &str,
        template_version: &str,
    ) -> Result<Packed, ProviderError> {
        self.inner.capture(target, template, template_version).await
    }
}

#[async_trait]
impl VolumeSupport for Engine {
    async fn create_volume(&self, volume: &VolumeId, size_mib: Option<u32>) -> Result<(), ProviderError> {
        self.inner.create_volume(volume, size_mib).await
    }

    async fn copy_volume(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.inner.copy_volume(from, to, size_mib).await
    }

    async fn resize_volume(&self, volume: &VolumeId, size_mib: u32) -> Result<(), ProviderError> {
        self.inner.resize_volume(volume, size_mib).await
    }

    async fn volume_bytes(&self, volume: &VolumeId) -> Result<u64, ProviderError> {
        self.inner.volume_bytes(volume).await
    }

    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        self.inner.remove_volume(volume).await
    }

    async fn volume_files(&self, volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        self.inner.volume_files(volume).await
    }

    async fn sweep_volumes(&self, known: Vec<VolumeId>) -> Result<(), ProviderError> {
        self.inner.sweep_volumes(known).await
    }
}

#[async_trait]
impl EgressSupport for Engine {
    async fn set_network(&self, target: &Target, egress: Arc<Egress>) -> Result<(), ProviderError> {
        let live = self.inner.instances.live(target)?;
        let Some(link) = live.facts.link else { return Ok(()) };
        self.inner.need_ipv6(&egress).await?;
        let (resources, sandbox) = (Arc::clone(&self.inner.resources), target.sandbox.clone());
        let work = move || {
            resources.networks.change(link, &sandbox, &egress, live.netns()).map_err(std::io::Error::other)
        };
        self.inner.blocking.run(work).await.map_err(failed("changing the network policy"))
    }

    fn authority(&self, egress: &Egress) -> Option<String> {
        let seed = egress.seed.as_ref().filter(|_| egress.rewrites())?;
        Some(atoll_network::authority(seed))
    }

    fn egress(&self) -> broadcast::Receiver<Egressed> {
        self.inner.egressed.subscribe()
    }
}

#[async_trait]
impl PoolSupport for Engine {
    async fn wish_pool(&self, wishes: Vec<PoolWish>) {
        Instances::wish_pools(&*self.inner, wishes);
    }

    fn pooled(&self, template: &str, version: &str) -> usize {
        let stats = self.inner.instances.pool_stats().into_iter();
        let of = stats.filter(|pool| pool.template == template && pool.version.as_deref() == Some(version));
        of.map(|pool| pool.ready).sum()
    }
}
