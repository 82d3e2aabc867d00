//! Attaches a file as a block device. A device is found again by its backing file, and a file is never attached twice.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::ioctl;

const CTL_GET_FREE: u64 = 0x4c82;
const CONFIGURE: u64 = 0x4c0a;
const SET_CAPACITY: u64 = 0x4c07;
/// The kernel detaches the device when its last user closes it, so a crash before the mount leaves no device behind.
const FLAG_AUTOCLEAR: u32 = 4;
/// Without it every page would be cached twice.
const FLAG_DIRECT_IO: u32 = 16;
/// LIMIT: attempts. Other processes attach devices too; each attempt takes the next free one.
const TRIES: u32 = 64;

#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 128],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// The device that `file` is attached to. Held open until it is mounted.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
    _hold: File,
}

/// Attaches `file`, or finds the device it is attached to.
pub(crate) fn attach(file: &Path) -> io::Result<LoopDevice> {
    if let Some(path) = find(file)? {
        return Ok(LoopDevice { _hold: OpenOptions::new().read(true).write(true).open(&path)?, path });
    }
    let backing = OpenOptions::new().read(true).write(true).open(file)?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for flags in [FLAG_AUTOCLEAR | FLAG_DIRECT_IO, FLAG_AUTOCLEAR] {
        for _ in 0..TRIES {
            let number = ioctl::ioctl_number(&control, CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, &backing, flags) {
                Ok(()) => return Ok(LoopDevice { path, _hold: device }),
                // Another process took this device.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                // The file system does not support direct I/O.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && flags & FLAG_DIRECT_IO != 0 => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn configure(device: &File, backing: &File, flags: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        names: [0; 128],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?;
    let mut config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: `LoopConfig` is the structure that this request takes.
    unsafe { ioctl::ioctl(device, CONFIGURE, &mut config) }.map(drop)
}

/// The device whose backing file is `file`.
pub(crate) fn find(file: &Path) -> io::Result<Option<PathBuf>> {
    let file = file.canonicalize()?;
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end_matches('\n')) == file {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// Tells the device that its file has grown.
pub(crate) fn take_new_size(device: &Path) -> io::Result<()> {
    let device = OpenOptions::new().read(true).write(true).open(device)?;
    ioctl::ioctl_number(device, SET_CAPACITY, 0).map(drop)
}
