//! Request and response types. Plain data; the methods are in the file of their resource.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_budget::CollectedOutput;
use atoll_model::lifecycle::PhaseSet;
use atoll_model::policy::idle::AwakeReason;
use atoll_model::{EgressVerdict, Lease, MemoryLocation, Phase, SandboxId, Scope, SnapshotId};
use atoll_store::{KeyRecord, SecretAbout, SortBy, Span};
use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::ServiceError;

/// A key to create.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Name or id of its tenant; `None`: the caller's own.
    pub tenant: Option<String>,
    /// Its scope.
    pub scope: Scope,
    /// A name for people.
    pub name: Option<String>,
}

/// A new key; its secret is shown only now.
#[derive(Clone)]
pub struct CreatedKey {
    /// Its record.
    pub key: KeyRecord,
    /// `atl_` and 40 hex digits.
    pub secret: String,
}

impl std::fmt::Debug for CreatedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedKey").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A fresh invite; the only time that its code is shown.
#[derive(Clone)]
pub struct CreatedInvite {
    /// `inv_` and 40 hex digits.
    pub code: String,
    /// When it ends.
    pub expires_at_ms: i64,
}

impl std::fmt::Debug for CreatedInvite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedInvite").field("expires_at_ms", &self.expires_at_ms).finish_non_exhaustive()
    }
}

/// A secret to store.
#[derive(Clone)]
pub struct NewSecret {
    /// Unique within its tenant.
    pub name: String,
    /// The value for `{secret:NAME}`.
    pub value: String,
    /// Its description.
    pub about: SecretAbout,
}

impl std::fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A query of egress records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressQuery {
    /// At most this many, the newest; 0 takes the default.
    pub limit: u32,
    /// Only later ones, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
    /// Only with this verdict.
    pub verdict: Option<EgressVerdict>,
}

/// Whether a create made a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It made one.
    New,
    /// The idempotency key was used before; this is the sandbox from then.
    Replayed,
    /// The thread has this sandbox already.
    Bound,
}

/// A filter for sandboxes.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Any of these; empty: any that is not deleted.
    pub phases: Vec<Phase>,
    /// All of these.
    pub labels: Vec<(String, String)>,
    /// Exactly this name.
    pub name: Option<String>,
    /// The name, or the id if there is none, begins with this, ignoring case.
    pub name_prefix: Option<String>,
    /// The id begins with this, ignoring case.
    pub id_prefix: Option<String>,
    /// At exactly this provider.
    pub provider: Option<String>,
    /// Exactly this template.
    pub template: Option<String>,
    /// Created from any of these, each a template or the id of a snapshot; empty: any source.
    pub made_from: Vec<String>,
    /// Whether the ports are public.
    pub public: Option<bool>,
    /// The last start was at or after this time, in milliseconds since the Unix epoch.
    pub started_after_ms: Option<i64>,
    /// Created in this range, in milliseconds since the Unix epoch.
    pub created_ms: Span,
    /// The CPU limit is in this range.
    pub cpu_milli: Span,
    /// The memory limit is in this range.
    pub memory_mib: Span,
    /// The disk limit is in this range.
    pub disk_mib: Span,
    /// The sort key.
    pub sort: SortBy,
    /// Whether the smallest or oldest is first; otherwise the largest or newest.
    pub ascending: bool,
    /// Whether to include records of deleted sandboxes.
    pub include_deleted: bool,
    /// Name or id of a tenant; only an admin key may name another than its own. `None`: all that the key can see.
    pub tenant: Option<String>,
    /// At most this many; 0 takes the default.
    pub limit: u32,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// A filter for threads.
#[derive(Debug, Clone, Default)]
pub struct ThreadFilter {
    /// At most this many; 0 takes the default.
    pub limit: u32,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// How a verb is carried out. A plain `bool` says whether the caller waits for its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerbOptions {
    /// The caller waits for the end of what the verb sets off.
    pub wait: bool,
    /// The verb is refused unless it finds the sandbox in one of these phases; `None`: in any that the verb accepts.
    pub expect: Option<PhaseSet>,
    /// A boot or resume that is under way is waited for before the verb is sent.
    pub after_boot: bool,
}

impl From<bool> for VerbOptions {
    fn from(wait: bool) -> Self {
        Self { wait, ..Self::default() }
    }
}

impl VerbOptions {
    /// Waits for the end, and takes a sandbox in one of these phases only.
    #[must_use]
    pub const fn expecting(phases: PhaseSet) -> Self {
        Self { wait: true, expect: Some(phases), after_boot: false }
    }
}

/// What a create waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateWait {
    /// Returns when the sandbox runs, not once it is recorded.
    pub until_made: bool,
    /// The sandbox is recorded and waits for a template of the catalogue that is made at its first use; otherwise the
    /// create is refused until the template is made.
    pub for_template: bool,
}

impl From<bool> for CreateWait {
    fn from(until_made: bool) -> Self {
        Self { until_made, for_template: false }
    }
}

/// How to pause a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pause {
    /// The location of its memory; `None`: unchanged.
    pub memory: Option<MemoryLocation>,
}

/// A snapshot to take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewSnapshot {
    /// A name unique among the snapshots of its sandbox.
    pub name: Option<String>,
    /// Makes the name unique among all tenant-wide names of the tenant instead.
    pub tenant_wide: bool,
    /// Whether to include its processes.
    pub memory: bool,
    /// Moves the name from a snapshot that has it; that one is kept under its id.
    pub replace: bool,
    /// Taken only in one of these phases; `None`: in any that allows it.
    pub expect: Option<PhaseSet>,
}

/// A filter for snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotFilter {
    /// Of this sandbox, by id, name or unique prefix of its id; also of a deleted one, by its whole id.
    pub sandbox: Option<String>,
    /// Exactly this name.
    pub name: Option<String>,
    /// At most this many; 0 takes the default.
    pub limit: u32,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// A move of a sandbox to another provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRequest {
    /// The provider that it goes to.
    pub provider: String,
    /// The template or image there; `None`: the sandbox's own if the provider has it, else the provider's default.
    pub template: Option<String>,
}

/// Sandboxes to create from a live one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// How many; 1 to 100.
    pub count: u32,
    /// Whether to include its processes, if possible.
    pub memory: bool,
    /// Replaces its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Replaces its lifetime; it is counted from now.
    pub timeout_s: Option<u64>,
    /// A name unique within the tenant, if there is one child.
    pub name: Option<String>,
    /// Made only in one of these phases; `None`: in any that allows it.
    pub expect: Option<PhaseSet>,
}

impl Default for Fork {
    fn default() -> Self {
        Self { count: 1, memory: false, labels: None, timeout_s: None, name: None, expect: None }
    }
}

/// The result of a fork.
#[derive(Debug, Clone, PartialEq)]
pub struct Forked {
    /// The new sandboxes, all of them running.
    pub sandboxes: Vec<Lease>,
    /// Whether they have the processes too.
    pub memory: bool,
    /// Why not, if they were requested.
    pub memory_refused: Option<String>,
}

/// A hold that keeps a sandbox awake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldAsk {
    /// How long from now; at most a day.
    pub for_s: u64,
    /// A reason for people.
    pub reason: Option<String>,
}

/// Why a sandbox is awake, and its next timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awake {
    /// The current activities; empty if it is idle.
    pub because: Vec<AwakeReason>,
    /// The time of the last activity, in milliseconds since the Unix epoch.
    pub active_at_ms: Option<i64>,
    /// Whether there is no activity.
    pub idle: bool,
    /// The next timer of its lease.
    pub next: Option<NextTimer>,
}

/// The next timer of a lease, if there is no activity before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextTimer {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// `pause`, `stop`, `checkpoint`, `archive` or `delete`.
    pub what: &'static str,
}

/// The origin of a sandbox, and the sandboxes created from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// The sandbox that it was forked from, or whose snapshot or archive it was created from.
    pub parent: Option<SandboxId>,
    /// The snapshot that it was created from.
    pub snapshot: Option<SnapshotId>,
    /// Sandboxes that were created from it, the oldest first.
    pub children: Vec<SandboxId>,
}

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// Program and arguments; the program is searched in PATH.
    pub argv: Vec<String>,
    /// The working directory; `None`: the sandbox's.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The user; `None`: the sandbox's.
    pub user: Option<String>,
    /// Written to its stdin, which is then closed; `None`: stdin is empty.
    pub stdin: Option<Bytes>,
    /// Keep stdin open for [`crate::Sandboxes::write_stdin`] (streams and detached processes only).
    pub open_stdin: bool,
    /// After this its process group is killed and the exit has `timed_out`.
    pub timeout: Option<Duration>,
    /// Do not wait: return as soon as it runs; its output is written to the logs.
    pub detach: bool,
    /// Gives it a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// A name for it in the process list.
    pub tag: Option<String>,
    /// For output beyond the limit, keep the end too, not only the beginning.
    pub keep_tail: bool,
    /// End the command when the caller of [`crate::Sandboxes::exec`] goes away.
    pub ends_with_caller: bool,
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// The end of a command, with its output.
#[derive(Debug, Default)]
pub struct ExecOutcome {
    /// The exit code, as in a shell: 128 + the signal if one ended it, 124 after a timeout, 0 when detached.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its timeout passed.
    pub timed_out: bool,
    /// Its output, up to the limit. Counted in the budget until it is dropped.
    pub stdout: CollectedOutput,
    /// Its output, up to the limit. Counted in the budget until it is dropped.
    pub stderr: CollectedOutput,
    /// Its pid in the sandbox.
    pub pid: u32,
    /// From start to exit, as measured by the server.
    pub duration_ms: u64,
}

/// An event of a running command, in order. `Exit` or `Lost` is the last.
#[derive(Debug, Clone)]
pub enum ExecEvent {
    /// It wrote to stdout.
    Stdout(Bytes),
    /// It wrote to stderr.
    Stderr(Bytes),
    /// It wrote to its terminal.
    Terminal(Bytes),
    /// This reader was too slow and lost this many bytes.
    Dropped(u64),
    /// A keep-alive of the connection.
    KeepAlive,
    /// It ended.
    Exit {
        /// As in [`ExecOutcome`].
        exit_code: i32,
        /// The signal that ended it.
        signal: Option<i32>,
        /// Whether its timeout passed.
        timed_out: bool,
    },
    /// The sandbox ended before the command.
    Lost(ServiceError),
}

/// A process in a sandbox that was started through the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessRecord {
    /// Its pid in the sandbox.
    pub pid: u32,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its working directory.
    pub cwd: String,
    /// Its user.
    pub user: String,
    /// Its tag, if it has one.
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Milliseconds since the Unix epoch; 0 if the agent does not report it.
    pub started_at_ms: i64,
}

/// A terminal to open or to find.
#[derive(Debug, Clone)]
pub struct OpenTerminal {
    /// The thread of conversation: the same thread gets the same terminal.
    pub thread: String,
    /// Its size.
    pub size: TerminalSize,
    /// The shell; `None`: bash, or sh if there is no bash.
    pub shell: Option<Vec<String>>,
    /// Its working directory.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The user.
    pub user: Option<String>,
    /// The shell starts when somebody attaches for the first time.
    pub lazy: bool,
}

/// An entry of a sandbox's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The last part of its path, as bytes: a name need not be UTF-8.
    pub name: Vec<u8>,
    /// Its whole path.
    pub path: Vec<u8>,
    /// Its type.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// The owner's name, or its number as text.
    pub owner: String,
    /// Group's name, or its number as text.
    pub group: String,
    /// Milliseconds since the Unix epoch.
    pub modified_at_ms: i64,
    /// The target of a link.
    pub symlink_target: Option<Vec<u8>>,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

/// A range of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// From this offset to the end.
    From(u64),
    /// From the first to the last, both included.
    Within(u64, u64),
    /// The last this many bytes.
    Last(u64),
}

/// The content of a file to send.
pub struct FileBody {
    /// Size of the whole file.
    pub size: u64,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    /// Permission bits.
    pub mode: Option<u32>,
    /// The bytes.
    pub stream: BoxStream<'static, Result<Bytes, ServiceError>>,
}

/// A file to write completely; missing parents are made.
#[derive(Debug, Clone, Default)]
pub struct WriteFile {
    /// The path.
    pub path: String,
    /// Permission bits of a new file.
    pub mode: Option<u32>,
    /// The user; `None`: the sandbox's.
    pub user: Option<String>,
    /// The number of bytes, if it is known.
    pub len: Option<u64>,
    /// With the rights of the sandbox's root; the file and new parents still belong to the user.
    pub as_root: bool,
}

/// A change below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// The kind of change.
    pub kind: ChangeKind,
    /// Relative to the watched directory.
    pub name: Vec<u8>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was created.
    Create,
    /// Its content changed.
    Write,
    /// It was removed.
    Remove,
    /// It was renamed.
    Rename,
    /// Its mode or owner changed.
    Chmod,
    /// Changes were lost; list again.
    Overflow,
    /// A keep-alive of the connection.
    KeepAlive,
}

/// Output of processes that were started detached, and of the lease's own command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The process that wrote it.
    pub pid: u32,
    /// The stream.
    pub stream: LogStream,
    /// The data as it was written; not necessarily a whole line.
    pub data: Bytes,
    /// Bytes lost before this because the reader was slow.
    pub dropped: u64,
}

/// The stream of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
    /// Its terminal.
    Terminal,
}

/// The health of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether all parts respond.
    pub ok: bool,
    /// The problems, safe to show.
    pub problems: Vec<String>,
}

/// Gauges for the metrics page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceStats {
    /// Bytes that are held for tenants: output, responses, bodies.
    pub held_tenants_bytes: u64,
    /// Bytes that are held for callers without a valid key.
    pub held_strangers_bytes: u64,
    /// Sandboxes that are not deleted, by phase.
    pub by_phase: BTreeMap<&'static str, u64>,
    /// Creates and boots at the provider now.
    pub creates_under_way: u64,
    /// Creates that wait for a place.
    pub creates_queued: u64,
    /// Creates that succeeded since the start.
    pub created_total: u64,
    /// Of those, claimed from a pool.
    pub from_pool_total: u64,
    /// Creates and boots that failed since the start.
    pub failed_total: u64,
    /// Late results that were dropped because the phase had changed.
    pub late_effects_total: u64,
    /// Free memory on this node, as last read.
    pub node_memory_free_mib: u64,
    /// All of its memory.
    pub node_memory_total_mib: u64,
    /// Free space for layers.
    pub node_disk_free_mib: u64,
    /// Sum of the memory limits of live sandboxes.
    pub memory_limits_mib: u64,
    /// The maximum number of live sandboxes.
    pub live_max: u64,
}
