//! The durable record: trait Store and its SQLite form, hand-written SQL.

mod records;

pub use records::{KeyRecord, Page, ResourceSample, TenantRecord, Terminal};
