//! Tap devices: the link of a sandbox that is a virtual machine. The VMM opens the tap by its name, or takes a
//! descriptor of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl};

use crate::netns;

const TUNSETIFF: Opcode = 0x4004_54ca;
const TUNSETPERSIST: Opcode = 0x4004_54cb;
const TUNSETOWNER: Opcode = 0x4004_54cc;
const TUNSETIFINDEX: Opcode = 0x4004_54da;
const IFF_TAP: u16 = 0x0002;
/// Frames without a header of the tun driver.
const IFF_NO_PI: u16 = 0x1000;
/// Fails if the device exists.
const IFF_TUN_EXCL: u16 = 0x8000;
/// The longest name of an interface, with its end.
const NAME: usize = 16;

/// `struct ifreq` as `TUNSETIFF` takes it.
#[repr(C)]
struct TapRequest {
    name: [u8; NAME],
    flags: u16,
    unused: [u8; 22],
}

/// Makes a tap in a namespace. It stays until it is deleted; a process with the user id `owner` may open it.
pub(crate) fn create(namespace: BorrowedFd<'_>, name: &str, index: u32, owner: u32) -> io::Result<()> {
    netns::briefly_in(namespace, || {
        let tap = device()?;
        // SAFETY: the kernel reads a number of four bytes, before the device exists.
        unsafe { ioctl(&tap, Setter::<TUNSETIFINDEX, u32>::new(index)) }?;
        bind(&tap, name, IFF_TUN_EXCL)?;
        // SAFETY: the kernel takes the number itself.
        unsafe { ioctl(&tap, IntegerSetter::<TUNSETOWNER>::new_usize(owner as usize)) }?;
        // SAFETY: the kernel takes the number itself. Last, so that a tap that is not complete ends with its descriptor.
        unsafe { ioctl(&tap, IntegerSetter::<TUNSETPERSIST>::new_usize(1)) }?;
        Ok(())
    })
}

/// Opens the tap `name` in a namespace, for a VMM that takes a descriptor; makes it if it is missing. Every read
/// returns one Ethernet frame, and every write sends one.
pub fn open_tap(namespace: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    netns::briefly_in(namespace, || {
        let tap = device()?;
        bind(&tap, name, 0)?;
        Ok(tap.into())
    })
}

/// A descriptor belongs to the namespace in which it is opened.
fn device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/net/tun")
}

fn bind(tap: &File, name: &str, flags: u16) -> io::Result<()> {
    let mut request = TapRequest { name: [0; NAME], flags: IFF_TAP | IFF_NO_PI | flags, unused: [0; 22] };
    if name.len() >= NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the kernel reads and writes a `struct ifreq` of 40 bytes, which `TapRequest` is.
    unsafe { ioctl(tap, Updater::<TUNSETIFF, TapRequest>::new(&mut request)) }?;
    Ok(())
}

const _: () = assert!(size_of::<TapRequest>() == 40);
