//! The table of system calls. Calls that it does not name are refused, and numbers above the newest one it knows are
//! unknown.

use super::{Check, SyscallVerdict};

/// The newest call of the table (`mseal`); later calls return ENOSYS until they have been reviewed.
pub(super) const NEWEST: u32 = 462;

/// The verdict on a call number of x86-64.
pub(super) fn verdict(number: u32) -> SyscallVerdict {
    if number > NEWEST || (335..424).contains(&number) || UNKNOWN.contains(&i64::from(number)) {
        return SyscallVerdict::Unknown;
    }
    match i64::from(number) {
        libc::SYS_clone => SyscallVerdict::Depends(Check::NoNamespaces),
        // `socketpair` first makes a socket of the family and is refused only after that, so it exposes the same code.
        libc::SYS_socket | libc::SYS_socketpair => SyscallVerdict::Depends(Check::PlainSocket),
        libc::SYS_personality => SyscallVerdict::Depends(Check::HarmlessPersona),
        libc::SYS_ioctl => SyscallVerdict::Depends(Check::HarmlessRequest),
        libc::SYS_copy_file_range => SyscallVerdict::Depends(Check::Copy),
        // `mkdir` is not among them: the kernel ignores the bits in its mode.
        libc::SYS_chmod | libc::SYS_fchmod | libc::SYS_creat | libc::SYS_mknod => {
            SyscallVerdict::Depends(Check::PlainMode { mode: 1 })
        }
        libc::SYS_fchmodat | FCHMODAT2 | libc::SYS_mknodat => {
            SyscallVerdict::Depends(Check::PlainMode { mode: 2 })
        }
        libc::SYS_open => SyscallVerdict::Depends(Check::PlainModeIfNew { flags: 1 }),
        libc::SYS_openat => SyscallVerdict::Depends(Check::PlainModeIfNew { flags: 2 }),
        libc::SYS_openat2 => SyscallVerdict::Depends(Check::HiddenMode),
        call if ALLOWED.contains(&call) => SyscallVerdict::Allow,
        _ => SyscallVerdict::Refuse,
    }
}

/// `clone3` passes its flags behind a pointer, so libraries have to use `clone`. The contexts of `io_setup` come from
/// one small machine-wide table, which one sandbox could exhaust; databases work without them.
const UNKNOWN: &[i64] = &[libc::SYS_clone3, libc::SYS_io_setup];

/// Namespace flags of `clone`.
pub(super) const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32
    | NEWTIME;
const NEWTIME: u32 = 0x80;
/// Linux, its 32-bit and legacy variants, and the query.
pub(super) const PERSONAS: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
pub(super) const FAMILIES: [u32; 3] = [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32];
pub(super) const NETLINK: u32 = libc::AF_NETLINK as u32;
pub(super) const NETLINK_ROUTE: u32 = 0;
/// TIOCSTI and TIOCLINUX.
pub(super) const TERMINAL_INPUT: [u32; 2] = [0x5412, 0x541c];
/// The bits of a request that name its driver, and their value for btrfs.
pub(super) const DRIVER: u32 = 0xff00;
pub(super) const BTRFS: u32 = 0x9400;
const FCHMODAT2: i64 = 452;
/// Flags of `open` with which it makes a file: `O_CREAT`, and the bit of `O_TMPFILE` that is not `O_DIRECTORY`.
pub(super) const MAKES_FILE: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
/// The set-user-ID and set-group-ID bits of a mode.
pub(super) const SPECIAL_BITS: u32 = libc::S_ISUID | libc::S_ISGID;
/// FICLONE, FICLONERANGE and FIDEDUPERANGE, which other file systems support too.
pub(super) const CLONES: [u32; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    // Files and directories.
    libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_stat, libc::SYS_fstat, libc::SYS_lstat,
    libc::SYS_lseek, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_access,
    libc::SYS_pipe, libc::SYS_dup, libc::SYS_dup2, libc::SYS_sendfile, libc::SYS_fcntl, libc::SYS_flock,
    libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_truncate, libc::SYS_ftruncate, libc::SYS_getdents, libc::SYS_getcwd,
    libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_rename, libc::SYS_mkdir, libc::SYS_rmdir,
    libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink, libc::SYS_readlink,
    libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown, libc::SYS_umask, libc::SYS_statfs,
    libc::SYS_fstatfs, libc::SYS_chroot, libc::SYS_sync, libc::SYS_readahead, libc::SYS_setxattr, libc::SYS_lsetxattr,
    libc::SYS_fsetxattr, libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_flistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    libc::SYS_getdents64, libc::SYS_fadvise64, libc::SYS_utime, libc::SYS_utimes, libc::SYS_mkdirat,
    libc::SYS_fchownat, libc::SYS_futimesat, libc::SYS_newfstatat, libc::SYS_unlinkat,
    libc::SYS_renameat, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_readlinkat,
    libc::SYS_faccessat, libc::SYS_splice, libc::SYS_tee, libc::SYS_sync_file_range, libc::SYS_vmsplice,
    libc::SYS_utimensat, libc::SYS_fallocate, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_syncfs, libc::SYS_dup3,
    libc::SYS_pipe2, libc::SYS_renameat2, libc::SYS_preadv2, libc::SYS_pwritev2,
    libc::SYS_statx, libc::SYS_close_range, libc::SYS_faccessat2, libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_mark, libc::SYS_inotify_init, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    libc::SYS_inotify_init1, 451 /* cachestat */,
    // Memory.
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_munlock, libc::SYS_mlockall, libc::SYS_munlockall,
    libc::SYS_remap_file_pages, libc::SYS_mlock2, libc::SYS_pkey_mprotect, libc::SYS_pkey_alloc, libc::SYS_pkey_free,
    libc::SYS_memfd_create, libc::SYS_memfd_secret, libc::SYS_process_mrelease, 453 /* map_shadow_stack */, 462 /* mseal */,
    libc::SYS_membarrier,
    // Signals, time and waiting.
    libc::SYS_poll, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_select,
    libc::SYS_pause, libc::SYS_nanosleep, libc::SYS_getitimer, libc::SYS_alarm, libc::SYS_setitimer, libc::SYS_kill,
    libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_time, libc::SYS_gettimeofday, libc::SYS_times,
    libc::SYS_timer_create, libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete, libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep,
    libc::SYS_adjtimex, libc::SYS_restart_syscall, libc::SYS_epoll_create, libc::SYS_epoll_ctl_old, libc::SYS_epoll_wait_old,
    libc::SYS_epoll_wait, libc::SYS_epoll_ctl, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_epoll_pwait,
    libc::SYS_signalfd, libc::SYS_timerfd_create, libc::SYS_eventfd, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4, libc::SYS_eventfd2, libc::SYS_epoll_create1, libc::SYS_rt_tgsigqueueinfo, libc::SYS_epoll_pwait2,
    libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal,
    // Processes and threads.
    libc::SYS_sched_yield, libc::SYS_getpid, libc::SYS_fork, libc::SYS_vfork, libc::SYS_execve, libc::SYS_exit,
    libc::SYS_wait4, libc::SYS_uname, libc::SYS_getrlimit, libc::SYS_getrusage, libc::SYS_sysinfo, libc::SYS_ptrace,
    libc::SYS_getuid, libc::SYS_getgid, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_geteuid, libc::SYS_getegid,
    libc::SYS_setpgid, libc::SYS_getppid, libc::SYS_getpgrp, libc::SYS_setsid, libc::SYS_setreuid, libc::SYS_setregid,
    libc::SYS_getgroups, libc::SYS_setgroups, libc::SYS_setresuid, libc::SYS_getresuid, libc::SYS_setresgid,
    libc::SYS_getresgid, libc::SYS_getpgid, libc::SYS_setfsuid, libc::SYS_setfsgid, libc::SYS_getsid, libc::SYS_capget,
    libc::SYS_capset, libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_sched_setparam, libc::SYS_sched_getparam,
    libc::SYS_sched_setscheduler, libc::SYS_sched_getscheduler, libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min, libc::SYS_sched_rr_get_interval, libc::SYS_modify_ldt, libc::SYS_prctl,
    libc::SYS_arch_prctl, libc::SYS_setrlimit, libc::SYS_gettid, libc::SYS_futex, libc::SYS_sched_setaffinity,
    libc::SYS_sched_getaffinity, libc::SYS_set_thread_area, libc::SYS_get_thread_area, libc::SYS_set_tid_address,
    libc::SYS_exit_group, libc::SYS_waitid, libc::SYS_ioprio_set, libc::SYS_ioprio_get, libc::SYS_set_robust_list,
    libc::SYS_get_robust_list, libc::SYS_prlimit64, libc::SYS_getcpu, libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev, libc::SYS_sched_setattr, libc::SYS_sched_getattr, libc::SYS_seccomp,
    libc::SYS_getrandom, libc::SYS_execveat, libc::SYS_rseq, libc::SYS_futex_waitv, libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self, 454, 455, 456 /* futex_wake, _wait, _requeue */,
    // Sockets and interprocess communication.
    libc::SYS_connect, libc::SYS_accept, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg,
    libc::SYS_shutdown, libc::SYS_bind, libc::SYS_listen, libc::SYS_getsockname, libc::SYS_getpeername,
    libc::SYS_setsockopt, libc::SYS_getsockopt, libc::SYS_accept4, libc::SYS_recvmmsg,
    libc::SYS_sendmmsg, libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_shmdt, libc::SYS_semget,
    libc::SYS_semop, libc::SYS_semctl, libc::SYS_semtimedop, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv,
    libc::SYS_msgctl, libc::SYS_mq_open, libc::SYS_mq_unlink, libc::SYS_mq_timedsend, libc::SYS_mq_timedreceive,
    libc::SYS_mq_notify, libc::SYS_mq_getsetattr, libc::SYS_io_destroy, libc::SYS_io_getevents,
    libc::SYS_io_submit, libc::SYS_io_cancel, 333 /* io_pgetevents */,
];
