//! A file system for the data folder of one test, so that nothing else on the machine changes what is free.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    pub(crate) fn new(mib: u64) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = Self { folder };
        let image = disk.folder.path().join("image");
        std::fs::create_dir(disk.folder.path().join("disk")).unwrap();
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        run("mkfs.ext4", &["-q", "-m", "0"], &image);
        run("mount", &["-o", "loop", image.to_str().unwrap()], disk.folder.path().join("disk").as_path());
        disk
    }

    pub(crate) fn at(&self) -> String {
        self.folder.path().join("disk").to_str().unwrap().to_owned()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The loop device of the pool lets go of its file a moment after the pool was unmounted.
        for _ in 0..50 {
            let output = std::process::Command::new("umount").arg(self.at()).output();
            if output.is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The output of a program that succeeds.
pub(crate) fn run(program: &str, args: &[&str], last: &Path) -> String {
    let output = std::process::Command::new(program).args(args).arg(last).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Another program's file that takes all free space of a disk.
pub(crate) struct Filler(PathBuf);

impl Filler {
    pub(crate) fn new(disk: &str) -> Self {
        let path = Path::new(disk).join("filler");
        let file = std::fs::File::create(&path).unwrap();
        for step in [64 << 20, 1 << 20, 4_096] {
            loop {
                let length = file.metadata().unwrap().len();
                let flags = rustix::fs::FallocateFlags::empty();
                if rustix::fs::fallocate(&file, flags, length, step).is_err() {
                    break;
                }
            }
        }
        Self(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
