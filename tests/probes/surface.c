/* What a program inside can do, one line per try: KIND:NAME=RESULT, where RESULT is OK or the name of an errno.
 * Every call is made so that it harms nobody even where it is allowed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *kind, const char *name, long result) {
  printf("%s:%s=%s\n", kind, name, result >= 0 ? "OK" : strerrorname_np(errno));
}

/* Some tries end the process or change it; each runs in a child of its own. */
#define TRY(name, expression)                       \
  do {                                              \
    fflush(stdout);                                 \
    pid_t child = fork();                           \
    if (child == 0) {                               \
      errno = 0;                                    \
      long result = (long)(expression);             \
      say("call", name, result);                    \
      fflush(stdout);                               \
      _exit(0);                                     \
    }                                               \
    int status = 0;                                 \
    waitpid(child, &status, 0);                     \
    if (WIFSIGNALED(status)) printf("call:%s=KILLED\n", name); \
  } while (0)

static long swapon_try(void) { return syscall(SYS_swapon, "/nowhere/x", 0); }

static long clock_adjtime_try(void) {
  /* ADJ_FREQUENCY with the value that is there would still need the right to set. */
  struct timex { unsigned int modes; long rest[64]; } wish = {0};
  wish.modes = 0x8000 | 0x2000; /* no such modes together: EINVAL where the right is there */
  return syscall(SYS_clock_adjtime, CLOCK_REALTIME, &wish);
}

static long name_to_handle_try(void) {
  struct { unsigned int bytes; int type; char handle[128]; } handle = {128, 0, {0}};
  int mount_id;
  return syscall(SYS_name_to_handle_at, AT_FDCWD, "/", &handle, &mount_id, 0);
}

static long vm_read_try(void) {
  char byte;
  struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
  return process_vm_readv(1, &here, 1, &there, 1, 0);
}

static long pidfd_getfd_try(void) {
  int one = syscall(SYS_pidfd_open, 1, 0);
  return one < 0 ? -1 : syscall(SYS_pidfd_getfd, one, 3, 0);
}

static long sched_fifo_try(void) {
  struct sched_param wish = {.sched_priority = 1};
  return sched_setscheduler(0, SCHED_FIFO, &wish);
}

static long raise_try(int which) {
  struct rlimit now;
  if (getrlimit(which, &now) < 0) return -1;
  if (now.rlim_max == RLIM_INFINITY) return 0;
  now.rlim_max += 1;
  return setrlimit(which, &now);
}

static void calls(void) {
  static char zeros[4096];
  TRY("acct", syscall(SYS_acct, "/nowhere/x"));
  TRY("add_key", syscall(SYS_add_key, "user", "probe", "x", 1, -2));
  TRY("request_key", syscall(SYS_request_key, "user", "probe", 0, -2));
  TRY("keyctl", syscall(SYS_keyctl, 0, -2, 0));
  TRY("bpf", syscall(SYS_bpf, 0, zeros, 0));
  TRY("perf_event_open", syscall(SYS_perf_event_open, zeros, 0, -1, -1, 0));
  TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
  TRY("io_uring_setup", syscall(SYS_io_uring_setup, 4, zeros));
  TRY("io_uring_enter", syscall(SYS_io_uring_enter, -1, 0, 0, 0, 0, 0));
  TRY("io_uring_register", syscall(SYS_io_uring_register, -1, 0, 0, 0));
  TRY("kexec_load", syscall(SYS_kexec_load, 0, 0, 0, 0xffff));
  TRY("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, "", 0));
  TRY("init_module", syscall(SYS_init_module, zeros, 0, ""));
  TRY("finit_module", syscall(SYS_finit_module, -1, "", 0));
  TRY("delete_module", syscall(SYS_delete_module, "no_such_module", O_NONBLOCK));
  TRY("reboot", syscall(SYS_reboot, 0, 0, 0, 0));
  TRY("swapon", swapon_try());
  TRY("swapoff", syscall(SYS_swapoff, "/nowhere/x"));
  TRY("mount_tmpfs", mount("none", "/tmp", "tmpfs", 0, ""));
  TRY("mount_bind", mount("/etc", "/tmp", 0, MS_BIND, 0));
  TRY("mount_proc", mount("proc", "/tmp", "proc", 0, ""));
  TRY("mount_remount", mount(0, "/proc/sys", 0, MS_REMOUNT | MS_BIND, 0));
  TRY("umount2", umount2("/proc/sys", MNT_DETACH));
  TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
  TRY("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
  TRY("move_mount", syscall(SYS_move_mount, -1, "", AT_FDCWD, "/tmp", 0));
  TRY("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
  TRY("fsmount", syscall(SYS_fsmount, -1, 0, 0));
  TRY("fsconfig", syscall(SYS_fsconfig, -1, 0, 0, 0, 0));
  TRY("fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
  TRY("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, zeros, 32));
  TRY("unshare_user", unshare(CLONE_NEWUSER));
  TRY("unshare_mount", unshare(CLONE_NEWNS));
  TRY("unshare_net", unshare(CLONE_NEWNET));
  TRY("unshare_pid", unshare(CLONE_NEWPID));
  TRY("unshare_cgroup", unshare(CLONE_NEWCGROUP));
  TRY("clone_user", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
  TRY("clone_net", syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0));
  TRY("clone3", syscall(SYS_clone3, zeros, 64));
  TRY("setns_pid1", setns(open("/proc/1/ns/net", O_RDONLY), 0));
  TRY("setns_self", setns(open("/proc/self/ns/mnt", O_RDONLY), 0));
  TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, zeros, O_RDONLY));
  TRY("quotactl", syscall(SYS_quotactl, 0, 0, 0, 0));
  TRY("settimeofday", settimeofday(0, (void *)8));
  TRY("clock_settime", syscall(SYS_clock_settime, CLOCK_REALTIME, 0));
  TRY("clock_adjtime_set", clock_adjtime_try());
  TRY("sethostname", sethostname("probe", 5));
  TRY("setdomainname", setdomainname("probe", 5));
  TRY("iopl", syscall(SYS_iopl, 3));
  TRY("ioperm", syscall(SYS_ioperm, 0x80, 1, 1));
  TRY("syslog_read", syscall(SYS_syslog, 3, zeros, sizeof zeros));
  TRY("vhangup", syscall(SYS_vhangup));
  TRY("lookup_dcookie", syscall(SYS_lookup_dcookie, 0, zeros, 1));
  TRY("move_pages_pid1", syscall(SYS_move_pages, 1, 0, 0, 0, 0, 0));
  TRY("set_mempolicy", syscall(SYS_set_mempolicy, 0, 0, 0));
  TRY("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
  TRY("name_to_handle_at", name_to_handle_try());
  TRY("ptrace_seize_pid1", ptrace(PTRACE_SEIZE, 1, 0, 0));
  TRY("process_vm_readv_pid1", vm_read_try());
  TRY("pidfd_getfd_pid1", pidfd_getfd_try());
  TRY("kcmp_pid1", syscall(SYS_kcmp, getpid(), 1, 0, 0, 0));
  TRY("kill_pid1", kill(1, SIGKILL));
  TRY("sched_fifo", sched_fifo_try());
  TRY("nice_minus_20", setpriority(PRIO_PROCESS, 0, -20));
  TRY("raise_nofile", raise_try(RLIMIT_NOFILE));
  TRY("raise_memlock", raise_try(RLIMIT_MEMLOCK));
  TRY("raise_core", raise_try(RLIMIT_CORE));
  TRY("mknod_block", mknod("/tmp/probe-block", S_IFBLK | 0600, makedev(7, 0)));
  TRY("mknod_mem", mknod("/tmp/probe-mem", S_IFCHR | 0600, makedev(1, 1)));
  TRY("tiocsti", ioctl(0, TIOCSTI, "x"));
  TRY("personality_aslr", syscall(SYS_personality, 0x0040000));
  TRY("chroot", chroot("/"));
  TRY("getrandom", syscall(SYS_getrandom, zeros, 8, 0));
  TRY("mseal_future", syscall(999, 0, 0, 0));
}

static const struct { const char *name; int family, type, protocol; } SOCKETS[] = {
  {"unix", AF_UNIX, SOCK_STREAM, 0},        {"inet", AF_INET, SOCK_STREAM, 0},
  {"inet6", AF_INET6, SOCK_STREAM, 0},      {"raw", AF_INET, SOCK_RAW, 1},
  {"packet", AF_PACKET, SOCK_RAW, 0},       {"vsock", 40, SOCK_STREAM, 0},
  {"alg", 38, SOCK_SEQPACKET, 0},           {"netlink_route", AF_NETLINK, SOCK_RAW, 0},
  {"netlink_netfilter", AF_NETLINK, SOCK_RAW, 12}, {"netlink_audit", AF_NETLINK, SOCK_RAW, 9},
  {"netlink_uevent", AF_NETLINK, SOCK_RAW, 15}, {"bluetooth", 31, SOCK_RAW, 0},
  {"xdp", 44, SOCK_RAW, 0},                 {"tipc", 30, SOCK_RAW, 0},
  {"can", 29, SOCK_RAW, 0},                 {"kcm", 41, SOCK_DGRAM, 0},
  {"rds", 21, SOCK_SEQPACKET, 0},           {"key", 15, SOCK_RAW, 2},
};

static void sockets(void) {
  for (size_t i = 0; i < sizeof SOCKETS / sizeof *SOCKETS; i++) {
    errno = 0;
    say("socket", SOCKETS[i].name, socket(SOCKETS[i].family, SOCKETS[i].type, SOCKETS[i].protocol));
  }
}

static const char *WRITES[] = {
  "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
  "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/file-max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/pid_max",
  "/proc/irq/default_smp_affinity", "/proc/bus", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
  "/sys/power/state", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.procs",
  "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/pids/pids.max", "/sys/devices/system/cpu/cpu1/online",
  "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/loop0", "/dev/loop-control", "/dev/fuse",
  "/dev/kvm", "/dev/net/tun", "/dev/btrfs-control", "/dev/cpu_dma_latency", "/dev/console", "/proc/1/mem", "/proc/kcore",
  "/proc/fs/ext4", "/proc/mtrr", "/proc/scsi/scsi",
};

static const char *READS[] = {
  "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/kmsg", "/proc/kallsyms_real", "/proc/1/environ",
  "/proc/1/mem", "/proc/1/maps", "/proc/1/auxv", "/proc/acpi/wakeup", "/proc/latency_stats", "/proc/interrupts_real",
  "/proc/vmallocinfo", "/proc/slabinfo", "/proc/pagetypeinfo", "/sys/firmware/dmi/tables/DMI", "/sys/kernel/debug/sched",
  "/sys/kernel/tracing/trace", "/sys/kernel/security/lsm", "/sys/fs/bpf", "/dev/mem", "/dev/kmsg", "/dev/port",
  "/.atoll/token", "/run/docker.sock", "/var/run/docker.sock", "/proc/1/root/etc/passwd", "/proc/1/cwd/x", "/proc/1/fd/3",
};

static void paths(void) {
  for (size_t i = 0; i < sizeof WRITES / sizeof *WRITES; i++) {
    int fd = open(WRITES[i], O_WRONLY | O_NONBLOCK | O_NOCTTY);
    say("write", WRITES[i], fd);
    if (fd >= 0) close(fd);
  }
  for (size_t i = 0; i < sizeof READS / sizeof *READS; i++) {
    int fd = open(READS[i], O_RDONLY | O_NONBLOCK | O_NOCTTY);
    char byte;
    /* A mask shows an empty file or folder: that there is nothing to read counts as refused. */
    long got = fd < 0 ? -1 : read(fd, &byte, 1);
    if (fd >= 0 && got == 0) { errno = ENODATA; got = -1; }
    say("read", READS[i], got);
    if (fd >= 0) close(fd);
  }
}

static void capabilities(void) {
  for (int cap = 0; cap <= CAP_LAST_CAP; cap++) {
    char name[16];
    snprintf(name, sizeof name, "%d", cap);
    errno = EPERM;
    say("cap", name, prctl(PR_CAPBSET_READ, cap) == 1 ? 0 : -1);
  }
}

int main(void) {
  calls();
  sockets();
  paths();
  capabilities();
  return 0;
}
