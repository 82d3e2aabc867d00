//! The integration tests of this crate. One binary, because linking takes most of the time of a test build.

mod archive;
mod build;
mod catalog;
mod host;
mod images;
mod layers;
mod registry;
mod support;
