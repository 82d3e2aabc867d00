//! The soak: 45 seconds in the suite, as long as `SOAK_S` or `SOAK_CYCLES` say with `make soak`.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a soak says what it did")]

use atoll_tests::soak::{Plan, soak};
use atoll_tests::{World, run};
use nix::mount::{MsFlags, mount, umount};

/// Archives go to a small place of their own, so that it is full now and then.
async fn small_archive_place(w: &World) -> std::path::PathBuf {
    let place = w.folder().join("archive");
    std::fs::create_dir(&place).unwrap();
    mount(Some("tmpfs"), &place, Some("tmpfs"), MsFlags::empty(), Some("size=24m")).unwrap();
    w.crash_server_with(&[("ATOLL_ARCHIVE", place.to_str().unwrap())]).await;
    place
}

#[test]
fn random_lives_lose_no_byte() {
    run(async |w| {
        let place = small_archive_place(w).await;
        let report = soak(w, Plan::of_environment()).await;
        eprintln!("soak: {}", report.summary);
        let target = std::path::Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
            .join("../target");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, Into::into);
        let out = std::env::var_os("SOAK_OUT").map_or_else(|| target.join("soak.json"), Into::into);
        std::fs::write(&out, format!("{:#}\n", report.summary)).unwrap();
        let seed = &report.summary["seed"];
        assert!(report.losses.is_empty(), "seed {seed}: {}", report.losses.join("\n\n"));
        assert!(report.refusals.is_empty(), "seed {seed}: {}", report.refusals.join("\n\n"));
        w.delete_all().await;
        let left: Vec<_> = std::fs::read_dir(&place).unwrap().flatten().map(|e| e.path()).collect();
        umount(&place).unwrap();
        assert!(left.is_empty(), "archives are left behind: {left:?}");
    });
}
