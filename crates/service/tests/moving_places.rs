//! The room that a move needs at both ends: it has one owner, no other create can take it, and it is given up on every way out.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use crate::moving::{By, moved, second, settled, to, with, write_files};
use crate::world::{Options, World, breathe};
use atoll_model::{Code, CreateSandbox, Lease, Phase, Principal, QueueAsk, Quota, SandboxId};
use atoll_provider::fake::{FakeProvider, ProviderCall, Script, TreeFault};
use atoll_service::{FailPoint, ServiceConfig};

/// Lets the queue of creates give places at a point of the driver.
fn pause_at(place: &'static str) -> FailPoint {
    FailPoint::new(move |reached| {
        Box::pin(async move {
            for _ in 0..if reached == place { 50 } else { 0 } {
                breathe().await;
            }
        })
    })
}

/// Two providers whose memory and disk are counted exactly.
async fn exact(second: &Arc<FakeProvider>, failpoint: FailPoint) -> World {
    let exactly = |config: &mut ServiceConfig| (config.overcommit, config.disk_overcommit) = (1.0, 1.0);
    let config = Some(Box::new(exactly) as _);
    World::with(Options { config, failpoint: Some(failpoint), ..with(second) }).await
}

/// From now on the provider has room for one sandbox of these limits.
async fn room_for_one(world: &World, provider: &FakeProvider, lease: &Lease) {
    provider.set_node(|node| node.memory_total_mib = lease.limits.memory_mib.into());
    // The state of the machine is read once a second.
    world.advance(Duration::from_secs(2)).await;
}

fn create_at(provider: &str) -> CreateSandbox {
    CreateSandbox { provider: Some(provider.to_owned()), ..CreateSandbox::default() }
}

async fn enqueue(world: &World, who: &Principal, provider: &str) -> SandboxId {
    let spec = CreateSandbox { queue: Some(QueueAsk::default()), ..create_at(provider) };
    let (lease, _) = world.service.sandboxes().create(who, spec, false).await.unwrap();
    assert!(lease.waits_for_place());
    lease.id
}

/// Begins a move that waits in the create at the target.
async fn begin(world: &World, second: &FakeProvider, who: &Principal, lease: &Lease) {
    second.script(ProviderCall::Create, Script::Hold);
    world.service.sandboxes().move_to(who, lease.id.as_str(), to("second"), false).await.unwrap();
    while second.calls(ProviderCall::Create, &lease.id) == 0 {
        breathe().await;
    }
}

async fn delete(world: &World, id: &SandboxId) {
    world.service.sandboxes().delete(&world.admin, id.as_str(), true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queued_create_does_not_take_the_place_of_a_moved_sandbox_before_its_start() {
    let second = second(By::Folders);
    let world = exact(&second, pause_at("move.committed")).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    room_for_one(&world, &second, &lease).await;
    begin(&world, &second, &world.admin, &lease).await;
    let queued = enqueue(&world, &world.admin, "second").await;
    second.release();
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running));
    assert!(world.get(&queued).await.waits_for_place());
    delete(&world, &lease.id).await;
    world.until(&queued, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_queued_create_does_not_take_the_quota_of_a_moved_sandbox_before_its_start() {
    let second = second(By::Folders);
    let world = exact(&second, pause_at("move.committed")).await;
    let mine = world.tenant("mine", Quota::default()).await;
    let both = Some(vec!["fake".to_owned(), "second".to_owned()]);
    world.service.set_tenant_providers(&world.admin, "mine", both).await.unwrap();
    let sandboxes = world.service.sandboxes();
    let (lease, _) = sandboxes.create(&mine, CreateSandbox::default(), true).await.unwrap();
    let quota = Quota { memory_mib: Some(lease.limits.memory_mib.into()), ..Quota::default() };
    world.service.access().set_quota(&world.admin, "mine", quota).await.unwrap();
    begin(&world, &second, &mine, &lease).await;
    let queued = enqueue(&world, &mine, "fake").await;
    second.release();
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running));
    assert!(world.get(&queued).await.waits_for_place());
    delete(&world, &lease.id).await;
    world.until(&queued, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_move_failed_gets_its_own_place_again() {
    let second = second(By::Folders);
    let world = exact(&second, pause_at("move.aborted")).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    room_for_one(&world, &world.fake, &lease).await;
    second.fail_unpack(TreeFault::Full);
    begin(&world, &second, &world.admin, &lease).await;
    let queued = enqueue(&world, &world.admin, "fake").await;
    second.release();
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("fake", Phase::Running));
    assert!(after.last_move.unwrap().failure.is_some());
    assert!(world.get(&queued).await.waits_for_place());
    delete(&world, &lease.id).await;
    world.until(&queued, Phase::Running).await;
}

#[tokio::test(start_paused = true)]
async fn moves_that_are_refused_do_not_give_up_the_place_of_the_one_that_was_recorded() {
    let second = second(By::Folders);
    let world = exact(&second, FailPoint::none()).await;
    let lease = world.create().await;
    room_for_one(&world, &second, &lease).await;
    second.script(ProviderCall::Create, Script::Hold);
    let sandboxes = world.service.sandboxes();
    let moves = (0..4).map(|_| sandboxes.move_to(&world.admin, lease.id.as_str(), to("second"), false));
    let outcomes = futures::future::join_all(moves).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for refused in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(refused.code, Code::PhaseConflict, "{refused}");
    }
    while second.calls(ProviderCall::Create, &lease.id) == 0 {
        breathe().await;
    }
    assert_eq!(world.try_create(create_at("second")).await.unwrap_err().code, Code::NoCapacity);
    second.release();
    assert_eq!(settled(&world, &lease.id).await.provider, "second");
    // The place at the source is free again, that at the target is not.
    room_for_one(&world, &world.fake, &lease).await;
    world.try_create(create_at("fake")).await.unwrap();
    assert_eq!(world.try_create(create_at("second")).await.unwrap_err().code, Code::NoCapacity);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_deleted_during_its_copy_gives_up_both_places() {
    let second = second(By::Folders);
    let world = exact(&second, FailPoint::none()).await;
    let lease = world.create().await;
    for provider in [&second, &world.fake] {
        provider.set_node(|node| node.disk_total_mib = lease.limits.disk_mib.into());
        room_for_one(&world, provider, &lease).await;
    }
    begin(&world, &second, &world.admin, &lease).await;
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), false).await.unwrap();
    for _ in 0..10 {
        world.advance(Duration::from_secs(2)).await;
    }
    assert_eq!(world.get(&lease.id).await.phase, Phase::Deleted);
    for provider in ["fake", "second"] {
        world.try_create(create_at(provider)).await.unwrap_or_else(|full| panic!("{provider}: {full}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_sandbox_needs_room_at_its_source_for_the_copy() {
    let second = second(By::Folders);
    let world = exact(&second, FailPoint::none()).await;
    let lease = world.create().await;
    room_for_one(&world, &world.fake, &lease).await;
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    let other = world.create().await;
    assert_eq!(moved(&world, &lease).await.unwrap_err().code, Code::NoCapacity);
    let still = world.get(&lease.id).await;
    assert_eq!((still.phase, still.moving), (Phase::Stopped, None));
    world.try_create(create_at("second")).await.unwrap();
    delete(&world, &other.id).await;
    let after = moved(&world, &lease).await.unwrap();
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Stopped));
    settled(&world, &lease.id).await;
    world.create().await;
}

/// The disk of a provider that limits no sandbox is shared with everything else on it.
#[tokio::test(start_paused = true)]
async fn a_copy_leaves_space_free_at_a_target_that_limits_no_disk() {
    for (limits_disk, free_mib, is_moved) in [(false, 63, false), (true, 63, false), (false, 1 << 20, true)] {
        let second = second(By::Folders);
        second.set_capabilities(|able| able.limits_disk = limits_disk);
        let world = World::with(with(&second)).await;
        let lease = world.create().await;
        write_files(&world.fake, &lease.id);
        begin(&world, &second, &world.admin, &lease).await;
        // Something else fills the disk after the move was admitted.
        second.set_node(|node| node.disk_free_mib = free_mib);
        second.release();
        let after = settled(&world, &lease.id).await;
        assert_eq!(after.provider == "second", is_moved, "{free_mib} MiB");
        if !is_moved {
            let failure = after.last_move.unwrap().failure.unwrap();
            assert!(failure.contains("63 MiB free") && failure.contains("second"), "{failure}");
            assert_eq!(second.holds(), [], "nothing of the copy is left");
        }
    }
}
