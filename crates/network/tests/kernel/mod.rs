//! The network on a real kernel, as root. Each test has its own host, internet and sandboxes in new network namespaces;
//! no traffic leaves them, and the machine's own namespace is not changed.

#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they measured"
)]

mod cost;
mod dial;
mod dns;
mod egress;
mod ipv6;
mod life;
mod limits;
mod policy;
mod proxied;
mod reach;
mod tap;
mod world;
