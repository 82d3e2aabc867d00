//! Which tenant a layer or volume counts for, and the limit of each tenant's quota group (see [`crate::groups`]).
//!
//! Whose a layer is, the service notes in [`atoll_disk::TenantShares`] before the layer is made. The limit is the share of all that
//! layers and volumes can take, the possible growth of the pool included, so the pool has grown before a group is full.
//! Groups and limits survive the server; until a new server knows the tenants, they stay as they are.
//!
//! Memory on disk (checkpoints, and the memory of snapshots) is in no quota group: CRIU must not meet a limit half way. It is
//! measured, subtracted from the limit of its tenant, and refused beforehand when a tenant has too much of it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::CWD;

use crate::btrfs::{self, QuotaGroups, UNLIMITED};
use crate::groups::Group;
use crate::walk::{disk_bytes, open_folder};
use crate::{Layers, StorageKind};

/// By how much a limit may be off before it is set again; each change is a write.
const SLACK: u64 = 4 << 20;
/// Of a large share it may be off by this part.
const SLACK_PART: u64 = 256;
/// LIMIT: how many looks at the free space pass between two tries to remove the groups of tenants that are gone.
const CLEAN_EVERY: u32 = 50;

/// LIMIT: how many looks at the free space pass between two measurements of the memory on disk.
const MEMORY_EVERY: u32 = 25;
/// Memory may exceed a share by this part: a tenant whose files fill it must still be able to pause a sandbox.
const MEMORY_PART: u64 = 4;

/// How often the kernel is asked whether bytes were freed.
const FREED_EVERY: Duration = Duration::from_millis(100);
/// LIMIT: a kernel that frees bytes has freed some after this time.
const FREED_WITHIN: Duration = Duration::from_secs(1);

/// What the tenant of a layer or volume can still write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareRoom {
    pub bytes: u64,
    /// Whether bytes of removed layers are just becoming free.
    pub is_freeing: bool,
}

/// What was done with the groups of tenants.
#[derive(Debug, Default)]
pub(crate) struct TenantGroups(Mutex<GroupState>);

#[derive(Debug, Default)]
struct GroupState {
    /// The limit that was set last, by group.
    limits: HashMap<Group, u64>,
    /// Bytes of memory on disk, by group.
    memory: HashMap<Group, u64>,
    /// What all layers and volumes could take at the last look.
    total: Option<u64>,
    /// The list of tenants that was applied last; see `TenantShares::changes`.
    applied: Option<u64>,
    /// Whether groups of tenants that are gone could not be removed yet.
    has_remains: bool,
    looks: u32,
    /// Groups of single subvolumes that looked abandoned at the last try.
    abandoned: HashSet<u64>,
}

impl TenantGroups {
    fn state(&self) -> MutexGuard<'_, GroupState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Layers {
    /// Whether the kernel holds each tenant to its share while it writes. With full quota groups it does not.
    pub fn holds_shares(&self) -> bool {
        matches!(&self.kind, StorageKind::Btrfs { quota, .. } if quota.is_simple)
    }

    /// What the tenant of a layer or volume can still write; `None`: as much as everybody.
    pub fn room_in_share(&self, name: &str) -> io::Result<Option<u64>> {
        let Some((quota, tenants)) = self.simple_groups() else { return Ok(None) };
        let group = self.group_of(name);
        let limit = tenants.state().limits.get(&group).copied().filter(|limit| *limit != UNLIMITED);
        let Some(limit) = limit else { return Ok(None) };
        Ok(Some(limit.saturating_sub(quota.group_bytes(group)?.0)))
    }

    /// Waits until the tenant of a layer or volume can write so many bytes, as long as bytes of removed layers that count for it
    /// become fewer: btrfs frees them in the background, by itself within half a minute.
    pub fn await_room_in_share(
        &self,
        name: &str,
        wanted: u64,
        at_most: Duration,
    ) -> io::Result<Option<ShareRoom>> {
        let begun = Instant::now();
        let (mut freed_at, mut before) = (begun, u64::MAX);
        loop {
            let Some(bytes) = self.room_in_share(name)? else { return Ok(None) };
            let removed = if bytes < wanted { self.removed_bytes(name)? } else { 0 };
            if removed < before {
                (freed_at, before) = (Instant::now(), removed);
            }
            // A snapshot may hold what is left for ever.
            let is_freeing = removed > 0 && freed_at.elapsed() < FREED_WITHIN;
            if !is_freeing || begun.elapsed() >= at_most {
                return Ok(Some(ShareRoom { bytes, is_freeing }));
            }
            // A commit starts the kernel's cleaner.
            btrfs::sync(&self.at)?;
            std::thread::sleep(FREED_EVERY);
        }
    }

    /// Bytes that count for the tenant of a layer or volume, of layers that are gone or about to be.
    fn removed_bytes(&self, name: &str) -> io::Result<u64> {
        let Some((quota, _)) = self.simple_groups() else { return Ok(0) };
        let (group, mut live) = (self.group_of(name), self.live_subvolumes()?);
        for (_, path) in self.layers_and_volumes()?.into_iter().filter(|(name, _)| is_passing(name)) {
            if let Some(doomed) = gone_is_none(btrfs::subvolume_id(&path))? {
                live.remove(&doomed);
            }
        }
        let members = quota.memberships(&self.at)?;
        let gone =
            members.iter().filter(|(member, groups)| groups.contains(&group) && !live.contains(member));
        Ok(gone.filter_map(|(member, _)| quota.subvolume_bytes(*member).ok()).sum())
    }

    /// Takes a layer or volume into the group of its tenant.
    pub(crate) fn join_group(&self, name: &str, path: &Path) -> io::Result<()> {
        let Some((quota, tenants)) = self.simple_groups() else { return Ok(()) };
        let group = self.group_of(name);
        if group == Group::NO_TENANT {
            return quota.join(&self.at, path, group);
        }
        // Held until the layer is a member: a group without members could be removed meanwhile.
        let mut state = tenants.state();
        if !state.limits.contains_key(&group) {
            quota.make_group(&self.at, group)?;
            let limit = self.share(&mut state)?;
            quota.limit_members(&self.at, group, limit)?;
            state.limits.insert(group, limit);
        }
        quota.join(&self.at, path, group)
    }

    /// Takes a layer or volume out of the group of its tenant, so that a full tenant can still start, or remove files.
    pub(crate) fn leave_group(&self, name: &str, path: &Path) -> io::Result<()> {
        match self.simple_groups() {
            Some((quota, _)) => quota.leave(&self.at, path, self.group_of(name)),
            None => Ok(()),
        }
    }

    /// A layer that belonged to no tenant has the name of a sandbox now.
    pub(crate) fn change_group(&self, from: &str, to: &str) -> io::Result<()> {
        let Some((quota, _)) = self.simple_groups() else { return Ok(()) };
        if self.group_of(from) != Group::NO_TENANT || self.group_of(to) == Group::NO_TENANT {
            return Ok(());
        }
        let path = self.path(to);
        quota.leave(&self.at, &path, Group::NO_TENANT)?;
        self.join_group(to, &path)
    }

    /// Takes every layer and volume into the group of its tenant: an earlier server may not have known the groups, or died
    /// before it did so. Called before anything is started.
    pub fn arrange_groups(&self) -> io::Result<()> {
        let Some((quota, _)) = self.simple_groups() else { return Ok(()) };
        let memberships = quota.memberships(&self.at)?;
        for (name, path) in self.layers_and_volumes()? {
            let Some(member) = gone_is_none(quota.member(&path))?.flatten() else { continue };
            let now = memberships.get(&member).map_or(&[][..], Vec::as_slice);
            let wanted = self.group_of(&name);
            // Whose it is, is not known yet, or no longer.
            let is_unknown = wanted == Group::NO_TENANT && !now.is_empty();
            if is_unknown || now == [wanted] {
                continue;
            }
            let other = now.iter().filter(|group| **group != wanted);
            other.clone().try_for_each(|group| quota.leave(&self.at, &path, *group))?;
            self.join_group(&name, &path)?;
        }
        Ok(())
    }

    /// Applies a changed list of tenants, and sets each limit to the share of `total`, which all layers and volumes can take.
    pub(crate) fn keep_shares(&self, total: u64) -> io::Result<()> {
        let Some((quota, tenants)) = self.simple_groups() else { return Ok(()) };
        let shares = self.disk.shares();
        let mut state = tenants.state();
        state.total = Some(total);
        let (Some(known), changes) = (shares.tenants(), shares.changes()) else { return Ok(()) };
        let is_changed = state.applied != Some(changes);
        state.looks = state.looks.wrapping_add(1);
        if is_changed {
            // Also those that an earlier server made.
            for group in quota.tenant_groups()? {
                quota.make_group(&self.at, group)?;
                state.limits.entry(group).or_insert(0);
            }
        }
        if is_changed || (state.has_remains && state.looks.is_multiple_of(CLEAN_EVERY)) {
            let known: HashSet<Group> = known.into_iter().map(Group::of).collect();
            self.remove_groups(quota, &mut state, &known)?;
        }
        let share = self.share(&mut state)?;
        if share != UNLIMITED && (is_changed || state.looks.is_multiple_of(MEMORY_EVERY)) {
            state.memory = self.memory_by_group()?;
        }
        let slack = SLACK.max(share / SLACK_PART);
        let GroupState { limits, memory, .. } = &mut *state;
        for (group, limit) in limits {
            let wanted = match memory.get(group) {
                Some(memory) if share != UNLIMITED => share.saturating_sub(*memory).max(SLACK),
                _ => share,
            };
            let is_off = *limit == 0 || (*limit == UNLIMITED) != (wanted == UNLIMITED);
            if is_off || limit.abs_diff(wanted) >= slack {
                quota.limit_members(&self.at, *group, wanted)?;
                *limit = wanted;
            }
        }
        state.applied = Some(changes);
        Ok(())
    }

    /// Whether the tenant of a sandbox may bring so many bytes of memory to disk.
    pub fn admits_memory(&self, sandbox: &str, bytes: u64) -> io::Result<bool> {
        let Some((quota, tenants)) = self.simple_groups() else { return Ok(true) };
        let (group, share) = (self.group_of(sandbox), self.share(&mut tenants.state())?);
        if group == Group::NO_TENANT || share == UNLIMITED {
            return Ok(true);
        }
        let memory = self.memory_by_group()?.get(&group).copied().unwrap_or(0);
        let files = quota.group_bytes(group).map_or(0, |(held, _)| held);
        Ok(files.saturating_add(memory).saturating_add(bytes) <= share + share / MEMORY_PART)
    }

    /// The memory on disk of each tenant.
    fn memory_by_group(&self) -> io::Result<HashMap<Group, u64>> {
        let mut found = HashMap::new();
        for (folder, part) in [("checkpoints", ""), ("snapshots", "memory")] {
            let Some(entries) = gone_is_none(fs::read_dir(self.at.join(folder)))? else { continue };
            for entry in entries {
                let entry = entry?;
                let group = self.group_of(&entry.file_name().to_string_lossy());
                let bytes = gone_is_none(open_folder(CWD, entry.path().join(part)).and_then(disk_bytes))?;
                *found.entry(group).or_insert(0) += bytes.unwrap_or(0);
            }
        }
        Ok(found)
    }

    /// The limit of each tenant's group.
    fn share(&self, state: &mut GroupState) -> io::Result<u64> {
        let shares = self.disk.shares();
        if !shares.is_limited() {
            return Ok(UNLIMITED);
        }
        let total = match state.total {
            Some(total) => total,
            None => *state.total.insert(self.space()?.total),
        };
        Ok(shares.share_of(total).map_or(UNLIMITED, |share| share.max(SLACK)))
    }

    /// Removes the groups of tenants that are gone. Bytes of theirs may still be there in what is being removed.
    fn remove_groups(
        &self,
        quota: &QuotaGroups,
        state: &mut GroupState,
        known: &HashSet<Group>,
    ) -> io::Result<()> {
        let mut gone: Vec<Group> =
            state.limits.keys().copied().filter(|group| !known.contains(group)).collect();
        if !gone.is_empty() {
            // What is found twice is abandoned: a subvolume that is just being made has an empty group too.
            let candidates = self.abandoned_groups(quota)?;
            let certain = candidates.intersection(&state.abandoned);
            for member in certain {
                // What is still in use is tried again.
                let _ = quota.remove_subvolume_group(&self.at, *member);
            }
            state.abandoned = candidates;
        }
        for group in std::mem::take(&mut gone) {
            if quota.remove_group(&self.at, group)? {
                state.limits.remove(&group);
            } else {
                gone.push(group);
            }
        }
        state.has_remains = !gone.is_empty();
        Ok(())
    }

    /// Groups of subvolumes that are gone and count no bytes any more.
    fn abandoned_groups(&self, quota: &QuotaGroups) -> io::Result<HashSet<u64>> {
        let empty = quota.empty_subvolume_groups()?;
        let live = self.live_subvolumes()?;
        Ok(empty.difference(&live).copied().collect())
    }

    /// Removes the groups of subvolumes that are gone; before anything new is made.
    pub(crate) fn remove_abandoned_groups(&self) -> io::Result<()> {
        let Some((quota, _)) = self.simple_groups() else { return Ok(()) };
        let abandoned = self.abandoned_groups(quota)?;
        let removed = abandoned.iter().filter(|member| quota.remove_subvolume_group(&self.at, **member));
        let removed = removed.count();
        if removed > 0 {
            tracing::debug!(removed, "quota groups of removed layers were deleted");
        }
        Ok(())
    }

    fn simple_groups(&self) -> Option<(&QuotaGroups, &TenantGroups)> {
        match &self.kind {
            StorageKind::Btrfs { quota, tenants, .. } if quota.is_simple => Some((quota, tenants)),
            _ => None,
        }
    }

    fn group_of(&self, name: &str) -> Group {
        self.disk.shares().owner(owner_name(name)).map_or(Group::NO_TENANT, Group::of)
    }

    pub(crate) fn layers_and_volumes(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut found = Vec::new();
        for folder in [&self.root, &self.volumes()] {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
            }
        }
        Ok(found)
    }
}

/// Whether this is the name of a layer that is being removed, or of a copy that takes the place of one.
fn is_passing(name: &str) -> bool {
    name.starts_with('.')
}

/// The sandbox or volume that a passing name such as `.new-ID-0123456789abcdef` was made for.
fn owner_name(name: &str) -> &str {
    let Some((_, rest)) = name.strip_prefix('.').and_then(|name| name.split_once('-')) else { return name };
    rest.split_once('-').map_or(rest, |(id, _)| id)
}

/// What is removed meanwhile is left out.
pub(crate) fn gone_is_none<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_names_belong_to_what_they_were_made_for() {
        for name in ["abc", ".new-abc-0011223344556677", ".unpack-abc-0011223344556677"] {
            assert_eq!(owner_name(name), "abc", "{name}");
        }
    }
}
