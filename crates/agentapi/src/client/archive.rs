//! Trees as tar streams: into the sandbox (`unpack`) and out of it (`pack`), with constant memory use on both sides.
//!
//! The output of [`AgentClient::pack`] is valid input of [`AgentClient::unpack`]: a leading entry `./` means that the
//! content of a folder follows, and a single file without it is a file by itself. So `COPY --from` connects both
//! streams.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Method, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde::Deserialize;

use super::files::percent;
use super::liveness::Patience;
use super::rpc::accept;
use super::transport::{BodyReader, full};
use super::{AgentClient, TREE_LIMIT};
use crate::error::AgentError;

/// LIMIT: enough for a very large tree over a slow connection; the agent itself aborts a stalled one.
const UNPACK_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// LIMIT: a local disk delivers the next piece of a tree within this, even under load.
const PACK_SILENCE: Duration = Duration::from_secs(120);

/// The destination of a tar stream and the rules for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpack {
    /// Absolute, or relative to the user's home. Symbolic links in it are followed in the sandbox; missing folders are
    /// made (0755, with the new owner).
    pub dest: Vec<u8>,
    /// Whether `dest` must be a folder: it was written with a trailing slash, or there are several sources.
    pub into: UnpackInto,
    /// The owner of new entries.
    pub owner: UnpackOwner,
    /// Permission bits of every new file and folder; `None`: those of the tar.
    pub mode: Option<u32>,
    /// What happens if an entry exists already.
    pub rules: UnpackRules,
    /// Leading components of each name that are dropped; entries without further components are skipped.
    pub strip: u32,
}

impl Unpack {
    /// Below a folder, with the rules of `COPY`; new entries belong to the caller.
    pub fn below(dest: impl Into<Vec<u8>>) -> Self {
        Self {
            dest: dest.into(),
            into: UnpackInto::Folder,
            owner: UnpackOwner::Caller,
            mode: None,
            rules: UnpackRules::Copy,
            strip: 0,
        }
    }
}

/// The kind of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnpackInto {
    /// A folder; made if it is missing.
    Folder,
    /// A folder if one exists with this name or if the stream begins with `./`; else the name of the single file in the
    /// stream. A second file is refused.
    FileOrFolder,
}

/// The owner of new entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnpackOwner {
    /// The calling user.
    Caller,
    /// The ids in the tar, as far as the user may change owners.
    Kept,
    /// `user[:group]`, names or numbers, looked up in the sandbox's own files. A name without a group implies the
    /// user's own group; a number without a group implies the group with the same number.
    Named(String),
}

/// What happens if an entry exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnpackRules {
    /// `COPY`: folders merge, files and links are replaced; a file does not replace a folder, nor a folder a file or a
    /// link.
    Copy,
    /// An extracted tar (`ADD x.tar`): folders merge, any other existing entry is removed.
    Archive,
}

/// The result of an unpack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Unpacked {
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// The files to pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// Absolute paths, or relative to the user's home. A symbolic link at its end is followed, those below are kept as
    /// links.
    pub sources: Vec<Vec<u8>>,
    /// The sources are patterns in Docker's syntax: `*`, `?`, `[a-z]`, which do not match a slash. A pattern may match
    /// nothing; a plain path must exist.
    pub globs: bool,
    /// How entries are named.
    pub layout: PackLayout,
    /// Excluded paths below a source, in the syntax of `.dockerignore`: `*`, `?`, `[a-z]`, `**`, and `!`.
    pub exclude: Vec<Vec<u8>>,
    /// What becomes of the holes of sparse files.
    pub holes: PackHoles,
}

/// What becomes of the holes of sparse files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackHoles {
    /// They are sent as zeros, which any reader understands.
    Filled,
    /// They are left out, in the form that [`AgentClient::unpack`] and GNU tar read. An agent of an earlier version sends zeros.
    Kept,
}

/// How packed entries are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackLayout {
    /// As for `COPY`: a folder gives its content (after an entry `./`), a file its own name.
    Contents,
    /// Files and folders by their own name, as with `tar -C parent -c name`.
    Named,
    /// The whole path without its leading slash; with a `/./` in it, the part after that.
    Parents,
}

/// A tar stream out of a sandbox.
pub struct PackReader {
    body: BodyReader,
    patience: Patience,
}

impl std::fmt::Debug for PackReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackReader").finish_non_exhaustive()
    }
}

impl PackReader {
    /// The next bytes, `None` at a regular end. A tree that could not be read completely is an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, AgentError>> {
        self.patience.within("pack", PACK_SILENCE, self.body.chunk()).await.transpose()
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
}

impl AgentClient {
    /// Writes a tar stream (not compressed) into the sandbox with the permissions of `user`. Entries written before a
    /// refusal stay. Path traversal (`..`, a hard link to a file outside) and device nodes are refused by name.
    pub async fn unpack<S>(
        &self,
        what: &Unpack,
        user: Option<&str>,
        content: S,
    ) -> Result<Unpacked, AgentError>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let mut request = self.request(Method::POST, &unpack_uri(what, user), None)?;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
        *request.body_mut() = StreamBody::new(content.map(|chunk| chunk.map(Frame::data))).boxed_unsync();
        let call = async {
            let mut answer = self.inner.transport.send(request).await?;
            if !answer.head.status.is_success() {
                answer.body.forsake();
            }
            accept(answer).await?.read_all(64 * 1024).await
        };
        let answer = self.patience.within("unpack", UNPACK_LIMIT, call).await?;
        serde_json::from_slice(&answer)
            .map_err(|_| AgentError::Protocol("the answer to unpack is not what was agreed"))
    }

    /// Reads files and trees as one tar stream with the permissions of `user`. A missing source is `not_found`, before
    /// the stream begins. Sockets and devices are skipped.
    pub async fn pack(&self, what: &Pack, user: Option<&str>) -> Result<PackReader, AgentError> {
        let mut request = self.request(Method::POST, &pack_uri(what, user), None)?;
        request
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        *request.body_mut() = full(pack_body(what)?);
        let call = async { accept(self.inner.transport.send(request).await?).await };
        let body = self.patience.within("pack", TREE_LIMIT, call).await?;
        Ok(PackReader { body, patience: self.patience.clone() })
    }
}

fn unpack_uri(what: &Unpack, user: Option<&str>) -> String {
    let mut uri = String::from("/archive/unpack?dest=");
    percent(&mut uri, &what.dest);
    uri.push_str(match what.into {
        UnpackInto::Folder => "&into=folder",
        UnpackInto::FileOrFolder => "&into=any",
    });
    uri.push_str(match what.rules {
        UnpackRules::Copy => "&rules=copy",
        UnpackRules::Archive => "&rules=archive",
    });
    match &what.owner {
        UnpackOwner::Caller => {}
        UnpackOwner::Kept => uri.push_str("&keep=1"),
        UnpackOwner::Named(owner) => {
            uri.push_str("&owner=");
            percent(&mut uri, owner.as_bytes());
        }
    }
    if let Some(mode) = what.mode {
        let _ = write!(uri, "&mode={:o}", mode & 0o7777);
    }
    if what.strip > 0 {
        let _ = write!(uri, "&strip={}", what.strip);
    }
    push_user(&mut uri, user);
    uri
}

fn pack_uri(what: &Pack, user: Option<&str>) -> String {
    let mut uri = String::from(match what.layout {
        PackLayout::Contents => "/archive/pack?layout=contents",
        PackLayout::Named => "/archive/pack?layout=named",
        PackLayout::Parents => "/archive/pack?layout=parents",
    });
    if what.globs {
        uri.push_str("&globs=1");
    }
    if what.holes == PackHoles::Kept {
        uri.push_str("&sparse=1");
    }
    push_user(&mut uri, user);
    uri
}

fn push_user(uri: &mut String, user: Option<&str>) {
    if let Some(user) = user {
        uri.push_str("&username=");
        percent(uri, user.as_bytes());
    }
}

/// `s` and a source or `x` and a pattern, each terminated by a NUL, which no path contains.
fn pack_body(what: &Pack) -> Result<Bytes, AgentError> {
    let sources = what.sources.iter().map(|path| (b's', path));
    let mut body = Vec::new();
    for (sign, text) in sources.chain(what.exclude.iter().map(|pattern| (b'x', pattern))) {
        if text.contains(&0) {
            return Err(AgentError::Argument("a path must not contain a NUL byte"));
        }
        body.push(sign);
        body.extend_from_slice(text);
        body.push(0);
    }
    Ok(body.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_carries_any_byte() {
        let ask = Unpack {
            owner: UnpackOwner::Named("a b:c".into()),
            mode: Some(0o640),
            strip: 2,
            ..Unpack::below(b"/x\xff&".to_vec())
        };
        assert_eq!(
            unpack_uri(&ask, Some("root")),
            "/archive/unpack?dest=/x%FF%26&into=folder&rules=copy&owner=a%20b%3Ac&mode=640&strip=2&username=root"
        );
    }

    #[test]
    fn a_pack_body_lists_sources_and_patterns() {
        let mut ask = Pack {
            sources: vec![b"/a".to_vec(), b"/b c".to_vec()],
            globs: true,
            layout: PackLayout::Contents,
            exclude: vec![b"**/*.o".to_vec()],
            holes: PackHoles::Kept,
        };
        assert_eq!(pack_uri(&ask, None), "/archive/pack?layout=contents&globs=1&sparse=1");
        assert_eq!(pack_body(&ask).unwrap(), &b"s/a\0s/b c\0x**/*.o\0"[..]);
        ask.sources.push(b"/a\0b".to_vec());
        assert!(pack_body(&ask).is_err());
    }
}
