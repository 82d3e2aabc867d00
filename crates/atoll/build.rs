//! Puts the agent into the binary where `ATOLL_EMBED_AGENT` names one; `scripts/build` does. Otherwise the place is empty
//! and the server looks for the agent beside itself.

use std::{env, fs, path::Path};

fn main() {
    println!("cargo::rerun-if-env-changed=ATOLL_EMBED_AGENT");
    println!("cargo::rerun-if-changed=build.rs");
    let agent = env::var_os("ATOLL_EMBED_AGENT").filter(|path| !path.is_empty());
    let program = agent.map(|path| {
        println!("cargo::rerun-if-changed={}", Path::new(&path).display());
        // A path that is not there yet means the same as none: lints and unit tests need no agent.
        fs::read(path).unwrap_or_default()
    });
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("agent"), program.unwrap_or_default()).expect("OUT_DIR is writable");
}
