/* Takes what the kernel counts per user: all that it gets and holds on ("all"), or one of each ("one").
 * Prints how many inotify instances, message queues and waiting signals it had; then, of what the kernel has one stock of
 * for the whole machine, how many terminals, events of asynchronous I/O, and MiB in the buffers of sockets. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes that fit into connections which nobody reads. */
static long fill_sockets(void) {
    static char block[65536];
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    long bytes = 0;
    if (bind(listener, (void *)&here, sizeof here) || listen(listener, 64) ||
        getsockname(listener, (void *)&here, &length))
        return -1;
    for (int i = 0; i < 100; i++) {
        int out = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(out, (void *)&here, sizeof here) || accept(listener, NULL, NULL) < 0)
            break;
        for (long sent; (sent = send(out, block, sizeof block, MSG_DONTWAIT)) > 0;)
            bytes += sent;
    }
    return bytes;
}

int main(int argc, char **argv) {
    int most = argc > 1 && strcmp(argv[1], "all") == 0 ? 1000000 : 1;
    int watchers = 0, queues = 0, signals = 0;
    while (watchers < most && inotify_init1(IN_CLOEXEC) >= 0)
        watchers++;
    for (; queues < most; queues++) {
        char name[32];
        snprintf(name, sizeof name, "/hoard-%d-%d", getpid(), queues);
        struct mq_attr size = {.mq_maxmsg = 10, .mq_msgsize = 8192};
        if (mq_open(name, O_CREAT | O_RDWR, 0600, &size) < 0)
            break;
        if (most == 1)
            mq_unlink(name);
    }
    sigset_t later;
    sigemptyset(&later);
    sigaddset(&later, SIGRTMIN + 2);
    sigprocmask(SIG_BLOCK, &later, NULL);
    while (signals < most && sigqueue(getpid(), SIGRTMIN + 2, (union sigval){0}) == 0)
        signals++;
    printf("had %d %d %d\n", watchers, queues, signals);
    int terminals = 0, events = 0;
    while (terminals < most && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
        terminals++;
    for (unsigned long context = 0; events < most && syscall(SYS_io_setup, 1000, &context) == 0; context = 0)
        events += 1000;
    printf("took %d %d %ld\n", terminals, events, most > 1 ? fill_sockets() >> 20 : 0);
    fflush(stdout);
    if (most > 1)
        pause();
    return 0;
}
