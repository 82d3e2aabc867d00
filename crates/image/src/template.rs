//! A template for the engine: the folders to stack, and the start settings.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::manifest::{TemplateKind, TemplateManifest};

/// A complete template on disk. All its sandboxes share its files, which are never written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub manifest: TemplateManifest,
    /// Lower folders of the root overlay, the top one first. All ids in them are canonical (unshifted).
    pub layers: Vec<PathBuf>,
    /// A second overlay to mount at `/usr`; only templates of the host have one.
    pub usr_overlay: Option<HostUsr>,
}

/// The host's `/usr` with a mask of hidden files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostUsr {
    /// The host's own folder.
    pub path: PathBuf,
    /// Whiteouts and opaque folders for hidden files; it goes above `path`. Clone `path` without its submounts (a
    /// folder with a mount on it is whited out here).
    pub mask: PathBuf,
}

impl HostUsr {
    /// Lower folders of the overlay at `/usr`, the top one first.
    pub fn layers(&self) -> [&Path; 2] {
        [&self.mask, &self.path]
    }
}

impl Template {
    pub(crate) fn at(folder: &Path, manifest: TemplateManifest, host_usr: &Path) -> Self {
        let usr_overlay = match manifest.kind {
            TemplateKind::Host => Some(HostUsr { path: host_usr.to_owned(), mask: folder.join("mask") }),
            TemplateKind::Rootfs => None,
        };
        Self { manifest, layers: vec![folder.join("rootfs")], usr_overlay }
    }
}

impl Deref for Template {
    type Target = TemplateManifest;

    fn deref(&self) -> &TemplateManifest {
        &self.manifest
    }
}
