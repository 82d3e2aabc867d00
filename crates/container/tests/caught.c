// Processes that are hard to catch: `stuck` waits in vfork for ever, `busy` is in vfork most of the time, `traced` traces a child.
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_in_vfork(unsigned microseconds) {
    pid_t child = vfork();
    if (child == 0) {
        usleep(microseconds);
        _exit(0);
    }
    waitpid(child, 0, 0);
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    if (!strcmp(how, "stuck")) {
        for (;;) wait_in_vfork(900000000);
    }
    if (!strcmp(how, "busy")) {
        for (;;) {
            wait_in_vfork(3000);
            usleep(1500);
        }
    }
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        for (;;) pause();
    }
    waitpid(child, 0, 0);
    for (;;) pause();
}
