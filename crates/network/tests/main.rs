//! The integration tests of this crate. One binary, because linking takes most of the time of a test build.

mod gate;
mod kernel;
