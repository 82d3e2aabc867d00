//! Archives from an independent writer, and checks of the unpacked result.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_image::images::StoredLayer;
use atoll_image::{Bounds, DiffId, Images, LayerError};
use tar::{EntryType, Header};
use tokio_util::sync::CancellationToken;

/// An archive being written.
#[derive(Default)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Any entry; its name and link are written unchanged, even if invalid.
    pub(crate) fn raw(
        mut self,
        kind: EntryType,
        name: &[u8],
        link: &[u8],
        data: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(if kind.is_dir() { 0o755 } else { 0o644 });
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(data.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        change(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, data: &[u8]) -> Self {
        self.raw(EntryType::Regular, name.as_bytes(), b"", data, |_| ())
    }

    pub(crate) fn file_as(self, name: &str, mode: u32, owner: (u64, u64)) -> Self {
        self.raw(EntryType::Regular, name.as_bytes(), b"", b"x", |header| {
            header.set_mode(mode);
            header.set_uid(owner.0);
            header.set_gid(owner.1);
        })
    }

    pub(crate) fn folder(self, name: &str, mode: u32) -> Self {
        self.raw(EntryType::Directory, name.as_bytes(), b"", b"", |header| header.set_mode(mode))
    }

    pub(crate) fn symlink(self, name: &str, to: &str) -> Self {
        self.raw(EntryType::Symlink, name.as_bytes(), to.as_bytes(), b"", |_| ())
    }

    pub(crate) fn hard_link(self, name: &str, to: &str) -> Self {
        self.raw(EntryType::Link, name.as_bytes(), to.as_bytes(), b"", |_| ())
    }

    /// PAX records for the entry that follows.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            bytes.extend_from_slice(format!("{length} {key}=").as_bytes());
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        self.raw(EntryType::XHeader, b"PaxHeaders/x", b"", &bytes, |_| ())
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        Self([self.0, bytes.to_vec()].concat())
    }

    pub(crate) fn done(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

/// A store in a temporary folder.
pub(crate) struct Store {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) images: Arc<Images>,
}

/// Limits for tests: no entry is too young to be collected.
pub(crate) fn bounds() -> Bounds {
    Bounds { grace: std::time::Duration::ZERO, disk: atoll_disk::Reserve::new(0), ..Bounds::default() }
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::with(bounds())
    }

    pub(crate) fn with(bounds: Bounds) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::open(dir.path().join("images"), bounds).unwrap();
        Self { dir, images }
    }

    pub(crate) fn add(&self, tar: Tar) -> StoredLayer {
        self.try_add(&tar.done()).unwrap()
    }

    pub(crate) fn try_add(&self, tar: &[u8]) -> Result<StoredLayer, LayerError> {
        self.images.add_layer(None, tar, &CancellationToken::new())
    }

    /// The refused entry, and why. Nothing of it stays.
    pub(crate) fn refused(&self, tar: Tar) -> (String, String) {
        let before = self.tree(".");
        let error = self.try_add(&tar.done()).unwrap_err();
        assert_eq!(self.tree("."), before, "a refused archive leaves nothing");
        match error {
            LayerError::Refused { entry, why } => (entry, why),
            other => panic!("not refused by name: {other:?}"),
        }
    }

    pub(crate) fn files(&self, layer: &DiffId) -> PathBuf {
        self.dir.path().join("images/layers").join(layer.hex()).join("fs")
    }

    /// Every path in the store, with a description.
    pub(crate) fn tree(&self, below: &str) -> BTreeMap<String, String> {
        tree(&self.dir.path().join("images").join(below))
    }

    pub(crate) fn layer_tree(&self, layer: &StoredLayer) -> BTreeMap<String, String> {
        tree(&self.files(&layer.diff_id))
    }
}

/// Every path below a folder, with type, mode, owner and content or target, as one line.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, String> {
    fn walk(at: &Path, root: &Path, into: &mut BTreeMap<String, String>) {
        let mut entries: Vec<_> = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            // In a folder that only one layer has, the kernel lists the names that the layer hides, and then reports
            // that they do not exist.
            let Ok(about) = path.symlink_metadata() else { continue };
            let mode = format!("{:04o} {}:{}", about.permissions().mode() & 0o7777, about.uid(), about.gid());
            let kind = about.file_type();
            let line = if kind.is_dir() {
                format!("folder {mode}{}", if opaque(&path) { " opaque" } else { "" })
            } else if kind.is_symlink() {
                format!("-> {}", std::fs::read_link(&path).unwrap().display())
            } else if kind.is_char_device() {
                assert_eq!(about.rdev(), 0, "no device but a whiteout is ever made");
                "whiteout".to_owned()
            } else if kind.is_fifo() {
                format!("fifo {mode}")
            } else {
                format!("file {mode} {}", String::from_utf8_lossy(&std::fs::read(&path).unwrap()))
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
            into.insert(name, line);
            if kind.is_dir() {
                walk(&path, root, into);
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(root, root, &mut all);
    all
}

fn opaque(path: &Path) -> bool {
    let mut value = [0; 4];
    rustix::fs::getxattr(path, "trusted.overlay.opaque", &mut value[..])
        .is_ok_and(|length| value[..length] == *b"y")
}
