//! The embedded engine: launcher, namespaces, overlay, cgroups, seccomp, pool.
//!
//! [`Engine`] is the provider `container`. It makes instances through a [`launcher`] process of its own, keeps some ready in a
//! pool, watches them, and cleans up behind them. It holds no policy and no record: what it needs to find an instance again
//! is in the facts that the service stores.
//!
//! ```text
//! Engine ─┬─ launcher   first processes            ─┬─ cgroup    limits, freezing, figures
//!         ├─ pool       ready, frozen instances     ├─ storage   layers, disk limits
//!         ├─ reaper     slow endings                ├─ block     whose numbers are whose
//!         └─ watch      deaths, memory              └─ seccomp   which calls
//! ```

#![expect(
    unsafe_code,
    reason = "clone3, mount attributes, ioctls and capabilities have no safe wrappers; all are in `sys` and `tracee`"
)]

mod agent_binary;
mod block;
mod cgroup;
mod checkpoint;
mod engine;
mod failpoint;
pub mod launcher;
mod mountinfo;
mod probe;
mod seccomp;
mod storage;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;
mod tracee;

pub use block::BlockError;
pub use engine::{Engine, EngineConfig, OpenError, PoolStats, Timings};
pub use failpoint::FailPoint;
pub use launcher::{LaunchError, LauncherCommand};
pub use probe::{Probe, probes};
pub use storage::{StorageChoice, StorageError};
