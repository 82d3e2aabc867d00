//! The allowed names of entries in a layer, and their meaning. Pure functions: no file is accessed.

use super::LayerError;

/// LIMIT: bytes of a path; the kernel allows 4,096 with the NUL.
const PATH_MAX: usize = 4095;
/// LIMIT: bytes of one name in a folder, on every common file system.
const NAME_MAX: usize = 255;
/// LIMIT: components of a path. Walking a tree holds a descriptor per level.
const DEPTH_MAX: usize = 400;
/// Folders on which the engine mounts something. Files of an image below them are never visible.
const COVERED: [&[u8]; 4] = [b"proc", b"sys", b"dev", b".atoll"];
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Internal files of aufs, an old union file system.
const AUFS: &[u8] = b".wh..wh.";

/// The action for an entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EntryAction<'a> {
    /// Set the attributes of the root folder.
    Root,
    /// Make the entry here.
    Place { parent: &'a [u8], name: &'a [u8] },
    /// Hide the entry of lower layers here.
    Whiteout { parent: &'a [u8], name: &'a [u8] },
    /// Hide everything of lower layers in this folder.
    Opaque { folder: &'a [u8] },
    /// Skip the entry: it could never be visible.
    Nothing,
}

/// Normalises a path, without `.` and repeated slashes, or says why it is invalid. `clean` is overwritten.
pub(crate) fn clean(path: &[u8], clean: &mut Vec<u8>) -> Result<(), &'static str> {
    clean.clear();
    if path.starts_with(b"/") {
        return Err("its path is absolute");
    }
    if path.contains(&0) {
        return Err("its path contains a NUL");
    }
    if path.len() > PATH_MAX {
        return Err("its path is too long");
    }
    let mut depth = 0;
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err("its path contains .."),
            _ if part.len() > NAME_MAX => return Err("its name is too long"),
            _ => {}
        }
        depth += 1;
        if depth > DEPTH_MAX {
            return Err("it is nested too deeply");
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(())
}

/// The action for an entry at this normalised path.
pub(crate) fn asks(path: &[u8]) -> Result<EntryAction<'_>, &'static str> {
    if path.is_empty() {
        return Ok(EntryAction::Root);
    }
    let (parent, name) = split(path);
    if is_covered(first(path)) && path.contains(&b'/') {
        return Ok(EntryAction::Nothing);
    }
    for part in parent.split(|&byte| byte == b'/') {
        if part.starts_with(AUFS) {
            return Ok(EntryAction::Nothing);
        }
        if part.starts_with(WHITEOUT) {
            return Err("it is inside a whiteout");
        }
    }
    if name == OPAQUE {
        return Ok(EntryAction::Opaque { folder: parent });
    }
    if name.starts_with(AUFS) {
        return Ok(EntryAction::Nothing);
    }
    match name.strip_prefix(WHITEOUT) {
        None => Ok(EntryAction::Place { parent, name }),
        Some(b"" | b"." | b"..") => Err("it is an invalid whiteout"),
        Some(hidden) => Ok(EntryAction::Whiteout { parent, name: hidden }),
    }
}

/// Whether this is one of the top-level folders on which the engine mounts something: they must be real folders.
pub(crate) fn is_covered(path: &[u8]) -> bool {
    COVERED.contains(&path)
}

/// The parent folder of a normalised path, and the name in it.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn first(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/').next().unwrap_or_default()
}

/// The error for a refused name.
pub(crate) fn refuse(name: &[u8]) -> impl FnOnce(&'static str) -> LayerError {
    move |why| LayerError::refused(name, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn cleaned(path: &[u8]) -> Result<Vec<u8>, &'static str> {
        let mut out = b"old".to_vec();
        clean(path, &mut out).map(|()| out)
    }

    #[test]
    fn paths_get_one_form() {
        for (path, wanted) in [
            (&b"./a//b/./c/"[..], &b"a/b/c"[..]),
            (b"./", b""),
            (b"", b""),
            (b"a..b/...", b"a..b/..."),
            (b"\xff\xfe", b"\xff\xfe"),
        ] {
            assert_eq!(cleaned(path).unwrap(), wanted);
        }
        let long = [b'a'; 256];
        for path in [&b"../x"[..], b"a/../b", b"..", b"/etc/passwd", b"a\0b", b"a/..", &long, &[b'/'; 5000]] {
            assert!(cleaned(path).is_err(), "{path:?}");
        }
        assert!(cleaned(&b"a/".repeat(2100)).is_err());
        assert!(cleaned(&b"a/".repeat(401)).is_err());
        assert!(cleaned(&b"a/".repeat(400)).is_ok());
    }

    #[test]
    fn whiteouts_say_what_they_hide() {
        let parent = &b"d"[..];
        assert_eq!(asks(b"d/.wh.x"), Ok(EntryAction::Whiteout { parent, name: b"x" }));
        assert_eq!(asks(b".wh.x"), Ok(EntryAction::Whiteout { parent: b"", name: b"x" }));
        assert_eq!(asks(b"d/.wh..wh..opq"), Ok(EntryAction::Opaque { folder: b"d" }));
        assert_eq!(asks(b".wh..wh..opq"), Ok(EntryAction::Opaque { folder: b"" }));
        assert_eq!(asks(b"d/.wh..hidden"), Ok(EntryAction::Whiteout { parent, name: b".hidden" }));
        for nothing in [&b".wh..wh.plnk"[..], b".wh..wh.plnk/12.34", b"a/.wh..wh.orph/x", b".wh..wh."] {
            assert_eq!(asks(nothing), Ok(EntryAction::Nothing));
        }
        for wrong in [&b".wh."[..], b"d/.wh.", b".wh...", b"d/.wh..", b".wh.x/y"] {
            assert!(asks(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_lies_below_a_mount_is_nothing() {
        for path in
            [&b"proc/1/mem"[..], b"sys/x", b"dev/null", b"dev/pts/0", b".atoll/agent", b"dev/.wh.null"]
        {
            assert_eq!(asks(path), Ok(EntryAction::Nothing), "{path:?}");
        }
        assert_eq!(asks(b"proc"), Ok(EntryAction::Place { parent: b"", name: b"proc" }));
        assert_eq!(asks(b"a/proc/x"), Ok(EntryAction::Place { parent: b"a/proc", name: b"x" }));
        assert_eq!(asks(b"process/x"), Ok(EntryAction::Place { parent: b"process", name: b"x" }));
    }

    #[test]
    fn any_archive_is_read_or_refused() {
        atoll_robustness::check("tar", |bytes| {
            let (mut archive, mut entry, mut path) =
                (atoll_tar::read::Archive::new(bytes), atoll_tar::TarEntry::default(), Vec::new());
            let (mut entries, mut data) = (0, 0);
            while let Ok(true) = archive.next(&mut entry) {
                entries += 1;
                if clean(&entry.name, &mut path).is_ok() {
                    assert!(!path.split(|byte| *byte == b'/').any(|part| part == b".."));
                    let _ = asks(&path);
                }
                let map = entry.map.as_deref().unwrap_or_default();
                assert!(map.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "pieces in order");
                // The data of every second entry is skipped.
                if entries % 2 == 0 {
                    continue;
                }
                while let Ok(piece @ [_, ..]) = archive.data() {
                    let length = piece.len();
                    archive.took(length);
                    data += length;
                }
            }
            assert!(entries <= bytes.len() / atoll_tar::BLOCK && data <= bytes.len());
        });
    }
}
