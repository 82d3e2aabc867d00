//! Watches: inotify below a directory, optionally recursive, as a bounded stream of events.
//!
//! A watcher reads its own inotify descriptor, so a slow consumer fills the kernel's queue, which then reports an
//! overflow; no buffer here grows. Uploads of the agent are reported as plain writes (see `files::upload`).

mod inotify;
mod polled;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{CreateFlags, WatchFlags};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

pub(crate) use polled::{WatchRequest, WatcherRegistry};

use crate::error::AgentError;
use crate::files::{TempName, open, open_at, shown};
use crate::identity::Workers;
use crate::readiness::watched;
use crate::users::Ids;
use inotify::{Raw, parse};

/// LIMIT: directories of one recursive watch; the kernel's own limit is per user and shared.
const DIRS_MAX: usize = 8192;
/// LIMIT: names that are remembered to avoid double reports.
const SEEN_MAX: usize = 4096;

const INTEREST: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchEventKind {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
    Overflow,
}

/// A change; the name is relative to the watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchEvent {
    pub(crate) name: Vec<u8>,
    pub(crate) what: WatchEventKind,
}

pub(crate) struct Watcher {
    queue: Arc<AsyncFd<OwnedFd>>,
    workers: Workers,
    ids: Ids,
    root: Vec<u8>,
    recursive: bool,
    /// Watch number → directory, relative to the root.
    dirs: HashMap<i32, Vec<u8>>,
    ready: VecDeque<WatchEvent>,
    /// Found by a scan of a new directory, and possibly reported by the kernel too.
    seen: HashSet<Vec<u8>>,
    /// A rename whose second half has not arrived yet.
    moved: Option<(u32, Moved)>,
}

enum Moved {
    /// An upload of the agent; true: its target is new.
    Upload(bool),
    Directory(Vec<u8>),
}

type Added = Vec<(i32, Vec<u8>)>;

impl Watcher {
    /// Watches a directory with a user's permissions. Returns when the watch is active.
    pub(crate) async fn open(
        workers: &Workers,
        ids: &Ids,
        root: Vec<u8>,
        recursive: bool,
    ) -> Result<Self, AgentError> {
        let queue = rustix::fs::inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| AgentError::from_errno(errno, "watch"))?;
        let queue = watched(queue).map_err(|_| AgentError::Exhausted("watch: too many open files".into()))?;
        let mut watcher = Self {
            queue: Arc::new(queue),
            workers: workers.clone(),
            ids: ids.clone(),
            root,
            recursive,
            dirs: HashMap::new(),
            ready: VecDeque::new(),
            seen: HashSet::new(),
            moved: None,
        };
        let (added, _) = watcher.add(Vec::new()).await?;
        watcher.dirs.extend(added);
        Ok(watcher)
    }

    /// The next change. Cancel-safe except during a scan of a new directory, where a name may be reported late.
    pub(crate) async fn next(&mut self) -> Result<WatchEvent, AgentError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let queue = Arc::clone(&self.queue);
            let mut guard = queue
                .readable()
                .await
                .map_err(|_| AgentError::Unavailable("the agent's event loop ends".into()))?;
            let mut buffer = vec![0u8; 16 * 1024];
            match rustix::io::read(queue.get_ref(), &mut buffer) {
                Ok(len) => {
                    for raw in parse(&buffer[..len]) {
                        self.take(raw).await;
                    }
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(AgentError::from_errno(errno, "watch")),
            }
        }
    }

    async fn take(&mut self, raw: Raw<'_>) {
        if raw.has(libc::IN_Q_OVERFLOW) {
            return self.push(Vec::new(), WatchEventKind::Overflow);
        }
        if raw.has(libc::IN_IGNORED) {
            self.dirs.remove(&raw.watch);
            return;
        }
        let Some(dir) = self.dirs.get(&raw.watch) else { return };
        let name = join(dir, raw.name);
        let moved = self.moved.take();
        let upload = TempName::parse(raw.name);
        if raw.has(libc::IN_MOVED_FROM) {
            self.abandon(moved);
            match upload {
                Some(new) => self.moved = Some((raw.cookie, Moved::Upload(new))),
                None => {
                    self.push(name.clone(), WatchEventKind::Rename);
                    if raw.has(libc::IN_ISDIR) {
                        self.moved = Some((raw.cookie, Moved::Directory(name)));
                    }
                }
            }
            return;
        }
        if upload.is_some() {
            self.moved = moved;
            return;
        }
        match moved {
            Some((cookie, half)) if raw.has(libc::IN_MOVED_TO) && cookie == raw.cookie => {
                self.arrive(name, half)
            }
            other => {
                self.abandon(other);
                self.report(&raw, name).await;
            }
        }
    }

    async fn report(&mut self, raw: &Raw<'_>, name: Vec<u8>) {
        if raw.has(libc::IN_CREATE | libc::IN_MOVED_TO) {
            if self.seen.remove(&name) {
                return;
            }
            self.push(name.clone(), WatchEventKind::Create);
            if self.recursive && raw.has(libc::IN_ISDIR) {
                self.descend(name).await;
            }
        } else if raw.has(libc::IN_MODIFY) {
            self.push(name, WatchEventKind::Write);
        } else if raw.has(libc::IN_ATTRIB) {
            self.push(name, WatchEventKind::Chmod);
        } else if raw.has(libc::IN_DELETE) {
            self.seen.remove(&name);
            self.push(name, WatchEventKind::Remove);
        }
    }

    /// The second half of a rename inside the tree.
    fn arrive(&mut self, name: Vec<u8>, half: Moved) {
        match half {
            Moved::Upload(true) => {
                for what in [WatchEventKind::Create, WatchEventKind::Chmod, WatchEventKind::Write] {
                    self.push(name.clone(), what);
                }
            }
            Moved::Upload(false) => self.push(name, WatchEventKind::Write),
            Moved::Directory(old) => {
                self.push(name.clone(), WatchEventKind::Create);
                for dir in self.dirs.values_mut() {
                    if let Some(rest) = below(dir, &old) {
                        *dir = [&name, rest].concat();
                    }
                }
            }
        }
    }

    /// A directory was moved out of the tree: its watches are removed.
    fn abandon(&mut self, moved: Option<(u32, Moved)>) {
        let Some((_, Moved::Directory(old))) = moved else { return };
        let gone: Vec<i32> =
            self.dirs.iter().filter(|(_, dir)| below(dir, &old).is_some()).map(|(watch, _)| *watch).collect();
        for watch in gone {
            let _ = rustix::fs::inotify::remove_watch(self.queue.get_ref(), watch);
            self.dirs.remove(&watch);
        }
    }

    /// A directory appeared: watches it, and reports entries that were made in it before the watch was active.
    async fn descend(&mut self, name: Vec<u8>) {
        match self.add(name).await {
            Ok((added, found)) => {
                self.dirs.extend(added);
                for name in found {
                    if self.seen.len() < SEEN_MAX {
                        self.seen.insert(name.clone());
                    }
                    self.push(name, WatchEventKind::Create);
                }
            }
            // A directory that is gone again is no error; if no more watches can be added, events will be missed.
            Err(AgentError::NotFound(_) | AgentError::Invalid(_)) => {}
            Err(_) => self.push(Vec::new(), WatchEventKind::Overflow),
        }
    }

    async fn add(&self, start: Vec<u8>) -> Result<(Added, Vec<Vec<u8>>), AgentError> {
        let (queue, root, recursive) = (Arc::clone(&self.queue), self.root.clone(), self.recursive);
        let room = DIRS_MAX.saturating_sub(self.dirs.len());
        self.workers.run(&self.ids, move || add_dirs(queue.get_ref(), &root, start, recursive, room)).await
    }

    fn push(&mut self, name: Vec<u8>, what: WatchEventKind) {
        self.ready.push_back(WatchEvent { name, what });
    }
}

/// Watches a directory and optionally all below; returns the watches and the names found below the start.
fn add_dirs(
    queue: &OwnedFd,
    root: &[u8],
    start: Vec<u8>,
    recursive: bool,
    room: usize,
) -> Result<(Added, Vec<Vec<u8>>), AgentError> {
    let (mut added, mut found, mut pending) = (Vec::new(), Vec::new(), vec![start]);
    while let Some(dir) = pending.pop() {
        let first = added.is_empty();
        let handle = match open_below(root, &dir) {
            Ok(handle) => handle,
            Err(errno) if first => return Err(refusal(errno, root)),
            Err(_) => continue,
        };
        if added.len() >= room {
            return Err(AgentError::Exhausted("watch: too many directories".into()));
        }
        let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
        match rustix::fs::inotify::add_watch(queue, path, INTEREST) {
            Ok(watch) => added.push((watch, dir.clone())),
            Err(errno) if first || errno == Errno::NOSPC => return Err(refusal(errno, root)),
            Err(_) => continue,
        }
        if !recursive {
            break;
        }
        for entry in Dir::read_from(&handle).into_iter().flatten().flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || TempName::parse(name).is_some() {
                continue;
            }
            if entry.file_type() == FileType::Directory {
                pending.push(join(&dir, name));
            }
            found.push(join(&dir, name));
        }
    }
    Ok((added, found))
}

fn open_below(root: &[u8], dir: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let top = open(root, flags, Mode::empty())?;
    if dir.is_empty() {
        return Ok(top);
    }
    open_at(&top, dir, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

fn refusal(errno: Errno, root: &[u8]) -> AgentError {
    match errno {
        Errno::NOSPC => AgentError::Exhausted("watch: the limit of watches is reached".into()),
        Errno::NOTDIR => AgentError::Invalid(format!("path '{}' is not a directory", shown(root))),
        other => AgentError::from_errno(other, &format!("path '{}'", shown(root))),
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// The part of `dir` below `old`, with a leading slash; empty for `old` itself.
fn below<'a>(dir: &'a [u8], old: &[u8]) -> Option<&'a [u8]> {
    dir.strip_prefix(old).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
