//! Layers: archives of files (OCI layer tars) and the folders they become.
//!
//! [`unpack`] is the only way in: all files of a template pass through it, and its input is untrusted. [`pack`] is the
//! way out. On disk a layer has the form that the kernel's overlay stacks:
//!
//! | in the archive | in the folder |
//! |---|---|
//! | `dir/.wh.name` | `dir/name`, a character device 0:0 |
//! | `dir/.wh..wh..opq` | `trusted.overlay.opaque=y` on `dir` |
//! | everything else | itself, with canonical (unshifted) ids |
//!
//! This module follows no symbolic link, resolves one path component at a time, and does not know who owns a layer.

mod digest;
mod error;
mod merge;
mod pack;
mod read_ahead;
mod rules;
mod tree;
mod unpack;
mod walk;

pub use digest::{BadDigest, DiffId, Digest};
pub use error::LayerError;
pub use pack::{PackedTar, pack};

pub(crate) use atoll_tar::write::Archive as TarWriter;
pub(crate) use digest::Hashing;
pub(crate) use merge::{Below, merge};
pub(crate) use unpack::{UnpackLimits, Unpacked, unpack_hashed};
pub(crate) use walk::is_opaque;
