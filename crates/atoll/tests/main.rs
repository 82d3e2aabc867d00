//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod command_line;
mod layers;
mod offline;
mod security_tests;
