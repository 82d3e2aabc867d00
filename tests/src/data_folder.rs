//! A server's state folder, looked at from the host: works while the server is down.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::poll::PATIENCE;
use crate::proc;

/// Looks at one state folder.
#[derive(Debug, Clone)]
pub struct DataFolderView {
    data: PathBuf,
}

impl DataFolderView {
    /// Of that folder.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_path_buf() }
    }

    /// The first process of a sandbox that lives, as the host sees it.
    pub fn find_agent(&self, sandbox: &str) -> Option<i32> {
        let facts = self.facts(sandbox)?;
        let pid = i32::try_from(facts["pid"].as_i64()?).ok()?;
        let found = proc::Process::read(pid)
            .filter(|found| found.state != 'Z' && facts["started"] == found.started)?;
        Some(found.pid)
    }

    /// What the engine wrote down of a sandbox's instance.
    pub fn facts(&self, sandbox: &str) -> Option<Value> {
        let select = "select facts from sandbox_instances where sandbox = ?1";
        let facts: String = self.database().query_row(select, [sandbox], |row| row.get(0)).ok()?;
        Some(serde_json::from_str(&facts).expect("facts are JSON"))
    }

    /// The database, read-only.
    pub fn database(&self) -> rusqlite::Connection {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database =
            rusqlite::Connection::open_with_flags(self.data.join("sandbox.db"), flags).expect("the database");
        database.busy_timeout(PATIENCE).expect("a timeout");
        database
    }

    /// What a sandbox changed, as it lies on disk.
    pub fn upper(&self, sandbox: &str) -> PathBuf {
        self.layer(sandbox).join("upper")
    }

    /// The layer of a sandbox.
    pub fn layer(&self, sandbox: &str) -> PathBuf {
        self.data.join("pool/layers").join(sandbox)
    }
}
