//! Determines the folders that a version is stacked of: its layers, or folders merged from them if necessary.
//!
//! ```text
//! furniture            above everything, if the files lack the resolver configuration
//! layers/<top>
//! …
//! merged/<key>         a layer whose archive does not name its folders: they get the permissions of those below
//! merged/<key>         groups of sixteen, from the bottom, if there are too many
//! base                 the files of a built-in template
//! ```

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::layer::{FILES, StoredLayer, make_folder, of_staging};
use super::view::View;
use super::{ImageError, Images, LAYERS, MERGED, resolver_files};
use crate::error::TemplateError;
use crate::layers::{Digest, merge};
use crate::staging::Staging;

/// LIMIT: folders in one mount. Each costs a create about 20 µs; images with more layers are rare.
const STACK_MAX: usize = 32;
/// LIMIT: layers merged into one. Groups begin at the bottom, so a continued build reuses the earlier groups.
const GROUP: usize = 16;
/// Stands for the built-in template's files in a list of folders.
const BASE: &str = "base";

impl Images {
    /// The folders of a version, the top one first, relative to the store. `base`: the built-in template's name and
    /// files.
    pub(super) fn stack(
        &self,
        layers: &[StoredLayer],
        base: Option<(&str, &Path)>,
    ) -> Result<Vec<String>, ImageError> {
        // Layers below one that hides everything are never visible. The kernel ignores that mark on the root folder of
        // a layer, so they are left out here.
        let first = layers.iter().rposition(|layer| layer.is_opaque).unwrap_or(0);
        let base = base.filter(|_| !layers.get(first).is_some_and(|layer| layer.is_opaque));
        let layers = &layers[first.min(layers.len())..];
        let mut stack: Vec<String> = base.iter().map(|_| BASE.to_owned()).collect();
        for (at, layer) in layers.iter().enumerate() {
            // The kernel accepts no folder twice, and of two equal layers only the upper one is visible. Empty layers
            // are common: every line of an old Dockerfile makes one.
            let again = layers[at + 1..].iter().any(|above| above.diff_id == layer.diff_id);
            if again || layer.entries == 0 {
                continue;
            }
            let plain = format!("{LAYERS}/{}", layer.diff_id.hex());
            let merged = layer.implied > 0 && !stack.is_empty();
            stack.push(if merged { self.with_rights_from_below(&plain, &stack, base)? } else { plain });
        }
        let from = usize::from(base.is_some());
        let mut start = from;
        while stack.len() - from + 2 > STACK_MAX && start + GROUP <= stack.len() {
            let group: Vec<String> = stack[start..start + GROUP].to_vec();
            let merged = self.merged(&group, start == 0, "", &|_| None)?;
            stack.splice(start..start + GROUP, [merged]);
            start += 1;
        }
        stack.reverse();
        let view =
            View::open(self.folders(&stack, base.map(|(_, files)| files)).iter().map(PathBuf::as_path))?;
        if resolver_files::is_needed(&view)? {
            stack.insert(0, resolver_files::FOLDER.to_owned());
        }
        Ok(stack)
    }

    /// The absolute paths of those folders.
    pub(super) fn folders(&self, stack: &[String], base: Option<&Path>) -> Vec<PathBuf> {
        let folder = |name: &String| match name.as_str() {
            BASE => base.map(Path::to_owned),
            resolver_files::FOLDER => Some(self.dir.join(name)),
            _ => Some(self.dir.join(name).join(FILES)),
        };
        stack.iter().filter_map(folder).collect()
    }

    fn with_rights_from_below(
        &self,
        layer: &str,
        below: &[String],
        base: Option<(&str, &Path)>,
    ) -> Result<String, ImageError> {
        let mut top_first = below.to_vec();
        top_first.reverse();
        let folders = self.folders(&top_first, base.map(|(_, files)| files));
        let view = View::open(folders.iter().map(PathBuf::as_path))?;
        let folder = |path: &[u8]| {
            let seen = view.find(path).ok().flatten()?;
            (FileType::from_raw_mode(seen.stat.st_mode) == FileType::Directory).then_some(seen.stat)
        };
        // The permissions come from the layers below, so those are part of the key.
        let key = format!("{} {}", base.map_or("", |(name, _)| name), below.join(" "));
        self.merged(&[layer.to_owned()], false, &key, &folder)
    }

    /// The folder merged from these, the bottom one first; made when missing.
    fn merged(
        &self,
        folders: &[String],
        is_bottom: bool,
        key: &str,
        below: crate::layers::Below<'_>,
    ) -> Result<String, ImageError> {
        let digest = Digest::of(format!("{is_bottom}\n{key}\n{}", folders.join("\n")).as_bytes());
        let name = format!("{MERGED}/{}", digest.hex());
        self.uses.touch(&digest);
        let place = self.dir.join(&name);
        if place.join(FILES).is_dir() {
            return Ok(name);
        }
        self.room_for(0)?;
        let staging = Staging::new(&self.dir.join(MERGED))?;
        let files = staging.path().join(FILES);
        make_folder(&files)?;
        let from = self.folders(folders, None);
        let from: Vec<&Path> = from.iter().map(PathBuf::as_path).collect();
        merge(&from, &files, is_bottom, below)?;
        match staging.publish("layers merged into one", &place) {
            Ok(()) | Err(TemplateError::Exists { .. }) => Ok(name),
            Err(error) => Err(of_staging(error).into()),
        }
    }
}
