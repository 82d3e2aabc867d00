//! File operations for users: lists and trees, search, edits, copies, parts of a file. They use the agent's own
//! operations, so they work in a sandbox without a shell and without grep.

mod edit;
mod listing;
mod read;
mod search;

use atoll_agentapi::Entry;
use bytes::Bytes;
use futures::{Stream, StreamExt};

pub use edit::{Edit, Edited, Replaced};
pub use listing::{ListOptions, Listing, Node, Tree};
pub use read::{FileBody, FilePart};
pub use search::{Grep, Match, SearchResults};

use crate::{Toolbox, ToolboxError};

/// LIMIT: the kernel's limit of a path.
const PATH_MAX: usize = 4_095;

/// Files of one sandbox. Paths are absolute, below `~`, or relative to the user's home.
#[derive(Debug)]
pub struct Files<'a> {
    toolbox: &'a Toolbox,
}

/// Options for making a directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct MakeDir {
    /// Also make missing parents; an existing directory is no error then.
    pub parents: bool,
    /// Permission bits; default 0755.
    pub mode: Option<u32>,
}

/// Options for copying.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyHow {
    /// Also copy directories, with everything below them.
    pub recursive: bool,
    /// Replace an existing destination.
    pub overwrite: bool,
}

/// New mode, owner and group; names or numbers in the sandbox. `None`: unchanged.
#[derive(Debug, Clone, Default)]
pub struct PermissionChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// A user.
    pub owner: Option<String>,
    /// A group.
    pub group: Option<String>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(toolbox: &'a Toolbox) -> Self {
        Self { toolbox }
    }

    /// Describes a path.
    pub async fn stat(&self, path: &str) -> Result<Entry, ToolboxError> {
        check(path)?;
        self.toolbox.sandbox.stat(path.as_bytes(), self.user()).await.map_err(ToolboxError::file)
    }

    /// Whether a path exists. A path that may not be inspected is an error.
    pub async fn exists(&self, path: &str) -> Result<bool, ToolboxError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => Ok(false),
            // A path below a file does not exist.
            Err(error) if error.to_string().contains("not a directory") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory.
    pub async fn make_dir(&self, path: &str, how: MakeDir) -> Result<Entry, ToolboxError> {
        check(path)?;
        if !how.parents {
            let parent = self.stat(parent_of(path)).await?;
            let found = self.real_kind(&parent).await?;
            if found != atoll_agentapi::EntryKind::Directory {
                return Err(ToolboxError::Invalid(format!("path '{}' is not a directory", parent_of(path))));
            }
        }
        match self
            .toolbox
            .sandbox
            .make_dir(path.as_bytes(), self.user(), how.mode)
            .await
            .map_err(ToolboxError::file)
        {
            Err(error) if how.parents && error.kind() == atoll_model::ErrorKind::Exists => {
                self.stat(path).await
            }
            made => made,
        }
    }

    /// Removes a file or link, or (`recursive`) a directory with everything below it. An empty directory needs no
    /// `recursive`.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<(), ToolboxError> {
        let entry = self.stat(path).await?;
        if !recursive && entry.kind == atoll_agentapi::EntryKind::Directory {
            let (below, _) = self
                .toolbox
                .sandbox
                .list_dir(path.as_bytes(), self.user(), 1)
                .await
                .map_err(ToolboxError::file)?;
            if !below.is_empty() {
                let message = format!("path '{path}' is a directory and not empty; remove it recursively");
                return Err(ToolboxError::Invalid(message));
            }
        }
        self.toolbox.sandbox.remove(path.as_bytes(), self.user()).await.map_err(ToolboxError::file)
    }

    /// Writes a whole file; missing parents are made.
    pub async fn write(
        &self,
        path: &str,
        mode: Option<u32>,
        content: impl Into<Bytes>,
    ) -> Result<(), ToolboxError> {
        check(path)?;
        self.toolbox
            .sandbox
            .write_bytes(path.as_bytes(), self.user(), mode, content.into())
            .await
            .map_err(ToolboxError::file)
    }

    /// Writes a whole file from a stream; missing parents are made, and the file appears when every byte has arrived.
    pub async fn write_stream(
        &self,
        path: &str,
        mode: Option<u32>,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ToolboxError> {
        check(path)?;
        let written =
            self.toolbox.sandbox.write_file(path.as_bytes(), self.user(), mode, None, content.boxed()).await;
        written.map_err(ToolboxError::file)
    }

    /// Renames. Without `overwrite` the destination must not exist.
    pub async fn move_to(&self, from: &str, to: &str, overwrite: bool) -> Result<Entry, ToolboxError> {
        check(from)?;
        check(to)?;
        let (sandbox, user) = (&self.toolbox.sandbox, self.user());
        let moved = if overwrite {
            sandbox.move_entry(from.as_bytes(), to.as_bytes(), user).await
        } else {
            sandbox.move_new(from.as_bytes(), to.as_bytes(), user).await
        };
        moved.map_err(ToolboxError::file)
    }

    /// Copies.
    pub async fn copy(&self, from: &str, to: &str, how: CopyHow) -> Result<Entry, ToolboxError> {
        check(from)?;
        check(to)?;
        let CopyHow { recursive, overwrite } = how;
        let copied = self
            .toolbox
            .sandbox
            .copy(from.as_bytes(), to.as_bytes(), self.user(), recursive, overwrite)
            .await;
        copied.map_err(ToolboxError::file)
    }

    /// Changes mode, owner or group; at least one of them.
    pub async fn change(&self, path: &str, change: &PermissionChange) -> Result<Entry, ToolboxError> {
        check(path)?;
        if change.mode.is_none() && change.owner.is_none() && change.group.is_none() {
            return Err(ToolboxError::Invalid("mode, owner or group must be given".into()));
        }
        let PermissionChange { mode, owner, group } = change;
        let changed = self
            .toolbox
            .sandbox
            .change(path.as_bytes(), self.user(), *mode, owner.as_deref(), group.as_deref())
            .await;
        changed.map_err(ToolboxError::file)
    }

    fn user(&self) -> Option<&str> {
        self.toolbox.user()
    }

    /// The type of an entry after following a symbolic link. Listing a directory is the agent's own check for one.
    async fn real_kind(&self, entry: &Entry) -> Result<atoll_agentapi::EntryKind, ToolboxError> {
        use atoll_agentapi::EntryKind;
        if entry.kind != EntryKind::Symlink {
            return Ok(entry.kind);
        }
        match self.toolbox.sandbox.list_dir(&entry.path, self.user(), 1).await {
            Ok(_) => Ok(EntryKind::Directory),
            Err(_) => Ok(EntryKind::Other),
        }
    }
}

fn check(path: &str) -> Result<(), ToolboxError> {
    if path.is_empty() || path.len() > PATH_MAX || path.contains('\0') {
        let message = format!("path must have 1 to {PATH_MAX} bytes and contain no NUL byte");
        return Err(ToolboxError::Invalid(message));
    }
    Ok(())
}

fn parent_of(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    match trimmed.rfind('/') {
        Some(0) => "/",
        Some(cut) => &trimmed[..cut],
        None if trimmed.is_empty() => "/",
        None => "~",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_what_a_path_says() {
        assert_eq!(["/a/b/", "/a", "/", "a", "~/x/y"].map(parent_of), ["/a", "/", "/", "~", "~/x"]);
    }
}
