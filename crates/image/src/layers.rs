//! Layers: archives of files (OCI layer tars) and the folders they become.
//!
//! [`unpack`] is the single way in: whatever becomes files of a template goes through it, and it believes nothing it reads.
//! [`pack`] is the way out. On disk a layer has the form that the kernel's overlay stacks:
//!
//! | in the archive | in the folder |
//! |---|---|
//! | `dir/.wh.name` | `dir/name`, a character device 0:0 |
//! | `dir/.wh..wh..opq` | `trusted.overlay.opaque=y` on `dir` |
//! | everything else | itself, with canonical (unshifted) ids |
//!
//! Nothing here follows a link, opens a path by more than one name at a time, or knows who owns a layer.

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
