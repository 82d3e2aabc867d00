"""Types of the native API. Made from docs/openapi.json by scripts/generate.py; do not edit."""

# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from ..model import Model, each, parse_time, same

if TYPE_CHECKING:
    from typing_extensions import Required

__all__ = [
    "ApprovedLogin",
    "Archive",
    "ArchiveWritten",
    "Awake",
    "AwakeReason",
    "Build",
    "BuildFailure",
    "BuildLine",
    "BuildLog",
    "BuildOptions",
    "BuildSecretBody",
    "BuildStatus",
    "CheckState",
    "CodeContext",
    "CodeException",
    "CodeLanguage",
    "CodeOutput",
    "CodeResult",
    "Collected",
    "CommandFailure",
    "CreateOptions",
    "CreatedKey",
    "CreatorKey",
    "CurrentKey",
    "Detached",
    "DiskItem",
    "DiskPart",
    "DiskTotals",
    "DiskUse",
    "EditResult",
    "Egress",
    "EgressVerdict",
    "EgressWhat",
    "Ended",
    "Entry",
    "EntryKind",
    "Event",
    "ExecResult",
    "Forked",
    "GitBranches",
    "GitChange",
    "GitCommit",
    "GitCommitted",
    "GitCredentials",
    "GitFile",
    "GitLog",
    "GitRemote",
    "GitRemotes",
    "GitResetMode",
    "GitResult",
    "GitStatus",
    "GrepMatch",
    "GrepResult",
    "Hold",
    "Intent",
    "Isolation",
    "Key",
    "LeftBehind",
    "LeftBehindKind",
    "Level",
    "Lineage",
    "ListedPreview",
    "Login",
    "LoginPoll",
    "LoginState",
    "MadeFrom",
    "MemoryLocation",
    "Mount",
    "MountBody",
    "MoveCarried",
    "MoveReport",
    "MoveStage",
    "MoveStep",
    "Moving",
    "Network",
    "NetworkLimits",
    "NetworkMode",
    "NetworkPolicy",
    "NewPreview",
    "NextTimer",
    "OnExit",
    "OnTimeout",
    "Phase",
    "PlainNetwork",
    "ProcessInfo",
    "Provider",
    "ProviderSettings",
    "ProviderTest",
    "PruneEntry",
    "PruneReport",
    "PruneRequest",
    "QueuePlace",
    "Quota",
    "Ready",
    "Reason",
    "ReasonCode",
    "RegistryAuth",
    "Sample",
    "SampleLimits",
    "SandboxInfo",
    "Scope",
    "SearchResult",
    "Secret",
    "ServerCheck",
    "ServerReport",
    "ServerSetting",
    "Session",
    "SessionCommand",
    "SessionDetails",
    "SessionOutput",
    "SessionResult",
    "SessionStarted",
    "Signal",
    "Snapshot",
    "SnapshotState",
    "Stage",
    "Start",
    "StartedLogin",
    "Status",
    "Storage",
    "Template",
    "TemplateOptions",
    "Tenant",
    "TenantDisk",
    "TerminalInfo",
    "TextEdit",
    "Thread",
    "TimeoutCounts",
    "Transform",
    "UpdateOptions",
    "Usage",
    "UsageAnswer",
    "Version",
    "Volume",
    "VolumeEntry",
    "VolumeState",
    "Wake",
    "What",
]

Scope = Literal["admin", "user", "member"]
"""Scope of a key: all tenants, or only its own tenant; `member` is like `user` without what gives rights on the
server's machine."""

class ApprovedLogin(Model):
    """What was approved: the key that the client gets with its next poll."""

    address: str | None = None
    """The address from which the login was started."""
    name: str
    """Name of the key."""
    scope: Scope
    tenant: str
    """The tenant's id."""
    tenant_name: str


class Archive(Model):
    """Files in object storage."""

    bytes: int
    """Before compression."""
    key: str
    """Key of the archive. Send it as `archive` to create a sandbox from it, also on another server."""
    stored_bytes: int
    """In object storage."""


class ArchiveWritten(Model):
    """What was written of an archive."""

    bytes: int
    """Bytes of files."""
    entries: int
    """Files, directories and links."""


AwakeReason = Literal["request", "terminal", "command", "cpu", "network", "hold", "hold_inside"]
"""Why a sandbox is not idle: an open request, an attached terminal, an awaited command, CPU use, sent bytes, or a
hold from outside or from inside."""

class NextTimer(Model):
    """The next timer."""

    at: datetime
    what: str
    """Action: `pause`, `stop`, `checkpoint`, `archive` or `delete`."""

    _convert = {
        "at": ("at", parse_time),
    }


class Awake(Model):
    """Activity of a sandbox and its next timer."""

    active_at: datetime | None = None
    """Time of the last activity."""
    because: list[AwakeReason]
    """Reasons why the sandbox is not idle; empty if it is idle or does not run."""
    idle: bool
    """Whether the sandbox is idle. A sandbox that does not run is idle."""
    next: NextTimer | None = None

    _convert = {
        "active_at": ("active_at", parse_time),
        "next": ("next", NextTimer),
    }


class BuildFailure(Model):
    """Why a build failed."""

    code: str
    """One of the closed list in `docs/errors.md`."""
    exit_code: int | None = None
    """Exit code of its command."""
    hint: str | None = None
    message: str
    step: int | None = None
    """Number of the step."""
    tail: list[str]
    """The end of its output."""


BuildStatus = Literal["waiting", "building", "ready", "failed", "cancelled"]
"""State of a build."""

class Build(Model):
    """A build of a template."""

    cached_steps: int
    """Steps that were taken from the cache."""
    created_at: datetime
    ended_at: datetime | None = None
    failure: BuildFailure | None = None
    id: str
    node: str | None = None
    """Node that runs it."""
    notes: list[str]
    """Instructions that were ignored, with the reason."""
    started_at: datetime | None = None
    status: BuildStatus
    step: int
    """Number of the current or last step; 0 before the first."""
    step_text: str
    """Text of that step, shortened."""
    steps: int
    """Number of steps; 0 until it is known."""
    tags: list[str]
    """Further tags for the template."""
    template: str
    """Template that the build makes."""
    tenant: str
    """The tenant's id."""
    version: str | None = None
    """Version that the build made."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "ended_at": ("ended_at", parse_time),
        "failure": ("failure", BuildFailure),
        "started_at": ("started_at", parse_time),
    }


Level = Literal["info", "warn", "error", "stdout", "stderr"]
"""Source of a line: the builder (`info`, `warn`, `error`) or the command of a step."""

class BuildLine(Model):
    """One line of a build's log."""

    at: datetime
    level: Level
    seq: int
    """Counts from 1 without gaps."""
    step: int
    """Number of the step; 0 before the first or after the last."""
    text: str

    _convert = {
        "at": ("at", parse_time),
    }


class BuildLog(Model):

    items: list[BuildLine]
    """Oldest first."""
    next_from: int | None = None
    """Send it as `from` to get the next lines; null if there are no more lines yet."""

    _convert = {
        "items": ("items", each(BuildLine)),
    }


class BuildSecretBody(TypedDict, total=False):
    """A secret of a build. Exactly one of `value` and `value_base64`."""
    id: Required[str]
    """As `RUN --mount=type=secret,id=…` names it."""
    value: str | None
    value_base64: str | None
    """For bytes that are no text."""


CheckState = Literal["good", "lacking", "missing"]
"""The state of a check."""

CodeLanguage = Literal["python", "javascript", "typescript", "bash", "r", "java"]
"""The language of code."""

class CodeContext(Model):
    """A process in the sandbox that keeps what code defined."""

    created_at: datetime
    cwd: str
    """Directory in which it was started."""
    id: str
    language: CodeLanguage

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class CodeException(Model):
    """An error of the code."""

    name: str
    traceback: str
    """May contain ANSI colours."""
    value: str


class CodeOutput(Model):
    """A value or a display in every form that its type offers. Images and PDF are base64."""

    chart: Any = None
    """A chart as data: type, title, axes and elements."""
    data: Any = None
    """A table by its columns."""
    extra: dict[str, Any] | None = None
    """Other forms by their MIME type."""
    html: str | None = None
    is_main: bool
    """Whether it is the value of the last expression."""
    javascript: str | None = None
    jpeg: str | None = None
    json: Any = None
    latex: str | None = None
    markdown: str | None = None
    pdf: str | None = None
    png: str | None = None
    svg: str | None = None
    text: str | None = None


class CodeResult(Model):
    """Result and output of an execution."""

    context: str
    """Id of the context."""
    exception: CodeException | None = None
    execution_count: int | None = None
    """Number of the execution in its context, from 1; null if it did not start in time."""
    results: list[CodeOutput]
    """The value of the last expression, and everything that was displayed."""
    stderr: str
    stdout: str
    timed_out: bool
    truncated: bool
    """Whether the output is longer than shown."""

    _convert = {
        "exception": ("exception", CodeException),
        "results": ("results", each(CodeOutput)),
    }


class Collected(Model):
    """Result of a garbage collection."""

    blobs: int
    bytes: int
    """Freed bytes, approximately."""
    cached_bytes: int
    """Bytes of layers that only the build cache keeps, so that later builds are faster."""
    layers: int
    recent: int
    """Versions that were kept because they were used in the last minute, or are being used."""
    versions: int


class CommandFailure(Model):
    """The failure of a start command: it could not be started, or it ended with a status that is not 0."""

    at: datetime
    exit_code: int
    """The status that a shell would report: 127 if the program does not exist, 126 if it cannot be started."""
    message: str

    _convert = {
        "at": ("at", parse_time),
    }


class Key(Model):
    """A key without its secret."""

    created_at: datetime
    created_by: str | None = None
    """The id of the user key that created it; it ends with that key. Null: an admin key or the server created
    it."""
    id: str
    last_used_at: datetime | None = None
    name: str | None = None
    scope: Scope
    tenant: str
    """The tenant's id."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "last_used_at": ("last_used_at", parse_time),
    }


class CreatedKey(Model):
    """A new key; its secret is shown only here."""

    created_at: datetime
    created_by: str | None = None
    """The id of the user key that created it; it ends with that key. Null: an admin key or the server created
    it."""
    id: str
    last_used_at: datetime | None = None
    name: str | None = None
    scope: Scope
    tenant: str
    """The tenant's id."""
    secret: str
    """The key to send. It cannot be shown again."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "last_used_at": ("last_used_at", parse_time),
    }


class CreatorKey(Model):
    """The key that created a sandbox, never its secret."""

    id: str
    name: str | None = None
    """The name that the key had."""


class CurrentKey(Model):
    """The key of a request, and its tenant."""

    created_at: datetime
    created_by: str | None = None
    """The id of the user key that created it; it ends with that key. Null: an admin key or the server created
    it."""
    id: str
    last_used_at: datetime | None = None
    name: str | None = None
    scope: Scope
    tenant: str
    """The tenant's id."""
    tenant_name: str
    """The tenant's name."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "last_used_at": ("last_used_at", parse_time),
    }


class Detached(Model):
    """A detached process, or the first event of a stream."""

    pid: int
    """Its pid inside the sandbox."""


class DiskItem(Model):
    """One thing that takes space. Bytes that several layers or snapshots share count for the one that wrote
    them."""

    bytes: int
    """Bytes that only it has."""
    id: str
    """The id; of a template its version."""
    kind: str
    """`sandbox`, `memory` (of a sandbox that is paused to disk), `snapshot`, `volume`, `template` or `archive`."""
    name: str | None = None
    shared_bytes: int
    """Bytes of layers that other templates have too."""
    state: str | None = None
    """The phase of a sandbox; `mounted` for a volume in use; `memory` for a snapshot with processes."""
    tenant: str | None = None
    """The id of its tenant; null for what belongs to the server."""


class DiskPart(Model):
    """A part of the data folder."""

    bytes: int
    name: str


class DiskTotals(Model):
    """The disk of the data folder."""

    free_bytes: int
    """Free bytes, the reserve included."""
    pool_bytes: int | None = None
    """Bytes that the pool of layers takes; null where it has no file of its own."""
    pool_free_bytes: int | None = None
    """Bytes of the pool that nothing uses yet."""
    reserve_bytes: int
    """What `--disk-reserve` keeps free."""


class TenantDisk(Model):
    """What a tenant takes."""

    archive_bytes: int
    memory_bytes: int
    name: str
    sandbox_bytes: int
    snapshot_bytes: int
    template_bytes: int
    tenant: str
    """Its id."""
    volume_bytes: int


class DiskUse(Model):
    """What takes space."""

    disk: DiskTotals | None = None
    items: list[DiskItem]
    """Sandboxes, memory of paused ones, snapshots, volumes, templates and archives, the largest first."""
    parts: list[DiskPart]
    """The parts of the data folder and the cache of downloads, the largest first. Empty for a user key."""
    tenants: list[TenantDisk]
    """The sums of each tenant."""

    _convert = {
        "disk": ("disk", DiskTotals),
        "items": ("items", each(DiskItem)),
        "parts": ("parts", each(DiskPart)),
        "tenants": ("tenants", each(TenantDisk)),
    }


class EditResult(Model):

    diff: str
    """Unified diff of the change."""
    replacements: int
    """Number of places that were replaced."""


EgressVerdict = Literal["allowed", "refused", "failed"]
"""`failed`: the connection was allowed but failed, because the name does not exist or the destination did not
answer."""

EgressWhat = Literal["dns", "tls", "http", "flow", "lost"]
"""Kind of traffic: a DNS question, a TLS connection or a plain HTTP request through the gate, or a flow that the
kernel decided alone. `lost`: records are missing because they arrived too fast."""

class Egress(Model):
    """A decision about outbound traffic of a sandbox. Contains no content and no header."""

    address: str | None = None
    at: datetime
    name: str | None = None
    """Requested name, if known."""
    port: int | None = None
    protocol: str | None = None
    """`tcp`, `udp`, `icmp` or a number."""
    received: int
    """Bytes received by the sandbox."""
    rule: str
    """Entry of a list or rule that decided, such as `allow_domains: *.example.com` or `never: private`."""
    sent: int
    """Bytes sent by the sandbox."""
    verdict: EgressVerdict
    what: EgressWhat

    _convert = {
        "at": ("at", parse_time),
    }


class Hold(Model):
    """A hold, which prevents idle timers from acting."""

    reason: str | None = None
    """Reason, for people."""
    until: datetime

    _convert = {
        "until": ("until", parse_time),
    }


Intent = Literal["run", "pause", "stop", "archive", "delete"]
"""The state that the owner wants for the sandbox."""

Isolation = Literal["none", "container", "vm", "vendor"]
"""What separates a sandbox from its machine: nothing, a container of a shared kernel, a virtual machine, or a
vendor's service."""

MemoryLocation = Literal["live", "disk"]
"""Where the memory of a paused sandbox is: `live` (in memory, with its processes frozen) or `disk` (written to disk
and freed)."""

class Mount(Model):
    """A volume in a sandbox."""

    path: str
    """Path in the sandbox."""
    read_only: bool
    sub_path: str | None = None
    """Only this folder of the volume."""
    volume: str
    """The volume's id."""


LeftBehindKind = Literal["processes", "files", "mounts", "snapshots", "template", "user", "owners"]
"""What can stay behind in a move."""

class LeftBehind(Model):
    """Something of a sandbox that did not move with it."""

    count: int
    """How many there are."""
    kind: LeftBehindKind
    names: list[str]
    """The first of them: paths, ids, or a sentence."""


MoveCarried = Literal["layer", "folders"]
"""What a move carried of the files: the `layer` of everything that differs from the template, or the `folders` home
and working directory."""

class MoveReport(Model):
    """Result of the last move."""

    bytes: int
    """Bytes of files."""
    carried: MoveCarried
    ended_at: datetime
    entries: int
    """Files, folders and links."""
    failure: str | None = None
    """Why the sandbox stayed where it was; null: it was moved."""
    from_: str
    left_behind: list[LeftBehind]
    """What is not at the new provider."""
    to: str

    _convert = {
        "ended_at": ("ended_at", parse_time),
        "from": ("from_", same),
        "left_behind": ("left_behind", each(LeftBehind)),
    }


MoveStage = Literal["copying", "removing"]
"""How far a move is: `copying`, or `removing` what is left at the provider that the sandbox is not at."""

MoveStep = Literal["stopping", "preparing", "copying", "comparing"]
"""Step of the copy of a move."""

class Moving(Model):
    """A move that is not finished."""

    bytes: int
    """Bytes of files that were sent, or compared."""
    entries: int
    """Files, folders and links that were sent, or compared."""
    from_: str
    """Provider that the sandbox leaves."""
    stage: MoveStage
    started_at: datetime
    step: MoveStep
    template: str
    """Template or image that it gets there."""
    to: str
    """Provider that it goes to."""

    _convert = {
        "from": ("from_", same),
        "started_at": ("started_at", parse_time),
    }


class NetworkLimits(TypedDict, total=False):
    """Traffic limits. Default: the server's limits."""
    bytes_per_destination: int | None
    """Limit of bytes in both directions with one address or name, per boot of the sandbox."""
    connections: int | None
    """Limit of simultaneous connections."""
    down_bytes_per_s: int | None
    """Download limit in bytes per second."""
    up_bytes_per_s: int | None
    """Upload limit in bytes per second."""


NetworkMode = Literal["allow-all", "deny-all", "custom"]
"""What happens to a destination that is in no list: it is allowed (`allow-all`) or refused (`custom`). `deny-all`
refuses everything and has no lists."""

class Transform(TypedDict, total=False):
    """Changes to requests for one domain. TLS is terminated outside the sandbox, with a certificate authority that
    only this sandbox trusts."""
    domain: Required[str]
    inject_headers: dict[str, str]
    """Headers to set; they replace those that the sandbox sent. `{secret:NAME}` stands for a secret of the tenant.
    Values are shown as `…`; an update with `…` keeps the stored value."""
    plain_http: bool
    """Apply also over plain HTTP, where every hop can read the headers."""
    strip_headers: list[str]
    """Headers to remove."""


class NetworkPolicy(TypedDict, total=False):
    """A complete policy."""
    allow_cidrs: list[str]
    """Address ranges that are allowed for every protocol, IPv4 or IPv6."""
    allow_domains: list[str]
    """Names that are allowed over TLS and HTTP: `example.com`, `*.example.com` (all names below it, not itself) or
    `*`."""
    deny_cidrs: list[str]
    """Address ranges that are refused; has precedence over the other lists."""
    learn: bool
    """Allow all public destinations and record them; `GET …/egress/policy` returns the smallest policy for them."""
    limits: NetworkLimits
    mode: Required[NetworkMode]
    transforms: list[Transform]
    """Changes to outbound requests; their domains are allowed."""


PlainNetwork = Literal["allow-all", "deny-all"]
"""`allow-all`: the public internet. `deny-all`: nothing, not even DNS."""

Network = Union[PlainNetwork, NetworkPolicy]
"""Network policy of a sandbox. It can never allow the host, other sandboxes, link-local or metadata addresses. It
can allow private ranges only by naming them, if the operator permits it."""

OnExit = Literal["keep", "pause", "destroy"]
"""What happens when the server shuts down in order, or when the thread of the sandbox ends."""

OnTimeout = Literal["delete", "stop", "pause"]
"""What happens when the timeout passes."""

Phase = Literal["creating", "running", "pausing", "paused", "resuming", "stopping", "stopped", "starting", "archiving", "archived", "restoring", "deleting", "deleted", "failed"]
"""Last observed state of the sandbox."""

class QueuePlace(Model):
    """Place of a create in the queue of a full server."""

    ahead: int
    """How many creates of all tenants start before it, as the queue is now."""
    position: int
    """Position among the queued creates of its tenant; 1 is the next one."""


ReasonCode = Literal["requested", "completed", "timed_out", "idle", "aged", "woken", "exit", "overdue", "queue_timed_out", "instance_died", "lost_while_down", "image_unavailable", "provider"]

class Reason(Model):
    """Reason of a change."""

    code: ReasonCode
    message: str | None = None
    """Message of the provider, or why there is no image."""


Stage = Literal["queued", "pulling", "building", "booting"]
"""Progress of a create."""

Storage = Literal["disk", "memory"]
"""Where the files of the sandbox are stored; files in `memory` are lost when it stops."""

TimeoutCounts = Literal["always", "awake"]
"""When a lifetime counts: `always`, or only while the sandbox is `awake`. Sandboxes that an E2B SDK created use
`awake`."""

Wake = Literal["any", "explicit"]
"""Which requests wake a paused, stopped or archived sandbox: `any` request that needs it, or only `start` and
`resume`."""

class SandboxInfo(Model):
    """A sandbox: an isolated Linux environment."""

    active_at: datetime | None = None
    """Time of the last recorded activity; `awake` is more exact."""
    archive: Archive | None = None
    auto_archive_s: int | None = None
    """Archive the sandbox after it was stopped for this many seconds; null is never."""
    auto_delete_s: int | None = None
    """Delete the sandbox after it was stopped for this many seconds; 0 deletes it with the stop; null is never."""
    auto_pause_s: int | None = None
    """Pause the sandbox after this many idle seconds; null is never."""
    auto_stop_s: int | None = None
    """Stop the sandbox after this many idle seconds; null is never."""
    awake: Awake | None = None
    """Only if a single sandbox is requested and it is not deleted."""
    build: str | None = None
    """Build of its image, if both were created together."""
    checkpoint_after_s: int | None = None
    """Write the memory to disk after the sandbox was paused for this many seconds; null is never."""
    command: list[str] | None = None
    """Start command, which runs at every boot; its output is in the logs."""
    command_failure: CommandFailure | None = None
    """How the start command failed since the last boot; absent if it did not."""
    cpu: float
    """Cores."""
    created_at: datetime
    created_by_key: CreatorKey | None = None
    disk_mib: int
    env_names: list[str]
    """Names of environment variables; values are never shown."""
    generation: int
    """Number of changes."""
    held: MemoryLocation | None = None
    hold: Hold | None = None
    id: str
    instance: str | None = None
    """Current instance, or the one that is being made."""
    intent: Intent
    """Wanted state."""
    isolation: Isolation | None = None
    """What separates it from the machine that it runs on."""
    labels: dict[str, str]
    last_move: MoveReport | None = None
    """Its last move to another provider; absent if it was never moved."""
    memory_mib: int
    mounts: list[Mount]
    """Volumes to mount."""
    moving: Moving | None = None
    """Its move to another provider; only until nothing is left of it at the other one."""
    name: str | None = None
    """Unique among the tenant's sandboxes."""
    network: Network
    network_narrowed_by: list[str] | None = None
    """Which other policies narrow `network`: `tenant`, `operator`. Absent if there is none, and in lists."""
    node: str | None = None
    """Node that has its files and processes."""
    on_exit: OnExit
    on_timeout: OnTimeout
    parent: str | None = None
    """Sandbox that it was forked from, or whose snapshot or archive it was created from."""
    phase: Phase
    """Last observed state."""
    phase_at: datetime
    """When the phase last changed."""
    pids: int
    """Processes and threads."""
    private_env: list[str]
    """Names of variables that forks and snapshots do not inherit."""
    provider: str
    public: bool
    """Whether its ports are open to everyone who knows their addresses."""
    queue: QueuePlace | None = None
    """Its place in the queue; only while it waits for one of the server's places."""
    reason: Reason
    """Why the sandbox is in this phase."""
    snapshot: str | None = None
    """Snapshot that it was created from."""
    stage: Stage | None = None
    """Progress of the create; only while the sandbox is being created."""
    started_at: datetime | None = None
    """Time of the last start."""
    stopped_at: datetime | None = None
    """Time of the last stop; null while it runs."""
    storage: Storage
    template: str
    template_version: str
    tenant: str
    """The tenant's id."""
    thread: str | None = None
    """Thread that the sandbox is bound to."""
    timeout_at: datetime | None = None
    timeout_counts: TimeoutCounts
    timeout_s: int | None = None
    """Lifetime in seconds."""
    user: str
    """Default user of commands."""
    wake: Wake
    workdir: str
    """Default working directory of commands."""

    _convert = {
        "active_at": ("active_at", parse_time),
        "archive": ("archive", Archive),
        "awake": ("awake", Awake),
        "command_failure": ("command_failure", CommandFailure),
        "created_at": ("created_at", parse_time),
        "created_by_key": ("created_by_key", CreatorKey),
        "hold": ("hold", Hold),
        "last_move": ("last_move", MoveReport),
        "mounts": ("mounts", each(Mount)),
        "moving": ("moving", Moving),
        "phase_at": ("phase_at", parse_time),
        "queue": ("queue", QueuePlace),
        "reason": ("reason", Reason),
        "started_at": ("started_at", parse_time),
        "stopped_at": ("stopped_at", parse_time),
        "timeout_at": ("timeout_at", parse_time),
    }


class Ended(Model):
    """What happened to the sandboxes of a thread."""

    items: list[SandboxInfo]

    _convert = {
        "items": ("items", each(SandboxInfo)),
    }


EntryKind = Literal["file", "directory", "symlink", "other"]

class Entry(Model):
    """A file, directory or link."""

    group: str
    kind: EntryKind
    mode: str
    """Permission bits in octal."""
    modified_at: datetime
    name: str
    """The last part of its path."""
    name_base64: str | None = None
    """The exact name, only if it is not valid UTF-8."""
    owner: str
    path: str
    """Absolute."""
    path_base64: str | None = None
    """The exact path, only if it is not valid UTF-8."""
    size: int
    symlink_target: str | None = None
    """Target of a link."""

    _convert = {
        "modified_at": ("modified_at", parse_time),
    }


What = dict[str, Any]
"""What happened."""

class Event(Model):
    """An event of a sandbox."""

    from_: str | None = None
    kind: Literal["phase", "stage", "queued", "out_of_memory", "snapshotted", "forked", "checkpointed", "moved", "updated"]
    reason: Reason | None = None
    to: str | None = None
    stage: Stage | None = None
    queue: QueuePlace | None = None
    memory: bool | None = None
    """Whether its processes are included."""
    snapshot: str | None = None
    children: list[str] | None = None
    failure: str | None = None
    """The error; the sandbox stayed where it was."""
    fields: list[str] | None = None
    at: datetime
    by: CreatorKey | None = None
    instance: str | None = None
    sandbox: str
    seq: int
    """Sequence number of the event; send it as `after`."""
    tenant: str

    _convert = {
        "from": ("from_", same),
        "reason": ("reason", Reason),
        "queue": ("queue", QueuePlace),
        "at": ("at", parse_time),
        "by": ("by", CreatorKey),
    }


class ExecResult(Model):
    """Result and output of a command."""

    duration_ms: int
    exit_code: int
    """Exit code; 128 + the signal if a signal ended the process, 124 after a timeout."""
    pid: int
    """Its pid inside the sandbox."""
    signal: int | None = None
    """The signal that ended it."""
    stderr: str
    stderr_base64: str | None = None
    """The exact bytes, only if stderr is not valid UTF-8."""
    stdout: str
    stdout_base64: str | None = None
    """The exact bytes, only if stdout is not valid UTF-8."""
    timed_out: bool
    truncated: bool
    """Whether the output is longer than shown."""


class Forked(Model):
    """Result of a fork."""

    memory: bool
    """Whether the copies have the processes of the source."""
    memory_refused: str | None = None
    """Why the processes were not copied, if that was requested."""
    sandboxes: list[SandboxInfo]

    _convert = {
        "sandboxes": ("sandboxes", each(SandboxInfo)),
    }


class GitBranches(Model):

    current: str | None = None
    """Branch that is checked out."""
    items: list[str]
    """Local branches by name."""


GitChange = Literal["unmodified", "untracked", "modified", "type_changed", "added", "deleted", "renamed", "copied", "unmerged"]
"""How a file differs."""

class GitCommit(Model):

    at: datetime
    author: str
    email: str
    hash: str
    message: str
    """Subject and body."""

    _convert = {
        "at": ("at", parse_time),
    }


class GitCommitted(Model):

    hash: str
    """Hash of the new commit."""
    output: str


class GitCredentials(TypedDict, total=False):
    """User name and password or token for HTTP. They are used for one request and not stored. Not printed by
    `Debug`."""
    password: Required[str]
    username: str
    """Not needed for most tokens."""


class GitFile(Model):
    """A file that differs."""

    from_: str | None = None
    """Earlier path of a renamed or copied file."""
    path: str
    """Relative to the top of the repository."""
    staged: GitChange
    """The change that the next commit contains."""
    worktree: GitChange
    """The change that is not staged."""

    _convert = {
        "from": ("from_", same),
    }


class GitLog(Model):
    """Commits, newest first."""

    items: list[GitCommit]

    _convert = {
        "items": ("items", each(GitCommit)),
    }


class GitRemote(Model):
    """A remote repository."""

    name: str
    url: str
    """Address, without credentials."""


class GitRemotes(Model):

    items: list[GitRemote]

    _convert = {
        "items": ("items", each(GitRemote)),
    }


GitResetMode = Literal["soft", "mixed", "hard"]
"""How much a reset changes."""

class GitResult(Model):
    """What git printed."""

    output: str
    truncated: bool
    """Whether the output is longer than shown."""


class GitStatus(Model):
    """State of a working tree."""

    ahead: int | None = None
    """Commits that the upstream lacks; null without a known upstream."""
    behind: int | None = None
    """Commits that only the upstream has."""
    branch: str | None = None
    """Branch that is checked out; null if a commit is."""
    commit: str | None = None
    """Last commit; null before the first."""
    files: list[GitFile]
    """Files that differ from the last commit."""
    upstream: str | None = None
    """Branch of a remote that the branch follows."""

    _convert = {
        "files": ("files", each(GitFile)),
    }


class GrepMatch(Model):

    line: int
    """Number of the line, from 1."""
    path: str
    text: str
    """The line, shortened if it is very long."""


class GrepResult(Model):
    """Lines that match, sorted by path."""

    items: list[GrepMatch]
    truncated: bool
    """Whether a limit was reached, so that there may be more."""

    _convert = {
        "items": ("items", each(GrepMatch)),
    }


class Lineage(Model):
    """Returns the sandbox or snapshot that a sandbox was created from, and the sandboxes created from it."""

    children: list[str]
    """Sandboxes that were created from it."""
    parent: str | None = None
    """Sandbox that it was forked from, or whose snapshot or archive it was created from; it may be deleted."""
    snapshot: str | None = None
    """Snapshot that it was created from."""


class Login(Model):
    """A login as the person sees it who may approve it."""

    address: str | None = None
    """The address from which it was started."""
    code: str
    created_at: datetime
    expires_at: datetime
    name: str
    """The name that the client gave itself. It proves nothing."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "expires_at": ("expires_at", parse_time),
    }


LoginState = Literal["pending", "approved", "denied"]
"""The state of a login."""

class LoginPoll(Model):
    """The answer to a poll."""

    key: CreatedKey | None = None
    state: LoginState
    tenant_name: str | None = None
    """The name of the key's tenant."""

    _convert = {
        "key": ("key", CreatedKey),
    }


MadeFrom = Literal["built-in", "image", "build", "import"]
"""Origin of a template."""

class MountBody(TypedDict, total=False):
    """A volume in a sandbox."""
    path: Required[str]
    """Absolute path in the sandbox."""
    read_only: bool
    """Whether the mount is read-only."""
    sub_path: str | None
    """Only this folder of the volume; created if missing."""
    volume: Required[str]
    """Id or name of the volume."""


class ListedPreview(Model):
    """Access to one port of a sandbox."""

    created_at: datetime
    expires_at: datetime | None = None
    """Expiry; null if the preview is valid until it is removed."""
    id: str
    path: str
    """The same on the server's own address, for clients that cannot resolve the host name."""
    port: int
    public: bool
    """Whether everyone may use it without a token."""
    sandbox: str
    """The sandbox's id."""
    url: str
    """URL with its own host name, without the token, which is shown only once."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "expires_at": ("expires_at", parse_time),
    }


class NewPreview(Model):
    """A new preview with its token."""

    created_at: datetime
    expires_at: datetime | None = None
    """Expiry; null if the preview is valid until it is removed."""
    id: str
    path: str
    """The same on the server's own address, for clients that cannot resolve the host name."""
    port: int
    public: bool
    """Whether everyone may use it without a token."""
    sandbox: str
    """The sandbox's id."""
    url: str
    """URL with its own host name, without the token, which is shown only once."""
    token: str | None = None
    """Shown only once, and part of `url` and `path`; null for a public preview."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "expires_at": ("expires_at", parse_time),
    }


class ProcessInfo(Model):
    """A process that runs."""

    argv: list[str]
    cwd: str
    pid: int
    """Its pid inside the sandbox."""
    pty: bool
    """Whether it has a terminal."""
    running: bool
    started_at: datetime | None = None
    tag: str | None = None
    user: str

    _convert = {
        "started_at": ("started_at", parse_time),
    }


Status = Literal["ok", "degraded"]

class Provider(Model):
    """A provider of this server."""

    best_for: str
    """What it is best for, in a few words."""
    capabilities: list[str]
    """What it can do on this machine; a request that needs another capability is refused with `unsupported`."""
    cost: str
    """What a sandbox costs, in a few words."""
    default: bool
    """Whether a create without `provider` uses it."""
    health: Status
    isolation: Isolation | None = None
    kind: str
    """What it is; providers of one kind differ in name only."""
    name: str
    """Send it as `provider` of a create."""
    problem: str | None = None
    """Why it is degraded."""


class ProviderSettings(Model):
    """The settings of a provider. Secrets are never part of it."""

    name: str
    problem: str | None = None
    """Why the provider takes no new sandboxes."""
    settings: dict[str, Any]
    """The settings file, without its secrets."""
    sources: dict[str, str]
    """Where each value comes from that can also be set by a variable: `file`, `environment (NAME)` or `config.env
    (NAME)`."""


class ProviderTest(Model):
    """The outcome of a test."""

    hint: str | None = None
    """What would help."""
    ok: bool
    """Whether sandboxes can be created there."""
    problem: str | None = None
    """What is wrong, in one sentence."""


class PruneEntry(Model):
    """One thing, or several of a kind."""

    bytes: int | None = None
    """Bytes on the disk, if known."""
    kind: str
    """`sandbox`, `template`, `layers`, `build`, `download`, `log`, `snapshot` or `volume`."""
    name: str
    """Its name, or a number where it stands for several."""
    why: str
    """Why it goes or stays."""


class PruneReport(Model):
    """What was removed, or would be, and what is kept."""

    applied: bool
    """Whether it was removed."""
    kept: list[PruneEntry]
    removed: list[PruneEntry]

    _convert = {
        "kept": ("kept", each(PruneEntry)),
        "removed": ("removed", each(PruneEntry)),
    }


class PruneRequest(TypedDict, total=False):
    """What to remove."""
    apply: bool
    """Whether to remove it. Otherwise it is only listed."""
    older_than_s: int | None
    """Failed sandboxes, ended builds, logs and downloads of at least this age in seconds; a week by default."""


class Quota(TypedDict, total=False):
    """Limits of a tenant; null or absent is no limit."""
    cpu: float | None
    """Total cores of running and starting sandboxes."""
    disk_mib: int | None
    """Total disk of sandboxes that are not deleted."""
    memory_mib: int | None
    """Total memory of running and starting sandboxes."""
    sandboxes: int | None
    """Number of sandboxes that are not deleted."""
    volume_mib: int | None
    """Total size of volumes."""
    volumes: int | None
    """Number of volumes."""


Ready = dict[str, Any]
"""Ready check of the start command."""

class RegistryAuth(TypedDict, total=False):
    """Credentials for a registry: a user name with a password, or a token alone."""
    password: str | None
    token: str | None
    username: str | None


class SampleLimits(Model):
    """Limits of the sandbox."""

    cpu: float
    disk_mib: int
    memory_mib: int
    pids: int


class Sample(Model):
    """Resource use of a sandbox at one time."""

    at: datetime
    cache_bytes: int
    """Part of it that is page cache and can be dropped."""
    cpu_pct: float
    """One core is 100."""
    cpu_us: int
    """CPU time since the sandbox started."""
    disk_bytes: int | None = None
    """Bytes in its own layer; null: its provider does not measure it."""
    limits: SampleLimits
    memory_bytes: int
    """Memory charged to it, page cache included."""
    pids: int
    """Processes and threads."""
    received_bytes: int | None = None
    """Bytes that it received over the network since it started, loopback excepted; null: its provider does not
    measure it."""
    sent_bytes: int | None = None
    """Bytes that it sent over the network since it started, loopback excepted; null: its provider does not measure
    it."""

    _convert = {
        "at": ("at", parse_time),
        "limits": ("limits", SampleLimits),
    }


class SearchResult(Model):
    """Paths that match, sorted."""

    items: list[str]
    truncated: bool
    """Whether a limit was reached, so that there may be more."""


class Secret(Model):
    """A secret without its value."""

    created_at: datetime
    name: str
    rotated_at: datetime | None = None
    """Time of the last rotation; null if the value was never replaced."""
    used_by: int
    """Number of sandboxes that use it."""

    _convert = {
        "created_at": ("created_at", parse_time),
        "rotated_at": ("rotated_at", parse_time),
    }


class ServerCheck(Model):
    """The result of one check."""

    fix: str | None = None
    """One line that repairs it."""
    found: str
    """What was found."""
    name: str
    state: CheckState


class ServerSetting(Model):
    """An option of the server."""

    about: str
    """What the option is for."""
    name: str
    """As on the command line."""
    source: str
    """Where they come from: `default`, `option`, `environment (NAME)`, or the place in the configuration file
    (`FILE:LINE`)."""
    values: list[str]
    """Values in effect; empty where the option is not set and has no default."""


class ServerReport(Model):
    """The server: checks of its machine, and its settings."""

    checks: list[ServerCheck]
    """The checks of `atoll doctor`."""
    settings: list[ServerSetting]
    """The options of `atoll serve` with their values."""
    version: str

    _convert = {
        "checks": ("checks", each(ServerCheck)),
        "settings": ("settings", each(ServerSetting)),
    }


class Session(Model):
    """A shell that keeps its directory, variables and functions between commands."""

    name: str


class SessionCommand(Model):
    """A command of a session."""

    command: str
    exit_code: int | None = None
    """Null while it runs or waits for its turn."""
    id: str


class SessionDetails(Model):
    """A session and its commands, oldest first."""

    commands: list[SessionCommand]
    name: str

    _convert = {
        "commands": ("commands", each(SessionCommand)),
    }


class SessionOutput(Model):
    """What a command has written so far: the last 16 MiB of each stream."""

    exit_code: int | None = None
    """Null while it runs or waits for its turn."""
    stderr: str
    stdout: str


class SessionResult(Model):
    """Result and output of a command."""

    exit_code: int
    id: str
    """Id of the command."""
    stderr: str
    stdout: str
    """If the output is longer than 16 MiB, the middle is left out and a line says so."""


class SessionStarted(Model):
    """A command that the shell has."""

    id: str
    """Id of the command."""


Signal = Union[int, str]
"""A name (`TERM`, `SIGTERM`) or a number."""

SnapshotState = Literal["making", "ready", "deleting"]
"""State of a snapshot."""

class Snapshot(Model):
    """A snapshot of a sandbox."""

    bytes: int
    """Size in bytes, if known."""
    command: list[str] | None = None
    cpu: float
    """CPU limit of its sandbox in cores."""
    created_at: datetime
    disk_mib: int
    env_names: list[str]
    """Names of environment variables, without private ones; values are never shown."""
    id: str
    memory: bool
    """Whether the snapshot contains processes."""
    memory_mib: int
    name: str | None = None
    """Unique among the snapshots of its sandbox, or among those of the tenant if `tenant_wide` is true."""
    network: Network
    """Network policy of its sandbox, and the default of sandboxes that are created from it."""
    node: str | None = None
    """Node that has its files."""
    pids: int
    provider: str
    """Provider that keeps the snapshot; sandboxes that are created from it live there."""
    sandbox: str
    """Sandbox that the snapshot was taken of; it may be deleted."""
    sandbox_name: str | None = None
    """Name that the sandbox had when the snapshot was taken."""
    state: SnapshotState
    stood_still_us: int
    """Time in microseconds for which the sandbox was frozen."""
    template: str
    template_version: str
    tenant: str
    """The tenant's id."""
    tenant_wide: bool
    """Whether the name is unique within the tenant. Snapshots of older servers have such names."""
    user: str
    workdir: str

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class Start(TypedDict, total=False):
    """Start settings of a template. Absent fields have the value from its steps."""
    command: list[str] | None
    """Start command, which runs at every boot."""
    cpu: float | None
    """Default CPU limit of sandboxes in cores."""
    disk_mib: int | None
    """Default disk limit of sandboxes."""
    env: dict[str, str]
    """Environment of every command, in addition to that of its steps."""
    memory_mib: int | None
    """Default memory limit of sandboxes."""
    pids: int | None
    """Default limit of processes and threads of sandboxes."""
    pool: int | None
    """Number of ready instances to keep for the next creates."""
    port: int | None
    """Default port of previews."""
    ready: Ready | None
    user: str | None
    """User that runs commands."""
    workdir: str | None
    """Working directory of commands."""


class StartedLogin(Model):
    """A login that was started; its secret is shown only here."""

    code: str
    """For the person who approves it. It works once."""
    expires_at: datetime
    poll_every_s: int
    """How long to wait between two polls."""
    secret: str
    """To be sent as the bearer of `POST /v1/logins/poll`."""

    _convert = {
        "expires_at": ("expires_at", parse_time),
    }


class Template(Model):
    """A template, from which sandboxes are created."""

    aliases: list[str]
    """Other names of the template."""
    cmd: list[str] | None = None
    """`Cmd` of the image; not started."""
    command: list[str] | None = None
    """Start command, which runs at every boot unless the sandbox has its own."""
    cpu: float | None = None
    """Default CPU limit of sandboxes in cores; null is the server's default."""
    created_at: datetime
    disk_mib: int | None = None
    """Default limit of sandboxes; null is the server's default."""
    entrypoint: list[str] | None = None
    """`Entrypoint` of the image; not started."""
    env: dict[str, str]
    """Environment of every sandbox of the template."""
    kind: str
    """`host`, `rootfs` or `image`."""
    labels: dict[str, str]
    """Of the image."""
    layers: int | None = None
    made_from: MadeFrom
    manifest: str | None = None
    """Digest of the image's manifest, if it was pulled."""
    memory_mib: int | None = None
    """Default limit of sandboxes; null is the server's default."""
    name: str
    nodes: list[str] | None = None
    """Nodes that have its files; absent for a built-in template, which each node has for itself."""
    notes: list[str]
    """Notes, such as instructions that were ignored."""
    pids: int | None = None
    """Default limit of sandboxes; null is the server's default."""
    pool: int | None = None
    """Number of ready instances to keep for the next creates; null is the server's default."""
    port: int | None = None
    """Default port of previews."""
    public: bool
    """Whether other tenants may use the template."""
    ready: Ready | None = None
    size_bytes: int | None = None
    """Size of its files in bytes, if known."""
    sudo: bool
    """Whether programs inside can gain privileges."""
    tag: str | None = None
    """Requested tag; null for a built-in template."""
    tags: list[str]
    """All tags of its name."""
    tenant: str | None = None
    """Tenant that owns the template; null for a built-in template."""
    user: str
    version: str
    """Digest of the exact content; sandboxes keep their version when a tag moves."""
    warm: bool
    """Whether its sandboxes start with the processes that ran when it was built."""
    workdir: str

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class Tenant(Model):

    created_at: datetime
    id: str
    name: str
    network: Network | None = None
    providers: list[str] | None = None
    """Providers that it may use; null: those of the kinds `container` and `microvm`, and the server's default; for
    the first tenant every provider."""
    quota: Quota

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class TerminalInfo(Model):
    """A shell that keeps its directory and environment between commands."""

    created_at: datetime
    id: str
    pid: int
    """The shell's pid inside the sandbox."""
    sandbox: str
    thread: str
    """Thread that the terminal belongs to."""

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class TextEdit(TypedDict, total=False):
    """A replacement of exact text."""
    all: bool
    """Replace every occurrence."""
    find: Required[str]
    """Text to find. It must occur exactly once unless `all` is set."""
    replace: Required[str]


class Thread(Model):
    """A thread of conversation."""

    created_at: datetime
    phase: Phase | None = None
    provider: str
    """Provider of all its sandboxes; it never changes."""
    sandbox: str | None = None
    """Id of its sandbox; null if the sandbox is deleted."""
    tenant: str
    """The tenant's id."""
    thread: str
    """Name that the client chose; unique within the tenant."""

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class Usage(Model):
    """Current use of a tenant, counted like its quota."""

    cpu: float
    disk_mib: int
    memory_mib: int
    sandboxes: int
    volume_mib: int
    volumes: int


class UsageAnswer(Model):
    """Returns the current use and the quota of a tenant."""

    quota: Quota
    usage: Usage

    _convert = {
        "usage": ("usage", Usage),
    }


class Version(Model):

    api: str
    """Of the API."""
    version: str
    """Of the server."""


VolumeState = Literal["making", "ready", "deleting"]
"""State of a volume."""

class Volume(Model):
    """Files that outlive sandboxes."""

    created_at: datetime
    folder: str | None = None
    """Host folder of the volume, if it is one."""
    id: str
    mounted_by: int
    """Number of sandboxes that mount it and are not deleted."""
    name: str
    """Unique among the tenant's volumes."""
    node: str | None = None
    """Node that has its files."""
    parent: str | None = None
    """Volume that it was copied from."""
    provider: str | None = None
    """Provider that keeps the files; sandboxes of other providers cannot mount them."""
    read_only: bool
    """Whether the volume is read-only for every mount."""
    size_mib: int | None = None
    """Size limit; null for a host folder, which has no limit."""
    state: VolumeState
    tenant: str
    """The tenant's id."""
    used_bytes: int | None = None
    """Current use, if known."""

    _convert = {
        "created_at": ("created_at", parse_time),
    }


class VolumeEntry(Model):
    """A file, directory or link of a volume."""

    accessed_at: datetime
    changed_at: datetime
    gid: int
    """As sandboxes see it."""
    kind: EntryKind
    mode: str
    """Permission bits in octal."""
    modified_at: datetime
    name: str
    """The last part of its path."""
    path: str
    """Path from the top of the volume."""
    size: int
    symlink_target: str | None = None
    """Target of a link."""
    uid: int
    """As sandboxes see it."""

    _convert = {
        "accessed_at": ("accessed_at", parse_time),
        "changed_at": ("changed_at", parse_time),
        "modified_at": ("modified_at", parse_time),
    }


class CreateOptions(TypedDict, total=False):
    """Request to create a sandbox. Every field is optional."""
    archive: str | None
    """Key of an archive to create the sandbox from, instead of a template."""
    auto_archive_s: int | None
    """Archive the sandbox after it was stopped for this many seconds; -1 is never."""
    auto_delete_s: int | None
    """Delete the sandbox after it was stopped for this many seconds; 0 deletes it with the stop; -1 is never."""
    auto_pause_s: int | None
    """Pause the sandbox after this many idle seconds; -1 is never."""
    auto_stop_s: int | None
    """Stop the sandbox after this many idle seconds; -1 is never."""
    checkpoint_after_s: int | None
    """Write the memory to disk after the sandbox was paused for this many seconds; -1 is never."""
    command: list[str] | None
    """Start command, which runs at every boot; its output is in the logs."""
    cpu: float | None
    """Cores, fractions allowed."""
    disk_mib: int | None
    env: dict[str, str]
    """Environment of every command."""
    image: str | None
    """Image from a registry to use instead of a template; pulled if needed."""
    labels: dict[str, str]
    memory: bool
    """With `snapshot`: restore its processes too. Refused if the snapshot has none."""
    memory_mib: int | None
    mounts: list[MountBody]
    """Volumes to mount."""
    name: str | None
    """Unique within the tenant: letters, digits, `-`, `_`, `.`."""
    network: Network | None
    on_exit: OnExit | None
    on_timeout: OnTimeout | None
    pids: int | None
    """Processes and threads."""
    private_env: list[str]
    """Names in `env` that forks and snapshots do not inherit."""
    provider: str | None
    """Provider, as `GET /v1/providers` lists them. Default: that of the thread or the snapshot, else the server's.
    A thread that is bound to another provider is refused with `thread_bound`."""
    public: bool
    """Whether its ports are open to everyone who knows their addresses. Default: only with a key or a preview."""
    queue: bool
    """Wait for a place if the server or the quota of the tenant is full: the sandbox is `creating` with stage
    `queued`. Default: a full server refuses at once with `no_capacity`. Cannot be combined with `archive`."""
    queue_timeout_s: int | None
    """With `queue`: how long to wait for a place. A sandbox that gets none in time is deleted with reason
    `queue_timed_out`. Default 600."""
    snapshot: str | None
    """Id or name of a snapshot to create the sandbox from, instead of a template."""
    storage: Storage | None
    thread: str | None
    """Thread to bind the sandbox to. A thread keeps the provider of its first sandbox, and a create for a thread
    that has a sandbox returns that sandbox with status 200."""
    timeout_s: int | None
    """Lifetime in seconds."""
    user: str | None
    """Default user of commands."""
    wake: Wake | None


class UpdateOptions(TypedDict, total=False):
    """Requested changes. Absent fields do not change."""
    auto_archive_s: int | None
    """Archive the sandbox after it was stopped for this many seconds; -1 is never."""
    auto_delete_s: int | None
    """Delete the sandbox after it was stopped for this many seconds; 0 deletes it with the stop; -1 is never."""
    auto_pause_s: int | None
    """Pause the sandbox after this many idle seconds; -1 is never."""
    auto_stop_s: int | None
    """Stop the sandbox after this many idle seconds; -1 is never."""
    checkpoint_after_s: int | None
    """Write the memory to disk after the sandbox was paused for this many seconds; -1 is never."""
    cpu: float | None
    disk_mib: int | None
    labels: dict[str, str] | None
    """Replaces all labels."""
    memory_mib: int | None
    network: Network | None
    on_exit: OnExit | None
    on_timeout: OnTimeout | None
    pids: int | None
    public: bool | None
    """Whether its ports are open to everyone."""
    timeout_s: int | None
    """New lifetime from now; null removes it."""
    wake: Wake | None


class BuildOptions(TypedDict, total=False):
    """Request of a build."""
    args: dict[str, str]
    """Values for `ARG`."""
    auth: RegistryAuth | None
    cpu: float | None
    """CPU limit of each step in cores."""
    disk_mib: int | None
    """Disk limit of each step."""
    dockerfile: str | None
    """Text of the Dockerfile. Default: the file in the context."""
    dockerfile_path: str | None
    """Path of the Dockerfile in the context, if its text is not given. Default `Dockerfile`."""
    memory_mib: int | None
    """Memory limit of each step."""
    network: Network | None
    no_cache: bool
    """Do not use cached steps."""
    pids: int | None
    """Limit of processes and threads of each step."""
    platform: str | None
    """Platform of base images. Default: this machine's."""
    secrets: list[BuildSecretBody]
    """Secrets for `RUN --mount=type=secret`. They appear in no layer, log or record."""
    start: Start
    """Start settings of the template, in addition to those of its steps."""
    tags: list[str]
    """Further tags of the same name."""
    target: str | None
    """Stage to build. Default: the last."""
    timeout_s: int | None
    """Time limit of the build. Default: the server's."""


class TemplateOptions(TypedDict, total=False):
    """Requested changes. Absent fields do not change. The changes apply to new sandboxes, for every version of the
    template."""
    aliases: list[str] | None
    """Replaces all its aliases."""
    command: list[str] | None
    """Start command, which runs at every boot."""
    cpu: float | None
    """Default CPU limit of sandboxes in cores."""
    disk_mib: int | None
    """Default disk limit of sandboxes."""
    env: dict[str, str]
    """Variables to add."""
    memory_mib: int | None
    """Default memory limit of sandboxes."""
    pids: int | None
    """Default limit of processes and threads of sandboxes."""
    pool: int | None
    """Number of ready instances to keep for the next creates."""
    port: int | None
    """Default port of previews."""
    public: bool | None
    """Whether other tenants may use the template. Needs an admin key."""
    ready: Ready | None
    reset: bool
    """Discard earlier changes first, so that the settings of the versions apply."""
    user: str | None
    """User that runs commands."""
    workdir: str | None
    """Working directory of commands."""

