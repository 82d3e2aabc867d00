//! Builds on a real server: Dockerfiles become templates, step by step, each in a sandbox of its tenant.
#![allow(clippy::unwrap_used, reason = "tests")]

mod ask;
mod cache;
mod ends;
mod hostile;
mod ready;
mod secrets;
mod steps;
