//! The launcher alone, for tests of this crate.

fn main() -> std::io::Result<()> {
    atoll_container::launcher::main()
}
