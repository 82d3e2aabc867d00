//! Requirements for every store. Each case takes a new, empty store; [`all`] lists them by name for a test that runs
//! them one by one.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "this is test code behind a feature")]

pub mod life;
mod lists;
mod reach;
mod templates;
mod threads;
pub mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_model::{
    EventKind, InstanceId, Intent, KeyId, Lease, Limits, NetworkPolicy, NodeName, OnExit, OnTimeout, Phase,
    Quota, Reason, SandboxId, Scope, Source, Stage, Storage, TenantId, Timers, Timestamp, Wake,
};

use crate::{
    Admit, Advance, EventQuery, Inserted, InstanceChange, InstanceRow, KeyRecord, LeaseQuery, NewEvent,
    NewLease, ResourceSample, Store, StoreError, Sweep, TenantRecord, Terminal, TerminalSettings,
};

/// A store under test.
pub type Subject = Arc<dyn Store>;
type Case = (&'static str, fn(Subject) -> futures_box::Boxed);

mod futures_box {
    pub(super) type Boxed = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Every case with its name.
#[must_use]
pub fn all() -> Vec<Case> {
    macro_rules! cases {
        ($($name:path),* $(,)?) => { vec![$((stringify!($name), |store| Box::pin($name(store)))),*] };
    }
    cases![
        what_was_inserted_is_found_by_id_name_and_prefix,
        a_hundred_racing_inserts_meet_the_quota_exactly,
        life::a_queued_sandbox_counts_only_once_it_has_its_place,
        a_name_is_unique_per_tenant_among_those_not_deleted,
        the_same_idempotency_key_answers_the_same_sandbox,
        an_advance_over_a_newer_generation_is_stale,
        a_start_is_counted_against_compute,
        a_failing_write_leaves_those_beside_it_alone,
        pages_are_stable_while_others_are_inserted,
        lists_filter_by_phase_label_template_and_tenant,
        lists::lists_filter_by_beginnings_origin_size_and_time,
        lists::every_order_pages_stably_both_ways,
        live_rows_carry_their_instance_and_token,
        keys_are_found_by_hash_until_deleted,
        keys_of_a_user_key_are_bounded_and_end_with_it,
        a_thread_gets_the_same_terminal_within_an_instance,
        samples_are_bounded_and_go_with_the_sandbox,
        events_are_ordered_and_filtered,
        a_sweep_forgets_only_what_is_old,
        life::a_snapshot_is_found_by_id_name_and_prefix,
        life::a_snapshot_is_replaced_by_its_id_and_keeps_its_place,
        life::a_snapshot_name_is_unique_per_tenant,
        life::a_snapshot_name_may_belong_to_its_sandbox,
        life::snapshots_are_listed_by_page_tenant_sandbox_and_name,
        life::children_and_threads_are_found_until_they_are_deleted,
        life::a_restored_instance_takes_the_terminals_with_it,
        life::racing_terminals_meet_their_number_exactly,
        life::a_fork_with_memory_has_the_terminals_of_its_parent,
        life::previews_are_kept_by_hash_and_those_that_ended_make_room,
        life::racing_previews_meet_their_number_exactly,
        reach::secrets_are_kept_by_tenant_and_name,
        reach::a_secret_is_rotated_in_its_place_and_deleted_once,
        reach::racing_secrets_meet_their_number_exactly,
        reach::a_sealed_text_opens_for_its_tenant_alone,
        reach::the_policy_above_a_tenant_is_kept,
        threads::a_thread_has_one_sandbox_and_one_provider,
        threads::a_thread_follows_its_sandbox_to_another_provider,
        threads::a_sandbox_that_leaves_its_thread_frees_it_or_its_place,
        threads::a_refused_insert_binds_no_thread,
        threads::a_repeated_key_comes_before_the_thread,
        threads::racing_inserts_of_one_thread_make_one_sandbox,
        threads::threads_are_listed_by_page_and_removed_without_sandboxes,
        threads::a_sweep_forgets_transient_threads_without_a_sandbox,
        threads::a_session_is_found_by_id_thread_and_prefix,
        threads::an_orderly_end_marks_what_has_to_act,
        life::memory_on_disk_takes_no_compute_until_it_is_resumed,
        templates::a_tag_moves_and_its_versions_stay_known,
        templates::names_and_aliases_of_a_tenant_do_not_meet,
        templates::a_renamed_template_keeps_all_but_its_name,
        templates::public_templates_are_seen_by_others_and_changes_are_kept,
        templates::what_nothing_stands_on_is_forgotten,
        templates::builds_are_kept_found_and_swept,
        templates::a_sandbox_of_a_build_is_in_no_list,
        templates::a_sandbox_that_waits_for_its_build_takes_name_and_quota,
        templates::steps_of_two_builds_use_the_slots_of_two_waiting_sandboxes,
        templates::a_template_with_any_tag_is_found_by_its_name,
        volumes::a_volume_is_found_by_id_name_and_prefix,
        volumes::a_volume_is_not_removed_while_a_sandbox_mounts_it,
        volumes::mounts_and_removals_that_race_never_both_happen,
        volumes::volumes_meet_their_quota,
    ]
}

/// The time at so many milliseconds.
#[must_use]
pub fn at(ms: i64) -> Timestamp {
    Timestamp { wall_ms: ms, boot_id: "boot".to_owned(), boot_ms: ms }
}

fn entropy(n: u32) -> [u8; 20] {
    let mut bytes = [7u8; 20];
    // Spread over letters: an id is made modulo 36.
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from((n / 36u32.pow(u32::try_from(i % 6).unwrap())) % 36).unwrap();
    }
    bytes
}

/// Stores a tenant with this number.
pub async fn tenant(store: &Subject, n: u32, quota: Quota) -> TenantId {
    let id = TenantId::from_entropy(entropy(n));
    let record = TenantRecord {
        id: id.clone(),
        name: format!("tenant-{n}"),
        quota,
        network: None,
        providers: None,
        created_at_ms: 0,
    };
    store.put_tenant(record).await.unwrap();
    id
}

/// The node of everything here; a store under test is opened for it.
#[must_use]
pub fn node() -> NodeName {
    NodeName::default()
}

/// A lease with this number, not stored yet.
#[must_use]
pub fn lease(n: u32, tenant: &TenantId) -> Lease {
    Lease {
        id: SandboxId::from_entropy(entropy(n)),
        tenant: tenant.clone(),
        name: None,
        labels: BTreeMap::new(),
        env: BTreeMap::new(),
        provider: "fake".to_owned(),
        node: node(),
        template: "base".to_owned(),
        template_version: "1".to_owned(),
        user: "user".to_owned(),
        workdir: "/".to_owned(),
        command: None,
        command_failure: None,
        limits: Limits::default(),
        network: NetworkPolicy::allow_all(),
        storage: Storage::Disk,
        intent: Intent::Run,
        phase: Phase::Creating,
        stage: Stage::Booting,
        reason: Reason::Requested,
        generation: 1,
        instance: Some(InstanceId::from_entropy(entropy(n))),
        timeout_s: None,
        timeout_at: None,
        on_timeout: OnTimeout::Delete,
        timeout_counts: atoll_model::TimeoutCounts::Always,
        created_at: at(i64::from(n)),
        phase_at: at(i64::from(n)),
        held: None,
        timers: Timers::default(),
        active_at: None,
        stopped_at: None,
        hold: None,
        on_exit: OnExit::Keep,
        follows_provider_exit: false,
        thread: None,
        wake: Wake::Any,
        source: Source::Template,
        parent: None,
        private_env: BTreeSet::new(),
        archive: None,
        rollback_to: None,
        resizing: false,
        mounts: Vec::new(),
        build: None,
        public: false,
        token_epoch: 0,
        mask_host: None,
        https_ports: BTreeSet::new(),
        annotations: BTreeMap::new(),
        secrets: BTreeMap::new(),
        started_at: None,
        image_build: None,
        awaits: None,
        moving: None,
        last_move: None,
        queue: None,
        isolation: atoll_model::Isolation::Container,
        created_by_key: None,
    }
}

fn new(lease: &Lease) -> NewLease {
    NewLease { lease: lease.clone(), idempotency: None }
}

fn to(lease: &Lease, phase: Phase) -> Advance {
    let lease = Lease { phase, generation: lease.generation + 1, ..lease.clone() };
    Advance { lease, instance: InstanceChange::Keep, admit: Admit::Nothing, events: vec![] }
}

async fn advanced(store: &Subject, lease: &Lease, phase: Phase) -> Lease {
    let change = to(lease, phase);
    store.advance(change.clone()).await.unwrap();
    change.lease
}

async fn what_was_inserted_is_found_by_id_name_and_prefix(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let lease = Lease { name: Some("box".to_owned()), ..lease(5, &mine) };
    assert_eq!(store.insert(new(&lease)).await.unwrap(), Inserted::New);
    assert_eq!(store.lease(&lease.id).await.unwrap().as_ref(), Some(&lease));
    for word in [lease.id.as_str(), "box", &lease.id.as_str()[..5]] {
        assert_eq!(store.find(Some(&mine), word).await.unwrap().first(), Some(&lease), "{word}");
        assert_eq!(store.find(None, word).await.unwrap().len(), 1, "{word}");
        assert_eq!(store.find(Some(&other), word).await.unwrap(), [], "{word}");
    }
    assert_eq!(store.find(None, &lease.id.as_str()[..2]).await.unwrap(), []);
    assert_eq!(store.find(None, "%").await.unwrap(), []);
    assert_eq!(store.names(Some(&mine), 10).await.unwrap(), ["box"]);
}

async fn a_hundred_racing_inserts_meet_the_quota_exactly(store: Subject) {
    let quota = Quota { sandboxes: Some(10), ..Default::default() };
    let mine = tenant(&store, 1, quota).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (store, lease) = (Arc::clone(&store), lease(n, &mine));
        tasks.spawn(async move { store.insert(new(&lease)).await });
    }
    let outcomes = tasks.join_all().await;
    let (made, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (10, 90));
    assert!(refused.iter().all(|refusal| matches!(refusal, Err(StoreError::Quota(_)))));
    assert_eq!(store.usage(&mine).await.unwrap().sandboxes, 10);
}

async fn a_name_is_unique_per_tenant_among_those_not_deleted(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let named = |n, tenant: &TenantId| Lease { name: Some("box".to_owned()), ..lease(n, tenant) };
    let first = named(1, &mine);
    store.insert(new(&first)).await.unwrap();
    store.insert(new(&named(2, &other))).await.unwrap();
    let refusal = store.insert(new(&named(3, &mine))).await.unwrap_err();
    assert!(matches!(refusal, StoreError::NameTaken { by, .. } if by == first.id));
    advanced(&store, &first, Phase::Deleted).await;
    store.insert(new(&named(4, &mine))).await.unwrap();
}

async fn the_same_idempotency_key_answers_the_same_sandbox(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let keyed = |n, tenant, request: u8| NewLease {
        lease: lease(n, tenant),
        idempotency: Some(("key".to_owned(), [request; 32])),
    };
    assert_eq!(store.insert(keyed(1, &mine, 1)).await.unwrap(), Inserted::New);
    let Inserted::Replayed(before) = store.insert(keyed(2, &mine, 1)).await.unwrap() else { panic!("new") };
    assert_eq!(before.id, lease(1, &mine).id);
    assert!(matches!(store.insert(keyed(3, &mine, 2)).await, Err(StoreError::IdempotencyMismatch)));
    assert_eq!(store.insert(keyed(4, &other, 2)).await.unwrap(), Inserted::New);
    assert_eq!(store.made_with(&mine, "key", [1; 32]).await.unwrap().unwrap().id, before.id);
    assert!(store.made_with(&mine, "unused", [1; 32]).await.unwrap().is_none());
    assert!(matches!(store.made_with(&mine, "key", [2; 32]).await, Err(StoreError::IdempotencyMismatch)));
}

async fn an_advance_over_a_newer_generation_is_stale(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let (one, two) = (to(&first, Phase::Running), to(&first, Phase::Failed));
    let (one, two) = tokio::join!(store.advance(one), store.advance(two));
    assert!(one.is_ok() != two.is_ok(), "exactly one wins");
    assert!(matches!(one.and(two), Err(StoreError::Stale { .. })));
    assert_eq!(store.lease(&first.id).await.unwrap().unwrap().generation, 2);
}

async fn a_start_is_counted_against_compute(store: Subject) {
    let quota = Quota { memory_mib: Some(1_000), ..Default::default() };
    let mine = tenant(&store, 1, quota).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let stopped = advanced(&store, &first, Phase::Stopped).await;
    assert_eq!(store.usage(&mine).await.unwrap().memory_mib, 0);
    let second = Lease { limits: Limits { memory_mib: 600, ..Limits::default() }, ..lease(2, &mine) };
    store.insert(new(&second)).await.unwrap();
    let start = Advance { admit: Admit::Compute, ..to(&stopped, Phase::Starting) };
    assert!(matches!(store.advance(start.clone()).await, Err(StoreError::Quota(_))));
    advanced(&store, &second, Phase::Failed).await;
    store.advance(start.clone()).await.unwrap();
    let grown = Lease { limits: Limits { memory_mib: 1_001, ..Limits::default() }, ..start.lease };
    let grow = Advance { admit: Admit::Resize, ..to(&grown, Phase::Running) };
    assert!(matches!(store.advance(grow).await, Err(StoreError::Quota(_))));
}

async fn a_failing_write_leaves_those_beside_it_alone(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let nobody = TenantId::from_entropy(entropy(77));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..60 {
        let lease = lease(n, if n % 2 == 0 { &mine } else { &nobody });
        let store = Arc::clone(&store);
        tasks.spawn(async move { store.insert(new(&lease)).await.is_ok() });
    }
    let made = tasks.join_all().await.into_iter().filter(|ok| *ok).count();
    assert_eq!((made, store.usage(&mine).await.unwrap().sandboxes), (30, 30));
}

async fn pages_are_stable_while_others_are_inserted(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    for n in 0..25 {
        store.insert(new(&lease(n, &mine))).await.unwrap();
    }
    let mut query = LeaseQuery { limit: 10, ..Default::default() };
    let mut seen = Vec::new();
    for page in 0.. {
        let answer = store.list(query.clone()).await.unwrap();
        seen.extend(answer.items.into_iter().map(|lease| lease.created_at.wall_ms));
        store.insert(new(&lease(100 + page, &mine))).await.unwrap();
        match answer.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(seen, (0..25).rev().collect::<Vec<i64>>());
    let bad = LeaseQuery { cursor: Some("'; DROP".to_owned()), limit: 1, ..Default::default() };
    assert!(matches!(store.list(bad).await, Err(StoreError::BadCursor)));
}

async fn lists_filter_by_phase_label_template_and_tenant(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let label = |v: &str| BTreeMap::from([("a.b\"c".to_owned(), v.to_owned())]);
    let one = Lease { labels: label("1"), ..lease(1, &mine) };
    let two = Lease { labels: label("2"), template: "other".to_owned(), ..lease(2, &mine) };
    for lease in [&one, &two, &lease(3, &other)] {
        store.insert(new(lease)).await.unwrap();
    }
    advanced(&store, &two, Phase::Running).await;
    advanced(&store, &lease(3, &other), Phase::Deleted).await;
    let count = |query: LeaseQuery| {
        let store = Arc::clone(&store);
        async move { store.list(LeaseQuery { limit: 100, ..query }).await.unwrap().items.len() }
    };
    let labelled =
        |v: &str| LeaseQuery { labels: vec![("a.b\"c".to_owned(), v.to_owned())], ..Default::default() };
    assert_eq!(count(LeaseQuery::default()).await, 2);
    assert_eq!(count(LeaseQuery { include_deleted: true, ..Default::default() }).await, 3);
    assert_eq!(count(LeaseQuery { phases: vec![Phase::Deleted], ..Default::default() }).await, 1);
    assert_eq!(count(LeaseQuery { phases: vec![Phase::Running], ..Default::default() }).await, 1);
    assert_eq!((count(labelled("1")).await, count(labelled("3")).await), (1, 0));
    assert_eq!(count(LeaseQuery { template: Some("other".to_owned()), ..Default::default() }).await, 1);
    assert_eq!(count(LeaseQuery { tenant: Some(other), ..Default::default() }).await, 0);
    assert_eq!(store.template_users("base").await.unwrap(), 1);
}

async fn live_rows_carry_their_instance_and_token(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    assert_eq!(store.live().await.unwrap(), [(first.clone(), None)]);
    let row = InstanceRow {
        instance: first.instance.clone().unwrap(),
        facts: serde_json::json!({ "pid": 7 }),
        agent_token: "secret".to_owned(),
    };
    let ready = Advance { instance: InstanceChange::Put(row.clone()), ..to(&first, Phase::Running) };
    store.advance(ready.clone()).await.unwrap();
    assert_eq!(store.live().await.unwrap(), [(ready.lease.clone(), Some(row))]);
    let gone = Advance { instance: InstanceChange::Drop, ..to(&ready.lease, Phase::Stopped) };
    store.advance(gone.clone()).await.unwrap();
    assert_eq!(store.live().await.unwrap(), [(gone.lease.clone(), None)]);
    advanced(&store, &gone.lease, Phase::Deleted).await;
    assert_eq!(store.live().await.unwrap(), []);
}

async fn keys_are_found_by_hash_until_deleted(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let key = KeyRecord {
        id: KeyId::from_entropy(entropy(3)),
        tenant: mine.clone(),
        scope: Scope::User,
        name: Some("ci".to_owned()),
        created_by: None,
        created_at_ms: 1,
        last_used_at_ms: None,
    };
    store.put_key(key.clone(), [1; 32], 0).await.unwrap();
    assert!(matches!(store.put_key(key.clone(), [1; 32], 0).await, Err(StoreError::Exists { .. })));
    assert_eq!(store.key([1; 32]).await.unwrap(), Some((key.clone(), [1; 32])));
    assert_eq!(store.key([2; 32]).await.unwrap(), None);
    store.touch_keys(vec![(key.id.clone(), 9)]).await.unwrap();
    assert_eq!(store.keys(Some(&mine)).await.unwrap()[0].last_used_at_ms, Some(9));
    assert_eq!(store.delete_key(&key.id).await.unwrap(), std::slice::from_ref(&key.id));
    assert_eq!(store.delete_key(&key.id).await.unwrap(), []);
    assert_eq!(store.key([1; 32]).await.unwrap(), None);
}

async fn keys_of_a_user_key_are_bounded_and_end_with_it(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let id = |n: u32| KeyId::from_entropy(entropy(n));
    let key = |n: u32, tenant: &TenantId, created_by: Option<u32>| KeyRecord {
        id: id(n),
        tenant: tenant.clone(),
        scope: Scope::User,
        name: None,
        created_by: created_by.map(id),
        created_at_ms: i64::from(n),
        last_used_at_ms: None,
    };
    let put = async |n: u8, tenant: &TenantId, created_by| {
        store.put_key(key(n.into(), tenant, created_by), [n; 32], 3).await
    };
    assert!(matches!(put(2, &mine, Some(1)).await, Err(StoreError::NoKey)), "its creator does not exist");
    put(1, &mine, None).await.unwrap();
    put(2, &mine, Some(1)).await.unwrap();
    put(3, &mine, Some(2)).await.unwrap();
    put(4, &mine, None).await.unwrap();
    put(5, &mine, Some(4)).await.unwrap();
    // Three keys of user keys; what an admin creates and what other tenants have is not counted.
    assert!(matches!(put(6, &mine, Some(4)).await, Err(StoreError::TooManyKeys { most: 3 })));
    put(7, &mine, None).await.unwrap();
    put(8, &other, None).await.unwrap();
    put(9, &other, Some(8)).await.unwrap();
    assert_eq!(store.keys(Some(&mine)).await.unwrap()[1].created_by, Some(id(1)));
    let mut gone = store.delete_key(&id(1)).await.unwrap();
    gone.sort();
    let mut expected = vec![id(1), id(2), id(3)];
    expected.sort();
    assert_eq!(gone, expected);
    let left: Vec<KeyId> = store.keys(None).await.unwrap().into_iter().map(|key| key.id).collect();
    assert_eq!(left, [4, 5, 7, 8, 9].map(id));
    put(6, &mine, Some(4)).await.unwrap();
}

async fn a_thread_gets_the_same_terminal_within_an_instance(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let terminal = |id: &str, instance: u32| Terminal {
        id: id.to_owned(),
        sandbox: first.id.clone(),
        instance: InstanceId::from_entropy(entropy(instance)),
        thread: "thread".to_owned(),
        pid: Some(4),
        created_at_ms: 1,
        settings: TerminalSettings::default(),
    };
    assert_eq!(store.put_terminal(terminal("a", 1), 9).await.unwrap().id, "a");
    assert_eq!(store.put_terminal(terminal("b", 1), 9).await.unwrap().id, "a");
    // The instance is the one of the lease, whichever the caller has read before.
    let booted = Lease { instance: Some(InstanceId::from_entropy(entropy(2))), ..first.clone() };
    advanced(&store, &booted, Phase::Starting).await;
    assert_eq!(store.terminals(&first.id).await.unwrap(), []);
    assert_eq!(store.put_terminal(terminal("c", 1), 9).await.unwrap(), terminal("c", 2));
    assert_eq!(store.terminals(&first.id).await.unwrap().len(), 1);
    // What is changed is changed once: of two that start its shell, one is told that it came too late.
    let settings = TerminalSettings {
        cols: 100,
        rows: 30,
        cwd: Some("/srv".to_owned()),
        env: [("A".to_owned(), "1".to_owned())].into(),
        lazy: true,
        ..TerminalSettings::default()
    };
    let waiting = Terminal { pid: None, settings: settings.clone(), ..terminal("c", 2) };
    assert!(store.update_terminal(waiting.clone(), Some(4)).await.unwrap());
    assert_eq!(store.terminals(&first.id).await.unwrap(), std::slice::from_ref(&waiting));
    let started = |pid| Terminal { pid: Some(pid), ..waiting.clone() };
    assert!(store.update_terminal(started(7), None).await.unwrap());
    assert!(!store.update_terminal(started(8), None).await.unwrap());
    assert_eq!(store.terminals(&first.id).await.unwrap(), [started(7)]);
    // A write that was based on the row of an earlier instance does not move the terminal back.
    let late = Terminal { instance: terminal("c", 1).instance, ..started(7) };
    assert!(store.update_terminal(late, Some(7)).await.unwrap());
    assert_eq!(store.terminals(&first.id).await.unwrap(), [started(7)]);
    assert!(!store.delete_unstarted_terminal(&first.id, "c").await.unwrap(), "its shell is noted");
    assert!(store.delete_terminal(&first.id, "c").await.unwrap());
    assert_eq!(store.terminals(&first.id).await.unwrap(), []);
    store.put_terminal(waiting, 9).await.unwrap();
    assert!(store.delete_unstarted_terminal(&first.id, "c").await.unwrap());
    assert!(!store.delete_unstarted_terminal(&first.id, "c").await.unwrap());
}

async fn samples_are_bounded_and_go_with_the_sandbox(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    let first = lease(1, &mine);
    store.insert(new(&first)).await.unwrap();
    let sample = |at_ms| ResourceSample {
        at_ms,
        cpu_us: 1,
        cpu_pct: 0.5,
        memory_bytes: 2,
        cache_bytes: 1,
        pids: 3,
        disk_bytes: Some(4),
        sent_kbps: None,
        received_kbps: None,
        received_bytes: None,
        sent_bytes: None,
        limits: Limits::default(),
    };
    for at_ms in 0..10 {
        store.put_samples(vec![(first.id.clone(), sample(at_ms))], 4).await.unwrap();
    }
    let times = |samples: Vec<ResourceSample>| samples.iter().map(|s| s.at_ms).collect::<Vec<_>>();
    assert_eq!(times(store.samples(&first.id, 0, 100).await.unwrap()), [6, 7, 8, 9]);
    assert_eq!(times(store.samples(&first.id, 7, 2).await.unwrap()), [8, 9]);
    advanced(&store, &first, Phase::Deleted).await;
    store.put_samples(vec![(first.id.clone(), sample(11))], 4).await.unwrap();
    assert_eq!(store.samples(&first.id, 0, 100).await.unwrap(), []);
}

async fn events_are_ordered_and_filtered(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let (one, two) = (lease(1, &mine), lease(2, &other));
    let mut head = store.event_head();
    for lease in [&one, &two] {
        store.insert(new(lease)).await.unwrap();
    }
    let event = NewEvent { at: at(5), instance: None, what: EventKind::OutOfMemory, by: None };
    store.record(mine.clone(), one.id.clone(), event).await.unwrap();
    head.wait_for(|seq| *seq >= 3).await.unwrap();
    let all = store.events(EventQuery { limit: 100, ..Default::default() }).await.unwrap();
    assert!(all.is_sorted_by_key(|event| event.seq) && all.len() == 3);
    let of = |tenant, sandbox, after_seq| {
        let store = Arc::clone(&store);
        let query = EventQuery { tenant, sandbox, after_seq, limit: 100, newest: false };
        async move { store.events(query).await.unwrap().len() }
    };
    assert_eq!(of(Some(mine.clone()), None, 0).await, 2);
    assert_eq!(of(None, Some(two.id.clone()), 0).await, 1);
    let first_two = EventQuery { limit: 2, ..Default::default() };
    assert_eq!(store.events(first_two.clone()).await.unwrap(), all[..2]);
    assert_eq!(store.events(EventQuery { newest: true, ..first_two }).await.unwrap(), all[1..]);
    assert_eq!(of(Some(mine.clone()), Some(two.id.clone()), 0).await, 0);
    assert_eq!(of(Some(mine), None, all[0].seq).await, 1);
}

async fn a_sweep_forgets_only_what_is_old(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    for n in 0..6 {
        let keyed = NewLease { lease: lease(n, &mine), idempotency: Some((format!("k{n}"), [0; 32])) };
        store.insert(keyed).await.unwrap();
    }
    advanced(&store, &lease(0, &mine), Phase::Deleted).await;
    advanced(&store, &lease(5, &mine), Phase::Deleted).await;
    store
        .sweep(Sweep { events_kept: 2, deleted_before_ms: 3, idempotency_before_ms: 3, builds_before_ms: 0 })
        .await
        .unwrap();
    assert_eq!(store.lease(&lease(0, &mine).id).await.unwrap(), None);
    assert!(store.lease(&lease(5, &mine).id).await.unwrap().is_some());
    assert_eq!(store.events(EventQuery { limit: 100, ..Default::default() }).await.unwrap().len(), 2);
    let again =
        |n: u32, key: &str| NewLease { lease: lease(n, &mine), idempotency: Some((key.to_owned(), [0; 32])) };
    assert_eq!(store.insert(again(20, "k1")).await.unwrap(), Inserted::New);
    assert!(matches!(store.insert(again(21, "k4")).await.unwrap(), Inserted::Replayed(_)));
}
