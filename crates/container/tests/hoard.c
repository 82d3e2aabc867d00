/* Takes what the kernel counts per user: all that it gets and holds on ("all"), or one of each ("one").
 * Prints how many inotify instances, message queues and waiting signals it had. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

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
    fflush(stdout);
    if (most > 1)
        pause();
    return 0;
}
