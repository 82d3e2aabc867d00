//! What an archive of an image holds: the tree that its layers make, and its configuration. Reads both forms, Docker's and
//! OCI's, entry by entry, in memory; it unpacks nothing.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tar::EntryType;

/// Paths without leading slash, and what is there in one line each: kind, mode, owner, content, attributes. No times.
pub type Tree = BTreeMap<String, String>;

/// What is at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    is_folder: bool,
    line: String,
    /// Paths with the same number are the same file.
    inode: u64,
}

/// The tree of an image's archive.
pub fn tree_of(archive: &[u8]) -> Tree {
    let files = files_of(archive);
    let mut stack = Stack::default();
    for name in layer_names(&files) {
        stack.apply(&unpacked(&files[&name]));
    }
    stack.tree()
}

/// The configuration of an image's archive: only what says how it runs, and only what is not empty.
pub fn config_of(archive: &[u8]) -> Value {
    const KEPT: &[&str] = &[
        "User",
        "Env",
        "Entrypoint",
        "Cmd",
        "WorkingDir",
        "Labels",
        "ExposedPorts",
        "Volumes",
        "StopSignal",
        "OnBuild",
        "Shell",
        "Healthcheck",
    ];
    let files = files_of(archive);
    let whole: Value = serde_json::from_slice(&files[&config_name(&files)]).expect("a configuration");
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let kept = |name: &&str| {
        let value = whole["config"][*name].clone();
        (!empty(&value)).then(|| ((*name).to_owned(), value))
    };
    Value::Object(KEPT.iter().filter_map(kept).collect::<Map<_, _>>())
}

fn files_of(archive: &[u8]) -> HashMap<String, Vec<u8>> {
    let mut files = HashMap::new();
    for entry in tar::Archive::new(archive).entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("content");
        files.insert(name.trim_start_matches("./").to_owned(), content);
    }
    files
}

fn document(files: &HashMap<String, Vec<u8>>, name: &str) -> Value {
    serde_json::from_slice(files.get(name).unwrap_or_else(|| panic!("no {name}"))).expect("JSON")
}

fn blob(digest: &Value) -> String {
    format!("blobs/{}", digest.as_str().expect("a digest").replace(':', "/"))
}

/// The manifest of an OCI layout, `None` for Docker's form.
fn oci_manifest(files: &HashMap<String, Vec<u8>>) -> Option<Value> {
    files.contains_key("index.json").then(|| {
        let index = document(files, "index.json");
        document(files, &blob(&index["manifests"][0]["digest"]))
    })
}

fn config_name(files: &HashMap<String, Vec<u8>>) -> String {
    match oci_manifest(files) {
        Some(manifest) => blob(&manifest["config"]["digest"]),
        None => document(files, "manifest.json")[0]["Config"].as_str().expect("a name").to_owned(),
    }
}

fn layer_names(files: &HashMap<String, Vec<u8>>) -> Vec<String> {
    match oci_manifest(files) {
        Some(manifest) => manifest["layers"]
            .as_array()
            .expect("layers")
            .iter()
            .map(|layer| blob(&layer["digest"]))
            .collect(),
        None => {
            let manifest = document(files, "manifest.json");
            let layers = manifest[0]["Layers"].as_array().expect("layers");
            layers.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
        }
    }
}

fn unpacked(layer: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    if layer.starts_with(&[0x1f, 0x8b]) {
        flate2::read::MultiGzDecoder::new(layer).read_to_end(&mut tar).expect("gzip");
    } else if layer.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        tar = zstd::decode_all(layer).expect("zstd");
    } else {
        tar = layer.to_vec();
    }
    tar
}

/// Layers above each other.
#[derive(Default)]
struct Stack {
    nodes: BTreeMap<String, Node>,
    inodes: u64,
}

impl Stack {
    fn apply(&mut self, tar: &[u8]) {
        let mut own = std::collections::BTreeSet::new();
        for entry in tar::Archive::new(tar).entries().expect("a layer") {
            let mut entry = entry.expect("an entry of a layer");
            let bytes = entry.path_bytes().into_owned();
            let path = String::from_utf8_lossy(&bytes).trim_start_matches("./").trim_matches('/').to_owned();
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
            if name == ".wh..wh..opq" {
                let below = if parent.is_empty() { String::new() } else { format!("{parent}/") };
                self.nodes.retain(|path, _| !path.starts_with(&below) || own.contains(path));
            } else if let Some(gone) = name.strip_prefix(".wh.") {
                let gone = if parent.is_empty() { gone.to_owned() } else { format!("{parent}/{gone}") };
                self.remove(&gone);
            } else if !path.is_empty() && path != "." {
                self.put(&path, &mut entry);
                own.insert(path);
            }
        }
    }

    fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.nodes.retain(|other, _| other != path && !other.starts_with(&below));
    }

    fn put(&mut self, path: &str, entry: &mut tar::Entry<'_, &[u8]>) {
        if entry.header().entry_type() == EntryType::Link {
            let to = entry.link_name_bytes().expect("a hard link has a target").into_owned();
            let to = String::from_utf8_lossy(&to).trim_start_matches("./").trim_matches('/').to_owned();
            let node =
                self.nodes.get(&to).unwrap_or_else(|| panic!("{path} is a link to {to}, which is not there"));
            let node = node.clone();
            self.remove(path);
            self.nodes.insert(path.to_owned(), node);
            return;
        }
        let node = self.read(entry);
        let stays = node.is_folder && self.nodes.get(path).is_some_and(|old| old.is_folder);
        if !stays {
            self.remove(path);
        }
        self.nodes.insert(path.to_owned(), node);
    }

    fn read(&mut self, entry: &mut tar::Entry<'_, &[u8]>) -> Node {
        let kind = entry.header().entry_type();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("content");
        let header = entry.header();
        let mode = header.mode().expect("a mode") & 0o7777;
        let (uid, gid) = (header.uid().expect("a uid"), header.gid().expect("a gid"));
        let what = match kind {
            EntryType::Directory => format!("folder {mode:04o} {uid}:{gid}"),
            EntryType::Symlink => {
                let to = entry.link_name_bytes().expect("a target").into_owned();
                // The mode of a link means nothing.
                format!("link {uid}:{gid} -> {}", String::from_utf8_lossy(&to))
            }
            EntryType::Regular | EntryType::Continuous => {
                format!("file {mode:04o} {uid}:{gid} {}", content_text(&content))
            }
            other => {
                let number = |n: std::io::Result<Option<u32>>| n.ok().flatten().unwrap_or(0);
                let (major, minor) = (number(header.device_major()), number(header.device_minor()));
                format!("{other:?} {mode:04o} {uid}:{gid} {major}:{minor}")
            }
        };
        self.inodes += 1;
        let line = format!("{what}{}", attributes(entry));
        Node { is_folder: kind == EntryType::Directory, line, inode: self.inodes }
    }

    /// Files of several names say which they are the same as.
    fn tree(self) -> Tree {
        let mut first: HashMap<u64, String> = HashMap::new();
        let line = |(path, node): (String, Node)| {
            let same = first.entry(node.inode).or_insert_with(|| path.clone());
            let line = if *same == path { node.line } else { format!("{} = {same}", node.line) };
            (path, line)
        };
        self.nodes.into_iter().map(line).collect()
    }
}

/// Short text as it is, so that a difference can be read; else its digest.
fn content_text(content: &[u8]) -> String {
    match std::str::from_utf8(content) {
        Ok(text) if text.len() <= 400 => json!(text).to_string(),
        _ => format!("{} bytes {}", content.len(), hex::encode(&Sha256::digest(content)[..8])),
    }
}

fn attributes(entry: &mut tar::Entry<'_, &[u8]>) -> String {
    let mut found = Vec::new();
    for extension in entry.pax_extensions().ok().flatten().into_iter().flatten().flatten() {
        let name = String::from_utf8_lossy(extension.key_bytes()).into_owned();
        if let Some(name) = name.strip_prefix("SCHILY.xattr.") {
            found.push(format!(" {name}={}", hex::encode(extension.value_bytes())));
        }
    }
    found.sort();
    found.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, Layer, Packing};

    #[test]
    fn layers_lie_above_each_other_in_both_forms() {
        let below = Layer::new()
            .folder("etc/", 0o755)
            .file("etc/a", 0o644, "a")
            .file("etc/b", 0o600, "b")
            .folder("var/", 0o755)
            .file("var/old", 0o644, "old")
            .folder("gone/", 0o755)
            .file("gone/x", 0o644, "x");
        let above = Layer::new()
            .file("etc/.wh.a", 0, "")
            .file("etc/c", 0o644, "c")
            .hard("etc/d", "etc/c")
            .folder("var/", 0o700)
            .file("var/.wh..wh..opq", 0, "")
            .file("gone", 0o4755, "a file now")
            .file_with("cap", 0o755, b"x", &[("security.capability", &[1, 2])])
            .link("to", "etc/c");
        let image = Image::default().layer(&below, Packing::Gzip).layer(&above, Packing::Zstd);
        let tree = tree_of(&image.oci_archive("x"));
        assert_eq!(tree, tree_of(&image.docker_archive("x")));
        let lines: Vec<String> = tree.iter().map(|(path, line)| format!("{path}: {line}")).collect();
        assert_eq!(
            lines,
            [
                r#"cap: file 0755 0:0 "x" security.capability=0102"#,
                "etc: folder 0755 0:0",
                r#"etc/b: file 0600 0:0 "b""#,
                r#"etc/c: file 0644 0:0 "c""#,
                r#"etc/d: file 0644 0:0 "c" = etc/c"#,
                r#"gone: file 4755 0:0 "a file now""#,
                "to: link 0:0 -> etc/c",
                "var: folder 0700 0:0",
            ]
        );
        assert_eq!(config_of(&image.docker_archive("x")), config_of(&image.oci_archive("x")));
    }
}
