//! Files inside a sandbox: a thin layer over its agent, with the errors of the service.

use atoll_agentapi::{Pack, PackHoles, PackLayout, Range, Session, Unpack, Unpacked, WatchKind, WatchStream};
use atoll_model::{Code, Principal};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::agent::{AgentOperation, refusal};
use crate::follow::WayBack;
use crate::sandboxes::Sandboxes;
use crate::{ByteRange, ChangeKind, Entry, EntryKind, FileBody, FileChange, ServiceError, WriteFile};

/// LIMIT: the kernel's maximum for a path.
const PATH_MAX: usize = 4_095;
/// LIMIT: deep enough for any project; the agent cuts long lists.
const DEPTH_MAX: u32 = 64;

impl Sandboxes {
    /// Reads a file or a part of it.
    pub async fn read_file(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        range: Option<ByteRange>,
    ) -> Result<FileBody, ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        let range = match range {
            None => None,
            Some(ByteRange::From(start)) => Some(Range { start, len: None }),
            Some(ByteRange::Within(first, last)) if last >= first => {
                Some(Range { start: first, len: Some((last - first).saturating_add(1)) })
            }
            Some(ByteRange::Within(..)) => {
                return Err(ServiceError::new(Code::InvalidRequest, "the range ends before it starts"));
            }
            Some(ByteRange::Last(count)) => {
                let size = session
                    .stat(path.as_bytes(), None)
                    .await
                    .map_err(|e| refusal(AgentOperation::File, e))?
                    .size;
                Some(Range { start: size.saturating_sub(count), len: None })
            }
        };
        let reader = session
            .read_file(path.as_bytes(), None, range)
            .await
            .map_err(|e| refusal(AgentOperation::File, e))?;
        Ok(FileBody {
            size: reader.size,
            offset: range.map_or(0, |range| range.start),
            len: reader.len,
            mode: Some(reader.mode),
            stream: session.during(
                reader.into_stream().map(|chunk| chunk.map_err(|e| refusal(AgentOperation::File, e))),
            ),
        })
    }

    /// Writes a file completely or not at all; missing parents are made.
    pub async fn write_file(
        &self,
        who: &Principal,
        ident: &str,
        file: WriteFile,
        body: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<Entry, ServiceError> {
        check_path(&file.path)?;
        let session = self.session(who, ident).await?;
        let session = if file.as_root { session.with_root_files() } else { session };
        let user = file.user.as_deref();
        session
            .write_file(file.path.as_bytes(), user, file.mode, file.len, body)
            .await
            .map_err(|e| refusal(AgentOperation::File, e))?;
        let written =
            session.stat(file.path.as_bytes(), user).await.map_err(|e| refusal(AgentOperation::File, e))?;
        Ok(entry(written))
    }

    /// Unpacks a tar stream below a directory, which is made if missing. Links stay links.
    pub async fn write_archive(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        body: BoxStream<'static, std::io::Result<Bytes>>,
    ) -> Result<Unpacked, ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        session.unpack(&Unpack::below(path), None, body).await.map_err(|e| refusal(AgentOperation::File, e))
    }

    /// Reads a file or a tree as a tar stream whose entries begin with the last part of its path.
    pub async fn read_archive(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
    ) -> Result<BoxStream<'static, Result<Bytes, ServiceError>>, ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        let ask = Pack {
            sources: vec![path.as_bytes().to_vec()],
            globs: false,
            layout: PackLayout::Named,
            exclude: Vec::new(),
            holes: PackHoles::Filled,
        };
        let reader = session.pack(&ask, None).await.map_err(|e| refusal(AgentOperation::File, e))?;
        Ok(session
            .during(reader.into_stream().map(|chunk| chunk.map_err(|e| refusal(AgentOperation::File, e)))))
    }

    /// The entry at a path.
    pub async fn stat(&self, who: &Principal, ident: &str, path: &str) -> Result<Entry, ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        session.stat(path.as_bytes(), None).await.map(entry).map_err(|e| refusal(AgentOperation::File, e))
    }

    /// The entries of a directory, and whether the list was cut.
    pub async fn list_dir(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        depth: u32,
    ) -> Result<(Vec<Entry>, bool), ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        let found = session.list_dir(path.as_bytes(), None, depth.clamp(1, DEPTH_MAX)).await;
        let (entries, cut) = found.map_err(|e| refusal(AgentOperation::File, e))?;
        Ok((entries.into_iter().map(entry).collect(), cut))
    }

    /// Makes a directory and its parents.
    pub async fn make_dir(&self, who: &Principal, ident: &str, path: &str) -> Result<Entry, ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        session
            .make_dir(path.as_bytes(), None, None)
            .await
            .map(entry)
            .map_err(|e| refusal(AgentOperation::File, e))
    }

    /// Renames a file or directory.
    pub async fn move_path(
        &self,
        who: &Principal,
        ident: &str,
        from: &str,
        to: &str,
    ) -> Result<Entry, ServiceError> {
        check_path(from)?;
        check_path(to)?;
        let session = self.session(who, ident).await?;
        session
            .move_entry(from.as_bytes(), to.as_bytes(), None)
            .await
            .map(entry)
            .map_err(|e| refusal(AgentOperation::File, e))
    }

    /// Removes a file, or a directory with its content.
    pub async fn remove_path(&self, who: &Principal, ident: &str, path: &str) -> Result<(), ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        session.remove(path.as_bytes(), None).await.map_err(|e| refusal(AgentOperation::File, e))
    }

    /// Changes below a directory, from now on.
    pub async fn watch(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        recursive: bool,
    ) -> Result<BoxStream<'static, Result<FileChange, ServiceError>>, ServiceError> {
        check_path(path)?;
        let session = self.session(who, ident).await?;
        let stream = session
            .watch(path.as_bytes(), None, recursive)
            .await
            .map_err(|e| refusal(AgentOperation::File, e))?;
        let back = WayBack::new(session.handle.clone());
        let watch = DurableWatch { stream: Some(stream), back, path: path.to_owned(), recursive };
        let changes =
            futures::stream::unfold(watch, |mut watch| async move { Some((watch.next().await?, watch)) });
        Ok(session.during(changes))
    }
}

/// A watch that outlives its connection: after a restore of the sandbox's memory it is started again.
struct DurableWatch {
    /// `None` after an error.
    stream: Option<WatchStream>,
    back: WayBack,
    path: String,
    recursive: bool,
}

impl DurableWatch {
    async fn next(&mut self) -> Option<Result<FileChange, ServiceError>> {
        let error = match self.stream.as_mut()?.next().await? {
            Ok(change) => return Some(Ok(FileChange { kind: kind(change.kind), name: change.name })),
            Err(error) => error,
        };
        self.stream = None;
        let Some(agent) = self.back.after(&error).await else {
            return Some(Err(refusal(AgentOperation::File, error)));
        };
        match agent.watch(&self.path, None, self.recursive).await {
            Ok(stream) => {
                self.stream = Some(stream);
                // Changes between the two connections are not known.
                Some(Ok(FileChange { kind: ChangeKind::Overflow, name: Vec::new() }))
            }
            Err(error) => Some(Err(refusal(AgentOperation::File, error))),
        }
    }
}

fn check_path(path: &str) -> Result<(), ServiceError> {
    if path.is_empty() || path.len() > PATH_MAX || path.contains('\0') {
        let message = format!("path must have 1 to {PATH_MAX} bytes and contain no NUL byte");
        return Err(ServiceError::new(Code::InvalidArgument, message));
    }
    Ok(())
}

fn entry(entry: atoll_agentapi::Entry) -> Entry {
    Entry {
        name: entry.name,
        path: entry.path,
        kind: match entry.kind {
            atoll_agentapi::EntryKind::File => EntryKind::File,
            atoll_agentapi::EntryKind::Directory => EntryKind::Directory,
            atoll_agentapi::EntryKind::Symlink => EntryKind::Symlink,
            atoll_agentapi::EntryKind::Other => EntryKind::Other,
        },
        size: entry.size,
        mode: entry.mode & 0o7777,
        owner: entry.owner,
        group: entry.group,
        modified_at_ms: entry.modified_at_ms,
        symlink_target: entry.symlink_target,
    }
}

const fn kind(kind: WatchKind) -> ChangeKind {
    match kind {
        WatchKind::Create => ChangeKind::Create,
        WatchKind::Write => ChangeKind::Write,
        WatchKind::Remove => ChangeKind::Remove,
        WatchKind::Rename => ChangeKind::Rename,
        WatchKind::Chmod => ChangeKind::Chmod,
        WatchKind::Overflow => ChangeKind::Overflow,
    }
}
