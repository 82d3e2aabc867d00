//! Instances: what they are made from, and what a provider reports about them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::AgentClient;
use atoll_model::policy::egress::Egress;
use atoll_model::{EgressRecord, InstanceId, Limits, SandboxId, SnapshotId, Storage, VolumeId};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

/// Everything needed to make one instance.
#[derive(Debug, Clone)]
pub struct InstanceSpec {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which.
    pub instance: InstanceId,
    /// Template name, resolved.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// What it may use.
    pub limits: Limits,
    /// What it may reach.
    pub network: Arc<Egress>,
    /// Where its layer lives.
    pub storage: Storage,
    /// Host name inside.
    pub hostname: String,
    /// What its files begin as; only [`Provider::create`](crate::Provider::create) looks at it.
    pub origin: FilesOrigin,
    /// Volumes that it sees.
    pub mounts: Vec<InstanceMount>,
}

/// What an instance has to obey and to have, as far as it is known before anything is made.
#[derive(Debug, Clone, Copy)]
pub struct InstanceDemands<'a> {
    /// What it may reach.
    pub network: &'a Egress,
    /// The policy that the live instance was made with; `None`: no instance lives.
    pub made_with: Option<&'a Egress>,
    /// Where its layer lives.
    pub storage: Storage,
    /// Whether the request names limits of its own. Without that the defaults of the server are in the specification.
    pub limits_asked: bool,
}

impl InstanceSpec {
    /// What the new instance has to obey and to have.
    #[must_use]
    pub fn demands(&self) -> InstanceDemands<'_> {
        InstanceDemands {
            network: &self.network,
            made_with: None,
            storage: self.storage,
            limits_asked: false,
        }
    }
}

/// A volume in an instance. Mounted nosuid and nodev; nothing inside can reach beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceMount {
    /// What.
    pub source: MountSource,
    /// Where inside: absolute, clean; made when missing.
    pub path: String,
    /// Nothing can be written through it.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A volume, or a folder of it: relative, clean, made when missing, for everybody inside to write.
    Volume {
        /// Which.
        volume: VolumeId,
        /// Which folder of it.
        sub_path: Option<String>,
    },
    /// A folder of the host below one of the roots that the operator allowed.
    Folder {
        /// Its path there, canonical: where a part of it is a link by now, it is refused.
        path: PathBuf,
        /// Which folder of it.
        sub_path: Option<String>,
        /// The user and group inside that the folder's owner is seen as. Nobody else's files can be made in it.
        seen_as: (u32, u32),
    },
    /// Memory that ends with the instance and is in no snapshot of files.
    Memory {
        /// How much it may hold.
        size_mib: u32,
    },
}

/// Instances to be kept waiting for the next create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolWish {
    /// Template name.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// How many.
    pub size: usize,
}

/// Starts in an instance that waits for its sandbox what every sandbox of its template would have to wait for. The instance
/// has its template's user, folder and environment, and no network; it stands still from then on until it is claimed.
#[async_trait]
pub trait Prepare: Send + Sync + std::fmt::Debug {
    /// Whether there is something to start for a template of this name. What is started takes some 100 MiB for each instance.
    fn wants(&self, template: &str) -> bool;

    /// Starts it; answers when it is ready. After an error the instance is thrown away.
    async fn prepare(
        &self,
        template: &str,
        agent: AgentClient,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// What the files of a new sandbox begin as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FilesOrigin {
    /// The template alone.
    #[default]
    Template,
    /// A snapshot; with `memory` its processes too.
    Snapshot {
        /// Which.
        snapshot: SnapshotId,
        /// What [`Snapshotted::seal`] said.
        seal: String,
        /// Its processes too.
        memory: bool,
    },
}

/// An instance whose agent takes connections.
#[derive(Debug, Clone)]
pub struct Booted {
    /// What only this provider understands and needs for [`Provider::adopt`](crate::Provider::adopt). Holds no secret.
    pub facts: serde_json::Value,
    /// The agent's token; known to the host alone. `None`: the processes were restored and have the token that they had.
    pub agent_token: Option<String>,
    /// Whether it was claimed from a pool of ready ones.
    pub from_pool: bool,
}

/// An image that a provider has, as the base of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderImage {
    /// Its name, for [`InstanceSpec::template`].
    pub name: String,
    /// Exactly which one that is now, for [`InstanceSpec::template_version`].
    pub version: String,
    /// Environment of programs.
    pub env: BTreeMap<String, String>,
    /// User of programs.
    pub user: String,
    /// Working directory of programs.
    pub workdir: String,
}

/// Names one instance of a sandbox, or only its files when there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which; `None` when it is stopped.
    pub instance: Option<InstanceId>,
}

/// A sandbox that the store knows, for adoption after a restart.
#[derive(Debug, Clone)]
pub struct KnownSandbox {
    /// Whose.
    pub sandbox: SandboxId,
    /// Its live instance with its facts; `None` when only files should be there.
    pub instance: Option<(InstanceId, serde_json::Value)>,
    /// Where its layer lives.
    pub storage: Storage,
    /// Its limits and policy, to be put in force again.
    pub limits: Limits,
    /// What it may reach.
    pub network: Arc<Egress>,
    /// It is paused, being paused or being resumed: a frozen instance stays frozen, and a checkpoint is kept. In all other
    /// cases an instance that is found frozen is thawed, and a checkpoint that lies about is removed.
    pub paused: bool,
}

/// A sandbox that a provider finds by the owner label of this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedSandbox {
    /// Its id.
    pub sandbox: SandboxId,
    /// The live instance and what it does; `None` where only files are there.
    pub instance: Option<(InstanceId, InstanceActivity)>,
}

/// What a live instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceActivity {
    /// Its processes run.
    Running,
    /// Its processes stand still, with their memory.
    Paused,
}

/// One decision about what leaves an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egressed {
    /// Whose.
    pub sandbox: SandboxId,
    /// What was decided.
    pub record: EgressRecord,
}

/// What became of a known instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Which.
    pub instance: InstanceId,
    /// What became of it.
    pub fate: AdoptionOutcome,
    /// Its facts where they are not those that were handed in: a restore had come to its end, but nobody wrote it down.
    pub facts: Option<serde_json::Value>,
}

/// What became of a known instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionOutcome {
    /// It lives and is watched again.
    Alive,
    /// It lives, is watched again, and stands still.
    Frozen,
    /// Its processes are gone; a whole checkpoint of them is on disk.
    Checkpointed,
    /// It is gone; what was left of it has been cleaned up, files excepted.
    Gone,
}

/// What an instance uses now.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct InstanceUsage {
    /// CPU time since its start.
    pub cpu_us: u64,
    /// Memory charged to it, page cache included.
    pub memory_bytes: u64,
    /// Of that, page cache that can be dropped.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in its own layer; `None`: the provider does not measure it.
    pub disk_bytes: Option<u64>,
    /// Its traffic; `None`: the provider does not measure it.
    pub network: Option<NetworkBytes>,
}

/// Bytes that an instance moved over the network since its start, loopback excepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NetworkBytes {
    /// Bytes that reached it.
    pub received: u64,
    /// Bytes that left it.
    pub sent: u64,
}

impl InstanceUsage {
    /// Bytes that left it; 0 where they are not measured.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.network.map_or(0, |network| network.sent)
    }
}

/// What a snapshot became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshotted {
    /// Whether it holds processes.
    pub memory: bool,
    /// Bytes of its own, as far as they can be told cheaply.
    pub bytes: u64,
    /// What the provider needs to tell later whether it is still whole. Holds no secret.
    pub seal: String,
    /// How long the sandbox stood still.
    pub stood_still: Duration,
}

/// What a rollback left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolledBack {
    /// Files; [`Provider::boot`](crate::Provider::boot) comes next.
    Files,
    /// Files and a checkpoint; [`CheckpointSupport::restore`](crate::CheckpointSupport::restore) comes next.
    Memory,
}

/// A stream of a sandbox's packed files.
pub type Packed = Box<dyn AsyncRead + Send + Unpin>;

/// Something that happened to an instance without being asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which.
    pub instance: InstanceId,
    /// What.
    pub what: NoticeKind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeKind {
    /// Its first process ended.
    Died,
    /// A process inside was ended because memory ran out.
    OutOfMemory,
}
