//! The folders of sessions: where they are, and which are nobody's any more.

use atoll_agentapi::EntryKind;

use super::{ROOT, Session, Sessions, is_key};
use crate::{Change, ToolboxError};

/// LIMIT: of a name as it is kept in a file.
const NAME_BYTES: u64 = 1_024;

impl Sessions<'_> {
    /// Every user of the sandbox may have sessions below it.
    pub(super) async fn open_root(&self) -> Result<(), ToolboxError> {
        let agent = &self.toolbox.agent;
        match agent.make_dir(ROOT, self.toolbox.user(), Some(0o777)).await {
            Ok(_) => {
                let change = Change { mode: Some(0o1777), ..Change::default() };
                self.toolbox.files().change(ROOT, &change).await.map(|_| ())
            }
            Err(error) if error.kind() == atoll_model::ErrorKind::Exists => Ok(()),
            Err(error) => Err(ToolboxError::file(error)),
        }
    }

    /// The folder of a session whose shell left by itself.
    pub(super) async fn ended(&self, name: &str) -> Result<Option<String>, ToolboxError> {
        for key in self.keys().await? {
            let known = self.bytes(&format!("{ROOT}/{key}/name"), NAME_BYTES).await?;
            if known.as_deref() == Some(name.as_bytes())
                && self.bytes(&format!("{ROOT}/{key}/ended"), NAME_BYTES).await?.is_some()
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Removes what sessions left behind whose shells are gone, by an end of the sandbox's processes for example.
    pub(super) async fn sweep(&self, living: &[Session]) {
        let Ok(keys) = self.keys().await else { return };
        for key in keys {
            if !living.iter().any(|session| session.key == key) {
                // What another user left is for that user to remove.
                let _ = self.forget(&key).await;
            }
        }
    }

    pub(super) async fn forget(&self, key: &str) -> Result<(), ToolboxError> {
        match self.toolbox.agent.remove(format!("{ROOT}/{key}"), self.toolbox.user()).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(ToolboxError::file),
        }
    }

    async fn keys(&self) -> Result<Vec<String>, ToolboxError> {
        let (entries, _) = match self.toolbox.agent.list_dir(ROOT, self.toolbox.user(), 1).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(ToolboxError::file)?,
        };
        let names = entries
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::Directory)
            .filter_map(|entry| String::from_utf8(entry.name).ok());
        Ok(names.filter(|name| is_key(name)).collect())
    }
}
