//! Connections that have not sent a whole request yet, by address: so many at once, and what they have sent is counted.
//!
//! A new connection takes the place of the oldest: clients have sent their request by then, those that wait have not.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atoll_budget::{Account, BudgetOwner, Reservation};
use tokio_util::sync::CancellationToken;

/// LIMIT: connections of one address without a request so far. Those of clients have one within milliseconds.
const PER_ADDRESS: usize = 4_096;
/// What a byte of a head costs: it is in the parser's buffer, and in a copy of a line that has no end yet.
const COST: usize = 2;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct UnauthenticatedConnections(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    by_owner: HashMap<BudgetOwner, BTreeMap<u64, CancellationToken>>,
}

/// One connection's place among them.
#[derive(Debug)]
pub(crate) struct UnauthenticatedConnection {
    all: Arc<UnauthenticatedConnections>,
    owner: BudgetOwner,
    number: u64,
    replaced: CancellationToken,
    is_known: AtomicBool,
}

impl UnauthenticatedConnections {
    /// A place, which may be that of another one.
    pub(super) fn enter(self: &Arc<Self>, owner: BudgetOwner) -> Arc<UnauthenticatedConnection> {
        let replaced = CancellationToken::new();
        let mut waiting = self.lock();
        waiting.last += 1;
        let number = waiting.last;
        let of_owner = waiting.by_owner.entry(owner.clone()).or_default();
        if of_owner.len() >= PER_ADDRESS
            && let Some((_, oldest)) = of_owner.pop_first()
        {
            oldest.cancel();
        }
        of_owner.insert(number, replaced.clone());
        drop(waiting);
        Arc::new(UnauthenticatedConnection {
            all: Arc::clone(self),
            owner,
            number,
            replaced,
            is_known: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnauthenticatedConnection {
    /// A request came: it is none any more.
    pub(super) fn settle(&self) {
        if self.is_known.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut waiting = self.all.lock();
        if let Some(of_owner) = waiting.by_owner.get_mut(&self.owner) {
            of_owner.remove(&self.number);
            if of_owner.is_empty() {
                waiting.by_owner.remove(&self.owner);
            }
        }
    }

    /// Resolves when another connection took its place; never once a request came.
    pub(super) fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Counts the bytes of heads that are not whole yet, for one connection.
#[derive(Debug)]
pub(super) struct HeadMeter(Reservation);

impl HeadMeter {
    pub(super) fn new(account: &Account) -> Self {
        Self(account.reserve())
    }

    /// Whether a head may grow to so many bytes. Until then nothing is read; the deadline for heads goes on.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        self.0.poll_grow(cx, bytes.saturating_mul(COST))
    }

    /// The head is whole.
    pub(super) fn clear(&mut self) {
        self.0.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_an_address_gives_way_and_settled_ones_do_not_count() {
        let all = Arc::new(UnauthenticatedConnections::default());
        let owner = BudgetOwner::stranger(Some([192, 0, 2, 1].into()));
        let mut held: Vec<_> = (0..PER_ADDRESS).map(|_| all.enter(owner.clone())).collect();
        held[0].settle();
        held.push(all.enter(owner.clone()));
        held.push(all.enter(BudgetOwner::stranger(Some([192, 0, 2, 2].into()))));
        assert!(held.iter().all(|one| !one.replaced().is_cancelled()));
        held.push(all.enter(owner));
        let gone: Vec<_> = (0..held.len()).filter(|at| held[*at].replaced().is_cancelled()).collect();
        assert_eq!(gone, [1], "the first has sent its request");
        drop(held);
        assert!(all.lock().by_owner.is_empty());
    }
}
