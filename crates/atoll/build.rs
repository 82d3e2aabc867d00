//! Link flags of the binary.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Relocations of addresses within the binary, packed: 2 MB less. glibc reads them since 2.36, which Debian 12 has.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
