//! The binary: configuration, wiring and the command line.
fn main() {}
