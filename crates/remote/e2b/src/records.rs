//! What the labels of an object cannot say, because they never change: which instance it is after a start, whether only its files
//! count, and which of two objects it is after a rollback. One small file for each sandbox that was ever halted, in the folder of the provider.
//!
//! | record | object at the service | meaning |
//! |---|---|---|
//! | none | any | the instance of the labels |
//! | halted | paused | files only |
//! | any | running | the instance of the record runs |
//! | not halted | paused | the instance of the record stands still |
//!
//! A record is written before the call that it describes, so that a crash between them leaves one of these rows.

use std::io;
use std::path::{Path, PathBuf};

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::ProviderError;
use serde::{Deserialize, Serialize};

/// What is recorded of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    pub(crate) instance: InstanceId,
    /// The service's id of the object. A rollback makes another one, and for a moment there are two.
    #[serde(default)]
    pub(crate) object: Option<String>,
    pub(crate) halted: bool,
}

/// The records of a provider.
#[derive(Debug, Clone)]
pub(crate) struct InstanceRecords(PathBuf);

impl InstanceRecords {
    /// Opens the folder; made when missing.
    pub(crate) fn open(folder: &Path) -> Result<Self, ProviderError> {
        std::fs::create_dir_all(folder).map_err(failed("making the folder of the provider"))?;
        Ok(Self(folder.to_owned()))
    }

    fn file(&self, sandbox: &SandboxId) -> PathBuf {
        self.0.join(format!("{sandbox}.json"))
    }

    /// The record of a sandbox.
    pub(crate) fn read(&self, sandbox: &SandboxId) -> Result<Option<InstanceRecord>, ProviderError> {
        let text = match std::fs::read(self.file(sandbox)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed("reading a record"))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| failed("reading a record")(error.into()))
    }

    /// Replaces the record of a sandbox; it survives a crash of the machine.
    pub(crate) async fn write(
        &self,
        sandbox: &SandboxId,
        record: InstanceRecord,
    ) -> Result<(), ProviderError> {
        let file = self.file(sandbox);
        let write = move || {
            let fresh = file.with_extension("new");
            std::fs::write(&fresh, serde_json::to_vec(&record)?)?;
            std::fs::File::open(&fresh)?.sync_all()?;
            std::fs::rename(fresh, file)
        };
        let done = tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(error.into()));
        done.map_err(failed("writing a record"))
    }

    /// Removes the record of a sandbox.
    pub(crate) fn remove(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        match std::fs::remove_file(self.file(sandbox)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing a record")(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> ProviderError {
    move |cause| ProviderError::Failed { step: step.to_owned(), cause: Box::new(cause) }
}
