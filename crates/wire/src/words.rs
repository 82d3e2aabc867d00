//! The closed words of the API, each with a total map from the model.
//!
//! A word that only answers hold has a variant `Unknown`: a newer server may use words that this client does not know. A word that a
//! request may hold has none, so that the server refuses what it does not know.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The words of the model that are in the API.
mod model {
    pub(super) use atoll_model::policy::idle::AwakeReason;
    pub(super) use atoll_model::{
        BuildLevel as Level, BuildStatus, EgressVerdict, EgressWhat, Intent, Isolation, LeftBehindKind,
        MadeFrom, MemoryLocation, MoveCarried, MoveStage, MoveStep, OnExit, OnTimeout, Phase, Scope,
        SnapshotState, Stage, Storage, TimeoutCounts, VolumeState, Wake,
    };
}

/// A word of requests and answers, with the maps to and from the model's.
macro_rules! request_words {
    ($(#[$doc:meta])* $name:ident $case:tt { $($(#[$word:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = $case)]
        pub enum $name { $($(#[$word])* $variant,)* }

        impl $name {
            /// As the API writes it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl From<model::$name> for $name {
            fn from(word: model::$name) -> Self {
                match word { $(model::$name::$variant => Self::$variant,)* }
            }
        }

        impl From<$name> for model::$name {
            fn from(word: $name) -> Self {
                match word { $($name::$variant => Self::$variant,)* }
            }
        }
    };
}

/// A word of answers alone, with the map from the model's.
macro_rules! answer_words {
    ($(#[$doc:meta])* $name:ident $case:tt { $($(#[$word:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = $case)]
        pub enum $name {
            $($(#[$word])* $variant,)*
            /// A word of a newer server.
            #[serde(other, skip_serializing)]
            Unknown,
        }

        impl $name {
            /// As the API writes it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* Self::Unknown => "unknown" }
            }
        }

        impl From<model::$name> for $name {
            fn from(word: model::$name) -> Self {
                match word { $(model::$name::$variant => Self::$variant,)* }
            }
        }
    };
}

answer_words! {
    /// Last observed state of the sandbox.
    Phase "snake_case" {
        Creating = "creating",
        Running = "running",
        Pausing = "pausing",
        Paused = "paused",
        Resuming = "resuming",
        Stopping = "stopping",
        Stopped = "stopped",
        Starting = "starting",
        Archiving = "archiving",
        Archived = "archived",
        Restoring = "restoring",
        Deleting = "deleting",
        Deleted = "deleted",
        Failed = "failed",
    }
}

answer_words! {
    /// The state that the owner wants for the sandbox.
    Intent "snake_case" {
        Run = "run",
        Pause = "pause",
        Stop = "stop",
        Archive = "archive",
        Delete = "delete",
    }
}

answer_words! {
    /// What separates a sandbox from its machine: nothing, a container of a shared kernel, a virtual machine, or a vendor's
    /// service.
    Isolation "snake_case" {
        None = "none",
        Container = "container",
        Vm = "vm",
        Vendor = "vendor",
    }
}

answer_words! {
    /// How far a move is: `copying`, or `removing` what is left at the provider that the sandbox is not at.
    MoveStage "snake_case" {
        Copying = "copying",
        Removing = "removing",
    }
}

answer_words! {
    /// Step of the copy of a move.
    MoveStep "snake_case" {
        Stopping = "stopping",
        Preparing = "preparing",
        Copying = "copying",
        Comparing = "comparing",
    }
}

answer_words! {
    /// What a move carried of the files: the `layer` of everything that differs from the template, or the `folders` home and
    /// working directory.
    MoveCarried "snake_case" {
        Layer = "layer",
        Folders = "folders",
    }
}

answer_words! {
    /// What can stay behind in a move.
    LeftBehindKind "snake_case" {
        Processes = "processes",
        Files = "files",
        Mounts = "mounts",
        Snapshots = "snapshots",
        Template = "template",
        User = "user",
        Owners = "owners",
    }
}

answer_words! {
    /// Progress of a create.
    Stage "snake_case" {
        Queued = "queued",
        Pulling = "pulling",
        Building = "building",
        Booting = "booting",
    }
}

request_words! {
    /// Where the memory of a paused sandbox is: `live` (in memory, with its processes frozen) or `disk` (written to
    /// disk and freed).
    MemoryLocation "snake_case" {
        Live = "live",
        Disk = "disk",
    }
}

request_words! {
    /// What happens when the timeout passes.
    OnTimeout "snake_case" {
        Delete = "delete",
        Stop = "stop",
        Pause = "pause",
    }
}

answer_words! {
    /// When a lifetime counts: `always`, or only while the sandbox is `awake`. Sandboxes that an E2B SDK created
    /// use `awake`.
    TimeoutCounts "snake_case" {
        Always = "always",
        Awake = "awake",
    }
}

request_words! {
    /// What happens when the server shuts down in order, or when the thread of the sandbox ends.
    OnExit "snake_case" {
        Keep = "keep",
        Pause = "pause",
        Destroy = "destroy",
    }
}

request_words! {
    /// Which requests wake a paused, stopped or archived sandbox: `any` request that needs it, or only `start` and
    /// `resume`.
    Wake "snake_case" {
        Any = "any",
        Explicit = "explicit",
    }
}

request_words! {
    /// Where the files of the sandbox are stored; files in `memory` are lost when it stops.
    Storage "snake_case" {
        Disk = "disk",
        Memory = "memory",
    }
}

answer_words! {
    /// Why a sandbox is not idle: an open request, an attached terminal, an awaited command, CPU use, sent bytes,
    /// or a hold from outside or from inside.
    AwakeReason "snake_case" {
        Request = "request",
        Terminal = "terminal",
        Command = "command",
        Cpu = "cpu",
        Network = "network",
        Hold = "hold",
        HoldInside = "hold_inside",
    }
}

answer_words! {
    /// State of a snapshot.
    SnapshotState "snake_case" {
        Making = "making",
        Ready = "ready",
        Deleting = "deleting",
    }
}

request_words! {
    /// Scope of a key: all tenants, or only its own tenant; `member` is like `user` without what gives rights on the server's machine.
    Scope "snake_case" {
        Admin = "admin",
        User = "user",
        Member = "member",
    }
}

request_words! {
    /// State of a build.
    BuildStatus "snake_case" {
        Waiting = "waiting",
        Building = "building",
        Ready = "ready",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

answer_words! {
    /// Source of a line: the builder (`info`, `warn`, `error`) or the command of a step.
    Level "snake_case" {
        Info = "info",
        Warn = "warn",
        Error = "error",
        Stdout = "stdout",
        Stderr = "stderr",
    }
}

answer_words! {
    /// Origin of a template.
    MadeFrom "kebab-case" {
        /// This server makes it.
        BuiltIn = "built-in",
        /// A registry.
        Image = "image",
        Build = "build",
        /// A file.
        Import = "import",
    }
}

answer_words! {
    /// State of a volume.
    VolumeState "snake_case" {
        Making = "making",
        Ready = "ready",
        Deleting = "deleting",
    }
}

answer_words! {
    /// Kind of traffic: a DNS question, a TLS connection or a plain HTTP request through the gate, or a flow that
    /// the kernel decided alone. `lost`: records are missing because they arrived too fast.
    EgressWhat "snake_case" {
        Dns = "dns",
        Tls = "tls",
        Http = "http",
        Flow = "flow",
        Lost = "lost",
    }
}

request_words! {
    /// `failed`: the connection was allowed but failed, because the name does not exist or the destination did not
    /// answer.
    EgressVerdict "snake_case" {
        Allowed = "allowed",
        Refused = "refused",
        Failed = "failed",
    }
}

/// Reason of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    pub code: ReasonCode,
    /// Message of the provider, or why there is no image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasonCode {
    Requested,
    Completed,
    TimedOut,
    /// Nothing worked in it for as long as its timers allow.
    Idle,
    /// It was stopped for as long as its timers allow.
    Aged,
    /// A request needed it.
    Woken,
    /// The server or the thread that it is bound to ended.
    Exit,
    Overdue,
    /// No place was free for a queued create in time.
    QueueTimedOut,
    InstanceDied,
    LostWhileDown,
    /// Its image could not be built or pulled.
    ImageUnavailable,
    Provider,
    /// A word of a newer server.
    #[serde(other, skip_serializing)]
    Unknown,
}

impl Reason {
    /// The message, or the code.
    #[must_use]
    pub fn text(&self) -> &str {
        self.message.as_deref().unwrap_or(self.code.as_str())
    }
}

impl ReasonCode {
    /// As the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Completed => "completed",
            Self::TimedOut => "timed_out",
            Self::Idle => "idle",
            Self::Aged => "aged",
            Self::Woken => "woken",
            Self::Exit => "exit",
            Self::Overdue => "overdue",
            Self::QueueTimedOut => "queue_timed_out",
            Self::InstanceDied => "instance_died",
            Self::LostWhileDown => "lost_while_down",
            Self::ImageUnavailable => "image_unavailable",
            Self::Provider => "provider",
            Self::Unknown => "unknown",
        }
    }
}

impl From<atoll_model::Reason> for Reason {
    fn from(reason: atoll_model::Reason) -> Self {
        use atoll_model::Reason as R;
        let (code, message) = match reason {
            R::Requested => (ReasonCode::Requested, None),
            R::Completed => (ReasonCode::Completed, None),
            R::TimedOut => (ReasonCode::TimedOut, None),
            R::Idle => (ReasonCode::Idle, None),
            R::Aged => (ReasonCode::Aged, None),
            R::Woken => (ReasonCode::Woken, None),
            R::Exit => (ReasonCode::Exit, None),
            R::Overdue => (ReasonCode::Overdue, None),
            R::QueueTimedOut => (ReasonCode::QueueTimedOut, None),
            R::InstanceDied => (ReasonCode::InstanceDied, None),
            R::LostWhileDown => (ReasonCode::LostWhileDown, None),
            R::ImageUnavailable { message } => (ReasonCode::ImageUnavailable, Some(message)),
            R::Provider { message } => (ReasonCode::Provider, Some(message)),
        };
        Self { code, message }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_written_as_the_model_says() {
        for phase in atoll_model::Phase::ALL {
            assert_eq!(Phase::from(phase).as_str(), phase.as_str());
            assert_eq!(serde_json::to_value(Phase::from(phase)).unwrap(), phase.as_str());
        }
    }

    #[test]
    fn the_text_of_a_word_is_what_serde_writes() {
        assert_eq!(serde_json::to_value(MadeFrom::BuiltIn).unwrap(), MadeFrom::BuiltIn.as_str());
        assert_eq!(serde_json::to_value(AwakeReason::HoldInside).unwrap(), AwakeReason::HoldInside.as_str());
    }

    #[test]
    fn a_word_of_a_newer_server_is_read_and_one_of_a_request_is_refused() {
        assert_eq!(serde_json::from_str::<Phase>("\"dreaming\"").unwrap(), Phase::Unknown);
        assert!(serde_json::from_str::<OnExit>("\"dreaming\"").is_err());
    }
}
