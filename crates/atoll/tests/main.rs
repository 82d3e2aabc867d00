//! The integration tests of this crate. One binary, because linking takes most of the time of a test build.

mod command_line;
mod layers;
mod offline;
mod security_tests;
