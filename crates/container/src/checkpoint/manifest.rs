//! The manifest of a checkpoint: every image with its length and hash, and the data that a restore needs.
//!
//! The first line of the file is the hash of the rest, so changes of the manifest itself are detected too.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;

use atoll_model::SandboxId;
use serde::{Deserialize, Serialize};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const IMAGES: &str = "images";
const FORMAT: u32 = 1;

/// A checkpoint differs from what was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VerifyError {
    /// A file cannot be read.
    #[error("{name} cannot be read")]
    Read {
        name: String,
        #[source]
        cause: io::Error,
    },
    /// A file has other content.
    #[error("{name} {what}")]
    Differs { name: String, what: &'static str },
}

impl VerifyError {
    /// Whether the checkpoint is damaged; false for an error of the machine.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Read { cause, .. } => {
                matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
                    || cause.raw_os_error() == Some(libc::EIO)
            }
            Self::Differs { .. } => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointManifest {
    pub(crate) format: u32,
    /// The sandbox whose processes these are. Checkpoints of earlier versions name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<String>,
    /// The version of CRIU that wrote it.
    pub(crate) criu: String,
    pub(crate) template: String,
    pub(crate) template_version: String,
    /// The name of the folder with the agent that runs in the sandbox.
    pub(crate) agent: String,
    /// The current address of the sandbox, and its earlier ones.
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// Whether sockets use the IPv6 addresses that belong to `addresses`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) six: bool,
    /// Mounts from outside the sandbox: the mount point, and the part of the launcher protocol that it belongs to.
    pub(crate) outside: Vec<(String, String)>,
    /// The boot id that the sandbox's processes read; `None`: the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot_id: Option<String>,
    /// The processes cannot set the set-user-ID and set-group-ID bits, as is needed to write to a folder of the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) refuses_special_bits: bool,
    pub(crate) images: Vec<Image>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) length: u64,
    pub(crate) hash: String,
}

impl CheckpointManifest {
    /// A manifest without images.
    pub(crate) fn new(sandbox: &SandboxId, criu: &str) -> Self {
        Self {
            format: FORMAT,
            sandbox: Some(sandbox.as_str().to_owned()),
            criu: criu.to_owned(),
            template: String::new(),
            template_version: String::new(),
            agent: String::new(),
            addresses: Vec::new(),
            six: false,
            outside: Vec::new(),
            boot_id: None,
            refuses_special_bits: false,
            images: Vec::new(),
        }
    }

    /// Why a sandbox cannot be restored from this checkpoint: it is of another sandbox.
    pub(crate) fn is_of_another(&self, sandbox: &SandboxId) -> Option<String> {
        let named = self.sandbox.as_deref().filter(|named| *named != sandbox.as_str())?;
        Some(format!("it belongs to sandbox {named}"))
    }

    /// Bytes of all images.
    pub(crate) fn bytes(&self) -> u64 {
        self.images.iter().fold(0, |sum, image| sum.saturating_add(image.length))
    }

    /// Hashes the images in `folder`, writes the manifest beside them, and returns its hash. Nothing is synced.
    pub(crate) fn seal(&mut self, folder: &Path) -> io::Result<String> {
        self.images = list(folder)?;
        let body = serde_json::to_vec(self)?;
        let hash = blake3::hash(&body).to_hex().to_string();
        let mut file = File::create(folder.join(MANIFEST))?;
        file.write_all(hash.as_bytes())?;
        file.write_all(b"\n")?;
        file.write_all(&body)?;
        Ok(hash)
    }

    /// Reads the manifest of `folder`; returns it with its hash. The images are not read.
    pub(crate) fn read(folder: &Path) -> Result<(Self, String), VerifyError> {
        let name = || MANIFEST.to_owned();
        let differs = |what| VerifyError::Differs { name: name(), what };
        let bytes =
            fs::read(folder.join(MANIFEST)).map_err(|cause| VerifyError::Read { name: name(), cause })?;
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(differs("has no hash"))?;
        let (hash, body) = (&bytes[..end], &bytes[end + 1..]);
        let found = blake3::hash(body).to_hex();
        if found.as_bytes() != hash {
            return Err(differs("has changed since it was written"));
        }
        let manifest: Self = serde_json::from_slice(body).map_err(|_| differs("is of another kind"))?;
        if manifest.format != FORMAT {
            return Err(differs("is of another format"));
        }
        Ok((manifest, found.to_string()))
    }

    /// Reads the whole checkpoint and checks that it is complete and unchanged.
    pub(crate) fn verify(folder: &Path) -> Result<(Self, String), VerifyError> {
        let (manifest, hash) = Self::read(folder)?;
        for image in &manifest.images {
            let read = hash_of(&folder.join(IMAGES).join(&image.name));
            let (length, hash) =
                read.map_err(|cause| VerifyError::Read { name: image.name.clone(), cause })?;
            let differs = |what| VerifyError::Differs { name: image.name.clone(), what };
            if length != image.length {
                return Err(differs("has another length"));
            }
            if hash != image.hash {
                return Err(differs("has changed since it was written"));
            }
        }
        Ok((manifest, hash))
    }
}

fn list(folder: &Path) -> io::Result<Vec<Image>> {
    let mut images = Vec::new();
    for entry in fs::read_dir(folder.join(IMAGES))? {
        let entry = entry?;
        let name =
            entry.file_name().into_string().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let (length, hash) = hash_of(&entry.path())?;
        images.push(Image { name, length, hash });
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(images)
}

fn hash_of(path: &Path) -> io::Result<(u64, String)> {
    // Large enough for the vectorised code of the hash, small enough for the cache.
    const PIECE: usize = 256 * 1024;
    let mut file = File::open(path)?;
    let (mut hasher, mut buffer, mut length) = (blake3::Hasher::new(), vec![0; PIECE], 0);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((length, hasher.finalize().to_hex().to_string()));
        }
        hasher.update(&buffer[..read]);
        length += read as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sealed() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(IMAGES)).unwrap();
        fs::write(folder.path().join("images/pages-1.img"), vec![7; 5_000]).unwrap();
        fs::write(folder.path().join("images/core-1.img"), b"core").unwrap();
        let id = SandboxId::from_entropy([7; 20]);
        CheckpointManifest::new(&id, "4.2.1").seal(folder.path()).unwrap();
        folder
    }

    #[test]
    fn what_was_sealed_is_whole() {
        let folder = sealed();
        let (manifest, hash) = CheckpointManifest::verify(folder.path()).unwrap();
        assert_eq!((manifest.images.len(), manifest.bytes()), (2, 5_004));
        assert_eq!(CheckpointManifest::read(folder.path()).unwrap(), (manifest, hash));
    }

    #[test]
    fn it_belongs_to_the_sandbox_that_it_names() {
        let (own, other) = (SandboxId::from_entropy([7; 20]), SandboxId::from_entropy([8; 20]));
        let (mut manifest, _) = CheckpointManifest::read(sealed().path()).unwrap();
        assert_eq!(manifest.is_of_another(&own), None);
        assert!(manifest.is_of_another(&other).unwrap().contains(own.as_str()));
        manifest.sandbox = None;
        assert_eq!(manifest.is_of_another(&other), None, "written before manifests named a sandbox");
    }

    #[test]
    fn every_kind_of_damage_is_seen() {
        type Damage = fn(&Path);
        let damages: [Damage; 4] = [
            |at| fs::remove_file(at.join("images/core-1.img")).unwrap(),
            |at| fs::write(at.join("images/core-1.img"), b"cord").unwrap(),
            |at| {
                File::options().write(true).open(at.join("images/pages-1.img")).unwrap().set_len(10).unwrap()
            },
            |at| {
                let text = fs::read_to_string(at.join(MANIFEST)).unwrap();
                fs::write(at.join(MANIFEST), text.replace("5000", "5001")).unwrap();
            },
        ];
        for (number, damage) in damages.iter().enumerate() {
            let folder = sealed();
            damage(folder.path());
            let error = CheckpointManifest::verify(folder.path()).unwrap_err();
            assert!(error.is_damage(), "{number}: {error}");
        }
    }

    #[test]
    fn any_manifest_with_the_right_hash_is_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        atoll_robustness::check("checkpoint_manifest", |bytes| {
            let hash = blake3::hash(bytes).to_hex();
            fs::write(folder.path().join(MANIFEST), [hash.as_bytes(), b"\n", bytes].concat()).unwrap();
            if let Ok((manifest, read)) = CheckpointManifest::read(folder.path()) {
                assert_eq!(read, hash.as_str());
                let _ = manifest.bytes();
            }
        });
    }
}
