//! The durable record of a sandbox: what was asked, what is wanted, what is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{InstanceId, Limits, Moment, NetworkPolicy, SandboxId, TenantId};

/// What the user wants the sandbox to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Be running.
    Run,
    /// Keep files only.
    Stop,
    /// Be gone.
    Delete,
}

/// How far a creation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Admitted, waiting for its turn.
    Queued,
    /// The instance is being made.
    Booting,
}

/// What the sandbox is, as last observed. Only [`crate::lifecycle::step`] changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Being made for the first time.
    Creating,
    /// Answers.
    Running,
    /// Its processes are being ended.
    Stopping,
    /// Files only.
    Stopped,
    /// Booting again on its files.
    Starting,
    /// Everything of it is being removed.
    Deleting,
    /// Gone; the row stays for the record.
    Deleted,
    /// It could not be made, started or kept alive; the reason says why. Files may be left.
    Failed,
}

impl Phase {
    /// Every phase, for tables and tests.
    pub const ALL: [Phase; 8] = [
        Phase::Creating,
        Phase::Running,
        Phase::Stopping,
        Phase::Stopped,
        Phase::Starting,
        Phase::Deleting,
        Phase::Deleted,
        Phase::Failed,
    ];

    /// The phase as the API shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
        }
    }

    /// Whether it counts against CPU and memory quotas.
    #[must_use]
    pub const fn holds_compute(self) -> bool {
        match self {
            Self::Creating | Self::Running | Self::Stopping | Self::Starting => true,
            Self::Stopped | Self::Deleting | Self::Deleted | Self::Failed => false,
        }
    }
}

/// Why something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Reason {
    /// A user asked.
    Requested,
    /// The step that was under way succeeded.
    Completed,
    /// The sandbox's timeout passed.
    TimedOut,
    /// A passing phase took longer than it may.
    Overdue,
    /// The instance ended by itself: its agent died or was killed.
    InstanceDied,
    /// It was not there any more when the server came back.
    LostWhileDown,
    /// The provider refused or failed; the text is safe to show.
    Provider {
        /// What the provider said.
        message: String,
    },
}

/// What happens when the timeout passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Delete it with its files.
    #[default]
    Delete,
    /// Stop it and keep its files.
    Stop,
}

/// Where the sandbox's own layer lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// On disk; survives a stop.
    #[default]
    Disk,
    /// In memory, counted as memory; gone when it stops.
    Memory,
}

/// The lease: one row of `sandbox_leases`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The sandbox.
    pub id: SandboxId,
    /// Its owner.
    pub tenant: TenantId,
    /// A name unique among the tenant's sandboxes that are not deleted.
    pub name: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// The provider's name.
    pub provider: String,
    /// The template's name.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// Who commands run as unless they say otherwise.
    pub user: String,
    /// Where commands start unless they say otherwise.
    pub workdir: String,
    /// Run at every boot; its output is in the logs.
    pub command: Option<Vec<String>>,
    /// What it may use.
    pub limits: Limits,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// Where its layer lives.
    pub storage: Storage,
    /// What is wanted.
    pub intent: Intent,
    /// What is.
    pub phase: Phase,
    /// How far a creation is; only meaningful while creating.
    pub stage: Stage,
    /// Why it is in this phase.
    pub reason: Reason,
    /// Counts the writes; every write names the one it saw.
    pub generation: u64,
    /// The incarnation that is, or is being made.
    pub instance: Option<InstanceId>,
    /// How long it may live, from create or the last extension.
    pub timeout_s: Option<u64>,
    /// When that is over.
    pub timeout_at: Option<Moment>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// When it was asked for.
    pub created_at: Moment,
    /// When the phase last changed.
    pub phase_at: Moment,
}
