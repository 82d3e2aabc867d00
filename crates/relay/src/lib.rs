//! The HTTP/1 relay to an app or an agent: a connection that its user polls, the response body, and helpers for wrapped streams.
//!
//! ```text
//! request ─► RelayConnection ─► peer
//! caller  ◄─ RelayBody ◄──────── response
//!                │
//!                └─ at its end: ConnectionPool::put
//! ```
//!
//! No task drives a connection: the task that waits for the response polls it, so bytes are not handed from thread to
//! thread. An idle connection is not polled; its next user first checks with [`RelayConnection::is_ready`] that it is
//! still open. Heads, retries and pools are decided by the caller.

mod body;
mod connection;
pub mod stream;

pub use body::{ConnectionPool, RelayBody, RelayError};
pub use connection::{RelayConnection, Upgrades};
