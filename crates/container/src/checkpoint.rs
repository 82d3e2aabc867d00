//! Memory of sandboxes on disk: what CRIU is told, what it wrote, and how one can tell that it is whole.
//!
//! ```text
//! DATA/pool/checkpoints/<sandbox>.tmp/     a dump under way; its folder of images is locked by whoever writes it
//!                       <sandbox>/         a whole one: manifest.json, images/
//!                       <sandbox>.spent/   restored.json: whom its processes became
//! ```
//!
//! A folder gets the sandbox's name by a rename, when all of it and the sandbox's files are on disk. It is spent by a rename
//! before the first of its processes runs again. Nothing here starts, stops or moves a process.

mod criu;
mod folders;
mod images;
mod manifest;
mod mounts;
mod obstacles;
mod sockets;

pub(crate) use criu::{Criu, DumpAsk, RestoreAsk, find};
pub(crate) use folders::{Checkpoints, Draft, Restored, hold_images, wait_for_images};
pub(crate) use images::users_image;
pub(crate) use manifest::{CheckpointManifest, IMAGES, MANIFEST, VerifyError};
pub(crate) use mounts::{boot_id, outside_mounts};
pub(crate) use obstacles::{Obstacle, in_vfork, lasting, nameless_bytes};
pub(crate) use sockets::{close_abandoned, close_halves};
