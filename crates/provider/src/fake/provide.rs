//! The fake as a provider: each call runs its script and then changes the state.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::policy::placement::Node;
use std::sync::Arc;

use atoll_model::policy::egress::Egress;
use atoll_model::{Limits, MemoryLocation, SnapshotId, VolumeId};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::broadcast;

use super::world::failed;
use super::{After, FakeProvider, ProviderCall, agent};
use crate::{
    Adopted, ArchiveSupport, Booted, ByteStream, Capabilities, Capability, CaptureSupport, CheckpointSupport,
    DialSupport, EgressSupport, FilesOrigin, InstanceDemands, InstanceSpec, InstanceUsage, Isolation,
    KnownSandbox, Notice, OwnedSandbox, Packed, PauseSupport, PoolSupport, PoolWish, Provider,
    ProviderDescription, ProviderError, ResizeSupport, RolledBack, SnapshotSupport, Snapshotted, Target,
    VolumeFiles, VolumeSupport,
};

#[async_trait]
impl Provider for FakeProvider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> &'static str {
        "fake"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription { isolation: Isolation::None, cost: "free", best_for: "tests" }
    }

    fn capabilities(&self) -> Capabilities {
        *self.able.lock().unwrap()
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        if let FilesOrigin::Snapshot { memory, .. } = &spec.origin {
            self.need(Capability::Snapshot)?;
            self.need_memory(*memory)?;
        }
        let after = self.play(ProviderCall::Create, spec.sandbox.as_str()).await?;
        let booted = self.world.lock().unwrap().create(spec)?;
        if after == After::Fail {
            self.world.lock().unwrap().sandboxes.remove(&spec.sandbox);
        }
        self.end(after, booted).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let after = self.play(ProviderCall::Boot, spec.sandbox.as_str()).await?;
        let booted = self.world.lock().unwrap().boot(spec)?;
        if after == After::Fail {
            self.kill(&spec.sandbox, false);
        }
        self.end(after, booted).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::Halt, target.sandbox.as_str()).await?;
        self.world.lock().unwrap().halt(target);
        self.end(after, ()).await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::Destroy, target.sandbox.as_str()).await?;
        self.world.lock().unwrap().sandboxes.remove(&target.sandbox);
        self.end(after, ()).await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        self.world.lock().unwrap().usage(target)
    }

    /// Without the capability an instance has all of the network or none of it, as it was made.
    fn check_demands(&self, demands: &InstanceDemands<'_>) -> Result<(), ProviderError> {
        let made_with = demands.made_with.unwrap_or(demands.network);
        let is_closed = made_with.denied_by.is_some() || *made_with == Egress::closed();
        if self.capabilities().network || is_closed || *demands.network == Egress::open() {
            return Ok(());
        }
        Err(self.missing(Capability::Egress))
    }

    async fn has_template(&self, template: &str, _version: &str) -> Result<bool, ProviderError> {
        Ok(self.capabilities().layers || template == super::TEMPLATE)
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        if self.is_scripted(ProviderCall::Owned) {
            self.play_whole(ProviderCall::Owned, "").await?;
        }
        Ok(self.world.lock().unwrap().owned())
    }

    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        if self.is_scripted(ProviderCall::Adopt) {
            self.play(ProviderCall::Adopt, "").await?;
        }
        Ok(self.world.lock().unwrap().adopt(known, &snapshots))
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        Ok(*self.node.lock().unwrap())
    }

    async fn settle(&self, _deadline: Duration) -> Result<(), ProviderError> {
        Ok(())
    }

    fn dial_support(&self) -> Result<&dyn DialSupport, ProviderError> {
        self.need(Capability::Dial)?;
        Ok(self)
    }

    fn resize_support(&self) -> Result<&dyn ResizeSupport, ProviderError> {
        self.need(Capability::Resize)?;
        Ok(self)
    }

    fn pause_support(&self) -> Result<&dyn PauseSupport, ProviderError> {
        self.need(Capability::Pause)?;
        Ok(self)
    }

    fn checkpoint_support(&self) -> Result<&dyn CheckpointSupport, ProviderError> {
        self.need(Capability::Checkpoint)?;
        Ok(self)
    }

    fn snapshot_support(&self) -> Result<&dyn SnapshotSupport, ProviderError> {
        self.need(Capability::Snapshot)?;
        Ok(self)
    }

    fn archive_support(&self) -> Result<&dyn ArchiveSupport, ProviderError> {
        self.need(Capability::Archive)?;
        Ok(self)
    }

    fn capture_support(&self) -> Result<&dyn CaptureSupport, ProviderError> {
        self.need(Capability::Capture)?;
        Ok(self)
    }

    fn volume_support(&self) -> Result<&dyn VolumeSupport, ProviderError> {
        self.need(Capability::Volume)?;
        Ok(self)
    }

    fn egress_support(&self) -> Result<&dyn EgressSupport, ProviderError> {
        self.need(Capability::Egress)?;
        Ok(self)
    }

    fn pool_support(&self) -> Result<&dyn PoolSupport, ProviderError> {
        self.need(Capability::Pool)?;
        Ok(self)
    }
}

#[async_trait]
impl DialSupport for FakeProvider {
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let mut world = self.world.lock().unwrap();
        let live = world.live(target)?;
        if port != crate::AGENT_PORT {
            return Err(ProviderError::PortClosed { port });
        }
        let (near, far) = tokio::io::duplex(64 << 10);
        live.connections.spawn(agent::serve(far, live.mind.clone()));
        Ok(Box::new(near))
    }
}

#[async_trait]
impl ResizeSupport for FakeProvider {
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::Resize, target.sandbox.as_str()).await?;
        self.world.lock().unwrap().resize(target, limits)?;
        self.end(after, ()).await
    }
}

#[async_trait]
impl PauseSupport for FakeProvider {
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let after = self.play(ProviderCall::Pause, target.sandbox.as_str()).await?;
        let held = self.world.lock().unwrap().pause(target)?;
        self.end(after, held).await
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        let after = self.play_whole(ProviderCall::Resume, target.sandbox.as_str()).await?;
        self.world.lock().unwrap().live(target)?.mind.frozen.send_replace(false);
        self.end(after, ()).await
    }
}

#[async_trait]
impl CheckpointSupport for FakeProvider {
    async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError> {
        let after = self.play_whole(ProviderCall::Checkpoint, target.sandbox.as_str()).await?;
        self.world.lock().unwrap().checkpoint(target)?;
        self.end(after, ()).await
    }

    async fn restore(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        let after = self.play_whole(ProviderCall::Restore, spec.sandbox.as_str()).await?;
        let booted = self.world.lock().unwrap().restore(spec)?;
        self.end(after, booted).await
    }
}

#[async_trait]
impl SnapshotSupport for FakeProvider {
    async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        self.need_memory(memory)?;
        let after = self.play_whole(ProviderCall::Snapshot, target.sandbox.as_str()).await?;
        let made = self.world.lock().unwrap().snapshot(target, snapshot, memory)?;
        self.end(after, made).await
    }

    async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::VerifySnapshot, snapshot.as_str()).await?;
        self.world.lock().unwrap().verify(snapshot, seal)?;
        self.end(after, ()).await
    }

    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::RemoveSnapshot, snapshot.as_str()).await?;
        self.world.lock().unwrap().snapshots.remove(snapshot);
        self.end(after, ()).await
    }

    async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        let after = self.play(ProviderCall::Rollback, target.sandbox.as_str()).await?;
        let left = self.world.lock().unwrap().rollback(target, snapshot, seal, limits)?;
        self.end(after, left).await
    }
}

#[async_trait]
impl ArchiveSupport for FakeProvider {
    async fn pack(&self, target: &Target) -> Result<Packed, ProviderError> {
        let after = self.play(ProviderCall::Pack, target.sandbox.as_str()).await?;
        let packed = self.world.lock().unwrap().pack(target)?;
        if after == After::Cut {
            let half = packed[..packed.len() / 2].to_vec();
            return Ok(Box::new(std::io::Cursor::new(half).chain(FailingStream)));
        }
        self.end(after, Box::new(std::io::Cursor::new(packed)) as Packed).await
    }

    async fn check_pack(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        self.world.lock().unwrap().check_pack(target, limits)
    }

    async fn unpack(&self, target: &Target, limits: &Limits, mut files: Packed) -> Result<(), ProviderError> {
        let after = self.play_whole(ProviderCall::Unpack, target.sandbox.as_str()).await?;
        let mut packed = Vec::new();
        files
            .read_to_end(&mut packed)
            .await
            .map_err(|cause| ProviderError::Failed { step: "unpack".to_owned(), cause: Box::new(cause) })?;
        self.world.lock().unwrap().unpack(target, limits, &packed)?;
        self.end(after, ()).await
    }
}

#[async_trait]
impl CaptureSupport for FakeProvider {
    async fn capture(
        &self,
        target: &Target,
        _template: &str,
        _template_version: &str,
    ) -> Result<Packed, ProviderError> {
        let after = self.play(ProviderCall::Capture, target.sandbox.as_str()).await?;
        let layer = self.world.lock().unwrap().capture(target)?;
        if after == After::Cut {
            let half = layer[..layer.len() / 2].to_vec();
            return Ok(Box::new(std::io::Cursor::new(half).chain(FailingStream)));
        }
        self.end(after, Box::new(std::io::Cursor::new(layer)) as Packed).await
    }
}

#[async_trait]
impl VolumeSupport for FakeProvider {
    async fn create_volume(&self, volume: &VolumeId, size_mib: Option<u32>) -> Result<(), ProviderError> {
        self.need_size(size_mib)?;
        let after = self.play_whole(ProviderCall::CreateVolume, volume.as_str()).await?;
        self.world.lock().unwrap().create_volume(volume, size_mib);
        self.end(after, ()).await
    }

    async fn copy_volume(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.need_size(size_mib)?;
        let after = self.play_whole(ProviderCall::CopyVolume, from.as_str()).await?;
        self.world.lock().unwrap().copy_volume(from, to, size_mib)?;
        self.end(after, ()).await
    }

    async fn resize_volume(&self, volume: &VolumeId, size_mib: u32) -> Result<(), ProviderError> {
        self.need_size(Some(size_mib))?;
        let after = self.play(ProviderCall::ResizeVolume, volume.as_str()).await?;
        self.world.lock().unwrap().resize_volume(volume, size_mib)?;
        self.end(after, ()).await
    }

    async fn volume_bytes(&self, volume: &VolumeId) -> Result<u64, ProviderError> {
        Ok(self.world.lock().unwrap().volume(volume)?.bytes())
    }

    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::RemoveVolume, volume.as_str()).await?;
        self.world.lock().unwrap().volumes.remove(volume);
        self.end(after, ()).await
    }

    async fn volume_files(&self, volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        Ok(Box::new(self.world.lock().unwrap().volume(volume)?))
    }

    async fn sweep_volumes(&self, known: Vec<VolumeId>) -> Result<(), ProviderError> {
        self.world.lock().unwrap().volumes.retain(|id, _| known.contains(id));
        Ok(())
    }
}

#[async_trait]
impl EgressSupport for FakeProvider {
    async fn set_network(&self, target: &Target, egress: Arc<Egress>) -> Result<(), ProviderError> {
        let after = self.play(ProviderCall::SetNetwork, target.sandbox.as_str()).await?;
        self.world.lock().unwrap().named(target)?.0.network = egress;
        self.end(after, ()).await
    }

    fn authority(&self, egress: &Egress) -> Option<String> {
        egress.seed.as_ref().map(|seed| format!("fake authority {}", hex_of(&seed.0)))
    }

    fn egress(&self) -> broadcast::Receiver<crate::Egressed> {
        self.egressed.subscribe()
    }
}

#[async_trait]
impl PoolSupport for FakeProvider {
    async fn wish_pool(&self, wishes: Vec<PoolWish>) {
        self.world.lock().unwrap().wishes = wishes;
    }

    fn pooled(&self, _template: &str, _version: &str) -> usize {
        0
    }
}

impl FakeProvider {
    fn need(&self, capability: Capability) -> Result<(), ProviderError> {
        let hint = "the test took it away".to_owned();
        match self.able.lock().unwrap().has(capability) {
            true => Ok(()),
            false => Err(ProviderError::MissingCapability { provider: self.name(), capability, hint }),
        }
    }

    fn need_memory(&self, memory: bool) -> Result<(), ProviderError> {
        if memory { self.need(Capability::Checkpoint) } else { Ok(()) }
    }

    fn need_size(&self, size_mib: Option<u32>) -> Result<(), ProviderError> {
        if size_mib.is_some() { self.need(Capability::DiskLimit) } else { Ok(()) }
    }

    /// [`FakeProvider::play`] for calls that change nothing when they fail.
    async fn play_whole(&self, call: ProviderCall, id: &str) -> Result<After, ProviderError> {
        match self.play(call, id).await? {
            After::Fail => Err(failed("the scripted step", "scripted")),
            after => Ok(after),
        }
    }

    async fn end<T>(&self, after: After, answer: T) -> Result<T, ProviderError> {
        match after {
            After::Nothing | After::Cut => Ok(answer),
            After::Fail => Err(failed("the scripted step", "scripted")),
            After::Hold => {
                self.released.notified().await;
                Ok(answer)
            }
        }
    }
}

/// A stream that fails.
struct FailingStream;

impl AsyncRead for FailingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()))
    }
}

/// Short, but different for different seeds.
fn hex_of(seed: &[u8; 32]) -> String {
    seed[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}
