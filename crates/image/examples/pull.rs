//! Pulls an image from a registry into a folder and prints the cost; with `PUSH_TO` it also pushes the image there:
//! `cargo run --release --example pull -- DIR IMAGE [PUSH_TO]`. `ATOLL_REGISTRY_INSECURE` names registries that may be
//! on this machine.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use atoll_image::oci::{Auth, LayerState, Progress, Progressed, Registry, RegistrySettings};
use atoll_image::{Bounds, Images};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (dir, image) = (words.next().context("a folder")?, words.next().context("an image")?);
    let insecure = std::env::var("ATOLL_REGISTRY_INSECURE").unwrap_or_default();
    let insecure = insecure.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
    let images = Images::open(dir, Bounds::default())?;
    let registry = Registry::new(RegistrySettings { insecure, ..RegistrySettings::default() });
    let began = Instant::now();
    let progress: Progress = Arc::new(move |one| match one {
        Progressed::Layer {
            state: LayerState::Downloading | LayerState::Waiting | LayerState::Uploading,
            ..
        } => {}
        other => println!("{:7.3} s  {other:?}", began.elapsed().as_secs_f64()),
    });
    let pulled =
        registry.pull(&images, &image.parse()?, Auth::Anonymous, None, Arc::clone(&progress)).await?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{:7.3} s  {pulled:?}  {peak}", began.elapsed().as_secs_f64());
    if let Some(to) = words.next() {
        let pushed = registry.push(&images, &pulled.version, &to.parse()?, Auth::Anonymous, progress).await?;
        println!("{:7.3} s  {pushed:?}", began.elapsed().as_secs_f64());
    }
    Ok(())
}
