//! A library for CRIU 4.2.1 (`LD_PRELOAD`) that adapts results of system calls to what CRIU supports.
//!
//! - `/dev/tty` is replaced by the terminal that it refers to. CRIU supports one "current terminal" per dump, assumes
//!   that its foreground group is the shell, and expects one process to hold both ends. A shell with job control keeps
//!   `/dev/tty` open and the agent holds the other end, so every terminal would be refused. The file behind it is the
//!   session's `/dev/pts/N`, which CRIU dumps well.
//! - A job that was stopped because it accessed the terminal (SIGTTIN, SIGTTOU) is reported as a stopped job. CRIU
//!   supports only other reasons.
//! - Limits are read, and at a restore the user namespace is made, as the owner of that namespace.
//! - A watched file is reported on the file system of its folder, also in an overlay.
//! - Namespaces of a sandbox that was restored before can be inspected from inside.
//!
//! `ATOLL_CRIU_ROOT` is the sandbox's root (`/proc/PID/root`), `ATOLL_CRIU_OWNER` the owner's id; without a variable
//! its functions are not changed. The library is only for CRIU, and never changes the dumped processes.

#![expect(unsafe_code, reason = "functions of the C library are taken over and called")]

mod limits;
mod namespaces;
mod stops;
mod terminals;
mod watches;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the libraries after this one, looked up once.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. CRIU is linked against all of these functions; if one is missing, the process is aborted.
    fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string that lives for ever.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// A variable of the environment, as bytes.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: CRIU has one thread and does not change these variables, so the result of getenv stays valid.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}
