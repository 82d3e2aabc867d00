//! The server's own connections to services outside: proxies, the hosts without one, added certificate authorities, HTTP clients.
//!
//! ```text
//! pulls, object storage, vendors ── client_builder ──┬─ a host of NO_PROXY ── directly
//!                                                    └─ any other ─────────── CONNECT at the proxy
//! egress gate, vendors' streams ─── tunnel ───────── over a connection that is open already: HTTP CONNECT or SOCKS5
//! ```
//!
//! The settings belong to the process and are set once, before the first client is made: every client of a server obeys them, so that
//! none can be forgotten. Credentials are in no text, error or log of this crate.

pub mod authorities;
mod client;
pub mod mirrors;
mod settings;
mod tunnel;

pub use authorities::{Authority, BadAuthorities};
pub use client::{client_builder, roots, set_provider};
pub use settings::{BadProxySetting, OutboundSettings, configure, current};
pub use tunnel::{TunnelError, connect, tunnel};
