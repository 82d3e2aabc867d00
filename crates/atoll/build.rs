//! Link flags of the binary.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Packed relative relocations make the binary 2 MB smaller. glibc supports them since 2.36, which Debian 12 has.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
