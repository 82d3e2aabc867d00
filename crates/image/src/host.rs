//! The template `host`: a generated root over the host's `/usr`. Nothing is downloaded.
//!
//! ```text
//! /            rootfs/ of the template: links into /usr, a synthesised /etc, empty home, tmp, var, run   (host::skeleton)
//! /etc         generated files, plus the few public files of the host that programs in /usr need         (host::etc)
//! /usr         the host's, below a mask of whiteouts                                                     (host::mask)
//! ```
//!
//! It is meant for first trials. The template belongs to one state of the host's packages ([`Fingerprint`]): a sandbox
//! of it starts again only while the host is in that state, and a new sandbox gets a new version. Files that are put
//! into `/usr` without the package manager are not noticed until then.
//!
//! It never shows home directories, secrets of `/etc`, sockets, or anything mounted below `/usr`.

pub(crate) mod etc;
mod fingerprint;
mod mask;
pub(crate) mod skeleton;

use std::path::{Path, PathBuf};

pub(crate) use fingerprint::hash_file;
pub use fingerprint::{Fingerprint, verify_host};

use crate::error::TemplateError;
use crate::manifest::{TemplateKind, TemplateManifest};

pub(crate) const NAME: &str = "host";

/// The host to make a template from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSource {
    /// The root of the host; another folder in tests.
    pub root: PathBuf,
    /// Whether `/usr/local` and `/usr/src` are shown too.
    pub with_local: bool,
}

impl Default for HostSource {
    fn default() -> Self {
        Self { root: PathBuf::from("/"), with_local: false }
    }
}

impl HostSource {
    pub(crate) fn usr(&self) -> PathBuf {
        self.root.join("usr")
    }
}

/// Fills `folder` with root, mask and manifest for the state that `fingerprint` names.
pub(crate) fn build(
    source: &HostSource,
    fingerprint: Fingerprint,
    folder: &Path,
) -> Result<(), TemplateError> {
    let rootfs = folder.join("rootfs");
    skeleton::build(&source.root, &rootfs)?;
    etc::build(source, &rootfs.join("etc"))?;
    mask::build(source, &folder.join("mask"))?;
    let mut manifest = TemplateManifest::new(NAME, TemplateKind::Host, fingerprint.id());
    manifest.host = Some(fingerprint);
    manifest.write(folder)
}
