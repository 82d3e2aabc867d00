//! The folders of sessions: their paths, and which are left over.

use atoll_agentapi::EntryKind;

use super::{ROOT, Sessions, ShellSession, is_key};
use crate::{PermissionChange, ToolboxError};

/// LIMIT: bytes of a name in a file.
const NAME_BYTES: u64 = 1_024;
/// How long a folder may exist without a shell.
const FRESH_MS: i64 = 60_000;

impl Sessions<'_> {
    pub(super) fn root(&self) -> String {
        format!("{}/{ROOT}", self.toolbox.sandbox.temporary_folder())
    }

    /// The folder of a command.
    pub(super) fn folder(&self, session: &ShellSession, id: &str) -> String {
        format!("{}/{}/{id}", self.root(), session.key)
    }

    /// The file of a command's standard output.
    pub(crate) fn output_file(&self, session: &ShellSession, id: &str) -> String {
        format!("{}/out", self.folder(session, id))
    }

    /// Every user of the sandbox may have sessions below it.
    pub(super) async fn open_root(&self) -> Result<(), ToolboxError> {
        let (sandbox, root) = (&self.toolbox.sandbox, self.root());
        match sandbox.make_dir(root.as_bytes(), self.toolbox.user(), Some(0o777)).await {
            Ok(_) => {
                let change = PermissionChange { mode: Some(0o1777), ..PermissionChange::default() };
                self.toolbox.files().change(&root, &change).await.map(|_| ())
            }
            Err(error) if error.kind() == atoll_model::ErrorKind::Exists => Ok(()),
            Err(error) => Err(ToolboxError::file(error)),
        }
    }

    /// The folder of a session whose shell ended by itself.
    pub(super) async fn ended(&self, name: &str) -> Result<Option<String>, ToolboxError> {
        let root = self.root();
        for (key, _) in self.folders().await? {
            let known = self.bytes(&format!("{root}/{key}/name"), NAME_BYTES).await?;
            if known.as_deref() == Some(name.as_bytes())
                && self.bytes(&format!("{root}/{key}/ended"), NAME_BYTES).await?.is_some()
            {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Removes the folders of sessions whose shells were ended from outside, as by a stop of the sandbox, and that of
    /// an ended session whose name a new one takes. A session that is being made has a folder before it has a shell, so
    /// a new folder is kept.
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with file times and ids that the sandbox made, on the same wall clock"
    )]
    pub(super) async fn sweep(&self, name: &str) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
        let Ok(folders) = self.folders().await else { return };
        // Listed after the folders: a session that has a shell by then is alive.
        let Ok(living) = self.list().await else { return };
        let root = self.root();
        for (key, modified_at_ms) in folders {
            if living.iter().any(|session| session.key == key) {
                continue;
            }
            let ended = self.bytes(&format!("{root}/{key}/ended"), NAME_BYTES).await;
            let is_left = match ended {
                Ok(None) => now_ms.saturating_sub(modified_at_ms) > FRESH_MS,
                Ok(Some(_)) => {
                    let known = self.bytes(&format!("{root}/{key}/name"), NAME_BYTES).await;
                    known.is_ok_and(|known| known.as_deref() == Some(name.as_bytes()))
                }
                Err(_) => false,
            };
            if is_left {
                // Another user's leftovers can only be removed by that user.
                let _ = self.forget(&key).await;
            }
        }
    }

    pub(super) async fn forget(&self, key: &str) -> Result<(), ToolboxError> {
        match self
            .toolbox
            .sandbox
            .remove(format!("{}/{key}", self.root()).as_bytes(), self.toolbox.user())
            .await
        {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(ToolboxError::file),
        }
    }

    /// The names of the folders, and when each was last changed.
    async fn folders(&self) -> Result<Vec<(String, i64)>, ToolboxError> {
        let (entries, _) =
            match self.toolbox.sandbox.list_dir(self.root().as_bytes(), self.toolbox.user(), 1).await {
                Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => return Ok(Vec::new()),
                listed => listed.map_err(ToolboxError::file)?,
            };
        let folders = entries.into_iter().filter(|entry| entry.kind == EntryKind::Directory);
        let named =
            folders.filter_map(|entry| Some((String::from_utf8(entry.name).ok()?, entry.modified_at_ms)));
        Ok(named.filter(|(name, _)| is_key(name)).collect())
    }
}
