//! ioctl with an error instead of -1.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// An ioctl whose argument is a structure that the kernel may fill.
///
/// # Safety
/// `argument` has the layout and size that `request` wants.
pub unsafe fn ioctl<T>(fd: impl AsFd, request: u64, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the caller vouches for the layout; the reference lives through the call.
    let answer = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut *argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// An ioctl whose argument is a number.
pub fn ioctl_number(fd: impl AsFd, request: u64, number: u64) -> io::Result<i32> {
    // SAFETY: requests used with this take a plain number and no pointer.
    let answer = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, number) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
