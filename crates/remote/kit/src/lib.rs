//! Shared by the providers that are clients of a vendor's API: calls with retries and a circuit, connections, the table of sandboxes.
//!
//! ```text
//! provider ─► VendorClient   one call: key, deadline, backoff, circuit ─► the vendor's control API
//!          ─► VendorConnector, dial_http   connections to a sandbox     ─► the vendor's hosts
//!          ─► RemoteTable    which object of the vendor is which sandbox; changes of one sandbox take turns
//! Vendor ◄── adopt           what became of the objects while the server was down
//!        ◄── VendorWatch     lifetimes, deaths, objects that no sandbox needs
//! ```
//!
//! Nothing here knows a vendor. A key is in no error, no log line and no `Debug` text.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests"))]

mod adoption;
mod backoff;
mod circuit;
mod client;
mod connect;
mod demands;
mod http_dial;
mod key;
mod labels;
mod link_guard;
mod meter;
mod owned;
mod table;
mod vendor;
#[cfg(test)]
mod vendor_tests;
mod watch;

pub use adoption::{adopt, owned_sandboxes, remove_leftovers};
pub use backoff::Backoff;
pub use client::{
    CallError, KeyPlace, Repeat, VendorAnswer, VendorBody, VendorCall, VendorClient, VendorStream,
    parsed_answer, unless_missing, unreadable_answer,
};
pub use connect::{VendorAddress, VendorConnector};
pub use demands::{
    FoundNames, LastSuccess, check_snapshot_vendor_spec, check_vendor_demands, check_vendor_spec, gone,
    is_closed, missing_capability, unknown_node,
};
pub use http_dial::{DialTasks, HttpTarget, LinkPath, dial_http, dial_link};
pub use key::ApiKey;
pub use labels::{OWNER_LABEL, SANDBOX_LABEL, object_labels, read_labels};
pub use link_guard::LinkError;
pub use meter::{Measurement, UsageMeter};
pub use owned::{OwnedObject, choose_object, oldest_first};
pub use table::{ObjectState, RemoteObject, RemoteSlot, RemoteTable};
pub use vendor::{Vendor, VendorState, WatchNumber, WatchTiming};
pub use watch::{VendorWatch, report_gone, still_runs};

/// A random text of 32 hex digits.
///
/// # Errors
/// The kernel has no random bytes.
pub fn random_hex() -> std::io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
