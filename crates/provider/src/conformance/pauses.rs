//! Cases of pauses with the memory in place.

use super::*;

pub(super) async fn a_pause_keeps_everything_and_may_be_repeated(fixture: Fixture) {
    let (spec, page) = (fixture.spec(), page());
    let live = fixture.create(&spec).await;
    fixture.inside.hold_memory(&live, &page).await;
    fixture.inside.write(&live, "/tmp/kept", b"kept").await;
    for _ in 0..3 {
        for _ in 0..2 {
            fixture.pause(&live).await;
        }
        assert!(fixture.is_silent(&live).await, "it stands still");
        assert!(fixture.provider.usage(&live.target).await.is_ok(), "it is looked at from outside");
        for _ in 0..2 {
            fixture.provider.resume(&live.target).await.expect("resumed");
        }
        assert_eq!(fixture.inside.memory(&live).await.as_ref(), Some(&page));
        assert_eq!(fixture.inside.read(&live, "/tmp/kept").await.as_deref(), Some(&b"kept"[..]));
    }
    fixture.destroy(&spec).await;
}

pub(super) async fn a_paused_instance_stays_so_over_an_adoption_where_that_is_wanted(fixture: Fixture) {
    let (spec, page) = (fixture.spec(), page());
    let live = fixture.create(&spec).await;
    fixture.inside.hold_memory(&live, &page).await;
    fixture.pause(&live).await;
    let paused = known_paused(&spec, live.booted.facts.clone());
    let fates = fixture.provider.adopt(vec![paused.clone()], vec![]).await.expect("adopted");
    assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Frozen)]);
    assert!(fixture.is_silent(&live).await, "it is still frozen");
    // The server died between a thaw and its record, or during a snapshot: the sandbox must run.
    let fates = fixture.provider.adopt(vec![known(&spec, Some(&live))], vec![]).await.expect("adopted");
    assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Alive)]);
    assert_eq!(fixture.inside.memory(&live).await.as_ref(), Some(&page));
    // The server died before the freeze: the driver sees that the instance runs.
    let fates = fixture.provider.adopt(vec![paused], vec![]).await.expect("adopted");
    assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Alive)]);
    fixture.destroy(&spec).await;
}

pub(super) async fn a_paused_sandbox_can_be_halted_and_destroyed(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.inside.write(&live, "/tmp/kept", b"kept").await;
    fixture.pause(&live).await;
    fixture.provider.halt(&live.target).await.expect("halted");
    assert!(is_gone(live.probe().await));
    let mut last = spec;
    if fixture.provider.capabilities().keeps_files {
        last = again(&last);
        let second = fixture.boot(&last).await;
        assert_eq!(fixture.inside.read(&second, "/tmp/kept").await.as_deref(), Some(&b"kept"[..]));
        fixture.pause(&second).await;
    }
    fixture.destroy(&last).await;
    assert!(is_gone(fixture.provider.usage(&target(&last)).await));
}

pub(super) async fn pausing_what_does_not_run_is_gone(fixture: Fixture) {
    let spec = fixture.spec();
    assert!(is_gone(fixture.provider.pause(&target(&spec)).await));
    assert!(is_gone(fixture.provider.resume(&target(&spec)).await));
    let live = fixture.create(&spec).await;
    fixture.provider.halt(&live.target).await.expect("halted");
    assert!(is_gone(fixture.provider.pause(&live.target).await));
    assert!(is_gone(fixture.provider.resume(&live.target).await));
    assert!(is_gone(fixture.provider.pause(&files_only(&spec)).await));
    if fixture.provider.capabilities().checkpoints {
        assert!(is_gone(fixture.provider.checkpoint(&live.target).await));
        assert!(is_gone(fixture.provider.restore(&again(&spec)).await));
    }
    fixture.destroy(&spec).await;
}
