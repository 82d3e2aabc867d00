//! Recognizes a database that a newer server has changed, without changing any file.
//!
//! Nothing may be touched before: not the lock file, not the write-ahead log, not the index that SQLite makes beside it. So the
//! schema version is read from the header of the database, and the rest with SQLite's `immutable`, which opens nothing else. A
//! server that changes the schema folds its log into the database at once, so both are up to date there.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::schema;
use crate::OpenError;

/// Where the header of a database has the schema version, a big-endian number.
const VERSION_AT: u64 = 60;
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Refuses a database with a newer schema than this server supports. Changes nothing; what cannot be read is left to the
/// checks of the opening.
pub fn refuse_newer(db: &Path) -> Result<(), OpenError> {
    let known = schema::known();
    match header_version(db) {
        Some(found) if found > known => {
            Err(OpenError::Newer { db: db.to_owned(), found, known, writer: recorded_writer(db).into() })
        }
        _ => Ok(()),
    }
}

fn header_version(db: &Path) -> Option<i64> {
    let file = File::open(db).ok()?;
    let (mut magic, mut version) = ([0; 16], [0; 4]);
    file.read_exact_at(&mut magic, 0).ok()?;
    file.read_exact_at(&mut version, VERSION_AT).ok()?;
    (magic == *MAGIC).then(|| i64::from(u32::from_be_bytes(version)))
}

/// The version of the server that wrote the schema.
fn recorded_writer(db: &Path) -> Option<String> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_with_flags(address(db), flags).ok()?;
    schema::writer(&conn)
}

fn address(db: &Path) -> String {
    let mut address = String::from("file:");
    for byte in db.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                address.push(char::from(*byte))
            }
            _ => write!(address, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    address + "?mode=ro&immutable=1"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_found_whatever_the_folder_is_called() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("50% off? #1 ä");
        std::fs::create_dir(&folder).unwrap();
        let db = folder.join("sandbox.db");
        assert!(refuse_newer(&db).is_ok(), "there is none");
        let conn = Connection::open(&db).unwrap();
        conn.execute_batch(
            "CREATE TABLE meta (key TEXT, value TEXT); INSERT INTO meta VALUES ('schema_writer', '7.8.9');",
        )
        .unwrap();
        assert!(refuse_newer(&db).is_ok(), "an unknown file is left to the opening");
        conn.pragma_update(None, "user_version", 1_000).unwrap();
        drop(conn);
        let refused = refuse_newer(&db).unwrap_err().to_string();
        assert!(refused.contains("Atoll 7.8.9") && refused.contains("schema 1000"), "{refused}");
        let names: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["sandbox.db"]);
    }
}
