//! The use cases: one driver per live sandbox, deadlines, quotas, events. The only writer of the store.
