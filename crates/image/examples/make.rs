//! Makes templates into a folder: `cargo run -p atoll-image --example make -- FOLDER debian code-interpreter-slim`.
//! Templates made from packages are also stored in the cache, where servers and tests find them.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::ops::ControlFlow;

use atoll_image::Catalog;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or_else(|| anyhow::anyhow!("say which folder, then which templates"))?;
    let catalog = Catalog::open(folder)?;
    for name in args {
        let template = catalog.make(&name, &mut |line| {
            eprintln!("{line}");
            ControlFlow::Continue(())
        })?;
        println!("{} {}", template.name, template.digest);
    }
    Ok(())
}
