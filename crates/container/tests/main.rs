//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod captures;
mod caught;
mod checkpoint;
mod common;
mod conformance;
mod doors;
mod figures;
mod full;
mod isolation;
mod layers;
mod life;
mod mounts;
mod packs;
mod snapshots;
mod warm;
