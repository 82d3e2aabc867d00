//! The free space of the pool and its use: sandboxes and volumes leave a reserve for pauses and snapshots.
//!
//! ```text
//! the pool, with its possible growth:      │ layers and volumes ─────────► │ reserve: pauses, snapshots │
//! ```
//!
//! Every layer and every volume counts for one quota group, and the limit of that group keeps the reserve: the kernel
//! refuses a write beyond it with `EDQUOT`, as it does for a full layer. The limit is adjusted to the other usage of the
//! pool, and to how far the pool can grow. Below it are the groups of tenants (see [`crate::tenants`]). With full quota
//! groups (kernels before 6.7) none of them exists.

use std::io;
use std::path::Path;

use atoll_disk::{Purpose, free_bytes};

use crate::pool::whole_steps;
use crate::snapshots::inherited_at;
use crate::volumes::HEADROOM_MOST;
use crate::{Layers, StorageKind};

/// The reserve is at most this part of a small pool.
const RESERVE_PART: u64 = 4;
/// By how much the group's limit may be off before it is set again; each change is a write.
const SLACK: u64 = 4 << 20;

/// Ids of sandboxes contain no dash.
const WAITING: &str = "ready-";

/// Room where layers live, growth included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What layers and volumes can still take.
    pub free: u64,
    /// What a pause or a snapshot can still take.
    pub free_for_memory: u64,
    /// All that layers and volumes can take, what they hold included.
    pub total: u64,
}

impl Layers {
    /// Room in the pool.
    pub fn space(&self) -> io::Result<Space> {
        let (inside, data, memory) = self.room()?;
        let reserve = self.reserve_inside(inside, data)?;
        let free = inside.saturating_add(data).saturating_sub(reserve);
        let held = match self.group()? {
            Some((held, _)) => held,
            None => total_bytes(&self.at)?.saturating_sub(free_bytes(&self.at)?),
        };
        let free_for_memory = inside.saturating_add(memory);
        Ok(Space { free, free_for_memory, total: held.saturating_add(free) })
    }

    /// Grows the pool until so much more is free for a pause or a snapshot, as far as there is room on the host.
    pub fn grow_for_memory(&self, bytes: u64) -> io::Result<()> {
        match &self.kind {
            StorageKind::Btrfs { pool, quota, .. } => {
                pool.grow_for(bytes, quota.pending_bytes(), Purpose::Memory)
            }
            StorageKind::Folders => Ok(()),
        }
    }

    /// Grows the pool when little of it is free, and keeps its reserve; often called, cheap.
    pub fn grow(&self) -> io::Result<()> {
        let StorageKind::Btrfs { pool, quota, .. } = &self.kind else { return Ok(()) };
        pool.grow_for(0, quota.pending_bytes(), Purpose::Data)?;
        self.keep_reserve()
    }

    /// Notes how much may be written at once, for the next look at the free space.
    pub(crate) fn expect(&self, bytes: u64) {
        if let StorageKind::Btrfs { pool, .. } = &self.kind {
            pool.expect(bytes);
        }
    }

    /// Makes the pool smaller when it has been mostly free for a while; cheap while it is not.
    pub fn shrink(&self) -> io::Result<()> {
        let StorageKind::Btrfs { pool, quota, .. } = &self.kind else { return Ok(()) };
        if !pool.may_shrink(quota.pending_bytes())? {
            return Ok(());
        }
        pool.forget_expected();
        for (_, path) in self.layers_and_volumes()? {
            // What is removed meanwhile needs nothing. 0 is no limit.
            let limit = quota.limit_bytes(&path).unwrap_or(0).saturating_add(inherited_at(&path));
            let is_volume = path.starts_with(self.volumes());
            pool.expect(if is_volume { limit.min(HEADROOM_MOST) } else { limit });
        }
        pool.shrink(quota.pending_bytes())
    }

    /// Sets the limit of all layers and volumes to the space that is not reserved, and those of tenants to their share of it.
    pub(crate) fn keep_reserve(&self) -> io::Result<()> {
        let (StorageKind::Btrfs { quota, .. }, Some((held, limit))) = (&self.kind, self.group()?) else {
            return Ok(());
        };
        // Bytes that are reserved for writers do not count as held yet, and still count as free.
        let (inside, data, _) = self.room_with(0)?;
        let reserve = self.reserve_inside(inside, data)?;
        let wanted = held.saturating_add(inside.saturating_add(data).saturating_sub(reserve)).max(SLACK);
        if limit.abs_diff(wanted) >= SLACK {
            quota.limit_all(&self.at, wanted)?;
        }
        self.keep_shares(wanted)
    }

    /// The free space in the pool, and by how much the pool can grow: for data, for memory.
    fn room(&self) -> io::Result<(u64, u64, u64)> {
        let pending = match &self.kind {
            StorageKind::Btrfs { quota, .. } => quota.pending_bytes(),
            StorageKind::Folders => 0,
        };
        self.room_with(pending)
    }

    fn room_with(&self, pending: u64) -> io::Result<(u64, u64, u64)> {
        let pool = match &self.kind {
            StorageKind::Btrfs { pool, .. } => pool.grows_in().map(|host| (pool, host)),
            StorageKind::Folders => None,
        };
        match pool {
            Some((pool, host)) => {
                // The pool grows in whole steps.
                let room = |purpose| self.disk.room(host, purpose).map(whole_steps);
                let (data, memory) = (room(Purpose::Data)?, room(Purpose::Memory)?);
                // Space that the file has taken from the host already, or has not given back yet.
                let changing = pool.unused_bytes()?;
                let inside = free_bytes(&self.at)?.saturating_sub(pending);
                Ok((inside, data + changing, memory + changing))
            }
            // The pool is the disk itself.
            None => {
                let room = |purpose| -> io::Result<u64> {
                    Ok(self.disk.room(&self.at, purpose)?.saturating_sub(pending))
                };
                Ok((0, room(Purpose::Data)?, room(Purpose::Memory)?))
            }
        }
    }

    /// The part of the pool that is kept for pauses and snapshots. If the pool is the disk itself, that is the disk's
    /// reserve.
    fn reserve_inside(&self, inside: u64, growth: u64) -> io::Result<u64> {
        match &self.kind {
            StorageKind::Btrfs { pool, .. } if pool.grows_in().is_some() => {
                let held = total_bytes(&self.at)?.saturating_sub(inside);
                Ok(self.disk.bytes().min((held + inside + growth) / RESERVE_PART))
            }
            _ => Ok(0),
        }
    }

    fn group(&self) -> io::Result<Option<(u64, u64)>> {
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => quota.all_bytes(),
            StorageKind::Folders => Ok(None),
        }
    }
}

/// The name of the layer of an instance that waits to be claimed.
#[must_use]
pub fn waiting_name(instance: &str) -> String {
    format!("{WAITING}{instance}")
}

pub(crate) fn is_waiting(name: &str) -> bool {
    name.starts_with(WAITING)
}

pub(crate) fn total_bytes(at: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(at)?;
    Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
}
