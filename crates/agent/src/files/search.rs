//! Search below a directory: names by glob, lines by pattern. It never follows a symbolic link, opens only regular
//! files, skips the kernel's file systems, and is limited in count, bytes and time.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use atoll_glob::shell::Globs;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::entry::{FileEntry, describe};
use super::lines::{Lines, Matcher};
use super::tree::{BELOW, DEPTH_MAX, DIRECTORY, LIST_MAX, TreeLevel};
use super::{open, open_at, open_regular, refuse, reopen};
use crate::error::AgentError;
use crate::users::Accounts;

/// LIMIT: lines of one response, and their bytes.
const MATCHES_MAX: usize = 20_000;
const BYTES_MAX: usize = 16 << 20;
/// LIMIT: how long a search may occupy a worker.
const TIME_MAX: Duration = Duration::from_secs(60);

/// proc, sysfs, both cgroups, debugfs, tracefs, bpf: their files may be endless, and searches do not need them.
const KERNEL_FILE_SYSTEMS: &[i64] =
    &[0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0xcafe_4a11];

pub(crate) struct SearchOptions {
    pub(crate) path: Vec<u8>,
    /// 0: the maximum.
    pub(crate) depth: u32,
    pub(crate) include: Vec<Vec<u8>>,
    pub(crate) exclude: Vec<Vec<u8>>,
    /// Empty: search for names only.
    pub(crate) pattern: Vec<u8>,
    pub(crate) literal: bool,
    pub(crate) ignore_case: bool,
    /// 0: the default limit.
    pub(crate) max: u32,
    pub(crate) limit_ms: u64,
}

/// A line that matches the pattern.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MatchedLine {
    pub(crate) path: Vec<u8>,
    pub(crate) number: u64,
    pub(crate) content: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct SearchSummary {
    pub(crate) entries: Vec<FileEntry>,
    pub(crate) lines: Vec<MatchedLine>,
    pub(crate) truncated: bool,
}

/// A validated search, ready to be run by a worker.
pub(crate) struct Search {
    path: Vec<u8>,
    depth: usize,
    include: Globs,
    exclude: Globs,
    matcher: Option<Matcher>,
    max: usize,
    until: Instant,
}

impl Search {
    /// Compiles globs and pattern; not on a worker, because its stack is small.
    pub(crate) fn plan(wanted: SearchOptions) -> Result<Self, AgentError> {
        let matcher = if wanted.pattern.is_empty() {
            None
        } else {
            Some(Matcher::compile(&wanted.pattern, wanted.literal, wanted.ignore_case)?)
        };
        let bound = if matcher.is_some() { MATCHES_MAX } else { LIST_MAX };
        let deep = if wanted.depth == 0 { DEPTH_MAX } else { wanted.depth.min(DEPTH_MAX) };
        let limit = if wanted.limit_ms == 0 { TIME_MAX } else { Duration::from_millis(wanted.limit_ms) };
        Ok(Self {
            path: wanted.path,
            depth: deep as usize,
            include: globs(&wanted.include)?,
            exclude: globs(&wanted.exclude)?,
            matcher,
            max: if wanted.max == 0 { bound } else { (wanted.max as usize).min(bound) },
            until: Instant::now() + limit.min(TIME_MAX),
        })
    }

    /// Runs the search with the permissions of the thread.
    pub(crate) fn run(mut self) -> Result<SearchSummary, AgentError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        match open(&self.path, flags, Mode::empty()) {
            Ok(top) => self.walk(top),
            Err(Errno::NOTDIR) => self.one_file(),
            Err(errno) => Err(refuse(errno, &self.path)),
        }
    }

    /// Searches a single file: globs apply only to paths below a directory.
    fn one_file(&mut self) -> Result<SearchSummary, AgentError> {
        let mut found = SearchSummary::default();
        let path = self.path.clone();
        if self.matcher.is_none() {
            found.entries.push(super::stat(&path)?);
        } else {
            let (file, _) = open_regular(&path, OFlags::RDONLY)?;
            self.read(&file, &path, &mut found).map_err(|e| refuse(e, &path))?;
        }
        Ok(found)
    }

    fn walk(&mut self, top: OwnedFd) -> Result<SearchSummary, AgentError> {
        let accounts = Accounts::read().map_err(|e| refuse(e, &self.path))?;
        let mut found = SearchSummary::default();
        let prefix = if self.path == b"/" { 1 } else { self.path.len() + 1 };
        let mut levels = vec![TreeLevel::open(top, self.path.clone()).map_err(|e| refuse(e, &self.path))?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            if found.truncated || Instant::now() > self.until {
                found.truncated = true;
                break;
            }
            let whole = level.path_of(&name);
            let below = whole.get(prefix..).unwrap_or_default();
            if self.exclude.match_any(&name, below, &whole) {
                continue;
            }
            let wanted = self.include.is_empty() || self.include.match_any(&name, below, &whole);
            let handle = open_at(&level.dir, &name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty(), BELOW);
            let looked = handle.and_then(|handle| {
                let kind = FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
                if wanted {
                    self.look(&handle, kind, &whole, &accounts, &mut found)?;
                }
                Ok(kind)
            });
            let deeper = match looked {
                Err(errno) if AgentError::is_exhaustion(errno) => return Err(refuse(errno, &whole)),
                // Entries that vanished or may not be read are skipped.
                Err(_) => false,
                Ok(kind) => kind == FileType::Directory && levels.len() < self.depth,
            };
            if !deeper {
                continue;
            }
            let inside = levels.last().map(|level| enter(&level.dir, &name));
            match inside
                .map(|dir| dir.and_then(|dir| dir.map(|dir| TreeLevel::open(dir, whole.clone())).transpose()))
            {
                Some(Err(errno)) if AgentError::is_exhaustion(errno) => return Err(refuse(errno, &whole)),
                Some(Ok(Some(level))) => levels.push(level),
                Some(Ok(None) | Err(_)) | None => {}
            }
        }
        Ok(found)
    }

    /// Handles an entry that the globs match: reports it, or reads it.
    fn look(
        &mut self,
        handle: &OwnedFd,
        kind: FileType,
        path: &[u8],
        accounts: &Accounts,
        found: &mut SearchSummary,
    ) -> rustix::io::Result<()> {
        if self.matcher.is_none() {
            if found.entries.len() >= self.max {
                found.truncated = true;
                return Ok(());
            }
            found.entries.push(describe(handle, path.to_vec(), accounts)?);
        } else if kind == FileType::RegularFile {
            let file = reopen(handle, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
            self.read(&file, path, found)?;
        }
        Ok(())
    }

    fn read(&mut self, file: &OwnedFd, path: &[u8], found: &mut SearchSummary) -> rustix::io::Result<()> {
        let Some(matcher) = &self.matcher else { return Ok(()) };
        let mut lines = Lines::new(file);
        let mut held: usize = found.lines.iter().map(|line| line.path.len() + line.content.len()).sum();
        while let Some((number, line)) = lines.next()? {
            if matcher.is_match(line) {
                let content = line[..line.len().min(super::lines::SHOWN_MAX)].to_vec();
                held += path.len() + content.len();
                found.lines.push(MatchedLine { path: path.to_vec(), number, content });
            }
            let full = found.lines.len() >= self.max || held >= BYTES_MAX;
            // The clock is read only now and then, because reading it takes longer than matching a line.
            if full || (number % 4096 == 0 && Instant::now() > self.until) {
                found.truncated = true;
                break;
            }
        }
        Ok(())
    }
}

/// Opens a subdirectory, unless it is on a file system of the kernel.
fn enter(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<Option<OwnedFd>> {
    let inside = open_at(dir, name, DIRECTORY, Mode::empty(), BELOW)?;
    let kind = rustix::fs::fstatfs(&inside)?.f_type;
    #[allow(clippy::unnecessary_cast, reason = "the type of the field differs between machines")]
    let is_kernels = KERNEL_FILE_SYSTEMS.contains(&(kind as i64));
    Ok((!is_kernels).then_some(inside))
}

fn globs(globs: &[Vec<u8>]) -> Result<Globs, AgentError> {
    Globs::parse(globs).map_err(|bad| AgentError::Invalid(bad.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn wanted(path: &std::path::Path) -> SearchOptions {
        SearchOptions {
            path: path.to_str().unwrap().as_bytes().to_vec(),
            depth: 0,
            include: Vec::new(),
            exclude: Vec::new(),
            pattern: Vec::new(),
            literal: false,
            ignore_case: false,
            max: 0,
            limit_ms: 0,
        }
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in [
            ("src/main.rs", &b"fn main() {}\n// TODO one\n"[..]),
            ("src/lib.rs", b"// todo two\r\nlast TODO"),
            ("node_modules/x/index.js", b"TODO hidden"),
            ("data.bin", b"TODO\0TODO"),
            ("notes.txt", b"TODO"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        dir
    }

    fn lines(dir: &tempfile::TempDir, change: impl FnOnce(&mut SearchOptions)) -> Vec<(String, u64, String)> {
        let mut wanted = wanted(dir.path());
        change(&mut wanted);
        let found = Search::plan(wanted).unwrap().run().unwrap();
        let top = dir.path().to_str().unwrap().len() + 1;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        found.lines.iter().map(|l| (text(&l.path)[top..].to_owned(), l.number, text(&l.content))).collect()
    }

    #[test]
    fn lines_are_found_in_text_and_not_in_binaries_links_or_what_is_excluded() {
        let dir = tree();
        let found = lines(&dir, |w| {
            w.pattern = b"TODO".to_vec();
            w.exclude = vec![b"node_modules".to_vec()];
        });
        let expected = [
            ("notes.txt".to_owned(), 1, "TODO".to_owned()),
            ("src/lib.rs".to_owned(), 2, "last TODO".to_owned()),
            ("src/main.rs".to_owned(), 2, "// TODO one".to_owned()),
        ];
        assert_eq!(found, expected);
        let found = lines(&dir, |w| {
            (w.pattern, w.ignore_case) = (b"^// todo \\w+$".to_vec(), true);
            w.include = vec![b"*.rs".to_vec()];
        });
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(lines(&dir, |w| (w.pattern, w.literal) = (b"main()".to_vec(), true)).len(), 1);
    }

    #[test]
    fn names_are_found_by_glob_and_bounds_are_told() {
        let dir = tree();
        let mut all = wanted(dir.path());
        all.include = vec![b"*.rs".to_vec()];
        let names = |found: &SearchSummary| found.entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
        let found = Search::plan(all).unwrap().run().unwrap();
        assert_eq!(names(&found), [b"lib.rs".to_vec(), b"main.rs".to_vec()]);
        let mut one = wanted(dir.path());
        one.max = 1;
        let found = Search::plan(one).unwrap().run().unwrap();
        assert!(found.truncated && found.entries.len() == 1);
        let mut shallow = wanted(dir.path());
        shallow.depth = 1;
        assert_eq!(Search::plan(shallow).unwrap().run().unwrap().entries.len(), 5);
    }

    #[test]
    fn the_kernels_file_systems_are_not_walked() {
        let mut wanted = wanted(std::path::Path::new("/"));
        (wanted.depth, wanted.include) = (2, vec![b"/proc/*".to_vec()]);
        assert!(Search::plan(wanted).unwrap().run().unwrap().entries.is_empty());
    }

    #[test]
    fn patterns_that_cannot_be_are_refused() {
        let dir = tree();
        for bad in ["(", "[z-a]", "(?:a{1000}){1000}", &"(".repeat(100_000)] {
            let mut wanted = wanted(dir.path());
            wanted.pattern = bad.as_bytes().to_vec();
            assert!(matches!(Search::plan(wanted), Err(AgentError::Invalid(_))), "{bad:.20}");
        }
    }
}
