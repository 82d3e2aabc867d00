//! The launcher as a separate program, for the tests of this crate.

fn main() -> std::io::Result<()> {
    atoll_container::launcher::main()
}
