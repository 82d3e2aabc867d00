//! The Dockerfiles of `tests/dockerfiles`: what each builds, as the judge said it.
//!
//! ```text
//! NN-name/context/        what is sent, Dockerfile included
//! NN-name/prepare         shell lines run in a copy of it first: what git does not keep
//! NN-name/case.json       build arguments, the stage, which builder judges, or how it must fail
//! NN-name/expected.json   configuration and tree, the latter as a difference to the base's where it builds upon it
//! ```

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::image::{self, Tree};

/// The image that all begin with.
pub const BASE: &str = "conformance-base";

/// One of them.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its folder's name.
    pub name: String,
    folder: PathBuf,
    settings: Value,
}

/// All, in order.
pub fn all() -> Vec<Case> {
    let root = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("dockerfiles");
    let mut names: Vec<String> = std::fs::read_dir(&root)
        .expect("dockerfiles")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    let only = std::env::var("ATOLL_DOCKERFILES").unwrap_or_default();
    let open = |name: String| {
        let folder = root.join(&name);
        let settings = std::fs::read(folder.join("case.json")).ok();
        let settings =
            settings.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).expect("case.json"));
        Case { name, folder, settings }
    };
    names.into_iter().filter(|name| name.contains(&only)).map(open).collect()
}

impl Case {
    /// A copy of what is sent, with the modes that git means whatever the umask was, and prepared.
    pub fn context(&self, into: &Path) -> PathBuf {
        let to = into.join(&self.name);
        let copied = Command::new("cp").arg("-a").arg(self.folder.join("context")).arg(&to).status();
        assert!(copied.expect("cp").success(), "copy of {}", self.name);
        plain_modes(&to);
        if self.folder.join("prepare").exists() {
            let mut shell = Command::new("sh");
            shell.arg("-euc").arg("umask 022; . \"$0\"").arg(self.folder.join("prepare")).current_dir(&to);
            assert!(shell.status().expect("sh").success(), "prepare of {}", self.name);
        }
        to
    }

    /// Build arguments and stage as `--build-arg` and `--target`, which Docker and we spell alike.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (name, value) in self.settings["args"].as_object().into_iter().flatten() {
            words.extend(["--build-arg".to_owned(), format!("{name}={}", value.as_str().expect("text"))]);
        }
        if let Some(stage) = self.settings["target"].as_str() {
            words.extend(["--target".to_owned(), stage.to_owned()]);
        }
        words
    }

    /// The line and a word that the refusal names, when it must fail.
    pub fn fails(&self) -> Option<(u64, &str)> {
        let fails = self.settings.get("fails")?;
        Some((fails["line"].as_u64().expect("a line"), fails["names"].as_str().expect("a word")))
    }

    /// Whether only Docker's newer builder knows what is in it.
    pub fn wants_buildkit(&self) -> bool {
        self.settings["buildkit"] == true
    }

    /// What the judge said.
    pub fn expected(&self) -> Value {
        let bytes = std::fs::read(self.folder.join("expected.json"));
        serde_json::from_slice(&bytes.unwrap_or_else(|_| panic!("{} has no expected.json", self.name)))
            .expect("JSON")
    }

    /// Whether the judge is a person: Debian 12's builder does not know what is in it.
    pub fn is_by_hand(&self) -> bool {
        self.folder.join("expected.json").exists() && self.expected()["by"] == "hand"
    }

    /// Writes down what the judge says.
    pub fn write_expected(&self, expected: &Value) {
        let text = serde_json::to_string_pretty(expected).expect("JSON");
        std::fs::write(self.folder.join("expected.json"), text + "\n").expect("expected.json");
    }
}

fn plain_modes(folder: &Path) {
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("mode");
    };
    mode(folder, 0o755);
    for entry in std::fs::read_dir(folder).expect("folder") {
        let entry = entry.expect("entry");
        let kind = entry.file_type().expect("kind");
        if kind.is_dir() {
            plain_modes(&entry.path());
        } else if kind.is_file() {
            let is_program = entry.metadata().expect("metadata").permissions().mode() & 0o100 != 0;
            mode(&entry.path(), if is_program { 0o755 } else { 0o644 });
        }
    }
}

/// What an archive of a built image says, in the form of `expected.json`.
pub fn outcome(archive: &[u8]) -> Value {
    let base = image::tree_of(&image::busybox().docker_archive(BASE));
    let tree = image::tree_of(archive);
    // What does not build upon the base is told whole; the base's program differs between versions of its package.
    let shown = if tree.contains_key("bin/busybox") { difference(&base, &tree) } else { tree };
    json!({ "config": image::config_of(archive), "tree": shown })
}

/// Paths that are new, other or gone.
fn difference(base: &Tree, tree: &Tree) -> BTreeMap<String, String> {
    let changed = tree.iter().filter(|(path, line)| base.get(*path) != Some(line));
    let gone =
        base.keys().filter(|path| !tree.contains_key(*path)).map(|path| (path.clone(), "gone".to_owned()));
    changed.map(|(path, line)| (path.clone(), line.clone())).chain(gone).collect()
}

/// Every difference between two outcomes, one line each.
pub fn compare(expected: &Value, found: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for part in ["config", "tree"] {
        let (none, empty) = (Value::Null, serde_json::Map::new());
        let of = |side: &'_ Value| side[part].as_object().unwrap_or(&empty).clone();
        let (expected, found) = (of(expected), of(found));
        let names: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        for name in names {
            let (want, have) = (expected.get(name).unwrap_or(&none), found.get(name).unwrap_or(&none));
            if want != have {
                lines.push(format!("{part} {name}: expected {want}, found {have}"));
            }
        }
    }
    lines
}
