//! Cases of snapshots, forks, threads, and restored instances.

use super::*;
use crate::{PreviewRecord, SnapshotQuery};
use atoll_model::{MemoryLocation, PreviewId, QueueWait, Snapshot, SnapshotId, SnapshotState};

/// A snapshot with this number, not stored yet.
#[must_use]
pub fn snapshot(n: u32, tenant: &TenantId, name: Option<&str>) -> Snapshot {
    Snapshot {
        id: SnapshotId::from_entropy(entropy(n)),
        tenant: tenant.clone(),
        node: node(),
        sandbox: SandboxId::from_entropy(entropy(n % 2)),
        provider: "fake".to_owned(),
        sandbox_name: None,
        name: name.map(str::to_owned),
        tenant_wide: true,
        transient: false,
        warm: false,
        state: SnapshotState::Ready,
        memory: false,
        template: "base".to_owned(),
        template_version: "1".to_owned(),
        env: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
        user: "user".to_owned(),
        workdir: "/".to_owned(),
        command: None,
        limits: Limits::default(),
        network: NetworkPolicy::allow_all(),
        bytes: 4_096,
        seal: "seal".to_owned(),
        stood_still_us: 1_500,
        created_at: at(i64::from(n)),
    }
}

fn ids(snapshots: &[Snapshot]) -> Vec<SnapshotId> {
    snapshots.iter().map(|snapshot| snapshot.id.clone()).collect()
}

pub(super) async fn a_snapshot_is_found_by_id_name_and_prefix(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    // The sandbox of a snapshot need not exist.
    let shot = snapshot(5, &mine, Some("before"));
    store.put_snapshot(shot.clone(), None).await.unwrap();
    assert_eq!(store.snapshot(&shot.id).await.unwrap(), Some((shot.clone(), None)));
    for word in [shot.id.as_str(), "before", &shot.id.as_str()[..5]] {
        assert_eq!(store.find_snapshot(Some(&mine), word).await.unwrap().first(), Some(&shot), "{word}");
        assert_eq!(store.find_snapshot(None, word).await.unwrap().len(), 1, "{word}");
        assert_eq!(store.find_snapshot(Some(&other), word).await.unwrap(), [], "{word}");
    }
    assert_eq!(store.find_snapshot(None, &shot.id.as_str()[..2]).await.unwrap(), []);
    // These have a common prefix and differ in their sixth character.
    for n in [5 + 36u32.pow(5), 5 + 2 * 36u32.pow(5)] {
        store.put_snapshot(snapshot(n, &mine, None), None).await.unwrap();
    }
    assert_eq!(store.find_snapshot(None, &shot.id.as_str()[..3]).await.unwrap().len(), 2);
    assert!(store.delete_snapshot(&shot.id).await.unwrap());
    assert!(!store.delete_snapshot(&shot.id).await.unwrap());
    assert_eq!(store.snapshot(&shot.id).await.unwrap(), None);
}

pub(super) async fn a_snapshot_is_replaced_by_its_id_and_keeps_its_place(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let making = Snapshot { state: SnapshotState::Making, ..snapshot(1, &mine, Some("one")) };
    store.put_snapshot(making.clone(), None).await.unwrap();
    store.put_snapshot(snapshot(2, &mine, None), None).await.unwrap();
    // A snapshot that is not ready is found only by its whole id and for adoption.
    let all =
        |name: Option<&str>| SnapshotQuery { limit: 10, name: name.map(str::to_owned), ..Default::default() };
    assert_eq!(ids(&store.snapshots(all(None)).await.unwrap().items), ids(&[snapshot(2, &mine, None)]));
    assert_eq!(store.find_snapshot(None, "one").await.unwrap(), []);
    assert_eq!(store.find_snapshot(None, making.id.as_str()).await.unwrap().first(), Some(&making));
    assert_eq!(store.all_snapshots().await.unwrap().len(), 2);
    let ready = Snapshot { state: SnapshotState::Ready, memory: true, bytes: 9, ..making };
    store.put_snapshot(ready.clone(), Some("token".to_owned())).await.unwrap();
    assert_eq!(store.snapshot(&ready.id).await.unwrap(), Some((ready.clone(), Some("token".to_owned()))));
    let listed = store.snapshots(all(None)).await.unwrap().items;
    assert_eq!(listed.last(), Some(&ready), "newest first, and it was first");
    let hidden = Snapshot { transient: true, ..ready.clone() };
    store.put_snapshot(hidden.clone(), None).await.unwrap();
    assert_eq!(store.snapshot(&ready.id).await.unwrap(), Some((hidden, None)), "the token goes with the row");
    assert_eq!(store.find_snapshot(None, "one").await.unwrap(), []);
    assert_eq!(store.snapshots(all(None)).await.unwrap().items.len(), 1);
}

pub(super) async fn a_snapshot_name_is_unique_per_tenant(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let first = snapshot(1, &mine, Some("name"));
    store.put_snapshot(first.clone(), None).await.unwrap();
    store.put_snapshot(first.clone(), None).await.unwrap();
    store.put_snapshot(snapshot(2, &other, Some("name")), None).await.unwrap();
    let second = snapshot(3, &mine, Some("name"));
    let refusal = store.put_snapshot(second.clone(), None).await.unwrap_err();
    assert!(matches!(&refusal, StoreError::SnapshotNameTaken { name } if name == "name"), "{refusal}");
    let going = Snapshot { state: SnapshotState::Deleting, ..first };
    store.put_snapshot(going.clone(), None).await.unwrap();
    store.put_snapshot(second, None).await.unwrap();
    store.put_snapshot(going, None).await.unwrap();
    let nobody = TenantId::from_entropy(entropy(77));
    let refusal = store.put_snapshot(snapshot(9, &nobody, None), None).await.unwrap_err();
    assert!(matches!(refusal, StoreError::NoTenant), "{refusal}");
}

pub(super) async fn a_snapshot_name_may_belong_to_its_sandbox(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let own = |n| Snapshot {
        tenant_wide: false,
        sandbox_name: Some("box".to_owned()),
        ..snapshot(n, &mine, Some("name"))
    };
    // Snapshots with odd and with even numbers are of two sandboxes.
    store.put_snapshot(own(1), None).await.unwrap();
    store.put_snapshot(own(2), None).await.unwrap();
    let refusal = store.put_snapshot(own(3), None).await.unwrap_err();
    assert!(matches!(&refusal, StoreError::SnapshotNameTaken { name } if name == "name"), "{refusal}");
    assert_eq!(store.find_snapshot(Some(&mine), "name").await.unwrap().len(), 2);
    let wide = snapshot(5, &mine, Some("name"));
    store.put_snapshot(wide.clone(), None).await.unwrap();
    assert_eq!(store.find_snapshot(Some(&mine), "name").await.unwrap(), std::slice::from_ref(&wide));
    let of_box = SnapshotQuery { sandbox_name: Some("box".to_owned()), limit: 10, ..Default::default() };
    assert_eq!(store.snapshots(of_box).await.unwrap().items, [own(2), own(1)]);
    let of_sandbox = SnapshotQuery { sandbox: Some(own(1).sandbox), limit: 10, ..Default::default() };
    assert_eq!(store.snapshots(of_sandbox).await.unwrap().items, [wide.clone(), own(1)]);
    // A name moves within its scope only.
    let nameless = Snapshot { tenant_wide: false, ..snapshot(7, &mine, None) };
    store.put_snapshot(nameless.clone(), None).await.unwrap();
    store.move_snapshot_name(&nameless.id, "name").await.unwrap().unwrap();
    assert_eq!(store.snapshot(&own(1).id).await.unwrap().unwrap().0.name, None);
    for kept in [own(2), wide] {
        assert_eq!(store.snapshot(&kept.id).await.unwrap(), Some((kept, None)));
    }
}

pub(super) async fn snapshots_are_listed_by_page_tenant_sandbox_and_name(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    for n in 0..25 {
        let name = (n == 7).then_some("seven");
        store.put_snapshot(snapshot(n, &mine, name), None).await.unwrap();
    }
    store.put_snapshot(snapshot(99, &other, Some("seven")), None).await.unwrap();
    let mut query = SnapshotQuery { tenant: Some(mine.clone()), limit: 10, ..Default::default() };
    let mut seen = Vec::new();
    for page in 0.. {
        let answer = store.snapshots(query.clone()).await.unwrap();
        seen.extend(answer.items.into_iter().map(|snapshot| snapshot.created_at.wall_ms));
        store.put_snapshot(snapshot(100 + page, &mine, None), None).await.unwrap();
        match answer.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(seen, (0..25).rev().collect::<Vec<i64>>());
    let count = |query: SnapshotQuery| {
        let store = Arc::clone(&store);
        async move { store.snapshots(SnapshotQuery { limit: 100, ..query }).await.unwrap().items.len() }
    };
    let named = SnapshotQuery { name: Some("seven".to_owned()), ..Default::default() };
    assert_eq!(count(named.clone()).await, 2);
    assert_eq!(count(SnapshotQuery { tenant: Some(mine), ..named }).await, 1);
    let sandbox = Some(SandboxId::from_entropy(entropy(0)));
    let of_sandbox = SnapshotQuery { sandbox, tenant: Some(other.clone()), ..Default::default() };
    assert_eq!(count(of_sandbox.clone()).await, 0);
    assert!(count(SnapshotQuery { tenant: None, ..of_sandbox }).await >= 13);
    let bad = SnapshotQuery { cursor: Some("'; DROP".to_owned()), limit: 1, ..Default::default() };
    assert!(matches!(store.snapshots(bad).await, Err(StoreError::BadCursor)));
}

pub(super) async fn children_and_threads_are_found_until_they_are_deleted(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let parent = lease(1, &mine);
    // Forks: of the other sandboxes a thread has one.
    let child = |n| {
        let snapshot = SnapshotId::from_entropy(entropy(n));
        let source = Source::Snapshot { snapshot, memory: false, fork: true };
        let thread = Some("t'1".to_owned());
        Lease { source, parent: Some(parent.id.clone()), thread, ..lease(n, &mine) }
    };
    let foreign = Lease { thread: Some("t'1".to_owned()), ..lease(4, &other) };
    for lease in [&parent, &child(2), &child(3), &foreign] {
        store.insert(new(lease)).await.unwrap();
    }
    assert_eq!(store.children(&parent.id).await.unwrap(), [child(2).id, child(3).id]);
    assert_eq!(store.children(&child(2).id).await.unwrap(), []);
    assert_eq!(store.of_thread(Some(&mine), "t'1").await.unwrap(), [child(2), child(3)]);
    assert_eq!(store.of_thread(None, "t'1").await.unwrap().len(), 3);
    assert_eq!(store.of_thread(Some(&mine), "t").await.unwrap(), []);
    advanced(&store, &child(2), Phase::Deleted).await;
    assert_eq!(store.children(&parent.id).await.unwrap(), [child(3).id]);
    assert_eq!(store.of_thread(Some(&mine), "t'1").await.unwrap(), [child(3)]);
    // A parent's record may be removed before its children's.
    advanced(&store, &parent, Phase::Deleted).await;
    store
        .sweep(Sweep {
            events_kept: 9,
            deleted_before_ms: 9_999,
            idempotency_before_ms: 0,
            builds_before_ms: 0,
        })
        .await
        .unwrap();
    assert_eq!(store.children(&parent.id).await.unwrap(), [child(3).id]);
}

pub(super) async fn a_restored_instance_takes_the_terminals_with_it(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let row = |n, token: &str| InstanceRow {
        instance: InstanceId::from_entropy(entropy(n)),
        facts: serde_json::json!({ "n": n }),
        agent_token: token.to_owned(),
    };
    let running = Advance { instance: InstanceChange::Put(row(1, "old")), ..to(&first, Phase::Running) };
    store.advance(running.clone()).await.unwrap();
    let terminal = |id: &str, thread: &str, n| Terminal {
        id: id.to_owned(),
        sandbox: first.id.clone(),
        instance: row(n, "").instance,
        thread: thread.to_owned(),
        pid: Some(4),
        created_at_ms: 1,
        settings: crate::TerminalSettings::default(),
    };
    for (id, thread) in [("a", "one"), ("b", "two")] {
        store.put_terminal(terminal(id, thread, 1), 9).await.unwrap();
    }
    let moved = |lease: &Lease, n| Lease { instance: Some(row(n, "").instance), ..lease.clone() };
    let resumed = to(&moved(&running.lease, 2), Phase::Running);
    let restored = Advance { instance: InstanceChange::Restored(row(2, "new")), ..resumed };
    store.advance(restored.clone()).await.unwrap();
    assert_eq!(store.live().await.unwrap(), [(restored.lease.clone(), Some(row(2, "new")))]);
    let there = store.terminals(&first.id).await.unwrap();
    assert_eq!(there, [terminal("a", "one", 2), terminal("b", "two", 2)]);
    assert_eq!(
        store.put_terminal(terminal("c", "one", 2), 9).await.unwrap().id,
        "a",
        "the shell is still there"
    );
    // A stale write changes nothing.
    let late =
        Advance { instance: InstanceChange::Restored(row(3, "late")), ..to(&running.lease, Phase::Running) };
    assert!(matches!(store.advance(late).await, Err(StoreError::Stale { .. })));
    assert_eq!(store.terminals(&first.id).await.unwrap(), there);
    // A new boot has new terminals: those of the earlier instance are not returned.
    let booted = to(&moved(&restored.lease, 4), Phase::Running);
    store.advance(Advance { instance: InstanceChange::Put(row(4, "boot")), ..booted }).await.unwrap();
    assert_eq!(store.terminals(&first.id).await.unwrap(), []);
    assert_eq!(store.put_terminal(terminal("d", "one", 4), 9).await.unwrap().id, "d");
}

fn terminal_of(lease: &Lease, id: &str, pid: Option<u32>) -> Terminal {
    Terminal {
        id: id.to_owned(),
        sandbox: lease.id.clone(),
        instance: lease.instance.clone().unwrap(),
        thread: format!("thread-{id}"),
        pid,
        created_at_ms: 1,
        settings: crate::TerminalSettings { cols: 90, ..Default::default() },
    }
}

pub(super) async fn racing_terminals_meet_their_number_exactly(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (store, terminal) = (Arc::clone(&store), terminal_of(&first, &format!("t{n}"), None));
        tasks.spawn(async move { store.put_terminal(terminal, 5).await });
    }
    let (made, refused): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (5, 15));
    assert!(refused.iter().all(|refusal| matches!(refusal, Err(StoreError::TooManyTerminals { most: 5 }))));
    let known = made[0].as_ref().unwrap().clone();
    assert_eq!(store.put_terminal(known.clone(), 5).await.unwrap(), known, "its thread has one already");
    let stopped = Lease { instance: None, ..first.clone() };
    store.advance(Advance { instance: InstanceChange::Drop, ..to(&stopped, Phase::Stopped) }).await.unwrap();
    let late = store.put_terminal(terminal_of(&first, "late", None), 5).await;
    assert!(matches!(late, Err(StoreError::NoInstance { .. })), "{late:?}");
}

pub(super) async fn a_fork_with_memory_has_the_terminals_of_its_parent(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    for (id, pid) in [("a", Some(4)), ("b", None)] {
        store.put_terminal(terminal_of(&first, id, pid), 9).await.unwrap();
    }
    let child = |n: u32, of: &Lease, memory| {
        let snapshot = SnapshotId::from_entropy(entropy(n));
        let source = Source::Snapshot { snapshot, memory, fork: true };
        Lease { source, parent: Some(of.id.clone()), ..lease(n, &mine) }
    };
    let (fork, files_only) = (child(2, &first, true), child(3, &first, false));
    let fork_of_fork = child(4, &fork, true);
    for lease in [&fork, &files_only, &fork_of_fork] {
        store.insert(new(lease)).await.unwrap();
    }
    assert_eq!(store.terminals(&files_only.id).await.unwrap(), []);
    for lease in [&fork, &fork_of_fork] {
        let mut copied = store.terminals(&lease.id).await.unwrap();
        copied.sort_by_key(|terminal| terminal.thread.clone());
        let parts = |terminal: &Terminal| {
            let settings = &terminal.settings;
            (terminal.thread.clone(), terminal.pid, settings.cols, settings.forked_from.clone())
        };
        let wanted = [
            ("thread-a".to_owned(), Some(4), 90, Some("a".to_owned())),
            ("thread-b".to_owned(), None, 90, Some("b".to_owned())),
        ];
        assert_eq!(copied.iter().map(parts).collect::<Vec<_>>(), wanted);
        assert!(copied.iter().all(|terminal| terminal.instance == lease.instance.clone().unwrap()));
    }
    assert_eq!(store.terminals(&first.id).await.unwrap().len(), 2, "the parent keeps its own");
}

pub(super) async fn racing_previews_meet_their_number_exactly(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let preview = |n: u32, at_ms: i64, expires_at_ms: Option<i64>| PreviewRecord {
        id: PreviewId::from_entropy(entropy(n)),
        sandbox: first.id.clone(),
        port: 8_080,
        public: true,
        created_at_ms: at_ms,
        expires_at_ms,
    };
    let hash = |n: u32| [u8::try_from(n).unwrap(); 32];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        let (store, preview) = (Arc::clone(&store), preview(n, 10, Some(20)));
        tasks.spawn(async move { store.put_preview(preview, hash(n), 5).await });
    }
    let (made, refused): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (5, 15));
    assert!(
        refused.iter().all(|refusal| matches!(refusal, Err(StoreError::TooManyPreviews { most: 5, .. })))
    );
    store.put_preview(preview(30, 20, None), hash(30), 5).await.unwrap();
    assert_eq!(store.previews(&first.id).await.unwrap().len(), 1, "the expired ones made room");
}

pub(super) async fn memory_on_disk_takes_no_compute_until_it_is_resumed(store: Subject) {
    let limits = Limits { memory_mib: 600, disk_mib: 100, ..Limits::default() };
    let quota = Quota { memory_mib: Some(1_000), disk_mib: Some(200), ..Default::default() };
    let mine = tenant(&store, 1, quota).await;
    let sized = |n| Lease { limits, ..lease(n, &mine) };
    store.insert(new(&sized(1))).await.unwrap();
    let frozen = Lease { held: Some(MemoryLocation::Live), ..sized(1) };
    let frozen = advanced(&store, &frozen, Phase::Paused).await;
    assert_eq!(store.usage(&mine).await.unwrap().memory_mib, 600, "frozen memory is memory");
    assert!(matches!(store.insert(new(&sized(2))).await, Err(StoreError::Quota(_))));
    let on_disk =
        advanced(&store, &Lease { held: Some(MemoryLocation::Disk), ..frozen }, Phase::Paused).await;
    let usage = store.usage(&mine).await.unwrap();
    assert_eq!((usage.memory_mib, usage.cpu_milli, usage.disk_mib, usage.sandboxes), (0, 0, 100, 1));
    store.insert(new(&sized(2))).await.unwrap();
    let resume = Advance { admit: Admit::Compute, ..to(&on_disk, Phase::Resuming) };
    let refusal = store.advance(resume.clone()).await.unwrap_err();
    assert!(matches!(&refusal, StoreError::Quota(exceeded) if exceeded.what == "MiB of memory"), "{refusal}");
    // A resize of a sandbox that uses no compute counts only its disk.
    let grown = Lease { limits: Limits { memory_mib: 5_000, ..limits }, ..on_disk.clone() };
    let grown = Advance { admit: Admit::Resize, ..to(&grown, Phase::Paused) };
    store.advance(grown.clone()).await.unwrap();
    let back = Lease { limits, ..grown.lease };
    let back = advanced(&store, &back, Phase::Paused).await;
    advanced(&store, &sized(2), Phase::Stopped).await;
    store.advance(Advance { admit: Admit::Compute, ..to(&back, Phase::Resuming) }).await.unwrap();
    assert_eq!(store.usage(&mine).await.unwrap().memory_mib, 600);
}

pub(super) async fn previews_are_kept_by_hash_and_those_that_ended_make_room(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let (first, second) = (lease(1, &mine), lease(2, &mine));
    store.insert(new(&first)).await.unwrap();
    store.insert(new(&second)).await.unwrap();
    let preview = |n: u32, at_ms: i64, expires_at_ms: Option<i64>| PreviewRecord {
        id: PreviewId::from_entropy(entropy(n)),
        sandbox: first.id.clone(),
        port: 8_080,
        public: n == 2,
        created_at_ms: at_ms,
        expires_at_ms,
    };
    let (short, open) = (preview(1, 10, Some(20)), preview(2, 11, None));
    store.put_preview(short.clone(), [1; 32], 9).await.unwrap();
    store.put_preview(open.clone(), [2; 32], 9).await.unwrap();
    let both = vec![(short, [1; 32]), (open.clone(), [2; 32])];
    assert_eq!(store.previews(&first.id).await.unwrap(), both);
    assert_eq!(store.previews(&second.id).await.unwrap(), []);
    let later = preview(3, 20, Some(30));
    store.put_preview(later.clone(), [3; 32], 9).await.unwrap();
    assert_eq!(store.previews(&first.id).await.unwrap(), [(open, [2; 32]), (later.clone(), [3; 32])]);
    assert!(!store.delete_preview(&second.id, &later.id).await.unwrap(), "only by its own sandbox");
    assert!(store.delete_preview(&first.id, &later.id).await.unwrap());
    assert!(!store.delete_preview(&first.id, &later.id).await.unwrap());
    assert_eq!(store.previews(&first.id).await.unwrap().len(), 1);
}

pub(super) async fn a_queued_sandbox_counts_only_once_it_has_its_place(store: Subject) {
    let quota = Quota { sandboxes: Some(1), memory_mib: Some(600), ..Default::default() };
    let mine = tenant(&store, 1, quota).await;
    let running = lease(1, &mine);
    store.insert(new(&running)).await.unwrap();
    let used = store.usage(&mine).await.unwrap();
    let wait = QueueWait { until: at(60_000), timed_out_at: None, place: None };
    let queued = |n| Lease { queue: Some(wait.clone()), instance: None, ..lease(n, &mine) };
    for n in [2, 3] {
        assert_eq!(store.insert(new(&queued(n))).await.unwrap(), Inserted::New);
    }
    assert_eq!(store.usage(&mine).await.unwrap(), used, "queued ones count as nothing");
    assert_eq!(store.lease(&queued(2).id).await.unwrap(), Some(queued(2)), "as it was written");
    let too_large = Lease { limits: Limits { memory_mib: 601, ..Limits::default() }, ..queued(4) };
    assert!(
        matches!(store.insert(new(&too_large)).await, Err(StoreError::Quota(_))),
        "it would wait in vain"
    );
    let placed = |n| {
        let change = to(&queued(n), Phase::Creating);
        Advance { lease: Lease { queue: None, ..change.lease }, admit: Admit::Place, ..change }
    };
    assert!(matches!(store.advance(placed(2)).await, Err(StoreError::Quota(_))));
    advanced(&store, &running, Phase::Deleted).await;
    store.advance(placed(2)).await.unwrap();
    assert_eq!(store.usage(&mine).await.unwrap(), used);
    assert!(matches!(store.advance(placed(3)).await, Err(StoreError::Quota(_))));
}
