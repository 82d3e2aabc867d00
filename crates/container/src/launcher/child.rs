//! The first process between its clone and its exec of the agent. It runs inside the new namespaces.
//!
//! It resolves no path through the template: every mount goes from a descriptor to a descriptor, symbolic links are
//! never followed, and masks are made from the engine's own device nodes. It trusts neither the template nor the files
//! of an earlier instance.

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
use crate::seccomp::{Clones, FilterVariant, SpecialBits};
use crate::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY};

/// The capabilities of root in a sandbox: Docker's default list without raw sockets, device nodes and audit.
///
/// chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap.
pub(crate) const CAPABILITIES: u64 = 0x8004_05fb;
/// Not given to sandboxes that write to a folder of the host: a program there with file capabilities would have them
/// in the user namespaces that the folder's owner makes on the host.
pub(crate) const CAP_SETFCAP: u64 = 1 << 31;

/// Folders in `/proc` and `/sys` that are covered by an empty folder.
const HIDDEN_FOLDERS: [(Tree, &str); 6] = [
    (Tree::Sys, "firmware"),
    (Tree::Sys, "devices/virtual/powercap"),
    // Loop devices show the paths of their backing files on the host.
    (Tree::Sys, "devices/virtual/block"),
    (Tree::Proc, "acpi"),
    (Tree::Proc, "asound"),
    (Tree::Proc, "scsi"),
];
/// Files in `/proc` that read as empty.
const HIDDEN_FILES: [&str; 8] =
    ["kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "interrupts", "kmsg"];
/// Paths that are read-only, whatever their permission bits say.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// The kernel has one boot id for the whole machine.
const BOOT_ID: &str = "sys/kernel/random/boot_id";

#[derive(Clone, Copy, PartialEq)]
enum Tree {
    Proc,
    Sys,
}

/// Everything that the first process gets from the launcher.
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
    /// The file with the boot id.
    boot: OwnedFd,
    usr: Option<OwnedFd>,
    /// Mounts from outside, in order.
    mounts: Vec<OwnedFd>,
}

/// Becomes the agent, or reports the failed step and ends.
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
    // The OOM protection of the server must not apply to processes in sandboxes.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    // The kernel lets a new user namespace mount these two only while the host's are still visible.
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

/// The messages of the control socket, which arrive in any order.
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
        // The host is gone; the report goes nowhere and the process ends.
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

/// Writing "0" moves the writer itself. Moving another process by its pid would make the kernel wait for all threads of
/// all processes (10 ms for five controllers).
fn join_cgroups(tasks: Vec<OwnedFd>) -> io::Result<()> {
    for file in tasks {
        rustix::io::write(&file, b"0")?;
    }
    // After the move, so that the root of the namespace is the sandbox's own cgroup.
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

/// Assembles the root on the folder in which the process started; returns the root.
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
    // Before the engine's own mounts, which no mount may cover.
    place_mounts(&root, &spawn.mounts, &received.mounts)?;
    place(proc, "proc")?;
    place(sys, "sys")?;
    place(&received.dev, "dev")?;
    place(&received.agent, ".atoll")?;
    // LIMIT: terminals of one sandbox. The kernel has about three thousand for all sandboxes together.
    let pts = [("mode", "0620"), ("ptmxmode", "0666"), ("gid", "5"), ("max", "128")];
    // devpts is mounted without `nodev`, because with it its terminals could not be opened.
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

/// Mounts volumes. Missing folders on the path are made; symbolic links are refused, wherever they lead.
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

/// Opens a folder of the root without following a symbolic link; makes it when it is missing.
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

/// Hides what a sandbox must not see and makes read-only what it must not write. Paths that this kernel does not have
/// are skipped.
fn hide(received: &Received, proc: &OwnedFd, sys: &OwnedFd) -> Result<(), StepFailure> {
    let mut is_attached = false;
    for (tree, name) in HIDDEN_FOLDERS {
        let tree = if tree == Tree::Proc { proc } else { sys };
        let Some(target) = existing(tree, name, OFlags::DIRECTORY).step("find a folder to hide")? else {
            continue;
        };
        // A mount from outside can be cloned only after it has been attached in this namespace.
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
        if rustix::fs::fstat(&null).step("inspect the null device")?.st_rdev != rustix::fs::makedev(1, 3) {
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
    // On top of the read-only copy. Programs use the boot id to decide whether processes of an earlier run still exist.
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
    // The old root now covers the new one; detaching it removes everything on it.
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// The socket of the agent. It is bound before any program of the template runs, so no such program can take its port.
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
    // One byte, not zero: if the host's core_pattern is a pipe, the kernel starts that program as root of the host even
    // for a limit of zero, and skips it only for a limit of one. A file of one byte is never written.
    sys::limit_resource(libc::RLIMIT_CORE, 1, 1).step("switch core files off")?;
    // LIMIT: enough for a browser or a build; too little for a program that leaks descriptors to exhaust the host's
    // tables.
    sys::limit_resource(libc::RLIMIT_NOFILE, 16_384, 20_000).step("limit descriptors")?;
    sys::limit_resource(libc::RLIMIT_MEMLOCK, 8 * MIB, 8 * MIB).step("limit locked memory")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // A new session: the launcher's session is outside the pid namespace, and CRIU refuses to dump such a process.
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
    let variant = filter_of(&spawn.mounts);
    let capabilities = match variant.special_bits {
        SpecialBits::Allowed => CAPABILITIES,
        SpecialBits::Refused => CAPABILITIES & !CAP_SETFCAP,
    };
    sys::limit_bounding_set(capabilities).step("drop capabilities for good")?;
    if !spawn.sudo {
        sys::no_new_privileges().step("forbid new privileges")?;
    }
    // The filter is installed while the process still has CAP_SYS_ADMIN over its own user namespace, because with
    // `sudo` no_new_privs is not set.
    sys::install_filter(crate::seccomp::compile(variant)).step("install the seccomp filter")?;
    sys::set_capabilities(capabilities).step("drop capabilities")?;
    let arguments = [c"atoll-agent", c"--listen-fd", c"3", c"--token-fd", c"4"];
    let environment = [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
    let cause = sys::execute(c"/.atoll/atoll-agent", &arguments, &environment);
    Err(StepFailure::new("execute the agent", &cause))
}

/// With any volume mounted, clones are refused: sandboxes that share a volume could pass each other blocks of other
/// volumes. With a folder of the host to write to, special bits are refused.
fn filter_of(mounts: &[MountSpec]) -> FilterVariant {
    let has_volume = mounts.iter().any(|mount| matches!(mount.what, Mounted::Volume));
    let writes_to_host = mounts.iter().any(MountSpec::is_writable_host_folder);
    FilterVariant {
        clones: if has_volume { Clones::Refused } else { Clones::Allowed },
        special_bits: if writes_to_host { SpecialBits::Refused } else { SpecialBits::Allowed },
    }
}
