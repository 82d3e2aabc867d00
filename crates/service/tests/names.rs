//! A word means an object of the key's own tenant; an admin key names what is another tenant's by its id.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::world::World;
use atoll_model::{Code, CreateSandbox, Lease, Phase, Principal};
use atoll_service::{NewSnapshot, NewVolume};

async fn create(world: &World, who: &Principal, name: &str) -> Lease {
    let spec = CreateSandbox { name: Some(name.to_owned()), ..CreateSandbox::default() };
    world.service.sandboxes().create(who, spec, true).await.unwrap().0
}

#[tokio::test(start_paused = true)]
async fn the_name_of_a_sandbox_is_one_of_the_keys_own_tenant() {
    let world = World::new().await;
    let (admin, other) = (&world.admin, world.stranger().await);
    let sandboxes = world.service.sandboxes();
    let (mine, theirs) = (create(&world, admin, "box").await, create(&world, &other, "box").await);
    for (who, own) in [(admin, &mine), (&other, &theirs)] {
        assert_eq!(sandboxes.get(who, "box").await.unwrap().id, own.id);
        assert_eq!(sandboxes.get(who, &own.id.as_str()[..8]).await.unwrap().id, own.id);
    }
    // With its own gone, the admin key does not mean the other one by the name, and is told how to name it.
    sandboxes.delete(admin, "box", true).await.unwrap();
    assert_eq!(world.get(&theirs.id).await.phase, Phase::Running);
    let refused = sandboxes.delete(admin, "box", true).await.unwrap_err();
    assert_eq!(refused.code, Code::SandboxNotFound);
    let hint = refused.hint.unwrap();
    assert!(hint.contains(theirs.id.as_str()) && hint.contains("--tenant stranger"), "{hint}");
    for ident in [theirs.id.as_str(), &theirs.id.as_str()[..8]] {
        assert_eq!(sandboxes.get(admin, ident).await.unwrap().id, theirs.id);
    }
    // A key of a tenant is told nothing about others.
    create(&world, admin, "secret").await;
    let refused = sandboxes.get(&other, "secret").await.unwrap_err();
    assert_eq!(refused.code, Code::SandboxNotFound);
    assert!(!refused.hint.unwrap_or_default().contains("tenant"));
    sandboxes.delete(admin, theirs.id.as_str(), true).await.unwrap();
    assert_eq!(sandboxes.get(&other, "box").await.unwrap_err().code, Code::SandboxNotFound);
}

#[tokio::test(start_paused = true)]
async fn the_names_of_snapshots_and_volumes_too() {
    let world = World::new().await;
    let (admin, other) = (&world.admin, world.stranger().await);
    let (sandboxes, volumes) = (world.service.sandboxes(), world.service.volumes());
    let (mut snapshots, mut made) = (Vec::new(), Vec::new());
    for who in [admin, &other] {
        create(&world, who, "box").await;
        let ask = NewSnapshot { name: Some("clean".to_owned()), ..NewSnapshot::default() };
        snapshots.push(sandboxes.snapshot(who, "box", ask).await.unwrap().id);
        let ask = NewVolume { name: "data".to_owned(), size_mib: Some(100), ..NewVolume::default() };
        made.push(volumes.create(who, ask).await.unwrap().volume.id);
    }
    for (who, (snapshot, volume)) in [admin, &other].into_iter().zip(snapshots.iter().zip(&made)) {
        assert_eq!(sandboxes.get_snapshot(who, "box:clean").await.unwrap().id, *snapshot);
        assert_eq!(volumes.get(who, "data").await.unwrap().volume.id, *volume);
    }
    sandboxes.delete_snapshot(admin, "box:clean").await.unwrap();
    volumes.remove(admin, "data").await.unwrap();
    assert_eq!(sandboxes.get_snapshot(admin, "box:clean").await.unwrap_err().code, Code::SnapshotNotFound);
    assert_eq!(volumes.remove(admin, "data").await.unwrap_err().code, Code::VolumeNotFound);
    assert_eq!(sandboxes.get_snapshot(admin, snapshots[1].as_str()).await.unwrap().id, snapshots[1]);
    assert_eq!(volumes.get(admin, made[1].as_str()).await.unwrap().volume.id, made[1]);
}
