//! Which tenant the files of each sandbox and volume belong to, and how much of the space one tenant may fill.
//!
//! The service writes this table, since it alone knows tenants. The pool of layers reads it: it keeps one quota group
//! per tenant and limits the group to the share.
//!
//! ```text
//! service ── tenants, owner of each file tree ──► TenantShares ──► pool: one quota group per tenant
//! ```
//!
//! The only tenant has no limit: it shares the space with no other.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of a tenant's quota group. It is computed from the tenant's id, so it is the same after every restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantNumber(u64);

/// LIMIT: numbers of quota groups have 48 bits; two of a thousand tenants have the same number once in 10^8 servers, and
/// would then have one share together.
const NUMBER_BITS: u32 = 48;
/// Smaller numbers are left to groups that belong to no tenant.
const LEAST_NUMBER: u64 = 1 << 8;

impl TenantNumber {
    /// The number of the tenant with this id.
    #[must_use]
    pub fn of(tenant: &str) -> Self {
        // FNV-1a: stable, and ids are random.
        let hash = tenant.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let folded = (hash ^ (hash >> NUMBER_BITS)) & ((1 << NUMBER_BITS) - 1);
        Self(folded.max(LEAST_NUMBER))
    }

    /// As a number of 48 bits.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// The table of tenants and their files, and the share of each tenant.
#[derive(Debug)]
pub struct TenantShares {
    /// The part of the space that one tenant may fill, in thousandths; 1000 is no limit.
    per_mille: u64,
    table: Mutex<ShareTable>,
}

#[derive(Debug, Default)]
struct ShareTable {
    /// `None` until the service has listed the tenants.
    tenants: Option<BTreeSet<TenantNumber>>,
    /// By the id of a sandbox or volume.
    owners: HashMap<String, TenantNumber>,
    changes: u64,
}

impl ShareTable {
    fn add(&mut self, tenant: TenantNumber) {
        if self.tenants.as_mut().is_some_and(|tenants| tenants.insert(tenant)) {
            self.changes += 1;
        }
    }
}

impl Default for TenantShares {
    /// Without a limit for any tenant.
    fn default() -> Self {
        Self::new(1_000)
    }
}

impl TenantShares {
    /// Each tenant may fill so many thousandths of the space once there is a second tenant.
    #[must_use]
    pub fn new(per_mille: u64) -> Self {
        Self { per_mille: per_mille.clamp(1, 1_000), table: Mutex::default() }
    }

    /// Replaces the list of tenants.
    pub fn set_tenants<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let tenants: BTreeSet<TenantNumber> = ids.into_iter().map(TenantNumber::of).collect();
        let mut table = self.table();
        if table.tenants.as_ref() != Some(&tenants) {
            table.tenants = Some(tenants);
            table.changes += 1;
        }
    }

    /// Adds a new tenant to the list.
    pub fn add_tenant(&self, id: &str) {
        self.table().add(TenantNumber::of(id));
    }

    /// Notes that the files of a sandbox or volume belong to a tenant. Called before they are made.
    pub fn assign(&self, id: &str, tenant: &str) {
        let (mut table, tenant) = (self.table(), TenantNumber::of(tenant));
        // Another node may have made it a moment ago.
        table.add(tenant);
        table.owners.insert(id.to_owned(), tenant);
    }

    /// Forgets a sandbox or volume whose files are gone.
    pub fn forget(&self, id: &str) {
        self.table().owners.remove(id);
    }

    /// The tenant of a sandbox or volume.
    #[must_use]
    pub fn owner(&self, id: &str) -> Option<TenantNumber> {
        self.table().owners.get(id).copied()
    }

    /// All tenants; `None` as long as the service has not listed them.
    #[must_use]
    pub fn tenants(&self) -> Option<BTreeSet<TenantNumber>> {
        self.table().tenants.clone()
    }

    /// Counts the changes of the list of tenants.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.table().changes
    }

    /// Whether each tenant has a limit now: there are at least two, and the operator did not give each the whole space.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.per_mille < 1_000 && self.table().tenants.as_ref().is_some_and(|tenants| tenants.len() > 1)
    }

    /// How much of `total` one tenant may fill; `None`: all of it.
    #[must_use]
    pub fn share_of(&self, total: u64) -> Option<u64> {
        self.is_limited().then(|| total / 1_000 * self.per_mille + total % 1_000 * self.per_mille / 1_000)
    }

    fn table(&self) -> MutexGuard<'_, ShareTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_only_tenant_has_no_limit_and_two_have_their_share() {
        let shares = TenantShares::new(500);
        assert_eq!((shares.tenants(), shares.share_of(1_000)), (None, None), "nothing is known yet");
        shares.set_tenants(["a"]);
        assert_eq!(shares.share_of(1_000), None);
        shares.set_tenants(["a", "b"]);
        assert_eq!((shares.share_of(1_001), shares.share_of(u64::MAX)), (Some(500), Some(u64::MAX / 2)));
        let before = shares.changes();
        shares.set_tenants(["b", "a"]);
        assert_eq!(shares.changes(), before, "the same tenants are no change");
        shares.set_tenants(["b"]);
        assert_eq!((shares.changes(), shares.share_of(1_000)), (before + 1, None));
        let whole = TenantShares::new(1_000);
        whole.set_tenants(["a", "b"]);
        assert_eq!(whole.share_of(1_000), None, "the operator switched shares off");
    }

    #[test]
    fn files_have_the_owner_that_was_noted_last_until_they_are_gone() {
        let shares = TenantShares::new(500);
        shares.assign("box", "a");
        assert_eq!(shares.owner("box"), Some(TenantNumber::of("a")));
        shares.forget("box");
        assert_eq!((shares.owner("box"), shares.tenants()), (None, None));
        shares.set_tenants(["a"]);
        shares.assign("box", "b");
        assert!(shares.is_limited(), "a tenant that has files is in the list");
    }

    #[test]
    fn numbers_fit_a_quota_group_and_differ() {
        let numbers: BTreeSet<u64> =
            (0..10_000).map(|n| TenantNumber::of(&format!("{n:020}")).value()).collect();
        assert_eq!(numbers.len(), 10_000);
        assert!(numbers.iter().all(|number| (LEAST_NUMBER..1 << NUMBER_BITS).contains(number)));
    }
}
