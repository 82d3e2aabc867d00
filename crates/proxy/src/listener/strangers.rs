//! Connections of strangers: clients that have not presented a valid key or token yet. Their number is limited, per
//! address and in total; a new one replaces the one that has been idle for the longest time.
//!
//! ```text
//! enter ─► idle ◄─ requests ─► busy          authenticate ─► no longer a stranger
//!            └── evicted for a new connection (busy ones only if none is idle)
//! ```
//!
//! The bytes of their heads are counted ([`HeadMeter`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_budget::{Account, BudgetOwner, Reservation};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// LIMIT: connections of strangers per address. Visitors of public previews behind one proxy or NAT share an address.
const PER_ADDRESS: usize = 1_024;
/// LIMIT: refusals for lack of memory that one connection may leave unread before it is closed. They are not counted.
const REFUSED_MAX: usize = 16;
/// LIMIT: requests of one stranger's HTTP/2 connection in their handlers at once, before the owner of their memory is
/// known.
const TURNS: usize = 16;
/// The cost of a byte of a head: it is in the parser's buffer, and in a copy of an incomplete line.
const COST: usize = 2;

/// All connections of strangers.
#[derive(Debug)]
pub(super) struct StrangerConnections {
    most: usize,
    places: Mutex<StrangerPlaces>,
}

#[derive(Debug, Default)]
struct StrangerPlaces {
    last_number: u64,
    total: usize,
    by_address: HashMap<BudgetOwner, AddressPlaces>,
}

/// By number; the lowest is the oldest.
#[derive(Debug, Default)]
struct AddressPlaces {
    idle: BTreeMap<u64, CancellationToken>,
    busy: BTreeMap<u64, CancellationToken>,
}

/// One connection: its slot among the strangers, and its requests under way.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    strangers: Arc<StrangerConnections>,
    address: BudgetOwner,
    evicted: CancellationToken,
    /// Closed once its client presented a valid key or token.
    turns: Arc<Semaphore>,
    usage: Mutex<ConnectionUsage>,
}

#[derive(Debug)]
struct ConnectionUsage {
    /// The number of its slot; `None`: it is no longer a stranger, or was evicted.
    number: Option<u64>,
    is_authenticated: bool,
    has_request: bool,
    /// Requests whose responses are not written.
    open: usize,
    refused: usize,
    idle_since: Instant,
}

impl StrangerConnections {
    /// With this limit.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, places: Mutex::default() })
    }

    /// A slot for a new connection; may evict another one.
    pub(super) fn enter(self: &Arc<Self>, address: BudgetOwner) -> Arc<ConnectionState> {
        let evicted = CancellationToken::new();
        let number = {
            let mut places = self.lock();
            if places.by_address.get(&address).is_some_and(|of_address| of_address.len() >= PER_ADDRESS) {
                places.evict(&address);
            } else if places.total >= self.most
                && let Some(largest) = places.largest()
            {
                places.evict(&largest);
            }
            places.insert(&address, evicted.clone())
        };
        let usage = ConnectionUsage {
            number: Some(number),
            is_authenticated: false,
            has_request: false,
            open: 0,
            refused: 0,
            idle_since: Instant::now(),
        };
        Arc::new(ConnectionState {
            strangers: Arc::clone(self),
            address,
            evicted,
            turns: Arc::new(Semaphore::new(TURNS)),
            usage: Mutex::new(usage),
        })
    }

    fn lock(&self) -> MutexGuard<'_, StrangerPlaces> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StrangerPlaces {
    /// The address with the most connections.
    fn largest(&self) -> Option<BudgetOwner> {
        let largest = self.by_address.iter().max_by_key(|(_, of_address)| of_address.len());
        largest.map(|(address, _)| address.clone())
    }

    /// Closes the connection of this address that has been idle for the longest time, or else the oldest busy one.
    fn evict(&mut self, address: &BudgetOwner) {
        let Some(of_address) = self.by_address.get_mut(address) else { return };
        if let Some((_, oldest)) = of_address.idle.pop_first().or_else(|| of_address.busy.pop_first()) {
            self.total -= 1;
            oldest.cancel();
        }
        self.forget_if_empty(address);
    }

    /// Inserts an idle connection.
    fn insert(&mut self, address: &BudgetOwner, evicted: CancellationToken) -> u64 {
        self.last_number += 1;
        self.total += 1;
        self.by_address.entry(address.clone()).or_default().idle.insert(self.last_number, evicted);
        self.last_number
    }

    fn remove(&mut self, address: &BudgetOwner, number: u64) -> Option<CancellationToken> {
        let of_address = self.by_address.get_mut(address)?;
        let removed = of_address.idle.remove(&number).or_else(|| of_address.busy.remove(&number))?;
        self.total -= 1;
        self.forget_if_empty(address);
        Some(removed)
    }

    fn set_busy(&mut self, address: &BudgetOwner, number: u64) {
        let Some(of_address) = self.by_address.get_mut(address) else { return };
        if let Some(evicted) = of_address.idle.remove(&number) {
            of_address.busy.insert(number, evicted);
        }
    }

    /// Marks a connection as idle, with a new number; `None`: it was evicted.
    fn set_idle(&mut self, address: &BudgetOwner, number: u64) -> Option<u64> {
        let evicted = self.remove(address, number)?;
        Some(self.insert(address, evicted))
    }

    fn forget_if_empty(&mut self, address: &BudgetOwner) {
        if self.by_address.get(address).is_some_and(|of_address| of_address.len() == 0) {
            self.by_address.remove(address);
        }
    }
}

impl AddressPlaces {
    fn len(&self) -> usize {
        self.idle.len() + self.busy.len()
    }
}

impl ConnectionState {
    /// Waits for a request's turn; `None`: the connection ends. Requests of an authenticated client do not wait.
    pub(super) async fn turn(&self) -> Option<RequestTurn> {
        tokio::select! {
            biased;
            () = self.evicted.cancelled() => None,
            permit = Arc::clone(&self.turns).acquire_owned() => {
                Some(RequestTurn(Arc::new(Mutex::new(permit.ok()))))
            }
        }
    }

    /// Counts a new request.
    pub(super) fn begin_request(self: &Arc<Self>) -> OpenRequest {
        let mut usage = self.lock();
        usage.has_request = true;
        usage.open += 1;
        if usage.open == 1
            && let Some(number) = usage.number
        {
            self.strangers.lock().set_busy(&self.address, number);
        }
        drop(usage);
        OpenRequest { connection: Arc::clone(self), is_refused: false }
    }

    fn end_request(&self, is_refused: bool) {
        let mut usage = self.lock();
        usage.open -= 1;
        usage.refused -= usize::from(is_refused);
        if usage.open > 0 {
            return;
        }
        usage.idle_since = Instant::now();
        if let Some(number) = usage.number {
            usage.number = self.strangers.lock().set_idle(&self.address, number);
        }
    }

    /// Called when a request has a valid key or token.
    pub(super) fn authenticate(&self) {
        let mut usage = self.lock();
        usage.is_authenticated = true;
        self.turns.close();
        if let Some(number) = usage.number.take() {
            self.strangers.lock().remove(&self.address, number);
        }
    }

    /// Cancelled when the connection is to end: another one took its slot, or it leaves too many refusals unread.
    pub(super) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }

    /// Whether there was a request already.
    pub(super) fn has_request(&self) -> bool {
        self.lock().has_request
    }

    /// Resolves when no request was under way for so long; half as long while its client is a stranger.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let (idle_since, limit) = {
                let usage = self.lock();
                let limit = if usage.is_authenticated { limit } else { limit / 2 };
                ((usage.open == 0).then_some(usage.idle_since), limit)
            };
            match idle_since {
                Some(since) if since.elapsed() >= limit => return,
                Some(since) => tokio::time::sleep_until(since + limit).await,
                None => tokio::time::sleep(limit).await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        let number = self.lock().number.take();
        if let Some(number) = number {
            self.strangers.lock().remove(&self.address, number);
        }
    }
}

/// One of a stranger's [`TURNS`]. It ends when the owner of the request's memory is known, or with its response.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTurn(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl RequestTurn {
    pub(crate) fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A request whose response is not written yet.
#[derive(Debug)]
pub(super) struct OpenRequest {
    connection: Arc<ConnectionState>,
    is_refused: bool,
}

impl OpenRequest {
    /// Marks that there was no memory for its response. Too many unread refusals end the connection.
    pub(super) fn into_refused(mut self) -> Self {
        let refused = {
            let mut usage = self.connection.lock();
            usage.refused += 1;
            usage.refused
        };
        self.is_refused = true;
        if refused > REFUSED_MAX {
            self.connection.evicted.cancel();
        }
        self
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.connection.end_request(self.is_refused);
    }
}

/// Counts the bytes of incomplete heads, for one connection.
#[derive(Debug)]
pub(super) struct HeadMeter(Reservation);

impl HeadMeter {
    pub(super) fn new(account: &Account) -> Self {
        Self(account.reserve())
    }

    /// Whether a head may grow to so many bytes. Until then nothing is read; the deadline for heads continues.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        self.0.poll_grow(cx, bytes.saturating_mul(COST))
    }

    /// Called when the head is complete.
    pub(super) fn clear(&mut self) {
        self.0.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> BudgetOwner {
        BudgetOwner::stranger(Some([192, 0, 2, last].into()))
    }

    fn evicted(connections: &[Arc<ConnectionState>]) -> Vec<usize> {
        (0..connections.len()).filter(|at| connections[*at].evicted().is_cancelled()).collect()
    }

    #[tokio::test]
    async fn the_longest_idle_of_an_address_gives_way() {
        let all = StrangerConnections::new(10_000);
        let mut held: Vec<_> = (0..PER_ADDRESS).map(|_| all.enter(address(1))).collect();
        held[0].authenticate();
        let busy = held[1].begin_request();
        drop(held[2].begin_request());
        held.push(all.enter(address(1)));
        held.push(all.enter(address(2)));
        assert!(evicted(&held).is_empty(), "one of them is no stranger");
        held.push(all.enter(address(1)));
        assert_eq!(evicted(&held), [3], "neither the known one, nor the busy one, nor the last to ask");
        drop(busy);
        drop(held);
        let places = all.lock();
        assert_eq!((places.total, places.by_address.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_request_without_a_key_leaves_a_connection_among_the_strangers() {
        let all = StrangerConnections::new(4);
        let mut held: Vec<_> = [1, 1, 1, 2].map(|last| all.enter(address(last))).into();
        let busy: Vec<_> = held.iter().map(ConnectionState::begin_request).collect();
        held.push(all.enter(address(3)));
        assert_eq!(evicted(&held), [0], "where all are busy, the oldest of the largest address");
        drop(busy);
        assert_eq!(all.lock().total, 4);
        held.push(all.enter(address(3)));
        assert_eq!(evicted(&held).len(), 2);
        drop(held);
        assert_eq!(all.lock().total, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_is_half_for_strangers_and_none_while_a_request_is_open() {
        let all = StrangerConnections::new(10);
        let begun = Instant::now();
        let limit = Duration::from_secs(100);
        let stranger = all.enter(address(1));
        stranger.idle_for(limit).await;
        assert_eq!(begun.elapsed().as_secs(), 50);
        let known = all.enter(address(1));
        known.authenticate();
        let request = known.begin_request();
        assert!(tokio::time::timeout(limit * 5, known.idle_for(limit)).await.is_err());
        drop(request);
        let begun = Instant::now();
        known.idle_for(limit).await;
        assert_eq!(begun.elapsed().as_secs(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_strangers_take_turns_until_their_client_is_known() {
        let all = StrangerConnections::new(10);
        let connection = all.enter(address(1));
        let turn = async || tokio::time::timeout(Duration::from_secs(1), connection.turn()).await;
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(turn().await);
        }
        assert!(turns.iter().all(Result::is_ok));
        assert!(turn().await.is_err(), "it waits");
        turns.pop().and_then(Result::ok).flatten().expect("a turn").end();
        turns.push(turn().await);
        assert!(turn().await.is_err());
        connection.authenticate();
        assert!(turn().await.is_ok());
        connection.evicted().cancel();
        assert!(connection.turn().await.is_none());
    }

    #[tokio::test]
    async fn unread_refusals_end_a_connection() {
        let all = StrangerConnections::new(10);
        let connection = all.enter(address(1));
        for _ in 0..100 {
            drop(connection.begin_request().into_refused());
        }
        let mut unread: Vec<_> =
            (0..REFUSED_MAX).map(|_| connection.begin_request().into_refused()).collect();
        assert!(!connection.evicted().is_cancelled());
        unread.push(connection.begin_request().into_refused());
        assert!(connection.evicted().is_cancelled());
    }
}
