//! Packed layers: unpacking restores the same tree, and hostile streams are refused.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::format::{self, EntryType, PackedEntry, ReadError, Records};
use super::walk::{Walk, open_folder};
use super::{pack, unpack};

fn layer() -> tempfile::TempDir {
    // Attributes `trusted.*` need a file system that supports them.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::create_dir(folder.path().join("upper")).unwrap();
    folder
}

fn packed(layer: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    pack::write(layer, &mut out).unwrap();
    out
}

fn unpacked(stream: &[u8]) -> Result<tempfile::TempDir, ReadError> {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    unpack::read(folder.path(), &mut &*stream)?;
    Ok(folder)
}

/// Everything about a tree that matters, by path.
fn told(layer: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut told = BTreeMap::new();
    let mut first_names: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for part in pack::PARTS.iter().filter(|part| layer.join(part).exists()) {
        let mut walk = Walk::new(open_folder(CWD, layer.join(part)).unwrap()).unwrap();
        while let Some(entry) = walk.next().unwrap() {
            let path = [part.as_bytes(), b"/", walk.path()].concat();
            let at = layer.join(Path::new(std::ffi::OsStr::from_bytes(&path)));
            let is_shared = entry.stat.st_nlink > 1 && entry.kind == FileType::RegularFile;
            let same_as = is_shared
                .then(|| first_names.entry(entry.stat.st_ino).or_insert_with(|| path.clone()).clone());
            let content = match entry.kind {
                FileType::RegularFile => hex::encode(fs::read(&at).unwrap()),
                FileType::Symlink => hex::encode(fs::read_link(&at).unwrap().as_os_str().as_bytes()),
                _ => String::new(),
            };
            let mut names = vec![0; 4096];
            let length = rustix::fs::llistxattr(&at, &mut names[..]).unwrap();
            let attributes: BTreeMap<Vec<u8>, Vec<u8>> = names[..length]
                .split(|byte| *byte == 0)
                .filter(|name| !name.is_empty() && *name != b"trusted.overlay.origin")
                .map(|name| {
                    let mut value = vec![0; 4096];
                    let length = rustix::fs::lgetxattr(&at, name, &mut value[..]).unwrap();
                    (name.to_vec(), value[..length].to_vec())
                })
                .collect();
            let stat = entry.stat;
            told.insert(
                path,
                format!(
                    "{:o} {}:{} {}.{} {} {same_as:?} {attributes:?} {content}",
                    stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_mtime_nsec, stat.st_rdev
                ),
            );
        }
    }
    told
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

#[test]
fn everything_that_a_layer_can_hold_comes_back() {
    let source = layer();
    let at = |path: &str| source.path().join("upper").join(path);
    fs::create_dir_all(at("etc/deep/er")).unwrap();
    fs::create_dir(source.path().join("usr-upper")).unwrap();
    fs::write(source.path().join("usr-upper/program"), vec![7; 100_000]).unwrap();
    fs::write(at("etc/plain"), "text").unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at(&"n".repeat(255)), "long name").unwrap();
    fs::write(source.path().join("upper").join(std::ffi::OsStr::from_bytes(b"\xff\xfe\n=")), "no text")
        .unwrap();
    std::os::unix::fs::chown(at("etc/plain"), Some(1_000), Some(65_535)).unwrap();
    fs::set_permissions(at("etc/plain"), std::os::unix::fs::PermissionsExt::from_mode(0o4751)).unwrap();
    fs::hard_link(at("etc/plain"), at("etc/deep/same")).unwrap();
    fs::hard_link(at("etc/plain"), source.path().join("usr-upper/same")).unwrap();
    symlink("../../../../etc/shadow", at("link")).unwrap();
    symlink("t".repeat(3_000), at("long-link")).unwrap();
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    rustix::fs::mknodat(CWD, at("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    rustix::fs::linkat(CWD, at("gone"), CWD, at("gone-too"), rustix::fs::AtFlags::empty()).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    set(&at("etc"), "trusted.overlay.opaque", b"y");
    set(&at("etc/plain"), "user.note", &[0, 255, 10]);
    set(&at("etc/plain"), "user.a=b", b"odd");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set(&at("etc/plain"), "security.capability", &capability);
    set(&at("etc/deep"), "trusted.overlay.origin", b"of this machine alone");
    let old = rustix::fs::Timespec { tv_sec: -5, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(CWD, at("etc/deep"), &times, rustix::fs::AtFlags::empty()).unwrap();

    let copy = unpacked(&packed(source.path())).unwrap();
    let (mut before, after) = (told(source.path()), told(copy.path()));
    // A socket has no use without the process that made it.
    before.remove(&b"upper/socket"[..]).unwrap();
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (path, told) in &before {
        assert_eq!(*told, after[path], "{}", String::from_utf8_lossy(path));
    }
    // The same tree gives the same stream.
    assert_eq!(packed(source.path()), packed(copy.path()));
}

#[test]
fn holes_stay_holes_and_a_file_of_many_pieces_is_right() {
    let source = layer();
    let path = source.path().join("upper/sparse");
    let file = fs::File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    for piece in 0..300u64 {
        file.write_all_at(&piece.to_le_bytes(), (64 << 20) + piece * (128 << 10)).unwrap();
    }
    file.write_all_at(b"end", (1 << 30) - 3).unwrap();
    fs::File::create(source.path().join("upper/hole")).unwrap().set_len(5 << 30).unwrap();
    let stream = packed(source.path());
    assert!(stream.len() < 4 << 20, "{}", stream.len());
    let copy = unpacked(&stream).unwrap();
    let found = fs::metadata(copy.path().join("upper/sparse")).unwrap();
    assert!(found.len() == 1 << 30 && found.blocks() * 512 < 4 << 20, "{found:?}");
    assert_eq!(fs::metadata(copy.path().join("upper/hole")).unwrap().len(), 5 << 30);
    assert_eq!(packed(copy.path()), stream);
}

#[test]
fn a_very_deep_tree_comes_back_and_a_deeper_one_is_refused() {
    let deep = |levels: u32| {
        let source = layer();
        let mut at = open_folder(CWD, source.path().join("upper")).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = open_folder(&at, "d").unwrap();
        }
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        for name in ["a", "b"] {
            let made = match name {
                "a" => rustix::fs::openat(&at, name, flags, Mode::from_raw_mode(0o600)).map(drop),
                _ => rustix::fs::linkat(&at, "a", &at, name, rustix::fs::AtFlags::empty()),
            };
            made.unwrap();
        }
        source
    };
    let source = deep(5_000);
    let stream = packed(source.path());
    let copy = unpacked(&stream).unwrap();
    assert!(packed(copy.path()) == stream);
    let deeper = deep(33_000);
    let refused = pack::write(deeper.path(), &mut std::io::sink()).unwrap_err();
    assert!(refused.to_string().contains("longer"), "{refused}");
    for folder in [source, copy, deeper] {
        super::clear::remove_tree(&folder.path().join("upper")).unwrap();
    }
}

fn about(kind: EntryType, path: &str) -> PackedEntry {
    PackedEntry {
        kind,
        path: path.into(),
        link: Vec::new(),
        mode: 0o644,
        uid: 0,
        gid: 0,
        seconds: 0,
        nanoseconds: 0,
        size: 0,
        device: (0, 0),
    }
}

/// A stream with the folder `upper` and then these entries.
fn stream(entries: &[(PackedEntry, Records, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    format::begin(&mut out).unwrap();
    let upper = (about(EntryType::Directory, "upper/"), Records::new(), &b""[..]);
    for (about, records, data) in [upper].iter().chain(entries) {
        format::write_head(&mut out, about, records.clone()).unwrap();
        out.write_all(data).unwrap();
        format::pad(&mut out, data.len() as u64).unwrap();
    }
    format::end(&mut out).unwrap();
    out
}

fn one(about: PackedEntry) -> Vec<u8> {
    stream(&[(about, Records::new(), b"")])
}

fn linked(kind: EntryType, path: &str, link: &str) -> PackedEntry {
    PackedEntry { link: link.into(), ..about(kind, path) }
}

#[track_caller]
fn refused(what: &str, stream: &[u8]) {
    match unpacked(stream) {
        Err(ReadError::Damaged(_)) => {}
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn what_an_archive_may_not_hold_is_refused() {
    let file = |path: &str| about(EntryType::Regular, path);
    for path in [
        "/etc/passwd",
        "../x",
        "upper/../../x",
        "upper/./x",
        "upper//x",
        "x",
        "work/x",
        "upper",
        "usr-upper/x",
        "upper/nowhere/x",
        "",
    ] {
        refused(path, &one(file(path)));
    }
    refused("another part", &one(about(EntryType::Directory, "work/")));
    refused("the same part again", &one(about(EntryType::Directory, "upper/")));
    refused("a device", &one(PackedEntry { device: (1, 3), ..about(EntryType::Char, "upper/null") }));
    refused("a block device", &one(about(EntryType::Block, "upper/disk")));
    refused("an unknown kind", &one(about(EntryType::Other(b'7'), "upper/x")));
    refused("an id of the host", &one(PackedEntry { uid: 65_536, ..file("upper/x") }));
    refused("a name that is too long", &one(file(&format!("upper/{}", "n".repeat(256)))));
    for target in ["../../../etc/passwd", "/etc/passwd", "upper/none", "upper", "", "upper/../upper"] {
        refused(target, &one(linked(EntryType::Link, "upper/x", target)));
    }
    let through = [
        (linked(EntryType::Symlink, "upper/l", "/etc"), Records::new(), &b""[..]),
        (file("upper/l/passwd"), Records::new(), b""),
    ];
    refused("through a link", &stream(&through));
    let through = [
        (linked(EntryType::Symlink, "upper/l", "/etc"), Records::new(), &b""[..]),
        (linked(EntryType::Link, "upper/x", "upper/l/passwd"), Records::new(), b""),
    ];
    refused("a second name through a link", &stream(&through));
    let twice = [(file("upper/x"), Records::new(), &b""[..]), (file("upper/x"), Records::new(), b"")];
    refused("twice", &stream(&twice));
    let after = [
        (about(EntryType::Directory, "upper/a/"), Records::new(), &b""[..]),
        (about(EntryType::Directory, "upper/b/"), Records::new(), b""),
        (file("upper/a/x"), Records::new(), b""),
    ];
    refused("after its folder's end", &stream(&after));
    for name in [
        "trusted.other",
        "trusted.overlay.metacopy",
        "security.selinux",
        "nonsense",
        "trusted.atoll.inherited",
    ] {
        let records = vec![([b"SCHILY.xattr.", name.as_bytes()].concat(), b"x".to_vec())];
        refused(name, &stream(&[(file("upper/x"), records, b"")]));
    }
    let away = vec![(b"SCHILY.xattr.trusted.overlay.redirect".to_vec(), b"/../../x".to_vec())];
    refused("a redirect that leads away", &stream(&[(file("upper/x"), away, b"")]));
}

#[test]
fn a_sparse_file_that_lies_about_itself_is_refused() {
    let sparse = |map: &str, size: &str, data: &[u8]| {
        let mut body = map.as_bytes().to_vec();
        body.resize(body.len() + format::padding(body.len() as u64), 0);
        body.extend_from_slice(data);
        let records = vec![
            (b"GNU.sparse.major".to_vec(), b"1".to_vec()),
            (b"GNU.sparse.minor".to_vec(), b"0".to_vec()),
            (b"GNU.sparse.name".to_vec(), b"upper/x".to_vec()),
            (b"GNU.sparse.realsize".to_vec(), size.into()),
        ];
        stream(&[(PackedEntry { size: body.len() as u64, ..about(EntryType::Regular, "x") }, records, &body)])
    };
    let good = unpacked(&sparse("1\n4096\n3\n", "9000", b"abc")).unwrap();
    assert_eq!(fs::metadata(good.path().join("upper/x")).unwrap().len(), 9_000);
    for (map, size, data) in [
        ("1\n4096\n3\n", "4098", &b"abc"[..]),
        ("2\n4096\n3\n4000\n3\n", "9000", b"abcabc"),
        ("1\n4096\n4\n", "9000", b"abc"),
        ("1\n4096\n2\n", "9000", b"abc"),
        ("1\n18446744073709551615\n3\n", "9000", b"abc"),
        ("99999999\n", "9000", b""),
        ("1\n-1\n3\n", "9000", b"abc"),
        ("1\n0\n3\n", "18446744073709551615", b"abc"),
    ] {
        refused(map, &sparse(map, size, data));
    }
}

#[test]
fn a_stream_that_is_cut_anywhere_or_longer_than_it_is_refused() {
    let source = layer();
    fs::write(source.path().join("upper/file"), vec![1; 3_000]).unwrap();
    symlink("t".repeat(200), source.path().join("upper/link")).unwrap();
    let whole = packed(source.path());
    for length in (0..whole.len()).step_by(97).chain([whole.len() - 1, whole.len() - 512]) {
        refused(&format!("{length} bytes"), &whole[..length]);
    }
    refused("something behind", &[&whole[..], &[0; 512]].concat());
    refused("nothing", &[]);
    refused("no files", &[&whole[..1024], &[0; 1024]].concat());
}

#[test]
fn a_socket_with_two_names_is_left_out_by_both() {
    let source = layer();
    let at = |name: &str| source.path().join("upper").join(name);
    let _socket = std::os::unix::net::UnixListener::bind(at("first")).unwrap();
    fs::hard_link(at("first"), at("second")).unwrap();
    fs::write(at("kept"), "data").unwrap();
    let target = tempfile::tempdir_in("/var/tmp").unwrap();
    let inner = target.path().join("inner");
    fs::create_dir(&inner).unwrap();
    unpack::read(&inner, &mut &packed(source.path())[..]).unwrap();
    assert_eq!(fs::read(inner.join("upper/kept")).unwrap(), b"data");
    assert!(!inner.join("upper/first").exists() && !inner.join("upper/second").exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn changed_bytes_never_make_anything_outside(changes in prop::collection::vec((0usize..6_000, any::<u8>()), 1..6)) {
        let source = layer();
        fs::create_dir(source.path().join("upper/d")).unwrap();
        fs::write(source.path().join("upper/d/file"), vec![1; 300]).unwrap();
        symlink("/etc", source.path().join("upper/l")).unwrap();
        fs::hard_link(source.path().join("upper/d/file"), source.path().join("upper/same")).unwrap();
        let mut stream = packed(source.path());
        for (at, byte) in changes {
            let at = at % stream.len();
            stream[at] = byte;
        }
        let outer = tempfile::tempdir_in("/var/tmp").unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let _ = unpack::read(&inner, &mut &stream[..]);
        prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
        for entry in fs::read_dir(&inner).unwrap() {
            let name = entry.unwrap().file_name();
            prop_assert!(name == "upper" || name == "usr-upper");
        }
    }
}
