//! Messages, generated from `proto/` by `proto/generate.sh` and checked in, so that a build needs no protoc.

#![allow(
    clippy::all,
    clippy::unwrap_used,
    unreachable_pub,
    missing_docs,
    reason = "generated code is not written for our lints"
)]

pub mod process {
    include!("generated/process.rs");
}

pub mod filesystem {
    include!("generated/filesystem.rs");
}

/// Atoll's own messages, which envd's services lack.
pub mod agent {
    include!("generated/atoll.agent.v1.rs");
}

/// Path prefix of envd's process service.
pub const PROCESS_SERVICE: &str = "process.Process";
/// Path prefix of envd's file service.
pub const FILESYSTEM_SERVICE: &str = "filesystem.Filesystem";
/// Path prefix of Atoll's own service.
pub const AGENT_SERVICE: &str = "atoll.agent.v1.Agent";
