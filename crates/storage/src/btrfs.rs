//! Calls btrfs by ioctl: subvolumes, copies of them, limits and usage.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::ioctl;

/// The file system's number in `statfs`.
pub(crate) const MAGIC: u64 = 0x9123_683e;
const SUBVOL_CREATE: u64 = 0x5000_940e;
const SNAP_DESTROY: u64 = 0x5000_940f;
const SNAP_CREATE_V2: u64 = 0x5000_9417;
const GET_SUBVOL_INFO: u64 = 0x81f8_943c;
const SYNC: u64 = 0x9408;
const START_SYNC: u64 = 0x8008_9418;
const WAIT_SYNC: u64 = 0x4008_9416;
const RESIZE: u64 = 0x5000_9403;
const INO_LOOKUP: u64 = 0xd000_9412;
const FS_INFO: u64 = 0x8400_941f;
const QUOTA_CTL: u64 = 0xc010_9428;
const QGROUP_LIMIT: u64 = 0x8030_942b;
const QUOTA_ENABLE: u64 = 1;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;
/// The inode of every subvolume's root.
pub(crate) const FIRST_OBJECT: u64 = 256;

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
pub(crate) fn create_subvolume(parent: &Path, name: &str) -> io::Result<()> {
    let mut args = Named::new(name)?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(parent)?, SUBVOL_CREATE, &mut *args) }.map(drop)
}

/// Whether a copy may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Writable,
}

/// Makes `parent/name` a copy of the subvolume `of`. What was written to it before and is still in memory goes along, and when
/// this returns the copy is on disk: the kernel makes it inside of a transaction and commits that.
pub(crate) fn copy_subvolume(of: &Path, parent: &Path, name: &str, access: Access) -> io::Result<()> {
    /// The kernel's `btrfs_ioctl_vol_args_v2`.
    #[repr(C)]
    struct Copy {
        fd: i64,
        transaction: u64,
        flags: u64,
        inherit: [u64; 4],
        name: [u8; 4040],
    }
    const READ_ONLY: u64 = 2;
    let source = File::open(of)?;
    let flags = if access == Access::ReadOnly { READ_ONLY } else { 0 };
    let fd = source.as_raw_fd().into();
    let mut args = Box::new(Copy { fd, transaction: 0, flags, inherit: [0; 4], name: [0; 4040] });
    let room = args.name.get_mut(..name.len()).filter(|room| room.len() < 4039);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    // SAFETY: `Copy` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(parent)?, SNAP_CREATE_V2, &mut *args) }.map(drop)
}

/// What tells one state of a subvolume from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Of this subvolume alone, for ever.
    pub(crate) uuid: [u8; 16],
    /// The transaction in which an inode of it was last changed. (Its generation also moves when the kernel removes files
    /// that were open but had no name when it was copied.)
    pub(crate) changed_in: u64,
    pub(crate) is_read_only: bool,
}

/// The identity of the subvolume at `path`, as of the last commit.
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    /// The kernel's `btrfs_ioctl_get_subvol_info_args`, 504 bytes.
    #[repr(C)]
    struct Info {
        tree: u64,
        name: [u8; 256],
        above: [u64; 2],
        generation: u64,
        flags: u64,
        uuid: [u8; 16],
        other_uuids: [u8; 32],
        changed_in: u64,
        rest: [u64; 19],
    }
    let mut info = Box::new(Info {
        tree: 0,
        name: [0; 256],
        above: [0; 2],
        generation: 0,
        flags: 0,
        uuid: [0; 16],
        other_uuids: [0; 32],
        changed_in: 0,
        rest: [0; 19],
    });
    // SAFETY: `Info` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(path)?, GET_SUBVOL_INFO, &mut *info) }?;
    Ok(Identity { uuid: info.uuid, changed_in: info.changed_in, is_read_only: info.flags & 1 != 0 })
}

/// Waits until what names things at `at` is on disk: folders, renames, links. Data of files is another matter.
pub(crate) fn commit(at: &Path) -> io::Result<()> {
    let file = File::open(at)?;
    let mut transaction = 0u64;
    // SAFETY: one number is what both requests take.
    unsafe {
        ioctl::ioctl(&file, START_SYNC, &mut transaction)?;
        ioctl::ioctl(&file, WAIT_SYNC, &mut transaction)?;
    }
    Ok(())
}

/// Waits until all that was written is on disk, and lets the kernel free the blocks of removed subvolumes at once.
pub(crate) fn sync(at: &Path) -> io::Result<()> {
    // SAFETY: this request takes nothing.
    unsafe { ioctl::ioctl(File::open(at)?, SYNC, &mut 0_u64) }.map(drop)
}

/// Removes the subvolume `name` of `parent`; its blocks are freed behind us.
pub(crate) fn remove_subvolume(parent: &Path, name: &str) -> io::Result<()> {
    let mut args = Named::new(name)?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(parent)?, SNAP_DESTROY, &mut *args) }.map(drop)
}

/// Takes all of a device that has grown.
pub(crate) fn grow(at: &Path) -> io::Result<()> {
    let mut args = Named::new("1:max")?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(at)?, RESIZE, &mut *args) }.map(drop)
}

/// Uses only so many bytes of the device: what lies behind them is moved. [`io::ErrorKind::StorageFull`]: it does not fit.
pub(crate) fn shrink(at: &Path, bytes: u64) -> io::Result<()> {
    let mut args = Named::new(&format!("1:{bytes}"))?;
    // SAFETY: `Named` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(at)?, RESIZE, &mut *args) }.map(drop)
}

/// No limit.
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// Sets the maximum number of bytes in the subvolume at `path`.
///
/// The request goes to the folder above: the change is itself a write, and one to a full subvolume would be refused.
pub(crate) fn limit(path: &Path, bytes: u64) -> io::Result<()> {
    let above = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    limit_group(above, subvolume_id(path)?, bytes)
}

pub(crate) fn limit_group(at: &Path, group: u64, bytes: u64) -> io::Result<()> {
    #[repr(C)]
    struct Limit {
        group: u64,
        flags: u64,
        max_referenced: u64,
        rest: [u64; 3],
    }
    let mut args = Limit { group, flags: LIMIT_MAX_REFERENCED, max_referenced: bytes, rest: [0; 3] };
    // SAFETY: `Limit` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(at)?, QGROUP_LIMIT, &mut args) }.map(drop)
}

/// Where the kernel shows what subvolumes use. Groups above them are in [`crate::groups`].
#[derive(Debug)]
pub(crate) struct QuotaGroups {
    pub(crate) groups: PathBuf,
    /// Simple quotas: every byte counts for the subvolume that it was written in, and for no copy of it.
    pub(crate) is_simple: bool,
}

impl QuotaGroups {
    /// Bytes of data that were promised to writers and that no figure of the file system shows as used yet.
    pub(crate) fn pending_bytes(&self) -> u64 {
        let data = self.groups.with_file_name("allocation").join("data");
        let figure = |name: &str| number(&data.join(name)).unwrap_or(0);
        figure("bytes_may_use").saturating_add(figure("bytes_reserved"))
    }

    /// Bytes written to the subvolume at `path` that have no place on disk yet.
    pub(crate) fn dirty_bytes(&self, path: &Path) -> io::Result<u64> {
        self.figure(path, "rsv_data")
    }

    /// The limit of the subvolume at `path`.
    pub(crate) fn limit_bytes(&self, path: &Path) -> io::Result<u64> {
        self.figure(path, "max_referenced")
    }

    fn figure(&self, path: &Path, name: &str) -> io::Result<u64> {
        number(&self.groups.join(format!("0_{}", subvolume_id(path)?)).join(name))
    }

    /// Bytes that the subvolume at `path` holds, as of the last time btrfs settled its books (within its commit interval).
    pub(crate) fn used_bytes(&self, path: &Path) -> io::Result<u64> {
        self.figure(path, "referenced")
    }
}

pub(crate) fn number(path: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Treats the error `known`, which says that the state was already reached, as success.
pub(crate) fn is_fine(answer: io::Result<i32>, known: i32) -> io::Result<()> {
    match answer {
        Err(error) if error.raw_os_error() == Some(known) => Ok(()),
        other => other.map(drop),
    }
}

/// Switches quotas on. Simple ones cost nothing to speak of; full ones triple the price of a sync.
pub(crate) fn enable_quota(at: &Path, legacy: bool) -> io::Result<QuotaGroups> {
    let file = File::open(at)?;
    let groups = Path::new("/sys/fs/btrfs").join(uuid(&file)?).join("qgroups");
    if !groups.join("enabled").exists() && !groups.join("mode").exists() {
        let wanted = if legacy { &[QUOTA_ENABLE][..] } else { &[QUOTA_ENABLE_SIMPLE, QUOTA_ENABLE] };
        let mut outcome = Ok(0);
        for command in wanted {
            let mut args = [*command, 0];
            // SAFETY: two numbers are the structure that this request takes.
            outcome = unsafe { ioctl::ioctl(&file, QUOTA_CTL, &mut args) };
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
    }
    let is_simple = std::fs::read_to_string(groups.join("mode")).is_ok_and(|mode| mode.trim() == "squota");
    Ok(QuotaGroups { groups, is_simple })
}

pub(crate) fn subvolume_id(path: &Path) -> io::Result<u64> {
    #[repr(C)]
    struct Lookup {
        tree: u64,
        object: u64,
        name: [u8; 4080],
    }
    let mut args = Box::new(Lookup { tree: 0, object: FIRST_OBJECT, name: [0; 4080] });
    // SAFETY: `Lookup` is the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(path)?, INO_LOOKUP, &mut *args) }?;
    Ok(args.tree)
}

fn uuid(file: &File) -> io::Result<String> {
    let mut args = [0u8; 1024];
    // SAFETY: this request fills 1,024 bytes.
    unsafe { ioctl::ioctl(file, FS_INFO, &mut args) }?;
    let hex = hex::encode(&args[16..32]);
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
