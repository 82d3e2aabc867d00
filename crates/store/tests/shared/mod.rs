//! Two servers on one database: whose rows are whose, and what each hears of the other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{KeyId, Lease, NodeName, Phase, Quota, Scope, TenantId, Volume, VolumeId, VolumeState};
use atoll_store::conformance::{self, Subject};
use atoll_store::{
    Admit, Advance, EventQuery, FeedChange, FileVault, InstanceChange, KeyRecord, NewLease, OpenError,
    SqliteStore, StoreConfig, StoreError,
};

/// LIMIT: how late a change may be noticed on a busy machine.
const NOTICED: Duration = Duration::from_secs(10);

struct Folders {
    root: tempfile::TempDir,
}

impl Folders {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn data(&self, node: &str) -> std::path::PathBuf {
        self.root.path().join(node)
    }

    fn config(&self, node: &str) -> StoreConfig {
        let database = self.root.path().join("shared.db");
        StoreConfig { database, node: Some(name(node)), ..StoreConfig::new(&self.data(node)) }
    }

    fn open(&self, node: &str) -> Subject {
        Arc::new(SqliteStore::open_with(&self.config(node)).unwrap())
    }

    fn refusal(&self, config: &StoreConfig) -> OpenError {
        SqliteStore::open_with(config).err().expect("it opened")
    }

    /// Both servers; the second has the key of the first.
    fn both(&self) -> (Subject, Subject) {
        let a = self.open("a");
        self.share_key("b");
        (a, self.open("b"))
    }

    fn share_key(&self, node: &str) {
        std::fs::create_dir_all(self.data(node)).unwrap();
        copy(&self.data("a"), &self.data(node), "secret.key");
    }
}

fn copy(from: &Path, to: &Path, file: &str) {
    std::fs::copy(from.join(file), to.join(file)).unwrap();
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn lease(n: u32, tenant: &TenantId, node: &str) -> Lease {
    Lease { node: name(node), ..conformance::lease(n, tenant) }
}

async fn insert(store: &Subject, lease: &Lease) -> Result<(), StoreError> {
    store.insert(NewLease { lease: lease.clone(), idempotency: None }).await.map(drop)
}

fn deleted(lease: &Lease) -> Advance {
    let lease = Lease { phase: Phase::Deleted, generation: lease.generation + 1, ..lease.clone() };
    Advance { lease, instance: InstanceChange::Drop, admit: Admit::Nothing, events: vec![] }
}

async fn live(store: &Subject) -> Vec<String> {
    store.live().await.unwrap().into_iter().map(|(lease, _)| lease.id.to_string()).collect()
}

#[tokio::test]
async fn rows_belong_to_the_node_that_made_them() {
    let folders = Folders::new();
    let (a, b) = folders.both();
    let tenant = conformance::tenant(&a, 1, Quota::default()).await;
    let (of_a, of_b) = (lease(1, &tenant, "a"), lease(2, &tenant, "b"));
    insert(&a, &of_a).await.unwrap();
    insert(&b, &of_b).await.unwrap();
    assert_eq!(live(&a).await, [of_a.id.as_str()]);
    assert_eq!(live(&b).await, [of_b.id.as_str()]);
    assert_eq!(a.lease(&of_b.id).await.unwrap().unwrap().node, name("b"), "it can be shown anywhere");
    assert_eq!(a.usage(&tenant).await.unwrap().sandboxes, 2, "a quota is the tenant's on all nodes");
    for refused in [insert(&a, &lease(3, &tenant, "b")).await, a.advance(deleted(&of_b)).await] {
        assert!(
            matches!(&refused, Err(StoreError::WrongNode { node, .. }) if *node == name("b")),
            "{refused:?}"
        );
    }
    let forged = Lease { node: name("a"), ..of_b.clone() };
    assert!(matches!(a.advance(deleted(&forged)).await, Err(StoreError::Stale { .. })));
    let shot =
        atoll_model::Snapshot { node: name("b"), ..conformance::life::snapshot(1, &tenant, Some("kept")) };
    b.put_snapshot(shot.clone(), None).await.unwrap();
    assert!(matches!(a.put_snapshot(shot.clone(), None).await, Err(StoreError::WrongNode { .. })));
    assert!(!a.delete_snapshot(&shot.id).await.unwrap() && a.all_snapshots().await.unwrap().is_empty());
    // A name moves also away from a snapshot of another node.
    let newer = atoll_model::Snapshot { node: name("a"), ..conformance::life::snapshot(2, &tenant, None) };
    a.put_snapshot(newer.clone(), None).await.unwrap();
    let named = a.move_snapshot_name(&newer.id, "kept").await.unwrap().unwrap();
    assert_eq!((named.name.as_deref(), &named.id), (Some("kept"), &newer.id));
    assert_eq!(b.snapshot(&shot.id).await.unwrap().unwrap().0.name, None);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn names_are_unique_over_all_nodes() {
    let folders = Folders::new();
    let (a, b) = folders.both();
    let tenant = conformance::tenant(&a, 1, Quota::default()).await;
    let named = |n, node| Lease { name: Some("web".to_owned()), ..lease(n, &tenant, node) };
    insert(&a, &named(1, "a")).await.unwrap();
    assert!(matches!(insert(&b, &named(2, "b")).await, Err(StoreError::NameTaken { .. })));
    let volume = |n: u8, node| Volume {
        id: VolumeId::from_entropy([n; 20]),
        tenant: tenant.clone(),
        node: name(node),
        name: "data".to_owned(),
        provider: "container".to_owned(),
        size_mib: Some(1),
        folder: None,
        read_only: false,
        parent: None,
        state: VolumeState::Ready,
        created_at: conformance::at(1),
    };
    b.insert_volume(volume(1, "b")).await.unwrap();
    assert!(matches!(a.insert_volume(volume(2, "a")).await, Err(StoreError::VolumeNameTaken { .. })));
    assert!(!a.delete_volume(&volume(1, "b").id).await.unwrap() && a.own_volumes().await.unwrap().is_empty());
    // A sandbox cannot mount a volume whose files are elsewhere.
    let mount = atoll_model::Mount {
        volume: volume(1, "b").id,
        path: "/data".to_owned(),
        sub_path: None,
        read_only: false,
    };
    let mounting = Lease { mounts: vec![mount], ..lease(5, &tenant, "a") };
    assert!(matches!(insert(&a, &mounting).await, Err(StoreError::NoVolume { .. })));
    a.close().await;
    b.close().await;
}

/// Both write at once: none is refused, and each reader sees all events in one order without a gap.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_both_are_in_one_order() {
    const EACH: u32 = 150;
    let folders = Folders::new();
    let (a, b) = folders.both();
    let tenant = conformance::tenant(&a, 1, Quota::default()).await;
    let mut head = b.event_head();
    let mut tasks = tokio::task::JoinSet::new();
    for (at, (store, node)) in [(&a, "a"), (&b, "b")].into_iter().enumerate() {
        for n in 0..EACH {
            let (store, lease) = (Arc::clone(store), lease(at as u32 * EACH + n, &tenant, node));
            tasks.spawn(async move { insert(&store, &lease).await.unwrap() });
        }
    }
    tasks.join_all().await;
    let all = u64::from(2 * EACH);
    tokio::time::timeout(NOTICED, head.wait_for(|head| *head >= all)).await.unwrap().unwrap();
    let query = EventQuery { limit: 1_000, ..EventQuery::default() };
    let (seen_a, seen_b) = (a.events(query.clone()).await.unwrap(), b.events(query).await.unwrap());
    assert_eq!(seen_a, seen_b);
    assert_eq!(seen_a.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=all).collect::<Vec<_>>());
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_deleted_key_is_in_the_feed_of_the_other_node() {
    let folders = Folders::new();
    let (a, b) = folders.both();
    let tenant = conformance::tenant(&a, 1, Quota::default()).await;
    let key = |n: u8, scope| KeyRecord {
        id: KeyId::from_entropy([n; 20]),
        tenant: tenant.clone(),
        scope,
        name: None,
        created_by: None,
        created_at_ms: 0,
        last_used_at_ms: None,
    };
    a.put_key(key(1, Scope::User), [1; 32], 0).await.unwrap();
    a.put_key(key(2, Scope::Admin), [2; 32], 0).await.unwrap();
    let mut head = b.change_head();
    let before = *head.borrow_and_update();
    assert_eq!(a.delete_key(&key(1, Scope::User).id).await.unwrap().len(), 1);
    tokio::time::timeout(NOTICED, head.changed()).await.unwrap().unwrap();
    let page = b.changes(before).await.unwrap();
    let entry = page.entries.last().unwrap();
    assert_eq!(entry.node, name("a"));
    assert_eq!(entry.change, FeedChange::KeyDeleted { key: key(1, Scope::User).id });
    assert!(!page.has_gap && b.changes(entry.revision).await.unwrap().entries.is_empty());
    // Two servers cannot each delete one of the last two.
    assert!(matches!(b.delete_key(&key(2, Scope::Admin).id).await, Err(StoreError::LastAdminKey)));
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn overdue_sandboxes_are_those_of_the_node() {
    let folders = Folders::new();
    let (a, b) = folders.both();
    let tenant = conformance::tenant(&a, 1, Quota::default()).await;
    let timed = |n, node| Lease {
        phase: Phase::Running,
        timeout_at: Some(conformance::at(100)),
        ..lease(n, &tenant, node)
    };
    insert(&a, &timed(1, "a")).await.unwrap();
    insert(&b, &timed(2, "b")).await.unwrap();
    assert_eq!(a.due(99, 10).await.unwrap(), []);
    assert_eq!(a.due(100, 10).await.unwrap(), [timed(1, "a").id]);
    assert_eq!(b.due(100, 10).await.unwrap(), [timed(2, "b").id]);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_server_that_does_not_fit_is_refused() {
    let folders = Folders::new();
    let a = folders.open("a");
    let b = folders.config("b");
    assert!(matches!(folders.refusal(&b), OpenError::Secret { .. }), "no key though none is needed yet");
    std::fs::create_dir_all(&b.data).unwrap();
    std::fs::write(b.data.join("secret.key"), "11".repeat(32)).unwrap();
    let error = folders.refusal(&b);
    assert!(
        matches!(error, OpenError::Secret { .. }) && error.to_string().contains("not the key"),
        "{error}"
    );
    folders.share_key("b");
    let taken = StoreConfig { node: Some(name("a")), ..b.clone() };
    assert!(matches!(folders.refusal(&taken), OpenError::NodeTaken { .. }));
    folders.open("b").close().await;
    let renamed = StoreConfig { node: Some(name("c")), ..b.clone() };
    assert!(matches!(folders.refusal(&renamed), OpenError::OtherNode { .. }));
    // Without a name it is what it was, whatever the host is called.
    let unnamed = StoreConfig { node: None, default_node: name("other-host"), ..b.clone() };
    let again: Subject = Arc::new(SqliteStore::open_with(&unnamed).unwrap());
    assert_eq!(*again.node(), name("b"));
    assert_eq!(again.nodes().await.unwrap(), [name("a"), name("b")]);
    assert_eq!(StoreConfig::last_database(&b.data), Some(b.database.clone()));
    again.close().await;
    // A newer schema waits until the others are gone.
    let conn = rusqlite::Connection::open(&b.database).unwrap();
    let known: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    conn.pragma_update(None, "user_version", known - 1).unwrap();
    assert!(matches!(folders.refusal(&b), OpenError::OlderServers { .. }));
    conn.pragma_update(None, "user_version", known).unwrap();
    a.close().await;
}

/// The last server to end folds the log in; one that crashed before does not miss it.
#[tokio::test]
async fn a_log_that_the_last_server_folded_in_is_not_missed() {
    let folders = Folders::new();
    let (a, b) = folders.both();
    let tenant = conformance::tenant(&a, 1, Quota::default()).await;
    insert(&a, &lease(1, &tenant, "a")).await.unwrap();
    let crashed = std::fs::read(folders.data("a").join("lock")).unwrap();
    a.close().await;
    let wal = folders.root.path().join("shared.db-wal");
    assert!(wal.exists(), "the other server uses it");
    b.close().await;
    assert!(!wal.exists());
    // As after a crash of the first before the end of the second.
    std::fs::write(folders.data("a").join("lock"), crashed).unwrap();
    let a = folders.open("a");
    assert_eq!(live(&a).await.len(), 1);
    a.close().await;
    std::fs::write(folders.data("a").join("lock"), "1\nwal\n").unwrap();
    std::fs::write(folders.root.path().join("shared.db-servers"), "").unwrap();
    assert!(matches!(folders.refusal(&folders.config("a")), OpenError::LostWal { .. }));
}

#[tokio::test]
async fn a_vault_of_ones_own_takes_the_place_of_the_key_in_the_folder() {
    let folders = Folders::new();
    let vault = Arc::new(FileVault::open(&folders.root.path().join("elsewhere.key"), true).unwrap());
    let mut sealed = None;
    for node in ["a", "b"] {
        let config = StoreConfig { vault: Some(vault.clone()), ..folders.config(node) };
        let store: Subject = Arc::new(SqliteStore::open_with(&config).unwrap());
        let tenant = TenantId::from_entropy([1; 20]);
        let text = sealed.get_or_insert_with(|| store.seal_text(&tenant, "value").unwrap());
        assert_eq!(store.unseal_text(&tenant, text).unwrap(), "value");
        assert!(!config.data.join("secret.key").exists());
        store.close().await;
    }
}
