//! Reports jobs that stopped because they accessed the terminal as stopped ones.

use std::ffi::{c_long, c_uint, c_void};

use crate::Next;

type Ptrace = unsafe extern "C" fn(c_uint, ...) -> c_long;

static PTRACE: Next = Next::new(c"ptrace");

/// Replaces ptrace(2).
///
/// # Safety
/// As for the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn ptrace(
    request: c_uint,
    pid: libc::pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    // SAFETY: the address is that of ptrace(2), which has this type; the arguments are the caller's.
    let answer =
        unsafe { std::mem::transmute::<*mut c_void, Ptrace>(PTRACE.address())(request, pid, address, data) };
    if request == libc::PTRACE_GETSIGINFO && answer == 0 && !data.is_null() {
        // SAFETY: the kernel has just filled the caller's siginfo_t.
        let info = unsafe { &mut *data.cast::<libc::siginfo_t>() };
        let group_stop = info.si_code >> 8 == libc::PTRACE_EVENT_STOP;
        if group_stop && matches!(info.si_signo, libc::SIGTTIN | libc::SIGTTOU) {
            // The restore stops it again with this signal, which no program can ignore.
            info.si_signo = libc::SIGSTOP;
        }
    }
    answer
}
