//! The types of the native /v1 API and its HTTP client.
//!
//! # Structure
//!
//! One module per noun. The native front answers with these types and reads requests with them; the command line and the tests send and
//! read the same ones. A request is strict: unknown fields are refused. An answer is not: a newer server may say more.
//!
//! Never: decides anything, knows the service or a front.
#![cfg_attr(feature = "client", doc = "\n# The client\n")]
#![cfg_attr(feature = "client", doc = include_str!("../README.md"))]

pub mod builds;
#[cfg(feature = "client")]
pub mod client;
pub mod code;
pub mod egress;
pub mod errors;
pub mod events;
pub mod exec;
pub mod files;
pub mod flag;
pub mod git;
pub mod health;
pub mod keys;
pub mod logins;
pub mod lsp;
pub mod metrics;
pub mod moving;
pub mod network;
pub mod previews;
pub mod processes;
pub mod providers;
pub mod sandbox_requests;
pub mod sandboxes;
pub mod secrets;
pub mod server;
pub mod sessions;
pub mod snapshots;
pub mod start;
pub mod system;
pub mod templates;
pub mod tenants;
pub mod terminals;
pub mod threads;
mod tolerance;
pub mod volume_files;
pub mod volumes;
pub mod words;

pub use atoll_model::Code;
#[cfg(feature = "client")]
pub use client::{ApiError, Client, ClientError, Retries};
