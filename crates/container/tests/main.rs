//! The integration tests of this crate. One binary: linking is most of what a build of tests takes.

mod captures;
mod checkpoint;
mod common;
mod conformance;
mod dump_obstacles;
mod egress;
mod figures;
mod full_disk;
mod instance_lifecycle;
mod isolation;
mod layers;
mod mounts;
mod packing;
mod snapshots;
mod warm;
