//! The messages between server, launcher and first process. All of them are the same program, so the protocol has no
//! versions.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use atoll_cgroup::CgroupEntry;
use serde::{Deserialize, Serialize};

/// The first message to a launcher. Answered by [`Reply::Ready`] or [`Reply::Failed`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// An empty folder of this server on which a first process mounts its root before it moves there.
    pub(crate) stage: PathBuf,
    /// The folder with the agent.
    pub(crate) agent: PathBuf,
    /// Mounts that lead to these paths are kept in the launcher's mount namespace; all others are detached.
    pub(crate) needed: Vec<PathBuf>,
    /// Attach layers and mount them by path, for kernels before 6.15.
    pub(crate) legacy: bool,
}

/// A request to a launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Start a first process.
    Spawn(Spawn),
    /// Run CRIU.
    Criu(Criu),
}

/// Runs CRIU in a mount namespace of its own. Descriptors: the two pipes of the channel to the server, then those that
/// CRIU finds at [`FIRST_HANDED`] and above.
///
/// The launcher replies that CRIU has begun. All further messages go over the channel, one line of text each: an action
/// of CRIU with the pid of the first process (the server replies `ok`), and at the end `ended` with the exit code and
/// an error text.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Criu {
    pub(crate) id: u64,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// For a restore: the mounts of the restored processes.
    pub(crate) rebuild: Option<Rebuild>,
}

/// The mounts for restored processes, made as for a first process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rebuild {
    pub(crate) rootfs: Rootfs,
    pub(crate) first_id: u32,
    pub(crate) sudo: bool,
    /// The folder with the agent that was running.
    pub(crate) agent: PathBuf,
    /// The folder with the images; mapped to the sandbox's ids.
    pub(crate) images: PathBuf,
    /// Images to replace: name and new content.
    pub(crate) replaced: Vec<(String, Vec<u8>)>,
    /// Mounts besides the root. Their descriptors come last.
    pub(crate) mounts: Vec<MountSpec>,
    /// The boot id that the processes know; `None`: they see the machine's.
    pub(crate) boot_id: Option<String>,
}

/// A mount of a sandbox besides its root; always nosuid and nodev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountSpec {
    /// The mount point in the sandbox: a normalised path without a leading slash.
    pub(crate) at: String,
    pub(crate) read_only: bool,
    pub(crate) what: Mounted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mounted {
    /// A detached mount that is passed as a descriptor; its ids are canonical.
    Volume,
    /// A folder of the host, passed the same way. Files of `owner` appear with the ids `seen_as` in the sandbox; other
    /// owners are not mapped.
    Folder { owner: (u32, u32), seen_as: (u32, u32) },
    /// A tmpfs, made in the sandbox.
    Memory { bytes: u64 },
}

impl MountSpec {
    /// Whether a descriptor is passed for the mount.
    pub(crate) fn is_from_outside(&self) -> bool {
        !matches!(self.what, Mounted::Memory { .. })
    }

    /// Whether programs of the sandbox can write to a folder of the host.
    pub(crate) fn is_writable_host_folder(&self) -> bool {
        !self.read_only && matches!(self.what, Mounted::Folder { .. })
    }
}

/// The step that finds a mount point in the sandbox; its path follows.
pub(crate) const PLACE: &str = "find a real folder for a mount at /";
/// The step that maps the ids of a mount; its path follows.
pub(crate) const MAP: &str = "map ids for the mount at /";

/// The name of a mount from outside among the parts of a restored sandbox, by its index.
pub(crate) fn mount_part(index: usize) -> String {
    format!("mount{index}")
}

/// The name of the file with the boot id among the parts of a restored sandbox.
pub(crate) const BOOT_PART: &str = "boot";

/// Whether a part of a restored sandbox is a mount from outside.
pub(crate) fn is_mount_part(part: &str) -> bool {
    part.starts_with("mount")
}

/// The descriptor number of the first of the channel's two pipes in the keeper; the second follows it.
pub(crate) const SAY: i32 = 3;
/// The number of the first of the other descriptors that are passed to CRIU.
pub(crate) const FIRST_HANDED: i32 = 5;

/// A request for a first process. Descriptors: token, the mounts from outside, then the cgroups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spawn {
    pub(crate) id: u64,
    pub(crate) rootfs: Rootfs,
    /// The first of the sandbox's 65,536 host ids.
    pub(crate) first_id: u32,
    pub(crate) cgroup: CgroupEntry,
    pub(crate) hostname: String,
    /// Programs in the sandbox may gain privileges by setuid.
    pub(crate) sudo: bool,
    pub(crate) shm_bytes: u64,
    /// Mounts besides the root.
    pub(crate) mounts: Vec<MountSpec>,
    /// The boot id that processes of the sandbox read.
    pub(crate) boot_id: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rootfs {
    /// Lower folders, the top one first.
    pub(crate) layers: Vec<PathBuf>,
    /// Lower folders of a second overlay at `/usr`.
    pub(crate) usr_layers: Vec<PathBuf>,
    pub(crate) upper: Upper,
    /// No file of it is needed after the instance ends, so nothing is synced.
    pub(crate) volatile: bool,
}

/// Where changes are written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Upper {
    /// A folder with `upper` and `work` in it (and `usr-upper`, `usr-work` where there is a second overlay).
    Folder(PathBuf),
    /// A tmpfs.
    Tmpfs { bytes: u64, inodes: u64 },
}

/// A reply of the launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is ready for requests.
    Ready,
    /// The process exists. Descriptors: pidfd, network namespace, control socket.
    Spawned { id: u64, pid: i32 },
    /// CRIU is about to run; further messages go over its channel.
    Begun { id: u64 },
    /// All mounts are made and passed to the first process.
    Mounted { id: u64, times: Times },
    /// A step failed; all earlier steps are undone and the process is killed. With `id` 0 the launcher itself failed.
    Failed { id: u64, failure: StepFailure },
}

/// A step that failed.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", std::io::Error::from_raw_os_error(*errno))]
pub(crate) struct StepFailure {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

impl StepFailure {
    pub(crate) fn new(step: impl Into<String>, cause: &std::io::Error) -> Self {
        Self { step: step.into(), errno: cause.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// Adds the name of the failed step to an error.
pub(crate) trait StepResult<T> {
    fn step(self, step: &str) -> Result<T, StepFailure>;
}

impl<T, E: Into<std::io::Error>> StepResult<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, StepFailure> {
        self.map_err(|cause| StepFailure::new(step, &cause.into()))
    }
}

/// Microseconds per step, in order.
pub(crate) type Times = Vec<(String, u32)>;

/// A message to a first process, over its control socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FirstProcessRequest {
    /// Descriptors: root, agent, dev, empty folder, boot id, the overlay for `/usr` if there is one, and the mounts
    /// from outside.
    Mounts,
    /// The veth is ready, or the instance gets none for now.
    Network { address: Option<Ipv4Addr> },
}

/// A message from a first process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FirstProcessReply {
    /// It listens and is about to exec the agent.
    Ready { times: Times },
    /// A step failed, and the process has ended.
    Failed(StepFailure),
}
