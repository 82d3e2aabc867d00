//! A real registry on the loopback of a world (Debian's `docker-registry`), filled by hand.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use reqwest::{Method, StatusCode};

use crate::World;
use crate::image::{Blob, Image, Packed};

mod faults;

pub use faults::{Fault, PROXY, Proxy, Rule, Seen};

/// Where it listens; each world has its own loopback.
pub const ADDRESS: &str = "127.0.0.1:5000";

/// A world whose operator trusts the registry and the proxy before it, although they are on loopback and have no TLS.
pub fn options() -> crate::Options {
    crate::Options::default().env("ATOLL_REGISTRY_INSECURE", format!("{ADDRESS},{PROXY}"))
}

/// The registry process. Ended when dropped.
pub struct Registry<'a> {
    world: &'a World,
    folder: PathBuf,
    pid: i32,
}

impl<'a> Registry<'a> {
    /// Starts a registry without authentication, over a folder of the world, and waits until it answers.
    pub async fn start(world: &'a World) -> Self {
        let folder = world.folder().join("registry");
        std::fs::create_dir_all(&folder).expect("a folder");
        let config = folder.join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{ level: error, accesslog: {{ disabled: true }} }}\nstorage:\n  filesystem: {{ rootdirectory: \
             {}/store }}\n  delete: {{ enabled: true }}\nhttp:\n  addr: {ADDRESS}\n",
            folder.display()
        );
        std::fs::write(&config, text).expect("config.yml");
        let log = std::fs::File::create(folder.join("registry.txt")).expect("a log");
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("fd"))
            .stderr(log);
        let child = command.spawn().expect("docker-registry of the package docker-registry");
        let registry = Self { world, folder, pid: world.adopt(child) };
        crate::until("the registry answers", async || {
            reqwest::get(format!("http://{ADDRESS}/v2/")).await.is_ok_and(|a| a.status() == 200).then_some(())
        })
        .await;
        registry
    }

    /// The name of an image there, as one asks for it.
    pub fn name(&self, image: &str) -> String {
        format!("{ADDRESS}/{image}")
    }

    /// Puts an image there under a tag; answers its manifest's digest.
    pub async fn push(&self, image: &Image, name: &str, tag: &str) -> String {
        let packed = image.packed();
        self.push_packed(&packed, name, tag).await
    }

    /// As [`Registry::push`], in pieces; they need not fit together.
    pub async fn push_packed(&self, packed: &Packed, name: &str, tag: &str) -> String {
        for blob in packed.layers.iter().chain([&packed.config]) {
            self.push_blob(name, blob).await;
        }
        self.push_manifest(name, tag, &packed.manifest).await;
        packed.manifest.digest.clone()
    }

    /// Puts one piece there.
    pub async fn push_blob(&self, name: &str, blob: &Blob) {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let begun =
            http.post(format!("http://{ADDRESS}/v2/{name}/blobs/uploads/")).send().await.expect("upload");
        assert_eq!(begun.status(), StatusCode::ACCEPTED);
        let at = begun.headers()["location"].to_str().expect("a place").to_owned();
        let joint = if at.contains('?') { '&' } else { '?' };
        let put =
            http.put(format!("{at}{joint}digest={}", blob.digest)).body(blob.bytes.clone()).send().await;
        let put = put.expect("upload");
        assert_eq!(put.status(), StatusCode::CREATED, "{}", put.text().await.unwrap_or_default());
    }

    /// Names an image by its manifest, or an index.
    pub async fn push_manifest(&self, name: &str, tag: &str, manifest: &Blob) {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let put = http
            .request(Method::PUT, format!("http://{ADDRESS}/v2/{name}/manifests/{tag}"))
            .header("content-type", &manifest.media_type)
            .body(manifest.bytes.clone())
            .send()
            .await
            .expect("manifest");
        let status = put.status();
        assert_eq!(status, StatusCode::CREATED, "{}", put.text().await.unwrap_or_default());
    }

    /// The file in which it keeps a piece, for a test that spoils it.
    pub fn file_of(&self, digest: &str) -> PathBuf {
        let hex = &digest["sha256:".len()..];
        self.folder.join(format!("store/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }

    /// Copies an image of this registry into a layout by skopeo, which shares no code with us: what it takes is sound.
    pub async fn judge(&self, name: &str, tag: &str, into: &Path) {
        let mut skopeo = Command::new("skopeo");
        skopeo
            .args(["copy", "--src-tls-verify=false", "--insecure-policy"])
            .arg(format!("docker://{ADDRESS}/{name}:{tag}"))
            .arg(format!("oci-archive:{}:{tag}", into.display()));
        let done = self.world.output(skopeo).await;
        assert!(done.status.success(), "skopeo: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        ADDRESS.parse().expect("an address")
    }
}

impl Drop for Registry<'_> {
    fn drop(&mut self) {
        self.world.end_adopted(self.pid);
    }
}
