//! Writes a version as an archive for other tools.

use std::fs::File;
use std::io::{self, Read, Write};

use tokio_util::sync::CancellationToken;

use super::pack::{MANIFEST, Packed, PackedLayer};
use super::{ImageError, Images};
use crate::layers::{DiffId, LayerError, TarWriter};
use crate::oci::unzip::Unzip;

/// The format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportAs {
    /// An OCI layout in a tar.
    OciArchive,
    /// The format of `docker load`.
    DockerArchive,
}

impl Images {
    /// Writes a version as an archive for other tools, with these names (`name:tag`) in it. Blocking.
    pub fn export(
        &self,
        version: &str,
        what: ExportAs,
        names: &[String],
        to: impl Write,
        cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        let number = self.uses.begin();
        let done = self.pack(version, cancel).and_then(|packed| {
            let mut archive = TarWriter::new(io::BufWriter::with_capacity(256 << 10, to));
            match what {
                ExportAs::OciArchive => self.write_oci(&mut archive, &packed, names, cancel)?,
                ExportAs::DockerArchive => self.write_docker(&mut archive, &packed, names, cancel)?,
            }
            archive.finish().map_err(LayerError::Sink)?;
            Ok(())
        });
        self.uses.end(number);
        done
    }

    fn write_oci<W: Write>(
        &self,
        archive: &mut TarWriter<W>,
        packed: &Packed,
        names: &[String],
        cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        let manifests: Vec<_> = names_or_none(names)
            .map(|name| {
                let mut entry = serde_json::json!({
                    "mediaType": MANIFEST, "digest": packed.manifest_digest, "size": packed.manifest.len(),
                });
                if let Some(name) = name {
                    entry["annotations"] = serde_json::json!({
                        "org.opencontainers.image.ref.name": name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
                        "io.containerd.image.name": name,
                    });
                }
                entry
            })
            .collect();
        let index = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests,
        });
        let mut small = |name: &str, bytes: &[u8]| archive.file(name, bytes).map_err(LayerError::Sink);
        small("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        small("index.json", index.to_string().as_bytes())?;
        small("blobs/", b"")?;
        small("blobs/sha256/", b"")?;
        small(&format!("blobs/sha256/{}", packed.manifest_digest.hex()), &packed.manifest)?;
        small(&format!("blobs/sha256/{}", packed.config_digest.hex()), &packed.config)?;
        for layer in once_each(&packed.layers, |layer| layer.digest) {
            let path = self.blob_path(&layer.digest);
            let file = File::open(&path).map_err(ImageError::io("open", &path))?;
            let name = format!("blobs/sha256/{}", layer.digest.hex());
            copy(archive, &name, file, layer.size, cancel)?;
        }
        Ok(())
    }

    fn write_docker<W: Write>(
        &self,
        archive: &mut TarWriter<W>,
        packed: &Packed,
        names: &[String],
        cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        let file_of = |diff_id: &DiffId| format!("{}.tar", diff_id.hex());
        let config = format!("{}.json", packed.config_digest.hex());
        for layer in once_each(&packed.layers, |layer| layer.diff_id.0) {
            let path = self.blob_path(&layer.digest);
            let file = File::open(&path).map_err(ImageError::io("open", &path))?;
            // Docker expects them uncompressed.
            let plain = Unzip::new(file).map_err(ImageError::io("read", &path))?;
            copy(archive, &file_of(&layer.diff_id), plain, layer.tar_bytes, cancel)?;
        }
        let layers: Vec<_> = packed.layers.iter().map(|layer| file_of(&layer.diff_id)).collect();
        let manifest = serde_json::json!([{ "Config": config, "RepoTags": names, "Layers": layers }]);
        let mut small = |name: &str, bytes: &[u8]| archive.file(name, bytes).map_err(LayerError::Sink);
        small(&config, &packed.config)?;
        small("manifest.json", manifest.to_string().as_bytes())?;
        Ok(())
    }
}

/// Every name, or a single `None` if there are none.
fn names_or_none(names: &[String]) -> impl Iterator<Item = Option<&str>> {
    let none = names.is_empty().then_some(None);
    names.iter().map(|name| Some(name.as_str())).chain(none)
}

/// A layer that occurs twice in an image is written once.
fn once_each<K: Eq + std::hash::Hash>(
    layers: &[PackedLayer],
    key: impl Fn(&PackedLayer) -> K,
) -> impl Iterator<Item = &PackedLayer> {
    let mut seen = std::collections::HashSet::new();
    layers.iter().filter(move |layer| seen.insert(key(layer)))
}

/// Writes one file of the archive; if its size differs from the announced one, the archive is aborted.
fn copy<W: Write>(
    archive: &mut TarWriter<W>,
    name: &str,
    mut from: impl Read,
    size: u64,
    cancel: &CancellationToken,
) -> Result<(), ImageError> {
    archive.file_header(name, size).map_err(LayerError::Sink)?;
    let mut buffer = vec![0; 256 << 10];
    let mut left = size;
    loop {
        if cancel.is_cancelled() {
            return Err(LayerError::Cancelled.into());
        }
        let some = match from.read(&mut buffer) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            other => other.map_err(ImageError::io("read", name))?,
        };
        if some as u64 > left || some == 0 && left > 0 {
            return Err(ImageError::Damaged { what: name.to_owned(), why: "its size is wrong".into() });
        }
        if some == 0 {
            return archive.pad(size).map_err(|cause| LayerError::Sink(cause).into());
        }
        archive.data(&buffer[..some]).map_err(LayerError::Sink)?;
        left -= some as u64;
    }
}
