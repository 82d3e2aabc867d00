//! Shared by the providers that are clients of a vendor's API: calls with retries and a circuit, connections, the table of sandboxes.
//!
//! ```text
//! provider ─► VendorClient   one call: key, deadline, backoff, circuit ─► the vendor's control API
//!          ─► VendorConnector, dial_http   connections to a sandbox     ─► the vendor's hosts
//!          ─► RemoteTable    which object of the vendor is which sandbox; changes of one sandbox take turns
//! ```
//!
//! Nothing here knows a vendor. A key is in no error, no log line and no `Debug` text.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests"))]

mod backoff;
mod circuit;
mod client;
mod connect;
mod http_dial;
mod table;

pub use backoff::Backoff;
pub use client::{CallError, Repeat, VendorAnswer, VendorCall, VendorClient};
pub use connect::{VendorAddress, VendorConnector};
pub use http_dial::{DialTasks, HttpTarget, dial_http};
pub use table::{ObjectState, RemoteObject, RemoteSlot, RemoteTable};

/// A random text of 32 hex digits.
///
/// # Errors
/// The kernel has no random bytes.
pub fn random_hex() -> std::io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
