//! Errors with a code from the closed list and a hint. Internal texts never leave the process: they are kept as the
//! source, for the log of the code that handles the error.

use std::fmt;
use std::sync::Arc;

use atoll_budget::{Exhausted, SocketsExhausted};
use atoll_model::lifecycle::Verb;
use atoll_model::policy::authz::Denied;
use atoll_model::{BadLimit, BadSpec, Code, ErrorKind, Lease, NodeName, Phase};
use atoll_provider::ProviderError;
use atoll_store::StoreError;

use crate::admission::NotAdmitted;

/// The cause, for logs only.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// An error of the service.
#[derive(Debug, Clone)]
pub struct ServiceError {
    /// The code from the closed list.
    pub code: Code,
    /// What happened, safe to show.
    pub message: String,
    /// The field of the request, if the error has one.
    pub field: Option<Box<InvalidField>>,
    /// A suggestion for the caller, if there is one.
    pub hint: Option<String>,
    /// When to retry, if that helps.
    pub retry_after_s: Option<u32>,
    /// The verb that the phase of a sandbox does not allow, where that is the error.
    pub refused: Option<Box<RefusedVerb>>,
    /// The cause for the log; it is never shown.
    pub cause: Option<Cause>,
}

/// A verb that a sandbox does not take in its phase, or in a phase that the caller did not expect. Nothing was changed.
/// Fronts write it in the words of their vendor.
#[derive(Debug, Clone)]
pub struct RefusedVerb {
    /// What was asked.
    pub verb: Verb,
    /// The sandbox as it was found.
    pub lease: Arc<Lease>,
}

/// A field of a request and what is wrong with it. Fronts whose clients know the field by another name translate it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidField {
    /// The name of the field in the native API.
    pub name: String,
    /// What is wrong, as the part of a sentence that follows the name.
    pub problem: String,
}

impl ServiceError {
    /// An error with a text that is safe to show.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: None,
            hint: None,
            retry_after_s: None,
            refused: None,
            cause: None,
        }
    }

    /// An invalid request because of one field.
    pub fn field(name: &str, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self::new(Code::InvalidRequest, format!("{name}: {problem}")).about(name, problem)
    }

    /// Sets the field of the error.
    #[must_use]
    pub fn about(mut self, name: &str, problem: impl Into<String>) -> Self {
        self.field = Some(Box::new(InvalidField { name: name.to_owned(), problem: problem.into() }));
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the time to retry.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// The kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.code.kind()
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause.as_ref() as &(dyn std::error::Error + 'static))
    }
}

/// The sandbox is in a phase that does not allow the operation; the hint names an operation that helps.
pub(crate) fn phase_conflict(lease: &Lease, what: &str) -> ServiceError {
    let hint = match lease.phase {
        Phase::Creating | Phase::Starting => "wait until it runs".to_owned(),
        Phase::Stopping => "wait until it is stopped".to_owned(),
        Phase::Stopped => "start it first".to_owned(),
        Phase::Pausing => "wait until it is paused".to_owned(),
        Phase::Paused => "resume it first".to_owned(),
        Phase::Resuming => "wait until it runs".to_owned(),
        Phase::Archiving => "wait until it is archived, or start it".to_owned(),
        Phase::Archived => "restore or start it first".to_owned(),
        Phase::Restoring => "wait until its files are back".to_owned(),
        Phase::Failed => "read its reason; start it again, or delete it".to_owned(),
        Phase::Deleting | Phase::Deleted => "create a new one".to_owned(),
        Phase::Running => "stop it first".to_owned(),
    };
    let message = format!("sandbox {} is {}, which does not allow {what}", lease.id, lease.phase.as_str());
    ServiceError::new(Code::PhaseConflict, message).hint(hint)
}

/// The sandbox does not take this verb as it is.
pub(crate) fn refused(lease: &Lease, verb: Verb) -> ServiceError {
    refused_as(lease, verb, verb.as_str())
}

/// The same, where the text names a part of what was asked.
pub(crate) fn refused_as(lease: &Lease, verb: Verb, what: &str) -> ServiceError {
    let refused = RefusedVerb { verb, lease: Arc::new(lease.clone()) };
    let error = ServiceError { refused: Some(Box::new(refused)), ..phase_conflict(lease, what) };
    match (verb, lease.phase) {
        (Verb::Restore, Phase::Running | Phase::Paused | Phase::Stopped) => {
            error.hint("only an archived sandbox can be restored; a rollback returns to a snapshot")
        }
        _ => error,
    }
}

/// The files or processes are on another node.
pub(crate) fn wrong_node(what: &str, node: &NodeName) -> ServiceError {
    ServiceError::new(Code::WrongNode, format!("{what} is on node {node}"))
        .hint(format!("send the request to the server of node {node}"))
}

impl From<Exhausted> for ServiceError {
    fn from(error: Exhausted) -> Self {
        Self::new(error.code(), error.to_string()).hint(error.hint()).retry_after(1)
    }
}

impl From<SocketsExhausted> for ServiceError {
    fn from(error: SocketsExhausted) -> Self {
        Self::new(error.code(), error.to_string()).hint(error.hint()).retry_after(1)
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Stale { sandbox } => {
                Self::new(Code::PhaseConflict, format!("sandbox {sandbox} was changed by another request"))
                    .hint("try again")
            }
            StoreError::WrongNode { what, node } => wrong_node(what, node),
            StoreError::LastAdminKey => Self::new(Code::Forbidden, "this is the last admin key")
                .hint("create another admin key first"),
            StoreError::NameTaken { name, by } => {
                Self::new(Code::NameTaken, format!("sandbox {by} has the name {name}"))
                    .hint("choose another name, or delete that one first")
            }
            StoreError::SnapshotNameTaken { name } => {
                Self::new(Code::NameTaken, format!("another snapshot has the name {name}"))
                    .hint("choose another name, or remove that one first: atoll snapshot ls")
            }
            StoreError::VolumeNameTaken { name } => {
                Self::new(Code::NameTaken, format!("another volume has the name {name}"))
                    .hint("choose another name, or remove that one first")
            }
            StoreError::NoVolume { volume } => {
                Self::new(Code::VolumeNotFound, format!("there is no volume {volume}"))
            }
            StoreError::VolumeInUse { name, users, by } => {
                let more = if by.len() < *users as usize { ", …" } else { "" };
                let who = if *users == 1 { "a sandbox".to_owned() } else { format!("{users} sandboxes") };
                let message = format!("volume {name} is mounted by {who}: {}{more}", by.join(", "));
                Self::new(Code::VolumeInUse, message)
                    .hint("delete the sandboxes that mount it first; stopped sandboxes count too")
            }
            StoreError::IdempotencyMismatch => {
                Self::new(Code::IdempotencyMismatch, "this idempotency key was used with another request")
                    .hint("use a new key for a new request")
            }
            StoreError::Quota(exceeded) => Self::new(Code::QuotaExceeded, exceeded.to_string())
                .hint("delete or stop sandboxes, delete snapshots, or ask the admin for a larger quota"),
            StoreError::ThreadBound { .. } => Self::new(Code::ThreadBound, error.to_string())
                .about("provider", "is not the provider of the thread")
                .hint("a thread keeps the provider of its first sandbox; use another thread"),
            StoreError::TooManyThreads { .. } => Self::new(Code::QuotaExceeded, error.to_string()).hint(
                "end threads whose sandboxes are deleted: DELETE /v1/threads/{thread}, or atoll thread end",
            ),
            StoreError::TooManySecrets { .. } => {
                Self::new(Code::QuotaExceeded, error.to_string()).hint("delete secrets that are not needed")
            }
            StoreError::TooManyKeys { .. } => Self::new(Code::QuotaExceeded, error.to_string())
                .hint("delete keys that are not needed, or ask the admin for a key"),
            StoreError::NoKey => Self::new(Code::Unauthenticated, "the key of this request was deleted")
                .hint("send a key that exists"),
            StoreError::TooManyTerminals { .. } => {
                Self::new(Code::SandboxExhausted, error.to_string()).hint("close some of them")
            }
            StoreError::TooManyPreviews { .. } => {
                Self::new(Code::QuotaExceeded, error.to_string()).hint("remove some of them first")
            }
            StoreError::NoInstance { .. } => Self::new(Code::SandboxUnavailable, error.to_string())
                .hint("start it first; a terminal belongs to a running or paused sandbox"),
            StoreError::NoTenant => Self::new(Code::TenantNotFound, "there is no such tenant"),
            StoreError::Exists { what } => Self::new(Code::AlreadyExists, format!("{what} exists already")),
            StoreError::BadCursor => {
                Self::field("cursor", "is not a cursor that a list returned").hint("start without a cursor")
            }
            StoreError::NoSpace => {
                Self::new(Code::NoCapacity, "the server's disk is full, so nothing new can be created")
                    .hint("delete objects that you do not need; deleting always works")
                    .retry_after(30)
            }
            StoreError::NotCommitted { .. } => {
                Self::new(Code::NoCapacity, "the change could not be recorded and did not take effect")
                    .hint("the server's disk may be full; its log says more")
                    .retry_after(30)
                    .caused_by(error)
            }
            StoreError::Closed => {
                Self::new(Code::Internal, "the change could not be recorded").caused_by(error)
            }
            StoreError::BadRow { .. } | StoreError::Database(_) | StoreError::Sealed { .. } => {
                Self::new(Code::Internal, "the record could not be read or written").caused_by(error)
            }
        }
    }
}

impl From<ProviderError> for ServiceError {
    fn from(error: ProviderError) -> Self {
        let text = error.to_string();
        match &error {
            ProviderError::Gone { sandbox } => {
                Self::new(Code::SandboxUnavailable, format!("sandbox {sandbox} no longer exists"))
                    .hint("start it again, or delete it")
            }
            ProviderError::NoTemplate { .. } => Self::new(Code::TemplateNotFound, text),
            ProviderError::HostChanged { .. } => Self::new(Code::HostChanged, text)
                .hint("create a new sandbox; the template is made again automatically"),
            ProviderError::Unsupported { hint, .. } | ProviderError::MissingCapability { hint, .. } => {
                Self::new(Code::Unsupported, text).hint(hint.clone())
            }
            ProviderError::Exhausted { .. } => Self::new(Code::NoCapacity, text)
                .hint("delete sandboxes, snapshots or volumes that you do not need, or try again later")
                .retry_after(5),
            ProviderError::Late { .. } => Self::new(Code::DeadlineExceeded, text).retry_after(2),
            ProviderError::Transient { .. } => Self::new(Code::SandboxUnavailable, text)
                .hint("try again; the state of the sandbox says what was done")
                .retry_after(1),
            ProviderError::Damaged { .. } => Self::new(Code::Damaged, text),
            ProviderError::BelowUse { .. } => {
                Self::new(Code::BelowUse, text).hint("free some of it first, or set a higher limit")
            }
            ProviderError::TooLargeToPack { .. } => Self::new(Code::DiskFull, text).hint(
                "an archive has files that share blocks (cp makes such copies) and files with very many holes as a whole: \
                 remove some of them, or give the sandbox a larger limit (atoll resize --disk)",
            ),
            ProviderError::NoVolume { .. } => Self::new(Code::VolumeNotFound, text),
            ProviderError::NotMountable { .. } => {
                Self::new(Code::InvalidArgument, text).hint("choose another mount path, or another folder")
            }
            ProviderError::PortClosed { port } => {
                Self::new(Code::SandboxUnavailable, format!("no program listens on port {port} inside"))
            }
            ProviderError::Refused { kind, .. } => Self::new(refused_code(*kind), text),
            ProviderError::Failed { step, .. } => {
                Self::new(Code::Internal, format!("{step} failed")).caused_by(error)
            }
        }
    }
}

/// The code of what was refused inside, in a file or a process.
const fn refused_code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => Code::FileNotFound,
        ErrorKind::Exists => Code::AlreadyExists,
        ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::Unauthenticated | ErrorKind::Forbidden => {
            Code::InvalidArgument
        }
        ErrorKind::Exhausted => Code::SandboxExhausted,
        ErrorKind::Unavailable => Code::SandboxUnavailable,
        ErrorKind::Unsupported => Code::Unsupported,
        ErrorKind::Internal => Code::Internal,
    }
}

impl From<NotAdmitted> for ServiceError {
    fn from(error: NotAdmitted) -> Self {
        match error {
            NotAdmitted::NoRoom(room) if room.is_of_tenant() => {
                Self::new(Code::QuotaExceeded, format!("the disk share of this tenant would be exceeded: it has {} MiB and needs {}", room.have, room.need))
                    .retry_after(room.retry_after_s)
                    .hint("delete sandboxes or volumes of this tenant, choose smaller disk limits, or ask the operator for a larger share (atoll serve --tenant-disk-share)")
            }
            NotAdmitted::NoRoom(room) if room.is_of_disk() => Self::new(Code::NoCapacity, room.to_string())
                .retry_after(room.retry_after_s)
                .hint("delete sandboxes, snapshots or volumes that you do not need, or choose a smaller disk limit (atoll create --disk)"),
            NotAdmitted::NoRoom(room) => Self::new(Code::NoCapacity, room.to_string())
                .retry_after(room.retry_after_s)
                .hint("wait for a place with queue: true (atoll create --queue), try again later, or delete sandboxes that you do not need"),
            NotAdmitted::TooLarge { asked, total } => {
                let problem =
                    format!("must be at most {total}, the memory of this machine in MiB, not {asked}");
                Self::new(Code::InvalidRequest, format!("memory_mib {problem}")).about("memory_mib", problem)
            }
            NotAdmitted::TooManyCores(refused) => {
                let problem = refused.problem();
                Self::new(Code::InvalidRequest, format!("cpu {problem}")).about("cpu", problem)
            }
            NotAdmitted::Node(error) => error.into(),
        }
    }
}

impl From<Denied> for ServiceError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Invisible => Self::new(Code::SandboxNotFound, "there is no such sandbox"),
            Denied::NeedsAdmin => Self::new(Code::Forbidden, denied.to_string())
                .hint("use the admin key, or run the command with sudo on the server's machine"),
            Denied::NeedsRoot => Self::new(Code::Forbidden, denied.to_string())
                .hint("run the command with sudo, or set ATOLL_API_KEY to an admin key"),
        }
    }
}

impl From<BadSpec> for ServiceError {
    fn from(bad: BadSpec) -> Self {
        match &bad {
            BadSpec::Limit(limit) => limit.clone().into(),
            BadSpec::Text { field, why } => {
                Self::new(Code::InvalidRequest, bad.to_string()).about(field, why.as_str())
            }
        }
    }
}

impl From<BadLimit> for ServiceError {
    fn from(bad: BadLimit) -> Self {
        Self::new(Code::InvalidRequest, bad.to_string()).about(bad.field, bad.problem())
    }
}
