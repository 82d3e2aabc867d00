//! Opens `DATA` and its database: one server per folder, and no start with a store that is damaged, lost or foreign.
//!
//! The server holds a flock on the file `lock` for its lifetime. The file contains the pid of the holder, and after the
//! first write a mark that a write-ahead log exists (`wal`). A crash leaves both, so a missing log then was lost, and
//! not never made. A clean shutdown of the database's last server folds the log into the database and then empties the
//! file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::NodeName;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::identity::Identity;
use super::schema;
use super::servers::Servers;
use crate::{FileVault, OpenError, StoreConfig, Vault};

/// The name of the database in the folder.
pub(crate) const DB: &str = "sandbox.db";
const LOCK: &str = "lock";
const SECRET: &str = "secret.key";
const ADMIN: &str = "admin.key";
/// The mark in the lock file once a write-ahead log exists.
const WAL_MARK: &str = "wal";

/// LIMIT: how long a write waits for other servers of the database, for backups and for manual use of `sqlite3`.
pub(super) const BUSY: Duration = Duration::from_secs(10);
const BUSY_STEP: Duration = Duration::from_micros(500);

pub(crate) struct OpenedDatabase {
    pub(crate) conn: Connection,
    pub(crate) vault: Arc<dyn Vault>,
    pub(crate) node: NodeName,
    pub(crate) claim: Claim,
}

/// The folder, locked for this process, and its part of the database's servers.
pub(crate) struct Claim {
    file: File,
    servers: Servers,
}

impl Claim {
    /// Records that a write-ahead log exists from now on.
    fn mark(&mut self, data: &Path) -> Result<(), OpenError> {
        writeln!(self.file, "{WAL_MARK}").map_err(|cause| OpenError::Io {
            action: "write to",
            path: data.join(LOCK),
            cause,
        })
    }

    /// Whether this is the last server of the database; see [`Servers::is_last`].
    pub(crate) fn is_last(&self) -> bool {
        self.servers.is_last()
    }

    /// Records that nothing is left to recover. Call it after the last server has folded the log in.
    pub(crate) fn release_cleanly(&mut self) {
        self.servers.mark_clean();
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!(%error, "the lock file could not be emptied");
        }
    }
}

pub(crate) fn open(config: &StoreConfig) -> Result<OpenedDatabase, OpenError> {
    let (data, db) = (&config.data, &config.database);
    super::newer::refuse_newer(db)?;
    prepare_folder(data, db)?;
    let (file, before) = claim(data)?;
    let identity = Identity::of(config)?;
    let servers = Servers::join(db)?;
    // A log that other servers use is there; one that the last server folded in is not missed.
    let is_marked = before.lines().any(|line| line == WAL_MARK);
    refuse_lost_record(data, db, is_marked && servers.is_alone && !servers.was_clean)?;
    let mut conn = connect(db)?;
    schema::check(&conn, db)?;
    refuse_emptied_record(&conn, data, db)?;
    schema::migrate(&mut conn, db, &identity.node, servers.is_alone)?;
    let vault = open_vault(&conn, config)?;
    identity.claim(&conn, config)?;
    let mut claim = Claim { file, servers };
    // The first write makes the log; only after that its absence means a loss.
    let opened = "INSERT INTO meta VALUES ('opened', '1') ON CONFLICT DO UPDATE SET value = value + 1";
    match conn.execute(opened, []) {
        Ok(_) => claim.mark(data)?,
        // A server that starts on a full disk can still answer queries, and deletes once there is a little space.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
            tracing::error!(db = %db.display(), "the disk is full: nothing can be recorded until some space is free");
        }
        Err(cause) => return Err(OpenError::Database { action: "write to", db: db.clone(), cause }),
    }
    claim.servers.admit_others();
    Ok(OpenedDatabase { conn, vault, node: identity.node, claim })
}

fn prepare_folder(data: &Path, db: &Path) -> Result<(), OpenError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(|cause| OpenError::Io {
        action: "create the folder",
        path: data.to_owned(),
        cause,
    })?;
    for path in
        [data.to_owned(), data.join(LOCK), data.join(SECRET), data.join(ADMIN), db.to_owned(), wal(db)]
    {
        refuse_foreign_owner(path)?;
    }
    Ok(())
}

/// The write-ahead log of a database.
fn wal(db: &Path) -> PathBuf {
    let mut name = db.file_name().unwrap_or_default().to_owned();
    name.push("-wal");
    db.with_file_name(name)
}

fn refuse_foreign_owner(path: PathBuf) -> Result<(), OpenError> {
    let me = rustix::process::geteuid().as_raw();
    match std::fs::symlink_metadata(&path) {
        Ok(meta) if meta.uid() != me => Err(OpenError::WrongOwner { path, owner: meta.uid(), me }),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(OpenError::Io { action: "inspect", path, cause }),
    }
}

/// Locks the folder; also returns what the last holder left in the file.
fn claim(data: &Path) -> Result<(File, String), OpenError> {
    let path = data.join(LOCK);
    let io = |action: &'static str| {
        let path = path.clone();
        move |cause| OpenError::Io { action, path, cause }
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io("create"))?;
    let locked = file.try_lock();
    let mut before = String::new();
    file.read_to_string(&mut before).map_err(io("read"))?;
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let pid = before.lines().next().unwrap_or("unknown").to_owned();
            return Err(OpenError::Locked { data: data.to_owned(), pid });
        }
        Err(TryLockError::Error(cause)) => return Err(io("lock")(cause)),
    }
    // The mark of a crash must survive until the log has been checked: until then only the pid line changes.
    let marked = before.lines().any(|line| line == WAL_MARK);
    let mut text = format!("{}\n", std::process::id());
    if marked {
        text.push_str(&format!("{WAL_MARK}\n"));
    }
    // Overwrites the existing content, so that it works on a full disk.
    file.seek(SeekFrom::Start(0)).map_err(io("write to"))?;
    file.write_all(text.as_bytes()).map_err(io("write to"))?;
    file.set_len(text.len() as u64).map_err(io("write to"))?;
    Ok((file, before))
}

fn refuse_lost_record(data: &Path, db: &Path, crashed: bool) -> Result<(), OpenError> {
    let wal = wal(db);
    match std::fs::metadata(db) {
        Ok(_) if crashed && !wal.exists() => Err(OpenError::LostWal { wal }),
        Ok(meta) if meta.len() > 0 => Ok(()),
        Ok(_) => witness(data, db),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            witness(data, db)?;
            if wal.exists() {
                return Err(OpenError::Missing { db: db.to_owned(), witness: wal });
            }
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(db)
                .map(drop)
                .map_err(|cause| OpenError::Io { action: "create", path: db.to_owned(), cause })
        }
        Err(cause) => Err(OpenError::Io { action: "inspect", path: db.to_owned(), cause }),
    }
}

fn witness(data: &Path, db: &Path) -> Result<(), OpenError> {
    for name in [SECRET, ADMIN] {
        let witness = data.join(name);
        if witness.exists() {
            return Err(OpenError::Missing { db: db.to_owned(), witness });
        }
    }
    Ok(())
}

fn connect(db: &Path) -> Result<Connection, OpenError> {
    let failed = |action| {
        move |cause: rusqlite::Error| {
            if is_damage(&cause) {
                OpenError::Corrupt { db: db.to_owned(), detail: cause.to_string() }
            } else {
                OpenError::Database { action, db: db.to_owned(), cause }
            }
        }
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(db, flags).map_err(failed("open"))?;
    conn.busy_handler(Some(wait_for_turn)).map_err(failed("open"))?;
    conn.pragma_update(None, "journal_mode", "WAL").map_err(failed("open"))?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(failed("open"))?;
    conn.pragma_update(None, "foreign_keys", true).map_err(failed("open"))?;
    conn.pragma_update(None, "trusted_schema", false).map_err(failed("open"))?;
    // LIMIT: the log is folded in about every 8 MiB and never kept larger than 64 MiB.
    conn.pragma_update(None, "wal_autocheckpoint", 2_000).map_err(failed("open"))?;
    conn.pragma_update(None, "journal_size_limit", 64 << 20).map_err(failed("open"))?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

/// Waits for another writer. The steps are short: SQLite's own would mostly sleep through the gaps between the
/// transactions of a busy server.
fn wait_for_turn(tries: i32) -> bool {
    std::thread::sleep(BUSY_STEP);
    BUSY_STEP * tries.unsigned_abs() < BUSY
}

pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

/// A database without tables beside existing keys was emptied: SQLite would treat it as a new one.
fn refuse_emptied_record(conn: &Connection, data: &Path, db: &Path) -> Result<(), OpenError> {
    if schema::version(conn, db)? == 0 { witness(data, db) } else { Ok(()) }
}

/// The vault of the configuration, or the one of DATA. Refused if it is not the vault that the rows were sealed with.
fn open_vault(conn: &Connection, config: &StoreConfig) -> Result<Arc<dyn Vault>, OpenError> {
    let failed = |cause| OpenError::Database { action: "read", db: config.database.clone(), cause };
    let known: Option<String> = conn
        .query_row("SELECT value FROM meta WHERE key = 'vault'", [], |row| row.get(0))
        .optional()
        .map_err(failed)?;
    let path = config.data.join(SECRET);
    let vault = match &config.vault {
        Some(vault) => Arc::clone(vault),
        None => {
            let may_create = known.is_none() && !has_sealed_rows(conn).map_err(failed)?;
            Arc::new(FileVault::open(&path, may_create)?)
        }
    };
    let check = hex::encode(vault.derive("vault check", ""));
    let is_right = match known {
        Some(known) => known == check,
        None => opens_older_rows(conn, vault.as_ref()).map_err(failed)?,
    };
    if !is_right {
        let why = format!("it is not the key that {} was sealed with", config.database.display());
        return Err(OpenError::Secret { path, why });
    }
    match conn.execute("INSERT INTO meta VALUES ('vault', ?1) ON CONFLICT DO NOTHING", [check]) {
        Ok(_) => Ok(vault),
        // The next start writes it.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => Ok(vault),
        Err(cause) => Err(failed(cause)),
    }
}

/// Whether the vault opens a row of a database that is older than the check value.
fn opens_older_rows(conn: &Connection, vault: &dyn Vault) -> rusqlite::Result<bool> {
    let sealed: Option<(String, Vec<u8>)> = conn
        .query_row("SELECT instance, agent_token FROM sandbox_instances LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(sealed.is_none_or(|(instance, token)| vault.unseal(&instance, &token).is_some()))
}

fn has_sealed_rows(conn: &Connection) -> rusqlite::Result<bool> {
    let sealed = "SELECT EXISTS (SELECT 1 FROM sandbox_instances)
                    OR EXISTS (SELECT 1 FROM snapshots WHERE agent_token IS NOT NULL)
                    OR EXISTS (SELECT 1 FROM secrets)
                    OR EXISTS (SELECT 1 FROM sandbox_leases WHERE instr(lease, '\"sealed\":') > 0)
                    OR EXISTS (SELECT 1 FROM snapshots WHERE instr(snapshot, '\"sealed\":') > 0)";
    conn.query_row(sealed, [], |row| row.get(0))
}
