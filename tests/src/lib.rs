//! Real servers, real sandboxes: the kernel, API, attack and fault suites.
//!
//! A test asks for a [`World`]: a real `atoll` server as root, with a state folder of its own, in network and mount
//! namespaces of its own, and a small internet beside it. Everything that the test does happens in there.
//!
//! ```text
//!  ground (own net + mount namespace)              internet (own net namespace)
//!  test threads, client ── 127.0.0.1:7070 ── atoll   203.0.113.1 HTTP, DNS
//!                        up0 203.0.113.2 ─────────── 10/8, 192.168/16, 169.254.169.254 … as decoys
//! ```
//!
//! After the body of a test the world deletes what is left and audits: nothing leaked, no canary of the host changed, the
//! server neither died nor panicked. A test never touches what it did not make, and needs no other test before it.

#![allow(clippy::unwrap_used, reason = "a step of a test that fails is a failed test")]
#![allow(clippy::print_stderr, reason = "what a failed test prints is its report")]

pub mod agent_client;
pub mod agentbay;
pub mod canary;
pub mod client;
pub mod company_proxy;
pub mod connection_probes;
pub mod contract;
pub mod criu;
pub mod data_folder;
pub mod docker;
pub mod dockerfiles;
pub mod fault_proxy;
pub mod image;
pub mod internet;
pub mod leaks;
pub mod namespaces;
pub mod neighbour;
pub mod open_flows;
pub mod poll;
pub mod probe;
pub mod proc;
pub mod registry;
pub mod remote_access;
pub mod runc;
pub mod s3;
pub mod soak;
pub mod sse;
pub mod state_model;
pub mod template;
pub mod templates;
pub mod terminal;
pub mod web_socket;
pub mod world;

pub use client::{Answer, Client};
pub use neighbour::NeighbourMonitor;
pub use poll::{until, until_within};
pub use serde_json::{Value, json};
pub use world::{Options, World, run, run_with};
