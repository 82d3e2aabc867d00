//! The log of a server in the background: `DATA/logs/server.log`, and a bounded number of older files beside it.
//!
//! ```text
//! server.log ─(full)─► server.log.1 ─► server.log.2 … ─► removed
//! start.log            what the last start printed before it could log, and what its helpers print
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::failure::Failure;

/// LIMIT: bytes of one file; a search through it is quick.
const FILE_BYTES: u64 = 16 << 20;
/// LIMIT: older files; with the current one, 96 MiB in all.
const OLDER_FILES: u32 = 5;
/// LIMIT: bytes that are read at once.
const PIECE: usize = 256 << 10;

/// The newest file of the log.
pub(crate) fn log_path(data: &Path) -> PathBuf {
    data.join("logs/server.log")
}

/// What the last start printed.
pub(crate) fn start_path(data: &Path) -> PathBuf {
    data.join("logs/start.log")
}

fn older(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("log.{number}"))
}

/// Makes the folder of the log.
pub(crate) fn make_folder(data: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(data.join("logs"))
}

/// A writer that begins a new file when the current one is full.
#[derive(Debug)]
pub(crate) struct RotatingLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    limit: u64,
}

impl RotatingLog {
    /// Continues the log of this data folder.
    pub(crate) fn open(data: &Path) -> Result<Self, Failure> {
        let path = log_path(data);
        let opened = make_folder(data).and_then(|()| Self::at(path.clone(), FILE_BYTES));
        opened.map_err(|cause| {
            Failure::new("io", format!("the log {} cannot be written: {cause}", path.display()))
                .hint("choose another folder with --data, or use sudo")
        })
    }

    fn at(path: PathBuf, limit: u64) -> io::Result<Self> {
        let file = append_to(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes, limit })
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..OLDER_FILES).rev() {
            rename_if_there(&older(&self.path, number), &older(&self.path, number + 1))?;
        }
        rename_if_there(&self.path, &older(&self.path, 1))?;
        self.file = append_to(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

impl Write for RotatingLog {
    /// One call is one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_full = self.bytes > 0 && self.bytes + line.len() as u64 > self.limit;
        if is_full && self.rotate().is_err() {
            // The disk may be full: the current file is begun anew, so that the log stays bounded.
            self.file.set_len(0)?;
            self.bytes = 0;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads the log, across its files, and follows it.
#[derive(Debug)]
pub(crate) struct LogReader {
    path: PathBuf,
    /// The files to read, the next one last.
    files: Vec<File>,
    inode: u64,
    at: u64,
}

impl LogReader {
    /// From the last `lines` lines on, or from the oldest one.
    pub(crate) fn open(data: &Path, lines: Option<usize>) -> io::Result<Self> {
        let path = log_path(data);
        // The newest first: a file that is renamed meanwhile is read twice rather than never.
        let newest = File::open(&path)?;
        let inode = newest.metadata()?.ino();
        let older = (1..=OLDER_FILES).map_while(|number| File::open(older(&path, number)).ok());
        let mut files: Vec<File> = [newest].into_iter().chain(older).collect();
        let mut at = 0;
        if let Some(lines) = lines {
            let (count, from) = last_lines(&files, lines)?;
            files.truncate(count);
            at = from;
        }
        Ok(Self { path, files, inode, at })
    }

    /// The next bytes; none: the end of the log as it is now.
    pub(crate) fn next_piece(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let Some(file) = self.files.last_mut() else { return Ok(Vec::new()) };
            file.seek(SeekFrom::Start(self.at))?;
            let mut piece = Vec::new();
            Read::take(&*file, PIECE as u64).read_to_end(&mut piece)?;
            if !piece.is_empty() {
                self.at += piece.len() as u64;
                return Ok(piece);
            }
            if self.files.len() > 1 {
                self.files.pop();
                self.at = 0;
            } else if !self.reopen()? {
                return Ok(Vec::new());
            }
        }
    }

    /// Whether the log goes on in another file.
    fn reopen(&mut self) -> io::Result<bool> {
        let Ok(file) = File::open(&self.path) else { return Ok(false) };
        let found = file.metadata()?;
        // Begun anew, because it could not be renamed.
        let is_shorter = found.len() < self.at;
        if found.ino() == self.inode && !is_shorter {
            return Ok(false);
        }
        (self.inode, self.at, self.files) = (found.ino(), 0, vec![file]);
        Ok(true)
    }
}

/// How many of the files, newest first, have the last lines, and where they begin in the oldest of these.
fn last_lines(files: &[File], lines: usize) -> io::Result<(usize, u64)> {
    let mut left = lines;
    for (index, mut file) in files.iter().enumerate() {
        let mut end = file.metadata()?.len();
        let mut is_last_byte = index == 0;
        if lines == 0 {
            return Ok((1, end));
        }
        while end > 0 {
            let begin = end.saturating_sub(PIECE as u64);
            let mut piece = vec![0; usize::try_from(end - begin).map_err(io::Error::other)?];
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(&mut piece)?;
            for (at, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
                // The newline at the end of the log begins no line.
                if std::mem::take(&mut is_last_byte) && begin + at as u64 + 1 == file.metadata()?.len() {
                    continue;
                }
                left = left.saturating_sub(1);
                if left == 0 {
                    return Ok((index + 1, begin + at as u64 + 1));
                }
            }
            end = begin;
        }
    }
    Ok((files.len(), 0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(data: &Path, lines: Option<usize>) -> String {
        let mut reader = LogReader::open(data, lines).unwrap();
        let mut text = Vec::new();
        loop {
            match reader.next_piece().unwrap() {
                piece if piece.is_empty() => return String::from_utf8(text).unwrap(),
                piece => text.extend(piece),
            }
        }
    }

    #[test]
    fn the_log_is_bounded_and_read_across_its_files() {
        let data = tempfile::tempdir().unwrap();
        make_folder(data.path()).unwrap();
        let mut log = RotatingLog::at(log_path(data.path()), 100).unwrap();
        for number in 0..200 {
            log.write_all(format!("line {number:04}\n").as_bytes()).unwrap();
        }
        let files = fs::read_dir(data.path().join("logs")).unwrap().count();
        assert_eq!(files, 1 + OLDER_FILES as usize);
        let whole = read(data.path(), None);
        assert!(
            whole.ends_with("line 0199\n") && whole.len() <= 600 && whole.starts_with("line 01"),
            "{whole}"
        );
        // Continued by the next server.
        drop(log);
        let mut log = RotatingLog::at(log_path(data.path()), 100).unwrap();
        log.write_all(b"line 0200\n").unwrap();
        let text = |range: std::ops::RangeInclusive<u32>| -> String {
            range.map(|n| format!("line {n:04}\n")).collect()
        };
        for count in [1, 2, 9, 10, 11, 25] {
            assert_eq!(
                read(data.path(), Some(count)),
                text(201 - u32::try_from(count).unwrap()..=200),
                "{count}"
            );
        }
        assert_eq!(read(data.path(), Some(0)), "");
        assert_eq!(read(data.path(), Some(10_000)), read(data.path(), None));
    }

    #[test]
    fn a_follower_goes_on_in_the_new_file() {
        let data = tempfile::tempdir().unwrap();
        make_folder(data.path()).unwrap();
        let mut log = RotatingLog::at(log_path(data.path()), 30).unwrap();
        log.write_all(b"one\n").unwrap();
        let mut reader = LogReader::open(data.path(), Some(0)).unwrap();
        assert!(reader.next_piece().unwrap().is_empty());
        log.write_all(b"two, which is long enough\n").unwrap();
        log.write_all(b"three\n").unwrap();
        let mut text = reader.next_piece().unwrap();
        text.extend(reader.next_piece().unwrap());
        assert_eq!(String::from_utf8(text).unwrap(), "two, which is long enough\nthree\n");
    }
}
