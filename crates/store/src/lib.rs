//! The durable record: trait Store and its SQLite form, hand-written SQL.
