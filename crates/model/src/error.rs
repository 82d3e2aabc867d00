//! The closed set of errors. Libraries return an [`ErrorKind`]; users see a [`Code`].

use serde::{Deserialize, Serialize};

/// The class of an error; each front maps it to its own status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The object does not exist or is not visible to this key.
    NotFound,
    /// The object exists already.
    Exists,
    /// The state of the object does not allow the operation.
    Conflict,
    /// The request is wrong.
    Invalid,
    /// No valid key.
    Unauthenticated,
    /// A valid key without the right.
    Forbidden,
    /// A limit was reached.
    Exhausted,
    /// Temporarily not possible; try again.
    Unavailable,
    /// Not supported by this provider or on this machine.
    Unsupported,
    /// An error in the server.
    Internal,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, $kind:ident, $status:literal;)*) => {
        /// All codes that users can see; `docs/errors.md` is generated from this list.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Code { $($(#[doc = $doc])* $name,)* }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// The code as it appears in the envelope.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// The class of the error.
            #[must_use]
            pub const fn kind(self) -> ErrorKind {
                match self { $(Code::$name => ErrorKind::$kind,)* }
            }

            /// The HTTP status of the native front, as documented.
            #[must_use]
            pub const fn documented_status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }

            /// One line for the documentation.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$name => concat!($($doc),*),)* }
            }
        }
    };
}

codes! {
    /// The request is malformed or a field is wrong; the message names the field.
    InvalidRequest = "invalid_request", Invalid, 400;
    /// A path, name or argument inside the sandbox cannot be used.
    InvalidArgument = "invalid_argument", Invalid, 400;
    /// The request has no key, or an invalid one.
    Unauthenticated = "unauthenticated", Unauthenticated, 401;
    /// The key is valid but lacks the scope.
    Forbidden = "forbidden", Forbidden, 403;
    /// The provider is disabled, or not among those that this tenant may use.
    ProviderNotAllowed = "provider_not_allowed", Forbidden, 403;
    /// No such route.
    RouteNotFound = "route_not_found", NotFound, 404;
    /// No such sandbox, or it belongs to another tenant.
    SandboxNotFound = "sandbox_not_found", NotFound, 404;
    /// No such template.
    TemplateNotFound = "template_not_found", NotFound, 404;
    /// No such snapshot, or it belongs to another tenant.
    SnapshotNotFound = "snapshot_not_found", NotFound, 404;
    /// No such archive in object storage.
    ArchiveNotFound = "archive_not_found", NotFound, 404;
    /// No such process, terminal, shell session, code context or language server in this sandbox.
    ProcessNotFound = "process_not_found", NotFound, 404;
    /// No such file or directory in this sandbox or volume.
    FileNotFound = "file_not_found", NotFound, 404;
    /// No such key.
    KeyNotFound = "key_not_found", NotFound, 404;
    /// No such tenant.
    TenantNotFound = "tenant_not_found", NotFound, 404;
    /// No such preview of this sandbox.
    PreviewNotFound = "preview_not_found", NotFound, 404;
    /// No such secret of this tenant.
    SecretNotFound = "secret_not_found", NotFound, 404;
    /// No such volume, or it belongs to another tenant.
    VolumeNotFound = "volume_not_found", NotFound, 404;
    /// This server has no provider of that name; the hint lists the configured ones.
    ProviderNotFound = "provider_not_found", NotFound, 404;
    /// No such thread of this tenant.
    ThreadNotFound = "thread_not_found", NotFound, 404;
    /// No such build, or it belongs to another tenant.
    BuildNotFound = "build_not_found", NotFound, 404;
    /// The registry has no such image, or does not show it to these credentials.
    ImageNotFound = "image_not_found", NotFound, 404;
    /// The method does not exist on this route.
    MethodNotAllowed = "method_not_allowed", Invalid, 405;
    /// The sandbox is in a phase that does not allow this.
    PhaseConflict = "phase_conflict", Conflict, 409;
    /// The provider has sandboxes or volumes that the change would lose, or sandboxes that would not obey it.
    ProviderInUse = "provider_in_use", Conflict, 409;
    /// Another sandbox, snapshot or volume of this tenant has that name, or a built-in template has it.
    NameTaken = "name_taken", Exists, 409;
    /// The thread is bound to another provider; the message names it.
    ThreadBound = "thread_bound", Conflict, 409;
    /// The id, prefix or thread matches several objects; the hint says how to choose one.
    Ambiguous = "ambiguous", Conflict, 409;
    /// The object already exists.
    AlreadyExists = "already_exists", Exists, 409;
    /// The idempotency key was used with another request.
    IdempotencyMismatch = "idempotency_mismatch", Conflict, 409;
    /// The template is still used by sandboxes.
    TemplateInUse = "template_in_use", Conflict, 409;
    /// The snapshot is in use: a sandbox is being created from it or rolled back to it.
    SnapshotInUse = "snapshot_in_use", Conflict, 409;
    /// The volume is still mounted by sandboxes.
    VolumeInUse = "volume_in_use", Conflict, 409;
    /// The secret is still used by sandboxes.
    SecretInUse = "secret_in_use", Conflict, 409;
    /// The snapshot, checkpoint or archive has changed since it was written, so it is not used.
    Damaged = "damaged", Conflict, 409;
    /// The sandbox does not run, and with `wake: explicit` only `start` and `resume` wake it.
    Asleep = "asleep", Conflict, 409;
    /// The requested limit is below the current use; the message has both numbers.
    BelowUse = "below_use", Conflict, 409;
    /// The packages of the host changed since the sandbox was created from template `host`.
    HostChanged = "host_changed", Conflict, 409;
    /// The sandbox, snapshot, volume, template or build is on another node of this database; the message names it.
    WrongNode = "wrong_node", Conflict, 421;
    /// The body is larger than allowed.
    PayloadTooLarge = "payload_too_large", Exhausted, 413;
    /// The tenant's quota is used up.
    QuotaExceeded = "quota_exceeded", Exhausted, 429;
    /// Too many wrong keys or tokens came from this address; `Retry-After` says when to try again. Valid keys and
    /// tokens are still accepted.
    RateLimited = "rate_limited", Exhausted, 429;
    /// A limit of the sandbox (processes, memory, descriptors) is reached.
    SandboxExhausted = "sandbox_exhausted", Exhausted, 429;
    /// This node has no free capacity now; `Retry-After` says when to try again.
    NoCapacity = "no_capacity", Unavailable, 503;
    /// The template is being made at its first use; the message says how far it is, and `Retry-After` when to try again.
    TemplateNotReady = "template_not_ready", Unavailable, 503;
    /// The create was queued, and no place was free within its queue timeout; the sandbox is deleted.
    QueueTimedOut = "queue_timed_out", Unavailable, 504;
    /// The sandbox could not be woken for this request; the message has the cause.
    WakeFailed = "wake_failed", Unavailable, 503;
    /// Object storage does not answer or refuses the request.
    ArchiveUnavailable = "archive_unavailable", Unavailable, 503;
    /// The registry does not answer, refuses the request for now, or sends wrong content.
    RegistryUnavailable = "registry_unavailable", Unavailable, 503;
    /// The sandbox does not answer.
    SandboxUnavailable = "sandbox_unavailable", Unavailable, 503;
    /// The sandbox, snapshot or volume belongs to a provider that this server does not have; it is kept unchanged.
    ProviderNotConfigured = "provider_not_configured", Unavailable, 503;
    /// No program listens on that port in the sandbox.
    PortClosed = "port_closed", Unavailable, 503;
    /// The app in the sandbox closed the connection early, or its answer is not HTTP.
    BadAnswer = "bad_answer", Unavailable, 502;
    /// The request passed through previews in a loop.
    LoopDetected = "loop_detected", Exhausted, 508;
    /// The operation took longer than its deadline.
    DeadlineExceeded = "deadline_exceeded", Unavailable, 504;
    /// The disk of the sandbox, or the volume, is full.
    DiskFull = "disk_full", Exhausted, 507;
    /// This machine or provider does not support the operation; the hint says what is missing.
    Unsupported = "unsupported", Unsupported, 501;
    /// The sandbox lacks a program that the operation needs.
    ToolMissing = "tool_missing", Unsupported, 501;
    /// An internal error of the server; search the logs for the request id.
    Internal = "internal", Internal, 500;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_serialises_as_its_text() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_string(code).expect("plain enum"), format!("{:?}", code.as_str()));
        }
    }
}
