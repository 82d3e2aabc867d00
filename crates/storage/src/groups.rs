//! Quota groups above those of subvolumes: one per tenant, and one above all of them.
//!
//! ```text
//! 2/1           all layers and volumes; its limit keeps the reserve of the pool
//!  ├─ 1/1       those of no tenant, such as instances that wait to be claimed
//!  ├─ 1/<T>     those of tenant T; limited to its share once there are two tenants
//!  │   ├─ 0/<layer>
//!  │   └─ 0/<volume>
//!  └─ …
//! ```
//!
//! With simple quotas a byte counts for the subvolume that it was written in, and for every group above that. It keeps
//! counting there as long as a snapshot or fork holds it, also after that subvolume was removed. So every layer joins its
//! tenant's group from the start, also that of the only tenant, whose group has no limit.
//!
//! A subvolume is in one of these groups at most: it leaves one before it joins the next. In both at once, its bytes would
//! count twice above.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atoll_disk::TenantNumber;

use crate::btrfs::{FIRST_OBJECT, QuotaGroups, UNLIMITED, is_fine, limit_group, number, subvolume_id};
use crate::ioctl;

const QGROUP_CREATE: u64 = 0x4010_942a;
const QGROUP_ASSIGN: u64 = 0x4018_9429;
const TREE_SEARCH: u64 = 0xd000_9411;
const QUOTA_TREE: u64 = 8;
const RELATION_KEY: u32 = 246;
const LEVEL_SHIFT: u32 = 48;

/// A quota group above those of subvolumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Group(u64);

impl Group {
    /// Above all others.
    const ALL: Self = Self((2 << LEVEL_SHIFT) | 1);
    /// Of layers and volumes that belong to no tenant. Servers before shares put all of them here.
    pub(crate) const NO_TENANT: Self = Self((1 << LEVEL_SHIFT) | 1);

    pub(crate) const fn of(tenant: TenantNumber) -> Self {
        Self((1 << LEVEL_SHIFT) | tenant.value())
    }

    /// Its folder in sysfs.
    fn folder(self) -> String {
        format!("{}_{}", self.0 >> LEVEL_SHIFT, self.0 & ((1 << LEVEL_SHIFT) - 1))
    }
}

impl QuotaGroups {
    /// Makes the groups of the pool `at` that always exist. Full quota groups would have to count everything anew for each
    /// member, so there none exists.
    pub(crate) fn make_groups(&self, at: &Path) -> io::Result<()> {
        if !self.is_simple {
            return Ok(());
        }
        self.create(at, Group::ALL)?;
        self.make_group(at, Group::NO_TENANT)?;
        // An earlier server may have limited it.
        limit_group(at, Group::NO_TENANT.0, UNLIMITED)
    }

    /// Makes a group below the one above all, if it does not exist.
    pub(crate) fn make_group(&self, at: &Path, group: Group) -> io::Result<()> {
        self.create(at, group)?;
        is_fine(assign(at, 1, group.0, Group::ALL.0), libc::EEXIST)
    }

    fn create(&self, at: &Path, group: Group) -> io::Result<()> {
        is_fine(create_or_remove(at, 1, group.0), libc::EEXIST)
    }

    /// Takes the subvolume at `path` into a group. It must not be in another one.
    pub(crate) fn join(&self, at: &Path, path: &Path, group: Group) -> io::Result<()> {
        match self.member(path)? {
            Some(member) => is_fine(assign(at, 1, member, group.0), libc::EEXIST),
            None => Ok(()),
        }
    }

    /// Takes the subvolume at `path` out of a group.
    pub(crate) fn leave(&self, at: &Path, path: &Path, group: Group) -> io::Result<()> {
        match self.member(path)? {
            Some(member) => is_fine(assign(at, 0, member, group.0), libc::ENOENT),
            None => Ok(()),
        }
    }

    /// The subvolume at `path`, if it can be a member of a group: a plain folder belongs to the pool's own subvolume.
    pub(crate) fn member(&self, path: &Path) -> io::Result<Option<u64>> {
        let is_subvolume = self.is_simple && std::fs::metadata(path)?.ino() == FIRST_OBJECT;
        is_subvolume.then(|| subvolume_id(path)).transpose()
    }

    /// The groups of every subvolume.
    pub(crate) fn memberships(&self, at: &Path) -> io::Result<HashMap<u64, Vec<Group>>> {
        let mut found: HashMap<u64, Vec<Group>> = HashMap::new();
        for (member, group) in relations(at)? {
            found.entry(member).or_default().push(Group(group));
        }
        Ok(found)
    }

    /// Groups of tenants that exist.
    pub(crate) fn tenant_groups(&self) -> io::Result<BTreeSet<Group>> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(&self.groups)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("1_")?.parse::<u64>().ok());
            found.extend(number.map(|number| Group((1 << LEVEL_SHIFT) | number)));
        }
        found.remove(&Group::NO_TENANT);
        Ok(found)
    }

    /// Bytes that all layers and volumes hold together, and the limit of that; `None` where there is no group.
    pub(crate) fn all_bytes(&self) -> io::Result<Option<(u64, u64)>> {
        if self.is_simple { self.group_bytes(Group::ALL).map(Some) } else { Ok(None) }
    }

    /// Bytes that the members of a group hold together, and its limit; 0 is none.
    pub(crate) fn group_bytes(&self, group: Group) -> io::Result<(u64, u64)> {
        let folder = self.groups.join(group.folder());
        Ok((number(&folder.join("referenced"))?, number(&folder.join("max_referenced"))?))
    }

    /// Sets the most bytes that all layers and volumes may hold together.
    pub(crate) fn limit_all(&self, at: &Path, bytes: u64) -> io::Result<()> {
        limit_group(at, Group::ALL.0, bytes)
    }

    /// Sets the most bytes that the members of a group may hold together.
    pub(crate) fn limit_members(&self, at: &Path, group: Group, bytes: u64) -> io::Result<()> {
        limit_group(at, group.0, bytes)
    }

    /// Removes a group; `false` while subvolumes or bytes still count for it.
    pub(crate) fn remove_group(&self, at: &Path, group: Group) -> io::Result<bool> {
        match create_or_remove(at, 0, group.0) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Groups of single subvolumes that count no bytes. With simple quotas the kernel keeps the group of a removed subvolume as
    /// long as a copy still holds bytes of it, and then forgets to remove it.
    pub(crate) fn empty_subvolume_groups(&self) -> io::Result<HashSet<u64>> {
        let mut found = HashSet::new();
        if !self.is_simple {
            return Ok(found);
        }
        for entry in std::fs::read_dir(&self.groups)? {
            let entry = entry?;
            let name = entry.file_name();
            let member = name.to_str().and_then(|name| name.strip_prefix("0_")?.parse::<u64>().ok());
            let is_empty = number(&entry.path().join("referenced")).is_ok_and(|bytes| bytes == 0);
            found.extend(member.filter(|member| *member >= FIRST_OBJECT && is_empty));
        }
        Ok(found)
    }

    /// Bytes that count for a subvolume, also for one that is gone.
    pub(crate) fn subvolume_bytes(&self, member: u64) -> io::Result<u64> {
        number(&self.groups.join(format!("0_{member}")).join("referenced"))
    }

    /// Removes the group of a subvolume that is gone.
    pub(crate) fn remove_subvolume_group(&self, at: &Path, member: u64) -> bool {
        create_or_remove(at, 0, member).is_ok()
    }
}

fn create_or_remove(at: &Path, create: u64, group: u64) -> io::Result<i32> {
    let mut args = [create, group];
    // SAFETY: two numbers are the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(at)?, QGROUP_CREATE, &mut args) }
}

fn assign(at: &Path, add: u64, member: u64, group: u64) -> io::Result<i32> {
    let mut args = [add, member, group];
    // SAFETY: three numbers are the structure that this request takes.
    unsafe { ioctl::ioctl(File::open(at)?, QGROUP_ASSIGN, &mut args) }
}

/// Reads which subvolumes are in which groups. The kernel shows this nowhere but in its tree of quotas.
fn relations(at: &Path) -> io::Result<Vec<(u64, u64)>> {
    /// The kernel's `btrfs_ioctl_search_args`.
    #[repr(C)]
    struct Search {
        tree: u64,
        objects: [u64; 2],
        offsets: [u64; 2],
        transactions: [u64; 2],
        types: [u32; 2],
        items: u32,
        _unused: [u32; 9],
        found: [u8; 3_992],
    }
    const LAST_SUBVOLUME: u64 = (1 << LEVEL_SHIFT) - 1;
    let file = File::open(at)?;
    let mut all = Vec::new();
    let mut next = (FIRST_OBJECT, RELATION_KEY, 0);
    loop {
        let mut args = Box::new(Search {
            tree: QUOTA_TREE,
            objects: [next.0, LAST_SUBVOLUME],
            offsets: [next.2, u64::MAX],
            transactions: [0, u64::MAX],
            types: [next.1, RELATION_KEY],
            items: u32::MAX,
            _unused: [0; 9],
            found: [0; 3_992],
        });
        // SAFETY: `Search` is the structure that this request takes.
        unsafe { ioctl::ioctl(&file, TREE_SEARCH, &mut *args) }?;
        let before = all.len();
        let mut rest = &args.found[..];
        for _ in 0..args.items {
            let Some((member, kind, group, after)) = search_item(rest) else { break };
            next = (member, kind, group.saturating_add(1));
            if kind == RELATION_KEY {
                all.push((member, group));
            }
            rest = after;
        }
        if all.len() == before {
            return Ok(all);
        }
    }
}

/// The object, type and offset of the first item that a search found, and what follows it.
fn search_item(found: &[u8]) -> Option<(u64, u32, u64, &[u8])> {
    let long = |at: usize| Some(u64::from_ne_bytes(found.get(at..at + 8)?.try_into().ok()?));
    let short = |at: usize| Some(u32::from_ne_bytes(found.get(at..at + 4)?.try_into().ok()?));
    let length = usize::try_from(short(28)?).ok()?;
    Some((long(8)?, short(24)?, long(16)?, found.get(32_usize.checked_add(length)?..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_names_that_the_kernel_gives_them() {
        assert_eq!((Group::ALL.folder().as_str(), Group::NO_TENANT.folder().as_str()), ("2_1", "1_1"));
        let tenant = TenantNumber::of("tenant");
        assert_eq!(Group::of(tenant).folder(), format!("1_{}", tenant.value()));
    }

    #[test]
    fn an_item_of_a_search_that_is_cut_short_is_no_item() {
        let mut item = vec![0; 40];
        item[8] = 7;
        item[16] = 9;
        item[24] = 246;
        item[28] = 8;
        assert_eq!(search_item(&item), Some((7, 246, 9, &[][..])));
        assert_eq!(search_item(&item[..39]), None);
        item[28..32].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(search_item(&item), None);
    }
}
