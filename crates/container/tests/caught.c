// Processes that are hard to catch: `stuck` waits in vfork for ever, `busy` is in vfork most of the time, `traced` traces a child, `wide` maps
// more than can be restored. `watch` watches a file, which is not hard.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

// The test waits for this file.
static void ready(void) {
    close(open("/tmp/caught", O_CREAT | O_WRONLY, 0600));
}

static void wait_in_vfork(unsigned microseconds) {
    pid_t child = vfork();
    if (child == 0) {
        usleep(microseconds);
        _exit(0);
    }
    waitpid(child, 0, 0);
}

static void watch(void) {
    char event[4096];
    int watches = inotify_init();
    if (inotify_add_watch(watches, "/root/deep/watched", IN_MODIFY) < 0) exit(1);
    ready();
    while (read(watches, event, sizeof event) > 0) close(open("/tmp/seen", O_CREAT | O_WRONLY, 0600));
}

static void map_wide(void) {
    for (int i = 0; i < 100; i++)
        if (mmap(0, 1UL << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) exit(1);
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    if (!strcmp(how, "stuck")) {
        ready();
        for (;;) wait_in_vfork(900000000);
    }
    if (!strcmp(how, "busy")) {
        ready();
        for (;;) {
            wait_in_vfork(3000);
            usleep(1500);
        }
    }
    if (!strcmp(how, "watch")) watch();
    if (!strcmp(how, "wide")) {
        map_wide();
        ready();
        for (;;) pause();
    }
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        for (;;) pause();
    }
    waitpid(child, 0, 0);
    ready();
    for (;;) pause();
}
