//! The launcher: a small single-threaded process that makes every namespace, mount and first process.
//!
//! ```text
//! server ──Spawn(id, layers, cgroups, token)──► launcher ──clone3──► first process ──exec──► agent
//!    ◄──Spawned(id; pidfd, netns, control)──────   │  ──mounts────────►   │
//!    ◄──Mounted(id) or Failed(id, step)─────────   ┘                      │
//!    ──"network is ready"──────────────────── control ───────────────────►│
//!    ◄──ready with its times, or the failed step ──────────────────────── ┘
//! ```
//!
//! It also runs CRIU, in a child that makes the mounts of a restored instance ([`keeper`]).
//!
//! The launcher is started by exec of the server's own program, never by a bare fork: a forked copy of a threaded
//! server may find a lock held for ever, a new program may not. So it can also be started again when it dies. Requests
//! are pipelined; the launcher never waits for a first process. It owns nothing that must outlive it: sandboxes
//! continue when it ends.

pub(crate) mod child;
mod client;
mod dump_repair;
mod keeper;
mod mounts;
pub(crate) mod protocol;
mod serve;
pub(crate) mod wire;

pub(crate) use child::CAP_SETFCAP;
pub(crate) use client::{CriuChannel, CriuMessage, Launcher, Spawning};
pub use client::{LaunchError, LauncherCommand};
pub(crate) use keeper::{LOG, RESTORE, WORK};
pub use serve::main;
