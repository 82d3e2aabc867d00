//! Archives in a folder: complete or not at all, every byte checked.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use atoll_image::archive::{ArchiveError, ArchivedSandbox, Archives};
use atoll_model::{ArchiveRef, Limits, SandboxId};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tokio::io::AsyncReadExt;

const MIB: usize = 1 << 20;

fn about() -> ArchivedSandbox {
    ArchivedSandbox {
        sandbox: "abcdefghijklmnopqrst".parse().unwrap(),
        template: "debian".into(),
        template_version: "1".into(),
        env: [("A".to_owned(), "1".to_owned())].into(),
        user: "user".into(),
        workdir: "/home/user".into(),
        command: None,
        limits: Limits::default(),
        archived_at_ms: 1,
    }
}

/// Bytes that do not compress, different for every seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

async fn read(archives: &Archives, at: &ArchiveRef) -> std::io::Result<Vec<u8>> {
    let (_, mut files) = archives.get(at).await.map_err(std::io::Error::other)?;
    let mut bytes = Vec::new();
    files.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(files_below(&entry.path()))
        } else {
            found.push(entry.path())
        }
    }
    found
}

#[tokio::test]
async fn what_was_put_is_got_whatever_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let archives = Archives::open(&format!("file://{}", folder.path().display())).unwrap();
    for length in [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 40 * MIB] {
        let bytes = noise(7, length);
        let at = archives.put(about(), bytes.as_slice()).await.unwrap();
        assert_eq!(at.bytes, length as u64);
        assert_eq!(archives.find(&at.key).await.unwrap(), (at.clone(), about()));
        assert!(read(&archives, &at).await.unwrap() == bytes, "{length} bytes came back changed");
    }
}

#[tokio::test]
async fn what_a_killed_upload_left_half_written_goes_too() {
    let folder = tempfile::tempdir().unwrap();
    let archives = Archives::open(folder.path().to_str().unwrap()).unwrap();
    let id = about().sandbox;
    let chunks = folder.path().join(id.as_str()).join("chunks");
    std::fs::create_dir_all(&chunks).unwrap();
    for half in [chunks.join("aa#1"), folder.path().join(id.as_str()).join("bb.json#1")] {
        std::fs::write(half, "half").unwrap();
    }
    archives.remove(&id).await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_next_archive_of_a_sandbox_replaces_the_one_before_and_remove_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let archives = Archives::open(folder.path().to_str().unwrap()).unwrap();
    let first = archives.put(about(), noise(1, 20 * MIB).as_slice()).await.unwrap();
    let second = archives.put(about(), noise(2, 9 * MIB).as_slice()).await.unwrap();
    assert!(matches!(archives.find(&first.key).await, Err(ArchiveError::NotFound { .. })));
    assert_eq!(files_below(folder.path()).len(), 3, "two pieces and a manifest");
    assert!(read(&archives, &second).await.unwrap() == noise(2, 9 * MIB));
    let id: SandboxId = about().sandbox;
    archives.remove(&id).await.unwrap();
    archives.remove(&id).await.unwrap();
    assert_eq!(files_below(folder.path()), Vec::<PathBuf>::new());
}

/// Returns some bytes and then fails, as a disk or a packer may.
struct Broken(usize);

impl tokio::io::AsyncRead for Broken {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if self.0 == 0 {
            return std::task::Poll::Ready(Err(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let part = self.0.min(buffer.remaining());
        buffer.put_slice(&noise(self.0 as u64, part));
        self.0 -= part;
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_no_archive_and_the_old_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let archives = Archives::open(folder.path().to_str().unwrap()).unwrap();
    let old = archives.put(about(), noise(3, 9 * MIB).as_slice()).await.unwrap();
    let broken = archives.put(about(), Broken(30 * MIB)).await;
    assert!(matches!(broken, Err(ArchiveError::Source(_))), "{broken:?}");
    let manifests = files_below(folder.path()).iter().filter(|p| p.extension().is_some()).count();
    assert_eq!(manifests, 1);
    assert!(read(&archives, &old).await.unwrap() == noise(3, 9 * MIB));
}

#[tokio::test]
async fn a_damaged_a_cut_and_a_lost_piece_are_each_refused() {
    let folder = tempfile::tempdir().unwrap();
    let archives = Archives::open(folder.path().to_str().unwrap()).unwrap();
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 3] = [
        ("flipped", |path| {
            let mut bytes = std::fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }),
        ("cut", |path| std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap()),
        ("lost", |path| std::fs::remove_file(path).unwrap()),
    ];
    for (what, damage) in damages {
        let at = archives.put(about(), noise(4, 20 * MIB).as_slice()).await.unwrap();
        let last = files_below(folder.path()).into_iter().rfind(|p| p.extension().is_none()).unwrap();
        damage(&last);
        let refused = read(&archives, &at).await.expect_err(what);
        let source = refused.get_ref().unwrap().to_string();
        assert!(source.contains("damaged"), "{what}: {source}");
        archives.remove(&about().sandbox).await.unwrap();
    }
    let at = archives.put(about(), noise(5, MIB).as_slice()).await.unwrap();
    let manifest = files_below(folder.path()).into_iter().find(|p| p.extension().is_some()).unwrap();
    let text = std::fs::read_to_string(&manifest).unwrap().replace("\"user\":\"user\"", "\"user\":\"root\"");
    std::fs::write(&manifest, text).unwrap();
    assert!(matches!(archives.find(&at.key).await, Err(ArchiveError::Damaged { .. })));
}

#[tokio::test]
async fn keys_and_places_without_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let archives = Archives::open(folder.path().to_str().unwrap()).unwrap();
    for key in ["", "x", "../../etc/passwd", "abcdefghijklmnopqrst/../x", "abcdefghijklmnopqrst/"] {
        assert!(matches!(archives.find(key).await, Err(ArchiveError::NotFound { .. })), "{key:?}");
    }
    for place in ["relative/folder", "http://host/x", "s3://", "s3://bucket?colour=red", ""] {
        let refused = Archives::open(place).expect_err(place);
        assert!(matches!(refused, ArchiveError::BadPlace { .. }), "{refused}");
    }
    let secret = Archives::open("ftp://user:hunter2@host/x").expect_err("no such scheme").to_string();
    assert!(!secret.contains("hunter2"), "{secret}");
}

/// Mounts a file system at `folder` that only this test writes to. The mount ends with the test's thread; threads that
/// the runtime starts from it see it too.
fn mount_own_disk(folder: &Path) {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace; this test needs root");
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
    mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some("size=300m")).unwrap();
}

#[tokio::test]
async fn an_archive_that_the_disk_has_no_room_for_leaves_nothing_and_spares_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    mount_own_disk(folder.path());
    let open = || Archives::open(folder.path().to_str().unwrap()).unwrap();
    let before = open().put(about(), noise(1, 9 * MIB).as_slice()).await.unwrap();
    let sorted = || std::collections::BTreeSet::from_iter(files_below(folder.path()));
    let files = sorted();
    // Space for the first pieces, not for all of them.
    let free = atoll_disk::free_bytes(folder.path()).unwrap();
    let full = open().with_reserve(&atoll_disk::Reserve::new(free - 50 * MIB as u64));
    for seed in 2..7 {
        let refused = full.put(about(), noise(seed, 200 * MIB).as_slice()).await.unwrap_err();
        assert!(matches!(refused, ArchiveError::NoSpace(_)), "{refused:?}");
        // A write that continued in the background would appear only now.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(sorted(), files);
    }
    assert!(read(&full, &before).await.unwrap() == noise(1, 9 * MIB));
    full.remove(&about().sandbox).await.unwrap();
    assert_eq!(files_below(folder.path()), Vec::<PathBuf>::new(), "removing ignores the reserve");
}
