//! The integration tests of this crate. One binary, because linking takes most of the time of a test build.

mod captures;
mod checkpoint;
mod common;
mod conformance;
mod dump_obstacles;
mod egress;
mod figures;
mod full_disk;
mod host_folders;
mod instance_lifecycle;
mod isolation;
mod launcher_kills;
mod layers;
mod mounts;
mod packing;
mod pool_size;
mod shares;
mod snapshots;
mod warm;
