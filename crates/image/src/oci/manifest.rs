//! Manifests, indexes and configs as registries send them: OCI's and Docker's schema 2. Parsing only, no requests.

use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, Os};
use serde::Deserialize;

use super::error::RegistryError;
use super::platform::Platform;
use crate::layers::{DiffId, Digest};

/// LIMIT: bytes of a manifest, an index or a config.
pub(super) const TEXT_MAX: usize = 4 << 20;
/// LIMIT: layers of an image. Docker makes no more than 127.
const LAYERS_MAX: usize = 512;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The supported media types, for the `Accept` header.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// The target of a tag.
#[derive(Debug)]
pub(super) enum RegistryManifest {
    Image(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

/// The fields that distinguish the two.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    #[serde(default)]
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerDescriptor {
    /// Digest of its blob.
    pub digest: Digest,
    /// Size of its blob.
    pub size: u64,
    /// Id of the archive in it.
    pub diff_id: DiffId,
}

impl RegistryManifest {
    /// Parses a manifest. `said` is the media type in the response header.
    pub(super) fn read(image: &str, bytes: &[u8], said: Option<&str>) -> Result<Self, RegistryError> {
        let damaged = |why: String| RegistryError::damaged(format!("the manifest of {image}"), why);
        let unsupported = |what: &str, why| RegistryError::Unsupported {
            image: image.to_owned(),
            what: what.to_owned(),
            why,
        };
        let shape: Shape = serde_json::from_slice(bytes).map_err(|cause| damaged(cause.to_string()))?;
        if shape.schema_version != 2 {
            return Err(unsupported("the manifest", "only manifests of schema 2 are supported"));
        }
        // Bytes that can be read as both could be different images for different readers.
        if shape.manifests.is_some() && shape.layers.is_some() {
            return Err(damaged("it is both an image and an index".into()));
        }
        let said = said.map(|said| said.split(';').next().unwrap_or_default().trim());
        let is_index = match shape.media_type.as_deref().or(said) {
            Some(OCI_INDEX | DOCKER_LIST) => true,
            Some(OCI_MANIFEST | DOCKER_MANIFEST) => false,
            // Some storage responds with its own media type, and the body has none.
            _ if shape.media_type.is_none() => shape.manifests.is_some(),
            _ => return Err(unsupported("the manifest", "it is neither an image nor an index")),
        };
        let read = match is_index {
            true => serde_json::from_slice(bytes).map(|index| Self::Index(Box::new(index))),
            false => serde_json::from_slice(bytes).map(|manifest| Self::Image(Box::new(manifest))),
        };
        read.map_err(|cause| damaged(cause.to_string()))
    }
}

/// The digest of a descriptor; other algorithms than SHA-256 are refused by name.
pub(super) fn digest_of(image: &str, descriptor: &Descriptor) -> Result<Digest, RegistryError> {
    let text = descriptor.digest().to_string();
    text.parse().map_err(|_| RegistryError::Unsupported {
        image: image.to_owned(),
        what: text.chars().take(80).collect(),
        why: "digests are sha256",
    })
}

/// The digest and size of the config, after a check of its media type.
pub(super) fn config_of(image: &str, manifest: &ImageManifest) -> Result<(Digest, usize), RegistryError> {
    let descriptor = manifest.config();
    let kind = descriptor.media_type().to_string();
    let is_image = matches!(
        kind.as_str(),
        "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json"
    );
    if !is_image {
        return Err(RegistryError::Unsupported {
            image: image.to_owned(),
            what: kind,
            why: "it is not a file system image",
        });
    }
    let size = usize::try_from(descriptor.size()).ok().filter(|size| *size <= TEXT_MAX);
    let size =
        size.ok_or_else(|| RegistryError::damaged(format!("the config of {image}"), "it is too large"))?;
    Ok((digest_of(image, descriptor)?, size))
}

/// Parses a config and pairs its layers with those of the manifest, the bottom one first.
pub(super) fn layers_of(
    image: &str,
    manifest: &ImageManifest,
    config: &[u8],
    platform: &Platform,
) -> Result<(ImageConfiguration, Vec<LayerDescriptor>), RegistryError> {
    let damaged = |why: String| RegistryError::damaged(format!("the config of {image}"), why);
    let config: ImageConfiguration =
        serde_json::from_slice(config).map_err(|cause| damaged(cause.to_string()))?;
    check_platform(image, &config, platform)?;
    let (layers, diff_ids) = (manifest.layers(), config.rootfs().diff_ids());
    if layers.len() != diff_ids.len() {
        return Err(damaged(format!("it names {} layers and the manifest {}", diff_ids.len(), layers.len())));
    }
    if layers.len() > LAYERS_MAX {
        return Err(damaged(format!("it has more than {LAYERS_MAX} layers")));
    }
    let pair = |(layer, diff_id): (&Descriptor, &String)| {
        check_layer(image, layer)?;
        let diff_id = diff_id.parse().map_err(|_| damaged("a layer's digest is not sha256".into()))?;
        Ok(LayerDescriptor { digest: digest_of(image, layer)?, size: layer.size(), diff_id })
    };
    let wanted: Result<Vec<_>, RegistryError> = layers.iter().zip(diff_ids).map(pair).collect();
    Ok((config, wanted?))
}

/// Refuses an image for another platform, because its programs would not run here.
fn check_platform(image: &str, config: &ImageConfiguration, asked: &Platform) -> Result<(), RegistryError> {
    let there = Platform {
        os: config.os().to_string(),
        arch: config.architecture().to_string(),
        variant: config.variant().clone().filter(|variant| !variant.is_empty()),
    };
    // Hand-made images that contain only files often have no platform.
    let says_nothing = matches!(config.os(), Os::Other(os) if os.is_empty())
        || matches!(config.architecture(), Arch::Other(arch) if arch.is_empty());
    if says_nothing || asked.is_served_by(&there) {
        return Ok(());
    }
    Err(RegistryError::NoPlatform {
        image: image.to_owned(),
        asked: asked.to_string(),
        there: there.to_string(),
    })
}

/// Checks the media type of a layer. The compression is detected from its bytes.
fn check_layer(image: &str, layer: &Descriptor) -> Result<(), RegistryError> {
    let kind = layer.media_type().to_string();
    let refuse = |why| {
        let what = format!("the layer {} ({kind})", layer.digest());
        Err(RegistryError::Unsupported { image: image.to_owned(), what, why })
    };
    if kind.contains(".nondistributable.") || kind.contains(".foreign.") {
        return refuse("it is a foreign layer, which is not downloaded");
    }
    if kind.contains("+encrypted") {
        return refuse("it is encrypted");
    }
    let is_files = kind.starts_with("application/vnd.oci.image.layer.v1.tar")
        || kind.starts_with("application/vnd.docker.image.rootfs.diff.tar");
    if is_files { Ok(()) } else { refuse("it is not an archive of files") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn descriptor(kind: &str) -> serde_json::Value {
        serde_json::json!({"mediaType": kind, "digest": format!("sha256:{}", "a".repeat(64)), "size": 7})
    }

    fn manifest(layer: &str) -> Vec<u8> {
        let config = descriptor("application/vnd.docker.container.image.v1+json");
        let whole = serde_json::json!({"schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": config, "layers": [descriptor(layer)]});
        whole.to_string().into_bytes()
    }

    fn config(arch: &str, layers: usize) -> Vec<u8> {
        let ids: Vec<String> = (0..layers).map(|n| format!("sha256:{n:064x}")).collect();
        // As Docker writes it: with nulls, and with fields that OCI does not know.
        serde_json::json!({"architecture": arch, "os": "linux", "docker_version": "20", "container": "x",
            "config": {"Hostname": "", "Cmd": null, "Env": ["A=b"], "ExposedPorts": {"80/tcp": {}}, "Volumes": null, "Labels": null,
                "OnBuild": null, "Entrypoint": null, "Healthcheck": {"Test": ["NONE"]}, "ArgsEscaped": true},
            "rootfs": {"type": "layers", "diff_ids": ids}, "history": [{"created": "2020-01-01T00:00:00Z", "empty_layer": true}]})
        .to_string()
        .into_bytes()
    }

    fn read(layer: &str, arch: &str, layers: usize) -> Result<Vec<LayerDescriptor>, RegistryError> {
        let RegistryManifest::Image(manifest) =
            RegistryManifest::read("a", &manifest(layer), Some(DOCKER_MANIFEST))?
        else {
            panic!("no image")
        };
        let asked = "linux/amd64".parse()?;
        layers_of("a", &manifest, &config(arch, layers), &asked).map(|(_, layers)| layers)
    }

    #[test]
    fn images_of_docker_and_oci_are_read() {
        for kind in [
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.oci.image.layer.v1.tar",
        ] {
            let layers = read(kind, "amd64", 1).unwrap();
            assert_eq!((layers.len(), layers[0].size), (1, 7), "{kind}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let plain = "application/vnd.oci.image.layer.v1.tar";
        for (kind, arch, layers, word) in [
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "amd64", 1, "foreign"),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar", "amd64", 1, "foreign"),
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "amd64", 1, "encrypted"),
            ("application/vnd.wasm.content.layer.v1+wasm", "amd64", 1, "not an archive"),
            (plain, "arm64", 1, "linux/arm64"),
            (plain, "amd64", 2, "2 layers"),
        ] {
            let error = read(kind, arch, layers).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        for (text, word) in [
            (r#"{"schemaVersion":1,"fsLayers":[]}"#, "schema 2"),
            (r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#, "both"),
            (r#"{"schemaVersion":2,"mediaType":"application/x"}"#, "neither"),
            (r#"{"schemaVersion":2}"#, "missing"),
            ("<html>", "expected"),
        ] {
            let error = RegistryManifest::read("a", text.as_bytes(), None).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn any_manifest_is_read_or_refused() {
        let platform: Platform = "linux/amd64".parse().unwrap();
        atoll_robustness::check("oci_manifest", |bytes| {
            for said in [None, Some(DOCKER_MANIFEST), Some(OCI_INDEX)] {
                match RegistryManifest::read("a", bytes, said) {
                    Ok(RegistryManifest::Image(manifest)) => {
                        let _ = config_of("a", &manifest);
                        let config = config("amd64", manifest.layers().len());
                        let layers = layers_of("a", &manifest, &config, &platform);
                        assert!(layers.is_err() || manifest.layers().len() <= LAYERS_MAX);
                    }
                    Ok(RegistryManifest::Index(index)) => drop(platform.choose("a", &index)),
                    Err(_) => {}
                }
            }
        });
    }

    #[test]
    fn any_config_is_read_or_refused() {
        let platform: Platform = "linux/amd64".parse().unwrap();
        let plain = manifest("application/vnd.oci.image.layer.v1.tar");
        let Ok(RegistryManifest::Image(manifest)) = RegistryManifest::read("a", &plain, None) else {
            panic!("no image")
        };
        atoll_robustness::check("oci_config", |bytes| {
            if let Ok((config, layers)) = layers_of("a", &manifest, bytes, &platform) {
                assert_eq!(layers.len(), 1);
                let _ = crate::images::start_settings(&config);
            }
        });
    }
}
