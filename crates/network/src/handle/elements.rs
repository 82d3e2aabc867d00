//! What the kernel holds for one link beside the link itself, and how to get from one state of it to another.
//!
//! A plain sandbox (open or closed, without limits) has one or two elements and nothing else.

use atoll_model::policy::egress::ranges::Ranges4;
use atoll_model::policy::egress::{Dns, Door, Egress};

use crate::address::Link;
use crate::netlink::nft::{Kind, Transaction, name_key};
use crate::ruleset::{BUDGETS, LIMITED, LISTED, NAMED, OPEN, OWN, PASS, REFUSE, Why};

/// LIMIT: destinations with a budget of one sandbox; further ones are refused.
const BUDGETED: u32 = 8_192;

/// What of a policy the kernel enforces for a link.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Installed {
    /// May send to everything public.
    pub(super) open: bool,
    /// May use the gate though it is not open.
    pub(super) named: bool,
    /// May send to these.
    pub(super) ranges: Option<Ranges4>,
    pub(super) connections: Option<u32>,
    pub(super) budget: Option<u64>,
    pub(super) up: Option<u64>,
    pub(super) down: Option<u64>,
}

impl Installed {
    pub(super) fn of(egress: &Egress) -> Self {
        let open = egress.door == Door::Open;
        Self {
            open,
            named: !open && egress.dns != Dns::Closed,
            ranges: (egress.door == Door::Listed).then(|| egress.direct.clone()),
            connections: egress.limits.connections,
            budget: egress.limits.bytes_per_destination,
            up: egress.limits.up_bytes_per_s,
            down: egress.limits.down_bytes_per_s,
        }
    }

    /// After a restart it is known that something is there, not how much. No policy asks for nothing at all.
    pub(super) const UNKNOWN: u64 = 0;
}

/// The names and keys of one link.
pub(super) struct Keys {
    pub(super) name: [u8; 16],
    pub(super) own: [u8; 20],
    pub(super) address: [u8; 4],
    pub(super) ranges: String,
    pub(super) list: String,
    pub(super) quotas: String,
    pub(super) budget: String,
}

impl Keys {
    pub(super) fn of(link: Link) -> Self {
        let name = name_key(&link.name());
        let address = link.address.octets();
        let mut own = [0u8; 20];
        own[..16].copy_from_slice(&name);
        own[16..].copy_from_slice(&address);
        let object = |kind: char| format!("{kind}{}", link.number);
        Self {
            name,
            own,
            address,
            ranges: object('d'),
            list: object('c'),
            quotas: object('q'),
            budget: object('b'),
        }
    }

    /// Whether the link may send at all.
    pub(super) fn admit(&self, transaction: &mut Transaction<'_>) {
        transaction.add(OWN, &self.own);
    }

    pub(super) fn expel(&self, transaction: &mut Transaction<'_>) {
        transaction.remove(OWN, &self.own);
    }

    /// Everything that leads from one state to the other.
    pub(super) fn change(&self, transaction: &mut Transaction<'_>, from: &Installed, to: &Installed) {
        self.change_member(transaction, OPEN, from.open, to.open);
        self.change_member(transaction, NAMED, from.named, to.named);
        self.change_ranges(transaction, from.ranges.as_ref(), to.ranges.as_ref());
        self.change_connections(transaction, from.connections, to.connections);
        self.change_budget(transaction, from.budget, to.budget);
    }

    fn change_member(&self, transaction: &mut Transaction<'_>, set: &str, from: bool, to: bool) {
        match (from, to) {
            (false, true) => transaction.add(set, &self.name),
            (true, false) => transaction.remove(set, &self.name),
            _ => {}
        }
    }

    fn change_ranges(&self, transaction: &mut Transaction<'_>, from: Option<&Ranges4>, to: Option<&Ranges4>) {
        match (from, to) {
            (None, Some(to)) => {
                transaction.add_set(&self.ranges, Kind::Ranges);
                transaction.add_ranges(&self.ranges, to.iter());
                transaction.add_chain(&self.list);
                transaction.add_rule_for_listed(&self.list, &self.ranges, PASS);
                transaction.add_jump(LISTED, &self.name, &self.list);
            }
            (Some(from), Some(to)) if from != to => {
                transaction.flush(&self.ranges);
                transaction.add_ranges(&self.ranges, to.iter());
            }
            (Some(_), None) => {
                transaction.remove(LISTED, &self.name);
                self.remove_list(transaction);
            }
            _ => {}
        }
    }

    fn change_connections(&self, transaction: &mut Transaction<'_>, from: Option<u32>, to: Option<u32>) {
        if from == to {
            return;
        }
        if from.is_some() {
            transaction.remove(LIMITED, &self.address);
        }
        if let Some(count) = to {
            transaction.add_connection_limit(LIMITED, &self.address, count);
        }
    }

    /// Another budget begins anew: what was spent of the old one is not known to it.
    fn change_budget(&self, transaction: &mut Transaction<'_>, from: Option<u64>, to: Option<u64>) {
        if from == to {
            return;
        }
        if from.is_some() {
            transaction.remove(BUDGETS, &self.name);
            self.remove_budget(transaction);
        }
        if let Some(bytes) = to {
            transaction.add_set(&self.quotas, Kind::Quotas(BUDGETED));
            transaction.add_chain(&self.budget);
            transaction.add_rule_for_quota(&self.budget, &self.quotas, bytes);
            transaction.add_rule_for_mark(&self.budget, Why::Budget as u32, REFUSE);
            transaction.add_jump(BUDGETS, &self.name, &self.budget);
        }
    }

    /// Chain and set of the list, once nothing leads there.
    pub(super) fn remove_list(&self, transaction: &mut Transaction<'_>) {
        transaction.remove_chain(&self.list);
        transaction.remove_set(&self.ranges);
    }

    /// Chain and set of the budget, once nothing leads there.
    pub(super) fn remove_budget(&self, transaction: &mut Transaction<'_>) {
        transaction.remove_chain(&self.budget);
        transaction.remove_set(&self.quotas);
    }
}
