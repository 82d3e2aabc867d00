//! The harness itself: its internet answers, its oracle runs, its templates are there. Needs no server.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::internet::{DECOYS, GREETING, NAME, PUBLIC};
use atoll_tests::{ground, probe, runc, template};

#[test]
fn the_ground_reaches_its_internet_and_nothing_else() {
    ground::on_own_ground(|internet| {
        assert_eq!(internet.address.to_string(), PUBLIC);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for host in DECOYS.iter().chain([&PUBLIC, &NAME]) {
                let text = reqwest::get(format!("http://{host}/")).await.unwrap().text().await.unwrap();
                assert_eq!(text, GREETING, "{host}");
            }
            assert!(reqwest::get("http://no-such.example.test/").await.is_err());
        });
    });
}

#[test]
fn the_oracle_runs_the_probe() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let rootfs = template::shared("busybox").join("rootfs");
    let seen = runc::run(folder.path(), &rootfs, &["/bin/busybox", "echo", "inside"]);
    assert_eq!(seen, "inside\n");
    assert!(
        probe::compiled("surface").exists()
            && probe::compiled("hog").exists()
            && probe::compiled("flip").exists()
    );
}
