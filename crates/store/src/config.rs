//! How a store is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_disk::Reserve;
use atoll_model::NodeName;

use crate::Vault;
use crate::sqlite::DATABASE;

/// The folder, the database and the node of a store.
#[derive(Clone)]
pub struct StoreConfig {
    /// The server's own folder; only one process uses it.
    pub data: PathBuf,
    /// The database, in the folder or elsewhere; several servers on one machine may share it.
    pub database: PathBuf,
    /// The name of this node. It must be the one that the folder had before. `None`: that one.
    pub node: Option<NodeName>,
    /// The name of a node whose folder is new.
    pub default_node: NodeName,
    /// New rows are refused if the disk has no space for records.
    pub disk: Arc<Reserve>,
    /// Seals secrets. `None`: with a key in the folder.
    pub vault: Option<Arc<dyn Vault>>,
}

impl StoreConfig {
    /// The database in the folder itself, without a disk reserve.
    #[must_use]
    pub fn new(data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            database: Self::default_database(data),
            node: None,
            default_node: NodeName::default(),
            disk: Reserve::new(0),
            vault: None,
        }
    }

    /// Where the database of a folder is by default.
    #[must_use]
    pub fn default_database(data: &Path) -> PathBuf {
        data.join(DATABASE)
    }

    /// The database that the folder was last opened with; `None` if it never was.
    #[must_use]
    pub fn last_database(data: &Path) -> Option<PathBuf> {
        crate::sqlite::recorded_database(data)
    }

    /// Whether the database is in the folder itself.
    #[must_use]
    pub fn has_own_database(&self) -> bool {
        self.database.parent() == Some(self.data.as_path())
    }
}
