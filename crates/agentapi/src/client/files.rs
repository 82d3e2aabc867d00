//! Files: read, write, stat, list, make, move, remove, watch. Paths are bytes and need not be UTF-8.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

use super::liveness::Patience;
use super::rpc::{Frames, accept};
use super::transport::{BodyReader, Transport, TransportBody};
use super::{AgentClient, CALL_LIMIT, TREE_LIMIT};
use crate::error::AgentError;
use crate::proto::agent;

/// LIMIT: enough for a very large upload over a slow connection; the agent itself aborts a stalled one.
const UPLOAD_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// LIMIT: a local disk delivers within this, even under load.
pub(super) const READ_SILENCE: Duration = Duration::from_secs(60);

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    /// FIFO, socket or device: listed, never read or written.
    Other,
}

/// A file, directory or link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Last part of the path.
    pub name: Vec<u8>,
    /// Absolute path.
    pub path: Vec<u8>,
    /// Its type; symbolic links are not followed.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Owner's name in the sandbox, or the number.
    pub owner: String,
    /// Group's name in the sandbox, or the number.
    pub group: String,
    /// Unix milliseconds.
    pub modified_at_ms: i64,
    /// The target of a symbolic link.
    pub symlink_target: Option<Vec<u8>>,
    /// Metadata from the upload.
    pub metadata: BTreeMap<String, String>,
}

/// Bytes of a file from `start`; without `len` to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// The number of bytes.
    pub len: Option<u64>,
}

/// A file being read.
pub struct FileReader {
    /// Bytes to be read.
    pub len: u64,
    /// Bytes of the whole file when it was opened.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    body: BodyReader,
    left: u64,
    patience: Patience,
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReader").field("len", &self.len).field("size", &self.size).finish_non_exhaustive()
    }
}

impl FileReader {
    /// The next bytes, `None` after all `len` bytes. A file that has shrunk meanwhile is an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, AgentError>> {
        match self.patience.within("file", READ_SILENCE, self.body.chunk()).await {
            Ok(Some(chunk)) => match self.left.checked_sub(chunk.len() as u64) {
                Some(left) => {
                    self.left = left;
                    Some(Ok(chunk))
                }
                None => Some(Err(AgentError::Protocol("more bytes than announced"))),
            },
            Ok(None) if self.left == 0 => None,
            Ok(None) => Some(Err(AgentError::Protocol("the file ended early"))),
            Err(e) => Some(Err(e)),
        }
    }

    /// The bytes as a `Stream`; it ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, AgentError>> + Send + 'static {
        futures::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            let item = reader.next().await?;
            let rest = item.is_ok().then_some(reader);
            Some((item, rest))
        })
    }

    /// The whole content, if it has at most `max` bytes.
    pub async fn read_to_end(mut self, max: u64) -> Result<Vec<u8>, AgentError> {
        if self.len > max {
            return Err(AgentError::Argument("the file is larger than the limit"));
        }
        let mut whole = Vec::with_capacity(usize::try_from(self.len).unwrap_or(0).min(1 << 20));
        while let Some(chunk) = self.next().await {
            whole.extend_from_slice(&chunk?);
        }
        Ok(whole)
    }
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WatchKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
    /// Events were lost: list the directory again.
    Overflow,
}

/// One change below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchChange {
    /// Relative to the watched directory; empty for `Overflow`.
    pub name: Vec<u8>,
    /// What happened.
    pub kind: WatchKind,
}

/// Changes below a directory, from the moment it was returned.
pub struct WatchStream {
    frames: Frames,
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchStream").finish_non_exhaustive()
    }
}

impl WatchStream {
    /// The next change; `None` when the agent ended the watch. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<WatchChange, AgentError>> {
        use agent::watch_event::Kind;
        loop {
            let event = match self.frames.next::<agent::WatchEvent>().await {
                Ok(event) => event?,
                Err(e) => return Some(Err(e)),
            };
            let kind = match event.kind.as_known() {
                Some(Kind::KIND_CREATE) => WatchKind::Create,
                Some(Kind::KIND_WRITE) => WatchKind::Write,
                Some(Kind::KIND_REMOVE) => WatchKind::Remove,
                Some(Kind::KIND_RENAME) => WatchKind::Rename,
                Some(Kind::KIND_CHMOD) => WatchKind::Chmod,
                Some(Kind::KIND_OVERFLOW) => WatchKind::Overflow,
                Some(Kind::KIND_UNSPECIFIED | Kind::KIND_STARTED | Kind::KIND_KEEPALIVE) | None => continue,
            };
            return Some(Ok(WatchChange { name: event.name, kind }));
        }
    }

    /// The changes as a `Stream`; it ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<WatchChange, AgentError>> + Send + 'static {
        futures::stream::unfold(Some(self), |watch| async move {
            let mut watch = watch?;
            let item = watch.next().await?;
            let rest = item.is_ok().then_some(watch);
            Some((item, rest))
        })
    }
}

impl AgentClient {
    /// Opens a file for reading with the permissions of `user` (`None`: the default user).
    pub async fn read_file(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileReader, AgentError> {
        let mut request = self.request(Method::GET, &files_uri(path.as_ref(), user, None), None)?;
        if let Some(range) = range {
            request.headers_mut().insert(header::RANGE, range_header(range)?);
        }
        let call = async {
            let answer = self.inner.transport.send(request).await?;
            let (status, headers) = (answer.head.status, answer.head.headers.clone());
            Ok((status, headers, accept(answer).await?))
        };
        let (status, headers, body) = self.patience.within("read_file", CALL_LIMIT, call).await?;
        if range.is_some() && status != StatusCode::PARTIAL_CONTENT {
            return Err(AgentError::Protocol("the agent did not send the requested range"));
        }
        let number = |name: &str| number(&headers, name);
        let len = number("content-length").ok_or(AgentError::Protocol("a file without a length"))?;
        let mode =
            headers.get(crate::MODE_HEADER).and_then(|v| u32::from_str_radix(v.to_str().ok()?, 8).ok());
        let size = number(crate::SIZE_HEADER).unwrap_or(len);
        let (mode, patience) = (mode.unwrap_or(0o644) & 0o7777, self.patience.clone());
        Ok(FileReader { len, size, mode, body, left: len, patience })
    }

    /// Writes a whole file with the permissions of `user`: missing parents are made, and the file appears or changes
    /// only when every byte has arrived. `mode`: permission bits; `None` keeps those of an existing file, else 0644.
    /// `len`: the size of `content`, if known; fewer bytes are a broken upload, and more are never sent.
    pub async fn write_file<S>(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: S,
    ) -> Result<(), AgentError>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let request = self.request(Method::POST, &files_uri(path.as_ref(), user, mode), None)?;
        upload(&self.inner.transport, &self.patience, request, len, content).await
    }

    /// Writes a whole file from memory.
    pub async fn write_bytes(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        mode: Option<u32>,
        content: impl Into<Bytes>,
    ) -> Result<(), AgentError> {
        let content = content.into();
        let len = Some(content.len() as u64);
        self.write_file(path, user, mode, len, futures::stream::once(async move { Ok(content) })).await
    }

    /// Describes a path.
    pub async fn stat(&self, path: impl AsRef<[u8]>, user: Option<&str>) -> Result<Entry, AgentError> {
        let request =
            agent::StatRequest { path: path.as_ref().to_vec(), user: name(user), ..Default::default() };
        entry_of(self.unary("/atoll.agent.v1.Agent/Stat", &request).await?)
    }

    /// The content of a directory, sorted, `depth` levels deep (0 means 1). `true`: the list was truncated at the
    /// agent's limit.
    pub async fn list_dir(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        depth: u32,
    ) -> Result<(Vec<Entry>, bool), AgentError> {
        let request = agent::ListDirRequest {
            path: path.as_ref().to_vec(),
            user: name(user),
            depth,
            ..Default::default()
        };
        let answer: agent::ListDirResponse =
            self.unary_within(TREE_LIMIT, "/atoll.agent.v1.Agent/ListDir", &request).await?;
        Ok((answer.entries.into_iter().map(Entry::from).collect(), answer.truncated))
    }

    /// Makes a directory and its parents. An existing one is `already_exists`.
    pub async fn make_dir(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<Entry, AgentError> {
        let request = agent::MakeDirRequest {
            path: path.as_ref().to_vec(),
            user: name(user),
            mode: mode.unwrap_or(0),
            ..Default::default()
        };
        entry_of(self.unary("/atoll.agent.v1.Agent/MakeDir", &request).await?)
    }

    /// Renames; missing parents of the destination are made and an existing file is replaced.
    pub async fn move_entry(
        &self,
        source: impl AsRef<[u8]>,
        destination: impl AsRef<[u8]>,
        user: Option<&str>,
    ) -> Result<Entry, AgentError> {
        let request = agent::MoveRequest {
            source: source.as_ref().to_vec(),
            destination: destination.as_ref().to_vec(),
            user: name(user),
            ..Default::default()
        };
        entry_of(self.unary_within(TREE_LIMIT, "/atoll.agent.v1.Agent/Move", &request).await?)
    }

    /// Removes a path and everything below it. A missing path is `not_found`.
    pub async fn remove(&self, path: impl AsRef<[u8]>, user: Option<&str>) -> Result<(), AgentError> {
        let request =
            agent::RemoveRequest { path: path.as_ref().to_vec(), user: name(user), ..Default::default() };
        self.unary_within(TREE_LIMIT, "/atoll.agent.v1.Agent/Remove", &request)
            .await
            .map(|_: agent::RemoveResponse| ())
    }

    /// Watches a directory; the watch is active when this returns.
    pub async fn watch(
        &self,
        path: impl AsRef<[u8]>,
        user: Option<&str>,
        recursive: bool,
    ) -> Result<WatchStream, AgentError> {
        let request = agent::WatchRequest {
            path: path.as_ref().to_vec(),
            user: name(user),
            recursive,
            ..Default::default()
        };
        let mut frames = self.stream("/atoll.agent.v1.Agent/Watch", &request).await?;
        let first = self.patience.within("watch", CALL_LIMIT, frames.next::<agent::WatchEvent>()).await?;
        match first.and_then(|event| event.kind.as_known()) {
            Some(agent::watch_event::Kind::KIND_STARTED) => Ok(WatchStream { frames }),
            _ => Err(AgentError::Protocol("a watch did not say that it started")),
        }
    }
}

/// Sends a file as the body of a request.
pub(super) async fn upload<S>(
    transport: &Arc<Transport>,
    patience: &Patience,
    mut request: Request<TransportBody>,
    len: Option<u64>,
    content: S,
) -> Result<(), AgentError>
where
    S: Stream<Item = io::Result<Bytes>> + Send + 'static,
{
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(len) = len {
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    }
    *request.body_mut() = StreamBody::new(content.map(|chunk| chunk.map(Frame::data))).boxed_unsync();
    let call = async {
        let mut answer = transport.send(request).await?;
        if !answer.head.status.is_success() {
            answer.body.forsake();
        }
        accept(answer).await?.read_all(1 << 20).await
    };
    patience.within("write_file", UPLOAD_LIMIT, call).await.map(|_| ())
}

pub(super) fn range_header(range: Range) -> Result<HeaderValue, AgentError> {
    if range.len == Some(0) {
        return Err(AgentError::Argument("an empty range is not allowed"));
    }
    let end = range.len.map(|len| range.start.saturating_add(len).saturating_sub(1).to_string());
    let text = format!("bytes={}-{}", range.start, end.unwrap_or_default());
    HeaderValue::try_from(text).map_err(|_| AgentError::Argument("the range cannot be sent"))
}

fn name(user: Option<&str>) -> String {
    user.unwrap_or_default().to_owned()
}

pub(super) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

pub(super) fn files_uri(path: &[u8], user: Option<&str>, mode: Option<u32>) -> String {
    let mut uri = String::from("/files?path=");
    percent(&mut uri, path);
    if let Some(user) = user {
        uri.push_str("&username=");
        percent(&mut uri, user.as_bytes());
    }
    if let Some(mode) = mode {
        let _ = write!(uri, "&mode={:o}", mode & 0o7777);
    }
    uri
}

pub(super) fn percent(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

pub(super) fn entry_of(answer: agent::StatResponse) -> Result<Entry, AgentError> {
    let entry = answer.entry.into_option().ok_or(AgentError::Protocol("an answer without its entry"))?;
    Ok(Entry::from(entry))
}

impl From<agent::Entry> for Entry {
    fn from(entry: agent::Entry) -> Self {
        use agent::EntryType;
        let kind = match entry.r#type.as_known() {
            Some(EntryType::ENTRY_TYPE_FILE) => EntryKind::File,
            Some(EntryType::ENTRY_TYPE_DIRECTORY) => EntryKind::Directory,
            Some(EntryType::ENTRY_TYPE_SYMLINK) => EntryKind::Symlink,
            Some(EntryType::ENTRY_TYPE_OTHER | EntryType::ENTRY_TYPE_UNSPECIFIED) | None => EntryKind::Other,
        };
        Self {
            name: entry.name,
            path: entry.path,
            kind,
            size: entry.size,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            owner: entry.owner,
            group: entry.group,
            modified_at_ms: entry.modified_at_ms,
            symlink_target: (kind == EntryKind::Symlink).then_some(entry.symlink_target),
            metadata: entry.metadata.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_carry_any_byte_of_a_path() {
        assert_eq!(
            files_uri(b"/a b\xff&=%", Some("x"), Some(0o600)),
            "/files?path=/a%20b%FF%26%3D%25&username=x&mode=600"
        );
    }
}
