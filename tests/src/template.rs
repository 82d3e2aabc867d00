//! Templates for the tests: made once per machine, shared read-only by all worlds; and hostile ones made by hand.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use atoll_image::Catalog;
use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

/// What this harness keeps between runs.
pub fn cache() -> PathBuf {
    atoll_image::default_cache_dir().join("tests")
}

/// The folder of a shared template; made when missing. One that was made by another recipe is kept for its users.
pub fn shared(name: &str) -> PathBuf {
    let folder = match atoll_image::recipe_digest(name) {
        Some(digest) => cache().join("templates").join(format!("recipe-{digest}")),
        None => cache().join("templates"),
    };
    let made = folder.join(name);
    if made.join("manifest.json").exists() {
        return made;
    }
    std::fs::create_dir_all(&folder).expect("cache folder");
    let lock = std::fs::File::create(cache().join("templates.lock")).expect("lock file");
    let _held = Flock::lock(lock, FlockArg::LockExclusive).expect("one maker at a time");
    if !made.join("manifest.json").exists() {
        let catalog = Catalog::open(&folder).expect("a catalog");
        let mut quiet = |_: &str| std::ops::ControlFlow::Continue(());
        catalog.make(name, &mut quiet).unwrap_or_else(|cause| panic!("template {name}: {cause:?}"));
    }
    made
}

/// Puts a shared template into a world's folder: a small one as hard links, a large one as one link to the folder.
pub fn link(templates: &Path, name: &str) {
    std::fs::create_dir_all(templates).expect("templates");
    let (from, to) = (shared(name), templates.join(name));
    if name != "busybox" {
        return std::os::unix::fs::symlink(from, to).expect("a link");
    }
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| path.metadata().expect("a folder").dev();
    let how = if device(&from) == device(templates) { "-al" } else { "-a" };
    let linked = std::process::Command::new("cp").arg(how).arg(from).arg(to).status().expect("cp");
    assert!(linked.success(), "hard links to {name}");
}

/// A copy of the busybox template under another name, for a test that bends it.
pub fn variant(templates: &Path, name: &str, bend: impl FnOnce(&Path, &mut serde_json::Value)) {
    let (from, to) = (shared("busybox"), templates.join(name));
    let copied = std::process::Command::new("cp").arg("-a").arg(&from).arg(&to).status().expect("cp");
    assert!(copied.success(), "copy of busybox");
    let path = to.join("manifest.json");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).expect("manifest")).expect("manifest is JSON");
    manifest["name"] = json!(name);
    manifest["digest"] = json!(format!("test-{name}"));
    manifest["aliases"] = json!([]);
    bend(&to.join("rootfs"), &mut manifest);
    std::fs::write(&path, manifest.to_string()).expect("manifest");
}

/// Makes a file of a template setuid root.
pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("mode");
}
