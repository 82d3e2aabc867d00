//! The doors of a server, plain and TLS, and previews: HTTP to whatever a sandbox serves.
//!
//! ```text
//! door ─► request ─► route: a preview? ─► credentials: ours are taken out ─► admit ─► reach (wakes) ─► pool or dial
//!                      │ no                                                                              │
//!                      ▼                                                                                 ▼
//!                   the fronts                 answer ◄─ its head cleaned ◄── forward: streams both ways, tunnels upgrades
//! ```
//!
//! Never: takes a destination from anything but our own state, lets a credential of ours reach an app, buffers a body,
//! reaches the agent's own port.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")
)]

mod app_connection;
mod credentials;
mod forward;
mod head;
mod host;
mod listener;
mod local_ca;
mod page;
mod pool;
mod presigned;
mod proxy;
mod route;
mod tls_app;
mod tunnel;

pub use host::Domain;
pub use listener::{BadCertificate, CertificateFiles, Closing, HttpServer, Limits, Tls};
pub use local_ca::{IssueDate, Leaf, LocalCa, NotMade, names};
pub use proxy::{Dispatch, PortRequest, PortRequestOrigin, Proxy, Refused, StandIn};
pub use route::{FieldRoute, Misrouted, Preview, Route};
