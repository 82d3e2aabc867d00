//! Pools, owners and reservations.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use atoll_model::{Code, TenantId};
use bytes::Bytes;

use crate::socket::{STRANGER_SOCKETS, TENANT_SOCKETS};

/// LIMIT: bytes of each reservation that are not counted.
pub const SMALL: usize = 16 << 10;
/// LIMIT: how long a caller waits for free budget. Its holders may be waiting too, so the wait must end.
pub const WAIT: Duration = Duration::from_secs(2);
/// Reservations grow by multiples of this, so that a stream of small pieces does not lock the pool for each one.
const STEP: u64 = 16 << 10;

/// Sizes of the pools, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// For all tenants together.
    pub tenants: u64,
    /// For all callers without a valid key together.
    pub strangers: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        // LIMIT: together about half a GiB, which a single-machine server has besides its sandboxes.
        Self { tenants: 512 << 20, strangers: 32 << 20 }
    }
}

/// The owner of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BudgetOwner {
    /// A tenant.
    Tenant(TenantId),
    /// A caller that has not presented a valid key, by its address; IPv6 addresses count by their first 64 bits.
    Stranger(Option<IpAddr>),
}

impl BudgetOwner {
    /// A stranger at this address.
    #[must_use]
    pub fn stranger(address: Option<IpAddr>) -> Self {
        let network = address.map(|address| match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) => IpAddr::V4(v4),
                None => {
                    let [a, b, c, d, ..] = v6.segments();
                    IpAddr::from([a, b, c, d, 0, 0, 0, 0])
                }
            },
        });
        Self::Stranger(network)
    }
}

/// The budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// This owner already holds its share.
    #[error(
        "the server already holds as many unread or unfinished bytes for this caller as its memory budget allows"
    )]
    Owner,
    /// All owners together use the whole pool.
    #[error("the server's memory for unread and unfinished bytes is in use")]
    All,
}

impl Exhausted {
    /// The error code for users.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::Owner => Code::QuotaExceeded,
            Self::All => Code::NoCapacity,
        }
    }

    /// A suggestion for users.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        "read or close the answers that are still open, then try again"
    }
}

/// The budget of one server. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    tenants: Arc<Pool>,
    strangers: Arc<Pool>,
    /// The state of unwritten responses. It is separate from the bytes, so that an owner whose share is full of large
    /// unread responses still gets small ones.
    tenant_answers: Arc<Pool>,
    stranger_answers: Arc<Pool>,
    tenant_sockets: Arc<Pool>,
    stranger_sockets: Arc<Pool>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Sizes::default())
    }
}

impl Budget {
    /// A budget with pools of these sizes.
    #[must_use]
    pub fn new(sizes: Sizes) -> Self {
        Self {
            tenants: Pool::new(sizes.tenants),
            strangers: Pool::new(sizes.strangers),
            // A single tenant: 4,096 open responses; a single address: 1,024.
            tenant_answers: Pool::new(sizes.tenants / 4),
            stranger_answers: Pool::new(sizes.strangers),
            tenant_sockets: Pool::new(TENANT_SOCKETS),
            stranger_sockets: Pool::new(STRANGER_SOCKETS),
        }
    }

    /// The account of an owner. Cheap: no state is kept for an owner without reservations.
    #[must_use]
    pub fn account(&self, owner: BudgetOwner) -> Account {
        let (pool, answers, sockets) = match &owner {
            BudgetOwner::Tenant(_) => (&self.tenants, &self.tenant_answers, &self.tenant_sockets),
            BudgetOwner::Stranger(_) => (&self.strangers, &self.stranger_answers, &self.stranger_sockets),
        };
        let [pool, answers, sockets] = [pool, answers, sockets].map(Arc::clone);
        Account { pool, answers, sockets, owner }
    }

    /// The account of a tenant.
    #[must_use]
    pub fn tenant(&self, tenant: &TenantId) -> Account {
        self.account(BudgetOwner::Tenant(tenant.clone()))
    }

    /// The currently held bytes: of tenants, of strangers.
    #[must_use]
    pub fn held(&self) -> (u64, u64) {
        let used = |pool: &Pool| pool.lock().used;
        (
            used(&self.tenants) + used(&self.tenant_answers),
            used(&self.strangers) + used(&self.stranger_answers),
        )
    }
}

/// One owner's part of the budget.
#[derive(Debug, Clone)]
pub struct Account {
    pool: Arc<Pool>,
    answers: Arc<Pool>,
    pub(crate) sockets: Arc<Pool>,
    pub(crate) owner: BudgetOwner,
}

impl Account {
    /// An empty reservation.
    #[must_use]
    pub fn reserve(&self) -> Reservation {
        Reservation { account: self.clone(), id: self.pool.next_id(), counted: 0, is_waiting: false }
    }

    /// An empty reservation for an open response: its state, and its body if that is small.
    #[must_use]
    pub fn reserve_answer(&self) -> Reservation {
        Self { pool: Arc::clone(&self.answers), ..self.clone() }.reserve()
    }

    #[must_use]
    pub const fn owner(&self) -> &BudgetOwner {
        &self.owner
    }
}

/// A reservation for bytes in memory. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    id: u64,
    /// The bytes that the pool counts for it.
    counted: u64,
    is_waiting: bool,
}

impl Reservation {
    /// Grows to at least `bytes` in total, if the budget allows it now.
    pub fn try_grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let wanted = counted(bytes);
        if wanted <= self.counted {
            return Ok(());
        }
        let mut state = self.account.pool.lock();
        self.account.pool.take(&mut state, &self.account.owner, wanted - self.counted)?;
        self.counted = wanted;
        Ok(())
    }

    /// The same, and wakes the task when bytes are released after a refusal.
    pub fn poll_grow(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        let wanted = counted(bytes);
        if wanted <= self.counted {
            return Poll::Ready(());
        }
        let mut state = self.account.pool.lock();
        if self.account.pool.take(&mut state, &self.account.owner, wanted - self.counted).is_ok() {
            self.counted = wanted;
            return Poll::Ready(());
        }
        self.is_waiting = true;
        state.waiting.insert(self.id, cx.waker().clone());
        Poll::Pending
    }

    /// Grows to at least `bytes` in total; waits for at most [`WAIT`].
    pub async fn grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        if self.try_grow(bytes).is_ok() {
            return Ok(());
        }
        let grown = tokio::time::timeout(WAIT, poll_fn(|cx| self.poll_grow(cx, bytes))).await;
        match grown {
            Ok(()) => Ok(()),
            // The reason is that of the last attempt.
            Err(_) => self.try_grow(bytes),
        }
    }

    /// Releases everything above `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let wanted = counted(bytes);
        if wanted < self.counted {
            self.account.pool.give(&self.account.owner, self.counted - wanted);
            self.counted = wanted;
        }
    }

    /// Moves `bytes` bytes into a separate reservation.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let moved = counted(bytes).min(self.counted);
        self.counted -= moved;
        let mut part = self.account.reserve();
        part.counted = moved;
        part
    }

    /// The same bytes, which release this reservation when their last clone or slice is dropped.
    #[must_use]
    pub fn attach(self, bytes: impl Into<Bytes>) -> Bytes {
        struct ReservedBytes {
            bytes: Bytes,
            _reservation: Reservation,
        }
        impl AsRef<[u8]> for ReservedBytes {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        Bytes::from_owner(ReservedBytes { bytes: bytes.into(), _reservation: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_waiting {
            self.account.pool.lock().waiting.remove(&self.id);
        }
        if self.counted > 0 {
            self.account.pool.give(&self.account.owner, self.counted);
        }
    }
}

/// The number of bytes that a pool counts for so many bytes.
fn counted(bytes: usize) -> u64 {
    let beyond = u64::try_from(bytes.saturating_sub(SMALL)).unwrap_or(u64::MAX);
    beyond.div_ceil(STEP).saturating_mul(STEP)
}

#[derive(Debug)]
pub(crate) struct Pool {
    size: u64,
    ids: AtomicU64,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    used: u64,
    owners: HashMap<BudgetOwner, u64>,
    waiting: HashMap<u64, Waker>,
}

impl Pool {
    fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size, ids: AtomicU64::new(0), state: Mutex::default() })
    }

    fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, state: &mut BudgetState, owner: &BudgetOwner, more: u64) -> Result<(), Exhausted> {
        let held = state.owners.get(owner).copied().unwrap_or(0);
        let used = state.used.saturating_add(more);
        if used > self.size {
            // For an owner without bytes the others use the pool, for any other owner its own share is the limit.
            return Err(if held == 0 { Exhausted::All } else { Exhausted::Owner });
        }
        if held.saturating_add(more) > self.size - used {
            return Err(if held >= state.used / 2 { Exhausted::Owner } else { Exhausted::All });
        }
        state.used = used;
        *state.owners.entry(owner.clone()).or_default() += more;
        Ok(())
    }

    /// Takes so many bytes for an owner, if the budget allows it now.
    pub(crate) fn take_now(&self, owner: &BudgetOwner, more: u64) -> Result<(), Exhausted> {
        self.take(&mut self.lock(), owner, more)
    }

    pub(crate) fn give(&self, owner: &BudgetOwner, less: u64) {
        let woken = {
            let mut state = self.lock();
            state.used = state.used.saturating_sub(less);
            if let Some(held) = state.owners.get_mut(owner) {
                *held = held.saturating_sub(less);
                if *held == 0 {
                    state.owners.remove(owner);
                }
            }
            std::mem::take(&mut state.waiting)
        };
        woken.into_values().for_each(Waker::wake);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn budget() -> Budget {
        Budget::new(Sizes { tenants: 64 << 20, strangers: 4 << 20 })
    }

    fn tenant(budget: &Budget, name: &str) -> Account {
        budget.tenant(&format!("{name:a<20}").parse().unwrap())
    }

    /// Reserves one MiB at a time until the account is full.
    fn fill(account: &Account) -> Vec<Reservation> {
        let mut held = Vec::new();
        loop {
            let mut reservation = account.reserve();
            if reservation.try_grow(MIB + SMALL).is_err() {
                return held;
            }
            held.push(reservation);
        }
    }

    #[test]
    fn one_owner_gets_half_and_a_newcomer_always_finds_room() {
        let budget = budget();
        let first = fill(&tenant(&budget, "a"));
        assert_eq!(first.len(), 32);
        let second = fill(&tenant(&budget, "b"));
        assert_eq!(second.len(), 16);
        assert_eq!(fill(&tenant(&budget, "c")).len(), 8);
        let mut small = tenant(&budget, "a").reserve();
        assert_eq!(small.try_grow(SMALL), Ok(()), "small ones are not counted");
        assert_eq!(small.try_grow(MIB), Err(Exhausted::Owner));
        drop((first, second));
        assert_eq!(budget.held(), (0, 0));
        assert_eq!(fill(&tenant(&budget, "c")).len(), 32);
    }

    #[test]
    fn strangers_have_a_pool_of_their_own_divided_by_address() {
        let budget = budget();
        let at = |text: &str| budget.account(BudgetOwner::stranger(Some(text.parse().unwrap())));
        let first = fill(&at("192.0.2.1"));
        assert_eq!(first.len(), 2);
        assert_eq!(fill(&at("192.0.2.2")).len(), 1);
        assert_eq!(fill(&tenant(&budget, "a")).len(), 32);
        assert_eq!(at("2001:db8::1").owner(), at("2001:db8::ffff").owner());
        assert_eq!(at("::ffff:192.0.2.1").owner(), at("192.0.2.1").owner());
    }

    #[test]
    fn attached_bytes_release_with_their_last_slice() {
        let budget = budget();
        let mut reservation = tenant(&budget, "a").reserve();
        reservation.try_grow(MIB).unwrap();
        let mut bytes = reservation.attach(vec![7u8; MIB]);
        let end = bytes.split_off(MIB - 1);
        drop(bytes);
        assert!(budget.held().0 > 0, "one byte of it is still to be written");
        drop(end);
        assert_eq!(budget.held(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_goes_on_when_bytes_are_released_and_is_refused_when_not() {
        let budget = budget();
        let held = fill(&tenant(&budget, "a"));
        let mut late = tenant(&budget, "a").reserve();
        assert_eq!(late.grow(MIB).await, Err(Exhausted::Owner));
        let waiting = tokio::spawn(async move {
            let grown = late.grow(MIB).await;
            (late, grown)
        });
        tokio::task::yield_now().await;
        drop(held);
        let (late, grown) = waiting.await.unwrap();
        assert_eq!(grown, Ok(()));
        drop(late);
        assert_eq!(budget.held(), (0, 0));
        assert!(budget.tenants.lock().waiting.is_empty());
    }

    #[test]
    fn a_reservation_shrinks() {
        let budget = budget();
        let mut reservation = tenant(&budget, "a").reserve();
        reservation.try_grow(8 * MIB).unwrap();
        reservation.shrink(0);
        assert_eq!(budget.held(), (0, 0));
    }
}
