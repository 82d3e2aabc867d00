//! How much a tenant may hold. The store calls this inside the inserting transaction, so it is exact under concurrency.

use crate::{Limits, Quota, Usage};

/// The request would exceed the tenant's quota.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the quota of {max} {what} would be exceeded: {used} in use, {asked} more requested")]
pub struct Exceeded {
    /// The resource.
    pub what: &'static str,
    /// In use now.
    pub used: u64,
    /// Requested in addition.
    pub asked: u64,
    /// The quota.
    pub max: u64,
}

/// May a tenant that holds `usage` add one more sandbox of `limits`?
pub fn admit_new(quota: &Quota, usage: &Usage, limits: &Limits) -> Result<(), Exceeded> {
    within("sandboxes", quota.sandboxes.map(u64::from), usage.sandboxes.into(), 1)?;
    within("MiB of disk", quota.disk_mib, usage.disk_mib, limits.disk_mib.into())?;
    admit_compute(quota, usage, limits)
}

/// May a stopped sandbox of `limits` start again?
pub fn admit_compute(quota: &Quota, usage: &Usage, limits: &Limits) -> Result<(), Exceeded> {
    within("thousandths of a core", quota.cpu_milli, usage.cpu_milli, limits.cpu_milli.into())?;
    within("MiB of memory", quota.memory_mib, usage.memory_mib, limits.memory_mib.into())
}

/// May a tenant that holds `usage` store a snapshot of so many bytes? While the size is unknown, there must be some
/// space.
pub fn admit_snapshot(quota: &Quota, usage: &Usage, bytes: u64) -> Result<(), Exceeded> {
    within("MiB of disk", quota.disk_mib, usage.disk_mib, bytes.div_ceil(1 << 20).max(1))
}

/// May a tenant that holds `usage` have one more volume, of so many MiB?
pub fn admit_volume(quota: &Quota, usage: &Usage, size_mib: u64) -> Result<(), Exceeded> {
    within("volumes", quota.volumes.map(u64::from), usage.volumes.into(), 1)?;
    admit_volume_size(quota, usage, size_mib)
}

/// May the volumes of a tenant that holds `usage` have so many MiB more?
pub fn admit_volume_size(quota: &Quota, usage: &Usage, more_mib: u64) -> Result<(), Exceeded> {
    within("MiB of volumes", quota.volume_mib, usage.volume_mib, more_mib)
}

fn within(what: &'static str, max: Option<u64>, used: u64, asked: u64) -> Result<(), Exceeded> {
    match max {
        Some(max) if used.saturating_add(asked) > max => Err(Exceeded { what, used, asked, max }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_quota_fits_and_one_more_does_not() {
        let quota = Quota { sandboxes: Some(10), ..Default::default() };
        let at = |sandboxes| Usage { sandboxes, ..Default::default() };
        assert!(admit_new(&quota, &at(9), &Limits::default()).is_ok());
        assert_eq!(admit_new(&quota, &at(10), &Limits::default()).expect_err("full").what, "sandboxes");
    }

    #[test]
    fn a_snapshot_counts_by_its_bytes_and_never_as_nothing() {
        let quota = Quota { disk_mib: Some(100), ..Default::default() };
        let at = |disk_mib| Usage { disk_mib, ..Default::default() };
        assert!(admit_snapshot(&quota, &at(98), (1 << 20) + 1).is_ok());
        assert!(admit_snapshot(&quota, &at(99), (1 << 20) + 1).is_err());
        assert!(admit_snapshot(&quota, &at(99), 0).is_ok());
        assert!(admit_snapshot(&quota, &at(100), 0).is_err());
        assert!(admit_snapshot(&Quota::default(), &at(u64::MAX), u64::MAX).is_ok());
    }

    #[test]
    fn volumes_are_counted_by_number_and_by_size() {
        let quota = Quota { volumes: Some(2), volume_mib: Some(100), ..Default::default() };
        let at = |volumes, volume_mib| Usage { volumes, volume_mib, ..Default::default() };
        assert!(admit_volume(&quota, &at(1, 50), 50).is_ok());
        assert_eq!(admit_volume(&quota, &at(2, 0), 1).expect_err("full").what, "volumes");
        assert_eq!(admit_volume(&quota, &at(1, 50), 51).expect_err("full").what, "MiB of volumes");
        assert!(admit_volume_size(&quota, &at(2, 50), 50).is_ok());
    }

    #[test]
    fn memory_is_counted_for_starts_too() {
        let quota = Quota { memory_mib: Some(1_000), ..Default::default() };
        let usage = Usage { memory_mib: 600, ..Default::default() };
        assert!(admit_compute(&quota, &usage, &Limits { memory_mib: 400, ..Default::default() }).is_ok());
        assert!(admit_compute(&quota, &usage, &Limits { memory_mib: 401, ..Default::default() }).is_err());
    }
}
