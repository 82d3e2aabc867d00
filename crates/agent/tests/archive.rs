//! Trees as tar streams through the real agent: Docker's rules for COPY, permissions, limits, hostile archives.

#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::common::TestAgent;
use atoll_agentapi::{
    AgentError, Pack, PackHoles, PackLayout, Unpack, UnpackInto, UnpackOwner, UnpackRules, Unpacked,
};
use atoll_model::ErrorKind;
use bytes::Bytes;
use tar::{EntryType, Header};

/// Entries in the order they are added.
struct Tar(tar::Builder<Vec<u8>>);

fn new_tar() -> Tar {
    Tar(tar::Builder::new(Vec::new()))
}

impl Tar {
    fn add(mut self, kind: EntryType, path: &str, mode: u32, link: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_600_000_000);
        header.set_size(content.len() as u64);
        // As bytes, because the crate would refuse these names.
        let field = &mut header.as_mut_bytes()[..100];
        field[..path.len()].copy_from_slice(path.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }
    fn file(self, path: &str, content: &str) -> Self {
        self.add(EntryType::Regular, path, 0o640, "", content.as_bytes())
    }
    fn folder(self, path: &str, mode: u32) -> Self {
        self.add(EntryType::Directory, path, mode, "", b"")
    }
    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

async fn unpack(agent: &TestAgent, what: &Unpack, tar: Vec<u8>) -> Result<Unpacked, AgentError> {
    let pieces: Vec<_> = tar.chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    agent.client.unpack(what, Some("root"), futures::stream::iter(pieces)).await
}

async fn pack(agent: &TestAgent, what: &Pack) -> Result<Vec<u8>, AgentError> {
    let mut reader = agent.client.pack(what, Some("root")).await?;
    let mut whole = Vec::new();
    while let Some(chunk) = reader.next().await {
        whole.extend_from_slice(&chunk?);
    }
    Ok(whole)
}

fn sources(paths: &[String]) -> Pack {
    Pack {
        sources: paths.iter().map(|path| path.clone().into_bytes()).collect(),
        globs: true,
        layout: PackLayout::Contents,
        exclude: Vec::new(),
        holes: PackHoles::Filled,
    }
}

fn listed(tar: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap();
    entries.map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned()).collect()
}

fn mode(path: impl AsRef<Path>) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn any(dest: String) -> Unpack {
    Unpack { into: UnpackInto::FileOrFolder, ..Unpack::below(dest) }
}

#[tokio::test]
async fn a_file_takes_the_name_of_the_destination_unless_that_is_a_folder() {
    let agent = TestAgent::start();
    let one = || new_tar().file("name.txt", "hello").bytes();
    unpack(&agent, &any(agent.path("a/b/as")), one()).await.unwrap();
    assert_eq!(std::fs::read(agent.path("a/b/as")).unwrap(), b"hello");
    assert_eq!((mode(agent.path("a/b/as")), mode(agent.path("a/b"))), (0o640, 0o755));
    assert_eq!(std::fs::metadata(agent.path("a/b/as")).unwrap().mtime(), 1_600_000_000);
    unpack(&agent, &any(agent.path("a/b")), one()).await.unwrap();
    assert!(Path::new(&agent.path("a/b/name.txt")).is_file());
    unpack(&agent, &Unpack::below(agent.path("c")), one()).await.unwrap();
    assert!(Path::new(&agent.path("c/name.txt")).is_file());
    // Through a symbolic link, also a dangling one.
    symlink("c", agent.path("link")).unwrap();
    symlink("later", agent.path("dangling")).unwrap();
    unpack(&agent, &any(agent.path("link")), new_tar().file("x", "1").bytes()).await.unwrap();
    unpack(&agent, &any(agent.path("dangling")), one()).await.unwrap();
    assert!(Path::new(&agent.path("c/x")).is_file());
    assert!(std::fs::symlink_metadata(agent.path("later")).unwrap().is_file());
    // Several entries need a folder.
    let two = || new_tar().file("x", "1").file("y", "2").bytes();
    let refused = unpack(&agent, &any(agent.path("new")), two()).await.unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Invalid && refused.to_string().contains("end with '/'"),
        "{refused}"
    );
    assert_eq!(unpack(&agent, &Unpack::below(agent.path("new2")), two()).await.unwrap().entries, 2);
    // A folder in place of a file is refused by name.
    let folder = new_tar().folder("./", 0o700).file("x", "1").bytes();
    let refused = unpack(&agent, &any(agent.path("a/b/as")), folder).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}

#[tokio::test]
async fn folders_merge_and_the_destination_keeps_its_own_bits() {
    let agent = TestAgent::start();
    std::fs::create_dir_all(agent.path("d/sub")).unwrap();
    std::fs::set_permissions(agent.path("d"), PermissionsExt::from_mode(0o711)).unwrap();
    std::fs::write(agent.path("d/sub/old"), "old").unwrap();
    std::fs::write(agent.path("d/sub/both"), "old").unwrap();
    let tar = new_tar()
        .folder("./", 0o700)
        .folder("sub/", 0o550)
        .file("sub/both", "new")
        .add(EntryType::Symlink, "sub/link", 0o777, "../nowhere", b"")
        .folder("empty", 0o2775)
        .add(EntryType::Link, "hard", 0o640, "sub/both", b"")
        .bytes();
    let done = unpack(&agent, &any(agent.path("d")), tar).await.unwrap();
    assert_eq!((done.entries, done.bytes), (5, 3));
    assert_eq!((mode(agent.path("d")), mode(agent.path("d/sub"))), (0o711, 0o550));
    assert_eq!(mode(agent.path("d/empty")), 0o2775);
    assert_eq!(std::fs::metadata(agent.path("d/sub")).unwrap().mtime(), 1_600_000_000);
    assert_eq!(std::fs::read(agent.path("d/sub/both")).unwrap(), b"new");
    assert_eq!(std::fs::read(agent.path("d/sub/old")).unwrap(), b"old");
    assert_eq!(std::fs::read_link(agent.path("d/sub/link")).unwrap(), Path::new("../nowhere"));
    assert_eq!(std::fs::metadata(agent.path("d/hard")).unwrap().nlink(), 2);
}

#[tokio::test]
async fn owners_are_the_askers_the_tars_or_those_named_in_the_sandbox() {
    let agent = TestAgent::start();
    let owner = |name: &str| {
        let found = std::fs::symlink_metadata(agent.path(name)).unwrap();
        (found.uid(), found.gid())
    };
    let tar = || new_tar().folder("f", 0o755).file("f/x", "1").bytes();
    unpack(&agent, &Unpack::below(agent.path("mine")), tar()).await.unwrap();
    assert_eq!((owner("mine"), owner("mine/f"), owner("mine/f/x")), ((0, 0), (0, 0), (0, 0)));
    let kept = Unpack { owner: UnpackOwner::Kept, ..Unpack::below(agent.path("kept")) };
    unpack(&agent, &kept, tar()).await.unwrap();
    assert_eq!((owner("kept"), owner("kept/f"), owner("kept/f/x")), ((0, 0), (7, 8), (7, 8)));
    let named = |owner: &str, dest: &str| Unpack {
        owner: UnpackOwner::Named(owner.into()),
        mode: Some(0o4750),
        ..Unpack::below(agent.path(dest))
    };
    unpack(&agent, &named("daemon", "n/deep"), tar()).await.unwrap();
    assert_eq!((owner("n"), owner("n/deep"), owner("n/deep/f/x")), ((1, 1), (1, 1), (1, 1)));
    assert_eq!((mode(agent.path("n/deep")), mode(agent.path("n/deep/f/x"))), (0o755, 0o4750));
    // The content of a folder: its destination gets the owner, its parents do not.
    let content = new_tar().folder("./", 0o700).file("x", "1").bytes();
    unpack(&agent, &named("daemon", "up/last"), content).await.unwrap();
    assert_eq!((owner("up"), owner("up/last"), owner("up/last/x")), ((0, 0), (1, 1), (1, 1)));
    unpack(&agent, &named("1234", "m"), tar()).await.unwrap();
    unpack(&agent, &named("bin:daemon", "o"), tar()).await.unwrap();
    assert_eq!((owner("m/f"), owner("o/f")), ((1234, 1234), (2, 1)));
    for bad in ["ghost", "bin:ghosts", ""] {
        let refused = unpack(&agent, &named(bad, "p"), tar()).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("sandbox"), "{refused}");
    }
    assert!(!Path::new(&agent.path("p")).exists());
    // With the permissions of a user only.
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let stream = futures::stream::iter([Ok(Bytes::from(tar()))]);
    let refused = agent.client.unpack(&Unpack::below(agent.path("q")), Some("nobody"), stream).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Forbidden);
}

#[tokio::test]
async fn a_copy_refuses_what_an_archive_replaces() {
    let agent = TestAgent::start();
    let make = || {
        let _ = std::fs::remove_dir_all(agent.path("d"));
        std::fs::create_dir_all(agent.path("d/full/deep")).unwrap();
        std::fs::create_dir_all(agent.path("real")).unwrap();
        std::fs::write(agent.path("d/file"), "x").unwrap();
        symlink("../real", agent.path("d/link")).unwrap();
    };
    let over_folder = || new_tar().file("full", "1").bytes();
    let over_file = || new_tar().folder("file", 0o755).bytes();
    let over_link = || new_tar().folder("link", 0o755).file("link/x", "1").bytes();
    let archive = Unpack { rules: UnpackRules::Archive, ..Unpack::below(agent.path("d")) };
    make();
    for tar in [over_folder(), over_file(), over_link()] {
        let refused = unpack(&agent, &Unpack::below(agent.path("d")), tar.clone()).await.unwrap_err();
        assert!(refused.to_string().contains("cannot replace"), "{refused}");
        unpack(&agent, &archive, tar).await.unwrap();
    }
    assert!(Path::new(&agent.path("d/full")).is_file() && Path::new(&agent.path("d/file")).is_dir());
    assert!(std::fs::symlink_metadata(agent.path("d/link")).unwrap().is_dir());
    assert_eq!(std::fs::read_dir(agent.path("real")).unwrap().count(), 0);
    // A file replaces the link itself; its target stays.
    make();
    std::fs::write(agent.path("real/kept"), "kept").unwrap();
    symlink("../real/kept", agent.path("d/l")).unwrap();
    unpack(&agent, &Unpack::below(agent.path("d")), new_tar().file("l", "new").bytes()).await.unwrap();
    assert_eq!(std::fs::read(agent.path("real/kept")).unwrap(), b"kept");
    assert_eq!(std::fs::read(agent.path("d/l")).unwrap(), b"new");
    // Entries of an archive follow existing links, as with tar; a strip drops leading components.
    let through = new_tar().file("top/link/y", "1").file("top", "2").bytes();
    unpack(&agent, &Unpack { strip: 1, ..archive }, through).await.unwrap();
    assert!(Path::new(&agent.path("real/y")).is_file());
}

#[tokio::test]
async fn hostile_archives_are_refused_by_name_and_the_agent_lives() {
    let agent = TestAgent::start();
    std::fs::write(agent.path("secret"), "s").unwrap();
    let deep = "d/".repeat(49);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (new_tar().file("../up", "1").bytes(), "../up"),
        (new_tar().file("a/../../up", "1").bytes(), "a/../../up"),
        (new_tar().add(EntryType::Link, "h", 0o644, "../secret", b"").bytes(), "../secret"),
        (new_tar().add(EntryType::Symlink, "l", 0o777, "..", b"").file("l/up", "1").bytes(), "l/up"),
        (
            new_tar()
                .add(EntryType::Symlink, "m", 0o777, "..", b"")
                .add(EntryType::Link, "n", 0o644, "m/secret", b"")
                .bytes(),
            "'n'",
        ),
        (new_tar().add(EntryType::Char, "null", 0o666, "", b"").bytes(), "null"),
        (b"this is no tar at all".repeat(100), "not a tar"),
        (new_tar().file("cut", &"x".repeat(5000)).bytes()[..2000].to_vec(), "middle"),
        (
            (0..6).fold(new_tar(), |tar, _| tar.folder(&deep, 0o755)).file(&format!("{deep}\0"), "").bytes(),
            "",
        ),
    ];
    for (tar, named) in cases {
        let done = unpack(&agent, &Unpack::below(agent.path("in")), tar).await;
        if !named.is_empty() {
            let refused = done.unwrap_err();
            assert!(refused.to_string().contains(named), "{named}: {refused}");
        }
    }
    for nothing in ["up", "in/up"] {
        assert!(!Path::new(&agent.path(nothing)).exists());
    }
    assert_eq!(std::fs::metadata(agent.path("secret")).unwrap().nlink(), 1);
    agent.client.health().await.unwrap();
}

#[tokio::test]
async fn what_is_packed_is_named_for_a_copy_and_unpacks_to_the_same() {
    let agent = TestAgent::start();
    std::fs::create_dir_all(agent.path("src/a/b")).unwrap();
    std::fs::write(agent.path("src/a/b/big"), vec![7u8; 1_000_000]).unwrap();
    std::fs::write(agent.path("src/one.txt"), "one").unwrap();
    std::fs::hard_link(agent.path("src/one.txt"), agent.path("src/two.txt")).unwrap();
    symlink("a/b", agent.path("src/link")).unwrap();
    let long = format!("src/{}", "long".repeat(50));
    std::fs::write(agent.path(&long), "long").unwrap();
    agent
        .sh(&format!(
            "cd {}/src && mkfifo pipe && chown 33:44 one.txt && chmod 750 a",
            agent.dir.path().display()
        ))
        .await;
    let tar = pack(&agent, &sources(&[agent.path("src")])).await.unwrap();
    let names = listed(&tar);
    assert_eq!(names[0], "./");
    assert!(names.contains(&"a/b/big".to_owned()) && names.contains(&"long".repeat(50)), "{names:?}");
    unpack(&agent, &Unpack { owner: UnpackOwner::Kept, ..any(agent.path("dst")) }, tar).await.unwrap();
    let same = format!(
        "cd {} && diff -r --no-dereference src dst 2>&1 | grep -v fifo; stat -c '%a %u %g' dst/one.txt dst/a; stat -c %h dst/two.txt",
        agent.dir.path().display()
    );
    assert_eq!(String::from_utf8(agent.sh(&same).await.stdout).unwrap(), "644 33 44\n750 0 0\n2\n");
    // A single file, a pattern, other layouts, exclusions.
    assert_eq!(listed(&pack(&agent, &sources(&[agent.path("src/one.txt")])).await.unwrap()), ["one.txt"]);
    let texts = pack(&agent, &sources(&[agent.path("sr?/*.txt"), agent.path("none*")])).await.unwrap();
    assert_eq!(listed(&texts), ["one.txt", "two.txt"]);
    let named = Pack { layout: PackLayout::Named, ..sources(&[agent.path("src/a")]) };
    assert_eq!(listed(&pack(&agent, &named).await.unwrap()), ["a/", "a/b/", "a/b/big"]);
    let parents = Pack {
        layout: PackLayout::Parents,
        ..sources(&[format!("{}/src/./a/b/big", agent.dir.path().display())])
    };
    assert_eq!(listed(&pack(&agent, &parents).await.unwrap()), ["a/b/big"]);
    let without = Pack {
        exclude: vec![b"a/b".to_vec(), b"**/long*".to_vec(), b"pipe".to_vec()],
        ..sources(&[agent.path("src")])
    };
    assert_eq!(listed(&pack(&agent, &without).await.unwrap()), ["./", "a/", "link", "one.txt", "two.txt"]);
}

#[tokio::test]
async fn holes_stay_holes_and_need_no_time() {
    let agent = TestAgent::start();
    std::fs::create_dir(agent.path("src")).unwrap();
    let make = |name: &str| std::fs::File::create(agent.path(&format!("src/{name}"))).unwrap();
    let holes = make("holes");
    holes.set_len(1 << 40).unwrap();
    for at in [0, 5 << 30, (1 << 40) - 4] {
        std::os::unix::fs::FileExt::write_all_at(&holes, b"data", at).unwrap();
    }
    make("only-a-hole").set_len(1 << 40).unwrap();
    std::fs::write(agent.path("src/whole"), [7; 9_000]).unwrap();
    std::fs::write(agent.path("src/zeros"), [0; 9_000]).unwrap();
    let what = Pack { holes: PackHoles::Kept, ..sources(&[agent.path("src")]) };
    let packed = pack(&agent, &what).await.unwrap();
    assert!(packed.len() < 1 << 20, "{} bytes", packed.len());
    unpack(&agent, &Unpack::below(agent.path("to")), packed.clone()).await.unwrap();
    for name in ["holes", "only-a-hole", "whole", "zeros"] {
        let about = |folder: &str| std::fs::metadata(agent.path(&format!("{folder}/{name}"))).unwrap();
        assert_eq!(about("to").len(), about("src").len(), "{name}");
        assert!(about("to").blocks() * 512 < 1 << 20, "{name} has {} blocks", about("to").blocks());
    }
    let copy = std::fs::File::open(agent.path("to/holes")).unwrap();
    for at in [0, 5 << 30, (1 << 40) - 4] {
        let mut read = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut read, at).unwrap();
        assert_eq!(&read, b"data");
    }
    for name in ["whole", "zeros"] {
        let read = |folder: &str| std::fs::read(agent.path(&format!("{folder}/{name}"))).unwrap();
        assert_eq!(read("to"), read("src"));
    }
    // GNU tar reads and writes the same form.
    let (tar, to) = (agent.path("a.tar"), agent.path("by-tar"));
    std::fs::write(&tar, &packed).unwrap();
    let script =
        format!("mkdir {to} && tar -xf {tar} -C {to} && tar -C {to} --sparse --format=pax -cf {tar} .");
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let theirs = std::fs::read(&tar).unwrap();
    assert!(theirs.len() < 1 << 20);
    unpack(&agent, &Unpack::below(agent.path("back")), theirs).await.unwrap();
    let back = std::fs::metadata(agent.path("back/holes")).unwrap();
    assert!(back.len() == 1 << 40 && back.blocks() * 512 < 1 << 20);
}

#[tokio::test]
async fn a_file_of_ten_thousand_pieces_is_packed_with_its_holes() {
    let agent = TestAgent::start();
    std::fs::create_dir(agent.path("src")).unwrap();
    let file = std::fs::File::create(agent.path("src/pieces")).unwrap();
    for at in 0..10_000 {
        std::os::unix::fs::FileExt::write_all_at(&file, b"data", at << 20).unwrap();
    }
    let what = Pack { holes: PackHoles::Kept, ..sources(&[agent.path("src")]) };
    let packed = pack(&agent, &what).await.unwrap();
    assert!(packed.len() < 50 << 20, "{} bytes", packed.len());
    unpack(&agent, &Unpack::below(agent.path("to")), packed).await.unwrap();
    let copy = std::fs::metadata(agent.path("to/pieces")).unwrap();
    assert_eq!(copy.len(), std::fs::metadata(agent.path("src/pieces")).unwrap().len());
    assert!(copy.blocks() * 512 < 60 << 20, "{} blocks", copy.blocks());
}

#[tokio::test]
async fn what_cannot_be_packed_is_said_before_a_byte_comes() {
    let agent = TestAgent::start();
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(agent.path("closed")).unwrap();
    std::fs::set_permissions(agent.path("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    let missing = pack(&agent, &sources(&[agent.path("nothing")])).await.unwrap_err();
    assert!(missing.kind() == ErrorKind::NotFound && missing.to_string().contains("nothing"), "{missing}");
    assert_eq!(pack(&agent, &sources(&[agent.path("[")])).await.unwrap_err().kind(), ErrorKind::Invalid);
    let reader = agent.client.pack(&sources(&[agent.path("closed/x")]), Some("nobody")).await;
    assert_eq!(reader.unwrap_err().kind(), ErrorKind::Forbidden);
    let empty = pack(&agent, &sources(&[agent.path("no*")])).await.unwrap();
    assert!(empty.len() == 1024 && empty.iter().all(|b| *b == 0));
}

#[tokio::test]
async fn memory_stays_flat_whatever_the_tree() {
    let agent = TestAgent::start();
    let dir = agent.dir.path().display().to_string();
    agent.sh(&format!("cd {dir} && mkdir -p many && for d in 1 2 3 4; do mkdir many/$d; for i in $(seq 500); do echo $i > many/$d/$i; done; done; head -c 150000100 /dev/zero > many/big; touch many/$(printf 'z%.0s' $(seq 200))")).await;
    let reader = agent.client.pack(&sources(&[format!("{dir}/many")]), Some("root")).await.unwrap();
    let stream = futures::StreamExt::map(reader.into_stream(), |chunk| chunk.map_err(std::io::Error::other));
    let done = agent.client.unpack(&any(format!("{dir}/copy")), Some("root"), stream).await.unwrap();
    assert_eq!((done.entries, done.bytes > 150_000_000), (2006, true));
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let peak_kb: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak_kb < 40_000, "{peak}");
    let mut content = Vec::new();
    std::fs::File::open(agent.path("copy/3/77")).unwrap().read_to_end(&mut content).unwrap();
    assert_eq!(content, b"77\n");
}
