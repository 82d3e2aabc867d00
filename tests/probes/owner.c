// Preloaded into CRIU where the host's root lacks CAP_SYS_RESOURCE (the reference machine): reads another process's
// limits as the owner of its user namespace, who has that right. ATOLL_OWNER names the owner. Everything else that goes
// through syscall(3) passes unchanged.
#include <errno.h>
#include <linux/securebits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static long raw(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}

static long as_owner(long owner, long a, long b, long c, long d) {
    // Without the bit a change of the effective user would take the capabilities along.
    long bits = raw(SYS_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0, 0);
    raw(SYS_prctl, PR_SET_SECUREBITS, bits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0, 0);
    raw(SYS_setresuid, -1, owner, -1, 0, 0, 0);
    long answer = raw(SYS_prlimit64, a, b, c, d, 0, 0);
    raw(SYS_setresuid, -1, 0, -1, 0, 0, 0);
    raw(SYS_prctl, PR_SET_SECUREBITS, bits, 0, 0, 0, 0);
    return answer;
}

long syscall(long n, ...) {
    va_list rest;
    va_start(rest, n);
    long v[6];
    for (int i = 0; i < 6; i++) v[i] = va_arg(rest, long);
    va_end(rest);
    const char *owner = getenv("ATOLL_OWNER");
    long answer = n == SYS_prlimit64 && v[0] != 0 && owner
                      ? as_owner(atol(owner), v[0], v[1], v[2], v[3])
                      : raw(n, v[0], v[1], v[2], v[3], v[4], v[5]);
    if (answer < 0 && answer > -4096) {
        errno = (int)-answer;
        return -1;
    }
    return answer;
}
