//! Cases of volumes: owners, mounts and quotas.

use super::*;
use atoll_model::{Mount, Volume, VolumeId, VolumeState};

/// A volume with this number, not stored yet.
#[must_use]
pub fn volume(n: u32, tenant: &TenantId, name: &str) -> Volume {
    Volume {
        id: VolumeId::from_entropy(entropy(n)),
        tenant: tenant.clone(),
        node: node(),
        name: name.to_owned(),
        provider: "fake".to_owned(),
        size_mib: Some(100),
        folder: None,
        read_only: false,
        parent: None,
        state: VolumeState::Ready,
        created_at: at(i64::from(n)),
    }
}

fn mounting(n: u32, tenant: &TenantId, volumes: &[&Volume]) -> Lease {
    let mount = |(at, volume): (usize, &&Volume)| Mount {
        volume: volume.id.clone(),
        path: format!("/m{at}"),
        sub_path: None,
        read_only: false,
    };
    Lease { mounts: volumes.iter().enumerate().map(mount).collect(), ..lease(n, tenant) }
}

pub(super) async fn a_volume_is_found_by_id_name_and_prefix(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let data = volume(5, &mine, "data");
    store.insert_volume(data.clone()).await.unwrap();
    store.insert_volume(volume(6, &other, "data")).await.unwrap();
    assert_eq!(store.volume(&data.id).await.unwrap(), Some(data.clone()));
    for word in [data.id.as_str(), "data", &data.id.as_str()[..6]] {
        assert_eq!(
            store.find_volume(Some(&mine), word).await.unwrap().as_slice(),
            std::slice::from_ref(&data),
            "{word}"
        );
    }
    assert_eq!(store.find_volume(None, "data").await.unwrap().len(), 2);
    assert_eq!(store.find_volume(Some(&other), data.id.as_str()).await.unwrap(), []);
    let taken = store.insert_volume(volume(7, &mine, "data")).await;
    assert!(matches!(taken, Err(StoreError::VolumeNameTaken { .. })));
    let going = Volume { state: VolumeState::Deleting, ..data.clone() };
    assert!(store.set_volume(going.clone()).await.unwrap());
    assert_eq!(store.find_volume(Some(&mine), "data").await.unwrap(), []);
    assert_eq!(
        store.find_volume(Some(&mine), data.id.as_str()).await.unwrap().as_slice(),
        std::slice::from_ref(&going)
    );
    // A name is free as soon as the deletion of its volume begins.
    store.insert_volume(volume(7, &mine, "data")).await.unwrap();
    assert_eq!(
        store.volumes(Some(&mine)).await.unwrap().len(),
        2,
        "adoption sees volumes that are being deleted"
    );
    assert!(store.delete_volume(&data.id).await.unwrap());
    assert!(!store.delete_volume(&data.id).await.unwrap());
    assert!(!store.set_volume(going).await.unwrap());
    assert_eq!(store.volumes(None).await.unwrap().len(), 2);
}

pub(super) async fn a_volume_is_not_removed_while_a_sandbox_mounts_it(store: Subject) {
    let (mine, other) =
        (tenant(&store, 1, Quota::default()).await, tenant(&store, 2, Quota::default()).await);
    let data = volume(1, &mine, "data");
    store.insert_volume(data.clone()).await.unwrap();
    let mut mounts = mounting(1, &mine, &[&data, &data]);
    store.insert(new(&mounts)).await.unwrap();
    assert_eq!(store.volume_users(&data.id).await.unwrap(), 1);
    assert_eq!(store.volumes(None).await.unwrap(), [(data.clone(), 1)]);
    let going = Volume { state: VolumeState::Deleting, ..data.clone() };
    for phase in [Phase::Stopped, Phase::Failed, Phase::Deleting] {
        mounts = advanced(&store, &mounts, phase).await;
        let refused = store.set_volume(going.clone()).await;
        let Err(StoreError::VolumeInUse { name, users, by }) = refused else {
            panic!("{phase:?}: {refused:?}")
        };
        assert_eq!((name.as_str(), users, by), ("data", 1, vec![mounts.id.to_string()]));
    }
    advanced(&store, &mounts, Phase::Deleted).await;
    assert!(store.set_volume(going).await.unwrap());
    let late = store.insert(new(&mounting(2, &mine, &[&data]))).await;
    assert!(matches!(late, Err(StoreError::NoVolume { .. })));
    assert_eq!(store.lease(&mounting(2, &mine, &[]).id).await.unwrap(), None, "a refusal leaves nothing");
    let ready = volume(3, &mine, "other");
    store.insert_volume(ready.clone()).await.unwrap();
    let foreign = store.insert(new(&mounting(3, &other, &[&ready]))).await;
    assert!(matches!(foreign, Err(StoreError::NoVolume { .. })), "a volume of another tenant");
    let making = Volume { state: VolumeState::Making, ..volume(4, &mine, "making") };
    store.insert_volume(making.clone()).await.unwrap();
    let early = store.insert(new(&mounting(4, &mine, &[&making]))).await;
    assert!(matches!(early, Err(StoreError::NoVolume { .. })), "not ready");
}

pub(super) async fn mounts_and_removals_that_race_never_both_happen(store: Subject) {
    let mine = tenant(&store, 1, Quota::default()).await;
    for n in 0..20 {
        let data = volume(100 + n, &mine, &format!("v{n}"));
        store.insert_volume(data.clone()).await.unwrap();
        let going = Volume { state: VolumeState::Deleting, ..data.clone() };
        let mounts = mounting(200 + n, &mine, &[&data]);
        let (mounted, removed) = tokio::join!(store.insert(new(&mounts)), store.set_volume(going));
        assert_ne!(mounted.is_ok(), removed.is_ok());
    }
}

pub(super) async fn volumes_meet_their_quota(store: Subject) {
    let quota = Quota { volumes: Some(3), volume_mib: Some(350), ..Default::default() };
    let mine = tenant(&store, 1, quota).await;
    for n in 1..=3 {
        store.insert_volume(volume(n, &mine, &format!("v{n}"))).await.unwrap();
    }
    let usage = store.usage(&mine).await.unwrap();
    assert_eq!((usage.volumes, usage.volume_mib), (3, 300));
    assert!(matches!(store.insert_volume(volume(4, &mine, "v4")).await, Err(StoreError::Quota(_))));
    let sized = |size| Volume { size_mib: Some(size), ..volume(1, &mine, "v1") };
    assert!(matches!(store.set_volume(sized(151)).await, Err(StoreError::Quota(_))));
    assert!(store.set_volume(sized(150)).await.unwrap());
    assert!(store.set_volume(sized(10)).await.unwrap(), "less is always fine");
    assert!(store.delete_volume(&volume(2, &mine, "v2").id).await.unwrap());
    let folder = Volume { size_mib: None, folder: Some("/srv/x".into()), ..volume(5, &mine, "v5") };
    store.insert_volume(folder).await.unwrap();
    assert_eq!(store.usage(&mine).await.unwrap().volume_mib, 110);
}
