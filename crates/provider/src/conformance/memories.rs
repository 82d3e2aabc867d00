//! Cases of snapshots with memory. They run if the provider supports both snapshots and checkpoints.

use super::*;

pub(super) async fn a_snapshot_with_memory_makes_running_copies(fixture: Fixture) {
    let (spec, then, now) = (fixture.spec(), page(), page());
    let live = fixture.create(&spec).await;
    fixture.inside.hold_memory(&live, &then).await;
    fixture.inside.write(&live, "/tmp/note", b"then").await;
    let shot = fixture.shoot(&live.target, true).await;
    assert_eq!(fixture.inside.memory(&live).await.as_ref(), Some(&then), "it runs on");
    fixture.inside.hold_memory(&live, &now).await;
    fixture.inside.write(&live, "/tmp/note", b"now").await;
    fixture.provider.verify_snapshot(&shot.id, &shot.seal).await.expect("whole");
    let (one, first) = fixture.copy(&spec, &shot, Some(&live.token)).await;
    let (two, second) = fixture.copy(&spec, &shot, Some(&live.token)).await;
    for copy in [&first, &second] {
        assert_eq!(fixture.inside.memory(copy).await.as_ref(), Some(&then));
        assert_eq!(fixture.inside.read(copy, "/tmp/note").await.as_deref(), Some(&b"then"[..]));
    }
    assert_eq!(fixture.inside.memory(&live).await.as_ref(), Some(&now));
    // The files of the same snapshot without its processes.
    let (three, third) = fixture.copy(&spec, &shot, None).await;
    assert_eq!(fixture.inside.memory(&third).await, None);
    assert_eq!(fixture.inside.read(&third, "/tmp/note").await.as_deref(), Some(&b"then"[..]));
    fixture.destroy(&spec).await;
    fixture.remove(&shot).await;
    // A copy is independent: it is checkpointed and restored like any other sandbox.
    fixture.checkpoint(&second).await;
    let next = again(&two);
    let restored = fixture.restore(&next, &second.token).await;
    assert_eq!(fixture.inside.memory(&restored).await.as_ref(), Some(&then));
    for spec in [&one, &next, &three] {
        fixture.destroy(spec).await;
    }
}

pub(super) async fn rollback_puts_memory_back_where_the_snapshot_has_it(fixture: Fixture) {
    let (spec, then) = (fixture.spec(), page());
    let live = fixture.create(&spec).await;
    fixture.inside.hold_memory(&live, &then).await;
    fixture.inside.write(&live, "/tmp/note", b"then").await;
    let shot = fixture.shoot(&live.target, true).await;
    fixture.inside.hold_memory(&live, &page()).await;
    fixture.inside.write(&live, "/tmp/note", b"now").await;
    for at in [live.target.clone(), files_only(&spec)] {
        let left =
            fixture.provider.rollback(&at, &shot.id, &shot.seal, &spec.limits).await.expect("rolled back");
        assert_eq!(left, RolledBack::Memory);
        assert!(is_gone(live.probe().await));
    }
    let mut last = spec.clone();
    // Twice: a restore does not spend the memory of a snapshot.
    for _ in 0..2 {
        last = again(&last);
        let restored = fixture.restore(&last, &live.token).await;
        assert_eq!(fixture.inside.memory(&restored).await.as_ref(), Some(&then));
        assert_eq!(fixture.inside.read(&restored, "/tmp/note").await.as_deref(), Some(&b"then"[..]));
        let rollback = fixture.provider.rollback(&restored.target, &shot.id, &shot.seal, &spec.limits);
        assert_eq!(rollback.await.expect("rolled back"), RolledBack::Memory);
    }
    fixture.remove(&shot).await;
    fixture.destroy(&last).await;
}

pub(super) async fn a_snapshot_of_a_checkpointed_sandbox_has_its_memory(fixture: Fixture) {
    let (spec, page) = (fixture.spec(), page());
    let live = fixture.create(&spec).await;
    fixture.inside.hold_memory(&live, &page).await;
    fixture.checkpoint(&live).await;
    let shot = fixture.shoot(&live.target, true).await;
    let files = fixture.shoot(&live.target, false).await;
    assert_eq!(fixture.provider.pause(&live.target).await.expect("as it was"), MemoryLocation::Disk);
    let (copy, copied) = fixture.copy(&spec, &shot, Some(&live.token)).await;
    assert_eq!(fixture.inside.memory(&copied).await.as_ref(), Some(&page));
    let (plain, booted) = fixture.copy(&spec, &files, None).await;
    assert_eq!(fixture.inside.memory(&booted).await, None);
    let next = again(&spec);
    let restored = fixture.restore(&next, &live.token).await;
    assert_eq!(fixture.inside.memory(&restored).await.as_ref(), Some(&page));
    for shot in [&shot, &files] {
        fixture.remove(shot).await;
    }
    for spec in [&copy, &plain, &next] {
        fixture.destroy(spec).await;
    }
}

pub(super) async fn a_stopped_sandbox_has_no_memory_to_keep(fixture: Fixture) {
    let spec = fixture.spec();
    let live = fixture.create(&spec).await;
    fixture.provider.halt(&live.target).await.expect("halted");
    let id = SnapshotId::from_entropy(random());
    // It may be refused or report no memory, but must never report memory that it does not have.
    if let Ok(made) = fixture.provider.snapshot(&files_only(&spec), &id, true).await {
        assert!(!made.memory);
        let origin = FilesOrigin::Snapshot { snapshot: id.clone(), seal: made.seal, memory: true };
        let copy = InstanceSpec { origin, ..fixture.spec() };
        assert!(fixture.provider.create(&copy).await.is_err());
    }
    fixture.provider.remove_snapshot(&id).await.expect("removed");
    fixture.destroy(&spec).await;
}
