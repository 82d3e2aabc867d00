//! Lists the files of `dist/` for `include_bytes!`. `scripts/build-web` puts them there, compressed; without them the list is empty.

use std::env;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    // Read when the script runs: a target folder can serve several checkouts, one after the other.
    let dist = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("dist");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    collect(&dist, &mut files);
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&dist).expect("it is below dist").with_extension("");
        let mut hasher = DefaultHasher::new();
        fs::read(&file).expect("a file of dist is readable").hash(&mut hasher);
        let _ = writeln!(
            list,
            "    PageFile {{ path: {:?}, etag: \"\\\"{:016x}\\\"\", gzip: include_bytes!({:?}) }},",
            name.to_str().expect("names of assets are ASCII"),
            hasher.finish(),
            file.to_str().expect("the path of the checkout is UTF-8"),
        );
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("files.rs"), list).expect("OUT_DIR is writable");
}

/// Every `.gz` file below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("dist is a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "gz") {
            files.push(path);
        }
    }
}
