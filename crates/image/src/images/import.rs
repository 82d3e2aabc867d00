//! Reads an image from an archive or a folder: the output of `docker save`, an OCI layout, or a root file system.
//!
//! Every archive is unpacked first. If the result is an image, its layers are unpacked too; if not, the result is the
//! layer. So there is only one reader of untrusted bytes, and the kind of archive need not be known in advance.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use oci_spec::image::ImageConfiguration;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::version::NewVersion;
use super::{IMPORTS, ImageError, Images, start_settings};
use crate::layers::{DiffId, Digest, LayerError};
use crate::oci::unzip::{Unzip, Zip};

/// LIMIT: bytes of an index, a manifest or a config.
const JSON_MAX: u64 = 4 << 20;
/// LIMIT: nesting of indexes.
const INDEX_DEPTH: usize = 3;

/// The kind of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImportAs {
    /// Detect the kind.
    #[default]
    Auto,
    /// `docker save`.
    DockerArchive,
    /// An OCI layout in a tar.
    OciArchive,
    /// A root file system.
    Rootfs,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The new version.
    pub version: String,
    /// Names of the image in the archive.
    pub names: Vec<String>,
}

/// An image as an archive describes it.
struct DescribedImage {
    config: ImageConfiguration,
    /// The path of each layer, the bottom one first, and its digest if the archive has it.
    layers: Vec<(String, Option<Digest>)>,
    names: Vec<String>,
}

#[derive(Deserialize)]
struct DockerManifest {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags", default)]
    names: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Pointer>,
}

#[derive(Deserialize)]
struct OciManifest {
    config: Pointer,
    layers: Vec<Pointer>,
}

#[derive(Deserialize)]
struct Pointer {
    digest: Digest,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Images {
    /// Reads an image or a root file system; compressed or not. Blocking.
    pub fn import(
        self: &std::sync::Arc<Self>,
        from: impl Read + Send,
        what: ImportAs,
        cancel: &CancellationToken,
    ) -> Result<Imported, ImageError> {
        let _working = self.begin();
        let plain = Unzip::new(from).map_err(LayerError::Source)?;
        let unpacked = self.unpack(IMPORTS, plain, cancel)?;
        if unpacked.is_empty() {
            return Err(ImageError::NotAnImage { why: "the archive is empty".into() });
        }
        let folder = Layout::open(&unpacked.files())?;
        let described = match what {
            ImportAs::Rootfs => None,
            ImportAs::DockerArchive => Some(folder.docker()?),
            ImportAs::OciArchive => Some(folder.oci()?),
            // Newer archives of docker save have both forms; the one that Docker itself reads is used.
            ImportAs::Auto if folder.has("manifest.json") && folder.docker().is_ok() => {
                Some(folder.docker()?)
            }
            ImportAs::Auto if folder.has("oci-layout") && folder.has("index.json") => Some(folder.oci()?),
            ImportAs::Auto => None,
        };
        match described {
            Some(described) => self.take_in(&folder, described, cancel),
            None => {
                let layer = self.publish(unpacked)?;
                let version =
                    self.put_version(NewVersion { layers: vec![layer.diff_id], ..NewVersion::default() })?;
                Ok(Imported { version, names: Vec::new() })
            }
        }
    }

    /// Reads an image from an OCI layout folder. Blocking.
    pub fn import_layout(
        self: &std::sync::Arc<Self>,
        dir: &Path,
        cancel: &CancellationToken,
    ) -> Result<Imported, ImageError> {
        let _working = self.begin();
        let folder = Layout::open(dir)?;
        let described = folder.oci()?;
        self.take_in(&folder, described, cancel)
    }

    fn take_in(
        &self,
        from: &Layout,
        image: DescribedImage,
        cancel: &CancellationToken,
    ) -> Result<Imported, ImageError> {
        let diff_ids = image.config.rootfs().diff_ids().iter().map(|text| text.parse::<DiffId>());
        let diff_ids = diff_ids.collect::<Result<Vec<_>, _>>()?;
        if diff_ids.len() != image.layers.len() {
            let why =
                format!("its config names {} layers, its manifest {}", diff_ids.len(), image.layers.len());
            return Err(ImageError::NotAnImage { why });
        }
        for (diff_id, (path, digest)) in diff_ids.iter().zip(&image.layers) {
            // Also for layers that exist already: an archive that names a layer must contain it.
            self.take_layer(from, path, digest.as_ref(), diff_id, cancel)?;
        }
        let settings = start_settings(&image.config);
        let new = NewVersion { base: None, layers: diff_ids, config: image.config, settings };
        Ok(Imported { version: self.put_version(new)?, names: image.names })
    }

    /// Unpacks one layer and keeps its blob, so that a push or export gives the same layer.
    fn take_layer(
        &self,
        from: &Layout,
        path: &str,
        digest: Option<&Digest>,
        diff_id: &DiffId,
        cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        let mut hash = Sha256::new();
        let file = Tee { from: from.file(path)?, hash: &mut hash };
        let mut plain = Unzip::new(file).map_err(LayerError::Source)?;
        let zip = plain.zip();
        self.add_layer(Some(diff_id), &mut plain, cancel)?;
        std::io::copy(&mut plain, &mut std::io::sink()).map_err(LayerError::Source)?;
        drop(plain);
        let found = Digest::from_hash(hash);
        if let Some(&expected) = digest
            && expected != found
        {
            return Err(LayerError::WrongDigest { expected, found }.into());
        }
        if self.has_packed(diff_id) {
            return Ok(());
        }
        self.room_for(from.file(path)?.metadata().map_or(0, |file| file.len()))?;
        let mut blob = self.new_blob()?;
        match zip {
            // Compressed now, while the original bytes are available: packed again from its files it would be another
            // layer.
            Zip::Plain => blob.write_gzip(from.file(path)?)?,
            Zip::Gzip | Zip::Zstd => blob.write(from.file(path)?)?,
        }
        let (digest, _) = self.keep_blob(blob)?;
        let media_type = if zip == Zip::Plain { Zip::Gzip.media_type() } else { zip.media_type() };
        self.set_blob(diff_id, &digest, media_type)
    }
}

/// Hashes the bytes that are read through it.
struct Tee<'a> {
    from: File,
    hash: &'a mut Sha256,
}

impl Read for Tee<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let some = self.from.read(into)?;
        self.hash.update(&into[..some]);
        Ok(some)
    }
}

/// A folder that may contain an image. Whatever the names and links of its files are, no file outside it is opened.
struct Layout {
    root: std::os::fd::OwnedFd,
}

impl Layout {
    fn open(path: &Path) -> Result<Self, ImageError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self { root: root.map_err(|errno| ImageError::io("open", path)(errno.into()))? })
    }

    fn has(&self, name: &str) -> bool {
        self.file(name).is_ok()
    }

    /// A plain file; a symbolic link is followed as if this folder were the root. Old archives of Docker link layers to
    /// each other.
    fn file(&self, name: &str) -> Result<File, ImageError> {
        let missing = || ImageError::NotAnImage { why: format!("it has no file {name:?}") };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file =
            rustix::fs::openat2(&self.root, name, flags, Mode::empty(), within).map_err(|_| missing())?;
        let file = File::from(file);
        match file.metadata() {
            Ok(about) if about.is_file() => Ok(file),
            _ => Err(missing()),
        }
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<(T, Digest), ImageError> {
        let mut bytes = Vec::new();
        self.file(name)?.take(JSON_MAX).read_to_end(&mut bytes).map_err(ImageError::io("read", name))?;
        let read = serde_json::from_slice(&bytes);
        let read = read
            .map_err(|cause| ImageError::NotAnImage { why: format!("{name:?} cannot be parsed: {cause}") });
        Ok((read?, Digest::of(&bytes)))
    }

    /// A JSON blob, checked against its digest.
    fn blob<T: serde::de::DeserializeOwned>(&self, expected: &Digest) -> Result<T, ImageError> {
        let (read, found) = self.json(&blob_name(expected))?;
        if found != *expected {
            return Err(LayerError::WrongDigest { expected: *expected, found }.into());
        }
        Ok(read)
    }

    fn docker(&self) -> Result<DescribedImage, ImageError> {
        let (list, _) = self.json::<Vec<DockerManifest>>("manifest.json")?;
        let first = list.into_iter().next();
        let image =
            first.ok_or_else(|| ImageError::NotAnImage { why: "manifest.json names no image".into() })?;
        let (config, _) = self.json(&image.config)?;
        let layers = image.layers.into_iter().map(|path| (path, None)).collect();
        Ok(DescribedImage { config, layers, names: image.names.unwrap_or_default() })
    }

    fn oci(&self) -> Result<DescribedImage, ImageError> {
        let (index, _) = self.json::<Index>("index.json")?;
        let mut pointer = pick(index)?;
        let name = pointer.annotations.get("io.containerd.image.name");
        let names = name.or_else(|| pointer.annotations.get("org.opencontainers.image.ref.name"));
        let names = names.cloned().into_iter().collect();
        for _ in 0..INDEX_DEPTH {
            if !pointer.media_type.contains("index") && !pointer.media_type.contains("manifest.list") {
                break;
            }
            pointer = pick(self.blob(&pointer.digest)?)?;
        }
        let manifest: OciManifest = self.blob(&pointer.digest)?;
        let config = self.blob(&manifest.config.digest)?;
        let layers = manifest.layers.iter().map(|layer| (blob_name(&layer.digest), Some(layer.digest)));
        Ok(DescribedImage { config, layers: layers.collect(), names })
    }
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// The image for this machine; the first one if no entry has a platform.
fn pick(index: Index) -> Result<Pointer, ImageError> {
    let ours = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let is_ours = |pointer: &Pointer| {
        pointer
            .platform
            .as_ref()
            .is_none_or(|platform| platform.os == "linux" && platform.architecture == ours)
    };
    let found = index.manifests.into_iter().find(is_ours);
    found.ok_or_else(|| ImageError::NotAnImage { why: format!("it has no image for linux/{ours}") })
}
