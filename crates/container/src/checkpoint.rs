//! Memory of sandboxes on disk: the arguments of CRIU, the files that it writes, and the check that they are complete.
//!
//! ```text
//! DATA/pool/checkpoints/<sandbox>.tmp/     a dump under way; its writer holds a lock on the folder `images`
//!                       <sandbox>/         a complete checkpoint: manifest.json, images/
//!                       <sandbox>.spent/   restored.json: the instance that its processes became
//! ```
//!
//! A folder gets the sandbox's name by a rename, when all of it and the sandbox's files are on disk. Another rename
//! marks it as spent before the first of its processes runs again. This module starts, stops and moves no process.

mod criu;
mod folders;
mod images;
mod manifest;
mod mounts;
mod obstacles;
mod sockets;

pub(crate) use criu::{Criu, DumpAsk, REMEDY, RestoreAsk, find};
pub(crate) use folders::{Checkpoints, Draft, Restored, hold_images, wait_for_images};
pub(crate) use images::users_image;
pub(crate) use manifest::{CheckpointManifest, IMAGES, MANIFEST, VerifyError};
pub(crate) use mounts::{boot_id, outside_mounts};
pub(crate) use obstacles::{Obstacle, in_vfork, lasting, nameless_bytes};
pub(crate) use sockets::{close_abandoned, close_halves};
