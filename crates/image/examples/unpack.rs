//! Compares the speed of unpacking a layer with GNU tar: `unpack ARCHIVE.tar FOLDER [ROUNDS]`.
//!
//! The archive is read once before, so that it is in memory for both; each round unpacks into new folders below
//! `FOLDER`.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use atoll_image::{Bounds, Images};
use tokio_util::sync::CancellationToken;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let archive = arguments.next().context("which archive?")?;
    let folder = arguments.next().context("which folder?")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    std::io::copy(&mut std::fs::File::open(&archive)?, &mut std::io::sink())?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let work = Path::new(&folder).join(format!("unpack-{}-{round}", std::process::id()));
        std::fs::create_dir_all(&work)?;
        // The order alternates, because the first one pays for unwritten data of the one before.
        if round % 2 == 0 {
            theirs.push(by_tar(&archive, &work.join("tar"))?);
            ours.push(by_us(&archive, &work.join("images"))?);
        } else {
            ours.push(by_us(&archive, &work.join("images"))?);
            theirs.push(by_tar(&archive, &work.join("tar"))?);
        }
        std::fs::remove_dir_all(&work)?;
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let percent = 100.0 * theirs.as_secs_f64() / ours.as_secs_f64();
    println!("tar -x {theirs:.0?}  atoll {ours:.0?} (hashed, flushed)  {percent:.0} % of the speed of tar");
    Ok(())
}

fn by_us(archive: &str, folder: &Path) -> anyhow::Result<Duration> {
    let images = Images::open(folder, Bounds::default())?;
    rustix::fs::sync();
    let began = Instant::now();
    images.add_layer(None, std::fs::File::open(archive)?, &CancellationToken::new())?;
    Ok(began.elapsed())
}

/// Under the same condition: the files are on disk at the end.
fn by_tar(archive: &str, folder: &Path) -> anyhow::Result<Duration> {
    std::fs::create_dir(folder)?;
    rustix::fs::sync();
    let began = Instant::now();
    let status = Command::new("tar")
        .args([
            "--extract",
            "--numeric-owner",
            "--same-owner",
            "--same-permissions",
            "--xattrs",
            "--xattrs-include=*",
        ])
        .args(["--file", archive, "--directory"])
        .arg(folder)
        .status()?;
    ensure!(status.success(), "tar: {status}");
    if std::env::var_os("TAR_WITHOUT_FLUSH").is_none() {
        rustix::fs::syncfs(std::fs::File::open(folder)?)?;
    }
    Ok(began.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
