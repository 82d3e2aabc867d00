//! What server, launcher and first process say to each other. Both ends are the same program, so there are no versions.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The first message to a launcher. Answered by [`Reply::Ready`] or [`Reply::Failed`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// An empty folder of ours on which a first process may mount its root before it moves there.
    pub(crate) stage: PathBuf,
    /// The folder with the agent.
    pub(crate) agent: PathBuf,
    /// Mounts that lead to these paths are kept in the launcher's view; all others are let go of.
    pub(crate) needed: Vec<PathBuf>,
    /// Layers are attached and mounted by path, for kernels below 6.15.
    pub(crate) legacy: bool,
}

/// What a launcher is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// A first process.
    Spawn(Spawn),
    /// A run of CRIU.
    Criu(Criu),
}

/// A run of CRIU in a mount namespace of its own. Descriptors: the two pipes of the line to the server, then those that CRIU finds at
/// [`FIRST_HANDED`] and above.
///
/// The launcher answers that it has begun. All else is said over the line, one line of text each: an action of
/// CRIU with the pid of the first process (answered `ok` by the server), and at the end `ended` with the exit code and a complaint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Criu {
    pub(crate) id: u64,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// For a restore: what its tree stands on.
    pub(crate) rebuild: Option<Rebuild>,
}

/// What a restored tree stands on, made as for a first process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rebuild {
    pub(crate) rootfs: Rootfs,
    pub(crate) first_id: u32,
    pub(crate) sudo: bool,
    /// The folder with the agent that was running.
    pub(crate) agent: PathBuf,
    /// The folder with the images; seen through the sandbox's ids.
    pub(crate) images: PathBuf,
    /// Images that others stand in for.
    pub(crate) replaced: Vec<(String, Vec<u8>)>,
    /// What else it sees. Their descriptors come last.
    pub(crate) mounts: Vec<MountSpec>,
    /// The boot id that its processes know; `None`: they see the machine's.
    pub(crate) boot_id: Option<String>,
}

/// Something that a sandbox sees besides its root: nosuid and nodev always.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountSpec {
    /// Where inside; clean, without a slash at the beginning.
    pub(crate) at: String,
    pub(crate) read_only: bool,
    pub(crate) what: Mounted,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mounted {
    /// A detached mount that comes along as a descriptor; its ids are canonical.
    Volume,
    /// The same of a folder of the host: the one owner's user and group are seen as these inside, and nobody else is known.
    Folder { owner: (u32, u32), seen_as: (u32, u32) },
    /// Memory, made inside.
    Memory { bytes: u64 },
}

impl MountSpec {
    /// Whether a descriptor comes along.
    pub(crate) fn is_from_outside(&self) -> bool {
        !matches!(self.what, Mounted::Memory { .. })
    }
}

/// The step of finding the place for a mount inside; its path follows.
pub(crate) const PLACE: &str = "find a real folder for a mount at /";
/// The step of mapping the ids of a mount; its path follows.
pub(crate) const MAP: &str = "map ids for the mount at /";

/// The name that the parts of a restored tree have for a mount from outside, by its place among them.
pub(crate) fn mount_part(index: usize) -> String {
    format!("mount{index}")
}

/// The name that the parts of a restored tree have for the file with the boot id.
pub(crate) const BOOT_PART: &str = "boot";

/// Whether a part of a tree is a mount from outside.
pub(crate) fn is_mount_part(part: &str) -> bool {
    part.starts_with("mount")
}

/// The number that the first of the two pipes of the line has in the keeper; the second follows it.
pub(crate) const SAY: i32 = 3;
/// The number of the first of the other descriptors that are handed to CRIU.
pub(crate) const FIRST_HANDED: i32 = 5;

/// A request for a first process. Descriptors: token, the mounts from outside, then the cgroups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spawn {
    pub(crate) id: u64,
    pub(crate) rootfs: Rootfs,
    /// The first of its 65,536 host ids.
    pub(crate) first_id: u32,
    pub(crate) cgroup: CgroupEntry,
    pub(crate) hostname: String,
    /// Programs inside may gain privileges by setuid.
    pub(crate) sudo: bool,
    pub(crate) shm_bytes: u64,
    /// What else it sees.
    pub(crate) mounts: Vec<MountSpec>,
    /// What it reads as the id of this boot.
    pub(crate) boot_id: String,
}

/// How the first process gets into its cgroups.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum CgroupEntry {
    /// It writes itself into the `tasks` files whose descriptors come along.
    Tasks,
    /// It is born there; the descriptor of the folder comes along.
    Born,
}

/// What the root is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rootfs {
    /// Lower folders, the top one first.
    pub(crate) layers: Vec<PathBuf>,
    /// Lower folders of a second overlay at `/usr`.
    pub(crate) usr_layers: Vec<PathBuf>,
    pub(crate) upper: Upper,
    /// Nothing of it is needed after the instance: no sync when it ends.
    pub(crate) volatile: bool,
}

/// Where changes go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Upper {
    /// A folder with `upper` and `work` in it (and `usr-upper`, `usr-work` where there is a second overlay).
    Folder(PathBuf),
    /// Memory.
    Tmpfs { bytes: u64, inodes: u64 },
}

/// What a launcher answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is ready for requests.
    Ready,
    /// The process exists. Descriptors: pidfd, network namespace, control socket.
    Spawned { id: u64, pid: i32 },
    /// CRIU is about to run; the rest is said over its line.
    Begun { id: u64 },
    /// All mounts are made and handed over.
    Mounted { id: u64, times: Times },
    /// A step failed; what was made is undone, the process told to end. `id` 0: the launcher itself.
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

/// Names the step an error belongs to.
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

/// What a first process is told over its control socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FirstProcessRequest {
    /// Descriptors: root, agent, dev, empty folder, boot id, the overlay for `/usr` where there is one, and the mounts from
    /// outside.
    Mounts,
    /// Its veth is there (or it gets none for now).
    Network { address: Option<Ipv4Addr> },
}

/// What a first process answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum FirstProcessReply {
    /// It listens and is about to become the agent.
    Ready { times: Times },
    /// It could not go on, and has ended.
    Failed(StepFailure),
}
