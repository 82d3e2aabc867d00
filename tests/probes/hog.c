/* Uses up one thing: `hog KIND [AMOUNT]`. Prints how far it came. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MEBIBYTE (1L << 20)

static void report(const char *what, long count) {
  printf("%s %ld %s\n", what, count, errno ? strerrorname_np(errno) : "none");
  fflush(stdout);
}

static void anonymous(void) {
  for (long n = 1;; n++) {
    char *block = mmap(0, MEBIBYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) { report("anonymous", n); return; }
    memset(block, 7, MEBIBYTE);
  }
}

static void in_file(int fd, const char *name) {
  static char block[MEBIBYTE];
  memset(block, 7, sizeof block);
  for (long n = 0;; n++) {
    if (write(fd, block, sizeof block) < 0) { report(name, n); return; }
  }
}

static void pipes(void) {
  static char block[65536];
  long n = 0;
  for (;; n++) {
    int ends[2];
    if (pipe2(ends, O_NONBLOCK) < 0) break;
    fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    while (write(ends[1], block, sizeof block) > 0) {}
  }
  report("pipes", n);
}

static void sockets(void) {
  static char block[65536];
  long n = 0;
  for (;; n++) {
    int ends[2], size = 16 << 20;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0) break;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    while (send(ends[0], block, sizeof block, MSG_DONTWAIT) > 0) {}
  }
  report("sockets", n);
}

static void bomb(void) {
  for (;;) fork();
}

static void *sleeper(void *unused) { pause(); return unused; }

static void threads(void) {
  long n = 0;
  pthread_t thread;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 32768);
  while ((errno = pthread_create(&thread, &small, sleeper, 0)) == 0) n++;
  report("threads", n);
}

static void stubborn(void) {
  signal(SIGTERM, SIG_IGN); signal(SIGHUP, SIG_IGN); signal(SIGINT, SIG_IGN);
  for (int i = 0; i < 4; i++) {
    if (fork() == 0) {
      setsid();
      if (fork() != 0) _exit(0);
      prctl(PR_SET_CHILD_SUBREAPER, 1);
      for (int j = 0; j < 4; j++) if (fork() == 0) { setsid(); for (;;) pause(); }
      for (;;) pause();
    }
  }
  while (wait(0) > 0) {}
  report("stubborn", 20);
}

static void zombies(long count) {
  long n = 0;
  for (; n < count; n++) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0) break;
  }
  report("zombies", n);
  sleep(2);
}

static void orphans(long count) {
  for (long n = 0; n < count; n++) {
    pid_t child = fork();
    if (child == 0) { if (fork() == 0) usleep(1000); _exit(0); }
    if (child > 0) waitpid(child, 0, 0); else usleep(1000);
  }
  report("orphans", count);
}

static void *spin(void *unused) { for (volatile unsigned long n = 0;; n++) {} return unused; }

static void burn(long seconds) {
  struct sched_param wish = {.sched_priority = 50};
  int fifo = sched_setscheduler(0, SCHED_FIFO, &wish);
  setpriority(PRIO_PROCESS, 0, -20);
  for (int i = 0; i < 8; i++) { pthread_t thread; pthread_create(&thread, 0, spin, 0); }
  timer_t timer;
  struct sigevent none = {.sigev_notify = SIGEV_NONE};
  for (int i = 0; i < 200 && timer_create(CLOCK_MONOTONIC, &none, &timer) == 0; i++) {
    struct itimerspec often = {{0, 50000}, {0, 50000}};
    timer_settime(timer, 0, &often, 0);
  }
  sleep(seconds);
  errno = 0;
  report(fifo == 0 ? "burned-in-real-time" : "burned", seconds);
  _exit(0);
}

static void descriptors(void) {
  long n = 0;
  while (open("/dev/null", O_RDONLY) >= 0) n++;
  report("descriptors", n);
}

static void watches(void) {
  long n = 0;
  while (inotify_init() >= 0) n++;
  report("watches", n);
}

static void ipc(void) {
  long n = 0;
  for (; n < 200; n++) {
    if (shmget(IPC_PRIVATE, 4096, 0600) < 0 || semget(IPC_PRIVATE, 8, 0600) < 0 || msgget(IPC_PRIVATE, 0600) < 0) break;
  }
  report("ipc", n);
}

int main(int count, char **argument) {
  const char *kind = count > 1 ? argument[1] : "";
  long amount = count > 2 ? atol(argument[2]) : 0;
  if (!strcmp(kind, "anonymous")) anonymous();
  else if (!strcmp(kind, "memfd")) in_file(memfd_create("hog", 0), "memfd");
  else if (!strcmp(kind, "tmpfs")) in_file(open("/dev/shm/hog-shm", O_CREAT | O_WRONLY, 0600), "tmpfs");
  else if (!strcmp(kind, "cache")) in_file(open("/home/user/hog-cache", O_CREAT | O_WRONLY, 0600), "cache");
  else if (!strcmp(kind, "pipes")) pipes();
  else if (!strcmp(kind, "sockets")) sockets();
  else if (!strcmp(kind, "bomb")) bomb();
  else if (!strcmp(kind, "threads")) threads();
  else if (!strcmp(kind, "stubborn")) stubborn();
  else if (!strcmp(kind, "zombies")) zombies(amount);
  else if (!strcmp(kind, "orphans")) orphans(amount);
  else if (!strcmp(kind, "burn")) burn(amount);
  else if (!strcmp(kind, "descriptors")) descriptors();
  else if (!strcmp(kind, "watches")) watches();
  else if (!strcmp(kind, "ipc")) ipc();
  else return 2;
  return 0;
}
