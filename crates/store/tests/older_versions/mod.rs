//! A database of an earlier commit: every row is there, and means the same.

use std::collections::BTreeSet;

use atoll_model::Phase;
use atoll_store::{LeaseQuery, SqliteStore, Store};

/// Schema 11, with a sandbox in every phase.
const OLD: &str = include_str!("../../../../tests/upgrade/96755ff2.sql");
const OLD_KEY: &str = include_str!("../../../../tests/upgrade/secret.key");

#[tokio::test]
async fn a_database_of_schema_11_opens_with_a_sandbox_in_every_phase() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("sandbox.db");
    std::fs::write(dir.path().join("secret.key"), OLD_KEY).unwrap();
    std::fs::write(dir.path().join("node"), format!("vm\n39488e5e05ece817f3ad\n{}\n", db.display())).unwrap();
    rusqlite::Connection::open(&db).unwrap().execute_batch(OLD).unwrap();
    for _ in 0..2 {
        let store = SqliteStore::open(dir.path()).unwrap();
        let all = LeaseQuery { include_deleted: true, limit: 100, ..LeaseQuery::default() };
        let leases = store.list(all).await.unwrap().items;
        let phases: BTreeSet<&str> = leases.iter().map(|lease| lease.phase.as_str()).collect();
        for phase in [
            Phase::Creating,
            Phase::Running,
            Phase::Pausing,
            Phase::Paused,
            Phase::Resuming,
            Phase::Stopping,
            Phase::Stopped,
            Phase::Starting,
            Phase::Archiving,
            Phase::Archived,
            Phase::Restoring,
            Phase::Deleting,
            Phase::Deleted,
            Phase::Failed,
        ] {
            assert!(phases.contains(phase.as_str()), "{} is missing: {phases:?}", phase.as_str());
        }
        let live = store.live().await.unwrap();
        let (run1, instance) = live.iter().find(|(lease, _)| lease.name.as_deref() == Some("run1")).unwrap();
        assert_eq!(run1.labels["team"], "x");
        assert!(!run1.follows_provider_exit, "a later field has the meaning that it had before it existed");
        // The token of its agent is unsealed with the old key.
        assert!(!instance.as_ref().unwrap().agent_token.is_empty());
        let snapshot = &store.all_snapshots().await.unwrap()[0];
        assert_eq!((snapshot.name.as_deref(), snapshot.tenant_wide), (Some("clean"), true));
        store.close().await;
    }
    let conn = rusqlite::Connection::open(&db).unwrap();
    let writer: String =
        conn.query_row("SELECT value FROM meta WHERE key = 'schema_writer'", [], |row| row.get(0)).unwrap();
    assert_eq!(writer, env!("CARGO_PKG_VERSION"));
}
