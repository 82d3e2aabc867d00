//! Templates, and archives in object storage: what a sandbox starts from.
//!
//! A [`Catalog`] is a folder of templates. `host` shows the host's own `/usr` and needs no download; `debian` is made
//! from Debian packages; `busybox` is one static program. A template is a separate folder that appears completely or
//! not at all:
//! ```text
//! DATA/templates/
//!   debian/                manifest.json  rootfs/
//!   host/<fingerprint>/    manifest.json  rootfs/ (the skeleton)  mask/ (whiteouts above the host's /usr)
//!   .build-*               being made; locked by its maker, removed when the lock is free
//! ```
//!
//! [`archive`] keeps the packed files of sandboxes in object storage.
//!
//! This crate never mounts anything, never runs a program of a template, and never writes to a template after it is
//! published.

pub mod archive;
pub mod build;
mod busybox;
mod catalog;
mod debian;
pub mod default_names;
mod environment;
mod error;
mod host;
pub mod images;
pub mod layers;
mod manifest;
mod name;
pub mod oci;
mod recipes;
mod staging;
mod template;
mod tool;

pub use catalog::{Catalog, is_built_in};
pub use debian::{DebianSource, recipe_digest};
pub use environment::default_cache_dir;
pub use error::{HostChanged, TemplateError};
pub use host::{Fingerprint, HostSource, verify_host};
pub use images::{Bounds, ImageError, Images};
pub use layers::{DiffId, Digest, LayerError};
pub use manifest::{TemplateKind, TemplateManifest};
pub use recipes::{BUILT_RECIPES, BuiltRecipe, built_recipe, recipe};
pub use template::{HostUsr, Template};
pub use tool::Progress;
