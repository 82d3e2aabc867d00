//! A copy of a database at one moment, and what it names: for a backup beside servers that use the database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use atoll_model::{Lease, NodeName, Snapshot, Volume};
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::leases::from_json;
use super::open::is_damage;
use crate::{OpenError, StoreError};

/// What a copy of a database names, of every node.
#[derive(Debug)]
pub struct DatabaseContents {
    /// The schema version.
    pub schema: i64,
    /// The check value of the key that seals its rows; [`crate::FileVault`] derives the same from the right key.
    pub key_check: Option<String>,
    /// The nodes of the database.
    pub nodes: Vec<NodeName>,
    /// Sandboxes that are not deleted.
    pub sandboxes: Vec<Lease>,
    /// Volumes in every state.
    pub volumes: Vec<Volume>,
    /// Snapshots in every state.
    pub snapshots: Vec<Snapshot>,
    /// The versions that tags of templates point to, each with the name of its template and whether it was pulled from
    /// a registry.
    pub tagged_versions: Vec<TaggedVersion>,
}

/// A version that a tag points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedVersion {
    /// The digest of the version.
    pub version: String,
    /// `NAME:TAG`.
    pub name: String,
    /// Whether a registry has it under that name.
    pub is_pulled: bool,
}

impl DatabaseContents {
    /// Writes a copy of the database `db` to the new file `to`, as of one moment. Servers may use the database meanwhile.
    pub fn copy(db: &Path, to: &Path) -> Result<Self, OpenError> {
        let failed = |action| database_error(db, action);
        let conn = connect(db).map_err(failed("open"))?;
        let to = to.to_string_lossy();
        conn.execute("VACUUM INTO ?1", [to.as_ref()]).map_err(failed("copy"))?;
        Self::read(Path::new(to.as_ref()))
    }

    /// Reads a copy.
    pub fn read(db: &Path) -> Result<Self, OpenError> {
        let failed = |action| database_error(db, action);
        let conn = connect(db).map_err(failed("open"))?;
        super::schema::check(&conn, db)?;
        let corrupt = |error: StoreError| OpenError::Corrupt { db: db.to_owned(), detail: error.to_string() };
        let rows = |table: &'static str, column: &str, end: &str| -> Result<Vec<String>, OpenError> {
            let sql = format!("SELECT {column} FROM {table} {end}");
            let read = || -> rusqlite::Result<Vec<String>> {
                let mut statement = conn.prepare(&sql)?;
                statement.query_map([], |row| row.get(0))?.collect()
            };
            read().map_err(failed("read"))
        };
        let key_check = "SELECT value FROM meta WHERE key = 'vault'";
        let key_check = conn.query_row(key_check, [], |row| row.get(0)).optional().map_err(failed("read"))?;
        let nodes = rows("nodes", "name", "ORDER BY name")?;
        let nodes = nodes.iter().filter_map(|name| name.parse().ok()).collect();
        let parsed = |text: &String| from_json("sandbox_leases", text).map_err(corrupt);
        let sandboxes = rows("sandbox_leases", "lease", "WHERE observed <> 'deleted' ORDER BY n")?;
        let sandboxes = sandboxes.iter().map(parsed).collect::<Result<_, _>>()?;
        let parsed = |text: &String| from_json("volumes", text).map_err(corrupt);
        let volumes =
            rows("volumes", "volume", "ORDER BY n")?.iter().map(parsed).collect::<Result<_, _>>()?;
        let parsed = |text: &String| from_json("snapshots", text).map_err(corrupt);
        let snapshots =
            rows("snapshots", "snapshot", "ORDER BY n")?.iter().map(parsed).collect::<Result<_, _>>()?;
        Ok(Self {
            schema: super::schema::version(&conn, db)?,
            key_check,
            nodes,
            sandboxes,
            volumes,
            snapshots,
            tagged_versions: tagged_versions(&conn).map_err(failed("read"))?,
        })
    }
}

/// The generation of each sandbox that is not deleted, by its id, as the database has them now.
pub fn lease_generations(db: &Path) -> Result<BTreeMap<String, u64>, OpenError> {
    let read = || -> rusqlite::Result<BTreeMap<String, u64>> {
        let conn = connect(db)?;
        let mut statement =
            conn.prepare("SELECT id, generation FROM sandbox_leases WHERE observed <> 'deleted'")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?;
        rows.collect()
    };
    read().map_err(database_error(db, "read"))
}

/// The ids of the volumes and snapshots that the database names now.
pub fn kept_objects(db: &Path) -> Result<BTreeSet<String>, OpenError> {
    let read = || -> rusqlite::Result<BTreeSet<String>> {
        let conn = connect(db)?;
        let mut statement = conn.prepare("SELECT id FROM volumes UNION SELECT id FROM snapshots")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    read().map_err(database_error(db, "read"))
}

/// Gives snapshots of a restored database the seals of their new files, by id. No server may use the database.
pub fn reseal_snapshots(db: &Path, seals: &BTreeMap<String, String>) -> Result<(), OpenError> {
    let write = || -> rusqlite::Result<()> {
        let mut conn = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let change = conn.transaction()?;
        let sql = "UPDATE snapshots SET snapshot = json_set(snapshot, '$.seal', ?2) WHERE id = ?1";
        for (id, seal) in seals {
            change.execute(sql, [id, seal])?;
        }
        change.commit()
    };
    write().map_err(database_error(db, "write to"))
}

fn tagged_versions(conn: &Connection) -> rusqlite::Result<Vec<TaggedVersion>> {
    let sql = "SELECT g.version, t.name, g.tag, v.manifest IS NOT NULL FROM template_tags g
               JOIN templates t ON t.n = g.template
               LEFT JOIN template_versions v ON v.template = g.template AND v.version = g.version
               ORDER BY t.n, g.tag";
    let mut statement = conn.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let (name, tag): (String, String) = (row.get(1)?, row.get(2)?);
        Ok(TaggedVersion { version: row.get(0)?, name: format!("{name}:{tag}"), is_pulled: row.get(3)? })
    })?;
    rows.collect()
}

fn connect(db: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(db, flags)?;
    conn.busy_timeout(super::open::BUSY)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    Ok(conn)
}

fn database_error(db: &Path, action: &'static str) -> impl Fn(rusqlite::Error) -> OpenError + Copy {
    move |cause| match is_damage(&cause) {
        true => OpenError::Corrupt { db: db.to_owned(), detail: cause.to_string() },
        false => OpenError::Database { action, db: db.to_owned(), cause },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{FileVault, SqliteStore, Store, Vault};

    #[tokio::test]
    async fn a_copy_is_made_beside_a_server_and_names_its_key() {
        let data = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(data.path()).unwrap();
        let to = data.path().join("copy.db");
        let db = data.path().join(super::super::DATABASE);
        let contents = DatabaseContents::copy(&db, &to).unwrap();
        let vault = FileVault::open(&data.path().join("secret.key"), false).unwrap();
        assert_eq!(contents.key_check, Some(hex::encode(vault.derive("vault check", ""))));
        assert_eq!(contents.nodes, [store.node().clone()]);
        assert!(contents.sandboxes.is_empty() && contents.tagged_versions.is_empty());
        assert!(lease_generations(&db).unwrap().is_empty() && kept_objects(&db).unwrap().is_empty());
        store.close().await;
    }

    #[test]
    fn a_damaged_copy_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("copy.db");
        std::fs::write(&db, vec![7; 8192]).unwrap();
        assert!(matches!(DatabaseContents::read(&db), Err(OpenError::Corrupt { .. })));
    }
}
