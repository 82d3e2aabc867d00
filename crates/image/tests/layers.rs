//! Unpacking of valid, unusual and hostile archives. Needs root: owners and whiteouts are real.
#![allow(clippy::unwrap_used)]

use crate::support;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;

use crate::support::{Store, Tar, bounds};
use atoll_image::{Bounds, LayerError};
use atoll_model::ErrorKind;
use tar::EntryType;
use tokio_util::sync::CancellationToken;

#[test]
fn an_ordinary_layer_becomes_files_with_all_they_have() {
    let store = Store::new();
    let layer = store.add(
        Tar::new()
            .folder("etc/", 0o755)
            .file("etc/hosts", b"hello")
            .file_as("usr/bin/sudo", 0o4755, (0, 0))
            .file_as("home/file", 0o640, (1000, 1001))
            .symlink("etc/mtab", "../../../proc/mounts")
            .hard_link("etc/other", "etc/hosts")
            .folder("tmp/", 0o1777)
            .raw(EntryType::Fifo, b"pipe", b"", b"", |header| header.set_mode(0o622)),
    );
    let tree = store.layer_tree(&layer);
    for (path, wanted) in [
        ("etc/hosts", "file 0644 0:0 hello"),
        ("etc/other", "file 0644 0:0 hello"),
        ("usr", "folder 0755 0:0"),
        ("usr/bin/sudo", "file 4755 0:0 x"),
        ("home/file", "file 0640 1000:1001 x"),
        ("etc/mtab", "-> ../../../proc/mounts"),
        ("tmp", "folder 1777 0:0"),
        ("pipe", "fifo 0622 0:0"),
    ] {
        assert_eq!(tree.get(path).map(String::as_str), Some(wanted), "{path}");
    }
    let files = store.files(&layer.diff_id);
    let about = |name: &str| std::fs::symlink_metadata(files.join(name)).unwrap();
    assert_eq!(about("etc/hosts").ino(), about("etc/other").ino());
    // Folders too: entries made in them later do not change their time.
    for name in ["etc", "etc/hosts", "tmp", "etc/mtab", "pipe"] {
        assert_eq!(about(name).mtime(), 1_000_000_000, "{name}");
    }
    assert_eq!(layer.implied, 3, "usr, usr/bin and home were never named");
    assert_eq!((layer.entries, layer.bytes), (8, 7));
}

#[test]
fn the_same_bytes_give_the_same_layer_and_other_bytes_another() {
    let store = Store::new();
    let first = store.add(Tar::new().file("a", b"1"));
    assert_eq!(store.add(Tar::new().file("a", b"1")), first);
    assert_ne!(store.add(Tar::new().file("a", b"2")).diff_id, first.diff_id);
    let trailing = [Tar::new().file("a", b"1").done(), vec![0; 4096]].concat();
    assert_ne!(store.try_add(&trailing).unwrap().diff_id, first.diff_id, "what follows the end counts too");
}

#[test]
fn a_layer_that_is_not_the_expected_one_is_damaged_and_leaves_nothing() {
    let store = Store::new();
    let other = store.add(Tar::new().file("b", b""));
    let before = store.tree(".");
    let tar = Tar::new().file("a", b"").done();
    let wanted = atoll_image::DiffId(atoll_image::Digest::of(b"another"));
    let error = store.images.add_layer(Some(&wanted), &tar[..], &CancellationToken::new()).unwrap_err();
    assert!(matches!(error, LayerError::WrongDigest { .. }), "{error:?}");
    assert_eq!(store.tree("."), before);
    assert!(!store.images.has_layer(&wanted) && store.images.has_layer(&other.diff_id));
}

#[test]
fn whiteouts_and_opaque_folders_have_the_form_of_the_overlay() {
    let store = Store::new();
    let layer = store.add(
        Tar::new()
            .file("etc/.wh.gone", b"")
            .folder("var/", 0o755)
            .file("var/.wh..wh..opq", b"")
            .file("var/new", b"n")
            .file(".wh..wh.plnk/123.456", b"")
            .file(".wh..wh.aufs", b"")
            // Hidden and made again in the same layer, in both orders.
            .file(".wh.again", b"")
            .folder("again/", 0o700)
            .folder("before/", 0o700)
            .file(".wh.before", b"")
            .file(".wh.below", b"")
            .file("below/deep/file", b"d")
            .file(".wh.plain", b"")
            .file("plain", b"p"),
    );
    let tree = store.layer_tree(&layer);
    let expected = [
        ("again", "folder 0700 0:0 opaque"),
        ("before", "folder 0700 0:0 opaque"),
        ("below", "folder 0755 0:0 opaque"),
        ("below/deep", "folder 0755 0:0"),
        ("below/deep/file", "file 0644 0:0 d"),
        ("etc", "folder 0755 0:0"),
        ("etc/gone", "whiteout"),
        ("plain", "file 0644 0:0 p"),
        ("var", "folder 0755 0:0 opaque"),
        ("var/new", "file 0644 0:0 n"),
    ];
    assert_eq!(tree.into_iter().collect::<Vec<_>>(), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn the_last_entry_of_a_name_wins_whatever_it_was_before() {
    let store = Store::new();
    let layer = store.add(
        Tar::new()
            .file("a", b"first")
            .file("a", b"second")
            .file("b/c/d", b"")
            .symlink("b", "/etc")
            .symlink("c", "/etc")
            .folder("c/", 0o711)
            .file("c/inside", b"in")
            .folder("e/", 0o700)
            .folder("e/", 0o755)
            .file("f", b"")
            .hard_link("g", "a")
            .file("a", b"third"),
    );
    let expected = [
        ("a", "file 0644 0:0 third"),
        ("b", "-> /etc"),
        ("c", "folder 0711 0:0"),
        ("c/inside", "file 0644 0:0 in"),
        ("e", "folder 0755 0:0"),
        ("f", "file 0644 0:0 "),
        ("g", "file 0644 0:0 second"),
    ];
    let tree: Vec<_> = store.layer_tree(&layer).into_iter().collect();
    assert_eq!(tree, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn slips_are_refused_by_name_and_nothing_is_written_outside() {
    let store = Store::new();
    let outside = store.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "untouched").unwrap();
    let out = outside.to_str().unwrap();
    let before = support::tree(&outside);
    let long = "n".repeat(99);
    for (tar, name) in [
        (Tar::new().file("../x", b""), "../x"),
        (Tar::new().file("a/../../x", b""), "a/../../x"),
        (Tar::new().file("/etc/passwd", b""), "/etc/passwd"),
        (Tar::new().folder("..", 0o777), ".."),
        (Tar::new().symlink("l", out).file("l/file", b"evil"), "l/file"),
        (Tar::new().symlink("l", out).folder("l/d/", 0o777), "l/d/"),
        (Tar::new().symlink("l", "..").symlink("l/x", "y"), "l/x"),
        (Tar::new().symlink("l", out).hard_link("h", "l/file"), "h"),
        (Tar::new().symlink("l", out).file("l/.wh.file", b""), "l/.wh.file"),
        (Tar::new().symlink("l", out).file("l/.wh..wh..opq", b""), "l/.wh..wh..opq"),
        (Tar::new().file("f", b"").file("f/below", b""), "f/below"),
        (Tar::new().hard_link("h", "../outside/file"), "h"),
        (Tar::new().hard_link("h", &format!("{out}/file")[..99.min(out.len() + 5)]), "h"),
        (Tar::new().hard_link("h", "etc/passwd"), "h"),
        (Tar::new().hard_link("h", "h"), "h"),
        (Tar::new().folder("d", 0o755).hard_link("h", "d"), "h"),
        (Tar::new().file(".wh.x", b"").hard_link("h", "x"), "h"),
        (Tar::new().file("d/f", b"").hard_link("d", "d/f"), "d"),
        (Tar::new().file(".wh.", b""), ".wh."),
        (Tar::new().file(".wh..", b""), ".wh.."),
        (Tar::new().file("a/.wh...", b""), "a/.wh..."),
        (Tar::new().file(".wh.x/y", b""), ".wh.x/y"),
        (Tar::new().symlink("proc", "/etc"), "proc"),
        (Tar::new().file("sys", b""), "sys"),
        (Tar::new().symlink("./dev", "x"), "./dev"),
        (Tar::new().symlink(".atoll", "x"), ".atoll"),
        (Tar::new().hard_link("dev", "x"), "dev"),
        (Tar::new().symlink("empty", ""), "empty"),
        (Tar::new().file("", b""), ""),
        (Tar::new().raw(EntryType::Char, b"disk", b"", b"", |_| ()), "disk"),
        (Tar::new().raw(EntryType::Block, b"a/sda", b"", b"", |_| ()), "a/sda"),
        (Tar::new().raw(EntryType::new(b'M'), b"volume", b"", b"", |_| ()), "volume"),
        (
            Tar::new().pax(&[("path", format!("{}/{long}", "a/".repeat(2100)).as_bytes())]).file("x", b""),
            "a/a/",
        ),
        (Tar::new().pax(&[("path", "a".repeat(256).as_bytes())]).file("x", b""), "aaaa"),
    ] {
        let (entry, why) = store.refused(tar);
        assert!(entry.starts_with(&format!("{:?}", name)[..=name.len()]), "{entry} is not {name} ({why})");
    }
    assert_eq!(support::tree(&outside), before);
    let nul = Tar::new().pax(&[("path", b"a\0b")]).file("x", b"").done();
    assert!(matches!(store.try_add(&nul), Err(LayerError::BadArchive { .. })));
}

#[test]
fn what_lies_below_the_engines_own_mounts_is_left_out_and_counted() {
    let store = Store::new();
    let layer = store.add(
        Tar::new()
            .folder("dev/", 0o755)
            .raw(EntryType::Char, b"dev/sda", b"", b"", |_| ())
            .symlink("dev/null", "/proc/sysrq-trigger")
            .file("proc/1/mem", b"")
            .file("sys/x", b"")
            .file(".atoll/atoll-agent", b"evil")
            .file("ok", b""),
    );
    assert_eq!(store.layer_tree(&layer).into_keys().collect::<Vec<_>>(), ["dev", "ok"]);
    assert_eq!(layer.notes.values().sum::<u64>(), 5);
}

#[test]
fn owners_that_no_sandbox_has_become_nobody() {
    let store = Store::new();
    let layer = store.add(
        Tar::new()
            .file_as("a", 0o644, (65_536, 0))
            .file_as("b", 0o644, (65_535, 1_000_000))
            .pax(&[("uid", b"4294967296000"), ("gid", b"7")])
            .file("c", b"x"),
    );
    let tree: Vec<_> = store.layer_tree(&layer).into_values().collect();
    assert_eq!(tree, ["file 0644 65534:0 x", "file 0644 65535:65534 x", "file 0644 65534:7 x"]);
    assert_eq!(layer.notes.values().sum::<u64>(), 3);
}

#[test]
fn attributes_that_mean_something_inside_are_kept_and_others_are_not() {
    let store = Store::new();
    // Version 2, effective, CAP_NET_RAW.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let layer = store.add(
        Tar::new()
            .pax(&[
                ("SCHILY.xattr.security.capability", &capability),
                ("SCHILY.xattr.user.note", b"a\0b"),
                ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.security.selinux", b"x"),
                ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ])
            .file_as("ping", 0o755, (5, 5))
            .pax(&[("SCHILY.xattr.trusted.overlay.opaque", b"y"), ("SCHILY.xattr.user.dir", b"d")])
            .folder("d/", 0o755)
            .pax(&[("SCHILY.xattr.user.huge", &vec![b'h'; 20_000])])
            .file("huge", b"kept"),
    );
    let files = store.files(&layer.diff_id);
    let names = |path: &str| {
        let mut list = [0; 512];
        let length = rustix::fs::listxattr(files.join(path), &mut list[..]).unwrap();
        let names = list[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let mut names: Vec<_> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names("ping"), ["security.capability", "user.note"]);
    assert_eq!(names("d"), ["user.dir"]);
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(files.join("ping"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"a\0b");
    assert!(layer.notes.values().sum::<u64>() >= 5, "{:?}", layer.notes);
    let wrong = Tar::new().pax(&[("SCHILY.xattr.security.capability", b"short")]).file("bad", b"");
    assert_eq!(store.refused(wrong).0, "\"bad\"");
}

#[test]
fn names_of_any_bytes_and_any_length_are_kept() {
    let store = Store::new();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(250));
    let gnu = format!("{}/gnu", "g".repeat(180));
    let layer = store.add(
        Tar::new()
            .raw(EntryType::Regular, b"latin-\xe4\xff", b"", b"l", |_| ())
            .pax(&[("path", long.as_bytes()), ("mtime", b"1234567890.5")])
            .file("short", b"p")
            .raw(EntryType::GNULongName, b"././@LongLink", b"", format!("{gnu}\0").as_bytes(), |_| ())
            .file("short", b"g")
            .raw(EntryType::GNULongLink, b"././@LongLink", b"", &[b't'; 300], |_| ())
            .symlink("link", "short"),
    );
    let tree = store.layer_tree(&layer);
    assert_eq!(tree["latin-\\xe4\\xff"], "file 0644 0:0 l");
    assert_eq!((tree[&long].as_str(), tree[&gnu].as_str()), ("file 0644 0:0 p", "file 0644 0:0 g"));
    assert_eq!(tree["link"], format!("-> {}", "t".repeat(300)));
    let about = std::fs::metadata(store.files(&layer.diff_id).join(&long)).unwrap();
    assert_eq!((about.mtime(), about.mtime_nsec()), (1_234_567_890, 500_000_000));
}

#[test]
fn sparse_files_are_stretched_and_stay_sparse() {
    let store = Store::new();
    // The forms in which GNU tar writes a file of 1 MiB with data at 512 KiB: its own, and each PAX form.
    let data = [b'x'; 4096];
    let old = Tar::new().raw(EntryType::GNUSparse, b"old", b"", &data, |header| {
        let bytes = header.as_mut_bytes();
        bytes[257..265].copy_from_slice(b"ustar  \0");
        bytes[386..398].copy_from_slice(b"00002000000\0");
        bytes[398..410].copy_from_slice(b"00000010000\0");
        bytes[483..495].copy_from_slice(b"00004000000\0");
    });
    let v00 = old
        .pax(&[
            ("GNU.sparse.size", b"1048576"),
            ("GNU.sparse.numblocks", b"1"),
            ("GNU.sparse.offset", b"524288"),
            ("GNU.sparse.numbytes", b"4096"),
        ])
        .file("v00", &data);
    let v01 = v00
        .pax(&[
            ("GNU.sparse.size", b"1048576"),
            ("GNU.sparse.name", b"v01"),
            ("GNU.sparse.map", b"524288,4096"),
        ])
        .file("GNUSparseFile.0/v01", &data);
    let mut map = b"1\n524288\n4096\n".to_vec();
    map.resize(512, 0);
    map.extend_from_slice(&data);
    let all = v01
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"v10"),
            ("GNU.sparse.realsize", b"1048576"),
        ])
        .file("GNUSparseFile.0/v10", &map);
    let layer = store.add(all);
    let mut wanted = vec![0; 1 << 20];
    wanted[524_288..528_384].fill(b'x');
    for name in ["old", "v00", "v01", "v10"] {
        let path = store.files(&layer.diff_id).join(name);
        assert!(std::fs::read(&path).unwrap() == wanted, "{name}");
        assert!(std::fs::metadata(&path).unwrap().blocks() < 64, "{name} is not sparse");
    }
    assert_eq!(layer.bytes, 4 << 20, "holes count");
    for map in [&b"0,9999999"[..], b"0,1,0,1", b"0", b"18446744073709551615,2", b"a,b"] {
        let tar =
            Tar::new().pax(&[("GNU.sparse.size", b"100"), ("GNU.sparse.map", map)]).file("bad", b"xx").done();
        assert!(store.try_add(&tar).is_err(), "{map:?}");
    }
}

#[test]
fn broken_archives_are_refused_wherever_they_break() {
    let store = Store::new();
    let whole = Tar::new().folder("d/", 0o755).file("d/file", &[b'x'; 2000]).symlink("l", "x").done();
    let before = store.tree(".");
    for cut in (1..whole.len() - 1024).step_by(97) {
        let result = store.try_add(&whole[..cut]);
        // The archive may end after an entry: old programs write no blocks of zeros.
        let may = [512, 512 + 512 + 2048, 512 + 512 + 2048 + 512].contains(&cut);
        assert_eq!(result.is_ok(), may, "cut at {cut}");
    }
    for at in (0..512).step_by(7) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x55;
        assert!(store.try_add(&flipped).is_err(), "a flipped byte at {at}");
    }
    let gap = Tar::new().file("a", b"").bytes(&[0; 512]).file("b", b"").done();
    assert!(matches!(store.try_add(&gap), Err(LayerError::BadArchive { .. })));
    assert!(store.try_add(b"this is no archive").is_err());
    assert!(matches!(store.try_add(&[7; 4096]), Err(LayerError::BadArchive { at: 512, .. })));
    assert_eq!(store.tree("."), before);
}

#[test]
fn bombs_meet_their_bounds_and_leave_nothing() {
    let small = Bounds { layer_bytes: 10 << 20, entries: 1000, ..bounds() };
    let store = Store::with(small);
    let before = store.tree(".");
    let error = |tar: &[u8]| store.try_add(tar).unwrap_err();
    let many = (0..1001).fold(Tar::new(), |tar, at| tar.file(&format!("f{at}"), b""));
    assert!(matches!(error(&many.done()), LayerError::TooBig { what: "entries", limit: 1000 }));
    let implied = (0..400).fold(Tar::new(), |tar, at| tar.file(&format!("{at}/a/f"), b""));
    assert!(matches!(error(&implied.done()), LayerError::TooBig { what: "entries", .. }), "folders count");
    let sparse =
        Tar::new().pax(&[("GNU.sparse.size", b"1099511627776"), ("GNU.sparse.map", b"0,1")]).file("s", b"x");
    assert!(matches!(error(&sparse.done()), LayerError::TooBig { what: "bytes", .. }));
    // A wrong size is detected before a byte is written.
    let huge = Tar::new().pax(&[("size", b"18446744073709551615")]).file("h", b"x");
    assert!(matches!(error(&huge.done()), LayerError::TooBig { what: "bytes", .. }));
    let again = (0..11).fold(Tar::new(), |tar, _| tar.file("same", &vec![0; 1 << 20]));
    assert!(matches!(error(&again.done()), LayerError::TooBig { what: "bytes", .. }));
    let empty = Tar::new().done();
    let tail = empty.chain(std::io::repeat(0).take(2 << 30));
    let result = store.images.add_layer(None, tail, &CancellationToken::new());
    assert!(matches!(result, Err(LayerError::TooBig { .. })), "what follows the end is bounded: {result:?}");
    assert_eq!(
        error(&Tar::new().pax(&[("comment", &vec![b'c'; 2 << 20])]).file("x", b"").done()).kind(),
        ErrorKind::Invalid
    );
    assert_eq!(store.tree("."), before);
}

#[test]
fn a_disk_without_room_is_left_alone() {
    let store = Store::with(Bounds { disk: atoll_disk::Reserve::new(u64::MAX), ..bounds() });
    let before = store.tree(".");
    let error = store.try_add(&Tar::new().file("a", b"").done()).unwrap_err();
    assert!(matches!(error, LayerError::NoRoom { reserve: u64::MAX, .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(store.images.room_for(1).is_err());
    assert_eq!(store.tree("."), before);
}

#[test]
fn a_cancelled_or_failing_source_leaves_nothing() {
    let store = Store::new();
    let before = store.tree(".");
    let cancel = CancellationToken::new();
    cancel.cancel();
    let tar = Tar::new().file("a", b"").done();
    assert!(matches!(store.images.add_layer(None, &tar[..], &cancel), Err(LayerError::Cancelled)));
    struct Fails(Vec<u8>);
    impl Read for Fails {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            match self.0.is_empty() {
                true => Err(std::io::Error::other("the line is dead")),
                false => {
                    into[..self.0.len()].copy_from_slice(&self.0);
                    Ok(std::mem::take(&mut self.0).len())
                }
            }
        }
    }
    let result = store.images.add_layer(None, Fails(tar[..512].to_vec()), &CancellationToken::new());
    let Err(LayerError::Source(cause)) = result else { panic!("{result:?}") };
    assert_eq!(cause.to_string(), "the line is dead");
    assert_eq!(store.tree("."), before);
}

#[test]
fn what_gnu_tar_writes_is_read_and_what_we_write_gnu_tar_reads() {
    let store = Store::new();
    let work = tempfile::tempdir().unwrap();
    let from = work.path().join("from");
    std::fs::create_dir_all(from.join("deep/er")).unwrap();
    std::fs::write(from.join("deep/er").join("n".repeat(200)), "long").unwrap();
    std::os::unix::fs::symlink("t".repeat(200), from.join("link")).unwrap();
    let mut sparse = std::fs::File::create(from.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all(b"head").unwrap();
    for format in ["gnu", "pax", "ustar", "oldgnu"] {
        if format == "ustar" {
            continue; // Names of 200 bytes do not fit.
        }
        let archive = work.path().join("a.tar");
        let tar = |arguments: &[&str], folder: &std::path::Path| {
            let command = std::process::Command::new("tar").arg("-C").arg(folder).args(arguments).status();
            assert!(command.unwrap().success());
        };
        tar(&["--sparse", &format!("--format={format}"), "-cf", archive.to_str().unwrap(), "."], &from);
        let layer = store.try_add(&std::fs::read(&archive).unwrap()).unwrap();
        assert_eq!(store.layer_tree(&layer), support::tree(&from), "{format}");
        let mut packed = Vec::new();
        let done =
            atoll_image::layers::pack(&store.files(&layer.diff_id), &mut packed, &CancellationToken::new())
                .unwrap();
        assert_eq!(done.tar_bytes, packed.len() as u64);
        std::fs::write(&archive, &packed).unwrap();
        let out = work.path().join(format);
        std::fs::create_dir(&out).unwrap();
        tar(&["-xf", archive.to_str().unwrap()], &out);
        assert_eq!(support::tree(&out), support::tree(&from), "{format}");
    }
}

#[test]
fn a_packed_layer_is_the_same_layer_again() {
    let store = Store::new();
    let first = store.add(
        Tar::new()
            .folder("d/", 0o750)
            .file("d/.wh..wh..opq", b"")
            .file("d/.wh.gone", b"")
            .file("d/.wh..hidden", b"")
            .file_as("d/setuid", 0o4755, (1, 2))
            .pax(&[("SCHILY.xattr.user.a", b"b")])
            .file("d/x", b"data")
            .hard_link("d/y", "d/x")
            .symlink("l", "d/x")
            .raw(EntryType::Fifo, b"p", b"", b"", |_| ()),
    );
    let pack = |layer: &atoll_image::DiffId| {
        let mut bytes = Vec::new();
        atoll_image::layers::pack(&store.files(layer), &mut bytes, &CancellationToken::new()).unwrap();
        bytes
    };
    let packed = pack(&first.diff_id);
    let again = store.try_add(&packed).unwrap();
    assert_eq!(store.layer_tree(&again), store.layer_tree(&first));
    assert!(pack(&again.diff_id) == packed, "packing is deterministic");
}

#[test]
fn many_threads_that_add_the_same_layer_share_one_flight() {
    let store = Store::new();
    let tar = (0..200).fold(Tar::new(), |tar, at| tar.file(&format!("f{at}"), b"x")).done();
    let id = atoll_image::DiffId(atoll_image::Digest::of(&tar));
    std::thread::scope(|scope| {
        for at in 0..8 {
            let (store, tar) = (&store, &tar);
            scope.spawn(move || {
                let expected = (at % 4 != 0).then_some(&id);
                let layer = store.images.add_layer(expected, &tar[..], &CancellationToken::new());
                assert_eq!(layer.unwrap().diff_id, id);
            });
        }
    });
    assert_eq!(std::fs::read_dir(store.dir.path().join("images/layers")).unwrap().count(), 1);
}

#[test]
fn a_layer_that_is_here_is_given_only_to_who_has_its_bytes() {
    let store = Store::new();
    let tar = Tar::new().file("secret", b"s").done();
    let id = store.add(Tar::new().file("secret", b"s")).diff_id;
    let other = Tar::new().file("mine", b"m").done();
    let longer = [&tar[..], &[0]].concat();
    for wrong in [&other[..], &longer[..], &tar[..tar.len() - 1], b""] {
        let error = store.images.add_layer(Some(&id), wrong, &CancellationToken::new()).unwrap_err();
        assert!(matches!(error, LayerError::WrongDigest { .. }), "{error}");
    }
    // An endless archive is not read for ever.
    let error = store.images.add_layer(Some(&id), std::io::repeat(0), &CancellationToken::new()).unwrap_err();
    assert!(matches!(error, LayerError::WrongDigest { .. }), "{error}");
    assert_eq!(store.images.add_layer(Some(&id), &tar[..], &CancellationToken::new()).unwrap().diff_id, id);
}

#[test]
fn who_waits_for_a_layer_that_another_unpacks_can_be_told_to_stop() {
    let store = Store::new();
    let tar = Tar::new().file("a", b"a").done();
    let id = atoll_image::DiffId(atoll_image::Digest::of(&tar));
    struct Stuck(std::sync::mpsc::Receiver<()>);
    impl Read for Stuck {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    }
    let (release, stuck) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let store = &store;
        scope.spawn(move || store.images.add_layer(Some(&id), Stuck(stuck), &CancellationToken::new()));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let cancel = CancellationToken::new();
        cancel.cancel();
        let error = store.images.add_layer(Some(&id), &tar[..], &cancel).unwrap_err();
        assert!(matches!(error, LayerError::Cancelled), "{error}");
        drop(release);
    });
}

#[test]
fn zeros_take_no_disk_and_are_read_as_zeros() {
    use std::os::unix::fs::MetadataExt;
    let store = Store::new();
    let mut content = vec![0; 8 << 20];
    for at in [0, 100, 4095, 1 << 20, (5 << 20) + 4097, (8 << 20) - 1] {
        content[at] = 7;
    }
    let tar = Tar::new().file("some", &content).file("none", &vec![0; (1 << 20) + 5]).file("few", &[0; 3]);
    let files = store.files(&store.add(tar).diff_id);
    assert!(std::fs::read(files.join("some")).unwrap() == content);
    assert_eq!(std::fs::read(files.join("none")).unwrap(), vec![0; (1 << 20) + 5]);
    assert_eq!(std::fs::read(files.join("few")).unwrap(), [0; 3]);
    let taken = |name: &str| std::fs::metadata(files.join(name)).unwrap().blocks() * 512;
    assert!(taken("some") <= 256 << 10 && taken("none") <= 8192, "{} {}", taken("some"), taken("none"));
}
