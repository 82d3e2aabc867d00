//! Cases of snapshots of files: copies, rollbacks, damage, sweeping.

use super::*;

const NOTE: &str = "/tmp/note";

async fn note(fixture: &Fixture, live: &Live<'_>) -> Option<String> {
    let content = fixture.inside.read(live, NOTE).await?;
    Some(String::from_utf8(content).expect("text was written"))
}

async fn write(fixture: &Fixture, live: &Live<'_>, text: &str) {
    fixture.inside.write(live, NOTE, text.as_bytes()).await;
}

pub(super) async fn a_snapshot_is_taken_of_what_runs_stands_still_or_is_stopped(fixture: Fixture) {
    let able = fixture.provider.capabilities();
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    let mut shots = Vec::new();
    write(&fixture, &live, "running").await;
    shots.push(("running", fixture.shoot(&live.target, false).await));
    assert_eq!(note(&fixture, &live).await.as_deref(), Some("running"), "it runs on");
    if able.pauses {
        write(&fixture, &live, "paused").await;
        fixture.pause(&live).await;
        shots.push(("paused", fixture.shoot(&live.target, false).await));
        assert!(fixture.is_silent(&live).await, "it still stands still");
        fixture.provider.resume(&live.target).await.expect("resumed");
    }
    write(&fixture, &live, "stopped").await;
    fixture.provider.halt(&live.target).await.expect("halted");
    shots.push(("stopped", fixture.shoot(&files_only(&spec), false).await));
    let next = again(&spec);
    let booted = fixture.boot(&next).await;
    write(&fixture, &booted, "later").await;
    for (was, shot) in &shots {
        fixture.provider.verify_snapshot(&shot.id, &shot.seal).await.expect("whole");
        let (copy, copied) = fixture.copy(&spec, shot, None).await;
        assert_eq!(note(&fixture, &copied).await.as_deref(), Some(*was));
        fixture.destroy(&copy).await;
    }
    assert_eq!(note(&fixture, &booted).await.as_deref(), Some("later"));
    for (_, shot) in &shots {
        fixture.remove(shot).await;
    }
    fixture.destroy(&next).await;
}

pub(super) async fn a_sandbox_from_a_snapshot_is_independent_both_ways(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    write(&fixture, &live, "then").await;
    let shot = fixture.shoot(&live.target, false).await;
    let (one, first) = fixture.copy(&spec, &shot, None).await;
    let (two, second) = fixture.copy(&spec, &shot, None).await;
    assert_ne!(first.token, live.token, "a copy has a token of its own");
    write(&fixture, &live, "source").await;
    write(&fixture, &first, "first").await;
    assert_eq!(note(&fixture, &live).await.as_deref(), Some("source"));
    assert_eq!(note(&fixture, &first).await.as_deref(), Some("first"));
    assert_eq!(note(&fixture, &second).await.as_deref(), Some("then"));
    fixture.destroy(&spec).await;
    fixture.provider.verify_snapshot(&shot.id, &shot.seal).await.expect("it outlives its sandbox");
    fixture.remove(&shot).await;
    fixture.destroy(&one).await;
    // Neither the source, nor the snapshot, nor a sibling is needed any more.
    fixture.provider.halt(&second.target).await.expect("halted");
    let next = again(&two);
    let booted = fixture.boot(&next).await;
    assert_eq!(note(&fixture, &booted).await.as_deref(), Some("then"));
    fixture.destroy(&next).await;
}

pub(super) async fn rollback_puts_the_files_back(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    write(&fixture, &live, "then").await;
    let shot = fixture.shoot(&live.target, false).await;
    write(&fixture, &live, "now").await;
    fixture.inside.write(&live, "/tmp/new", b"new").await;
    let later = fixture.shoot(&live.target, false).await;
    // Twice: the second rollback finds the sandbox halted, as after a crash.
    for at in [live.target.clone(), files_only(&spec)] {
        let left =
            fixture.provider.rollback(&at, &shot.id, &shot.seal, &spec.limits).await.expect("rolled back");
        assert_eq!(left, RolledBack::Files);
        assert!(is_gone(live.probe().await), "its processes are not those of then");
    }
    let next = again(&spec);
    let booted = fixture.boot(&next).await;
    assert_eq!(note(&fixture, &booted).await.as_deref(), Some("then"));
    assert_eq!(fixture.inside.read(&booted, "/tmp/new").await, None);
    write(&fixture, &booted, "other").await;
    // Forward again: a rollback removes no snapshot, and later writes change none.
    for (shot, wanted) in [(&later, "now"), (&shot, "then")] {
        fixture.provider.verify_snapshot(&shot.id, &shot.seal).await.expect("whole");
        let (copy, copied) = fixture.copy(&spec, shot, None).await;
        assert_eq!(note(&fixture, &copied).await.as_deref(), Some(wanted));
        fixture.destroy(&copy).await;
        fixture.remove(shot).await;
    }
    assert_eq!(note(&fixture, &booted).await.as_deref(), Some("other"));
    fixture.destroy(&next).await;
}

pub(super) async fn a_damaged_or_unknown_snapshot_is_refused(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    write(&fixture, &live, "then").await;
    let shot = fixture.shoot(&live.target, false).await;
    write(&fixture, &live, "now").await;
    let wrong = TakenSnapshot { id: shot.id.clone(), seal: "another".to_owned() };
    let unknown = TakenSnapshot { id: SnapshotId::from_entropy(random()), seal: shot.seal.clone() };
    let copy = fixture.spec();
    for bad in [&wrong, &unknown] {
        assert!(is_damaged(fixture.provider.verify_snapshot(&bad.id, &bad.seal).await));
        let refused = InstanceSpec { origin: bad.origin(false), ..again(&copy) };
        assert!(is_damaged(fixture.provider.create(&refused).await));
        assert!(is_damaged(fixture.provider.rollback(&live.target, &bad.id, &bad.seal, &spec.limits).await));
        assert_eq!(
            note(&fixture, &live).await.as_deref(),
            Some("now"),
            "it was looked at before it was used"
        );
    }
    // Remains of a refused create would cause an error here, or their removal would delete the new files.
    let good = InstanceSpec { origin: shot.origin(false), ..again(&copy) };
    let copied = fixture.create(&good).await;
    assert_eq!(note(&fixture, &copied).await.as_deref(), Some("then"));
    fixture.destroy(&good).await;
    fixture.remove(&shot).await;
    fixture.destroy(&spec).await;
}

pub(super) async fn removing_a_snapshot_may_be_repeated(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    let shot = fixture.shoot(&live.target, false).await;
    let other = fixture.shoot(&live.target, false).await;
    for _ in 0..3 {
        fixture.remove(&shot).await;
    }
    fixture.provider.settle(STEP).await.expect("settled");
    assert!(is_damaged(fixture.provider.verify_snapshot(&shot.id, &shot.seal).await));
    fixture.provider.verify_snapshot(&other.id, &other.seal).await.expect("only the one that was named");
    fixture
        .provider
        .remove_snapshot(&SnapshotId::from_entropy(random()))
        .await
        .expect("an unknown snapshot is no error");
    fixture.remove(&other).await;
    fixture.destroy(&spec).await;
}

pub(super) async fn adoption_removes_snapshots_that_nobody_knows(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    let (kept, swept) = (fixture.shoot(&live.target, false).await, fixture.shoot(&live.target, false).await);
    let known = vec![known(&spec, Some(&live))];
    fixture.provider.adopt(known, vec![kept.id.clone()]).await.expect("adopted");
    fixture.provider.settle(STEP).await.expect("settled");
    fixture.provider.verify_snapshot(&kept.id, &kept.seal).await.expect("it is wanted");
    assert!(is_damaged(fixture.provider.verify_snapshot(&swept.id, &swept.seal).await));
    assert!(live.probe().await.is_ok());
    // A snapshot is kept without its sandbox.
    fixture.destroy(&spec).await;
    fixture.provider.adopt(vec![], vec![kept.id.clone()]).await.expect("adopted");
    let (copy, _) = fixture.copy(&spec, &kept, None).await;
    fixture.destroy(&copy).await;
    fixture.remove(&kept).await;
}

pub(super) async fn a_snapshot_that_is_dropped_half_way_leaves_the_sandbox_running(fixture: Fixture) {
    let able = fixture.provider.capabilities();
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    write(&fixture, &live, "then").await;
    for (delay_us, memory) in [(0, false), (300, false), (2_000, false), (3_000, true), (40_000, true)] {
        let id = SnapshotId::from_entropy(random());
        let taking = fixture.provider.snapshot(&live.target, &id, memory && able.checkpoints);
        let _ = tokio::time::timeout(Duration::from_micros(delay_us), taking).await;
        // As after a crash of the server: it does not know this snapshot.
        let known = vec![known(&spec, Some(&live))];
        let fates = fixture.provider.adopt(known, vec![]).await.expect("adopted");
        assert_eq!(fates, [adopted(&spec, AdoptionOutcome::Alive)]);
        assert_eq!(note(&fixture, &live).await.as_deref(), Some("then"));
        fixture.provider.remove_snapshot(&id).await.expect("removed");
    }
    fixture.destroy(&spec).await;
}
