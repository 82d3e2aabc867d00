//! Files: what the protocol offers, made of the provider's own calls.

use atoll_agentapi::{Entry, EntryKind, RpcCode, UploadStream};
use futures::TryStreamExt;

use crate::error::SessionRefusal;
use crate::state::AdapterState;

/// LIMIT: entries of a list; a longer one is cut.
const LIST_MAX: usize = 10_000;

impl AdapterState {
    pub(crate) async fn stat(&self, path: &str, user: Option<&str>) -> Result<Entry, SessionRefusal> {
        Ok(self.session()?.stat(&self.target, path, user).await?)
    }

    /// The entries of a folder, `depth` levels deep and sorted, and whether the list was cut.
    pub(crate) async fn list(
        &self,
        path: &str,
        user: Option<&str>,
        depth: u32,
    ) -> Result<(Vec<Entry>, bool), SessionRefusal> {
        let session = self.session()?;
        let (mut found, mut level) = (Vec::new(), vec![path.to_owned()]);
        for _ in 0..depth.max(1) {
            let mut below = Vec::new();
            for folder in std::mem::take(&mut level) {
                for entry in session.list_folder(&self.target, &folder, user).await? {
                    if found.len() >= LIST_MAX {
                        return Ok((sorted(found), true));
                    }
                    if let (EntryKind::Directory, Ok(path)) = (entry.kind, str::from_utf8(&entry.path)) {
                        below.push(path.to_owned());
                    }
                    found.push(entry);
                }
            }
            level = below;
            if level.is_empty() {
                break;
            }
        }
        Ok((sorted(found), false))
    }

    pub(crate) async fn make_dir(
        &self,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<Entry, SessionRefusal> {
        self.session()?.make_folder(&self.target, path, user, mode).await?;
        self.stat(path, user).await
    }

    /// Renames; with `keep` an existing entry at the destination is refused.
    pub(crate) async fn rename(
        &self,
        from: &str,
        to: &str,
        user: Option<&str>,
        keep: bool,
    ) -> Result<Entry, SessionRefusal> {
        if keep {
            self.refuse_existing(to, user).await?;
        }
        self.session()?.rename(&self.target, from, to, user).await?;
        self.stat(to, user).await
    }

    pub(crate) async fn remove(
        &self,
        path: &str,
        user: Option<&str>,
        missing_ok: bool,
    ) -> Result<(), SessionRefusal> {
        let removed = self.session()?.remove(&self.target, path, user).await.map_err(SessionRefusal::from);
        match removed {
            Err(refusal) if missing_ok && refusal.code == RpcCode::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Copies a file, or with `recursive` a folder. Links are left out: the provider's calls cannot make one.
    pub(crate) async fn copy(
        &self,
        from: &str,
        to: &str,
        user: Option<&str>,
        recursive: bool,
        overwrite: bool,
    ) -> Result<Entry, SessionRefusal> {
        if !overwrite {
            self.refuse_existing(to, user).await?;
        }
        let source = self.stat(from, user).await?;
        match source.kind {
            EntryKind::File => self.copy_file(from, to, user, source.mode).await?,
            EntryKind::Directory if !recursive => {
                return Err(SessionRefusal::invalid(format!("{from} is a folder")));
            }
            EntryKind::Directory if format!("{to}/").starts_with(&format!("{from}/")) => {
                return Err(SessionRefusal::invalid("a folder cannot be copied into itself"));
            }
            EntryKind::Directory => self.copy_folder(from, to, user).await?,
            EntryKind::Symlink | EntryKind::Other => {
                return Err(SessionRefusal::invalid(format!("{from} is neither a file nor a folder")));
            }
        }
        self.stat(to, user).await
    }

    async fn copy_folder(&self, from: &str, to: &str, user: Option<&str>) -> Result<(), SessionRefusal> {
        self.ensure_folder(to, user).await?;
        let (entries, is_cut) = self.list(from, user, u32::MAX).await?;
        if is_cut {
            let message = format!("{from} has more than {LIST_MAX} entries");
            return Err(SessionRefusal::new(RpcCode::FailedPrecondition, message));
        }
        for entry in entries {
            let Ok(path) = str::from_utf8(&entry.path) else { continue };
            let copy = format!("{to}{}", path.strip_prefix(from).unwrap_or_default());
            match entry.kind {
                EntryKind::File => self.copy_file(path, &copy, user, entry.mode).await?,
                EntryKind::Directory => self.ensure_folder(&copy, user).await?,
                EntryKind::Symlink | EntryKind::Other => {}
            }
        }
        Ok(())
    }

    /// Makes a folder that may be there already.
    pub(crate) async fn ensure_folder(&self, path: &str, user: Option<&str>) -> Result<(), SessionRefusal> {
        match self.make_dir(path, user, None).await {
            Err(refusal) if refusal.code != RpcCode::AlreadyExists => Err(refusal),
            _ => Ok(()),
        }
    }

    async fn copy_file(
        &self,
        from: &str,
        to: &str,
        user: Option<&str>,
        mode: u32,
    ) -> Result<(), SessionRefusal> {
        let session = self.session()?;
        let content = session.read_file(&self.target, from, user, None).await?;
        let (len, bytes) = (content.size, content.stream.map_err(std::io::Error::other));
        self.write(to, user, Some(mode), Some(len), Box::pin(bytes)).await
    }

    pub(crate) async fn write(
        &self,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: UploadStream,
    ) -> Result<(), SessionRefusal> {
        Ok(self.session()?.write_file(&self.target, path, user, mode, len, content).await?)
    }

    async fn refuse_existing(&self, path: &str, user: Option<&str>) -> Result<(), SessionRefusal> {
        match self.stat(path, user).await {
            Ok(_) => Err(SessionRefusal::new(RpcCode::AlreadyExists, format!("{path} exists already"))),
            Err(refusal) if refusal.code == RpcCode::NotFound => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    entries
}
