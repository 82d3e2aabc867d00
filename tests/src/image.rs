//! Images made by hand: layers, a configuration, and the forms in which the world hands images around.
//!
//! Nothing here uses the code under test: what is pulled, imported and exported is written and read by other means.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

mod layer;
mod tree;

pub use layer::Layer;
pub use tree::{Tree, config_of, tree_of};

/// How a layer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    Plain,
    /// As Docker does.
    Gzip,
    /// As newer tools do.
    Zstd,
}

/// An image.
#[derive(Debug, Clone)]
pub struct Image {
    layers: Vec<(Vec<u8>, Packing)>,
    /// The `config` part of its configuration.
    pub config: Value,
    /// The platform that it says it is for.
    pub architecture: &'static str,
}

/// A piece of content and its name.
#[derive(Debug, Clone)]
pub struct Blob {
    /// `sha256:<hex>`.
    pub digest: String,
    /// What it is.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &str, bytes: Vec<u8>) -> Self {
        Self { digest: digest(&bytes), media_type: media_type.to_owned(), bytes }
    }

    /// As a manifest names it.
    pub fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }

    fn hex(&self) -> &str {
        &self.digest["sha256:".len()..]
    }
}

/// An image in pieces, ready for a registry or an archive.
#[derive(Debug, Clone)]
pub struct Packed {
    /// What names the rest.
    pub manifest: Blob,
    /// The configuration.
    pub config: Blob,
    /// Bottom first.
    pub layers: Vec<Blob>,
}

/// The digest of bytes.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";

impl Default for Image {
    fn default() -> Self {
        let config = json!({ "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["/bin/sh"] });
        Self { layers: Vec::new(), config, architecture: "amd64" }
    }
}

impl Image {
    /// One more layer on top.
    pub fn layer(self, layer: &Layer, packing: Packing) -> Self {
        self.tar(layer.tar(), packing)
    }

    /// One more layer on top, as the bytes of a tar.
    pub fn tar(mut self, tar: Vec<u8>, packing: Packing) -> Self {
        self.layers.push((tar, packing));
        self
    }

    /// With another configuration.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// The configuration's bytes.
    fn configuration(&self) -> Vec<u8> {
        let diff_ids: Vec<String> = self.layers.iter().map(|(tar, _)| digest(tar)).collect();
        let history: Vec<Value> = self.layers.iter().map(|_| json!({ "created_by": "a test" })).collect();
        let whole = json!({
            "architecture": self.architecture, "os": "linux", "created": "2024-01-01T00:00:00Z",
            "config": self.config, "rootfs": { "type": "layers", "diff_ids": diff_ids }, "history": history,
        });
        whole.to_string().into_bytes()
    }

    /// In pieces, with the media types of OCI.
    pub fn packed(&self) -> Packed {
        let config = Blob::new(OCI_CONFIG, self.configuration());
        let layers: Vec<Blob> =
            self.layers.iter().map(|(tar, packing)| packed_layer(tar, *packing)).collect();
        let descriptors: Vec<Value> = layers.iter().map(Blob::descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config.descriptor(), "layers": descriptors,
        });
        Packed { manifest: Blob::new(OCI_MANIFEST, manifest.to_string().into_bytes()), config, layers }
    }

    /// As `docker save` writes it.
    pub fn docker_archive(&self, name: &str) -> Vec<u8> {
        let config = self.configuration();
        let config_name = format!("{}.json", &digest(&config)["sha256:".len()..]);
        let mut archive = Layer::new().file(&config_name, 0o644, &config);
        let mut names = Vec::new();
        for (tar, _) in &self.layers {
            let id = digest(tar)["sha256:".len()..].to_owned();
            archive = archive.folder(&format!("{id}/"), 0o755).file(&format!("{id}/layer.tar"), 0o644, tar);
            names.push(format!("{id}/layer.tar"));
        }
        let manifest =
            json!([{ "Config": config_name, "RepoTags": [format!("{name}:latest")], "Layers": names }]);
        archive.file("manifest.json", 0o644, manifest.to_string()).tar()
    }

    /// An OCI layout as one archive.
    pub fn oci_archive(&self, tag: &str) -> Vec<u8> {
        let packed = self.packed();
        let mut archive = Layer::new()
            .file("oci-layout", 0o644, r#"{"imageLayoutVersion":"1.0.0"}"#)
            .file("index.json", 0o644, index(&packed.manifest, tag).to_string())
            .folder("blobs/sha256/", 0o755);
        for blob in packed.all() {
            archive = archive.file(&format!("blobs/sha256/{}", blob.hex()), 0o644, &blob.bytes);
        }
        archive.tar()
    }

    /// An OCI layout in a folder.
    pub fn oci_layout(&self, folder: &Path, tag: &str) {
        let packed = self.packed();
        let blobs = folder.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).expect("folder");
        std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("layout");
        std::fs::write(folder.join("index.json"), index(&packed.manifest, tag).to_string()).expect("index");
        for blob in packed.all() {
            std::fs::write(blobs.join(blob.hex()), &blob.bytes).expect("blob");
        }
    }
}

impl Packed {
    /// Every piece.
    pub fn all(&self) -> impl Iterator<Item = &Blob> {
        self.layers.iter().chain([&self.config, &self.manifest])
    }
}

/// An index over images for several platforms; the images' own manifests must be pushed before.
pub fn index_of(images: &[&Image]) -> Blob {
    let of = |image: &&Image| {
        let mut descriptor = image.packed().manifest.descriptor();
        descriptor["platform"] = json!({ "os": "linux", "architecture": image.architecture });
        descriptor
    };
    let manifests: Vec<Value> = images.iter().map(of).collect();
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests });
    Blob::new(OCI_INDEX, index.to_string().into_bytes())
}

fn index(manifest: &Blob, tag: &str) -> Value {
    let mut descriptor = manifest.descriptor();
    descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
    json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [descriptor] })
}

fn packed_layer(tar: &[u8], packing: Packing) -> Blob {
    const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    match packing {
        Packing::Plain => Blob::new(LAYER, tar.to_vec()),
        Packing::Gzip => Blob::new(&format!("{LAYER}+gzip"), gzip(tar)),
        Packing::Zstd => Blob::new(&format!("{LAYER}+zstd"), zstd::encode_all(tar, 3).expect("memory")),
    }
}

/// Gzip of bytes, the same each time.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).expect("memory");
    packer.finish().expect("memory")
}

/// A base that is small, runs shell lines, and holds something of everything that builds change.
pub fn busybox() -> Image {
    let program = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find_map(|path| std::fs::read(path).ok());
    let program = program.expect("busybox of the package busybox-static");
    let listed = std::process::Command::new("busybox").arg("--list").output().expect("busybox runs");
    let mut layer = Layer::new();
    for folder in
        ["bin/", "data/", "data/old/", "data/old/deep/", "dev/", "etc/", "home/", "opt/", "opt/base/"]
    {
        layer = layer.folder(folder, 0o755);
    }
    for folder in ["opt/base/sub/", "proc/", "sys/", "usr/", "usr/bin/", "var/"] {
        layer = layer.folder(folder, 0o755);
    }
    layer = layer.folder("root/", 0o700).folder("tmp/", 0o1777).file("bin/busybox", 0o755, program);
    for applet in String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox") {
        layer = layer.link(&format!("bin/{applet}"), "/bin/busybox");
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1001:1001::/home/user:/bin/sh\n\
                  app:x:1000:1000::/home/app:/bin/sh\n";
    layer = layer
        .file("etc/passwd", 0o644, passwd)
        .file("etc/group", 0o644, "root:x:0:\nstaff:x:50:app\napp:x:1000:\nuser:x:1001:\n")
        .file("etc/base", 0o644, "of the base\n")
        .file("data/old/a", 0o644, "a\n")
        .file("data/old/deep/b", 0o640, "b\n")
        .file("opt/base/one", 0o644, "one\n")
        .file("opt/base/two", 0o755, "two\n")
        .file("opt/base/sub/three", 0o600, "three\n")
        .link("opt/link", "base/one")
        .file("opt/hard1", 0o644, "hard\n")
        .hard("opt/hard2", "opt/hard1")
        .owner(1000, 1000)
        .folder("home/app/", 0o755)
        .owner(1001, 1001)
        .folder("home/user/", 0o755);
    let config = json!({
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "BASE=yes"],
        "Cmd": ["/bin/sh"], "Labels": { "of": "base" },
    });
    Image::default().layer(&layer, Packing::Gzip).config(config)
}
