//! Reads the answers of nftables to a dump.

use super::{
    Attrs, CHAIN_NAME, CHAIN_TABLE, DATA_VALUE, ELEM_EXPR, ELEM_KEY, EXPR_DATA, EXPR_NAME, GENERAL_HEADER,
    LIST_ELEMENTS, Message, NEWCHAIN, NEWSET, NEWSETELEM, SET_NAME, text,
};

const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;

/// The counter of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ElementCounter {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

/// Passes the key of every element in one message of a dump to `visit`.
pub(crate) fn read_keys(message: &Message<'_>, mut visit: impl FnMut(&[u8])) {
    each_element(message, |element| {
        if let Some(key) = key_of(element) {
            visit(key);
        }
    });
}

/// Passes key and counter of every element that has one to `visit`.
pub(crate) fn read_counted(message: &Message<'_>, mut visit: impl FnMut(&[u8], ElementCounter)) {
    each_element(message, |element| {
        let counter = element
            .find(ELEM_EXPR)
            .map(Attrs)
            .filter(|expression| expression.find(EXPR_NAME).and_then(text) == Some("counter"));
        let data = counter.and_then(|expression| expression.find(EXPR_DATA)).map(Attrs);
        if let (Some(key), Some(data)) = (key_of(element), data) {
            let figure = |kind| data.find(kind).and_then(|value| value.first_chunk().copied());
            let figure = |kind| figure(kind).map_or(0, u64::from_be_bytes);
            visit(key, ElementCounter { bytes: figure(COUNTER_BYTES), packets: figure(COUNTER_PACKETS) });
        }
    });
}

/// The name of a set in an answer to [`super::dump_sets`].
pub(crate) fn read_set<'a>(message: &Message<'a>) -> Option<&'a str> {
    (message.kind == NEWSET).then(|| message.attrs(GENERAL_HEADER).find(SET_NAME).and_then(text))?
}

/// The name of a chain in an answer to [`super::dump_chains`], if it is one of `table`.
pub(crate) fn read_chain<'a>(message: &Message<'a>, table: &str) -> Option<&'a str> {
    let attrs = message.attrs(GENERAL_HEADER);
    let is_ours = message.kind == NEWCHAIN && attrs.find(CHAIN_TABLE).and_then(text) == Some(table);
    is_ours.then(|| attrs.find(CHAIN_NAME).and_then(text))?
}

fn each_element(message: &Message<'_>, mut visit: impl FnMut(&Attrs<'_>)) {
    if message.kind != NEWSETELEM {
        return;
    }
    let Some(elements) = message.attrs(GENERAL_HEADER).find(LIST_ELEMENTS) else { return };
    for (_, element) in Attrs(elements) {
        visit(&Attrs(element));
    }
}

fn key_of<'a>(element: &Attrs<'a>) -> Option<&'a [u8]> {
    element.find(ELEM_KEY).and_then(|data| Attrs(data).find(DATA_VALUE))
}
