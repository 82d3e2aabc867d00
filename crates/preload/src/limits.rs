//! System calls that are made as the owner of a sandbox's user namespace, and not as the host's root.
//!
//! - `prlimit` of another process: if root lacks `CAP_SYS_RESOURCE`, only the owner may read its limits.
//! - `clone3` into a new user namespace: its creator owns it, and the kernel counts what is used inside for the owner.
//!   No two sandboxes may share an owner, and none may have the host's root as its owner.

use std::ffi::{c_int, c_long};

use crate::{Next, variable};

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

static SYSCALL: Next = Next::new(c"syscall");
const NO_SETUID_FIXUP: c_int = 1 << 2;

fn next() -> Syscall {
    // SAFETY: the address is that of syscall(3), which has this type.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Syscall>(SYSCALL.address()) }
}

/// Whether a call is to be made as the owner.
///
/// # Safety
/// As for the call.
unsafe fn is_owners(n: c_long, first: c_long) -> bool {
    match n {
        libc::SYS_prlimit64 => first != 0,
        // SAFETY: the caller passes the kernel a `clone_args`, whose first field contains the flags.
        libc::SYS_clone3 => unsafe { *(first as *const u64) & libc::CLONE_NEWUSER as u64 != 0 },
        _ => false,
    }
}

/// Replaces syscall(3); everything but the calls above is passed on.
///
/// # Safety
/// As for the requested call.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    n: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: guaranteed by the caller.
    let owner = unsafe { is_owners(n, a) }.then(|| variable(c"ATOLL_CRIU_OWNER")).flatten();
    let owner: Option<c_long> = owner.and_then(|text| text.to_str().ok()?.parse().ok());
    let next = next();
    // SAFETY: guaranteed by the caller. A variadic function takes integers in the same registers.
    let Some(owner) = owner else { return unsafe { next(n, a, b, c, d, e, f) } };
    // SAFETY: guaranteed by the caller for the call; the others change identities of this one thread and take only
    // integers.
    unsafe {
        // Without the bit a change of the effective user would drop the capabilities.
        let bits = libc::prctl(libc::PR_GET_SECUREBITS);
        libc::prctl(libc::PR_SET_SECUREBITS, bits | NO_SETUID_FIXUP);
        let keep: c_long = -1;
        next(libc::SYS_setresuid, keep, owner, keep);
        // Files are still accessed as root.
        next(libc::SYS_setfsuid, 0 as c_long);
        let answer = next(n, a, b, c, d);
        if n == libc::SYS_clone3 && answer == 0 {
            // The child, in its own user namespace, with all capabilities there. It becomes root of it by itself.
            return answer;
        }
        let errno = *libc::__errno_location();
        next(libc::SYS_setresuid, keep, 0 as c_long, keep);
        libc::prctl(libc::PR_SET_SECUREBITS, bits);
        *libc::__errno_location() = errno;
        answer
    }
}
