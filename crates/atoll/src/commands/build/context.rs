//! A folder for the server, of a build or of `atoll cp`: a tar in a fixed order, without the files that `.dockerignore`
//! names.
//!
//! Owners are not sent, and times are those of the files; symbolic links are sent as links. Nothing outside the folder
//! is read: no link is followed.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use atoll_image::build::Ignore;
use atoll_tar::{TarEntry, TarKind, write::Archive};

use crate::{
    commands::{archive_stream::Packed, progress::Transfer},
    failure::Failure,
};

/// LIMIT: more is probably a home folder and not a source folder; the server has its own limit.
const ENTRIES_MAX: u64 = 1_000_000;

/// LIMIT: bytes read at once.
const PIECE: usize = 256 << 10;
/// LIMIT: bytes of the holes of a file that are worth another form of its entry.
const HOLES_LEAST: u64 = 16 << 20;

/// Whether a Dockerfile copies files from the folder.
pub(super) fn is_needed(dockerfile: &str) -> bool {
    atoll_image::build::needs_context(dockerfile)
}

/// The files that are not sent.
pub(super) struct Ignored(Ignore);

impl Ignored {
    /// From `FILE.dockerignore` beside the Dockerfile, else from the folder's own.
    pub(super) fn read(folder: &Path, dockerfile: Option<&Path>) -> Result<Self, Failure> {
        let dockerfile = dockerfile.map_or_else(|| folder.join("Dockerfile"), Path::to_path_buf);
        let mut beside = dockerfile.into_os_string();
        beside.push(".dockerignore");
        for path in [PathBuf::from(beside), folder.join(".dockerignore")] {
            match fs::read_to_string(&path) {
                Ok(text) => return Ok(Self(Ignore::parse(&text))),
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
                Err(cause) => return Err(unreadable(&path, &cause)),
            }
        }
        Ok(Self(Ignore::parse("")))
    }
}

/// The content of an archive.
#[derive(Debug, Default)]
pub(in crate::commands) struct PackCount {
    /// Files and links.
    pub(in crate::commands) files: AtomicU64,
    /// Bytes of files.
    pub(in crate::commands) bytes: AtomicU64,
    /// Sockets, pipes and devices.
    pub(in crate::commands) skipped: AtomicU64,
}

/// Starts packing everything below a folder. Large holes stay holes.
pub(in crate::commands) fn pack_all(folder: &Path, transfer: Transfer) -> (Packed, Arc<PackCount>) {
    let counted = Arc::new(PackCount::default());
    let (folder, count) = (folder.to_owned(), Arc::clone(&counted));
    let packed = Packed::begin(transfer, move |into| {
        Walk { keeps_holes: true, ..Walk::new(into, Ignore::parse(""), count) }.all(&folder)
    });
    (packed, counted)
}

/// Starts packing one file under a name, with its holes. `None`: it has no large ones.
pub(in crate::commands) fn pack_holes(path: &Path, name: &str, transfer: Transfer) -> Option<Packed> {
    let about = fs::metadata(path).ok()?;
    large_holes(&fs::File::open(path).ok()?, about.len()).ok()??;
    let (path, name) = (path.to_owned(), name.to_owned());
    Some(Packed::begin(transfer, move |into| {
        let mut walk = Walk { keeps_holes: true, ..Walk::new(into, Ignore::parse(""), Arc::default()) };
        let about = fs::metadata(&path).map_err(|cause| unreadable(&path, &cause))?;
        walk.entry(&path, &name, &about)?;
        walk.tar.finish().map(|_| ()).map_err(|cause| unsendable(&path, &cause))
    }))
}

/// The map of a file whose holes are worth leaving out. A file that is nearly whole is sent in the form that any agent reads.
fn large_holes(file: &fs::File, size: u64) -> std::io::Result<Option<Vec<(u64, u64)>>> {
    let map = atoll_tar::sparse::map(file, size, atoll_tar::sparse::PIECES)?;
    let data = |map: &Vec<(u64, u64)>| map.iter().map(|(_, length)| length).sum::<u64>();
    Ok(map.filter(|map| size - data(map) >= HOLES_LEAST))
}

/// Starts packing.
pub(super) fn pack(folder: &Path, ignored: Ignored, transfer: Transfer) -> Result<Packed, Failure> {
    if !folder.is_dir() {
        return Err(Failure::usage(
            format!("{} is not a folder", folder.display()),
            "the last argument is the folder with the files for COPY, such as .",
        ));
    }
    let folder = folder.to_owned();
    Ok(Packed::begin(transfer, move |into| Walk::new(into, ignored.0, Arc::default()).all(&folder)))
}

struct Walk<W: Write> {
    tar: Archive<W>,
    ignored: Ignore,
    entries: u64,
    count: Arc<PackCount>,
    /// Whether the holes of files are left out.
    keeps_holes: bool,
}

impl<W: Write> Walk<W> {
    fn new(into: W, ignored: Ignore, count: Arc<PackCount>) -> Self {
        Self { tar: Archive::new(into), ignored, entries: 0, count, keeps_holes: false }
    }

    fn all(mut self, root: &Path) -> Result<(), Failure> {
        self.folder(root)?;
        self.tar.finish().map(|_| ()).map_err(|cause| unsendable(root, &cause))
    }

    /// Without recursion, so that a deep tree uses memory and not the stack; folders before their content, names in
    /// order.
    fn folder(&mut self, root: &Path) -> Result<(), Failure> {
        let mut left = vec![(root.to_owned(), String::new())];
        while let Some((path, name)) = left.pop() {
            let about = fs::symlink_metadata(&path).map_err(|cause| unreadable(&path, &cause))?;
            let is_ignored = !name.is_empty() && self.ignored.is_ignored(&name);
            // An exception may include a file below an excluded folder.
            if is_ignored && !(about.is_dir() && self.ignored.has_exceptions()) {
                continue;
            }
            if !name.is_empty() && !is_ignored {
                self.entry(&path, &name, &about)?;
            }
            if about.is_dir() {
                let mut below = names(&path)?;
                // The last one is taken first.
                below.sort_unstable_by(|a, b| b.cmp(a));
                let child =
                    |part: &String| if name.is_empty() { part.clone() } else { format!("{name}/{part}") };
                left.extend(below.iter().map(|part| (path.join(part), child(part))));
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &str, about: &fs::Metadata) -> Result<(), Failure> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(Failure::usage(
                format!("the folder has more than {ENTRIES_MAX} entries"),
                "exclude files with .dockerignore, or build in a smaller folder",
            ));
        }
        let kind = about.file_type();
        if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device() {
            self.count.skipped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if !kind.is_dir() {
            self.count.files.fetch_add(1, Ordering::Relaxed);
        }
        if kind.is_file() {
            self.count.bytes.fetch_add(about.len(), Ordering::Relaxed);
        }
        let mtime = (about.mtime().max(0), 0);
        let mut header = TarEntry { mode: about.mode() & 0o7777, mtime, ..TarEntry::default() };
        header.name = if kind.is_dir() { format!("{name}/") } else { name.to_owned() }.into_bytes();
        let done = if kind.is_dir() {
            header.kind = TarKind::Folder;
            self.tar.entry(&header)
        } else if kind.is_symlink() {
            header.kind = TarKind::Symlink;
            let target = fs::read_link(path).map_err(|cause| unreadable(path, &cause))?;
            header.link = target.into_os_string().into_vec();
            self.tar.entry(&header)
        } else {
            let file = fs::File::open(path).map_err(|cause| unreadable(path, &cause))?;
            header.size = about.len();
            if self.keeps_holes {
                header.map = large_holes(&file, header.size).map_err(|cause| unreadable(path, &cause))?;
            }
            if header.map.is_some() {
                return self.sparse(&header, &file).map_err(|cause| unsendable(path, &cause));
            }
            // A file that grows or shrinks meanwhile must not shift the following entries.
            self.tar.file_from(&header, &mut ExactLength { file, left: about.len() })
        };
        done.map_err(|cause| unsendable(path, &cause))
    }
}

impl<W: Write> Walk<W> {
    /// Sends a file without its holes.
    fn sparse(&mut self, header: &TarEntry, mut file: &fs::File) -> std::io::Result<()> {
        self.tar.entry(header)?;
        let mut buffer = vec![0; PIECE];
        for (offset, length) in header.map.iter().flatten() {
            file.seek(SeekFrom::Start(*offset))?;
            let mut left = *length;
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                file.read_exact(&mut buffer[..most])?;
                self.tar.data(&buffer[..most])?;
                left -= most as u64;
            }
        }
        self.tar.pad(header.data_bytes())
    }
}

/// Reads exactly so many bytes of a file.
struct ExactLength {
    file: fs::File,
    left: u64,
}

impl std::io::Read for ExactLength {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let count = self.file.read(&mut into[..most])?;
        if count == 0 && most > 0 {
            return Err(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                "it changed while it was read",
            ));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn names(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|cause| unreadable(folder, &cause))? {
        let entry = entry.map_err(|cause| unreadable(folder, &cause))?;
        match entry.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(_) => {
                return Err(Failure::usage(
                    format!("{} has a name that is not UTF-8", entry.path().display()),
                    "rename it; COPY cannot name it",
                ));
            }
        }
    }
    Ok(names)
}

fn unreadable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new("io", format!("{} cannot be read: {cause}", path.display()))
        .hint("exclude it with .dockerignore")
}

fn unsendable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new("io", format!("{} could not be sent: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(folder: &Path, ignore: &str) -> Vec<String> {
        let mut walk = Walk::new(Vec::new(), Ignore::parse(ignore), Arc::default());
        walk.folder(folder).expect("packed");
        let bytes = walk.tar.finish().expect("whole").0;
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().expect("a tar");
        entries
            .map(|entry| entry.expect("entry").path().expect("path").to_string_lossy().into_owned())
            .collect()
    }

    fn sample() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("temporary folder");
        for path in ["b/inner", "a", "node_modules/x"] {
            fs::create_dir_all(folder.path().join(path)).expect("folder");
        }
        for path in ["z.txt", "b/inner/f", "a/keep", "a/drop", "node_modules/x/y"] {
            fs::write(folder.path().join(path), path).expect("file");
        }
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).expect("link");
        folder
    }

    #[test]
    fn a_folder_is_packed_in_order_and_links_stay_links() {
        let folder = sample();
        let names = packed(folder.path(), "node_modules\n");
        assert_eq!(names, ["a/", "a/drop", "a/keep", "b/", "b/inner/", "b/inner/f", "link", "z.txt"]);
        assert_eq!(names, packed(folder.path(), "node_modules\n"), "the same twice");
    }

    #[test]
    fn an_exception_brings_back_what_lies_below_something_ignored() {
        let folder = sample();
        let names = packed(folder.path(), "*\n!a/keep\n");
        assert!(names.contains(&"a/keep".to_owned()) && !names.contains(&"a/drop".to_owned()), "{names:?}");
        assert!(!names.contains(&"link".to_owned()), "{names:?}");
    }

    #[test]
    fn a_file_that_shrinks_breaks_the_archive_instead_of_bending_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("f");
        fs::write(&path, "abc").expect("file");
        let mut exactly = ExactLength { file: fs::File::open(&path).expect("file"), left: 5 };
        assert!(std::io::copy(&mut exactly, &mut std::io::sink()).is_err());
        let mut exactly = ExactLength { file: fs::File::open(&path).expect("file"), left: 2 };
        assert_eq!(std::io::copy(&mut exactly, &mut std::io::sink()).expect("two bytes"), 2);
    }
}
