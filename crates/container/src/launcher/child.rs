//! The first process between its birth and becoming the agent. It runs inside the new namespaces and ends in `exec`.
//!
//! It resolves nothing through a path of the template: every mount goes from a descriptor to a descriptor, links are never
//! followed, masks are made from nodes of our own. It trusts neither the template nor what an earlier instance left.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::protocol::{
    FirstProcessReply, FirstProcessRequest, MountSpec, Mounted, PLACE, Spawn, StepFailure, StepResult,
};
use super::serve::StepTimer;
use super::wire;
use crate::seccomp::Clones;
use crate::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY};

/// What is left of root's capabilities inside: Docker's default list without raw sockets, device nodes and audit.
///
/// chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap.
pub(crate) const CAPABILITIES: u64 = 0x8004_05fb;

/// Folders in `/proc` and `/sys` that are covered by an empty one.
const HIDDEN_FOLDERS: [(Tree, &str); 6] = [
    (Tree::Sys, "firmware"),
    (Tree::Sys, "devices/virtual/powercap"),
    // Loop devices name the files behind them, by their paths on the host.
    (Tree::Sys, "devices/virtual/block"),
    (Tree::Proc, "acpi"),
    (Tree::Proc, "asound"),
    (Tree::Proc, "scsi"),
];
/// Files in `/proc` that read as empty.
const HIDDEN_FILES: [&str; 8] =
    ["kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts", "kmsg"];
/// What may be read but not written, whatever its permission bits say.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// The kernel has one for the whole machine.
const BOOT_ID: &str = "sys/kernel/random/boot_id";

#[derive(Clone, Copy, PartialEq)]
enum Tree {
    Proc,
    Sys,
}

/// All that the first process is born with.
pub(super) struct ChildContext<'a> {
    pub(super) spawn: &'a Spawn,
    /// The launcher's socket to the server, to be closed at once.
    pub(super) launcher: BorrowedFd<'a>,
    pub(super) control: OwnedFd,
    pub(super) token: OwnedFd,
    pub(super) tasks: Vec<OwnedFd>,
}

/// Mounts received from the launcher.
struct Received {
    root: OwnedFd,
    agent: OwnedFd,
    dev: OwnedFd,
    empty: OwnedFd,
    /// A file.
    boot: OwnedFd,
    usr: Option<OwnedFd>,
    /// From outside, in their order.
    mounts: Vec<OwnedFd>,
}

/// Becomes the agent, or says which step failed and ends.
pub(super) fn run(inside: ChildContext<'_>) -> ! {
    let ChildContext { spawn, launcher, control, token, tasks } = inside;
    sys::close_for_good(launcher);
    sys::reap_children_by_kernel(false);
    sys::unblock_signals();
    let failure = match enter(spawn, &control, &token, tasks) {
        Err(failure) => failure,
        Ok(never) => match never {},
    };
    if let Ok(message) = serde_json::to_vec(&FirstProcessReply::Failed(failure)) {
        let _ = wire::send(&control, &message, &[]);
    }
    sys::exit_now(70)
}

enum Never {}

fn enter(
    spawn: &Spawn,
    control: &OwnedFd,
    token: &OwnedFd,
    tasks: Vec<OwnedFd>,
) -> Result<Never, StepFailure> {
    let mut watch = StepTimer::new();
    // A protected server must not protect what runs in its sandboxes.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    // The kernel lets a new user namespace mount these two only while it still sees the host's.
    let proc = fresh_mount("proc", &[], MountAttrFlags::empty()).step("mount proc")?;
    let sys = fresh_mount("sysfs", &[], MountAttrFlags::MOUNT_ATTR_RDONLY).step("mount sysfs")?;
    watch.lap("proc and sys");
    let has_usr = !spawn.rootfs.usr_layers.is_empty();
    let mut mailbox = Mailbox { control, has_usr, mounts: None, network: None };
    let received = mailbox.mounts()?;
    watch.lap("wait for mounts");
    sys::become_mapped_root().step("become root inside")?;
    join_cgroups(tasks).step("enter the cgroups")?;
    watch.lap("ids and cgroups");
    let root = build_root(&received, &proc, &sys, spawn)?;
    watch.lap("attach mounts");
    hide(&received, &proc, &sys)?;
    watch.lap("masks");
    pivot(&root).step("move into the root")?;
    drop((received, proc, sys, root));
    rustix::system::sethostname(spawn.hostname.as_bytes()).step("set the host name")?;
    watch.lap("pivot");
    let address = mailbox.network()?;
    watch.lap("wait for network");
    match address {
        Some(address) => atoll_network::child_setup(address),
        None => atoll_network::loopback_up(),
    }
    .map_err(|error| StepFailure::new(error.step, &error.cause))?;
    let listener = listen().step("listen for the host")?;
    watch.lap("network and listener");
    let ready = serde_json::to_vec(&FirstProcessReply::Ready { times: watch.times }).map_err(io::Error::from);
    wire::send(control, &ready.step("write a message")?, &[]).step("tell that it listens")?;
    become_agent(spawn, &listener, token)
}

/// What arrives over the control socket, in any order.
struct Mailbox<'a> {
    control: &'a OwnedFd,
    /// Whether an overlay for `/usr` is among the mounts.
    has_usr: bool,
    mounts: Option<Received>,
    network: Option<Option<Ipv4Addr>>,
}

impl Mailbox<'_> {
    fn mounts(&mut self) -> Result<Received, StepFailure> {
        loop {
            if let Some(mounts) = self.mounts.take() {
                return Ok(mounts);
            }
            self.take_one()?;
        }
    }

    fn network(&mut self) -> Result<Option<Ipv4Addr>, StepFailure> {
        loop {
            if let Some(network) = self.network {
                return Ok(network);
            }
            self.take_one()?;
        }
    }

    fn take_one(&mut self) -> Result<(), StepFailure> {
        let mut buffer = [0; 256];
        let message = wire::receive(self.control, &mut buffer).step("hear from the host")?;
        // Nobody is left to tell; the caller's report goes nowhere and the process ends.
        let gone = StepFailure { step: "hear from the host".into(), errno: libc::EPIPE };
        let (length, descriptors) = message.ok_or(gone)?;
        match serde_json::from_slice(&buffer[..length])
            .map_err(io::Error::from)
            .step("understand the host")?
        {
            FirstProcessRequest::Network { address } => self.network = Some(address),
            FirstProcessRequest::Mounts => {
                let mut each = descriptors.into_iter();
                let mut next = || {
                    each.next().ok_or(io::Error::from(io::ErrorKind::UnexpectedEof)).step("take the mounts")
                };
                let (root, agent, dev, empty, boot) = (next()?, next()?, next()?, next()?, next()?);
                let usr = if self.has_usr { Some(next()?) } else { None };
                self.mounts = Some(Received { root, agent, dev, empty, boot, usr, mounts: each.collect() });
            }
        }
        Ok(())
    }
}

/// Writing "0" moves the writer itself and skips the kernel's wait for all threads of all processes, which moving another
/// process by its pid costs (10 ms for five controllers).
fn join_cgroups(tasks: Vec<OwnedFd>) -> io::Result<()> {
    for file in tasks {
        rustix::io::write(&file, b"0")?;
    }
    // Only now, so that the namespace begins at the sandbox's own cgroups.
    // SAFETY: this process has one thread and holds nothing that depends on its cgroup namespace.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWCGROUP) }?)
}

fn fresh_mount(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    let always = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, always | attributes)?)
}

/// Puts the tree together on the folder the process was born in; answers the root.
fn build_root(
    received: &Received,
    proc: &OwnedFd,
    sys: &OwnedFd,
    spawn: &Spawn,
) -> Result<OwnedFd, StepFailure> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(received.root.as_fd(), "", rustix::fs::CWD, ".", flags).step("attach the root")?;
    let root = received.root.try_clone().step("copy a descriptor")?;
    let place = |mount: &OwnedFd, name: &str| -> Result<(), StepFailure> {
        let folder = real_folder(&root, name).step(&format!("find a real folder /{name} in the root"))?;
        attach(mount, &folder).step(&format!("mount /{name}"))
    };
    if let Some(usr) = &received.usr {
        place(usr, "usr")?;
    }
    // Before ours, which nothing may cover.
    place_mounts(&root, &spawn.mounts, &received.mounts)?;
    place(proc, "proc")?;
    place(sys, "sys")?;
    place(&received.dev, "dev")?;
    place(&received.agent, ".atoll")?;
    // LIMIT: terminals of one sandbox. The kernel has some three thousand for all of them together.
    let pts = [("mode", "0620"), ("ptmxmode", "0666"), ("gid", "5"), ("max", "128")];
    // `nodev` is right for devpts' neighbours but would make its own terminals dead.
    let context_pts = devpts(&pts).step("mount devpts")?;
    let size = spawn.shm_bytes.to_string();
    let shm = fresh_mount("tmpfs", &[("size", &size), ("mode", "1777")], MountAttrFlags::empty())
        .step("mount shm")?;
    for (mount, name) in [(&context_pts, "pts"), (&shm, "shm")] {
        let folder = open_folder(&received.dev, name).step("find a folder of /dev")?;
        attach(mount, &folder).step("mount a folder of /dev")?;
    }
    Ok(root)
}

/// Mounts volumes. Folders on the way are made where they are missing; links are refused, wherever they lead.
fn place_mounts(root: &OwnedFd, mounts: &[MountSpec], outside: &[OwnedFd]) -> Result<(), StepFailure> {
    let mut outside = outside.iter();
    for mount in mounts {
        let at = &mount.at;
        let memory;
        let source = match mount.what {
            Mounted::Memory { bytes } => {
                let size = bytes.to_string();
                let options = [("size", size.as_str()), ("mode", "0755")];
                memory = fresh_mount("tmpfs", &options, MountAttrFlags::empty())
                    .step(&format!("make memory for /{at}"))?;
                &memory
            }
            Mounted::Volume | Mounted::Folder { .. } => {
                outside.next().ok_or(io::Error::from(io::ErrorKind::UnexpectedEof)).step("take the mounts")?
            }
        };
        let mut folder = root.try_clone().step("copy a descriptor")?;
        for name in at.split('/') {
            folder = real_folder(&folder, name).step(&format!("{PLACE}{at}"))?;
        }
        attach(source, &folder).step(&format!("mount /{at}"))?;
    }
    Ok(())
}

fn devpts(options: &[(&str, &str)]) -> io::Result<OwnedFd> {
    let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Opens a folder of the root that is neither a link nor reached over one; makes it when it is missing.
fn real_folder(root: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match open_folder(root, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            rustix::fs::mkdirat(root, name, Mode::from_raw_mode(0o755))?;
            open_folder(root, name)
        }
        other => other,
    }
}

fn open_folder(at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    open_strictly(at, name, OFlags::DIRECTORY)
}

fn open_strictly(at: impl AsFd, name: &str, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    Ok(rustix::fs::openat2(
        at,
        name,
        flags,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH,
    )?)
}

fn attach(mount: impl AsFd, at: impl AsFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount.as_fd(), "", at.as_fd(), "", flags)?)
}

fn clone_of(at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let flags = if name.is_empty() { flags | OpenTreeFlags::AT_EMPTY_PATH } else { flags };
    Ok(open_tree(at, name, flags)?)
}

/// Covers what a sandbox must not see and fixes what it must not write. What this kernel does not have is left out.
fn hide(received: &Received, proc: &OwnedFd, sys: &OwnedFd) -> Result<(), StepFailure> {
    let mut is_attached = false;
    for (tree, name) in HIDDEN_FOLDERS {
        let tree = if tree == Tree::Proc { proc } else { sys };
        let Some(target) = existing(tree, name, OFlags::DIRECTORY).step("find a folder to hide")? else {
            continue;
        };
        // A mount that came from outside can be cloned only once it is attached somewhere here.
        if is_attached {
            let copy = clone_of(received.empty.as_fd(), "").step("clone the empty folder")?;
            attach(&copy, &target).step("hide a folder")?;
        } else {
            attach(&received.empty, &target).step("hide a folder")?;
            is_attached = true;
        }
    }
    for name in HIDDEN_FILES {
        let Some(target) = existing(proc, name, OFlags::empty()).step("find a file to hide")? else {
            continue;
        };
        let null = clone_of(received.dev.as_fd(), "null").step("clone the null device")?;
        if rustix::fs::fstat(&null).step("look at the null device")?.st_rdev != rustix::fs::makedev(1, 3) {
            return Err(StepFailure { step: "check the null device".into(), errno: libc::ENODEV });
        }
        attach(&null, &target).step("hide a file")?;
    }
    for name in READ_ONLY {
        let Some(target) = existing(proc, name, OFlags::empty()).step("find a path to fix")? else {
            continue;
        };
        let copy = clone_of(proc.as_fd(), name).step("clone a path of proc")?;
        let attributes = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC;
        sys::mount_setattr(copy.as_fd(), attributes, None).step("make a path of proc read-only")?;
        attach(&copy, &target).step("attach a read-only path of proc")?;
    }
    // Above the read-only copy. Programs tell by it whether what they left behind still runs.
    match existing(proc, BOOT_ID, OFlags::empty()).step("find the boot id")? {
        Some(target) => attach(&received.boot, &target).step("attach the boot id"),
        None => Ok(()),
    }
}

fn existing(tree: &OwnedFd, name: &str, more: OFlags) -> io::Result<Option<OwnedFd>> {
    match open_strictly(tree, name, more) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn pivot(root: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    // The old root lies on top of the new one now, and goes with everything on it.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// The socket the agent serves. It is bound before anything of the template runs, so nobody else can take its port.
fn listen() -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    let address = std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, atoll_provider::AGENT_PORT);
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

fn become_agent(spawn: &Spawn, listener: &OwnedFd, token: &OwnedFd) -> Result<Never, StepFailure> {
    const MIB: u64 = 1 << 20;
    // One byte, not none: where the host's core_pattern is a pipe, the kernel starts that program as root of the host also
    // for a limit of zero, and refuses only for a limit of one. A file of one byte is never written.
    sys::limit_resource(libc::RLIMIT_CORE, 1, 1).step("switch core files off")?;
    // LIMIT: a browser and a build fit; a loop that forgets to close does not take the host's tables.
    sys::limit_resource(libc::RLIMIT_NOFILE, 16_384, 20_000).step("limit descriptors")?;
    sys::limit_resource(libc::RLIMIT_MEMLOCK, 8 * MIB, 8 * MIB).step("limit locked memory")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A session of its own: the launcher's lies outside the pid namespace, and a checkpoint refuses such a tree.
    rustix::process::setsid().step("begin a session")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .step("open /dev/null")?;
    let keep = [null.as_fd(), null.as_fd(), null.as_fd(), listener.as_fd(), token.as_fd()];
    let above: Vec<OwnedFd> = keep
        .iter()
        .map(|fd| sys::duplicate_above(*fd, 10))
        .collect::<io::Result<_>>()
        .step("copy descriptors")?;
    sys::close_on_exec_from(3).step("mark descriptors")?;
    for (number, fd) in (0..).zip(&above) {
        sys::place_descriptor(fd.as_fd(), number).step("place descriptors")?;
    }
    sys::plain_securebits().step("reset secure bits")?;
    sys::limit_bounding_set(CAPABILITIES).step("drop capabilities for good")?;
    if !spawn.sudo {
        sys::no_new_privileges().step("forbid new privileges")?;
    }
    // Still with CAP_SYS_ADMIN over its own user namespace: a `sudo` template may not set no_new_privs.
    // One volume is enough: sandboxes that share it can hand each other files of others.
    let is_volume = |mount: &MountSpec| matches!(mount.what, Mounted::Volume);
    let clones = if spawn.mounts.iter().any(is_volume) { Clones::Refused } else { Clones::Allowed };
    sys::install_filter(crate::seccomp::compile(clones)).step("install the seccomp filter")?;
    sys::set_capabilities(CAPABILITIES).step("drop capabilities")?;
    let arguments = [c"atoll-agent", c"--listen-fd", c"3", c"--token-fd", c"4"];
    let environment = [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
    let cause = sys::execute(c"/.atoll/atoll-agent", &arguments, &environment);
    Err(StepFailure::new("execute the agent", &cause))
}
