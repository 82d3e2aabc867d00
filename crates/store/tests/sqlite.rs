//! The SQLite store with the conformance suite, and failures that only a file on disk can have.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod older_versions;
mod shared;

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use atoll_model::Quota;
use atoll_store::conformance::{self, Subject};
use atoll_store::{NewLease, OpenError, SqliteStore, StoreConfig};

fn open(data: &Path) -> Result<Subject, OpenError> {
    SqliteStore::open(data).map(|store| Arc::new(store) as Subject)
}

fn refusal(data: &Path) -> OpenError {
    match open(data) {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

async fn with_leases(data: &Path, count: u32) -> Subject {
    let store = open(data).unwrap();
    let tenant = conformance::tenant(&store, 1, Quota::default()).await;
    for n in 0..count {
        let lease = conformance::lease(n, &tenant);
        store.insert(NewLease { lease, idempotency: None }).await.unwrap();
    }
    store
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "a failing case is found by its name")]
async fn sqlite_conforms() {
    for (name, case) in conformance::all() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        println!("{name}");
        case(Arc::clone(&store)).await;
        store.close().await;
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_clean_end() {
    let dir = tempfile::tempdir().unwrap();
    with_leases(dir.path(), 5).await.close().await;
    assert!(!dir.path().join("sandbox.db-wal").exists());
    let again = open(dir.path()).unwrap();
    assert_eq!(again.live().await.unwrap().len(), 5);
    again.close().await;
}

#[tokio::test]
async fn secrets_and_database_are_readable_by_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = with_leases(&data, 1).await;
    for (name, mode) in [("", 0o700), ("sandbox.db", 0o600), ("sandbox.db-wal", 0o600), ("secret.key", 0o600)]
    {
        let meta = std::fs::metadata(data.join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{name}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_second_server_is_refused_and_told_who_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    let error = refusal(dir.path());
    assert!(
        matches!(&error, OpenError::Locked { pid, .. } if *pid == std::process::id().to_string()),
        "{error}"
    );
    first.close().await;
    open(dir.path()).unwrap().close().await;
}

/// F03: the files as after a power failure, copied during writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_taken_mid_write_opens_with_every_acknowledged_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 0).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let (acknowledged, seen) = tokio::sync::watch::channel(0u32);
    let writer = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for n in 0..400 {
                let lease = conformance::lease(n, &tenant);
                store.insert(NewLease { lease, idempotency: None }).await.unwrap();
                acknowledged.send_replace(n + 1);
            }
        })
    };
    for round in 0..5 {
        let mut seen = seen.clone();
        seen.wait_for(|n| *n > round * 60).await.unwrap();
        let before = *seen.borrow();
        let copy = tempfile::tempdir().unwrap();
        // If the log were copied first, pages could be missing that a checkpoint moves meanwhile. So the database is
        // copied first and then the log, which only grows here.
        for name in ["sandbox.db", "sandbox.db-wal", "secret.key", "lock"] {
            std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
        }
        let restored = open(copy.path()).unwrap();
        let live = restored.live().await.unwrap().len();
        assert!(live >= before as usize, "{live} of {before}");
        restored.close().await;
    }
    writer.await.unwrap();
    store.close().await;
}

/// F04 and similar cases: each refusal names the problem and leaves the files unchanged.
#[tokio::test]
async fn a_lost_database_is_not_replaced_by_an_empty_one() {
    for witness in ["secret.key", "admin.key"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(witness), "x").unwrap();
        let error = refusal(dir.path());
        assert!(matches!(error, OpenError::Missing { .. }), "{error}");
        assert!(error.to_string().contains(witness));
        std::fs::write(dir.path().join("sandbox.db"), "").unwrap();
        assert!(matches!(refusal(dir.path()), OpenError::Missing { .. }));
    }
}

#[tokio::test]
async fn a_torn_page_is_found_at_open() {
    let dir = tempfile::tempdir().unwrap();
    with_leases(dir.path(), 200).await.close().await;
    let db = dir.path().join("sandbox.db");
    let pages = std::fs::metadata(&db).unwrap().len() / 4_096;
    let file = std::fs::OpenOptions::new().write(true).open(&db).unwrap();
    for page in (2..pages).step_by(2) {
        file.write_all_at(&[0xA5; 2_048], page * 4_096).unwrap();
    }
    let error = refusal(dir.path());
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    std::fs::write(&db, vec![7u8; 8_192]).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn a_log_that_vanished_after_a_crash_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 3).await;
    let crashed = tempfile::tempdir().unwrap();
    for name in ["sandbox.db", "secret.key", "lock"] {
        std::fs::copy(dir.path().join(name), crashed.path().join(name)).unwrap();
    }
    let error = refusal(crashed.path());
    assert!(matches!(error, OpenError::LostWal { .. }), "{error}");
    // A second attempt gives the same result: the refusal itself must not clear the mark.
    assert!(matches!(refusal(crashed.path()), OpenError::LostWal { .. }));
    store.close().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_the_version_to_use_and_nothing_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 1).await;
    // As after a kill: the schema is in the database, rows are in the log.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["sandbox.db", "sandbox.db-wal", "secret.key", "lock"] {
        std::fs::copy(dir.path().join(name), crashed.path().join(name)).unwrap();
    }
    store.close().await;
    let file = std::fs::OpenOptions::new().write(true).open(crashed.path().join("sandbox.db")).unwrap();
    file.write_all_at(&99_u32.to_be_bytes(), 60).unwrap();
    let conn = rusqlite::Connection::open(dir.path().join("sandbox.db")).unwrap();
    conn.execute("UPDATE meta SET value = '9.8.7' WHERE key = 'schema_writer'", []).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    for (folder, writer) in [(&dir, "Atoll 9.8.7"), (&crashed, concat!("Atoll ", env!("CARGO_PKG_VERSION")))]
    {
        let before = content(folder.path());
        let error = refusal(folder.path());
        assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
        assert!(error.to_string().contains(&format!("was written by {writer} (schema 99)")), "{error}");
        assert_eq!(content(folder.path()), before);
    }
}

/// Every file of a folder with its content and its time.
fn content(
    folder: &Path,
) -> std::collections::BTreeMap<std::ffi::OsString, (Vec<u8>, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let changed = entry.metadata().unwrap().modified().unwrap();
            (entry.file_name(), (std::fs::read(entry.path()).unwrap(), changed))
        })
        .collect()
}

#[tokio::test]
async fn a_folder_of_somebody_else_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(4_242), None).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, OpenError::WrongOwner { owner: 4_242, .. }), "{error}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_refused() {
    // No user, not even root, can make files there.
    let error = refusal(Path::new("/proc/self"));
    assert!(matches!(error, OpenError::Io { .. } | OpenError::WrongOwner { .. }), "{error}");
    let error = refusal(Path::new("/dev/null/data"));
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[tokio::test]
async fn sealed_rows_without_their_key_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 1).await;
    let lease = store.live().await.unwrap()[0].0.clone();
    let row = atoll_store::InstanceRow {
        instance: lease.instance.clone().unwrap(),
        facts: serde_json::Value::Null,
        agent_token: "token".to_owned(),
    };
    let lease = atoll_model::Lease { generation: 2, ..lease };
    let change = atoll_store::Advance {
        lease,
        instance: atoll_store::InstanceChange::Put(row),
        admit: atoll_store::Admit::Nothing,
        events: vec![],
    };
    store.advance(change).await.unwrap();
    store.close().await;
    std::fs::remove_file(dir.path().join("secret.key")).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, OpenError::Secret { .. }), "{error}");
}

/// Many concurrent writers share commits, and each gets its answer only when its own write is on disk.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_many_callers_are_all_there_when_answered() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 0).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..500 {
        let (store, lease) = (Arc::clone(&store), conformance::lease(n, &tenant));
        tasks.spawn(async move {
            let id = lease.id.clone();
            store.insert(NewLease { lease, idempotency: None }).await.unwrap();
            assert!(store.lease(&id).await.unwrap().is_some(), "read after the answer");
        });
    }
    tasks.join_all().await;
    store.close().await;
    assert!(matches!(store.live().await, Err(atoll_store::StoreError::Closed)));
}

/// The same rows in a database of the first release: schema 1, leases without later fields.
fn as_the_first_release_wrote_it(from: &Path, to: &Path) {
    std::fs::copy(from.join("secret.key"), to.join("secret.key")).unwrap();
    let conn = rusqlite::Connection::open(to.join("sandbox.db")).unwrap();
    conn.execute_batch(include_str!("../src/sqlite/0001.sql")).unwrap();
    conn.pragma_update(None, "user_version", 1).unwrap();
    conn.execute("ATTACH ?1 AS new", [from.join("sandbox.db").to_str().unwrap()]).unwrap();
    conn.execute_batch(
        "INSERT INTO main.tenants SELECT id, name, quota, created_ms FROM new.tenants;
         INSERT INTO main.sandbox_leases
           SELECT n, id, tenant, name, template, provider, desired, observed, holds_compute, cpu_milli, memory_mib,
             disk_mib, generation, due_at, phase_ms, json_remove(json_set(lease, '$.network',
             json_extract(lease, '$.network.mode')), '$.held', '$.timers', '$.active_at',
             '$.stopped_at', '$.hold', '$.on_exit', '$.thread', '$.wake', '$.source', '$.parent', '$.private_env',
             '$.archive', '$.rollback_to', '$.node')
           FROM new.sandbox_leases;
         INSERT INTO main.sandbox_instances SELECT sandbox, instance, facts, agent_token FROM new.sandbox_instances;
         DETACH new;",
    )
    .unwrap();
}

fn running(lease: &atoll_model::Lease) -> atoll_store::Advance {
    let row = atoll_store::InstanceRow {
        instance: lease.instance.clone().unwrap(),
        facts: serde_json::json!({ "pid": 7 }),
        agent_token: "token".to_owned(),
    };
    let lease = atoll_model::Lease {
        phase: atoll_model::Phase::Running,
        generation: lease.generation + 1,
        ..lease.clone()
    };
    atoll_store::Advance {
        lease,
        instance: atoll_store::InstanceChange::Put(row),
        admit: atoll_store::Admit::Nothing,
        events: vec![],
    }
}

#[tokio::test]
async fn a_database_of_the_first_release_opens_with_all_that_was_in_it() {
    let (new, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = with_leases(new.path(), 3).await;
    let lease = store.live().await.unwrap()[1].0.clone();
    store.advance(running(&lease)).await.unwrap();
    let before = store.live().await.unwrap();
    store.close().await;
    as_the_first_release_wrote_it(new.path(), old.path());
    for _ in 0..2 {
        let store = open(old.path()).unwrap();
        // The default of every later field has the meaning that those leases had.
        assert_eq!(store.live().await.unwrap(), before);
        assert_eq!(store.usage(&lease.tenant).await.unwrap().sandboxes, 3);
        assert_eq!(store.all_snapshots().await.unwrap(), []);
        assert_eq!(store.children(&lease.id).await.unwrap(), []);
        store.close().await;
    }
    let store = open(old.path()).unwrap();
    let first = before[0].0.clone();
    store.advance(running(&first)).await.unwrap();
    let child = atoll_model::Lease {
        parent: Some(first.id.clone()),
        thread: Some("t".to_owned()),
        ..conformance::lease(50, &first.tenant)
    };
    store.insert(NewLease { lease: child.clone(), idempotency: None }).await.unwrap();
    assert_eq!(store.children(&first.id).await.unwrap(), [child.id]);
    store.close().await;
}

#[tokio::test]
async fn a_secret_is_sealed_on_disk_and_without_its_key_the_record_does_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 0).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let secret = atoll_store::SecretRecord {
        name: "KEY".to_owned(),
        created_at_ms: 1,
        rotated_at_ms: None,
        id: atoll_model::SecretId::from_entropy([5; 20]),
        version: 1,
        changed_at_ms: 1,
        about: atoll_store::SecretAbout::default(),
        used_by: 0,
    };
    store.put_secret(&tenant, secret, "value-of-the-secret".to_owned(), 10).await.unwrap();
    store.close().await;
    let content = std::fs::read(dir.path().join("sandbox.db")).unwrap();
    assert!(!content.windows(19).any(|bytes| bytes == b"value-of-the-secret"), "sealed on disk");
    std::fs::remove_file(dir.path().join("secret.key")).unwrap();
    assert!(matches!(refusal(dir.path()), OpenError::Secret { .. }));
}

/// The tables of an older release.
fn older_schema(conn: &rusqlite::Connection, version: usize) {
    let all = [
        include_str!("../src/sqlite/0001.sql"),
        include_str!("../src/sqlite/0002.sql"),
        include_str!("../src/sqlite/0003.sql"),
        include_str!("../src/sqlite/0004.sql"),
        include_str!("../src/sqlite/0005.sql"),
        include_str!("../src/sqlite/0006.sql"),
        include_str!("../src/sqlite/0007.sql"),
    ];
    for sql in &all[..version] {
        conn.execute_batch(sql).unwrap();
    }
    conn.pragma_update(None, "user_version", i64::try_from(version).unwrap()).unwrap();
}

#[tokio::test]
async fn snapshots_and_volumes_of_an_older_release_belong_to_the_container_engine() {
    let (new, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = with_leases(new.path(), 0).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let snapshot = conformance::life::snapshot(1, &tenant, Some("kept"));
    let volume = conformance::volumes::volume(1, &tenant, "data");
    store.put_snapshot(snapshot.clone(), None).await.unwrap();
    store.insert_volume(volume.clone()).await.unwrap();
    store.close().await;
    std::fs::copy(new.path().join("secret.key"), old.path().join("secret.key")).unwrap();
    let conn = rusqlite::Connection::open(old.path().join("sandbox.db")).unwrap();
    older_schema(&conn, 7);
    conn.execute("ATTACH ?1 AS new", [new.path().join("sandbox.db").to_str().unwrap()]).unwrap();
    conn.execute_batch(
        "INSERT INTO main.tenants SELECT id, name, quota, created_ms, network FROM new.tenants;
         INSERT INTO main.snapshots SELECT n, id, tenant, sandbox, name, state, transient, agent_token,
           json_remove(snapshot, '$.provider', '$.tenant_wide', '$.sandbox_name') FROM new.snapshots;
         INSERT INTO main.volumes SELECT n, id, tenant, name, size_mib, state, json_remove(volume, '$.provider')
           FROM new.volumes;",
    )
    .unwrap();
    drop(conn);
    let store = open(old.path()).unwrap();
    let (found, _) = store.snapshot(&snapshot.id).await.unwrap().unwrap();
    assert_eq!(found, atoll_model::Snapshot { provider: "container".to_owned(), ..snapshot.clone() });
    assert!(found.tenant_wide, "names of older releases are tenant-wide");
    let found = store.find_snapshot(Some(&tenant), "kept").await.unwrap();
    assert_eq!(found.len(), 1);
    let other = conformance::life::snapshot(2, &tenant, Some("kept"));
    let taken = store.put_snapshot(other.clone(), None).await.unwrap_err();
    assert!(matches!(taken, atoll_store::StoreError::SnapshotNameTaken { .. }), "{taken}");
    let of_sandbox = atoll_model::Snapshot { tenant_wide: false, ..other };
    store.put_snapshot(of_sandbox, None).await.unwrap();
    let found = store.volume(&volume.id).await.unwrap().unwrap();
    assert_eq!(found, atoll_model::Volume { provider: "container".to_owned(), ..volume });
    store.close().await;
    let conn = rusqlite::Connection::open(old.path().join("sandbox.db")).unwrap();
    let kept = "SELECT count(*) FROM snapshots JOIN volumes USING (provider) WHERE provider = 'container'";
    assert_eq!(conn.query_row(kept, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}

#[tokio::test]
async fn threads_of_an_older_release_are_bound_to_their_oldest_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 4).await;
    let leases: Vec<_> = store.live().await.unwrap().into_iter().map(|(lease, _)| lease).collect();
    store.close().await;
    // As five schemas before: the column of leases is there, the table of threads is not.
    let conn = rusqlite::Connection::open(dir.path().join("sandbox.db")).unwrap();
    conn.execute_batch(
        "ALTER TABLE events DROP COLUMN author;
         DROP TABLE threads; DROP INDEX lease_exits; ALTER TABLE sandbox_leases DROP COLUMN exit_pending;
         ALTER TABLE tenants DROP COLUMN providers;
         DROP INDEX api_keys_created_by; ALTER TABLE api_keys DROP COLUMN created_by;
         DROP INDEX snapshot_names; ALTER TABLE snapshots DROP COLUMN name_scope;
         CREATE UNIQUE INDEX snapshot_names ON snapshots(tenant, name) WHERE name IS NOT NULL AND state <> 'deleting';
         UPDATE sandbox_leases SET thread = 't', lease = json_set(lease, '$.thread', 't') WHERE n <> 4;
         UPDATE sandbox_leases SET observed = 'deleted' WHERE n = 1;",
    )
    .unwrap();
    let known: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    conn.pragma_update(None, "user_version", known - 5).unwrap();
    drop(conn);
    let store = open(dir.path()).unwrap();
    let found = store.find_thread(None, "t").await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].sandbox.as_ref().unwrap().0, leases[1].id, "the oldest that is not deleted");
    store.close().await;
}

#[tokio::test]
async fn a_tenant_has_a_limited_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 0).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let conn = rusqlite::Connection::open(dir.path().join("sandbox.db")).unwrap();
    conn.execute(
        "WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < 9999)
         INSERT INTO threads (tenant, thread, provider, sandbox, created_ms) SELECT ?1, 't' || i, 'fake', 'aaaaaaaaaaaaaaaaaaaa', 0 FROM k",
        [tenant.as_str()],
    )
    .unwrap();
    drop(conn);
    let named = |n: u32, thread: &str| {
        let lease = conformance::lease(n, &tenant);
        let lease = atoll_model::Lease { thread: Some(thread.to_owned()), ..lease };
        NewLease { lease, idempotency: None }
    };
    store.insert(named(1, "last")).await.unwrap();
    let refused = store.insert(named(2, "more")).await.unwrap_err();
    assert!(matches!(refused, atoll_store::StoreError::TooManyThreads { most: 10_000 }), "{refused}");
    assert!(store.insert(named(3, "last")).await.is_ok(), "a thread that is bound is answered");
    store.remove_unused_threads(Some(&tenant), "t1").await.unwrap();
    store.insert(named(4, "more")).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn secrets_of_an_older_release_get_an_id_each_and_keep_their_values() {
    let (new, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = with_leases(new.path(), 1).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    for (n, name) in [(1, "A"), (2, "B")] {
        let secret = atoll_store::SecretRecord {
            name: name.to_owned(),
            created_at_ms: n,
            rotated_at_ms: None,
            id: atoll_model::SecretId::from_entropy([u8::try_from(n).unwrap(); 20]),
            version: 1,
            changed_at_ms: n,
            about: atoll_store::SecretAbout::default(),
            used_by: 0,
        };
        store.put_secret(&tenant, secret, format!("value of {name}"), 10).await.unwrap();
    }
    store.close().await;
    std::fs::copy(new.path().join("secret.key"), old.path().join("secret.key")).unwrap();
    let conn = rusqlite::Connection::open(old.path().join("sandbox.db")).unwrap();
    older_schema(&conn, 5);
    conn.execute("ATTACH ?1 AS new", [new.path().join("sandbox.db").to_str().unwrap()]).unwrap();
    conn.execute_batch(
        "INSERT INTO main.tenants SELECT id, name, quota, created_ms, network FROM new.tenants;
         INSERT INTO main.secrets SELECT tenant, name, value, created_ms, rotated_ms FROM new.secrets;",
    )
    .unwrap();
    drop(conn);
    let store = open(old.path()).unwrap();
    let secrets = store.secrets(&tenant).await.unwrap();
    assert_eq!(secrets.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>(), ["A", "B"]);
    assert_ne!(secrets[0].id, secrets[1].id);
    assert_eq!((secrets[1].version, secrets[1].changed_at_ms), (1, 2));
    assert_eq!(store.secret_values(&tenant).await.unwrap().get("B"), Some("value of B"));
    store.close().await;
}

#[tokio::test]
async fn a_lease_with_sealed_headers_needs_the_key_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 0).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let sealed = store.seal_text(&tenant, "value").unwrap();
    let transform = atoll_model::Transform {
        domain: "api.example.com".parse().unwrap(),
        inject_headers: [("X-Key".to_owned(), atoll_model::HeaderText::Sealed(sealed))].into(),
        strip_headers: vec![],
        plain_http: false,
    };
    let mut lease = conformance::lease(1, &tenant);
    lease.network.transforms.push(transform);
    store.insert(NewLease { lease: lease.clone(), idempotency: None }).await.unwrap();
    assert_eq!(store.lease(&lease.id).await.unwrap(), Some(lease));
    store.close().await;
    std::fs::remove_file(dir.path().join("secret.key")).unwrap();
    assert!(matches!(refusal(dir.path()), OpenError::Secret { .. }));
}

#[tokio::test]
async fn a_sealed_snapshot_token_without_its_key_is_refused_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = with_leases(dir.path(), 1).await;
    let tenant = store.tenants().await.unwrap()[0].id.clone();
    let shot = conformance::life::snapshot(1, &tenant, None);
    store.put_snapshot(shot.clone(), None).await.unwrap();
    store.put_snapshot(shot, Some("token-of-the-agent".to_owned())).await.unwrap();
    store.close().await;
    let content = std::fs::read(dir.path().join("sandbox.db")).unwrap();
    assert!(!content.windows(18).any(|bytes| bytes == b"token-of-the-agent"), "sealed on disk");
    std::fs::remove_file(dir.path().join("secret.key")).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, OpenError::Secret { .. }), "{error}");
}

#[tokio::test]
async fn without_room_nothing_new_is_written_and_everything_can_go() {
    let dir = tempfile::tempdir().unwrap();
    with_leases(dir.path(), 2).await.close().await;
    // More than any disk has.
    let disk = atoll_disk::Reserve::open(dir.path(), u64::MAX, atoll_disk::TenantShares::default());
    let config = StoreConfig { disk, ..StoreConfig::new(dir.path()) };
    let store: Subject = Arc::new(SqliteStore::open_with(&config).unwrap());
    let live = store.live().await.unwrap();
    let lease = conformance::lease(9, &live[0].0.tenant);
    let refused = store.insert(NewLease { lease, idempotency: None }).await.unwrap_err();
    assert!(matches!(refused, atoll_store::StoreError::NoSpace), "{refused:?}");
    assert!(store.delete_key(&atoll_model::KeyId::from_entropy([1; 20])).await.unwrap().is_empty());
    assert_eq!(store.live().await.unwrap().len(), 2);
    store.close().await;
}
