//! The kernel objects of one link besides the link itself, and the changes from one state to another.
//!
//! A simple sandbox (open or closed, without limits) has one or two elements and nothing else.

use atoll_model::policy::egress::ranges::{Ranges, Ranges4, Ranges6};
use atoll_model::policy::egress::{DirectMode, Dns, Egress};

use crate::address::SandboxLink;
use crate::netlink::nft::{Edge, IpVersion, SetKind, Transaction, name_key};
use crate::ruleset::{NAMED, OPEN, OWN, OWN6, PROXIED, REFUSE, SETS, SETS6, Sets, Why};

/// LIMIT: destinations with a budget per sandbox; further ones are refused.
const BUDGETED: u32 = 8_192;

/// The part of a policy that the kernel enforces for a link.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Installed {
    /// May send to all public addresses.
    pub(super) open: bool,
    /// May use the gate although it is not open.
    pub(super) named: bool,
    /// May send through a proxy only, by the gate.
    pub(super) proxied: bool,
    /// May send to these addresses.
    pub(super) ranges: Option<Ranges4>,
    pub(super) connections: Option<u32>,
    pub(super) budget: Option<u64>,
    pub(super) up: Option<u64>,
    pub(super) down: Option<u64>,
    /// The IPv6 part; `None` unless the policy names IPv6 ranges.
    pub(super) six: Option<Ipv6Elements>,
    /// Whether IPv6 addresses and routes are set. After a restart this is unknown, and they are set again.
    pub(super) wired: bool,
}

/// The same for IPv6. It is never open or named: IPv6 is limited to the listed ranges.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Ipv6Elements {
    pub(super) ranges: Ranges6,
    pub(super) connections: Option<u32>,
    pub(super) budget: Option<u64>,
}

impl Installed {
    pub(super) fn of(egress: &Egress) -> Self {
        let proxied = egress.is_proxied();
        let open = egress.direct_mode == DirectMode::Open && !proxied;
        Self {
            open,
            named: !open && (egress.dns != Dns::Closed || proxied),
            proxied,
            ranges: (egress.direct_mode == DirectMode::Listed && !proxied).then(|| egress.direct.clone()),
            connections: egress.limits.connections,
            budget: egress.limits.bytes_per_destination,
            up: egress.limits.up_bytes_per_s,
            down: egress.limits.down_bytes_per_s,
            six: (!egress.direct6.is_empty()).then(|| Ipv6Elements {
                ranges: egress.direct6.clone(),
                connections: egress.limits.connections,
                budget: egress.limits.bytes_per_destination,
            }),
            wired: false,
        }
    }

    /// After a restart it is known that a limit exists, but not its value. No policy has a limit of zero.
    pub(super) const UNKNOWN: u64 = 0;
}

/// Changes that are applied one by one.
type Steps<'a> = Vec<Box<dyn Fn(&mut Transaction<'_>) + 'a>>;

/// The names and keys of one link.
pub(super) struct Keys {
    pub(super) name: [u8; 16],
    pub(super) own: [u8; 20],
    pub(super) own6: [u8; 32],
    pub(super) v4: Objects<4>,
    pub(super) v6: Objects<16>,
}

/// The objects of a link for one version of IP.
pub(super) struct Objects<const N: usize> {
    version: IpVersion,
    sets: &'static Sets,
    name: [u8; 16],
    pub(super) address: [u8; N],
    pub(super) ranges: String,
    pub(super) list: String,
    pub(super) quotas: String,
    pub(super) budget: String,
}

impl Keys {
    pub(super) fn of(link: SandboxLink) -> Self {
        let name = name_key(&link.name());
        let (address, address6) = (link.address.octets(), link.address6().octets());
        let mut own = [0u8; 20];
        own[..16].copy_from_slice(&name);
        own[16..].copy_from_slice(&address);
        let mut own6 = [0u8; 32];
        own6[..16].copy_from_slice(&name);
        own6[16..].copy_from_slice(&address6);
        let object = |kind: char| format!("{kind}{}", link.number);
        let v4 = Objects {
            version: IpVersion::V4,
            sets: &SETS,
            name,
            address,
            ranges: object('d'),
            list: object('c'),
            quotas: object('q'),
            budget: object('b'),
        };
        let v6 = Objects {
            version: IpVersion::V6,
            sets: &SETS6,
            name,
            address: address6,
            ranges: object('f'),
            list: object('e'),
            quotas: object('r'),
            budget: object('g'),
        };
        Self { name, own, own6, v4, v6 }
    }

    /// Allows the link to send at all.
    pub(super) fn admit(&self, transaction: &mut Transaction<'_>) {
        transaction.add(OWN, &self.own);
    }

    pub(super) fn expel(&self, transaction: &mut Transaction<'_>) {
        transaction.remove(OWN, &self.own);
    }

    /// Adds the changes from one state to the other.
    pub(super) fn change(&self, transaction: &mut Transaction<'_>, from: &Installed, to: &Installed) {
        self.change_member(transaction, OPEN, from.open, to.open);
        self.change_member(transaction, NAMED, from.named, to.named);
        self.change_member(transaction, PROXIED, from.proxied, to.proxied);
        self.v4.change_ranges(transaction, from.ranges.as_ref(), to.ranges.as_ref());
        self.v4.change_connections(transaction, from.connections, to.connections);
        self.v4.change_budget(transaction, from.budget, to.budget);
        self.change_six(transaction, from.six.as_ref(), to.six.as_ref());
    }

    fn change_six(
        &self,
        transaction: &mut Transaction<'_>,
        from: Option<&Ipv6Elements>,
        to: Option<&Ipv6Elements>,
    ) {
        match (from, to) {
            (None, Some(_)) => transaction.add(OWN6, &self.own6),
            (Some(_), None) => transaction.remove(OWN6, &self.own6),
            _ => {}
        }
        self.v6.change_ranges(transaction, from.map(|six| &six.ranges), to.map(|six| &six.ranges));
        let connections = |six: Option<&Ipv6Elements>| six.and_then(|six| six.connections);
        self.v6.change_connections(transaction, connections(from), connections(to));
        let budget = |six: Option<&Ipv6Elements>| six.and_then(|six| six.budget);
        self.v6.change_budget(transaction, budget(from), budget(to));
    }

    fn change_member(&self, transaction: &mut Transaction<'_>, set: &str, from: bool, to: bool) {
        match (from, to) {
            (false, true) => transaction.add(set, &self.name),
            (true, false) => transaction.remove(set, &self.name),
            _ => {}
        }
    }

    /// Removes everything that a link can have, in steps that each tolerate missing parts.
    pub(super) fn purges(&self) -> Steps<'_> {
        let mut steps: Steps<'_> = vec![
            Box::new(|step| self.expel(step)),
            Box::new(|step| step.remove(OWN6, &self.own6)),
            Box::new(|step| step.remove(OPEN, &self.name)),
            Box::new(|step| step.remove(NAMED, &self.name)),
            Box::new(|step| step.remove(PROXIED, &self.name)),
        ];
        self.v4.purges(&mut steps);
        self.v6.purges(&mut steps);
        steps
    }
}

impl<const N: usize> Objects<N> {
    fn change_ranges<T: Edge>(
        &self,
        transaction: &mut Transaction<'_>,
        from: Option<&Ranges<T>>,
        to: Option<&Ranges<T>>,
    ) {
        match (from, to) {
            (None, Some(to)) => {
                transaction.add_set(&self.ranges, self.version, SetKind::Ranges);
                transaction.add_ranges(&self.ranges, to.iter());
                transaction.add_chain(&self.list);
                transaction.add_rule_for_listed(&self.list, self.version, &self.ranges, self.sets.pass);
                transaction.add_jump(self.sets.listed, &self.name, &self.list);
            }
            (Some(from), Some(to)) if from != to => {
                transaction.flush(&self.ranges);
                transaction.add_ranges(&self.ranges, to.iter());
            }
            (Some(_), None) => {
                transaction.remove(self.sets.listed, &self.name);
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
            transaction.remove(self.sets.limited, &self.address);
        }
        if let Some(count) = to {
            transaction.add_connection_limit(self.sets.limited, &self.address, count);
        }
    }

    /// A new budget starts at zero: it does not include what was used of the old one.
    fn change_budget(&self, transaction: &mut Transaction<'_>, from: Option<u64>, to: Option<u64>) {
        if from == to {
            return;
        }
        if from.is_some() {
            transaction.remove(self.sets.budgets, &self.name);
            self.remove_budget(transaction);
        }
        if let Some(bytes) = to {
            transaction.add_set(&self.quotas, self.version, SetKind::Quotas(BUDGETED));
            transaction.add_chain(&self.budget);
            transaction.add_rule_for_quota(&self.budget, self.version, &self.quotas, bytes);
            transaction.add_rule_for_mark(&self.budget, Why::Budget as u32, REFUSE);
            transaction.add_jump(self.sets.budgets, &self.name, &self.budget);
        }
    }

    /// Removes chain and set of the list; nothing may refer to them any more.
    fn remove_list(&self, transaction: &mut Transaction<'_>) {
        transaction.remove_chain(&self.list);
        transaction.remove_set(&self.ranges);
    }

    /// Removes chain and set of the budget; nothing may refer to them any more.
    fn remove_budget(&self, transaction: &mut Transaction<'_>) {
        transaction.remove_chain(&self.budget);
        transaction.remove_set(&self.quotas);
    }

    fn purges<'a>(&'a self, steps: &mut Steps<'a>) {
        steps.push(Box::new(|step| step.remove(self.sets.listed, &self.name)));
        steps.push(Box::new(|step| step.remove(self.sets.budgets, &self.name)));
        steps.push(Box::new(|step| step.remove(self.sets.limited, &self.address)));
        steps.push(Box::new(|step| self.remove_list(step)));
        steps.push(Box::new(|step| self.remove_budget(step)));
    }
}
