//! Promised MiB by sandbox. A promise has up to two holders and ends with the last of them: a place that a move holds cannot be given
//! up by the lease in between, nor the other way round.

use std::collections::HashMap;

use atoll_model::{SandboxId, TenantId};

/// Who needs a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The lease, as it is written.
    Lease,
    /// A move to or from this provider.
    Move,
}

#[derive(Debug, Clone)]
struct Promise {
    tenant: TenantId,
    mib: u64,
    by_lease: bool,
    by_move: bool,
}

impl Promise {
    fn by(&mut self, holder: Holder) -> &mut bool {
        match holder {
            Holder::Lease => &mut self.by_lease,
            Holder::Move => &mut self.by_move,
        }
    }
}

/// The promises of one resource at one provider.
#[derive(Debug, Default)]
pub(super) struct PromiseTable {
    promises: HashMap<SandboxId, Promise>,
    sum_mib: u64,
}

impl PromiseTable {
    pub(super) fn sum_mib(&self) -> u64 {
        self.sum_mib
    }

    /// What is promised to the sandboxes of a tenant.
    pub(super) fn tenant_mib(&self, tenant: &TenantId) -> u64 {
        self.promises.values().filter(|promise| promise.tenant == *tenant).map(|promise| promise.mib).sum()
    }

    pub(super) fn len(&self) -> u64 {
        self.promises.len() as u64
    }

    /// What is promised to a sandbox, whoever holds it.
    pub(super) fn mib(&self, id: &SandboxId) -> Option<u64> {
        self.promises.get(id).map(|promise| promise.mib)
    }

    pub(super) fn is_held_by(&self, id: &SandboxId, holder: Holder) -> bool {
        self.promises.get(id).is_some_and(|promise| match holder {
            Holder::Lease => promise.by_lease,
            Holder::Move => promise.by_move,
        })
    }

    /// Promises so much, and returns what was promised before.
    pub(super) fn put(&mut self, id: &SandboxId, tenant: &TenantId, mib: u64, holder: Holder) -> Option<u64> {
        let before = self.mib(id);
        let new = || Promise { tenant: tenant.clone(), mib, by_lease: false, by_move: false };
        let promise = self.promises.entry(id.clone()).or_insert_with(new);
        promise.mib = mib;
        *promise.by(holder) = true;
        self.sum_mib = self.sum_mib + mib - before.unwrap_or(0);
        before
    }

    /// Adds a holder to an existing promise.
    pub(super) fn hold(&mut self, id: &SandboxId, holder: Holder) {
        if let Some(promise) = self.promises.get_mut(id) {
            *promise.by(holder) = true;
        }
    }

    /// The holder needs it no longer. Returns whether the promise has ended.
    pub(super) fn release(&mut self, id: &SandboxId, holder: Holder) -> bool {
        let Some(promise) = self.promises.get_mut(id) else { return false };
        *promise.by(holder) = false;
        if promise.by_lease || promise.by_move {
            return false;
        }
        self.sum_mib -= promise.mib;
        self.promises.remove(id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_counted_once_and_ends_with_its_last_holder() {
        let (mut table, id) = (PromiseTable::default(), SandboxId::from_entropy([1; 20]));
        assert!(!table.release(&id, Holder::Lease), "there is none");
        table.hold(&id, Holder::Lease);
        assert_eq!((table.len(), table.mib(&id)), (0, None), "only what is promised can be held");
        let [own, other] = [1, 2].map(|seed| TenantId::from_entropy([seed; 20]));
        assert_eq!(table.put(&id, &own, 10, Holder::Move), None);
        assert_eq!(table.put(&id, &own, 12, Holder::Lease), Some(10));
        assert_eq!((table.len(), table.sum_mib()), (1, 12));
        assert_eq!((table.tenant_mib(&own), table.tenant_mib(&other)), (12, 0));
        assert!(!table.release(&id, Holder::Move) && !table.is_held_by(&id, Holder::Move));
        assert!(!table.release(&id, Holder::Move), "again");
        assert!(table.is_held_by(&id, Holder::Lease));
        assert!(table.release(&id, Holder::Lease));
        assert_eq!((table.len(), table.sum_mib(), table.mib(&id)), (0, 0, None));
    }
}
