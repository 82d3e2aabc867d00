//! Versions: a list of layers with what sandboxes start with, named by its digest.

use std::collections::BTreeMap;

use atoll_model::StartSettings;
use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

use crate::layers::DiffId;

/// What a new version is made of.
#[derive(Debug, Clone, Default)]
pub struct NewVersion {
    /// A built-in template whose files lie below all layers: its name and its digest.
    pub base: Option<(String, String)>,
    /// The bottom one first. All of them are here already.
    pub layers: Vec<DiffId>,
    /// As in the image; what it says of layers is put right by us.
    pub config: ImageConfiguration,
    /// What sandboxes start with; [`crate::images::start_settings`] reads them from a config.
    pub settings: StartSettings,
}

/// A version that is here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// `sha256:…` of everything below but the last two.
    pub digest: String,
    /// A built-in template below all layers: its name and its digest.
    pub base: Option<(String, String)>,
    /// The bottom one first.
    pub layers: Vec<DiffId>,
    /// As in the image.
    pub config: ImageConfiguration,
    /// What sandboxes start with.
    pub settings: StartSettings,
    /// What was found in its files, when it was made.
    pub found: Found,
    /// Bytes of its files: all layers, without the base.
    pub bytes: u64,
    /// Entries of all layers.
    pub entries: u64,
    /// What a person should know: what was skipped or changed, and how often.
    pub notes: BTreeMap<String, u64>,
    /// When it was made first.
    pub created_at: jiff::Timestamp,
}

/// What the files of a version say about how to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Who commands run as; a name wherever the files know one.
    pub user: String,
    /// The home of that user.
    pub home: String,
    /// Whether a program inside may make its caller root.
    pub sudo: bool,
    /// Names of the folders to stack instead of the plain layers, top first; empty: the plain ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}
