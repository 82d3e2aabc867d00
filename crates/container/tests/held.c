// Holds one of everything that a checkpoint must bring back, and says whether it still does. A line in /tmp/ask is answered by
// one in /tmp/report: "ok" with the child's counter, or what is missing.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES (4u << 20)
static uint64_t *memory, sum_before;
static volatile uint64_t *shared; // [0] the child, [1] the thread
static int data, gone, pipes[2], sockets[2], listener, client, server, own_client, own_server, outside = -1, alarm_fd, event, master,
    slave, watcher;
static struct timespec begun;

static uint64_t sum(void) {
    uint64_t s = 1469598103934665603ull;
    for (size_t i = 0; i < PAGES / 8; i++) s = (s ^ memory[i]) * 1099511628211ull;
    return s;
}

static void *count(void *p) {
    for (;;) {
        shared[1]++;
        usleep(2000);
    }
    return p;
}

static int tcp(uint32_t address, int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = address};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (port == 7000 && address == INADDR_ANY) {
        if (bind(fd, (void *)&at, sizeof at) || listen(fd, 16)) exit(3);
    } else if (connect(fd, (void *)&at, sizeof at)) exit(4);
    return fd;
}

static int sends(int from, int to) {
    char c = 0;
    return write(from, "x", 1) == 1 && read(to, &c, 1) == 1 && c == 'x';
}

static const char *check(void) {
    static char why[200];
    char buffer[64] = {0}, dir[200];
    struct stat st;
    if (sum() != sum_before) return "memory";
    if (lseek(data, 0, SEEK_CUR) != 3 || pread(data, buffer, 6, 0) != 6 || memcmp(buffer, "abcdef", 6)) return "open file";
    if (fstat(gone, &st) || st.st_nlink != 0 || pread(gone, buffer, 5, 0) != 5 || memcmp(buffer, "ghost", 5)) return "deleted file";
    if (read(pipes[0], buffer, 5) != 5 || memcmp(buffer, "piped", 5) || write(pipes[1], "piped", 5) != 5) return "pipe";
    if (read(sockets[0], buffer, 4) != 4 || memcmp(buffer, "pair", 4) || write(sockets[1], "pair", 4) != 4) return "socket pair";
    if (!sends(client, server) || !sends(server, client)) return "loopback connection";
    if (!sends(own_client, own_server)) return "connection to itself by its own address";
    int fresh = tcp(htonl(INADDR_LOOPBACK), 7000), taken = accept(listener, 0, 0);
    if (!sends(fresh, taken)) return "listener";
    close(fresh), close(taken);
    uint64_t number = 0;
    if (read(event, &number, 8) != 8 || number != 7 || write(event, &number, 8) != 8) return "eventfd";
    struct itimerspec left;
    if (timerfd_gettime(alarm_fd, &left) || left.it_value.tv_sec < 3000 || left.it_value.tv_sec > 3600) return "timerfd";
    struct itimerval tick;
    getitimer(ITIMER_REAL, &tick);
    if (tick.it_value.tv_sec < 3000 || tick.it_value.tv_sec > 3600) return "interval timer";
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec < begun.tv_sec || now.tv_sec > begun.tv_sec + 600) return "clock";
    struct winsize size;
    if (ioctl(slave, TIOCGWINSZ, &size) || size.ws_row != 33 || size.ws_col != 101) return "terminal's size";
    if (write(master, "typed\n", 6) != 6 || read(slave, buffer, 6) != 6 || memcmp(buffer, "typed\n", 6)) return "terminal";
    if (read(master, buffer, sizeof buffer) <= 0) return "terminal's echo";
    if (strcmp(getcwd(dir, sizeof dir), "/root/a place")) return "working directory";
    if (!getenv("MARK") || strcmp(getenv("MARK"), "kept")) return "environment";
    close(open("/root/watched/new", O_CREAT | O_WRONLY, 0600));
    if (read(watcher, why, sizeof why) <= 0) return "watcher";
    unlink("/root/watched/new");
    while (read(watcher, why, sizeof why) > 0) {}
    if (flock(open("/root/data", O_RDWR), LOCK_EX | LOCK_NB) != -1) return "file lock";
    uint64_t child = shared[0], thread = shared[1];
    usleep(60000);
    if (shared[0] == child) return "child";
    if (shared[1] == thread) return "thread";
    if (outside >= 0) {
        // Anything but a wait: data, the end, or an error.
        fcntl(outside, F_SETFL, O_NONBLOCK);
        ssize_t got = read(outside, buffer, 1);
        snprintf(why, sizeof why, "ok %llu outside %s", (unsigned long long)shared[0], got < 0 ? strerrorname_np(errno) : "end");
        return why;
    }
    snprintf(why, sizeof why, "ok %llu", (unsigned long long)shared[0]);
    return why;
}

int main(int argc, char **argv) {
    (void)argc;
    signal(SIGPIPE, SIG_IGN);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    setenv("MARK", "kept", 1);
    mkdir("/root/a place", 0755), mkdir("/root/watched", 0755);
    if (chdir("/root/a place")) return 2;
    memory = mmap(0, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < PAGES / 8; i++) x ^= x << 13, x ^= x >> 7, x ^= x << 17, memory[i] = x;
    sum_before = sum();
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    data = open("/root/data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(data, "abcdef", 6) != 6 || flock(data, LOCK_EX)) return 2;
    lseek(data, 3, SEEK_SET);
    gone = open("/root/gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (write(gone, "ghost", 5) != 5 || unlink("/root/gone")) return 2;
    if (pipe(pipes) || write(pipes[1], "piped", 5) != 5) return 2;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || write(sockets[1], "pair", 4) != 4) return 2;
    listener = tcp(INADDR_ANY, 7000);
    client = tcp(htonl(INADDR_LOOPBACK), 7000), server = accept(listener, 0, 0);
    own_client = tcp(inet_addr(argv[1]), 7000), own_server = accept(listener, 0, 0);
    event = eventfd(7, 0);
    alarm_fd = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec hour = {.it_value.tv_sec = 3600};
    timerfd_settime(alarm_fd, 0, &hour, 0);
    struct itimerval tick = {.it_value.tv_sec = 3600};
    setitimer(ITIMER_REAL, &tick, 0);
    struct winsize size = {.ws_row = 33, .ws_col = 101};
    if (openpty(&master, &slave, 0, 0, &size)) return 2;
    watcher = inotify_init1(IN_NONBLOCK);
    if (inotify_add_watch(watcher, "/root/watched", IN_CREATE) < 0) return 2;
    int poll = epoll_create1(0);
    struct epoll_event in = {.events = EPOLLIN};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &in);
    if (fork() == 0)
        for (;;) shared[0]++, usleep(1000);
    pthread_t thread;
    pthread_create(&thread, 0, count, 0);
    mkfifo("/tmp/ask", 0600);
    int ask = open("/tmp/ask", O_RDWR);
    close(open("/tmp/holding", O_CREAT | O_WRONLY, 0600));
    for (;;) {
        char c;
        if (read(ask, &c, 1) != 1) continue;
        // "o": the next connection comes from outside.
        if (c == 'o') outside = accept(listener, 0, 0);
        if (c != 'c') continue;
        const char *said = check();
        int report = open("/tmp/report.new", O_CREAT | O_TRUNC | O_WRONLY, 0600);
        if (write(report, said, strlen(said)) < 0) return 5;
        close(report);
        rename("/tmp/report.new", "/tmp/report");
    }
}
