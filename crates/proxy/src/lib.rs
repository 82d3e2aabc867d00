//! The listeners of a server, plain and TLS, and previews: HTTP to the apps in sandboxes.
//!
//! ```text
//! listener ─► request ─► route: a preview? ─► credentials: removed ─► admit ─► reach (wakes) ─► pool or dial
//!                      │ no                                                                              │
//!                      ▼                                                                                 ▼
//!                   the fronts                 answer ◄─ its head cleaned ◄── forward: streams both ways, tunnels upgrades
//! ```
//!
//! The proxy takes destinations only from the server's own state, never passes Atoll's credentials to an app, never
//! buffers a body, and never connects to the agent's own port.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")
)]

mod app_connection;
mod credentials;
mod forward;
mod head;
mod host;
mod inside;
mod listener;
mod local_ca;
mod page;
mod pool;
mod presigned;
mod proxy;
mod route;
mod tls_app;
mod tunnel;
mod wake_page;

pub use host::Domain;
pub use inside::serve_inside;
pub use listener::{BadCertificate, CertificateFiles, Closing, HttpServer, Limits, Tls};
pub use local_ca::{HostName, IssueDate, Leaf, LocalCa, NotMade, names};
pub use proxy::{Dispatch, PortRequest, PortRequestOrigin, Proxy, Refused, StandIn};
pub use route::{FieldRoute, Misrouted, Preview, Route};
