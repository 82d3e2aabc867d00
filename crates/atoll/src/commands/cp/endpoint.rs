//! One end of a copy on the server: the files of a sandbox, or of a volume without one. Both have the same operations,
//! so that copying is written once.

use atoll_client::{
    files::{Entry, EntryKind, ListQuery, MkdirBody, PathQuery, WriteQuery},
    volume_files::{EntriesQuery, FolderBody, VolumeEntry, VolumePathQuery, VolumeWriteQuery},
};

use crate::{client::Client, failure::Failure};

/// The kind of an end.
pub(in crate::commands) enum EndpointKind<'a> {
    Sandbox(&'a str),
    Volume { name: &'a str, uid: Option<u32>, gid: Option<u32> },
}

pub(in crate::commands) struct SandboxEnd<'a> {
    pub(in crate::commands) client: &'a Client,
    pub(in crate::commands) home: EndpointKind<'a>,
}

impl<'a> SandboxEnd<'a> {
    pub(super) fn sandbox(client: &'a Client, sandbox: &'a str) -> Self {
        Self { client, home: EndpointKind::Sandbox(sandbox) }
    }

    /// A relative path is resolved against the working directory; in a volume, against its top.
    pub(super) async fn absolute(&self, path: &str) -> Result<String, Failure> {
        if path.starts_with('/') {
            return Ok(path.to_owned());
        }
        match self.home {
            EndpointKind::Volume { .. } => Ok(format!("/{path}")),
            EndpointKind::Sandbox(sandbox) => {
                let workdir = self.client.sandbox(sandbox).await?.workdir.clone();
                let rest = path.strip_prefix("~/").unwrap_or(path);
                // The working directory of a sandbox that names none is its home folder.
                let folder = if workdir.is_empty() { self.home_folder(sandbox).await? } else { workdir };
                Ok(format!("{}/{rest}", folder.trim_end_matches('/')))
            }
        }
    }

    async fn home_folder(&self, sandbox: &str) -> Result<String, Failure> {
        let found = self.client.stat_file(sandbox, &PathQuery { path: ".".to_owned() }).await?;
        match found.path.as_str() {
            path if path.starts_with('/') => Ok(path.to_owned()),
            _ => Err(Failure::new("invalid_argument", "the home folder of the sandbox is not known")
                .hint("use an absolute path")),
        }
    }

    pub(super) async fn stat(&self, path: &str) -> Result<CopyEntry, Failure> {
        match self.home {
            EndpointKind::Sandbox(sandbox) => {
                let query = PathQuery { path: path.to_owned() };
                Ok(self.client.stat_file(sandbox, &query).await?.into_typed().into())
            }
            EndpointKind::Volume { name, .. } => {
                let query = EntriesQuery { path: Some(path.to_owned()), depth: Some(0) };
                let found = self.client.volume_entries(name, &query).await?.into_typed();
                found.items.into_iter().next().map(Into::into).ok_or_else(|| {
                    Failure::new("file_not_found", format!("there is no {path} in volume {name}"))
                })
            }
        }
    }

    /// The content of a folder, one level deep, and whether the list was truncated.
    pub(in crate::commands) async fn list(&self, path: &str) -> Result<(Vec<CopyEntry>, bool), Failure> {
        match self.home {
            EndpointKind::Sandbox(sandbox) => {
                let query = ListQuery { path: path.to_owned(), depth: Some(1) };
                let found = self.client.list_files(sandbox, &query).await?.into_typed();
                Ok((found.items.into_iter().map(Into::into).collect(), found.truncated))
            }
            EndpointKind::Volume { name, .. } => {
                let query = EntriesQuery { path: Some(path.to_owned()), depth: Some(1) };
                let found = self.client.volume_entries(name, &query).await?.into_typed();
                Ok((found.items.into_iter().map(Into::into).collect(), found.truncated))
            }
        }
    }

    pub(super) async fn make_folder(&self, path: &str) -> Result<(), Failure> {
        let path = path.to_owned();
        match self.home {
            EndpointKind::Sandbox(sandbox) => {
                self.client.make_directory(sandbox, &MkdirBody { path }).await.map(drop)
            }
            EndpointKind::Volume { name, uid, gid } => {
                let body = FolderBody { path, uid, gid, mode: None };
                self.client.make_volume_folder(name, &body).await.map(drop)
            }
        }
    }

    /// The destination of a file `name`: inside `path` if that is a directory, else `path` itself.
    pub(super) async fn target(&self, path: &str, name: &str) -> Result<String, Failure> {
        let path = self.absolute(path).await?;
        let into = || format!("{}/{name}", path.trim_end_matches('/'));
        if path.ends_with('/') {
            return Ok(into());
        }
        match self.stat(&path).await {
            Ok(entry) if entry.kind == EntryKind::Directory => Ok(into()),
            Ok(_) => Ok(path),
            Err(failure) if failure.is("file_not_found") => Ok(path),
            Err(failure) => Err(failure),
        }
    }

    /// Whether it accepts a directory as one tar stream.
    pub(super) const fn takes_archives(&self) -> bool {
        matches!(self.home, EndpointKind::Sandbox(_))
    }

    /// Unpacks a tar stream below a directory of a sandbox.
    pub(super) async fn write_archive(&self, path: &str, body: reqwest::Body) -> Result<(), Failure> {
        match self.home {
            EndpointKind::Sandbox(sandbox) => {
                let query = PathQuery { path: path.to_owned() };
                self.client.write_archive(sandbox, &query, body).await.map(drop)
            }
            EndpointKind::Volume { .. } => Err(Failure::new("internal", "volumes do not support archives")),
        }
    }

    pub(super) async fn read(&self, path: &str) -> Result<reqwest::Response, Failure> {
        let path = path.to_owned();
        match self.home {
            EndpointKind::Sandbox(sandbox) => self.client.read_file(sandbox, &PathQuery { path }).await,
            EndpointKind::Volume { name, .. } => {
                self.client.read_volume_file(name, &VolumePathQuery { path }).await
            }
        }
    }

    pub(super) async fn write(
        &self,
        path: &str,
        mode: Option<u32>,
        body: reqwest::Body,
    ) -> Result<(), Failure> {
        let (path, mode) = (path.to_owned(), mode.map(|mode| format!("{mode:o}")));
        match self.home {
            EndpointKind::Sandbox(sandbox) => {
                let query = WriteQuery { path, mode, user: None };
                self.client.write_file(sandbox, &query, body).await.map(drop)
            }
            EndpointKind::Volume { name, uid, gid } => {
                let query = VolumeWriteQuery { path, uid, gid, mode };
                self.client.write_volume_file(name, &query, body).await.map(drop)
            }
        }
    }
}

/// The properties of an entry that copying needs.
#[derive(Debug, Clone)]
pub(in crate::commands) struct CopyEntry {
    pub(super) name: String,
    /// Only if the name is not UTF-8.
    pub(super) name_base64: Option<String>,
    pub(super) kind: EntryKind,
    pub(super) symlink_target: Option<String>,
    pub(super) mode: String,
    /// Bytes, including holes.
    pub(super) size: Option<u64>,
}

impl CopyEntry {
    /// Without the set-id bits: files from a sandbox must not run as another user.
    pub(super) fn permissions(&self) -> Option<u32> {
        u32::from_str_radix(&self.mode, 8).ok().map(|bits| bits & 0o777)
    }
}

impl From<Entry> for CopyEntry {
    fn from(entry: Entry) -> Self {
        let Entry { name, name_base64, kind, symlink_target, mode, size, .. } = entry;
        Self { name, name_base64, kind, symlink_target, mode, size: Some(size) }
    }
}

impl From<VolumeEntry> for CopyEntry {
    fn from(entry: VolumeEntry) -> Self {
        let VolumeEntry { name, kind, symlink_target, mode, size, .. } = entry;
        Self { name, name_base64: None, kind, symlink_target, mode, size: Some(size) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with a name.
    pub(in crate::commands::cp) fn entry(name: &str) -> CopyEntry {
        CopyEntry {
            name: name.to_owned(),
            name_base64: None,
            kind: EntryKind::File,
            symlink_target: None,
            mode: "0644".to_owned(),
            size: Some(0),
        }
    }

    #[test]
    fn set_id_bits_do_not_travel() {
        assert_eq!(CopyEntry { mode: "4755".to_owned(), ..entry("a") }.permissions(), Some(0o755));
        assert_eq!(CopyEntry { mode: "?".to_owned(), ..entry("a") }.permissions(), None);
    }
}
