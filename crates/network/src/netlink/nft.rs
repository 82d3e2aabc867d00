//! NETLINK_NETFILTER messages: atomic changes of nftables sets and of the few objects of single sandboxes, and dumps.
//!
//! Tables, base chains and shared rules are not made here; those are static text (see `ruleset`).

use std::time::Duration;

use atoll_model::policy::egress::ranges::Bound;

use super::{Attrs, Batch, F_APPEND, F_CREATE, F_DUMP, Message, text};

mod read;

pub(crate) use read::{ElementCounter, read_chain, read_counted, read_keys, read_set};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWCHAIN: u16 = SUBSYSTEM << 8 | 3;
const GETCHAIN: u16 = SUBSYSTEM << 8 | 4;
const DELCHAIN: u16 = SUBSYSTEM << 8 | 5;
const NEWRULE: u16 = SUBSYSTEM << 8 | 6;
const NEWSET: u16 = SUBSYSTEM << 8 | 9;
const GETSET: u16 = SUBSYSTEM << 8 | 10;
const DELSET: u16 = SUBSYSTEM << 8 | 11;
const NEWSETELEM: u16 = SUBSYSTEM << 8 | 12;
const GETSETELEM: u16 = SUBSYSTEM << 8 | 13;
const DELSETELEM: u16 = SUBSYSTEM << 8 | 14;

const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEM: u16 = 1;
const ELEM_KEY: u16 = 1;
const ELEM_DATA: u16 = 2;
const ELEM_FLAGS: u16 = 3;
const ELEM_TIMEOUT: u16 = 4;
const ELEM_EXPR: u16 = 7;
const ELEM_INTERVAL_END: u32 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DESC: u16 = 9;
const SET_ID: u16 = 10;
const DESC_SIZE: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;

/// The type numbers of addresses in the `nft` program.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const FLAG_INTERVAL: u32 = 0x4;
const FLAG_EVAL: u32 = 0x20;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;
const VERDICT_REGISTER: u32 = 0;
const REGISTER: u32 = 1;
const CT_DST_IP: u32 = 20;
const CT_DST_IP6: u32 = 22;
const CT_ORIGINAL: u8 = 0;
const META_MARK: u32 = 3;
const DYNSET_UPDATE: u32 = 1;
const CONNLIMIT_OVER: u32 = 1;

const FAMILY_INET: u8 = 1;
const GENERAL_HEADER: usize = 4;
/// LIMIT: a nested attribute has at most 64 KiB; an IPv4 range takes about fifty bytes, an IPv6 range about seventy.
const RANGES_AT_ONCE: usize = 500;

/// The version of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

/// The first or last address of a range.
pub(crate) trait Edge: Bound {
    type Bytes: AsRef<[u8]>;
    fn bytes(self) -> Self::Bytes;
}

impl Edge for u32 {
    type Bytes = [u8; 4];
    fn bytes(self) -> [u8; 4] {
        self.to_be_bytes()
    }
}

impl Edge for u128 {
    type Bytes = [u8; 16];
    fn bytes(self) -> [u8; 16] {
        self.to_be_bytes()
    }
}

/// The purpose of a set of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetKind {
    /// Ranges, written by this program.
    Ranges,
    /// Addresses with a quota each, written by packets; at most this many.
    Quotas(u32),
}

/// The target of a rule or a verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleTarget<'a> {
    Goto(&'a str),
    Return,
}

/// Changes of one table: all of them or none.
pub(crate) struct Transaction<'a> {
    table: &'a str,
    batch: Batch,
    ids: u32,
    count: usize,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(table: &'a str) -> Self {
        let mut batch = Batch::new();
        batch.message(BATCH_BEGIN, 0, &general_header(0, SUBSYSTEM));
        Self { table, batch, ids: 0, count: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Completes the batch. The kernel acknowledges the last change, and reports an error for each refused one.
    pub(crate) fn finish(mut self) -> Batch {
        self.batch.acknowledge_last();
        self.batch.message(BATCH_END, 0, &general_header(0, SUBSYSTEM));
        self.batch
    }

    pub(crate) fn add(&mut self, set: &str, key: &[u8]) {
        self.element(NEWSETELEM, set, key, |_| {});
    }

    pub(crate) fn remove(&mut self, set: &str, key: &[u8]) {
        self.element(DELSETELEM, set, key, |_| {});
    }

    /// Adds an element that expires.
    pub(crate) fn add_for(&mut self, set: &str, key: &[u8], ttl: Duration) {
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.element(NEWSETELEM, set, key, |batch| batch.attr(ELEM_TIMEOUT, &millis.to_be_bytes()));
    }

    /// Adds an element of a verdict map that jumps to a chain.
    pub(crate) fn add_jump(&mut self, map: &str, key: &[u8], chain: &str) {
        self.element(NEWSETELEM, map, key, |batch| {
            let data = batch.open(ELEM_DATA);
            put_verdict(batch, JUMP, Some(chain));
            batch.close(data);
        });
    }

    /// Adds an element that matches only while there are more than `count` connections.
    pub(crate) fn add_connection_limit(&mut self, set: &str, key: &[u8], count: u32) {
        self.element(NEWSETELEM, set, key, |batch| {
            let expression = batch.open(ELEM_EXPR);
            batch.attr_name(EXPR_NAME, "connlimit");
            let data = batch.open(EXPR_DATA);
            batch.attr(1, &count.to_be_bytes());
            batch.attr(2, &CONNLIMIT_OVER.to_be_bytes());
            batch.close(data);
            batch.close(expression);
        });
    }

    /// Adds ranges, including first and last address, to a set of ranges.
    pub(crate) fn add_ranges<T: Edge>(&mut self, set: &str, ranges: impl IntoIterator<Item = (T, T)>) {
        let ranges: Vec<_> = ranges.into_iter().collect();
        for chunk in ranges.chunks(RANGES_AT_ONCE) {
            self.elements(NEWSETELEM, set);
            let elements = self.batch.open(LIST_ELEMENTS);
            for &(first, last) in chunk {
                put_element(&mut self.batch, first.bytes().as_ref(), |_| {});
                // The end is the first address after the range; the last address of all has none.
                if let Some(end) = last.after() {
                    put_element(&mut self.batch, end.bytes().as_ref(), |batch| {
                        batch.attr(ELEM_FLAGS, &ELEM_INTERVAL_END.to_be_bytes());
                    });
                }
            }
            self.batch.close(elements);
        }
    }

    /// Removes every element.
    pub(crate) fn flush(&mut self, set: &str) {
        self.elements(DELSETELEM, set);
    }

    pub(crate) fn add_set(&mut self, name: &str, version: IpVersion, kind: SetKind) {
        self.ids += 1;
        self.message(NEWSET);
        self.batch.attr_name(SET_TABLE, self.table);
        self.batch.attr_name(SET_NAME, name);
        let (flags, size) = match kind {
            SetKind::Ranges => (FLAG_INTERVAL, None),
            SetKind::Quotas(size) => (FLAG_EVAL, Some(size)),
        };
        self.batch.attr(SET_FLAGS, &flags.to_be_bytes());
        let (key, len) = match version {
            IpVersion::V4 => (TYPE_IPV4, 4u32),
            IpVersion::V6 => (TYPE_IPV6, 16),
        };
        self.batch.attr(SET_KEY_TYPE, &key.to_be_bytes());
        self.batch.attr(SET_KEY_LEN, &len.to_be_bytes());
        self.batch.attr(SET_ID, &self.ids.to_be_bytes());
        if let Some(size) = size {
            let desc = self.batch.open(SET_DESC);
            self.batch.attr(DESC_SIZE, &size.to_be_bytes());
            self.batch.close(desc);
        }
    }

    pub(crate) fn remove_set(&mut self, name: &str) {
        self.message(DELSET);
        self.batch.attr_name(SET_TABLE, self.table);
        self.batch.attr_name(SET_NAME, name);
    }

    pub(crate) fn add_chain(&mut self, name: &str) {
        self.message(NEWCHAIN);
        self.batch.attr_name(CHAIN_TABLE, self.table);
        self.batch.attr_name(CHAIN_NAME, name);
    }

    /// Removes a chain with its rules. No rule may jump to it any more.
    pub(crate) fn remove_chain(&mut self, name: &str) {
        self.message(DELCHAIN);
        self.batch.attr_name(CHAIN_TABLE, self.table);
        self.batch.attr_name(CHAIN_NAME, name);
    }

    /// `ct original ip daddr @set goto chain`
    pub(crate) fn add_rule_for_listed(&mut self, chain: &str, version: IpVersion, set: &str, to: &str) {
        self.rule(chain, |batch| {
            put_original_destination(batch, version);
            put_expression(batch, "lookup", |batch| {
                batch.attr_name(1, set);
                batch.attr(2, &REGISTER.to_be_bytes());
            });
            put_immediate_verdict(batch, RuleTarget::Goto(to));
        });
    }

    /// `update @set { ct original ip daddr quota until BYTES bytes } return`
    pub(crate) fn add_rule_for_quota(&mut self, chain: &str, version: IpVersion, set: &str, bytes: u64) {
        self.rule(chain, |batch| {
            put_original_destination(batch, version);
            put_expression(batch, "dynset", |batch| {
                batch.attr_name(1, set);
                batch.attr(3, &DYNSET_UPDATE.to_be_bytes());
                batch.attr(4, &REGISTER.to_be_bytes());
                let quota = batch.open(7);
                batch.attr_name(EXPR_NAME, "quota");
                let data = batch.open(EXPR_DATA);
                batch.attr(1, &bytes.to_be_bytes());
                batch.attr(2, &0u32.to_be_bytes());
                batch.close(data);
                batch.close(quota);
            });
            put_immediate_verdict(batch, RuleTarget::Return);
        });
    }

    /// `meta mark set MARK goto chain`
    pub(crate) fn add_rule_for_mark(&mut self, chain: &str, mark: u32, to: &str) {
        self.rule(chain, |batch| {
            put_expression(batch, "immediate", |batch| {
                batch.attr(1, &REGISTER.to_be_bytes());
                let data = batch.open(2);
                batch.attr(DATA_VALUE, &mark.to_ne_bytes());
                batch.close(data);
            });
            put_expression(batch, "meta", |batch| {
                batch.attr(2, &META_MARK.to_be_bytes());
                batch.attr(3, &REGISTER.to_be_bytes());
            });
            put_immediate_verdict(batch, RuleTarget::Goto(to));
        });
    }

    fn rule(&mut self, chain: &str, put: impl FnOnce(&mut Batch)) {
        self.count += 1;
        self.batch.message(NEWRULE, F_CREATE | F_APPEND, &general_header(FAMILY_INET, 0));
        self.batch.attr_name(RULE_TABLE, self.table);
        self.batch.attr_name(RULE_CHAIN, chain);
        let expressions = self.batch.open(RULE_EXPRESSIONS);
        put(&mut self.batch);
        self.batch.close(expressions);
    }

    fn element(&mut self, kind: u16, set: &str, key: &[u8], more: impl FnOnce(&mut Batch)) {
        self.elements(kind, set);
        let elements = self.batch.open(LIST_ELEMENTS);
        put_element(&mut self.batch, key, more);
        self.batch.close(elements);
    }

    fn elements(&mut self, kind: u16, set: &str) {
        self.message(kind);
        self.batch.attr_name(LIST_TABLE, self.table);
        self.batch.attr_name(LIST_SET, set);
    }

    fn message(&mut self, kind: u16) {
        self.count += 1;
        let flags = if matches!(kind, NEWSETELEM | NEWSET | NEWCHAIN) { F_CREATE } else { 0 };
        self.batch.message(kind, flags, &general_header(FAMILY_INET, 0));
    }
}

fn put_element(batch: &mut Batch, key: &[u8], more: impl FnOnce(&mut Batch)) {
    let element = batch.open(LIST_ELEM);
    let data = batch.open(ELEM_KEY);
    batch.attr(DATA_VALUE, key);
    batch.close(data);
    more(batch);
    batch.close(element);
}

fn put_expression(batch: &mut Batch, name: &str, put: impl FnOnce(&mut Batch)) {
    let element = batch.open(LIST_ELEM);
    batch.attr_name(EXPR_NAME, name);
    let data = batch.open(EXPR_DATA);
    put(batch);
    batch.close(data);
    batch.close(element);
}

/// The original destination of a flow, whichever direction a packet has.
fn put_original_destination(batch: &mut Batch, version: IpVersion) {
    let key = match version {
        IpVersion::V4 => CT_DST_IP,
        IpVersion::V6 => CT_DST_IP6,
    };
    put_expression(batch, "ct", |batch| {
        batch.attr(1, &REGISTER.to_be_bytes());
        batch.attr(2, &key.to_be_bytes());
        batch.attr(3, &[CT_ORIGINAL]);
    });
}

fn put_immediate_verdict(batch: &mut Batch, to: RuleTarget<'_>) {
    put_expression(batch, "immediate", |batch| {
        batch.attr(1, &VERDICT_REGISTER.to_be_bytes());
        let data = batch.open(2);
        match to {
            RuleTarget::Goto(chain) => put_verdict(batch, GOTO, Some(chain)),
            RuleTarget::Return => put_verdict(batch, RETURN, None),
        }
        batch.close(data);
    });
}

fn put_verdict(batch: &mut Batch, code: i32, chain: Option<&str>) {
    let verdict = batch.open(DATA_VERDICT);
    batch.attr(VERDICT_CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        batch.attr_name(VERDICT_CHAIN, chain);
    }
    batch.close(verdict);
}

pub(crate) fn dump_elements(table: &str, set: &str) -> Batch {
    let mut batch = Batch::new();
    batch.message(GETSETELEM, F_DUMP, &general_header(FAMILY_INET, 0));
    batch.attr_name(LIST_TABLE, table);
    batch.attr_name(LIST_SET, set);
    batch
}

pub(crate) fn dump_sets(table: &str) -> Batch {
    let mut batch = Batch::new();
    batch.message(GETSET, F_DUMP, &general_header(FAMILY_INET, 0));
    batch.attr_name(SET_TABLE, table);
    batch
}

pub(crate) fn dump_chains() -> Batch {
    let mut batch = Batch::new();
    batch.message(GETCHAIN, F_DUMP, &general_header(FAMILY_INET, 0));
    batch
}

/// An interface name as a set key: sixteen bytes, the rest zero.
pub(crate) fn name_key(name: &str) -> [u8; 16] {
    let mut key = [0u8; 16];
    let len = name.len().min(15);
    key[..len].copy_from_slice(&name.as_bytes()[..len]);
    key
}

/// The interface name of a set key.
pub(crate) fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(key).trim_end_matches('\0').to_owned()
}

fn general_header(family: u8, resource: u16) -> [u8; GENERAL_HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
