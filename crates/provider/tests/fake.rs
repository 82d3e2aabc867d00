//! Runs the conformance suite on the fake.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests; a failing case is found by its name")]

use atoll_provider::Capabilities;
use atoll_provider::conformance;
use atoll_provider::fake::FakeProvider;

async fn conform(able: impl FnOnce(&mut Capabilities)) {
    let fake = FakeProvider::new();
    fake.set_capabilities(able);
    let fixture = fake.fixture(fake.clone());
    for case in conformance::all() {
        let name = case.name;
        println!("{name}");
        case.run(fixture.clone()).await;
        assert_eq!(fake.holds(), [], "{name}");
        assert_eq!(fake.snapshots(), [], "{name}");
        assert_eq!(fake.volumes(), [], "{name}");
    }
}

#[tokio::test]
async fn the_fake_conforms() {
    conform(|_| {}).await;
}

#[tokio::test]
async fn the_fake_conforms_without_what_can_be_taken_away() {
    conform(|able| able.checkpoints = false).await;
    conform(|able| able.layers = false).await;
    conform(|able| (able.captures, able.volumes) = (false, false)).await;
    conform(|able| (able.resizes_live, able.network, able.pools) = (false, false, false)).await;
    conform(|able| (able.snapshots, able.packs) = (false, false)).await;
    conform(|able| (able.pauses, able.checkpoints, able.limits_disk) = (false, false, false)).await;
}
