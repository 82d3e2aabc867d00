//! Makes a template in a folder: `cargo run -p atoll-image --example make -- debian DIR`.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Context;

#[expect(clippy::print_stderr, reason = "an example talks to a person")]
fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().context("usage: make host|debian|busybox DIR")?;
    let dir = arguments.next().context("usage: make host|debian|busybox DIR")?;
    let began = Instant::now();
    let template = atoll_image::Catalog::open(dir)?.make(&name, &mut |line| {
        eprintln!("{line}");
        ControlFlow::Continue(())
    })?;
    eprintln!(
        "{} {} in {:.1?}: {}",
        template.name,
        template.digest,
        began.elapsed(),
        template.layers[0].display()
    );
    Ok(())
}
