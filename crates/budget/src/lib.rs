//! One budget for the bytes that a server holds for callers: output of commands, unwritten responses, request bodies and heads.
//!
//! ```text
//! Budget ─ account(owner) ─► Account ─ reserve() ─► Reservation ─ grow(n) ─► bytes are held ─ drop ─► released
//!                                                        └─ attach(bytes) ─► Bytes that release when their last clone is
//!                                                                            dropped, which hyper does after the write
//! ```
//!
//! There are two pools: one for tenants, and a small one for strangers (callers without a valid key so far), divided by
//! address. One rule applies to both: **an owner may hold at most as many bytes as the pool has free for all others**.
//! So a single owner gets half of a pool, two get a third each, and a new owner always finds free memory.
//!
//! A request that finds the pool full waits (if its source is a stream, nothing more is read from it). If a caller
//! waits for a response, the wait is at most [`WAIT`]; then the caller gets [`Exhausted`], which fronts render as 429
//! or 503 with `Retry-After`.
//!
//! The first [`SMALL`] bytes of each reservation are not counted, so that ordinary requests never wait. The state of an
//! open response ([`ANSWER_STATE`]) is counted in separate pools, from its creation until it is written.
//!
//! This crate never allocates the memory that it counts, never blocks a thread, and does not depend on any front.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")
)]

mod answer;
mod body;
mod json;
mod output;
mod pool;
mod request;
mod request_body;
mod socket;

pub use answer::{ANSWER_STATE, HeldAnswer, Metered, WholeAnswer, keep_with};
pub use body::{BodyError, BodyLimits, read_whole};
pub use json::{JsonObject, Marked};
pub use output::{CollectedOutput, Collector, Keep, TruncationLines};
pub use pool::{Account, Budget, BudgetOwner, Exhausted, Reservation, SMALL, Sizes, WAIT};
pub use request::RequestBudget;
pub use request_body::WindowBody;
pub use socket::{SocketPlace, SocketsExhausted};
