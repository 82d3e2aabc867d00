//! Pulls from and pushes to a registry that misbehaves on purpose. It runs in the test process, on loopback.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

mod addresses;
mod auth;
mod fake;
mod faults;
mod image;
mod pull;
mod push;
