//! PID 1 of every sandbox: processes, terminals, files, watches; serves the envd protocol.
fn main() {}
