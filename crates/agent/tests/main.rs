//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod archive;
mod common;
mod files;
mod hold;
mod limits;
mod processes;
mod search;
mod wire;
