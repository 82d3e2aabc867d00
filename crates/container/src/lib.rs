//! The embedded engine: launcher, namespaces, overlay, cgroups, seccomp, pool.
//!
//! [`Engine`] is the provider `container`. It creates instances through its own [`launcher`] process, keeps some
//! instances ready in a pool, watches all of them, and removes what they leave behind. The engine holds no policy and
//! no record. The facts that the service stores contain everything that is needed to find an instance again.
//!
//! ```text
//! Engine ─┬─ launcher    first processes           ─┬─ cgroup    limits, freezing, figures
//!         ├─ instances   slots, pool, reaper        ├─ storage   layers, disk limits
//!         ├─ checkpoint  memory on disk             ├─ network   links, policies, the gate
//!         └─ watch       memory, disk, flows        └─ seccomp   allowed system calls
//! ```
//!
//! The bookkeeping of instances is `atoll-instances`; the engine is its launcher.

#![expect(
    unsafe_code,
    reason = "clone3, mount attributes, ioctls and capabilities have no safe wrappers; all are in `sys` and `tracee`"
)]

mod agent_binary;
mod checkpoint;
mod engine;
mod failpoint;
mod heap;
pub mod launcher;
mod probe;
mod seccomp;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;
mod tracee;

pub use agent_binary::install as install_agent;
pub use atoll_instances::{BlockError, PoolStats};
pub use atoll_storage::{StorageChoice, StorageError};
pub use engine::{Engine, EngineConfig, OpenError, StoredFiles, Timings};
pub use failpoint::FailPoint;
pub use heap::HeapTrimmer;
pub use launcher::{LaunchError, LauncherCommand};
pub use probe::{Probe, probes};
pub use sys::peer_groups;
