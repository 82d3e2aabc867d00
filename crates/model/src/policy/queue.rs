//! Which queued create is next when a place is free.
//!
//! ```text
//! tenants take turns ──► a: a1 a2 a3      b: b1      c: c1 c2
//!                        start: a1 b1 c1 a2 c2 a3
//! ```
//!
//! Within a tenant the first create is served first; across tenants one create of each starts in turn. A create that
//! does not fit at its provider is not overtaken there while the caller says that the provider is blocked, so a large one has its chance; creates at other
//! providers go on. A tenant whose quota is full keeps its turn while the others go on.

use std::collections::{BTreeSet, VecDeque};

use crate::{QueuePlace, SandboxId, TenantId};

/// How many creates may be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Of all tenants.
    pub total: usize,
    /// Of one tenant.
    pub per_tenant: usize,
}

/// The queue takes no more creates now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    #[error("the queue of this node is full: {max} creates wait")]
    Node { max: usize },
    #[error("this tenant has {max} queued creates, which is the most")]
    Tenant { max: usize },
}

/// A create that waits for a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedCreate {
    pub id: SandboxId,
    pub tenant: TenantId,
    pub provider: String,
}

/// Creates that need not be tried, because an earlier one could not start.
#[derive(Debug, Clone, Default)]
pub struct Blocked {
    /// Their quota is full.
    pub tenants: BTreeSet<TenantId>,
    /// They have no capacity.
    pub providers: BTreeSet<String>,
}

/// The queue of one node.
#[derive(Debug)]
pub struct CreateQueue {
    limits: QueueLimits,
    /// The tenant at the front has the next turn. No line is empty.
    lines: VecDeque<TenantLine>,
}

#[derive(Debug)]
struct TenantLine {
    tenant: TenantId,
    waiting: VecDeque<WaitingCreate>,
}

#[derive(Debug)]
struct WaitingCreate {
    create: QueuedCreate,
    /// Whether its lease is stored. Until then it keeps its position and cannot start.
    is_recorded: bool,
}

impl CreateQueue {
    /// An empty queue.
    #[must_use]
    pub const fn new(limits: QueueLimits) -> Self {
        Self { limits, lines: VecDeque::new() }
    }

    /// The number of creates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// Whether it has no create.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a create that is not stored yet, within the limits.
    pub fn join(&mut self, create: QueuedCreate) -> Result<(), QueueFull> {
        if self.len() >= self.limits.total {
            return Err(QueueFull::Node { max: self.limits.total });
        }
        let own = self.line(&create.tenant).map_or(0, |line| line.waiting.len());
        if own >= self.limits.per_tenant {
            return Err(QueueFull::Tenant { max: self.limits.per_tenant });
        }
        self.add(WaitingCreate { create, is_recorded: false });
        Ok(())
    }

    /// Adds a create of an earlier server, which the limits cannot refuse.
    pub fn rejoin(&mut self, create: QueuedCreate) {
        self.add(WaitingCreate { create, is_recorded: true });
    }

    /// The create is stored: it can start.
    pub fn recorded(&mut self, id: &SandboxId) {
        let all = self.lines.iter_mut().flat_map(|line| &mut line.waiting);
        all.filter(|one| one.create.id == *id).for_each(|one| one.is_recorded = true);
    }

    /// Removes a create that does not start: it was cancelled, or timed out. Its tenant keeps its turn.
    pub fn leave(&mut self, id: &SandboxId) -> bool {
        let Some(at) = self.take(id) else { return false };
        if self.lines[at].waiting.is_empty() {
            self.lines.remove(at);
        }
        true
    }

    /// Removes a create that starts. The other tenants have their turns first now.
    pub fn started(&mut self, id: &SandboxId) {
        let Some(at) = self.take(id) else { return };
        if let Some(line) = self.lines.remove(at)
            && !line.waiting.is_empty()
        {
            self.lines.push_back(line);
        }
    }

    /// The create to start next.
    #[must_use]
    pub fn next(&self, blocked: &Blocked) -> Option<&QueuedCreate> {
        let lines = self.lines.iter().filter(|line| !blocked.tenants.contains(&line.tenant));
        let mut heads = lines.filter_map(|line| {
            line.waiting.iter().find(|one| !blocked.providers.contains(&one.create.provider))
        });
        heads.find(|head| head.is_recorded).map(|head| &head.create)
    }

    /// The place of a create.
    #[must_use]
    pub fn place(&self, id: &SandboxId) -> Option<QueuePlace> {
        let (turn, line) = self
            .lines
            .iter()
            .enumerate()
            .find(|(_, line)| line.waiting.iter().any(|one| one.create.id == *id))?;
        let own = line.waiting.iter().find(|one| one.create.id == *id)?;
        let provider = &own.create.provider;
        let before = line.at(provider).position(|one| one.create.id == *id)?;
        let others = self.lines.iter().enumerate().filter(|(other, _)| *other != turn);
        let ahead = others.map(|(other, line)| {
            // A tenant whose turn is earlier starts one more before this create.
            let most = before + usize::from(other < turn);
            line.at(provider).take(most).count()
        });
        Some(place(before, before + ahead.sum::<usize>()))
    }

    /// The places of all creates that are stored.
    #[must_use]
    pub fn places(&self) -> Vec<(QueuedCreate, QueuePlace)> {
        let providers: BTreeSet<&str> = self.all().map(|one| one.create.provider.as_str()).collect();
        providers.into_iter().flat_map(|provider| self.places_at(provider)).collect()
    }

    fn places_at(&self, provider: &str) -> Vec<(QueuedCreate, QueuePlace)> {
        let mut order: Vec<(usize, usize, &WaitingCreate)> = Vec::new();
        for (turn, line) in self.lines.iter().enumerate() {
            order.extend(line.at(provider).enumerate().map(|(round, one)| (round, turn, one)));
        }
        order.sort_by_key(|(round, turn, _)| (*round, *turn));
        let placed = order.into_iter().enumerate();
        let stored = placed.filter(|(_, (.., one))| one.is_recorded);
        stored.map(|(ahead, (round, _, one))| (one.create.clone(), place(round, ahead))).collect()
    }

    fn all(&self) -> impl Iterator<Item = &WaitingCreate> {
        self.lines.iter().flat_map(|line| &line.waiting)
    }

    fn line(&self, tenant: &TenantId) -> Option<&TenantLine> {
        self.lines.iter().find(|line| line.tenant == *tenant)
    }

    fn add(&mut self, one: WaitingCreate) {
        match self.lines.iter_mut().find(|line| line.tenant == one.create.tenant) {
            Some(line) => line.waiting.push_back(one),
            None => {
                let tenant = one.create.tenant.clone();
                self.lines.push_back(TenantLine { tenant, waiting: VecDeque::from([one]) });
            }
        }
    }

    /// Removes a create and returns the index of its line, which may be empty now.
    fn take(&mut self, id: &SandboxId) -> Option<usize> {
        self.lines.iter_mut().position(|line| {
            let at = line.waiting.iter().position(|one| one.create.id == *id);
            at.and_then(|at| line.waiting.remove(at)).is_some()
        })
    }
}

impl TenantLine {
    /// Its creates at one provider, in order.
    fn at(&self, provider: &str) -> impl Iterator<Item = &WaitingCreate> {
        self.waiting.iter().filter(move |one| one.create.provider == provider)
    }
}

/// LIMIT: the queue is far shorter than the type allows.
fn place(before: usize, ahead: usize) -> QueuePlace {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    QueuePlace { position: number(before).saturating_add(1), ahead: number(ahead) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const ROOMY: QueueLimits = QueueLimits { total: 10_000, per_tenant: 10_000 };

    /// Ids that are easy to read: `a…` of tenant `a…`.
    fn create(tenant: u8, number: u16, provider: &str) -> QueuedCreate {
        let letter = char::from(b'a' + tenant);
        let pad = |text: String| format!("{text:0<20}");
        QueuedCreate {
            id: pad(format!("{letter}{}", number + 1_000)).parse().expect("an id"),
            tenant: pad(letter.to_string()).parse().expect("an id"),
            provider: provider.to_owned(),
        }
    }

    fn queue_of(creates: impl IntoIterator<Item = QueuedCreate>) -> CreateQueue {
        let mut queue = CreateQueue::new(ROOMY);
        for create in creates {
            let id = create.id.clone();
            queue.join(create).expect("within the limits");
            queue.recorded(&id);
        }
        queue
    }

    /// Starts creates until none can start.
    fn drain(queue: &mut CreateQueue, blocked: &Blocked) -> Vec<QueuedCreate> {
        let mut started = Vec::new();
        while let Some(next) = queue.next(blocked).cloned() {
            queue.started(&next.id);
            started.push(next);
        }
        started
    }

    #[test]
    fn tenants_take_turns_and_each_is_served_in_order() {
        let (a, b, c) = (|n| create(0, n, "p"), |n| create(1, n, "p"), |n| create(2, n, "p"));
        let mut queue = queue_of([a(1), a(2), a(3), b(1), c(1), c(2)]);
        assert_eq!(drain(&mut queue, &Blocked::default()), [a(1), b(1), c(1), a(2), c(2), a(3)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_tenant_with_a_full_quota_keeps_its_turn() {
        let (a, b) = (|n| create(0, n, "p"), |n| create(1, n, "p"));
        let mut queue = queue_of([a(1), b(1), b(2)]);
        let full = Blocked { tenants: BTreeSet::from([a(1).tenant]), ..Blocked::default() };
        assert_eq!(drain(&mut queue, &full), [b(1), b(2)]);
        assert_eq!(queue.next(&Blocked::default()), Some(&a(1)));
    }

    #[test]
    fn a_provider_without_capacity_blocks_only_its_own_creates() {
        let mut queue = queue_of([create(0, 1, "full"), create(0, 2, "free"), create(1, 1, "full")]);
        let full = Blocked { providers: BTreeSet::from(["full".to_owned()]), ..Blocked::default() };
        assert_eq!(drain(&mut queue, &full), [create(0, 2, "free")]);
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn a_create_that_is_not_stored_keeps_its_position_and_does_not_start() {
        let (a, b) = (|n| create(0, n, "p"), |n| create(1, n, "p"));
        let mut queue = CreateQueue::new(ROOMY);
        queue.join(a(1)).expect("room");
        queue.rejoin(a(2));
        assert_eq!(queue.next(&Blocked::default()), None, "it would overtake");
        queue.rejoin(b(1));
        assert_eq!(queue.next(&Blocked::default()), Some(&b(1)));
        queue.recorded(&a(1).id);
        assert_eq!(queue.next(&Blocked::default()), Some(&a(1)));
    }

    #[test]
    fn the_queue_is_limited_per_tenant_and_in_all() {
        let mut queue = CreateQueue::new(QueueLimits { total: 3, per_tenant: 2 });
        queue.join(create(0, 1, "p")).expect("room");
        queue.join(create(0, 2, "p")).expect("room");
        assert_eq!(queue.join(create(0, 3, "p")), Err(QueueFull::Tenant { max: 2 }));
        queue.join(create(1, 1, "p")).expect("room");
        assert_eq!(queue.join(create(2, 1, "p")), Err(QueueFull::Node { max: 3 }));
        assert!(queue.leave(&create(0, 1, "p").id));
        assert!(!queue.leave(&create(0, 1, "p").id));
        queue.join(create(2, 1, "p")).expect("room again");
        queue.rejoin(create(0, 4, "p"));
        queue.rejoin(create(0, 5, "p"));
        assert_eq!(queue.len(), 5, "creates of an earlier server are never refused");
    }

    /// What may happen to a queue.
    #[derive(Debug, Clone)]
    enum Happening {
        Join { tenant: u8, provider: u8 },
        Leave { which: usize },
        Start,
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            4 => (0..5_u8, 0..2_u8).prop_map(|(tenant, provider)| Happening::Join { tenant, provider }),
            1 => any::<usize>().prop_map(|which| Happening::Leave { which }),
            3 => Just(Happening::Start),
        ]
    }

    /// Applies happenings; returns what started and what is left, each in order of arrival.
    fn run(happenings: Vec<Happening>) -> (CreateQueue, Vec<QueuedCreate>, Vec<QueuedCreate>) {
        let mut queue = CreateQueue::new(ROOMY);
        let (mut left, mut started) = (Vec::new(), Vec::new());
        for (number, happening) in (0..).zip(happenings) {
            match happening {
                Happening::Join { tenant, provider } => {
                    let create = create(tenant, number, if provider == 0 { "p" } else { "q" });
                    queue.join(create.clone()).expect("room");
                    queue.recorded(&create.id);
                    left.push(create);
                }
                Happening::Leave { which } if !left.is_empty() => {
                    let gone = left.remove(which % left.len());
                    assert!(queue.leave(&gone.id));
                }
                Happening::Leave { .. } => {}
                Happening::Start => {
                    let next = queue.next(&Blocked::default()).cloned();
                    assert_eq!(next.is_some(), !left.is_empty(), "a create starts if one waits");
                    let Some(next) = next else { continue };
                    queue.started(&next.id);
                    left.retain(|create| *create != next);
                    started.push(next);
                }
            }
        }
        (queue, started, left)
    }

    proptest! {
        #[test]
        fn each_tenant_is_served_in_order_and_none_is_lost(happenings in prop::collection::vec(happening(), 0..200)) {
            let (mut queue, started, left) = run(happenings);
            prop_assert_eq!(queue.len(), left.len());
            let mut all = started;
            all.extend(drain(&mut queue, &Blocked::default()));
            let mut last: BTreeMap<TenantId, SandboxId> = BTreeMap::new();
            for create in &all {
                // The number in the id is the time of arrival.
                let before = last.insert(create.tenant.clone(), create.id.clone());
                prop_assert!(before.is_none_or(|before| before < create.id), "{:?}", create);
            }
            for create in left {
                prop_assert_eq!(all.iter().filter(|one| **one == create).count(), 1);
            }
        }

        #[test]
        fn no_tenant_waits_longer_than_one_turn_of_each_other(lengths in prop::collection::vec(1..20_u16, 1..8)) {
            let creates = (0..).zip(&lengths).flat_map(|(tenant, length)| {
                (0..*length).map(move |number| create(tenant, number, "p"))
            });
            let mut queue = queue_of(creates);
            let order = drain(&mut queue, &Blocked::default());
            for tenant in 0..u8::try_from(lengths.len()).expect("few") {
                let tenant = create(tenant, 0, "p").tenant;
                let turns: Vec<usize> =
                    order.iter().enumerate().filter(|(_, one)| one.tenant == tenant).map(|(at, _)| at).collect();
                prop_assert!(turns[0] < lengths.len());
                prop_assert!(turns.windows(2).all(|pair| pair[1] - pair[0] <= lengths.len()), "{:?}", turns);
            }
        }

        #[test]
        fn places_say_in_which_order_creates_start(happenings in prop::collection::vec(happening(), 0..120)) {
            let (mut queue, ..) = run(happenings);
            let places = queue.places();
            prop_assert_eq!(places.len(), queue.len());
            for (create, place) in &places {
                prop_assert_eq!(queue.place(&create.id), Some(*place));
            }
            for provider in ["p", "q"] {
                let other = if provider == "p" { "q" } else { "p" };
                let only = Blocked { providers: BTreeSet::from([other.to_owned()]), ..Blocked::default() };
                // As if the other provider had none: its creates must not take turns here.
                let gone: Vec<_> = places.iter().filter(|(one, _)| one.provider == other).collect();
                let mut alone = CreateQueue::new(ROOMY);
                for line in &queue.lines {
                    line.at(provider).for_each(|one| alone.rejoin(one.create.clone()));
                }
                let mut of_tenant: BTreeMap<TenantId, u32> = BTreeMap::new();
                for (ahead, create) in (0..).zip(drain(&mut alone, &only)) {
                    let position = of_tenant.entry(create.tenant.clone()).or_default();
                    *position += 1;
                    let said = QueuePlace { position: *position, ahead };
                    prop_assert!(places.contains(&(create, said)), "{:?} of {:?}", said, gone);
                }
            }
            drain(&mut queue, &Blocked::default());
            prop_assert!(queue.is_empty());
        }
    }
}
