//! Combines archives that were sent one by one into one context, each in its own folder. Their content is as untrusted
//! as any context, and is checked when the result is read.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::error::BadContext;
use crate::oci::unzip::Unzip;
use atoll_tar::read::Archive;
use atoll_tar::{BLOCK, TarEntry, TarKind, write};

const BUFFER: usize = 256 << 10;

/// Writes the tar of all `parts` (a folder, and an archive: plain, gzip or zstd) to `to`, with at most `limit` bytes.
/// Blocking.
pub fn gather(
    parts: &[(&str, &Path)],
    to: &mut dyn Write,
    limit: u64,
    cancel: &CancellationToken,
) -> Result<(), BadContext> {
    let out = write::Archive::new(BufWriter::with_capacity(BUFFER, to));
    let mut out = Gathered { out, bytes: 0, limit };
    for (folder, path) in parts {
        let file = File::open(path).map_err(BadContext::Read)?;
        let unzip = Unzip::new(file).map_err(not_proper)?;
        out.add(folder, unzip, cancel)?;
    }
    out.out.finish().map(drop).map_err(BadContext::Read)
}

struct Gathered<W: Write> {
    out: write::Archive<W>,
    bytes: u64,
    limit: u64,
}

impl<W: Write> Gathered<W> {
    fn add(&mut self, folder: &str, from: impl Read, cancel: &CancellationToken) -> Result<(), BadContext> {
        let mut archive = Archive::new(BufReader::with_capacity(BUFFER, from));
        let mut entry = TarEntry::default();
        while archive.next(&mut entry).map_err(|error| BadContext::Archive(error.into()))? {
            if cancel.is_cancelled() {
                return Err(BadContext::Cancelled);
            }
            if entry.map.is_some() {
                let path = String::from_utf8_lossy(&entry.name).into_owned();
                let why = "which is stored with holes; pack it without --sparse";
                return Err(BadContext::Entry { path, why });
            }
            entry.name = below(folder, &entry.name);
            if entry.kind == TarKind::HardLink {
                entry.link = below(folder, &entry.link);
            }
            self.count(BLOCK as u64)?;
            self.out.entry(&entry).map_err(BadContext::Read)?;
            if entry.kind == TarKind::File {
                self.data(&mut archive)?;
                self.out.pad(entry.size).map_err(BadContext::Read)?;
            }
        }
        Ok(())
    }

    fn data<R: io::BufRead>(&mut self, archive: &mut Archive<R>) -> Result<(), BadContext> {
        loop {
            let piece = archive.data().map_err(|error| BadContext::Archive(error.into()))?;
            let took = piece.len();
            if took == 0 {
                return Ok(());
            }
            self.out.data(piece).map_err(BadContext::Read)?;
            archive.took(took);
            self.count(took as u64)?;
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), BadContext> {
        self.bytes += bytes;
        if self.bytes > self.limit {
            return Err(BadContext::TooMany { what: "bytes", limit: self.limit });
        }
        Ok(())
    }
}

fn below(folder: &str, name: &[u8]) -> Vec<u8> {
    [folder.as_bytes(), b"/", name].concat()
}

fn not_proper(cause: io::Error) -> BadContext {
    BadContext::Archive(crate::LayerError::Source(cause))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::build::BuildContext;

    fn tar(files: &[(&str, &str)]) -> Vec<u8> {
        let mut out = write::Archive::new(Vec::new());
        for (name, content) in files {
            out.file(name, content.as_bytes()).unwrap();
        }
        out.finish().unwrap().0
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all(bytes).unwrap();
        zip.finish().unwrap()
    }

    #[test]
    fn every_archive_has_a_folder_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let long = format!("deep/{}", "x".repeat(150));
        std::fs::write(&one, tar(&[("a.txt", "1"), (&long, "2")])).unwrap();
        std::fs::write(&two, gzip(&tar(&[("a.txt", "3")]))).unwrap();
        let whole = dir.path().join("whole");
        let mut file = File::create(&whole).unwrap();
        let parts = [("first", one.as_path()), ("second", two.as_path())];
        let cancel = CancellationToken::new();
        gather(&parts, &mut file, 1 << 20, &cancel).unwrap();
        let context = BuildContext::open(&whole, &cancel).unwrap();
        for (path, wanted) in
            [("first/a.txt", "1"), (format!("first/{long}").as_str(), "2"), ("second/a.txt", "3")]
        {
            assert_eq!(context.read_text(path, 10).unwrap().as_deref(), Some(wanted), "{path}");
        }
    }

    #[test]
    fn what_is_no_archive_or_too_much_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sent");
        let cancel = CancellationToken::new();
        let tried = |bytes: Vec<u8>, limit: u64| {
            std::fs::write(&path, bytes).unwrap();
            gather(&[("x", &path)], &mut Vec::new(), limit, &cancel)
        };
        assert!(matches!(tried(vec![b'z'; 2_000], 1 << 20), Err(BadContext::Archive(_))));
        let bomb = gzip(&tar(&[("zeros", &"\0".repeat(1 << 20))]));
        assert!(matches!(tried(bomb, 1 << 19), Err(BadContext::TooMany { .. })));
        let whole = tar(&[("a", "b")]);
        assert!(matches!(tried(whole[..700].to_vec(), 1 << 20), Err(BadContext::Archive(_))));
        assert!(tried(whole, 1 << 20).is_ok());
    }
}
