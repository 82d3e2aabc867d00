//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod archive;
mod build;
mod catalog;
mod host;
mod images;
mod layers;
mod registry;
mod support;
