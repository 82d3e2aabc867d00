//! Response types that several resources share.

use serde::Serialize;

/// A list.
#[derive(Debug, Serialize)]
pub(crate) struct ItemList<T> {
    pub(crate) items: Vec<T>,
}
