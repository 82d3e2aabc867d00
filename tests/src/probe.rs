//! Small C programs that try things from inside a sandbox. Compiled static once per content, kept in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::client::Client;
use crate::template::cache;

/// The compiled probe of that name, from `tests/probes/NAME.c`.
pub fn compiled(name: &str) -> PathBuf {
    let source = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("probes")
        .join(format!("{name}.c"));
    let text = std::fs::read(&source).unwrap_or_else(|cause| panic!("{}: {cause}", source.display()));
    let folder = cache().join("probes");
    std::fs::create_dir_all(&folder).expect("cache folder");
    let program = folder.join(format!("{name}-{}", &hex::encode(Sha256::digest(&text))[..16]));
    if program.exists() {
        return program;
    }
    // Tests run in parallel: each compiles under its own name and the last rename wins.
    let own = folder.join(format!("{name}-{}.tmp", nix::unistd::gettid()));
    let done = Command::new("gcc")
        .args(["-static", "-pthread"])
        .args(["-O1", "-Wall", "-o"])
        .arg(&own)
        .arg(&source)
        .output()
        .expect("gcc is installed");
    assert!(done.status.success(), "{name}.c: {}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&own, &program).expect("into place");
    program
}

/// Puts a probe into a sandbox, executable by every user, and returns its path there.
pub async fn install(client: &Client, id: &str, name: &str) -> String {
    let path = format!("/tmp/{name}");
    let bytes = tokio::fs::read(compiled(name)).await.expect("the probe");
    client.write_file_as(id, &path, bytes, "&mode=755&user=root").await.ok();
    path
}
