//! The context of a build: an index of the staged tar, by path. Files stay in the tar; a step reads those that it
//! copies.
//!
//! The tar is untrusted: names are checked, numbers are bounded, and none of its files is written to the host's disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::error::BadContext;
use super::pattern::Ignore;
use super::step::{BuildStep, Copy, StepKind};
use atoll_glob::docker::WORK_MAX;
use atoll_tar::read::Archive;
use atoll_tar::{TarEntry, TarKind, write};

/// LIMIT: entries of a context; the index holds about 200 bytes for each.
const ENTRIES_MAX: usize = 500_000;
/// LIMIT: bytes of all paths of the index, of which a step holds a few copies. An entry in a deep folder adds all
/// folders above it: 1 MB of archive can name gigabytes of paths.
const PATHS_MAX: usize = 64 << 20;
/// LIMIT: levels of symbolic links that are followed to find a source.
const LINKS_MAX: usize = 40;
/// LIMIT: bytes of a `.dockerignore`.
const IGNORE_MAX: u64 = 1 << 20;

/// The files a build may copy.
#[derive(Debug, Default)]
pub struct BuildContext {
    tar: Option<PathBuf>,
    /// By path, without a leading slash; includes folders that have no entry of their own.
    entries: BTreeMap<String, ContextEntry>,
    /// Bytes of all paths.
    path_bytes: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct ContextEntry {
    pub(crate) kind: ContextEntryKind,
    mode: u32,
    modified_s: i64,
    /// Excluded by `.dockerignore`.
    hidden: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum ContextEntryKind {
    Folder,
    /// `at` is the position of its bytes in the tar; files with the same position are one file with several names.
    File {
        at: u64,
        size: u64,
        sha256: [u8; 32],
        linked: bool,
    },
    Link(String),
}

impl BuildContext {
    /// A context without files.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Reads a plain (not compressed) tar once. Blocking. Files that its `.dockerignore` excludes are hidden.
    pub fn open(tar: &Path, cancel: &CancellationToken) -> Result<Self, BadContext> {
        Self::open_for(tar, None, cancel)
    }

    /// The same for a Dockerfile of another name, whose own `<name>.dockerignore` has precedence over the common one.
    pub fn open_for(
        tar: &Path,
        dockerfile: Option<&str>,
        cancel: &CancellationToken,
    ) -> Result<Self, BadContext> {
        let file = File::open(tar).map_err(BadContext::Read)?;
        let mut context = Self { tar: Some(tar.to_owned()), ..Self::default() };
        let mut archive = Archive::new(BufReader::with_capacity(256 << 10, file));
        let mut entry = TarEntry::default();
        while archive.next(&mut entry).map_err(|error| BadContext::Archive(error.into()))? {
            if cancel.is_cancelled() {
                return Err(BadContext::Cancelled);
            }
            context.add(&entry, &mut archive)?;
        }
        let own = dockerfile.map(|name| format!("{name}.dockerignore"));
        let names = own.iter().map(String::as_str).chain([".dockerignore"]);
        for name in names {
            if let Some(text) = context.read_text(name, IGNORE_MAX).map_err(BadContext::Read)? {
                context.hide(&Ignore::parse(&text), cancel)?;
                break;
            }
        }
        Ok(context)
    }

    fn add<R: BufRead>(&mut self, entry: &TarEntry, archive: &mut Archive<R>) -> Result<(), BadContext> {
        let path = name_of(&entry.name)?;
        let bad = |why| BadContext::Entry { path: path.clone(), why };
        if self.entries.len() >= ENTRIES_MAX {
            return Err(BadContext::TooMany { what: "entries", limit: ENTRIES_MAX as u64 });
        }
        if self.path_bytes > PATHS_MAX {
            return Err(BadContext::TooMany { what: "bytes of paths", limit: PATHS_MAX as u64 });
        }
        let kind = match entry.kind {
            TarKind::Folder => ContextEntryKind::Folder,
            TarKind::File if entry.map.is_some() => {
                return Err(bad("which is stored with holes; pack it without --sparse"));
            }
            TarKind::File => {
                let (at, size) = (archive.position(), entry.size);
                ContextEntryKind::File { at, size, sha256: hash(archive)?, linked: false }
            }
            TarKind::Symlink => ContextEntryKind::Link(
                String::from_utf8(entry.link.clone()).map_err(|_| bad("a link that is not UTF-8"))?,
            ),
            TarKind::HardLink => {
                let target = name_of(&entry.link)?;
                let found = self.entries.get_mut(&target);
                let Some(ContextEntry { kind: ContextEntryKind::File { at, size, sha256, linked }, .. }) =
                    found
                else {
                    return Err(bad("a link to a file that did not come before it"));
                };
                *linked = true;
                ContextEntryKind::File { at: *at, size: *size, sha256: *sha256, linked: true }
            }
            // Docker's own client skips them too: they are meaningless in another place.
            TarKind::Fifo | TarKind::CharDevice | TarKind::BlockDevice => return Ok(()),
        };
        if path.is_empty() {
            return Ok(());
        }
        let mut above = path.as_str();
        while let Some((parent, _)) = above.rsplit_once('/') {
            let folder = ContextEntry {
                kind: ContextEntryKind::Folder,
                mode: 0o755,
                modified_s: entry.mtime.0,
                hidden: false,
            };
            if self.entries.contains_key(parent) {
                break;
            }
            self.path_bytes += parent.len();
            self.entries.insert(parent.to_owned(), folder);
            above = parent;
        }
        self.path_bytes += path.len();
        self.entries
            .insert(path, ContextEntry { kind, mode: entry.mode, modified_s: entry.mtime.0, hidden: false });
        Ok(())
    }

    /// A file as text, if it exists. The Dockerfile is found even if `.dockerignore` excludes it.
    pub fn read_text(&self, path: &str, max: u64) -> io::Result<Option<String>> {
        let clean = super::path::clean(path);
        let Some(found) = self.resolve(&clean[1..], false) else { return Ok(None) };
        let Some(ContextEntry { kind: ContextEntryKind::File { at, size, .. }, .. }) =
            self.entries.get(&found)
        else {
            return Ok(None);
        };
        if *size > max {
            let text = format!("{path} has {size} bytes, and at most {max} are read");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut text = String::new();
        self.open_at(*at, *size)?.read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Hides ignored entries; a folder stays visible if a `!` line includes something in it again.
    fn hide(&mut self, ignore: &Ignore, cancel: &CancellationToken) -> Result<(), BadContext> {
        let mut work = 0;
        let mut is_ignored = |path: &str| {
            let ignored = ignore.is_ignored_within(path, &mut work);
            match work > WORK_MAX {
                true => Err(BadContext::TooMany { what: "work in its .dockerignore", limit: WORK_MAX }),
                false if cancel.is_cancelled() => Err(BadContext::Cancelled),
                false => Ok(ignored),
            }
        };
        let mut needed: HashSet<String> = HashSet::new();
        let is_folder = |entry: &ContextEntry| matches!(entry.kind, ContextEntryKind::Folder);
        for (path, entry) in self.entries.iter_mut().filter(|(_, entry)| !is_folder(entry)) {
            entry.hidden = is_ignored(path)?;
            let mut above = path.as_str();
            while !entry.hidden
                && let Some((parent, _)) = above.rsplit_once('/')
                && needed.insert(parent.to_owned())
            {
                above = parent;
            }
        }
        for (path, entry) in self.entries.iter_mut().filter(|(_, entry)| is_folder(entry)) {
            entry.hidden = !needed.contains(path) && is_ignored(path)?;
        }
        Ok(())
    }

    /// An entry that is visible to steps.
    pub(crate) fn get(&self, path: &str) -> Option<&ContextEntry> {
        self.entries.get(path).filter(|entry| !entry.hidden)
    }

    /// Whether a path is hidden by `.dockerignore`.
    pub(crate) fn is_hidden(&self, path: &str) -> bool {
        self.entries.get(path).is_some_and(|entry| entry.hidden)
    }

    /// Everything below a folder, sorted by path; the empty path means the whole context.
    fn below<'a>(&'a self, folder: &str) -> impl Iterator<Item = (&'a String, &'a ContextEntry)> + use<'a> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        self.entries.range(prefix.clone()..).take_while(move |(path, _)| path.starts_with(&prefix))
    }

    /// The visible entries below a folder: path and entry, folders before their content.
    pub(crate) fn seen_below(&self, folder: &str) -> Vec<(&String, &ContextEntry)> {
        let mut seen: Vec<_> = self.below(folder).filter(|(_, entry)| !entry.hidden).collect();
        // By path components: as text `a-b` sorts before `a/b` and would separate a folder from its content.
        seen.sort_by(|(a, _), (b, _)| a.split('/').cmp(b.split('/')));
        seen
    }

    /// The visible names directly in a folder.
    pub(crate) fn names_in(&self, folder: &str) -> Vec<&str> {
        let skip = if folder.is_empty() { 0 } else { folder.len() + 1 };
        let direct = self.below(folder).filter(|(path, _)| !path[skip..].contains('/'));
        direct.filter(|(_, entry)| !entry.hidden).map(|(path, _)| &path[skip..]).collect()
    }

    /// Resolves the symbolic links of a path inside the context; also those of the last component, unless `kept`.
    pub(crate) fn resolve(&self, path: &str, kept: bool) -> Option<String> {
        let mut todo: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let (mut at, mut links) = (String::new(), 0);
        while let Some(name) = todo.pop() {
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = if at.is_empty() { name } else { format!("{at}/{name}") };
            match &self.entries.get(&next)?.kind {
                ContextEntryKind::Link(target) if !(kept && todo.is_empty()) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return None;
                    }
                    if target.starts_with('/') {
                        at.clear();
                    }
                    todo.extend(target.split('/').rev().map(str::to_owned));
                }
                ContextEntryKind::Folder | ContextEntryKind::File { .. } | ContextEntryKind::Link(_) => {
                    at = next
                }
            }
        }
        Some(at)
    }

    /// A hash of everything that a step takes from the context: names, kinds, mode bits, content; no times and no
    /// owners.
    pub fn hash_of(&self, step: &BuildStep) -> String {
        let mut hasher = Sha256::new();
        match &step.kind {
            StepKind::Copy(copy) => self.hash_copy(copy, &mut hasher),
            StepKind::Run(run) => run.binds.iter().for_each(|bind| self.hash_copy(bind, &mut hasher)),
            StepKind::Workdir(_) | StepKind::Config => {}
        }
        hex::encode(hasher.finalize())
    }

    fn hash_copy(&self, copy: &Copy, hasher: &mut Sha256) {
        let mut put = |bytes: &[u8]| {
            hasher.update((bytes.len() as u64).to_be_bytes());
            hasher.update(bytes);
        };
        for matched in &copy.entries {
            put(matched.name.as_bytes());
            let Some(entry) = self.entries.get(&matched.path) else { continue };
            put(&entry.mode.to_be_bytes());
            match &entry.kind {
                ContextEntryKind::Folder => put(b"folder"),
                ContextEntryKind::File { sha256, .. } => put(sha256),
                ContextEntryKind::Link(target) => put(format!("link {target}").as_bytes()),
            }
        }
        for file in &copy.inline {
            put(file.name.as_bytes());
            put(&file.content);
        }
        for path in &copy.extract {
            put(b"extract");
            if let Some(ContextEntry { kind: ContextEntryKind::File { sha256, .. }, .. }) =
                self.entries.get(path)
            {
                put(sha256);
            }
        }
    }

    /// Writes the tar of everything that a copy takes from the context and the Dockerfile, with names relative to the
    /// destination, owned by root. Archives to be extracted are not included. Blocking.
    pub fn write_tar(&self, copy: &Copy, to: &mut dyn Write) -> io::Result<()> {
        let mut out = write::Archive::new(to);
        let mut tar = self.tar.as_ref().map(File::open).transpose()?;
        let mut first: HashMap<u64, &str> = HashMap::new();
        for matched in &copy.entries {
            let Some(entry) = self.entries.get(&matched.path) else {
                // The root of the context has no entry.
                out.entry(&folder(&matched.name, 0o755, 0))?;
                continue;
            };
            match &entry.kind {
                ContextEntryKind::Folder => {
                    out.entry(&folder(&matched.name, entry.mode, entry.modified_s))?
                }
                ContextEntryKind::Link(target) => out.entry(&TarEntry {
                    link: target.clone().into_bytes(),
                    ..plain(&matched.name, TarKind::Symlink, 0o777, entry.modified_s)
                })?,
                ContextEntryKind::File { at, linked: true, .. } if first.contains_key(at) => {
                    out.entry(&TarEntry {
                        link: first.get(at).copied().unwrap_or_default().as_bytes().to_vec(),
                        ..plain(&matched.name, TarKind::HardLink, entry.mode, entry.modified_s)
                    })?
                }
                ContextEntryKind::File { at, size, .. } => {
                    first.insert(*at, &matched.name);
                    let header = plain(&matched.name, TarKind::File, entry.mode, entry.modified_s);
                    out.entry(&TarEntry { size: *size, ..header })?;
                    let tar = tar.as_mut().ok_or(io::ErrorKind::NotFound)?;
                    copy_bytes(tar, *at, *size, &mut out)?;
                    out.pad(*size)?;
                }
            }
        }
        for file in &copy.inline {
            out.file(&file.name, &file.content)?;
        }
        out.finish().map(|_| ())
    }

    /// The bytes of an archive, decompressed, for `ADD`. Blocking.
    pub fn open_archive(&self, path: &str) -> io::Result<Box<dyn Read + Send>> {
        match self.entries.get(path) {
            Some(ContextEntry { kind: ContextEntryKind::File { at, size, .. }, .. }) => {
                super::unzip::unzip(self.open_at(*at, *size)?)
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Writes the uncompressed archive. Blocking.
    pub fn write_archive(&self, path: &str, to: &mut dyn Write) -> io::Result<()> {
        io::copy(&mut self.open_archive(path)?, to).map(|_| ())
    }

    /// Whether `ADD` extracts this file: a tar, compressed or not. An unreadable file is not one.
    pub(crate) fn is_archive(&self, path: &str) -> bool {
        let Ok(bytes) = self.open_archive(path) else { return false };
        let mut archive = Archive::new(BufReader::with_capacity(4096, bytes));
        archive.next(&mut TarEntry::default()).is_ok_and(|found| found)
    }

    fn open_at(&self, at: u64, size: u64) -> io::Result<BufReader<io::Take<File>>> {
        let mut tar = File::open(self.tar.as_ref().ok_or(io::ErrorKind::NotFound)?)?;
        tar.seek(SeekFrom::Start(at))?;
        Ok(BufReader::new(tar.take(size)))
    }
}

fn copy_bytes<W: Write>(tar: &mut File, at: u64, size: u64, out: &mut write::Archive<W>) -> io::Result<()> {
    tar.seek(SeekFrom::Start(at))?;
    let mut buffer = vec![0; 128 << 10];
    let mut left = size;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        match tar.read(&mut buffer[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            some => {
                out.data(&buffer[..some])?;
                left -= some as u64;
            }
        }
    }
    Ok(())
}

fn plain(name: &str, kind: TarKind, mode: u32, modified_s: i64) -> TarEntry {
    TarEntry { name: name.as_bytes().to_vec(), kind, mode, mtime: (modified_s, 0), ..TarEntry::default() }
}

fn folder(name: &str, mode: u32, modified_s: i64) -> TarEntry {
    let name = if name.ends_with('/') { name.to_owned() } else { format!("{name}/") };
    plain(&name, TarKind::Folder, mode, modified_s)
}

fn hash<R: BufRead>(archive: &mut Archive<R>) -> Result<[u8; 32], BadContext> {
    let mut hasher = Sha256::new();
    loop {
        let piece = archive.data().map_err(|error| BadContext::Archive(error.into()))?;
        if piece.is_empty() {
            return Ok(hasher.finalize().into());
        }
        hasher.update(piece);
        let took = piece.len();
        archive.took(took);
    }
}

/// A name without a leading `./` and without a trailing slash.
fn name_of(raw: &[u8]) -> Result<String, BadContext> {
    let shown = || String::from_utf8_lossy(raw).into_owned();
    let Ok(text) = std::str::from_utf8(raw) else {
        return Err(BadContext::Entry { path: shown(), why: "whose name is not UTF-8" });
    };
    if text.split('/').any(|part| part == "..") {
        return Err(BadContext::Entry { path: shown(), why: "which leads out of it" });
    }
    if text.len() > 4096 {
        return Err(BadContext::Entry { path: shown(), why: "whose name is too long" });
    }
    Ok(super::path::clean(text)[1..].to_owned())
}
