//! Previews: HTTP to whatever a sandbox serves, by host or by path.
//!
//! ```text
//! request ─► route: a preview? ─► credentials: ours are taken out ─► admit ─► reach (wakes) ─► pool or dial
//!               │ no                                                                              │
//!               ▼                                                                                 ▼
//!            the fronts                 answer ◄─ its head cleaned ◄── forward: streams both ways, tunnels upgrades
//! ```
//!
//! Never: takes a destination from anything but our own state, lets a credential of ours reach an app, buffers a body,
//! reaches the agent's own port.

mod credentials;
mod forward;
mod head;
mod host;
mod page;
mod pool;
mod proxy;
mod route;

pub use host::Domain;
pub use proxy::Proxy;
pub use route::{Misrouted, Preview, Route};
