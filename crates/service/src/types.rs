//! What callers hand in and get back. Plain data; the methods are in the file of their noun.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_budget::CollectedOutput;
use atoll_model::policy::idle::AwakeReason;
use atoll_model::{EgressVerdict, Lease, MemoryLocation, Phase, SandboxId, Scope, SnapshotId};
use atoll_store::{KeyRecord, SecretAbout, SortBy, Span};
use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::ServiceError;

/// A key to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Name or id of its tenant; `None`: the caller's own.
    pub tenant: Option<String>,
    /// What it may do.
    pub scope: Scope,
    /// For people.
    pub name: Option<String>,
}

/// A fresh key; the only time that its secret is shown.
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

/// A secret to be kept.
#[derive(Clone)]
pub struct NewSecret {
    /// Unique within its tenant.
    pub name: String,
    /// What is put in for `{secret:NAME}`.
    pub value: String,
    /// What is said of it.
    pub about: SecretAbout,
}

impl std::fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Which egress records to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressQuery {
    /// At most so many, the newest; 0 takes the default.
    pub limit: u32,
    /// Only later ones, in milliseconds since the Unix epoch.
    pub since_ms: Option<i64>,
    /// Only with this verdict.
    pub verdict: Option<EgressVerdict>,
}

/// Whether a create made something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It did.
    New,
    /// The idempotency key was seen before; this is the sandbox made then.
    Replayed,
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Any of these; empty: any that is not deleted.
    pub phases: Vec<Phase>,
    /// All of these.
    pub labels: Vec<(String, String)>,
    /// Exactly this name.
    pub name: Option<String>,
    /// Whose name, or id where there is none, begins so; upper and lower case are the same.
    pub name_prefix: Option<String>,
    /// Whose id begins so; upper and lower case are the same.
    pub id_prefix: Option<String>,
    /// Exactly this template.
    pub template: Option<String>,
    /// Made from any of these, each a template or the id of a snapshot; empty: from anything.
    pub made_from: Vec<String>,
    /// Whose ports are open to everybody, or are not.
    pub public: Option<bool>,
    /// That last began to run at or after this, in milliseconds since the Unix epoch.
    pub started_after_ms: Option<i64>,
    /// That were asked for then, in milliseconds since the Unix epoch.
    pub created_ms: Span,
    /// With such limits.
    pub cpu_milli: Span,
    /// With such limits.
    pub memory_mib: Span,
    /// With such limits.
    pub disk_mib: Span,
    /// By what they are sorted.
    pub sort: SortBy,
    /// The smallest or oldest first; else the largest or newest.
    pub ascending: bool,
    /// Records of deleted ones too.
    pub include_deleted: bool,
    /// Name or id of a tenant; only an admin key may name another than its own. `None`: all that the key sees.
    pub tenant: Option<String>,
    /// At most this many; 0 takes the default.
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// How a sandbox shall be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pause {
    /// Where its memory goes; `None`: it stays where it is.
    pub memory: Option<MemoryLocation>,
}

/// A snapshot to be taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewSnapshot {
    /// A name unique among the tenant's snapshots.
    pub name: Option<String>,
    /// Its processes too.
    pub memory: bool,
    /// Takes the name over from a snapshot that has it; that one stays under its id.
    pub replace: bool,
}

/// Which snapshots to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotFilter {
    /// Of this sandbox, by id, name or unique start of its id; also of one that is deleted, by its whole id.
    pub sandbox: Option<String>,
    /// Exactly this name.
    pub name: Option<String>,
    /// At most this many; 0 takes the default.
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// Sandboxes to be made from a live one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// How many; 1 to 100.
    pub count: u32,
    /// Its processes too, where that can be had.
    pub memory: bool,
    /// Instead of its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Instead of its lifetime; it counts from now.
    pub timeout_s: Option<u64>,
    /// A name unique within the tenant, where there is one child.
    pub name: Option<String>,
}

impl Default for Fork {
    fn default() -> Self {
        Self { count: 1, memory: false, labels: None, timeout_s: None, name: None }
    }
}

/// What a fork made.
#[derive(Debug, Clone, PartialEq)]
pub struct Forked {
    /// The new sandboxes, all of them running.
    pub sandboxes: Vec<Lease>,
    /// Whether they have the processes too.
    pub memory: bool,
    /// Why not, where they were asked for.
    pub memory_refused: Option<String>,
}

/// A promise to stay awake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldAsk {
    /// For how long from now; at most a day.
    pub for_s: u64,
    /// For people.
    pub reason: Option<String>,
}

/// Why a sandbox is awake, and what it does next by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awake {
    /// What works in it now; nothing: it is idle.
    pub because: Vec<AwakeReason>,
    /// When something last worked in it, in milliseconds since the Unix epoch.
    pub active_at_ms: Option<i64>,
    /// Whether nothing works in it.
    pub idle: bool,
    /// What its lease does next.
    pub next: Option<NextTimer>,
}

/// What a lease does next by itself, if nothing happens before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextTimer {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// `pause`, `stop`, `checkpoint`, `archive` or `delete`.
    pub what: &'static str,
}

/// Where a sandbox comes from and what came from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from.
    pub parent: Option<SandboxId>,
    /// The snapshot that it was made from.
    pub snapshot: Option<SnapshotId>,
    /// Sandboxes that were made from it, the oldest first.
    pub children: Vec<SandboxId>,
}

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// Program and arguments; the program is looked up in PATH.
    pub argv: Vec<String>,
    /// Where; `None`: the sandbox's workdir.
    pub cwd: Option<String>,
    /// On top of the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// As whom; `None`: the sandbox's user.
    pub user: Option<String>,
    /// Written to its stdin, which is then closed; `None`: stdin is empty.
    pub stdin: Option<Bytes>,
    /// Keep stdin open for [`crate::Service::write_stdin`] (streams and detached processes only).
    pub open_stdin: bool,
    /// After this its process group is killed and the exit says `timed_out`.
    pub timeout: Option<Duration>,
    /// Do not wait: answer as soon as it runs; its output goes to the logs.
    pub detach: bool,
    /// Give it a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// A name for it in the process list.
    pub tag: Option<String>,
    /// Of output beyond the cap keep the end too, not the beginning alone.
    pub keep_tail: bool,
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// How a command ended, with what it wrote.
#[derive(Debug, Default)]
pub struct ExecOutcome {
    /// As a shell would say it: 128 + the signal where one ended it, 124 after a timeout, 0 when detached.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its timeout passed.
    pub timed_out: bool,
    /// What it wrote, up to the cap. Counted in the budget until it is dropped.
    pub stdout: CollectedOutput,
    /// What it wrote, up to the cap. Counted in the budget until it is dropped.
    pub stderr: CollectedOutput,
    /// Its pid inside the sandbox.
    pub pid: u32,
    /// From start to exit, as seen from here.
    pub duration_ms: u64,
}

/// What a running command does, in order. `Exit` or `Lost` is the last.
#[derive(Debug, Clone)]
pub enum ExecEvent {
    /// It wrote to stdout.
    Stdout(Bytes),
    /// It wrote to stderr.
    Stderr(Bytes),
    /// It wrote to its terminal.
    Terminal(Bytes),
    /// This reader was too slow and lost so many bytes.
    Dropped(u64),
    /// Nothing happened; the connection lives.
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
    /// The sandbox went away under it.
    Lost(ServiceError),
}

/// A process inside a sandbox that was started through us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessRecord {
    /// Its pid inside.
    pub pid: u32,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Where it was started.
    pub cwd: String,
    /// As whom.
    pub user: String,
    /// Its name, where it was given one.
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Milliseconds since the Unix epoch; 0 where the agent does not say.
    pub started_at_ms: i64,
}

/// A terminal to be opened or found again.
#[derive(Debug, Clone)]
pub struct OpenTerminal {
    /// The thread of conversation it belongs to: the same thread gets the same terminal.
    pub thread: String,
    /// Its size.
    pub size: TerminalSize,
    /// The shell; `None`: bash, or sh where there is no bash.
    pub shell: Option<Vec<String>>,
    /// Where it starts.
    pub cwd: Option<String>,
    /// On top of the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// As whom.
    pub user: Option<String>,
}

/// An entry of a sandbox's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The last part of its path, as bytes: a name need not be UTF-8.
    pub name: Vec<u8>,
    /// Its whole path.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner's name, or its number as text.
    pub owner: String,
    /// Group's name, or its number as text.
    pub group: String,
    /// Milliseconds since the Unix epoch.
    pub modified_at_ms: i64,
    /// Where a link points.
    pub symlink_target: Option<Vec<u8>>,
}

/// What an entry is.
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

/// Which bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// From here to the end.
    From(u64),
    /// From the first to the last, both included.
    Within(u64, u64),
    /// The last so many.
    Last(u64),
}

/// A file's content on its way out.
pub struct FileBody {
    /// Size of the whole file.
    pub size: u64,
    /// The first byte that comes.
    pub offset: u64,
    /// How many bytes come.
    pub len: u64,
    /// Permission bits.
    pub mode: Option<u32>,
    /// The bytes.
    pub stream: BoxStream<'static, Result<Bytes, ServiceError>>,
}

/// A file to be written whole; parents are made.
#[derive(Debug, Clone, Default)]
pub struct WriteFile {
    /// Where.
    pub path: String,
    /// Permission bits of a new file.
    pub mode: Option<u32>,
    /// As whom; `None`: the sandbox's user.
    pub user: Option<String>,
    /// How many bytes come, where it is known.
    pub len: Option<u64>,
    /// With the rights of the sandbox's root; the file and new parents belong to the user all the same.
    pub as_root: bool,
}

/// What changed below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// How.
    pub kind: ChangeKind,
    /// Relative to the watched directory.
    pub name: Vec<u8>,
}

/// How a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It appeared.
    Create,
    /// Its content changed.
    Write,
    /// It went.
    Remove,
    /// It has another name.
    Rename,
    /// Its mode or owner changed.
    Chmod,
    /// Changes were lost; list again.
    Overflow,
    /// Nothing happened; the connection lives.
    KeepAlive,
}

/// Output of processes that were started detached, and of the lease's own command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Who wrote it.
    pub pid: u32,
    /// Where to.
    pub stream: LogStream,
    /// What, as it came; not necessarily a whole line.
    pub data: Bytes,
    /// Bytes lost before this because the reader was slow.
    pub dropped: u64,
}

/// Where a process wrote.
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

/// Whether the server can work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// All parts answer.
    pub ok: bool,
    /// What does not, in words safe to show.
    pub problems: Vec<String>,
}

/// Gauges for the metrics page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceStats {
    /// Bytes that are held for tenants: output, answers, bodies.
    pub held_tenants_bytes: u64,
    /// Bytes that are held for callers without a valid key.
    pub held_strangers_bytes: u64,
    /// Sandboxes that are not deleted, by phase.
    pub by_phase: BTreeMap<&'static str, u64>,
    /// Creates and boots at the provider now.
    pub creates_under_way: u64,
    /// Creates that succeeded since the start.
    pub created_total: u64,
    /// Of those, claimed from a pool.
    pub from_pool_total: u64,
    /// Creates and boots that failed since the start.
    pub failed_total: u64,
    /// Results that came after their sandbox had moved on, and were dropped.
    pub late_effects_total: u64,
    /// Memory that is free on this node, as last seen.
    pub node_memory_free_mib: u64,
    /// All of its memory.
    pub node_memory_total_mib: u64,
    /// Free space where layers live.
    pub node_disk_free_mib: u64,
    /// Sum of the memory limits of live sandboxes.
    pub memory_limits_mib: u64,
    /// The most live sandboxes.
    pub live_max: u64,
}
