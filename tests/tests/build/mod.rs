//! Builds on a real server: Dockerfiles become templates, step by step, each in a sandbox of its tenant.
#![allow(clippy::unwrap_used, reason = "tests")]

mod ask;
mod cache;
mod crash;
mod ends;
mod hostile;
mod mounts;
mod ready;
mod secrets;
mod steps;
