//! `POST /files`: raw or multipart, streamed to a temporary file beside the target and renamed when it is complete.
//!
//! The path shows either the old or the complete new content, never a part. The temporary name lets the agent's
//! watchers recognise an upload and whether its target is new, so that they report the same events as for a plain
//! write.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::entry::{Metadata, check_metadata, write_metadata};
use super::upload_queue::{self, Feed};
use super::{
    body, decode_query, make_dirs, open, open_parent, open_regular, real_path, refuse, refuse_mode, resolve,
    shown,
};
use crate::error::AgentError;
use crate::http::{AgentBody, json};
use crate::state::Agent;
use crate::users::User;

/// LIMIT: symbolic links followed to find the target of an upload through a dangling link.
const LINKS_MAX: usize = 8;

/// Header prefix of metadata.
const METADATA_PREFIX: &str = "x-metadata-";

/// Handles an upload request of `user`.
pub(crate) async fn post(
    agent: &Agent,
    user: &User,
    request: Request<Incoming>,
) -> Result<Response<AgentBody>, AgentError> {
    let (head, mut incoming) = request.into_parts();
    let received = receive(agent, user, &head, &mut incoming).await;
    if received.is_err() {
        // A client that is still sending would find the connection closed and never see the error.
        body::drain(&mut incoming).await;
    }
    received
}

async fn receive(
    agent: &Agent,
    user: &User,
    head: &http::request::Parts,
    incoming: &mut Incoming,
) -> Result<Response<AgentBody>, AgentError> {
    let query = head.uri.query().unwrap_or_default();
    let wanted = UploadRequest {
        path: decode_query(query, "path").filter(|path| !path.is_empty()),
        mode: mode_of(query)?,
        metadata: metadata_of(&head.headers)?,
    };
    let kind = text(&head.headers, header::CONTENT_TYPE.as_str());
    let written = match multer::parse_boundary(kind) {
        Ok(boundary) => multipart(agent, user, &wanted, incoming, boundary).await?,
        Err(_) => {
            let coding = Coding::parse(text(&head.headers, header::CONTENT_ENCODING.as_str()))?;
            let Some(raw) = &wanted.path else {
                return Err(AgentError::Invalid("the path parameter is required".into()));
            };
            let mut upload = Upload::begin(agent, user, raw, &wanted, coding).await?;
            while let Some(chunk) = body::next(incoming).await? {
                upload.feed.push(chunk).await?;
            }
            vec![upload.finish().await?]
        }
    };
    Ok(json(&written.into_iter().map(|path| described(&path, &wanted.metadata)).collect::<Vec<_>>()))
}

async fn multipart(
    agent: &Agent,
    user: &User,
    wanted: &UploadRequest,
    incoming: &mut Incoming,
    boundary: String,
) -> Result<Vec<Vec<u8>>, AgentError> {
    let chunks = futures::stream::unfold(Some(incoming), |incoming| async move {
        let incoming = incoming?;
        match body::next(incoming).await {
            Ok(Some(chunk)) => Some((Ok(chunk), Some(incoming))),
            Ok(None) => None,
            Err(refusal) => Some((Err(io::Error::other(refusal)), None)),
        }
    });
    let broken = |_| AgentError::Invalid("the multipart body is broken".into());
    let mut parts = multer::Multipart::new(chunks, boundary);
    let mut written = Vec::new();
    while let Some(mut part) = parts.next_field().await.map_err(broken)? {
        if part.name() != Some("file") {
            continue;
        }
        let named = part.file_name().map(|name| name.as_bytes().to_vec());
        let Some(raw) = wanted.path.clone().or(named).filter(|raw| !raw.is_empty()) else {
            return Err(AgentError::Invalid("a part needs a file name, or the request a path".into()));
        };
        let mut upload = Upload::begin(agent, user, &raw, wanted, Coding::Identity).await?;
        while let Some(chunk) = part.chunk().await.map_err(broken)? {
            upload.feed.push(chunk).await?;
        }
        written.push(upload.finish().await?);
    }
    match written.is_empty() {
        true => Err(AgentError::Invalid("no part is named 'file'".into())),
        false => Ok(written),
    }
}

fn described(path: &[u8], metadata: &Metadata) -> serde_json::Value {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let mut entry = serde_json::json!({
        "name": String::from_utf8_lossy(name), "path": String::from_utf8_lossy(path), "type": "file",
    });
    if !metadata.is_empty() {
        entry["metadata"] = serde_json::json!(metadata);
    }
    entry
}

struct UploadRequest {
    path: Option<Vec<u8>>,
    mode: Option<u32>,
    metadata: Metadata,
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn mode_of(query: &str) -> Result<Option<u32>, AgentError> {
    let Some(mode) = decode_query(query, "mode") else { return Ok(None) };
    let parsed = std::str::from_utf8(&mode).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
    match parsed {
        Some(mode) if mode <= 0o7777 => Ok(Some(mode)),
        _ => Err(AgentError::Invalid("mode is up to four octal digits".into())),
    }
}

fn metadata_of(headers: &HeaderMap) -> Result<Metadata, AgentError> {
    let mut metadata = BTreeMap::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) {
            let value =
                value.to_str().map_err(|_| AgentError::Invalid("metadata is printable ASCII".into()))?;
            metadata.insert(key.to_owned(), value.to_owned());
        }
    }
    check_metadata(&metadata)?;
    Ok(metadata)
}

#[derive(Debug, Clone, Copy)]
enum Coding {
    Identity,
    Gzip,
}

impl Coding {
    fn parse(text: &str) -> Result<Self, AgentError> {
        match text.trim() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" => Ok(Self::Gzip),
            _ => Err(AgentError::Invalid("content-encoding must be gzip or identity".into())),
        }
    }
}

/// An upload in progress. If it is dropped before `finish`, it leaves nothing.
struct Upload<'a> {
    agent: &'a Agent,
    user: &'a User,
    path: Vec<u8>,
    feed: Feed<'a, Sink>,
    metadata: Metadata,
}

impl<'a> Upload<'a> {
    async fn begin(
        agent: &'a Agent,
        user: &'a User,
        raw: &[u8],
        wanted: &UploadRequest,
        coding: Coding,
    ) -> Result<Self, AgentError> {
        let path = resolve(raw, user)?;
        let (target, mode) = (path.clone(), wanted.mode);
        let file = agent.workers.run(&user.ids, move || Target::open(&target, mode)).await?;
        let sink = match coding {
            Coding::Identity => Sink::Plain(file),
            Coding::Gzip => Sink::Gzip(Box::new(flate2::write::MultiGzDecoder::new(file))),
        };
        let feed = Feed::new(&agent.workers, &user.ids, sink);
        Ok(Self { agent, user, path, feed, metadata: wanted.metadata.clone() })
    }

    async fn finish(self) -> Result<Vec<u8>, AgentError> {
        let (sink, metadata) = (self.feed.end().await?, self.metadata);
        self.agent.workers.run(&self.user.ids, move || sink.target()?.commit(&metadata)).await?;
        Ok(self.path)
    }
}

enum Sink {
    Plain(Target),
    /// Decompressed directly to disk: a decompression bomb reaches the quota and does not fill memory.
    Gzip(Box<flate2::write::MultiGzDecoder<Target>>),
}

impl upload_queue::Sink for Sink {
    fn write(&mut self, chunk: &[u8]) -> Result<(), AgentError> {
        match self {
            Self::Plain(target) => target.write_all(chunk).map_err(|e| write_refusal(&e)),
            Self::Gzip(decoder) => decoder.write_all(chunk).map_err(|e| write_refusal(&e)),
        }
    }
}

impl Sink {
    fn target(self) -> Result<Target, AgentError> {
        match self {
            Self::Plain(target) => Ok(target),
            Self::Gzip(decoder) => decoder.finish().map_err(|e| write_refusal(&e)),
        }
    }
}

fn write_refusal(error: &io::Error) -> AgentError {
    match Errno::from_io_error(error) {
        Some(errno) => AgentError::from_errno(errno, "write"),
        None => AgentError::Invalid("the gzip body is broken".into()),
    }
}

/// The file that is being written, and its final name.
struct Target {
    file: OwnedFd,
    mode: Option<u32>,
    /// `None`: the target itself is written, because the user may not add names to its directory.
    temporary: Option<Temporary>,
}

struct Temporary {
    dir: OwnedFd,
    name: String,
    becomes: Vec<u8>,
}

impl Target {
    fn open(path: &[u8], mode: Option<u32>) -> Result<Self, AgentError> {
        let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        make_dirs(&path[..cut.max(1)], Mode::from_raw_mode(0o755))?;
        let path = final_path(path)?;
        let (dir, name) = open_parent(&path)?;
        let old = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(refuse(errno, &path)),
        };
        match old.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            None | Some(FileType::RegularFile) => {}
            Some(FileType::Directory) => {
                return Err(AgentError::Invalid(format!("path '{}' is a directory", shown(&path))));
            }
            Some(_) => {
                return Err(AgentError::Invalid(format!("path '{}' is not a regular file", shown(&path))));
            }
        }
        let mode = mode.or(old.map(|stat| stat.st_mode & 0o777)).or(Some(0o644));
        let temporary = TempName::fresh(old.is_none()).0;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&dir, &*temporary, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => {
                let temporary = Temporary { dir, name: temporary, becomes: name.to_vec() };
                Ok(Self { file, mode, temporary: Some(temporary) })
            }
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) if old.is_some() => {
                let (file, _) = open_regular(&path, OFlags::WRONLY | OFlags::TRUNC)?;
                Ok(Self { file, mode: None, temporary: None })
            }
            Err(errno) => Err(refuse(errno, &path)),
        }
    }

    fn commit(mut self, metadata: &Metadata) -> Result<(), AgentError> {
        if let Some(mode) = self.mode {
            let mode = Mode::from_raw_mode(mode);
            let name = self.temporary.as_ref().map_or(&b""[..], |temporary| &temporary.becomes);
            rustix::fs::fchmod(&self.file, mode).map_err(|e| refuse_mode(e, mode, name))?;
        }
        write_metadata(&self.file, metadata)?;
        if let Some(temporary) = &self.temporary {
            rustix::fs::renameat(&temporary.dir, &*temporary.name, &temporary.dir, &*temporary.becomes)
                .map_err(|errno| refuse(errno, &temporary.becomes))?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Write for Target {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        write_all(&self.file, data)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(&temporary.dir, &*temporary.name, AtFlags::empty());
        }
    }
}

/// The target of a write to this path: symbolic links are followed, so that a link stays a link.
pub(super) fn final_path(path: &[u8]) -> Result<Vec<u8>, AgentError> {
    let mut path = path.to_vec();
    for _ in 0..LINKS_MAX {
        match open(&path, OFlags::PATH, Mode::empty()) {
            Ok(handle) => return real_path(&handle).map_err(|e| refuse(e, &path)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(refuse(errno, &path)),
        }
        let (dir, name) = open_parent(&path)?;
        let mut place = real_path(&dir).map_err(|e| refuse(e, &path))?;
        match rustix::fs::readlinkat(&dir, name, Vec::new()) {
            Ok(link) if link.to_bytes().starts_with(b"/") => path = link.into_bytes(),
            Ok(link) => {
                place.push(b'/');
                place.extend_from_slice(link.to_bytes());
                path = place;
            }
            Err(Errno::NOENT | Errno::INVAL) => {
                let slash: &[u8] = if place == b"/" { b"" } else { b"/" };
                return Ok([&place, slash, name].concat());
            }
            Err(errno) => return Err(refuse(errno, &path)),
        }
    }
    Err(refuse(Errno::LOOP, &path))
}

pub(super) fn write_all(file: &OwnedFd, mut data: &[u8]) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(file, data) {
            Ok(n) => data = &data[n..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Names of temporary files: random per start of the agent, and with a flag for a new target.
pub(crate) struct TempName(String);

impl TempName {
    pub(super) fn fresh(target_is_new: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let kind = if target_is_new { 'n' } else { 'r' };
        Self(format!(".atoll-up-{}-{kind}-{}", boot_word(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether a name is one of these, and if so, whether its target is new.
    pub(crate) fn parse(name: &[u8]) -> Option<bool> {
        let rest = name.strip_prefix(b".atoll-up-")?.strip_prefix(boot_word().as_bytes())?;
        match rest {
            [b'-', b'n', b'-', ..] => Some(true),
            [b'-', b'r', b'-', ..] => Some(false),
            _ => None,
        }
    }
}

/// A random text per start of the agent.
pub(super) fn boot_word() -> &'static str {
    static WORD: OnceLock<String> = OnceLock::new();
    WORD.get_or_init(|| {
        let mut bytes = [0u8; 8];
        // Without randomness the name can be guessed but is still safe, because creation is exclusive.
        let _ = getrandom::fill(&mut bytes);
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    })
}
