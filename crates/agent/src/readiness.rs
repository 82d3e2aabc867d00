//! Registers descriptors in the event loop.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers a descriptor that this process owns.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and stays the same descriptor until it is dropped, and `AsyncFd` owns it from here.
    unsafe { AsyncFd::register(fd) }.map_err(|refused| refused.into_parts().1)
}
