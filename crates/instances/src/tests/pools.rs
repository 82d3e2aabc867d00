//! Pools: filled, claimed, evicted.

use atoll_provider::PoolWish;

use super::*;

fn with_pool(size: usize) -> Arc<FakeLauncher> {
    let settings =
        InstanceSettings { pools: [("debian".to_owned(), size)].into(), ..InstanceSettings::default() };
    let launcher = launcher(settings, 100);
    Instances::keep_pools_filled(&launcher);
    launcher
}

fn of_version(number: u8, version: &str) -> InstanceSpec {
    InstanceSpec { template_version: version.into(), ..spec(number, number) }
}

#[tokio::test]
async fn a_pool_is_filled_claimed_and_filled_again() {
    let launcher = with_pool(2);
    until("the pool is full", || launcher.pooled("debian") == (2, 2)).await;
    let booted = Instances::start(&launcher, &spec(1, 1), FilesState::New).await.unwrap();
    assert!(booted.from_pool);
    until("the pool is full again", || launcher.pooled("debian") == (2, 2)).await;
    assert_eq!(launcher.made.load(Ordering::SeqCst), 3, "one for each claim, and no more");
    // A claimed instance is watched like any other.
    let mut notices = launcher.instances.notices();
    launcher.instances.live(&target(1)).unwrap().die();
    assert_eq!(next(&mut notices).await.what, NoticeKind::Died);
}

#[tokio::test]
async fn an_instance_without_room_is_not_claimed_and_stays() {
    let launcher = with_pool(1);
    until("the pool is full", || launcher.pooled("debian") == (1, 1)).await;
    let small = InstanceSpec { limits: Limits { memory_mib: 1, ..Limits::default() }, ..spec(1, 1) };
    assert!(!Instances::start(&launcher, &small, FilesState::New).await.unwrap().from_pool);
    assert_eq!(launcher.pooled("debian"), (1, 1));
}

#[tokio::test]
async fn a_new_version_evicts_the_instances_of_the_old_one() {
    let launcher = with_pool(2);
    until("the pool is full", || launcher.pooled("debian") == (2, 2)).await;
    *launcher.version.lock().unwrap() = "two".into();
    let booted = Instances::start(&launcher, &of_version(1, "two"), FilesState::New).await.unwrap();
    assert!(!booted.from_pool);
    until("the pool is full again", || launcher.pooled("debian") == (2, 2)).await;
    launcher.instances.settle().await;
    for gone in ["ready 0", "ready 1"] {
        assert!(!launcher.host.things().contains(&gone.to_owned()), "{gone} is left");
    }
    assert!(Instances::start(&launcher, &of_version(2, "two"), FilesState::New).await.unwrap().from_pool);
}

#[tokio::test]
async fn a_requested_pool_shrinks_with_the_request() {
    let launcher = with_pool(0);
    let wish = |size| PoolWish { template: "python".into(), template_version: "seven".into(), size };
    Instances::wish_pools(&*launcher, vec![wish(3)]);
    until("the pool is full", || launcher.pooled("python") == (3, 3)).await;
    Instances::wish_pools(&*launcher, vec![wish(1)]);
    assert_eq!(launcher.pooled("python"), (1, 1));
    launcher.instances.settle().await;
    assert_eq!(launcher.host.things().len(), 1);
    // A version is claimed under whatever name the template has now.
    let named = InstanceSpec { template: "snake".into(), ..of_version(1, "seven") };
    assert!(Instances::start(&launcher, &named, FilesState::New).await.unwrap().from_pool);
    Instances::wish_pools(&*launcher, vec![wish(1_000)]);
    assert_eq!(launcher.pooled("python").1, 64, "the limit of all requests together");
    Instances::wish_pools(&*launcher, Vec::new());
    assert_eq!(launcher.pooled("python"), (0, 0));
}

#[tokio::test]
async fn a_closed_engine_ends_its_ready_instances_and_no_sandbox() {
    let launcher = with_pool(2);
    until("the pool is full", || launcher.pooled("debian") == (2, 2)).await;
    Instances::start(&launcher, &of_version(1, "other"), FilesState::New).await.unwrap();
    Instances::close(&*launcher).await;
    assert_eq!(launcher.host.things().len(), 2, "the sandbox and its files: {:?}", launcher.host.things());
    assert!(!launcher.instances.live(&target(1)).unwrap().is_dead().unwrap());
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(launcher.pooled("debian").0, 0, "nothing is made after the close");
}
