//! Builds the agent and leaves its path for `include_bytes!`.
//!
//! The agent is a static program of another profile, so it is built by a cargo of its own in a target folder of its own: the
//! outer cargo holds the lock of the shared one. `ATOLL_AGENT_BINARY` names a ready one instead.

use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    println!("cargo::rerun-if-env-changed=ATOLL_AGENT_BINARY");
    let built = match std::env::var_os("ATOLL_AGENT_BINARY") {
        Some(path) => PathBuf::from(path),
        None => build(),
    };
    println!("cargo::rerun-if-changed={}", built.display());
    println!("cargo::rustc-env=ATOLL_AGENT_BINARY={}", built.display());
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is two levels up");
    for crate_name in ["agent", "agentapi"] {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", root.join("crates").join(crate_name).join(part).display());
        }
    }
    let target_dir = root.join("target/agent");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&root)
        .args([
            "build",
            "--package",
            "atoll-agent",
            "--bin",
            "atoll-agent",
            "--profile",
            "agent",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&target_dir)
        // What the outer cargo sets for this script must not reach the inner one.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_MAKEFLAGS")
        .env_remove("MAKEFLAGS")
        // As the agent documents it: static, and position-independent by default.
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the agent does not build");
    target_dir.join(TARGET).join("agent/atoll-agent")
}
