//! The resolver configuration that every sandbox needs and images do not contain.
//!
//! It is stacked above the layers of a version, so the version's own files stay unchanged. It is not a layer of the
//! version: exports and pushes never contain it.

use std::path::Path;

use super::ImageError;
use super::view::View;
use crate::staging::write_durably;

/// The name of the folder, beside the layers.
pub(super) const FOLDER: &str = "furniture";
const NAMES: &[u8] = b"nameserver 169.254.0.1\n";
const PATH: &str = "etc/resolv.conf";

/// Makes the folder when missing.
pub(super) fn make(images: &Path) -> Result<(), ImageError> {
    use std::os::unix::fs::PermissionsExt;
    let (root, etc) = (images.join(FOLDER), images.join(FOLDER).join("etc"));
    std::fs::create_dir_all(&etc).map_err(ImageError::io("create", &etc))?;
    for folder in [&root, &etc] {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))
            .map_err(ImageError::io("open up", folder))?;
    }
    let file = root.join(PATH);
    if std::fs::read(&file).is_ok_and(|found| found == NAMES) {
        return Ok(());
    }
    write_durably(&file, NAMES)?;
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644))
        .map_err(ImageError::io("open up", &file))
}

/// Whether a version needs it: not if its files contain the same configuration, and not if `/etc` is not a folder.
pub(super) fn is_needed(view: &View) -> Result<bool, ImageError> {
    use rustix::fs::FileType;
    let is_folder = |mode| FileType::from_raw_mode(mode) == FileType::Directory;
    if view.find(b"etc")?.is_some_and(|seen| !is_folder(seen.stat.st_mode)) {
        return Ok(false);
    }
    let known = view.read(PATH.as_bytes(), NAMES.len() as u64 + 1)?;
    Ok(known.as_deref() != Some(NAMES))
}
