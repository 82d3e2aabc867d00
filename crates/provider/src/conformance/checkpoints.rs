//! Cases of checkpoints. They run if the provider supports them.

use super::*;

/// A sandbox that holds a page in memory and has a file.
async fn with_page<'a>(fixture: &'a Fixture, spec: &InstanceSpec, page: &str) -> Live<'a> {
    let live = fixture.create(spec).await;
    fixture.inside.hold_memory(&live, page).await;
    fixture.inside.write(&live, "/tmp/kept", b"kept").await;
    live
}

async fn assert_whole(fixture: &Fixture, live: &Live<'_>, page: &str) {
    assert_eq!(fixture.inside.memory(live).await.as_deref(), Some(page));
    assert_eq!(fixture.inside.read(live, "/tmp/kept").await.as_deref(), Some(&b"kept"[..]));
}

pub(super) async fn a_checkpoint_keeps_memory_and_files_and_is_spent_by_its_restore(fixture: Fixture) {
    let (mut spec, page) = (fixture.spec(), page());
    let mut live = with_page(&fixture, &spec, &page).await;
    for round in 0..2 {
        fixture.checkpoint(&live).await;
        fixture.provider.checkpoint(&live.target).await.expect("twice is once");
        assert_eq!(fixture.provider.pause(&live.target).await.expect("as it is"), MemoryLocation::Disk);
        assert!(is_gone(live.probe().await), "its processes are gone");
        assert!(is_gone(fixture.provider.usage(&live.target).await));
        let next = again(&spec);
        let restored = fixture.restore(&next, &live.token).await;
        assert_whole(&fixture, &restored, &page).await;
        // Spent: the same memory cannot be restored twice, and a try has no effect.
        assert!(fixture.provider.restore(&again(&spec)).await.is_err());
        assert_whole(&fixture, &restored, &page).await;
        assert!(is_gone(live.probe().await), "the earlier instance is gone");
        let written = format!("/tmp/round-{round}");
        fixture.inside.write(&restored, &written, b"on").await;
        assert_eq!(fixture.inside.read(&restored, &written).await.as_deref(), Some(&b"on"[..]));
        (spec, live) = (next, restored);
    }
    // After its death it stays dead: the spent checkpoint cannot be restored again.
    fixture.inside.kill(&live).await;
    let paused = known_paused(&spec, live.booted.facts.clone());
    let fates = fixture.provider.adopt(vec![paused], vec![]).await.expect("adopted");
    assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Gone)]);
    assert!(is_gone(fixture.provider.restore(&again(&spec)).await));
    fixture.destroy(&spec).await;
}

pub(super) async fn a_checkpoint_that_is_dropped_half_way_loses_nothing(fixture: Fixture) {
    let (mut spec, page) = (fixture.spec(), page());
    let mut live = with_page(&fixture, &spec, &page).await;
    // At once, and repeatedly: the call may not even have started when another caller resumes.
    for delay_ms in [0, 0, 0, 0, 0, 0, 0, 0, 3, 15, 60] {
        fixture.pause(&live).await;
        let checkpoint = fixture.provider.checkpoint(&live.target);
        let _ = tokio::time::timeout(Duration::from_millis(delay_ms), checkpoint).await;
        match fixture.provider.pause(&live.target).await.expect("frozen or on disk") {
            MemoryLocation::Live => fixture.provider.resume(&live.target).await.expect("resumed"),
            MemoryLocation::Disk => {
                let next = again(&spec);
                live = fixture.restore(&next, &live.token).await;
                spec = next;
            }
        }
        assert_whole(&fixture, &live, &page).await;
    }
    fixture.destroy(&spec).await;
}

pub(super) async fn a_restore_that_is_dropped_half_way_loses_nothing(fixture: Fixture) {
    let (mut spec, page) = (fixture.spec(), page());
    let mut live = with_page(&fixture, &spec, &page).await;
    for delay_ms in [0, 5, 25, 100, 2_000] {
        fixture.checkpoint(&live).await;
        let next = again(&spec);
        let restore = fixture.provider.restore(&next);
        let _ = tokio::time::timeout(Duration::from_millis(delay_ms), restore).await;
        // As after a crash of the server: the new id was stored, its facts were not.
        let known = known_paused(&next, serde_json::Value::Null);
        let fates = fixture.provider.adopt(vec![known], vec![]).await.expect("adopted");
        let [fate] = &fates[..] else { panic!("{fates:?}") };
        assert_eq!(fate.instance, next.instance);
        (spec, live) = match fate.fate {
            AdoptionOutcome::Alive => {
                let facts = fate.facts.clone().expect("the facts are returned");
                let booted = Booted { facts, agent_token: None, from_pool: false };
                let (target, token) = (target(&next), live.token.clone());
                (next, Live { provider: &fixture.provider, target, booted, token })
            }
            AdoptionOutcome::Checkpointed => {
                let next = again(&next);
                let live = fixture.restore(&next, &live.token).await;
                (next, live)
            }
            AdoptionOutcome::Frozen | AdoptionOutcome::Gone => panic!("{fate:?} after {delay_ms} ms"),
        };
        assert_whole(&fixture, &live, &page).await;
    }
    fixture.destroy(&spec).await;
}

pub(super) async fn halt_drops_a_checkpoint_and_keeps_the_files(fixture: Fixture) {
    let (spec, page) = (fixture.spec(), page());
    let live = with_page(&fixture, &spec, &page).await;
    fixture.checkpoint(&live).await;
    for _ in 0..2 {
        fixture.provider.halt(&live.target).await.expect("halted");
    }
    assert!(is_gone(fixture.provider.restore(&again(&spec)).await));
    let next = again(&spec);
    let second = fixture.boot(&next).await;
    assert_eq!(fixture.inside.read(&second, "/tmp/kept").await.as_deref(), Some(&b"kept"[..]));
    assert_eq!(fixture.inside.memory(&second).await, None);
    fixture.destroy(&next).await;
}

pub(super) async fn adoption_keeps_a_checkpoint_only_of_what_is_paused(fixture: Fixture) {
    let (spec, page) = (fixture.spec(), page());
    let live = with_page(&fixture, &spec, &page).await;
    fixture.checkpoint(&live).await;
    for _ in 0..2 {
        let paused = known_paused(&spec, live.booted.facts.clone());
        let fates = fixture.provider.adopt(vec![paused], vec![]).await.expect("adopted");
        assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Checkpointed)]);
    }
    let next = again(&spec);
    let restored = fixture.restore(&next, &live.token).await;
    assert_whole(&fixture, &restored, &page).await;
    fixture.checkpoint(&restored).await;
    // A sandbox that is not paused needs no checkpoint: an interrupted halt left it.
    let fates = fixture.provider.adopt(vec![known(&next, None)], vec![]).await.expect("adopted");
    assert_eq!(fates, []);
    assert!(is_gone(fixture.provider.restore(&again(&next)).await));
    let last = again(&next);
    let booted = fixture.boot(&last).await;
    assert_eq!(fixture.inside.read(&booted, "/tmp/kept").await.as_deref(), Some(&b"kept"[..]));
    fixture.destroy(&last).await;
}

pub(super) async fn destroy_removes_a_checkpoint(fixture: Fixture) {
    let (spec, page) = (fixture.spec(), page());
    let live = with_page(&fixture, &spec, &page).await;
    fixture.checkpoint(&live).await;
    fixture.destroy(&spec).await;
    assert!(is_gone(fixture.provider.restore(&again(&spec)).await));
    // The id is free: remains would cause an error here.
    let next = again(&spec);
    let fresh = fixture.create(&next).await;
    assert_eq!(fixture.inside.read(&fresh, "/tmp/kept").await, None);
    assert_eq!(fixture.inside.memory(&fresh).await, None);
    fixture.destroy(&next).await;
}
