//! Loaded into CRIU (`LD_PRELOAD`): answers of the system in the form that CRIU 4.2.1 can use.
//!
//! - `/dev/tty` is the terminal that it is. CRIU knows one "current terminal" per dump, takes its foreground group to be the
//!   shell, and wants one process to hold both ends. A shell with job control keeps `/dev/tty` open and the agent holds the
//!   other end, so every terminal would be refused. The file behind it is the session's `/dev/pts/N`, which CRIU dumps well.
//! - A job that was stopped for want of the terminal (SIGTTIN, SIGTTOU) is a stopped job. CRIU knows only other reasons.
//! - Limits are read, and at a restore the user namespace is made, as the owner of that namespace.
//! - A file that is watched is on the file system that its folder is on, also in an overlay.
//! - Namespaces of a sandbox that was restored before can be looked at from inside.
//!
//! `ATOLL_CRIU_ROOT` names the sandbox's root (`/proc/PID/root`), `ATOLL_CRIU_OWNER` the owner's id; what is not named is left
//! alone. Nothing in here is for any other program, and it never changes the dumped processes.

#![expect(unsafe_code, reason = "functions of the C library are taken over and called")]

mod limits;
mod namespaces;
mod stops;
mod terminals;
mod watches;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the libraries behind this one, looked up once.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. CRIU is linked against all that are asked for; without one there is nothing left to do.
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
    // SAFETY: CRIU has one thread and changes none of our variables, so what getenv answers stays.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}
