//! The integration tests of this crate. One binary, because linking takes most of the time of a test build.

mod archive;
mod common;
mod files;
mod hold;
mod limits;
mod processes;
mod search;
mod wire;
