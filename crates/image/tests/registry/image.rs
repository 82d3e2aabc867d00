//! Hand-made images, and the store that they are pulled into.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use atoll_image::oci::{Auth, Progress, Progressed, Pulled, Registry, RegistryError, RegistrySettings};
use atoll_image::{Bounds, Digest, Images};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::registry::fake::Fake;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An archive with these files.
pub(crate) fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Bytes that do not compress, always the same for a seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// A layer: its archive, its blob, and its description in the manifest.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) tar: Vec<u8>,
    pub(crate) blob: Bytes,
    pub(crate) media_type: String,
}

impl Layer {
    pub(crate) fn gzip(files: &[(&str, &[u8])]) -> Self {
        let tar = tar(files);
        Self { blob: gzip(&tar).into(), tar, media_type: OCI_GZIP.into() }
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.blob)
    }
}

/// The published image.
pub(crate) struct Made {
    pub(crate) manifest: Bytes,
    pub(crate) digest: Digest,
}

/// Puts an image into the registry, under a tag and under its digest.
pub(crate) fn publish(
    fake: &Fake,
    tag: &str,
    layers: &[Layer],
    change: impl FnOnce(&mut Value, &mut Value),
) -> Made {
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(&layer.tar).to_string()).collect();
    let mut config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
        "config": {"Env": ["PATH=/bin", "A=b"], "WorkingDir": "/srv", "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let mut manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "", "size": 0},
        "layers": layers.iter().map(|layer| json!({
            "mediaType": layer.media_type, "digest": layer.digest().to_string(), "size": layer.blob.len(),
        })).collect::<Vec<_>>(),
    });
    change(&mut config, &mut manifest);
    let config = Bytes::from(config.to_string());
    manifest["config"]["digest"] = Digest::of(&config).to_string().into();
    manifest["config"]["size"] = config.len().into();
    for blob in layers.iter().map(|layer| layer.blob.clone()).chain([config]) {
        fake.put_blob(blob);
    }
    let kind = manifest["mediaType"].as_str().unwrap_or(OCI_MANIFEST).to_owned();
    let manifest = Bytes::from(manifest.to_string());
    let digest = fake.put_manifest(tag, &kind, manifest.clone());
    Made { manifest, digest }
}

/// A store in a temporary folder.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) images: Arc<Images>,
    pub(crate) registry: Registry,
    pub(crate) told: Arc<Mutex<Vec<Progressed>>>,
}

impl World {
    /// A store whose registry client may reach these hosts without TLS.
    pub(crate) fn reaching(hosts: &[&Fake]) -> Self {
        let insecure = hosts.iter().map(|fake| fake.host()).collect();
        Self::with(RegistrySettings { insecure, ..RegistrySettings::default() })
    }

    pub(crate) fn with(settings: RegistrySettings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bounds = Bounds { disk: atoll_disk::Reserve::new(0), ..Bounds::default() };
        let images = Images::open(dir.path(), bounds).unwrap();
        Self { dir, images, registry: Registry::new(settings), told: Arc::default() }
    }

    pub(crate) fn progress(&self) -> Progress {
        let told = Arc::clone(&self.told);
        Arc::new(move |one| told.lock().unwrap().push(one))
    }

    pub(crate) async fn pull(&self, image: &str) -> Result<Pulled, RegistryError> {
        self.pull_as(image, Auth::Anonymous).await
    }

    /// Pulls for a caller that has had none of the layers in the store.
    pub(crate) async fn pull_new(&self, image: &str) -> Result<Pulled, RegistryError> {
        let image = image.parse().unwrap();
        let known = Arc::new(|_: &atoll_image::DiffId| false);
        let work =
            self.registry.pull_for(known, &self.images, &image, Auth::Anonymous, None, self.progress());
        tokio::time::timeout(std::time::Duration::from_secs(60), work).await.expect("a pull ends")
    }

    pub(crate) async fn pull_as(&self, image: &str, auth: Auth) -> Result<Pulled, RegistryError> {
        let image = image.parse().unwrap();
        let work = self.registry.pull(&self.images, &image, auth, None, self.progress());
        tokio::time::timeout(std::time::Duration::from_secs(60), work).await.expect("a pull ends")
    }

    /// The content of the store: blobs, parts, layers and versions.
    pub(crate) fn found(&self) -> Found {
        let names = |folder: &str| {
            let folder = self.dir.path().join(folder);
            let mut names: Vec<String> = std::fs::read_dir(folder)
                .map(|entries| {
                    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
                })
                .unwrap_or_default();
            names.sort();
            names
        };
        let (parts, blobs) = names("blobs/sha256").into_iter().partition(|name| name.ends_with(".part"));
        Found { blobs, parts, layers: names("layers"), versions: names("versions") }
    }

    /// Reads a file of a layer.
    pub(crate) fn read(&self, layer: &Layer, path: &str) -> Vec<u8> {
        let folder = self.dir.path().join("layers").join(Digest::of(&layer.tar).hex());
        std::fs::read(folder.join("fs").join(Path::new(path))).unwrap()
    }
}

#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Found {
    pub(crate) blobs: Vec<String>,
    pub(crate) parts: Vec<String>,
    pub(crate) layers: Vec<String>,
    pub(crate) versions: Vec<String>,
}
