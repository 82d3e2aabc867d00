//! Nouns, ids, the lifecycle table and pure policy. No I/O, no async, no clock.
