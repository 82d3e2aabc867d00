//! Templates of many layers, for tests.
#![allow(dead_code, clippy::unwrap_used)]

use atoll_image::DiffId;
use atoll_image::images::NewVersion;
use atoll_model::StartSettings;
use atoll_provider::InstanceSpec;
use tokio_util::sync::CancellationToken;

use crate::common::World;

/// A layer with these files; a path that ends in `/` is a folder.
pub(crate) fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        let is_folder = path.ends_with('/');
        header.set_entry_type(if is_folder { tar::EntryType::Directory } else { tar::EntryType::Regular });
        header.set_mode(if is_folder { 0o755 } else { 0o644 });
        header.set_size(content.len() as u64);
        header.set_mtime(1);
        out.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    out.into_inner().unwrap()
}

impl World {
    pub(crate) fn add_layer(&self, tar: &[u8]) -> DiffId {
        self.images.add_layer(None, tar, &CancellationToken::new()).unwrap().diff_id
    }

    /// A sandbox of a version with these layers on top of busybox, the bottom layer first.
    pub(crate) fn stacked(&self, layers: Vec<DiffId>) -> InstanceSpec {
        let busybox = self.catalog.get("busybox").unwrap();
        let version = self.images.put_version(NewVersion {
            base: Some(("busybox".into(), busybox.digest.clone())),
            layers,
            config: Default::default(),
            settings: StartSettings::default(),
        });
        InstanceSpec { template: "stacked".into(), template_version: version.unwrap(), ..self.spec() }
    }

    /// Layer `n` has `/l/n`, writes its number to `/l/top`, and removes the file of the layer two below it.
    pub(crate) fn many_layers(&self, count: usize) -> InstanceSpec {
        let mut layers = Vec::new();
        for n in 0..count {
            let (own, text) = (format!("l/{n}"), n.to_string());
            let mut files = vec![("l/", ""), (own.as_str(), text.as_str()), ("l/top", text.as_str())];
            let gone = format!("l/.wh.{}", n.saturating_sub(2));
            if n >= 2 {
                files.push((gone.as_str(), ""));
            }
            layers.push(self.add_layer(&tar(&files)));
        }
        self.stacked(layers)
    }
}
