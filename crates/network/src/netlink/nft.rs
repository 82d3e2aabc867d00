//! NETLINK_NETFILTER messages: elements of nftables sets, changed in atomic batches and listed.
//!
//! Tables, chains, sets and rules are never made here; those are static text (see `ruleset`).

use super::{Attrs, Batch, F_ACK, F_CREATE, F_DUMP, Message};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWSETELEM: u16 = SUBSYSTEM << 8 | 12;
const GETSETELEM: u16 = SUBSYSTEM << 8 | 13;
const DELSETELEM: u16 = SUBSYSTEM << 8 | 14;

const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEM: u16 = 1;
const ELEM_KEY: u16 = 1;
const DATA_VALUE: u16 = 1;

const FAMILY_INET: u8 = 1;
const GENERAL_HEADER: usize = 4;

/// A change of one set: which, how, and the keys concerned.
#[derive(Clone, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) table: &'a str,
    pub(crate) set: &'a str,
    pub(crate) edit: Edit<'a>,
}

/// What a change does to its set.
#[derive(Clone, Debug)]
pub(crate) enum Edit<'a> {
    Add(&'a [u8]),
    Remove(&'a [u8]),
}

/// One transaction: all of the changes or none.
pub(crate) fn transaction(changes: &[Change<'_>]) -> Batch {
    let mut batch = Batch::new();
    batch.message(BATCH_BEGIN, 0, &general_header(0, SUBSYSTEM));
    for change in changes {
        let (kind, flags, key) = match change.edit {
            Edit::Add(key) => (NEWSETELEM, F_ACK | F_CREATE, key),
            Edit::Remove(key) => (DELSETELEM, F_ACK, key),
        };
        batch.message(kind, flags, &general_header(FAMILY_INET, 0));
        batch.attr_name(LIST_TABLE, change.table);
        batch.attr_name(LIST_SET, change.set);
        put_key(&mut batch, key);
    }
    batch.message(BATCH_END, 0, &general_header(0, SUBSYSTEM));
    batch
}

fn put_key(batch: &mut Batch, key: &[u8]) {
    let elements = batch.open(LIST_ELEMENTS);
    let element = batch.open(LIST_ELEM);
    let data = batch.open(ELEM_KEY);
    batch.attr(DATA_VALUE, key);
    batch.close(data);
    batch.close(element);
    batch.close(elements);
}

pub(crate) fn dump_elements(table: &str, set: &str) -> Batch {
    let mut batch = Batch::new();
    batch.message(GETSETELEM, F_DUMP, &general_header(FAMILY_INET, 0));
    batch.attr_name(LIST_TABLE, table);
    batch.attr_name(LIST_SET, set);
    batch
}

/// Shows the key of every element in one message of a dump.
pub(crate) fn read_keys(message: &Message<'_>, mut visit: impl FnMut(&[u8])) {
    if message.kind != NEWSETELEM {
        return;
    }
    let Some(elements) = message.attrs(GENERAL_HEADER).find(LIST_ELEMENTS) else { return };
    for (_, element) in Attrs(elements) {
        let key = Attrs(element).find(ELEM_KEY).and_then(|data| Attrs(data).find(DATA_VALUE));
        if let Some(key) = key {
            visit(key);
        }
    }
}

/// An interface name as a set key: sixteen bytes, the rest zero.
pub(crate) fn name_key(name: &str) -> [u8; 16] {
    let mut key = [0u8; 16];
    let len = name.len().min(15);
    key[..len].copy_from_slice(&name.as_bytes()[..len]);
    key
}

fn general_header(family: u8, resource: u16) -> [u8; GENERAL_HEADER] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}
