//! Opens `DATA`: one server per folder, and no start with a store that is damaged, lost or foreign.
//!
//! The server holds a flock on the file `lock` for its lifetime. The file contains the pid of the holder, and after the
//! first write a mark that a write-ahead log exists (`wal`). A crash leaves both, so a missing log then was lost, and
//! not never made. A clean shutdown first folds the log into the database and then empties the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::OpenError;
use crate::seal::Seal;

/// The name of the database in the folder.
pub(crate) const DB: &str = "sandbox.db";
const WAL: &str = "sandbox.db-wal";
const LOCK: &str = "lock";
const SECRET: &str = "secret.key";
const ADMIN: &str = "admin.key";
/// The mark in the lock file once a write-ahead log exists.
const WAL_MARK: &str = "wal";

/// Each entry raises the schema version by one. Released entries never change.
const MIGRATIONS: &[&str] = &[
    include_str!("0001.sql"),
    include_str!("0002.sql"),
    include_str!("0003.sql"),
    include_str!("0004.sql"),
    include_str!("0005.sql"),
    include_str!("0006.sql"),
    include_str!("0007.sql"),
];

/// LIMIT: only backups and manual use of `sqlite3` compete with the writer.
const BUSY: Duration = Duration::from_secs(5);

pub(crate) struct OpenedDatabase {
    pub(crate) conn: Connection,
    pub(crate) seal: Seal,
    pub(crate) claim: Claim,
}

/// The folder, locked for this process.
pub(crate) struct Claim {
    file: File,
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

    /// Records that nothing is left to recover. Call it after the log was folded in.
    pub(crate) fn release_cleanly(&self) {
        if let Err(error) = self.file.set_len(0) {
            tracing::warn!(%error, "the lock file could not be emptied");
        }
    }
}

pub(crate) fn open(data: &Path) -> Result<OpenedDatabase, OpenError> {
    prepare_folder(data)?;
    let (mut claim, before) = claim(data)?;
    let db = data.join(DB);
    refuse_lost_record(data, &db, &before)?;
    let mut conn = connect(&db)?;
    check(&conn, &db)?;
    refuse_emptied_record(&conn, data, &db)?;
    migrate(&mut conn, &db)?;
    let seal = Seal::open(&data.join(SECRET), !has_sealed_rows(&conn, &db)?)?;
    // The first write makes the log; only after that its absence means a loss.
    let opened = "INSERT INTO meta VALUES ('opened', '1') ON CONFLICT DO UPDATE SET value = value + 1";
    match conn.execute(opened, []) {
        Ok(_) => claim.mark(data)?,
        // A server that starts on a full disk can still answer queries, and deletes once there is a little space.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
            tracing::error!(db = %db.display(), "the disk is full: nothing can be recorded until some space is free");
        }
        Err(cause) => return Err(OpenError::Database { action: "write to", db, cause }),
    }
    Ok(OpenedDatabase { conn, seal, claim })
}

fn prepare_folder(data: &Path) -> Result<(), OpenError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(|cause| OpenError::Io {
        action: "create the folder",
        path: data.to_owned(),
        cause,
    })?;
    for name in ["", DB, WAL, LOCK, SECRET, ADMIN] {
        refuse_foreign_owner(if name.is_empty() { data.to_owned() } else { data.join(name) })?;
    }
    Ok(())
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
fn claim(data: &Path) -> Result<(Claim, String), OpenError> {
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
    Ok((Claim { file }, before))
}

fn refuse_lost_record(data: &Path, db: &Path, before: &str) -> Result<(), OpenError> {
    let wal = data.join(WAL);
    let crashed = before.lines().any(|line| line == WAL_MARK);
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
    let conn = Connection::open_with_flags(db, flags).map_err(failed("open"))?;
    conn.busy_timeout(BUSY).map_err(failed("open"))?;
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

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

fn check(conn: &Connection, db: &Path) -> Result<(), OpenError> {
    let damaged = |detail| OpenError::Corrupt { db: db.to_owned(), detail };
    let mut said = Vec::new();
    conn.pragma_query(None, "quick_check", |row| {
        said.push(row.get::<_, String>(0)?);
        Ok(())
    })
    .map_err(|e| damaged(e.to_string()))?;
    if said == ["ok"] { Ok(()) } else { Err(damaged(said.join("; "))) }
}

/// A database without tables beside existing keys was emptied: SQLite would treat it as a new one.
fn refuse_emptied_record(conn: &Connection, data: &Path, db: &Path) -> Result<(), OpenError> {
    if schema(conn, db)? == 0 { witness(data, db) } else { Ok(()) }
}

fn schema(conn: &Connection, db: &Path) -> Result<i64, OpenError> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|cause| OpenError::Database {
        action: "read",
        db: db.to_owned(),
        cause,
    })
}

fn migrate(conn: &mut Connection, db: &Path) -> Result<(), OpenError> {
    let failed = |cause| OpenError::Database { action: "migrate", db: db.to_owned(), cause };
    let found = schema(conn, db)?;
    let known = i64::try_from(MIGRATIONS.len()).expect("a handful of migrations");
    if found > known {
        return Err(OpenError::Newer { db: db.to_owned(), found, known });
    }
    for (at, sql) in (0..).zip(MIGRATIONS) {
        if at >= found {
            let tx = conn.transaction().map_err(failed)?;
            tx.execute_batch(sql).map_err(failed)?;
            tx.pragma_update(None, "user_version", at + 1).map_err(failed)?;
            tx.commit().map_err(failed)?;
        }
    }
    Ok(())
}

fn has_sealed_rows(conn: &Connection, db: &Path) -> Result<bool, OpenError> {
    let sealed = "SELECT EXISTS (SELECT 1 FROM sandbox_instances)
                    OR EXISTS (SELECT 1 FROM snapshots WHERE agent_token IS NOT NULL)
                    OR EXISTS (SELECT 1 FROM secrets)
                    OR EXISTS (SELECT 1 FROM sandbox_leases WHERE instr(lease, '\"sealed\":') > 0)
                    OR EXISTS (SELECT 1 FROM snapshots WHERE instr(snapshot, '\"sealed\":') > 0)";
    conn.query_row(sealed, [], |row| row.get(0)).map_err(|cause| OpenError::Database {
        action: "read",
        db: db.to_owned(),
        cause,
    })
}
