//! Backups: one file with everything of a data folder, and its restore into an empty one.
//!
//! ```text
//! backup   copies of the pool and of the database at one moment ──► sections ──► zstd ──► file
//! restore  file ──► sections ──► an empty folder, marked as unfinished ──► new seals, sandboxes at rest ──► mark removed
//! ```
//!
//! It runs in the command line, as root, beside a server or without one: the database is copied in one read transaction, and btrfs
//! copies a layer, a volume or a snapshot in one moment. It never changes what a server has.

mod collect;
mod error;
mod folder;
mod format;
mod keys;
pub mod places;
mod rest;
mod restore;
mod sections;
mod write;

pub use error::{BackupError, RestoreError};
pub use folder::{MARKER, discard_unfinished, is_unfinished};
pub use format::{BackupFile, Header, check_file};
pub use keys::PassphraseError;
pub use restore::{KeySource, RestoreOptions, RestoreReport, restore};
pub use write::{BackupOptions, BackupReport, backup};

/// Receives progress: the bytes since the last call, and the one of [`places`] that the work has reached.
pub type Progress<'a> = &'a (dyn Fn(u64, &str) + Sync);
