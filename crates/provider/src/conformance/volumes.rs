//! Cases of volumes.

use super::*;
use crate::{InstanceMount, MountSource, Packed, VolumeEntryKind, VolumeOwner};
use atoll_model::VolumeId;
use tokio::io::AsyncReadExt;

fn id() -> VolumeId {
    VolumeId::from_entropy(random())
}

/// A size limit, if the provider supports one.
fn size(fixture: &Fixture, mib: u32) -> Option<u32> {
    fixture.provider.capabilities().limits_disk.then_some(mib)
}

async fn volume(fixture: &Fixture) -> VolumeId {
    let volume = id();
    fixture.provider.create_volume(&volume, size(fixture, 64)).await.expect("a volume");
    volume
}

fn mount(volume: &VolumeId, sub_path: Option<&str>, path: &str) -> InstanceMount {
    let source = MountSource::Volume { volume: volume.clone(), sub_path: sub_path.map(str::to_owned) };
    InstanceMount { source, path: path.to_owned(), read_only: false }
}

async fn put(fixture: &Fixture, volume: &VolumeId, path: &str, content: &[u8]) {
    let files = fixture.provider.volume_files(volume).await.expect("its files");
    let bytes: Packed = Box::new(std::io::Cursor::new(content.to_vec()));
    files.write(path, VolumeOwner::default(), true, bytes).await.expect("written");
}

async fn get(fixture: &Fixture, volume: &VolumeId, path: &str) -> Option<Vec<u8>> {
    let files = fixture.provider.volume_files(volume).await.expect("its files");
    let (entry, mut bytes) = files.read(path).await.ok()?;
    let mut content = Vec::new();
    bytes.read_to_end(&mut content).await.expect("all of it");
    assert_eq!(entry.size, content.len() as u64);
    Some(content)
}

fn is_unknown<T>(outcome: Result<T, ProviderError>) -> bool {
    matches!(outcome, Err(ProviderError::NoVolume { .. }))
}

pub(super) async fn a_volume_is_made_copied_resized_and_removed(fixture: Fixture) {
    let provider = &fixture.provider;
    let (first, copy) = (volume(&fixture).await, id());
    put(&fixture, &first, "/a/b", b"one").await;
    provider.create_volume(&first, size(&fixture, 64)).await.expect("again");
    assert_eq!(
        get(&fixture, &first, "/a/b").await.as_deref(),
        Some(&b"one"[..]),
        "it is not emptied by that"
    );
    provider.copy_volume(&first, &copy, size(&fixture, 32)).await.expect("a copy");
    put(&fixture, &first, "/a/b", b"two").await;
    put(&fixture, &copy, "/a/c", b"three").await;
    assert_eq!(get(&fixture, &copy, "/a/b").await.as_deref(), Some(&b"one"[..]));
    assert_eq!(get(&fixture, &first, "/a/c").await, None);
    if provider.capabilities().limits_disk {
        put(&fixture, &first, "/big", &vec![7; 3 << 20]).await;
        let small = provider.resize_volume(&first, 2).await;
        assert!(matches!(small, Err(ProviderError::BelowUse { .. })), "{small:?}");
        let none = provider.copy_volume(&first, &id(), Some(2)).await;
        assert!(matches!(none, Err(ProviderError::BelowUse { .. })), "{none:?}");
        provider.resize_volume(&first, 128).await.expect("larger");
    }
    assert!(provider.volume_bytes(&copy).await.expect("figures") > 0);
    for volume in [&first, &first, &copy] {
        provider.remove_volume(volume).await.expect("removed");
    }
    assert!(is_unknown(provider.volume_bytes(&first).await));
    assert!(is_unknown(provider.volume_files(&first).await.map(drop)));
    assert!(is_unknown(provider.copy_volume(&first, &id(), size(&fixture, 64)).await));
}

pub(super) async fn a_sweep_removes_volumes_that_nobody_knows(fixture: Fixture) {
    let (known, unknown) = (volume(&fixture).await, volume(&fixture).await);
    fixture.provider.sweep_volumes(vec![known.clone()]).await.expect("swept");
    assert!(is_unknown(fixture.provider.volume_bytes(&unknown).await));
    fixture.provider.volume_bytes(&known).await.expect("it is there");
    fixture.provider.sweep_volumes(Vec::new()).await.expect("swept");
    assert!(is_unknown(fixture.provider.volume_bytes(&known).await));
}

pub(super) async fn sandboxes_share_a_volume_and_it_outlives_them(fixture: Fixture) {
    let volume = volume(&fixture).await;
    put(&fixture, &volume, "/first", b"from outside").await;
    let writer = InstanceSpec {
        mounts: vec![mount(&volume, None, "/data"), mount(&volume, Some("a/b"), "/deep/er")],
        ..fixture.spec()
    };
    let reader = InstanceSpec {
        mounts: vec![InstanceMount { read_only: true, ..mount(&volume, None, "/seen") }],
        ..fixture.spec()
    };
    let (one, two) = (fixture.create(&writer).await, fixture.create(&reader).await);
    assert!(!one.booted.from_pool);
    let inside = &fixture.inside;
    assert_eq!(inside.read(&one, "/data/first").await.as_deref(), Some(&b"from outside"[..]));
    inside.write(&one, "/data/x", b"x").await;
    inside.write(&one, "/deep/er/y", b"y").await;
    assert_eq!(inside.read(&two, "/seen/x").await.as_deref(), Some(&b"x"[..]));
    assert_eq!(inside.read(&two, "/seen/a/b/y").await.as_deref(), Some(&b"y"[..]));
    assert!(!inside.may_write(&two, "/seen/z").await, "it is read-only");
    assert_eq!(inside.read(&one, "/data/z").await, None);
    fixture.destroy(&writer).await;
    fixture.destroy(&reader).await;
    assert_eq!(get(&fixture, &volume, "/a/b/y").await.as_deref(), Some(&b"y"[..]));
    fixture.provider.remove_volume(&volume).await.expect("removed");
}

pub(super) async fn mounts_stay_and_no_copy_of_a_sandbox_has_a_volumes_files(fixture: Fixture) {
    let volume = volume(&fixture).await;
    let mut spec = InstanceSpec { mounts: vec![mount(&volume, None, "/data")], ..fixture.spec() };
    let live = fixture.create(&spec).await;
    fixture.inside.write(&live, "/data/x", b"1").await;
    let able = fixture.provider.capabilities();
    if able.snapshots {
        let shot = fixture.shoot(&live.target, false).await;
        fixture.inside.write(&live, "/data/x", b"2").await;
        let bare = InstanceSpec { origin: shot.origin(false), ..fixture.spec() };
        let other = fixture.create(&bare).await;
        assert_eq!(fixture.inside.read(&other, "/data/x").await, None, "a snapshot has no files of volumes");
        fixture.destroy(&bare).await;
        fixture.remove(&shot).await;
    }
    let mut token = live.token.clone();
    if able.checkpoints {
        fixture.checkpoint(&live).await;
        spec = again(&spec);
        let live = fixture.restore(&spec, &token).await;
        fixture.inside.write(&live, "/data/y", b"y").await;
        token.clone_from(&live.token);
    }
    let target = target(&spec);
    fixture.provider.halt(&target).await.expect("halted");
    spec = again(&spec);
    let live = fixture.boot(&spec).await;
    let expected: &[u8] = if able.snapshots { b"2" } else { b"1" };
    assert_eq!(fixture.inside.read(&live, "/data/x").await.as_deref(), Some(expected));
    fixture.destroy(&spec).await;
    fixture.provider.remove_volume(&volume).await.expect("removed");
}

pub(super) async fn an_unknown_volume_is_refused_and_leaves_nothing(fixture: Fixture) {
    let spec = InstanceSpec { mounts: vec![mount(&id(), None, "/data")], ..fixture.spec() };
    assert!(is_unknown(fixture.provider.create(&spec).await));
    assert!(is_gone(fixture.provider.boot(&InstanceSpec { mounts: Vec::new(), ..again(&spec) }).await));
    fixture.destroy(&spec).await;
}

pub(super) async fn files_of_a_volume_are_there_without_a_sandbox(fixture: Fixture) {
    use std::io::ErrorKind::{AlreadyExists, IsADirectory, NotFound};
    let volume = volume(&fixture).await;
    let files = fixture.provider.volume_files(&volume).await.expect("its files");
    let nobody = VolumeOwner::default();
    let bytes = |text: &str| -> Packed { Box::new(std::io::Cursor::new(text.as_bytes().to_vec())) };
    let kind = |outcome: std::io::Result<()>| outcome.expect_err("it is refused").kind();
    assert_eq!(kind(files.write("/a/b/c", nobody, false, bytes("x")).await.map(drop)), NotFound);
    let made = files.write("/a/b/c", nobody, true, bytes("x")).await.expect("written");
    assert_eq!((made.path.as_str(), made.kind, made.size), ("/a/b/c", VolumeEntryKind::File, 1));
    files.write("/a/b/c", nobody, false, bytes("longer")).await.expect("replaced");
    assert_eq!(get(&fixture, &volume, "/a/b/c").await.as_deref(), Some(&b"longer"[..]));
    assert_eq!(kind(files.write("/a/b", nobody, true, bytes("x")).await.map(drop)), IsADirectory);
    assert_eq!(kind(files.read("/a").await.map(drop)), IsADirectory);
    assert_eq!(kind(files.make_folder("/a/b", nobody, false).await.map(drop)), AlreadyExists);
    files.make_folder("/a/b", nobody, true).await.expect("it is there");
    files.make_folder("/d", nobody, false).await.expect("made");
    let paths = |all: Vec<crate::VolumeEntry>| all.into_iter().map(|one| one.path).collect::<Vec<_>>();
    assert_eq!(paths(files.list("/", 1, 10).await.expect("listed")), ["/a", "/d"]);
    assert_eq!(paths(files.list("/", 3, 10).await.expect("listed")), ["/a", "/a/b", "/a/b/c", "/d"]);
    assert_eq!(paths(files.list("/", 3, 2).await.expect("listed")), ["/a", "/a/b"]);
    files.rename("/a/b", "/d/e").await.expect("moved");
    assert_eq!(kind(files.stat("/a/b/c").await.map(drop)), NotFound);
    assert_eq!(files.stat("/d/e/c").await.expect("moved").size, 6);
    files.change("/d/e/c", VolumeOwner { mode: Some(0o600), ..nobody }).await.expect("changed");
    files.remove("/d").await.expect("removed");
    assert_eq!(kind(files.remove("/d").await), NotFound);
    assert_eq!(paths(files.list("/", 9, 10).await.expect("listed")), ["/a"]);
    fixture.provider.remove_volume(&volume).await.expect("removed");
}
