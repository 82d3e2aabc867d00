//! Builds the agent and the library for CRIU, compresses the agent, and leaves their paths for `include_bytes!`.
//!
//! Each is built with another profile and other flags, so each is built by a separate cargo in a separate target
//! folder: the outer cargo holds the lock of the shared one. `ATOLL_AGENT_BINARY` and `ATOLL_CRIU_PRELOAD` name files
//! that are used instead.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    // As the documentation of the agent says: static, and position-independent by default.
    let flags = "-C target-feature=+crt-static";
    let agent = given("ATOLL_AGENT_BINARY", || {
        build("atoll-agent", &["agent", "agentapi"], "agent", flags).join("atoll-agent")
    });
    println!("cargo::rustc-env=ATOLL_AGENT_GZ={}", compress(&agent).display());
    let preload = given("ATOLL_CRIU_PRELOAD", || {
        build("atoll-preload", &["preload"], "preload", "").join("libatoll_preload.so")
    });
    println!("cargo::rustc-env=ATOLL_CRIU_PRELOAD={}", preload.display());
}

/// Compression makes the binary almost two megabytes smaller; the server unpacks the agent once at its start.
fn compress(agent: &Path) -> PathBuf {
    let out = std::env::var_os("OUT_DIR").expect("cargo sets it");
    let compressed = Path::new(&out).join("atoll-agent.gz");
    let mut encoder = GzEncoder::new(File::create(&compressed).expect("a new file"), Compression::best());
    let mut plain = File::open(agent).expect("the agent was built");
    std::io::copy(&mut plain, &mut encoder).and_then(|_| encoder.finish()).expect("the agent is compressed");
    compressed
}

/// The file that the environment variable names, or a fresh build.
fn given(name: &str, build: impl FnOnce() -> PathBuf) -> PathBuf {
    println!("cargo::rerun-if-env-changed={name}");
    let built = std::env::var_os(name).map_or_else(build, PathBuf::from);
    println!("cargo::rerun-if-changed={}", built.display());
    built
}

/// Builds a package from these crates and returns the folder with the result.
fn build(package: &str, crates: &[&str], folder: &str, flags: &str) -> PathBuf {
    // Read when the script runs: a target folder can serve several checkouts, one after the other.
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&crate_folder).join("../..").canonicalize().expect("the workspace is two levels up");
    for crate_name in crates {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", root.join("crates").join(crate_name).join(part).display());
        }
    }
    let target_dir = root.join("target").join(folder);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&root)
        .args(["build", "--package", package, "--profile", "agent", "--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        // The variables that the outer cargo sets for this script must not reach the inner one.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_MAKEFLAGS")
        .env_remove("MAKEFLAGS")
        .env("RUSTFLAGS", flags)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "{package} does not build");
    target_dir.join(TARGET).join("agent")
}
