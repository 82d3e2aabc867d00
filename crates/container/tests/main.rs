//! The integration tests of this crate. One binary, because linking takes most of the time of a test build.

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
