//! Concatenates several archives.

use std::io::{self, Read, Write};

use crate::header::Header;
use crate::{BLOCK, padding};

/// Writes the entries of all archives one after the other, byte by byte, and one end mark. An invalid archive is an
/// error of kind [`io::ErrorKind::Other`].
pub fn concat<R: Read>(
    archives: impl IntoIterator<Item = io::Result<R>>,
    mut to: impl Write,
) -> io::Result<()> {
    for archive in archives {
        let mut archive = archive?;
        while let Some(block) = next_header(&mut archive)? {
            let header = Header::new(&block)
                .ok_or_else(|| io::Error::other("this is not a header of a tar archive"))?;
            let size = header.size().ok_or_else(|| io::Error::other("an entry has an invalid size"))?;
            to.write_all(&block)?;
            let stored = size.saturating_add(padding(size) as u64);
            if io::copy(&mut (&mut archive).take(stored), &mut to)? < stored {
                return Err(io::Error::other("an archive ends in the middle of an entry"));
            }
        }
    }
    to.write_all(&[0; 2 * BLOCK])?;
    to.flush()
}

/// `None`: the archive ended.
fn next_header(archive: &mut impl Read) -> io::Result<Option<[u8; BLOCK]>> {
    let mut block = [0; BLOCK];
    let mut filled = 0;
    while filled < BLOCK {
        match archive.read(&mut block[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::Error::other("an archive ends in the middle of a block")),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((block != [0; BLOCK]).then_some(block))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{TarEntry, read, write};

    fn archive(name: &str, content: &str) -> Vec<u8> {
        let mut archive = write::Archive::new(Vec::new());
        archive.file(name, content.as_bytes()).unwrap();
        archive.finish().unwrap().0
    }

    #[test]
    fn entries_of_all_archives_are_kept_with_their_long_names() {
        let long = "x/".repeat(80) + "b";
        let (one, two) = (archive("a", "A"), archive(&long, &"B".repeat(600)));
        let mut out = Vec::new();
        concat([Ok(&one[..]), Ok(&b""[..]), Ok(&two[..])], &mut out).unwrap();
        let (mut archive, mut entry, mut names) =
            (read::Archive::new(&out[..]), TarEntry::default(), Vec::new());
        while archive.next(&mut entry).unwrap() {
            names.push((String::from_utf8(entry.name.clone()).unwrap(), entry.size));
        }
        assert_eq!(names, [("a".to_owned(), 1), (long, 600)]);
    }

    #[test]
    fn what_is_no_archive_or_is_cut_is_refused() {
        let whole = archive("a", "A");
        for bad in [&whole[..700], &whole[..300], &[b'x'; 600][..]] {
            let refused = concat([Ok(bad)], io::sink()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::Other);
        }
    }
}
