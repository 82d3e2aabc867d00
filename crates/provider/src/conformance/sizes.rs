//! Cases of changed limits.

use super::*;

/// MiB that the sandbox writes.
const WRITTEN: u64 = 8;

async fn with_data<'a>(fixture: &'a Fixture, spec: &InstanceSpec) -> Live<'a> {
    let live = fixture.create(spec).await;
    let block: Vec<u8> = page().into_bytes().into_iter().cycle().take(1 << 20).collect();
    for n in 0..WRITTEN {
        fixture.inside.write(&live, &format!("/tmp/data-{n}"), &block).await;
    }
    live
}

fn assert_below_use(outcome: Result<(), ProviderError>, wanted: u32, at_least: u64) {
    match outcome {
        Err(ProviderError::BelowUse { wanted_mib, used_mib, .. }) => {
            assert_eq!(wanted_mib, u64::from(wanted));
            assert!(used_mib >= at_least, "{used_mib} MiB said to be used");
        }
        other => panic!("{other:?}"),
    }
}

pub(super) async fn a_limit_below_use_is_refused_with_the_figures(fixture: Fixture) {
    let able = fixture.provider.capabilities();
    let spec = fixture.spec();
    let live = with_data(&fixture, &spec).await;
    fixture.inside.hold_memory(&live, &page()).await;
    if able.limits_disk {
        let small = Limits { disk_mib: 4, ..spec.limits };
        assert_below_use(fixture.provider.resize(&live.target, &small).await, 4, WRITTEN);
    }
    let small = Limits { memory_mib: 1, ..spec.limits };
    assert_below_use(fixture.provider.resize(&live.target, &small).await, 1, 2);
    // A refused change has no effect, and a possible one is applied.
    assert_eq!(fixture.inside.read(&live, "/tmp/data-0").await.map(|data| data.len()), Some(1 << 20));
    fixture.inside.write(&live, "/tmp/more", &vec![7; 1 << 20]).await;
    let smaller = Limits { disk_mib: 32, memory_mib: 48, ..spec.limits };
    fixture.provider.resize(&live.target, &smaller).await.expect("there is room");
    let larger = Limits { disk_mib: 128, memory_mib: 96, ..spec.limits };
    fixture.provider.resize(&live.target, &larger).await.expect("it grows while it runs");
    fixture.destroy(&spec).await;
}

pub(super) async fn limits_of_files_alone_change_too(fixture: Fixture) {
    let spec = fixture.spec();
    let live = with_data(&fixture, &spec).await;
    fixture.provider.halt(&live.target).await.expect("halted");
    let small = Limits { disk_mib: 4, memory_mib: 32, ..spec.limits };
    assert_below_use(fixture.provider.resize(&files_only(&spec), &small).await, 4, WRITTEN);
    let larger = Limits { disk_mib: 128, memory_mib: 32, ..spec.limits };
    fixture.provider.resize(&files_only(&spec), &larger).await.expect("grown");
    let next = InstanceSpec { limits: larger, ..again(&spec) };
    let booted = fixture.boot(&next).await;
    assert_eq!(fixture.inside.read(&booted, "/tmp/data-0").await.map(|data| data.len()), Some(1 << 20));
    fixture.destroy(&next).await;
}
