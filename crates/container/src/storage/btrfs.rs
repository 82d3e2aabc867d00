//! btrfs by ioctl: subvolumes, limits and what they use.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::sys;

const SUBVOL_CREATE: u64 = 0x5000_940e;
const SNAP_DESTROY: u64 = 0x5000_940f;
const RESIZE: u64 = 0x5000_9403;
const INO_LOOKUP: u64 = 0xd000_9412;
const FS_INFO: u64 = 0x8400_941f;
const QUOTA_CTL: u64 = 0xc010_9428;
const QGROUP_LIMIT: u64 = 0x8030_942b;

const QUOTA_ENABLE: u64 = 1;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;
/// The inode of every subvolume's root.
const FIRST_OBJECT: u64 = 256;

/// The kernel's `btrfs_ioctl_vol_args`.
#[repr(C)]
struct Named {
    fd: i64,
    name: [u8; 4088],
}

impl Named {
    fn new(name: &str) -> io::Result<Box<Self>> {
        let bytes = Path::new(name).as_os_str().as_bytes();
        let mut args = Box::new(Self { fd: 0, name: [0; 4088] });
        let room = args.name.get_mut(..bytes.len()).filter(|room| room.len() < 4087);
        room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        Ok(args)
    }
}

/// Makes the subvolume `name` in `parent`.
pub(super) fn create_subvolume(parent: &Path, name: &str) -> io::Result<()> {
    let mut args = Named::new(name)?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { sys::ioctl(File::open(parent)?, SUBVOL_CREATE, &mut *args) }.map(drop)
}

/// Removes the subvolume `name` of `parent`; its blocks are freed behind us.
pub(super) fn remove_subvolume(parent: &Path, name: &str) -> io::Result<()> {
    let mut args = Named::new(name)?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { sys::ioctl(File::open(parent)?, SNAP_DESTROY, &mut *args) }.map(drop)
}

/// Takes all of a device that has grown.
pub(super) fn grow(at: &Path) -> io::Result<()> {
    let mut args = Named::new("1:max")?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { sys::ioctl(File::open(at)?, RESIZE, &mut *args) }.map(drop)
}

/// No limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// Sets the most bytes that the subvolume at `path` may hold.
///
/// The request goes to the folder above: the change is itself a write, and one to a full subvolume would be refused.
pub(super) fn limit(path: &Path, bytes: u64) -> io::Result<()> {
    #[repr(C)]
    struct Limit {
        group: u64,
        flags: u64,
        max_referenced: u64,
        rest: [u64; 3],
    }
    let group = subvolume_id(path)?;
    let above = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut args = Limit { group, flags: LIMIT_MAX_REFERENCED, max_referenced: bytes, rest: [0; 3] };
    // SAFETY: `Limit` is the structure that this request takes.
    unsafe { sys::ioctl(File::open(above)?, QGROUP_LIMIT, &mut args) }.map(drop)
}

/// Where the kernel shows what subvolumes use.
#[derive(Debug)]
pub(super) struct Quota {
    groups: PathBuf,
}

impl Quota {
    /// Bytes that the subvolume at `path` holds, as of the last time btrfs settled its books (within its commit interval).
    pub(super) fn used_bytes(&self, path: &Path) -> io::Result<u64> {
        let group = self.groups.join(format!("0_{}", subvolume_id(path)?));
        let text = std::fs::read_to_string(group.join("referenced"))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// Switches quotas on. Simple ones cost nothing to speak of; full ones triple the price of a sync.
pub(super) fn enable_quota(at: &Path, legacy: bool) -> io::Result<Quota> {
    let file = File::open(at)?;
    let groups = Path::new("/sys/fs/btrfs").join(uuid(&file)?).join("qgroups");
    if !groups.join("enabled").exists() && !groups.join("mode").exists() {
        let wanted = if legacy { &[QUOTA_ENABLE][..] } else { &[QUOTA_ENABLE_SIMPLE, QUOTA_ENABLE] };
        let mut outcome = Ok(0);
        for command in wanted {
            let mut args = [*command, 0];
            // SAFETY: two numbers are the structure that this request takes.
            outcome = unsafe { sys::ioctl(&file, QUOTA_CTL, &mut args) };
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
    }
    Ok(Quota { groups })
}

fn subvolume_id(path: &Path) -> io::Result<u64> {
    #[repr(C)]
    struct Lookup {
        tree: u64,
        object: u64,
        name: [u8; 4080],
    }
    let mut args = Box::new(Lookup { tree: 0, object: FIRST_OBJECT, name: [0; 4080] });
    // SAFETY: `Lookup` is the structure that this request takes.
    unsafe { sys::ioctl(File::open(path)?, INO_LOOKUP, &mut *args) }?;
    Ok(args.tree)
}

fn uuid(file: &File) -> io::Result<String> {
    let mut args = [0u8; 1024];
    // SAFETY: this request fills 1,024 bytes.
    unsafe { sys::ioctl(file, FS_INFO, &mut args) }?;
    let hex = hex::encode(&args[16..32]);
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
