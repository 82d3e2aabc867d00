//! Nouns, ids, the lifecycle table and pure policy. No I/O, no async, no clock.
//!
//! All decisions are in this crate and need no kernel: who may do what ([`policy::authz`]), how much a tenant may use
//! ([`policy::quota`]), whether this node has capacity ([`policy::placement`]), which queued create is next
//! ([`policy::queue`]), when a lease is due
//! ([`policy::deadlines`]), whether a sandbox is active ([`policy::idle`]), and how a phase changes ([`lifecycle`]).
//! Time and randomness are passed in as arguments.

#![warn(clippy::wildcard_enum_match_arm, reason = "a new phase or code must be looked at everywhere")]

mod build;
mod error;
mod event;
mod id;
mod isolation;
mod lease;
pub mod lifecycle;
mod limits;
mod moving;
mod network;
mod node;
pub mod policy;
mod provider_settings;
mod snapshot;
mod spec;
mod template;
mod tenant;
mod time;
mod volume;

pub use build::{Build, BuildFailure, BuildLevel, BuildLine, BuildStatus};
pub use error::{Code, ErrorKind};
pub use event::{EventKind, SandboxEvent};
pub use id::{
    BadId, BuildId, InstanceId, KeyId, PreviewId, SandboxId, SecretId, SnapshotId, TenantId, VolumeId,
};
pub use isolation::Isolation;
pub use lease::{
    ArchiveRef, AttachedSecret, AwaitedImage, CommandFailure, Hold, Intent, Lease, MemoryLocation, OnExit,
    OnTimeout, Phase, QueuePlace, QueueWait, Reason, Source, Stage, StartRequest, Storage, TimeoutCounts,
    Timers, Wake,
};
pub use limits::{BadLimit, Limits, LimitsAsk};
pub use moving::{
    LEFT_BEHIND_NAMES_MAX, LeftBehind, LeftBehindKind, MoveCarried, MoveProgress, MoveReport, MoveStage,
    MoveStep, SandboxMove,
};
pub use network::{
    BadCidr, BadDomain, BadProxy, BadSecret, Cidr, DomainPattern, EgressRecord, EgressVerdict, EgressWhat,
    HeaderText, NetworkLimits, NetworkMode, NetworkPolicy, NoProxy, ProxyCredentials, ProxyKind, ProxyUrl,
    SECRET_BYTES_MAX, SandboxProxy, Transform, authority, check_secret_name, check_secret_value,
    fill_secrets, is_host_name, secrets_in,
};
pub use node::{BadNodeName, NodeName};
pub use provider_settings::{
    BadSettings, DOCKER_HOST, FieldKind, ProviderKind, ProviderSettings, ResolvedSettings, SettingsField,
    ValueSource, check_provider_name, parse_config_env,
};
pub use snapshot::{Snapshot, SnapshotState};
pub use spec::{
    BadSpec, CLIENT_THREADS, CreateSandbox, Origin, QueueAsk, TRANSIENT_THREADS, TimersAsk, UpdateSandbox,
    check_name, check_thread,
};
pub use template::{BadTemplateRef, DEFAULT_TAG, MadeFrom, ReadyCheck, StartSettings, TemplateRef};
pub use tenant::{CreatorKey, KEY_NAME_MAX, Principal, Quota, Scope, Usage};
pub use time::Timestamp;
pub use volume::{MOUNTS_MAX, Mount, MountAsk, Volume, VolumeState, check_mounts};
