//! The agent's protocol: messages, a client over any byte stream, version negotiation.
//!
//! Shared by the agent and the host. It never opens a socket by itself: the host passes a connector for the sandbox.
//! Everything that an agent sends is untrusted; sizes are limited before memory is allocated.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")
)]
#![allow(clippy::needless_update, reason = "messages gain fields; the rest of a literal is always default")]

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod error;
pub mod exec_stream;
pub mod init;
pub mod proto;
#[cfg(feature = "client")]
mod session;
#[cfg(feature = "client")]
mod setup_locks;

#[cfg(feature = "client")]
pub use client::{
    AgentClient, AgentToken, CommandOutput, Entry, EntryKind, EnvdAddress, EnvdClient, EnvdFile, ExitStatus,
    FileReader, Forwarded, InstanceLiveness, LogLine, LogStream, LogTail, Pack, PackHoles, PackLayout,
    PackReader, ProcessEvent, ProcessInfo, ProcessSource, ProcessStream, Range, Search, SearchMatch,
    Searched, StartProcess, Started, TerminalSize, Unpack, UnpackInto, UnpackOwner, UnpackRules, Unpacked,
    WatchChange, WatchKind, WatchStream,
};
#[cfg(feature = "client")]
pub use error::{AgentError, RpcCode};
pub use init::{AgentLimits, Features, HoldStatus, InitReply, InitRequest, Metrics};
#[cfg(feature = "client")]
pub use session::{AgentSource, ByteStream, Session, UploadStream};
#[cfg(feature = "client")]
pub use setup_locks::{SetupGuard, SetupLocks};

/// The port the agent listens on, on loopback inside the sandbox's own network namespace.
pub const AGENT_PORT: u16 = 49983;

/// The header that carries the agent token (towards the agent) or the access token (towards the proxy).
pub const TOKEN_HEADER: &str = "x-access-token";

/// Sent by Atoll's host with `POST /init` to get an [`InitReply`] instead of envd's empty 204.
pub const INIT_HEADER: &str = "atoll-init";

/// Sent by Atoll's host with file operations that pass permission checks as root's do. New files still belong to the
/// request's user. Requests that are forwarded from outside lose every `atoll-` header first.
pub const FILE_RIGHTS_HEADER: &str = "atoll-file-rights";

/// The one value of [`FILE_RIGHTS_HEADER`].
pub const FILE_RIGHTS_ROOT: &str = "root";

/// Permission bits of a downloaded file, in octal.
pub const MODE_HEADER: &str = "atoll-mode";

/// Size of the whole downloaded file, also if only a range of it is sent.
pub const SIZE_HEADER: &str = "atoll-size";

/// Beginnings of the tags of processes that the host starts for its tools: contexts, sessions, language servers, terminals.
/// The host finds these processes by their tags, so requests from outside cannot use them.
pub const RESERVED_TAGS: [&str; 2] = ["atoll-", "terminal-"];

/// Whether only the host may start a process with this tag.
#[must_use]
pub fn is_reserved_tag(tag: &str) -> bool {
    RESERVED_TAGS.iter().any(|beginning| tag.starts_with(beginning))
}

/// The envd version that the agent emulates; SDKs enable features by it.
pub const ENVD_VERSION: &str = "0.6.13";

/// The newest protocol generation of this source tree. The host adapts to agents of a lower one.
pub const GENERATION: u32 = 1;

/// The folder for temporary files of a sandbox without isolation: it shares `/tmp` with the machine and other sandboxes.
#[must_use]
pub fn host_temporary_folder(sandbox: &str) -> String {
    format!("/tmp/.atoll-{sandbox}")
}
