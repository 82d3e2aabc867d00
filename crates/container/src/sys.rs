//! Thin wrappers for system calls that have no safe wrapper elsewhere. This module contains no decisions.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The namespaces of a sandbox. The cgroup namespace is created later, when the process is in its own cgroups.
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS) as u64;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The two sides of a clone.
pub(crate) enum CloneSide {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Turns a `-1` result into the error that it stands for.
fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn fd_from(answer: libc::c_long) -> OwnedFd {
    let raw = i32::try_from(answer).expect("the kernel answers descriptors that fit an int");
    // SAFETY: the call that returned `raw` has just created the descriptor, so it has no other owner.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Forks into new namespaces, and on cgroup v2 straight into `cgroup`. The user namespace belongs to `owner`.
///
/// # Safety
/// The calling process has one thread only, so that the child finds every lock free. It has set
/// SECBIT_NO_SETUID_FIXUP, so that it keeps its capabilities.
pub(crate) unsafe fn clone_into_namespaces(
    cgroup: Option<BorrowedFd<'_>>,
    owner: u32,
) -> io::Result<CloneSide> {
    // SAFETY: the caller guarantees both.
    unsafe { clone_with(NAMESPACES, cgroup, owner) }
}

/// Forks into a new user namespace that belongs to `owner`; all other namespaces are the parent's.
///
/// # Safety
/// As for [`clone_into_namespaces`].
pub(crate) unsafe fn clone_into_users(owner: u32) -> io::Result<CloneSide> {
    // SAFETY: the caller guarantees both.
    unsafe { clone_with(libc::CLONE_NEWUSER as u64, None, owner) }
}

/// Forks a child that shares only open files with its parent.
///
/// # Safety
/// The calling process has one thread only, so that the child finds every lock free.
pub(crate) unsafe fn fork() -> io::Result<CloneSide> {
    // SAFETY: the caller guarantees it. The owner of namespaces does not matter, because none are created.
    unsafe { clone_with(0, None, 0) }
}

unsafe fn clone_with(namespaces: u64, cgroup: Option<BorrowedFd<'_>>, owner: u32) -> io::Result<CloneSide> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: an all-zero clone_args is valid: every field is a plain number and zero means "not asked for".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    set_effective_user(owner)?;
    // SAFETY: no CLONE_VM, so the child has its own copy of everything; `args` and `pidfd` live through the call.
    let answer =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) });
    if !matches!(answer, Ok(0)) {
        set_effective_user(0)?;
    }
    match answer? {
        0 => Ok(CloneSide::Child),
        pid => Ok(CloneSide::Parent {
            pid: i32::try_from(pid).expect("a pid fits an int"),
            pidfd: fd_from(pidfd.into()),
        }),
    }
}

/// Changes the effective user of the calling thread alone and leaves its file-system user at root.
///
/// The creator of a user namespace owns it. The kernel counts what is used inside (inotify instances, message queues,
/// pending signals) for the owner, with one limit for all namespaces of one owner. So no two sandboxes may have the
/// same owner, and no sandbox may have the host's root as its owner.
fn set_effective_user(user: u32) -> io::Result<()> {
    const UNCHANGED: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: plain numbers. The raw calls are used because there is one thread only.
    unsafe {
        check(libc::syscall(libc::SYS_setresuid, UNCHANGED, user, UNCHANGED))?;
        libc::syscall(libc::SYS_setfsuid, 0);
    }
    Ok(())
}

/// Layout of the kernel's `struct mount_attr`.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

pub(crate) const ATTR_RDONLY: u64 = 1;
pub(crate) const ATTR_NOSUID: u64 = 2;
pub(crate) const ATTR_NODEV: u64 = 4;
pub(crate) const ATTR_NOEXEC: u64 = 8;
const ATTR_IDMAP: u64 = 0x10_0000;

/// Sets attributes of the mount that `mount` is the root of, and maps its ids by `users` where given.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    set: u64,
    users: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = MountAttr { attr_set: set, ..MountAttr::default() };
    if let Some(users) = users {
        attr.attr_set |= ATTR_IDMAP;
        attr.userns_fd = users.as_raw_fd() as u64;
    }
    set_attributes(mount, &mut attr)
}

fn set_attributes(mount: BorrowedFd<'_>, attr: &mut MountAttr) -> io::Result<()> {
    // SAFETY: the path is a NUL-terminated constant, and `attr` has the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw mut *attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Removes a detached mount from its peer group, so that later mounts there do not appear in it.
pub(crate) fn make_private(mount: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(mount, &mut MountAttr { propagation: libc::MS_PRIVATE, ..MountAttr::default() })
}

/// Runs `work` with the file-system ids of a sandbox's root, then restores them. Capabilities stay, since the caller
/// has set SECBIT_NO_SETUID_FIXUP.
pub(crate) fn with_fs_ids<T>(first: u32, work: impl FnOnce() -> T) -> T {
    // SAFETY: these calls change two numbers of the calling thread and touch no memory.
    unsafe {
        libc::setfsgid(first);
        libc::setfsuid(first);
    }
    let result = work();
    // SAFETY: as above.
    unsafe {
        libc::setfsuid(0);
        libc::setfsgid(0);
    }
    result
}

/// Keeps capabilities when file-system ids change.
pub(crate) fn keep_capabilities_over_setuid() -> io::Result<()> {
    const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
    // SAFETY: prctl with plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) }.into()).map(drop)
}

/// Reverts [`keep_capabilities_over_setuid`] for a process that runs in a sandbox.
pub(crate) fn plain_securebits() -> io::Result<()> {
    // SAFETY: prctl with plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, 0, 0, 0, 0) }.into()).map(drop)
}

/// Becomes root of the current user namespace, without supplementary groups.
pub(crate) fn become_mapped_root() -> io::Result<()> {
    // SAFETY: plain numbers; a null list of length zero means "no groups". The raw calls are used because there is one
    // thread only.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        check(libc::syscall(libc::SYS_setresgid, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_setresuid, 0, 0, 0))?;
    }
    Ok(())
}

/// Reduces the bounding set to exactly `keep`.
pub(crate) fn limit_bounding_set(keep: u64) -> io::Result<()> {
    for capability in 0..64u32 {
        if keep & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: prctl with plain numbers.
        let answer = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
        match check(answer.into()) {
            Ok(_) => {}
            // The number is beyond the last capability of this kernel.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sets effective and permitted capabilities to `keep`, the inheritable and ambient ones to none.
pub(crate) fn set_capabilities(keep: u64) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let (low, high) = ((keep & 0xffff_ffff) as u32, (keep >> 32) as u32);
    let sets = [
        Sets { effective: low, permitted: low, inheritable: 0 },
        Sets { effective: high, permitted: high, inheritable: 0 },
    ];
    // SAFETY: both structures have the kernel's layout for version 3 and live through the call.
    unsafe {
        check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0).into())?;
        check(libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr())).map(drop)
    }
}

/// Forbids the calling process and its descendants to gain privileges by exec.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    // SAFETY: prctl with plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into()).map(drop)
}

/// Installs a seccomp filter.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let fprog = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: `fprog` points at `length` instructions; the kernel copies them and does not write.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const fprog) })
        .map(drop)
}

/// Sets a resource limit of the calling process, never above its hard limit.
pub(crate) fn limit_resource(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is a plain structure that the call fills.
    check(unsafe { libc::getrlimit(resource, &raw mut now) }.into())?;
    let hard = hard.min(now.rlim_max);
    let wanted = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: `wanted` is a plain structure that the call reads.
    check(unsafe { libc::setrlimit(resource, &raw const wanted) }.into()).map(drop)
}

/// Raises the descriptor limit of this process to its maximum: the server needs two per live sandbox, and those of its
/// clients.
pub(crate) fn raise_descriptors() -> io::Result<()> {
    limit_resource(libc::RLIMIT_NOFILE, u64::MAX, u64::MAX)
}

/// Chooses whether the kernel reaps dead children or the process waits for them.
pub(crate) fn reap_children_by_kernel(by_kernel: bool) {
    let action = if by_kernel { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither disposition runs code of ours.
    unsafe { libc::signal(libc::SIGCHLD, action) };
}

/// Makes the calling process the parent of orphaned descendants.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: prctl with plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.into()).map(drop)
}

/// Unblocks every signal.
pub(crate) fn unblock_signals() {
    // SAFETY: `set` is initialised by sigemptyset before it is used.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Duplicates `fd` to the descriptor `number`, which stays open over exec.
pub(crate) fn place_descriptor(fd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    // SAFETY: dup3 and fcntl with plain numbers. The caller of exec owns the low numbers.
    unsafe {
        if fd.as_raw_fd() == number {
            check(libc::fcntl(number, libc::F_SETFD, 0).into()).map(drop)
        } else {
            check(libc::dup3(fd.as_raw_fd(), number, 0).into()).map(drop)
        }
    }
}

/// A copy of `fd` with a number of at least `least`.
pub(crate) fn duplicate_above(fd: BorrowedFd<'_>, least: i32) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with plain numbers; the answer is a fresh descriptor.
    let answer = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) }.into())?;
    Ok(fd_from(answer))
}

/// Marks every descriptor from `first` on to be closed by exec.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Replaces the calling process. Returns only on an error.
pub(crate) fn execute(program: &CStr, arguments: &[&CStr], environment: &[&CStr]) -> io::Error {
    let list = |items: &[&CStr]| -> Vec<*const libc::c_char> {
        items.iter().map(|item| item.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (list(arguments), list(environment));
    // SAFETY: both lists end with a null pointer and everything they point at outlives the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends the calling process at once, without running any destructor or exit handler.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Does nothing until a signal ends the process.
pub(crate) fn wait_for_ever() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// Closes a descriptor that still has an owner in this process. Only for a first process, which never returns to the
/// code of that owner.
pub(crate) fn close_for_good(fd: BorrowedFd<'_>) {
    // SAFETY: the owner's code does not run in this process any more, so the descriptor is never closed twice.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// Registers a descriptor with the async runtime.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open file until it is dropped, and no code here replaces it before.
    Ok(unsafe { tokio::io::unix::AsyncFd::register(fd) }?)
}

/// Whether a socket is a TCP connection in repair mode. CRIU sets that mode while it reads the queues of a connection.
pub(crate) fn tcp_repair(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let (mut value, mut length): (libc::c_int, libc::socklen_t) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: the kernel fills a number of the given size.
    let answer = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, value, &raw mut length)
    };
    check(answer.into()).map(|_| value != 0)
}

/// The supplementary groups of the process at the other end of a Unix socket, as they were when it connected.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    /// The same number on x86 and ARM.
    const SO_PEERGROUPS: libc::c_int = 59;
    // LIMIT: the kernel's own bound of groups of a process.
    const GROUPS_MAX: usize = 65_536;
    let mut groups = vec![0u32; 64];
    loop {
        let mut length =
            libc::socklen_t::try_from(size_of_val(groups.as_slice())).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes to the vector, and says how many.
        let answer = unsafe {
            let value = groups.as_mut_ptr().cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, value, &raw mut length)
        };
        let count = usize::try_from(length).map_err(io::Error::other)? / size_of::<u32>();
        match check(answer.into()) {
            Ok(_) => {
                groups.truncate(count);
                return Ok(groups);
            }
            // The kernel says how much room it needs.
            Err(error)
                if error.raw_os_error() == Some(libc::ERANGE)
                    && count > groups.len()
                    && count <= GROUPS_MAX =>
            {
                groups.resize(count, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Ends the repair mode of a TCP connection without sending a packet.
pub(crate) fn end_tcp_repair(socket: BorrowedFd<'_>) -> io::Result<()> {
    let off_without_probe: libc::c_int = -1;
    // SAFETY: the kernel reads a number of the given size.
    let answer = unsafe {
        let (value, length) = ((&raw const off_without_probe).cast(), size_of::<libc::c_int>() as u32);
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, value, length)
    };
    check(answer.into()).map(drop)
}

/// Bytes of the heap that are free for later allocations.
pub(crate) fn free_heap_bytes() -> usize {
    // SAFETY: only reads the allocator's own figures, under its locks.
    unsafe { libc::mallinfo2() }.fordblks
}

/// Returns free pages of the heap to the system.
pub(crate) fn trim_heap() {
    // SAFETY: only the allocator's own free lists are touched, under its locks.
    unsafe { libc::malloc_trim(0) };
}
