//! The use cases: one driver per live sandbox, deadlines, quotas, events. The only writer of the store.
//!
//! A front calls [`Service`]; all permissions are decided below it. The service knows no HTTP status and no SQL. State
//! changes belong to drivers, so a caller may be dropped at any await.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")
)]

mod access;
mod activity;
mod admission;
mod adopt;
mod agent;
mod archive;
mod base;
mod build;
mod changes;
mod clock;
mod company;
mod config;
mod create;
mod deadlines;
mod disk_use;
mod driver;
mod egress;
mod error;
mod events;
mod exec;
mod exit;
mod failpoint;
mod feed;
mod files;
mod follow;
mod fork;
mod health;
mod holds;
mod housekeeping;
mod idle;
mod inside_ports;
mod logs;
mod metrics;
mod moving;
mod notices;
mod providers;
mod prune;
mod random;
mod registry;
mod running_calls;
mod sandboxes;
mod service;
mod session;
mod snapshots;
mod templates;
mod terminals;
mod threads;
mod timed;
mod tool_clients;
mod types;
mod volumes;
mod wake;

pub use access::{
    Access, ApprovedLogin, CreatedPreview, DEFAULT_PORT, Grant, Holder, LoginPoll, NewPreview, PeerRole,
    PendingLogin, PortAnswer, PortQuestion, PortSession, PortTarget, RequestScope, SandboxTarget,
    StartedLogin, TokenOf, UnixPeer,
};
/// Of the protocol that [`SandboxSession::forward`] carries.
pub use atoll_agentapi::{AGENT_PORT, AgentError, ENVD_VERSION, Forwarded, TOKEN_HEADER};
pub use atoll_image::build::{DeclaredBuild, DeclaredStep};
pub use atoll_image::default_names::{INTERPRETERS, is_vendor_image};
pub use atoll_provider::{ByteStream, Capability, VolumeEntry, VolumeEntryKind, VolumeOwner};
pub use atoll_store::{
    KeyRecord, Page, PreviewRecord, ResourceSample, SecretAbout, SecretChange, SecretRecord, SortBy, Span,
    TenantRecord, Terminal, TerminalSettings, ThreadRecord,
};
pub use build::{
    AFTER_THE_STEPS, BadUploadHash, BaseUser, BuildContext, BuildFilter, BuildSecret, BuildSource,
    BuildSteps, Builds, StartBuild, StorageAccess, TenantUploads, UploadError, UploadHash,
};
pub use changes::PhaseChange;
pub use clock::{Clock, SystemClock, TestClock};
pub use company::CompanyFiles;
pub use config::ServiceConfig;
pub use disk_use::{DiskItem, DiskItemKind, DiskPart, DiskTotals, DiskUse, TenantDisk};
pub use error::{Cause, InvalidField, RefusedVerb, ServiceError};
#[doc(hidden)]
pub use failpoint::FailPoint;
pub use inside_ports::{InsideCaller, InsidePort};
pub use providers::{
    BuildProvider, ProviderFiles, ProviderRecord, ProviderRegistry, ProviderRequest, ProviderSettingsRecord,
    ProviderTest,
};
pub use prune::{Prune, PruneEntry, Pruned};
pub use running_calls::{RunningCall, RunningCalls};
pub use sandboxes::Sandboxes;
pub use service::{OpenError, Service};
pub use session::SandboxSession;
pub use templates::{
    Bytestream, Collected, ExportFormat, Fetch, Fetched, ImportFormat, ImportTemplate, LayerState,
    MakeProgress, Progress, Progressed, PullImage, PushImage, RegistryAuth, TemplateRecord, TemplateSource,
    TemplateSources, Templates, UpdateTemplate,
};
pub use terminals::{TerminalInput, terminal_size};
pub use types::*;
pub use volumes::{NewVolume, OpenVolume, UpdateVolume, VolumeRecord, Volumes, WriteRules};
pub use wake::{WakeMemory, WakeRequest, WakeTimeout, Woken};
