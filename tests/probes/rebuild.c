/* Mounts what a restore needs, each seen through the ids of a sandbox: `rebuild FIRST_ID STAGE LAYER AGENT LOWER`.
 *
 *   STAGE/root   the overlay of LOWER and LAYER/upper        STAGE/agent  the agent's folder, read-only
 *   STAGE/dev    a device folder                             STAGE/empty  an empty folder; STAGE/null: the null device
 *
 * A fresh user namespace with the same map stands in for the old one, which died with its last process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what) {
  fprintf(stderr, "rebuild: %s: %s\n", what, strerror(errno));
  exit(1);
}

static char *join(const char *folder, const char *name) {
  char *path;
  if (asprintf(&path, "%s/%s", folder, name) < 0) die("asprintf");
  return path;
}

static void put(const char *path, const char *text) {
  int fd = open(path, O_WRONLY);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
  close(fd);
}

/* A descriptor of a new user namespace that maps 64k ids from `first`. */
static int user_namespace(unsigned first) {
  int ready[2];
  if (pipe(ready) < 0) die("pipe");
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWUSER) < 0) die("unshare");
    if (write(ready[1], "x", 1) < 0) die("write");
    for (;;) pause();
  }
  char byte, path[64], map[64];
  if (read(ready[0], &byte, 1) != 1) die("the child");
  snprintf(map, sizeof map, "0 %u 65536\n", first);
  snprintf(path, sizeof path, "/proc/%d/uid_map", child);
  put(path, map);
  snprintf(path, sizeof path, "/proc/%d/gid_map", child);
  put(path, map);
  snprintf(path, sizeof path, "/proc/%d/ns/user", child);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) die(path);
  kill(child, SIGKILL);
  waitpid(child, 0, 0);
  return fd;
}

/* Attaches a clone of `from` at `to`, mapped. */
static void mapped(const char *from, const char *to, int users, unsigned long attributes) {
  int tree = syscall(SYS_open_tree, AT_FDCWD, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (tree < 0) die(from);
  struct mount_attr wish = {.attr_set = MOUNT_ATTR_IDMAP | attributes, .userns_fd = users};
  if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &wish, sizeof wish) < 0) die("mount_setattr");
  mkdir(to, 0755);
  if (syscall(SYS_move_mount, tree, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) < 0) die(to);
  close(tree);
}

static void node(const char *folder, const char *name, unsigned major_, unsigned minor_) {
  char *path = join(folder, name);
  if (mknod(path, S_IFCHR | 0666, makedev(major_, minor_)) < 0) die(path);
  chmod(path, 0666);
}

static void devices(const char *folder) {
  mkdir(folder, 0755);
  if (mount("none", folder, "tmpfs", MS_NOSUID, "mode=755,size=1m") < 0) die(folder);
  node(folder, "null", 1, 3); node(folder, "zero", 1, 5); node(folder, "full", 1, 7);
  node(folder, "random", 1, 8); node(folder, "urandom", 1, 9); node(folder, "tty", 5, 0);
  mkdir(join(folder, "pts"), 0755);
  mkdir(join(folder, "shm"), 0777);
  if (symlink("pts/ptmx", join(folder, "ptmx")) < 0 || symlink("/proc/self/fd", join(folder, "fd")) < 0) die("symlink");
  if (symlink("/proc/self/fd/0", join(folder, "stdin")) < 0 || symlink("/proc/self/fd/1", join(folder, "stdout")) < 0 ||
      symlink("/proc/self/fd/2", join(folder, "stderr")) < 0) die("symlink");
}

int main(int count, char **argument) {
  if (count != 6) return 2;
  unsigned first = (unsigned)strtoul(argument[1], 0, 10);
  const char *stage = argument[2], *layer = argument[3], *agent = argument[4], *lower = argument[5];
  int users = user_namespace(first);
  mkdir(stage, 0755);
  umask(0);
  devices(join(stage, "dev-plain"));
  mapped(join(stage, "dev-plain"), join(stage, "dev"), users, MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY);
  mkdir(join(stage, "empty-plain"), 0755);
  if (mount("none", join(stage, "empty-plain"), "tmpfs", MS_NOSUID, "mode=755,size=4k") < 0) die("empty");
  mapped(join(stage, "empty-plain"), join(stage, "empty"), users, MOUNT_ATTR_RDONLY);
  mapped(agent, join(stage, "agent"), users, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
  mapped(lower, join(stage, "lower"), users, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
  mapped(layer, join(stage, "layer"), users, MOUNT_ATTR_NODEV);
  char *work = join(layer, "work-restored"), *options;
  if (mkdir(work, 0700) < 0) die(work);
  if (asprintf(&options, "lowerdir=%s,upperdir=%s,workdir=%s", join(stage, "lower"), join(stage, "layer/upper"),
               join(stage, "layer/work-restored")) < 0) die("asprintf");
  char *root = join(stage, "root");
  mkdir(root, 0755);
  /* The mounter's id must be a mapped one, or the mount is silently read-only. */
  prctl(PR_SET_SECUREBITS, 1 << 2);
  setfsgid(first);
  setfsuid(first);
  if (mount("overlay", root, "overlay", MS_NODEV, options) < 0) die(options);
  return 0;
}
