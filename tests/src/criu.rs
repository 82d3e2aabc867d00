//! Whether memory can go to disk on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

/// CRIU as `scripts/get-criu` gives it; `None` where it cannot be had, which on CI is a failure. A test that needs it returns.
pub fn at_hand() -> Option<PathBuf> {
    let script = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../scripts/get-criu");
    let got = Command::new(script).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "CRIU cannot be had: {said}");
    eprintln!("not run, or not wholly: CRIU cannot be had: {said}");
    None
}
