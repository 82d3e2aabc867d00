//! One budget for the bytes that a server holds for others: commands' output, unwritten answers, request bodies and heads.
//!
//! ```text
//! Budget ─ account(owner) ─► Account ─ reserve() ─► Reservation ─ grow(n) ─► bytes are held ─ drop ─► released
//!                                                        └─ attach(bytes) ─► Bytes that release when their last clone is
//!                                                                            dropped, which hyper does after the write
//! ```
//!
//! Two pools: one for tenants, a small one for strangers (callers without a valid key so far), divided by address. In both
//! one rule decides: **an owner may hold at most as many bytes as the pool has free for all others**. So one owner alone
//! gets half of a pool, two get a third each, and a newcomer always finds room.
//!
//! Who meets a full pool waits (where the source is a stream, nothing more is read from it), at most [`WAIT`] where a
//! caller waits for an answer, and then gets [`Exhausted`], which fronts render as 429 or 503 with `Retry-After`.
//!
//! The first [`SMALL`] bytes of each reservation are not counted, so that ordinary requests never wait. The state of an
//! open answer ([`ANSWER_STATE`]) is counted in pools of its own, from the moment the answer exists until it is written.
//!
//! Never: allocates what it counts, blocks a thread, knows a front.

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
