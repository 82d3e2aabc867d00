//! OCI layouts for the rows about images, made by `tar`, `gzip` and `sha256sum`, and sent by skopeo: nothing of ours is in them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// An image in a folder.
pub(crate) struct Packed {
    /// Its layers, not compressed.
    pub(crate) tars: Vec<PathBuf>,
    pub(crate) tar_bytes: u64,
    /// The same, as registries keep them.
    pub(crate) blobs: Vec<PathBuf>,
    pub(crate) packed_bytes: u64,
}

/// How a root file system is cut: what is large, and the rest.
const CUTS: [&[&str]; 3] = [&["usr/lib"], &["usr/share"], &["usr/bin", "usr/sbin"]];

/// A root file system as an image of four layers.
pub(crate) fn of_rootfs(rootfs: &Path, folder: &Path) -> Result<Packed> {
    let tars = folder.join("tars");
    std::fs::create_dir_all(&tars)?;
    let mut layers = Vec::new();
    let base = || {
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(rootfs).args(["--numeric-owner", "--sort=name", "--xattrs"]);
        tar
    };
    let rest = tars.join("0.tar");
    let mut command = base();
    for path in CUTS.iter().copied().flatten() {
        command.arg(format!("--exclude=./{path}/*"));
    }
    done(command.arg("-cf").arg(&rest).arg("."))?;
    layers.push(rest);
    for (n, paths) in CUTS.iter().enumerate() {
        let path = tars.join(format!("{}.tar", n + 1));
        done(base().arg("-cf").arg(&path).args(paths.iter().map(|path| format!("./{path}"))))?;
        layers.push(path);
    }
    write(folder, layers, "-6")
}

/// An image of four layers that hold noise.
pub(crate) fn of_noise(folder: &Path, total_mb: u32) -> Result<Packed> {
    let tars = folder.join("tars");
    std::fs::create_dir_all(&tars)?;
    let mut layers = Vec::new();
    for n in 0..4 {
        let (inside, path) = (tars.join(format!("in{n}")), tars.join(format!("{n}.tar")));
        std::fs::create_dir_all(&inside)?;
        let line = format!("head -c {}M /dev/urandom > {}/noise{n}", total_mb / 4, inside.display());
        done(Command::new("sh").arg("-ec").arg(line))?;
        done(Command::new("tar").arg("-C").arg(&inside).arg("-cf").arg(&path).arg("."))?;
        std::fs::remove_dir_all(&inside)?;
        layers.push(path);
    }
    write(folder, layers, "-1")
}

/// Sends a layout to a registry.
pub(crate) fn send(folder: &Path, to: &str) -> Result<()> {
    let from = format!("oci:{}:bench", folder.join("layout").display());
    let to = format!("docker://{to}");
    done(Command::new("skopeo").args([
        "copy",
        "-q",
        "--insecure-policy",
        "--dest-tls-verify=false",
        &from,
        &to,
    ]))
    .context("skopeo (package skopeo)")
}

fn write(folder: &Path, tars: Vec<PathBuf>, level: &str) -> Result<Packed> {
    let layout = folder.join("layout");
    let into = layout.join("blobs/sha256");
    std::fs::create_dir_all(&into)?;
    let mut packed = Packed { tars, tar_bytes: 0, blobs: Vec::new(), packed_bytes: 0 };
    let (mut diff_ids, mut descriptors) = (Vec::new(), Vec::new());
    for tar in &packed.tars {
        let zipped = tar.with_extension("gz");
        let line = format!("gzip -n {level} < {} > {}", tar.display(), zipped.display());
        done(Command::new("sh").arg("-ec").arg(line))?;
        let (digest, size) = (sha256(&zipped)?, std::fs::metadata(&zipped)?.len());
        let blob = into.join(&digest);
        std::fs::rename(&zipped, &blob)?;
        diff_ids.push(format!("sha256:{}", sha256(tar)?));
        let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
        descriptors.push(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": size }));
        packed.tar_bytes += std::fs::metadata(tar)?.len();
        packed.packed_bytes += size;
        packed.blobs.push(blob);
    }
    let config = json!({
        "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "config": { "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] },
    });
    let config = put(&into, "application/vnd.oci.image.config.v1+json", &config)?;
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": kind, "config": config, "layers": descriptors });
    let mut manifest = put(&into, kind, &manifest)?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "bench" });
    std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    std::fs::write(
        layout.join("index.json"),
        json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string(),
    )?;
    Ok(packed)
}

fn put(into: &Path, kind: &str, document: &Value) -> Result<Value> {
    let text = document.to_string();
    let path = into.join("new");
    std::fs::write(&path, &text)?;
    let digest = sha256(&path)?;
    std::fs::rename(&path, into.join(&digest))?;
    Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": text.len() }))
}

fn sha256(path: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg("-b").arg(path).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("sha256sum says nothing")?.trim_start_matches('\\').to_owned())
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
