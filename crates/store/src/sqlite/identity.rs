//! Which node a data folder is: `DATA/node` contains the name of the node, the id of the folder, and the path of the
//! database. A folder keeps its name when the host gets another one, and no two folders have the same name in one
//! database: each would take the other's sandboxes for its own.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use atoll_model::NodeName;
use rusqlite::{Connection, OptionalExtension, params};

use crate::{OpenError, StoreConfig};

const FILE: &str = "node";

pub(super) struct Identity {
    pub(super) node: NodeName,
    /// A random id of the data folder.
    folder: String,
    /// Whether the file has to be written.
    is_new: bool,
}

struct Recorded {
    node: NodeName,
    folder: String,
    database: PathBuf,
}

fn read(data: &Path) -> Result<Option<Recorded>, OpenError> {
    let path = data.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(OpenError::Io { action: "read", path, cause }),
    };
    parse(&text).map(Some).ok_or(OpenError::BadNodeFile { path })
}

fn parse(text: &str) -> Option<Recorded> {
    let mut lines = text.lines();
    let (node, folder) = (lines.next()?.parse().ok()?, lines.next()?.to_owned());
    Some(Recorded { node, folder, database: lines.next()?.into() })
}

/// The database that the folder was last used with.
pub(crate) fn recorded_database(data: &Path) -> Option<PathBuf> {
    read(data).ok().flatten().map(|recorded| recorded.database)
}

impl Identity {
    /// The recorded identity of the folder, or a new one.
    pub(super) fn of(config: &StoreConfig) -> Result<Self, OpenError> {
        match (read(&config.data)?, &config.node) {
            (Some(recorded), Some(asked)) if recorded.node != *asked => Err(OpenError::OtherNode {
                data: config.data.clone(),
                recorded: recorded.node,
                asked: asked.clone(),
            }),
            (Some(recorded), _) => {
                let is_new = recorded.database != config.database;
                Ok(Self { node: recorded.node, folder: recorded.folder, is_new })
            }
            (None, asked) => {
                let mut id = [0u8; 10];
                let failed = |e: getrandom::Error| OpenError::Io {
                    action: "make an id for",
                    path: config.data.clone(),
                    cause: std::io::Error::other(e.to_string()),
                };
                getrandom::fill(&mut id).map_err(failed)?;
                let node = asked.clone().unwrap_or_else(|| config.default_node.clone());
                Ok(Self { node, folder: hex::encode(id), is_new: true })
            }
        }
    }

    /// Records the node, in the folder and then in the database. A folder that contains the database itself is right in any case: it may be a
    /// restored backup.
    pub(super) fn claim(&self, conn: &Connection, config: &StoreConfig) -> Result<(), OpenError> {
        let failed = |cause| OpenError::Database { action: "write to", db: config.database.clone(), cause };
        let known: Option<String> = conn
            .query_row("SELECT folder FROM nodes WHERE name = ?1", [self.node.as_str()], |row| row.get(0))
            .optional()
            .map_err(failed)?;
        match known {
            Some(folder) if folder == self.folder => return Ok(()),
            Some(_) if !config.has_own_database() => {
                let (node, db) = (self.node.clone(), config.database.clone());
                return Err(OpenError::NodeTaken { node, db });
            }
            Some(_) | None => {}
        }
        self.record(config)?;
        let put = "INSERT INTO nodes VALUES (?1, ?2) ON CONFLICT DO UPDATE SET folder = excluded.folder";
        match conn.execute(put, params![self.node.as_str(), self.folder]) {
            Ok(_) => Ok(()),
            // A server that starts on a full disk can still answer queries.
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => Ok(()),
            Err(cause) => Err(failed(cause)),
        }
    }

    fn record(&self, config: &StoreConfig) -> Result<(), OpenError> {
        if !self.is_new {
            return Ok(());
        }
        let path = config.data.join(FILE);
        let text = format!("{}\n{}\n{}\n", self.node, self.folder, config.database.display());
        let beside = path.with_extension("new");
        let written = || {
            let mut file = std::fs::OpenOptions::new();
            let mut file = file.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&beside, &path)
        };
        match written() {
            Ok(()) => Ok(()),
            Err(cause) if cause.kind() == std::io::ErrorKind::StorageFull => {
                tracing::error!(path = %path.display(), "the disk is full: the node of this folder is not recorded");
                Ok(())
            }
            Err(cause) => Err(OpenError::Io { action: "write", path, cause }),
        }
    }
}
