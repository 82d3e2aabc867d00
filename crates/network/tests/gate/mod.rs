//! The gate with real sockets in separate network namespaces, as root: a sandbox, a router with the gate in it, and an
//! internet with name and web servers that record their input. No traffic leaves these namespaces.

#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they measured"
)]
#![expect(unsafe_code, reason = "one variable of the environment is set before anything reads it")]

mod changes;
mod cost;
mod names;
mod requests;
mod servers;
mod tunnels;
mod world;
