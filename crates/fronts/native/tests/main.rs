//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod documents;
mod life;
mod network;
mod providers;
mod routes;
mod serving;
mod streams;
mod support;
mod templates;
mod volumes;
