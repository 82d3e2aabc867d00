//! Threads: which provider and which sandbox a conversation has, sessions by id and thread, and the marks of an orderly end.

use std::sync::Arc;

use atoll_model::{
    Lease, MoveProgress, MoveStage, OnExit, Phase, Quota, SandboxMove, SnapshotId, Source, TenantId,
};

use super::{Subject, advanced, entropy, lease, new, tenant};
use crate::{Inserted, LeaseQuery, NewLease, StoreError, Sweep, ThreadQuery};

fn in_thread(n: u32, of: &TenantId, thread: &str) -> Lease {
    Lease { thread: Some(thread.to_owned()), ..lease(n, of) }
}

fn fork_of(n: u32, parent: &Lease) -> Lease {
    let source =
        Source::Snapshot { snapshot: SnapshotId::from_entropy(entropy(n)), memory: false, fork: true };
    let parent_id = Some(parent.id.clone());
    Lease { source, parent: parent_id, thread: parent.thread.clone(), ..lease(n, &parent.tenant) }
}

pub(super) async fn a_thread_has_one_sandbox_and_one_provider(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let first = in_thread(1, &mine, "t'1");
    assert_eq!(store.insert(new(&first)).await.unwrap(), Inserted::New);
    let again = store.insert(new(&in_thread(2, &mine, "t'1"))).await.unwrap();
    assert_eq!(again, Inserted::Bound(Box::new(first.clone())));
    assert_eq!(store.lease(&lease(2, &mine).id).await.unwrap(), None, "nothing was stored");
    let elsewhere = Lease { provider: "second".to_owned(), ..in_thread(3, &mine, "t'1") };
    let refused = store.insert(new(&elsewhere)).await.unwrap_err();
    assert!(matches!(&refused, StoreError::ThreadBound { provider, .. } if provider == "fake"), "{refused}");
    let foreign = Lease { provider: "second".to_owned(), ..in_thread(4, &other, "t'1") };
    assert_eq!(store.insert(new(&foreign)).await.unwrap(), Inserted::New, "another tenant's is another");
    let fork = fork_of(5, &first);
    assert_eq!(store.insert(new(&fork)).await.unwrap(), Inserted::New);
    let found = store.find_thread(Some(&mine), "t'1").await.unwrap();
    assert_eq!(found[0].sandbox, Some((first.id.clone(), Phase::Creating)), "a fork is not its sandbox");

    // The binding outlives the sandbox, and its record.
    advanced(&store, &first, Phase::Deleted).await;
    let sweep =
        Sweep { events_kept: 9, deleted_before_ms: 9_999, idempotency_before_ms: 0, builds_before_ms: 0 };
    store.sweep(sweep).await.unwrap();
    assert_eq!(store.find_thread(Some(&mine), "t'1").await.unwrap()[0].sandbox, None);
    assert!(matches!(store.insert(new(&elsewhere)).await, Err(StoreError::ThreadBound { .. })));
    let second = in_thread(6, &mine, "t'1");
    assert_eq!(store.insert(new(&second)).await.unwrap(), Inserted::New);
    let found = store.find_thread(Some(&mine), "t'1").await.unwrap();
    assert_eq!((found[0].sandbox.clone(), found[0].created_at_ms), (Some((second.id, Phase::Creating)), 1));
}

pub(super) async fn a_thread_follows_its_sandbox_to_another_provider(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let (first, fork) = (in_thread(1, &mine, "t"), fork_of(2, &in_thread(1, &mine, "t")));
    store.insert(new(&first)).await.unwrap();
    store.insert(new(&fork)).await.unwrap();
    let moved = |lease: &Lease, stage| {
        let moving = SandboxMove {
            from: "fake".to_owned(),
            to: "second".to_owned(),
            template: lease.template.clone(),
            stage,
            started_at: lease.created_at.clone(),
            progress: MoveProgress::default(),
        };
        Lease { provider: "second".to_owned(), moving: Some(moving), ..lease.clone() }
    };
    let provider = async || store.find_thread(Some(&mine), "t").await.unwrap()[0].provider.clone();
    advanced(&store, &moved(&fork, MoveStage::Removing), Phase::Stopped).await;
    assert_eq!(provider().await, "fake", "a fork is not the thread's sandbox");
    let copying = Lease { provider: "fake".to_owned(), ..moved(&first, MoveStage::Copying) };
    let copying = advanced(&store, &copying, Phase::Restoring).await;
    assert_eq!(provider().await, "fake", "it is not moved yet");
    advanced(&store, &moved(&copying, MoveStage::Removing), Phase::Stopped).await;
    assert_eq!(provider().await, "second");
    let query = LeaseQuery { provider: Some("second".to_owned()), limit: 9, ..LeaseQuery::default() };
    assert_eq!(store.list(query).await.unwrap().items.len(), 2, "lists find it there");
}

pub(super) async fn a_sandbox_that_leaves_its_thread_frees_it_or_its_place(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let left = |lease: Lease| Lease { thread: None, ..lease };
    let first = in_thread(1, &mine, "t");
    store.insert(new(&first)).await.unwrap();
    advanced(&store, &left(first), Phase::Failed).await;
    assert_eq!(
        store.find_thread(Some(&mine), "t").await.unwrap(),
        [],
        "its first sandbox binds it to nothing"
    );
    let elsewhere = Lease { provider: "second".to_owned(), ..in_thread(2, &mine, "t") };
    assert_eq!(store.insert(new(&elsewhere)).await.unwrap(), Inserted::New);
    advanced(&store, &elsewhere, Phase::Deleted).await;
    let third = Lease { provider: "second".to_owned(), ..in_thread(3, &mine, "t") };
    assert_eq!(store.insert(new(&third)).await.unwrap(), Inserted::New);
    advanced(&store, &left(third.clone()), Phase::Failed).await;
    let found = store.find_thread(Some(&mine), "t").await.unwrap();
    assert_eq!(
        (found[0].provider.as_str(), found[0].sandbox.clone()),
        ("second", None),
        "an earlier one bound it"
    );
    let fourth = Lease { id: lease(4, &mine).id, ..third };
    assert_eq!(store.insert(new(&fourth)).await.unwrap(), Inserted::New);
}

pub(super) async fn a_refused_insert_binds_no_thread(store: Subject) {
    let mine = tenant(&store, 1, Quota { sandboxes: Some(1), ..Quota::default() }).await;
    store.insert(new(&lease(1, &mine))).await.unwrap();
    let refused = store.insert(new(&in_thread(2, &mine, "t"))).await;
    assert!(matches!(refused, Err(StoreError::Quota(_))), "{refused:?}");
    assert_eq!(store.find_thread(None, "t").await.unwrap(), []);
}

pub(super) async fn a_repeated_key_comes_before_the_thread(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let keyed =
        |n| NewLease { lease: in_thread(n, &mine, "t"), idempotency: Some(("key".to_owned(), [1; 32])) };
    assert_eq!(store.insert(keyed(1)).await.unwrap(), Inserted::New);
    assert!(matches!(store.insert(keyed(2)).await.unwrap(), Inserted::Replayed(_)));
    let other_key = NewLease { idempotency: Some(("other".to_owned(), [1; 32])), ..keyed(3) };
    assert!(matches!(store.insert(other_key).await.unwrap(), Inserted::Bound(_)));
}

pub(super) async fn racing_inserts_of_one_thread_make_one_sandbox(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 1..=20 {
        let (store, lease) = (Arc::clone(&store), in_thread(n, &mine, "t"));
        tasks.spawn(async move { store.insert(new(&lease)).await.unwrap() });
    }
    let all = tasks.join_all().await;
    assert_eq!(all.iter().filter(|inserted| **inserted == Inserted::New).count(), 1);
    let (sandbox, _) = store.find_thread(None, "t").await.unwrap()[0].sandbox.clone().unwrap();
    for inserted in all {
        assert!(
            matches!(inserted, Inserted::New)
                || matches!(inserted, Inserted::Bound(lease) if lease.id == sandbox)
        );
    }
}

pub(super) async fn threads_are_listed_by_page_and_removed_without_sandboxes(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    for n in 1..=5 {
        store.insert(new(&in_thread(n, &mine, &format!("t{n}")))).await.unwrap();
    }
    store.insert(new(&in_thread(6, &other, "t5"))).await.unwrap();
    let mut query = ThreadQuery { tenant: Some(mine.clone()), limit: 2, cursor: None };
    let mut names = Vec::new();
    loop {
        let page = store.threads(query.clone()).await.unwrap();
        names.extend(page.items.into_iter().map(|thread| thread.thread));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
        // Later threads do not move a page.
        let later = u32::try_from(names.len()).unwrap() + 10;
        store.insert(new(&in_thread(later, &mine, &format!("later-{later}")))).await.unwrap();
    }
    assert_eq!(names, ["t5", "t4", "t3", "t2", "t1"]);
    assert_eq!(store.threads(ThreadQuery { limit: 100, ..Default::default() }).await.unwrap().items.len(), 8);
    let bad = ThreadQuery { cursor: Some("'; DROP".to_owned()), limit: 1, ..Default::default() };
    assert!(matches!(store.threads(bad).await, Err(StoreError::BadCursor)));
    assert_eq!(store.find_thread(None, "t5").await.unwrap().len(), 2);

    store.remove_unused_threads(None, "t5").await.unwrap();
    assert_eq!(store.find_thread(None, "t5").await.unwrap().len(), 2, "both have a sandbox");
    advanced(&store, &in_thread(5, &mine, "t5"), Phase::Deleted).await;
    store.remove_unused_threads(Some(&other), "t5").await.unwrap();
    assert_eq!(store.find_thread(None, "t5").await.unwrap().len(), 2, "not of another tenant");
    store.remove_unused_threads(Some(&mine), "t5").await.unwrap();
    let left = store.find_thread(None, "t5").await.unwrap();
    assert_eq!(left.iter().map(|thread| &thread.tenant).collect::<Vec<_>>(), [&other]);
}

pub(super) async fn a_sweep_forgets_transient_threads_without_a_sandbox(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let names = ["transient-1", "transient-2", "t"];
    for (n, name) in (1..).zip(names) {
        store.insert(new(&in_thread(n, &mine, name))).await.unwrap();
    }
    for (n, name) in [(1, "transient-1"), (3, "t")] {
        advanced(&store, &in_thread(n, &mine, name), Phase::Deleted).await;
    }
    let sweep = Sweep { events_kept: 9, deleted_before_ms: 0, idempotency_before_ms: 0, builds_before_ms: 0 };
    store.sweep(sweep).await.unwrap();
    let mut left = Vec::new();
    for name in names {
        left.push(store.find_thread(Some(&mine), name).await.unwrap().len());
    }
    assert_eq!(left, [0, 1, 1]);
}

pub(super) async fn a_session_is_found_by_id_thread_and_prefix(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let first = in_thread(1, &mine, "talk");
    let foreign = Lease { provider: "second".to_owned(), ..in_thread(2, &other, "talk") };
    for lease in [&first, &foreign] {
        store.insert(new(lease)).await.unwrap();
    }
    let ids = async |tenant: Option<&TenantId>, provider: Option<&str>, ident: &str| {
        let found = store.find_session(tenant, provider, ident).await.unwrap();
        found.into_iter().map(|lease| lease.id).collect::<Vec<_>>()
    };
    // Two ids of this suite differ in their first characters.
    let short = &first.id.as_str()[..3];
    for word in [first.id.as_str(), "talk", short] {
        assert_eq!(ids(Some(&mine), None, word).await, std::slice::from_ref(&first.id), "{word}");
        assert_eq!(ids(Some(&mine), Some("second"), word).await, [], "{word}");
    }
    assert_eq!(ids(None, None, "talk").await.len(), 2);
    assert_eq!(ids(None, Some("second"), "talk").await, std::slice::from_ref(&foreign.id));
    assert_eq!(ids(Some(&other), None, first.id.as_str()).await, []);
    for word in ["", "a", "' OR 1=1 --", "%", "TALK"] {
        assert_eq!(ids(None, None, word).await, [], "{word}");
    }
    let fork = fork_of(3, &first);
    store.insert(new(&fork)).await.unwrap();
    assert_eq!(ids(Some(&mine), None, "talk").await, [first.id.clone(), fork.id.clone()]);
    advanced(&store, &first, Phase::Deleted).await;
    assert_eq!(ids(Some(&mine), None, "talk").await, [fork.id]);
    assert_eq!(ids(Some(&mine), None, first.id.as_str()).await, []);
}

pub(super) async fn an_orderly_end_marks_what_has_to_act(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let bound = |n, on_exit| Lease { on_exit, ..lease(n, &mine) };
    let all = [
        (bound(1, OnExit::Keep), Phase::Running),
        (bound(2, OnExit::Pause), Phase::Running),
        (bound(3, OnExit::Pause), Phase::Paused),
        (bound(4, OnExit::Destroy), Phase::Stopped),
        (bound(5, OnExit::Destroy), Phase::Deleted),
    ];
    for (lease, phase) in &all {
        store.insert(new(lease)).await.unwrap();
        advanced(&store, lease, *phase).await;
    }
    assert_eq!(store.pending_exits().await.unwrap(), []);
    store.begin_exits().await.unwrap();
    let (pauses, goes) = (all[1].0.id.clone(), all[3].0.id.clone());
    assert_eq!(store.pending_exits().await.unwrap(), [pauses.clone(), goes.clone()]);
    // A change of the lease leaves the mark.
    let running = Lease { phase: Phase::Running, generation: 2, ..all[1].0.clone() };
    advanced(&store, &running, Phase::Pausing).await;
    assert_eq!(store.pending_exits().await.unwrap().len(), 2);
    store.end_exits(vec![pauses]).await.unwrap();
    assert_eq!(store.pending_exits().await.unwrap(), std::slice::from_ref(&goes));
    store.end_exits(vec![goes]).await.unwrap();
    assert_eq!(store.pending_exits().await.unwrap(), []);
}
