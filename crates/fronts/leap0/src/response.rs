//! Response types that several nouns share.

use serde::Serialize;

/// A list.
#[derive(Debug, Serialize)]
pub(crate) struct ItemList<T> {
    pub(crate) items: Vec<T>,
}
