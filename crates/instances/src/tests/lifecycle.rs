//! Turns, doom, deaths, removals.

use super::*;

#[tokio::test]
async fn two_starts_of_one_sandbox_take_turns_and_another_sandbox_does_not_wait() {
    let launcher = launcher(InstanceSettings::default(), 0);
    let first = start(&launcher, spec(1, 1), FilesState::New);
    launching(&launcher, &[sandbox(1)]).await;
    let second = start(&launcher, spec(1, 2), FilesState::Kept);
    let other = start(&launcher, spec(2, 3), FilesState::New);
    launching(&launcher, &[sandbox(1), sandbox(2)]).await;
    // The second start has no instance as long as the first is under way.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!launcher.host.things().contains(&instance(2).to_string()));
    launcher.permits.add_permits(2);
    first.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    launching(&launcher, &[sandbox(1)]).await;
    // The first instance was ended before the second was begun.
    assert!(launcher.instances.slot(&sandbox(1)).live().is_none());
    launcher.permits.add_permits(1);
    second.await.unwrap().unwrap();
    assert_eq!(launcher.instances.slot(&sandbox(1)).live().unwrap().0, instance(2));
    launcher.instances.settle().await;
    assert!(!launcher.host.things().contains(&instance(1).to_string()));
}

#[tokio::test]
async fn a_destroy_dooms_the_start_under_way_and_nothing_is_left() {
    let launcher = launcher(InstanceSettings::default(), 0);
    let starting = start(&launcher, spec(1, 1), FilesState::New);
    launching(&launcher, &[sandbox(1)]).await;
    let waiting = start(&launcher, spec(1, 2), FilesState::New);
    until("the second start waits", || Arc::strong_count(&launcher.instances.slot(&sandbox(1))) >= 4).await;
    Instances::destroy(&*launcher, &target(1)).await.unwrap();
    for start in [starting, waiting] {
        let ended = start.await.unwrap();
        assert!(matches!(ended, Err(ProviderError::Gone { .. })), "{ended:?}");
    }
    launcher.instances.settle().await;
    assert_eq!(launcher.host.things(), Vec::<String>::new());
    assert!(launcher.instances.slots().is_empty());
    // A new sandbox may use the id at once.
    launcher.permits.add_permits(1);
    Instances::start(&launcher, &spec(1, 3), FilesState::New).await.unwrap();
    assert!(launcher.instances.live(&target(1)).is_ok());
}

#[tokio::test]
async fn a_start_comes_to_its_end_without_its_caller() {
    let launcher = launcher(InstanceSettings::default(), 0);
    let caller = start(&launcher, spec(1, 1), FilesState::New);
    launching(&launcher, &[sandbox(1)]).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    launcher.permits.add_permits(1);
    // The halt waits for its turn, and then finds the instance.
    Instances::halt(&*launcher, &target(1)).await.unwrap();
    launcher.instances.settle().await;
    assert_eq!(launcher.host.things(), [format!("files of {}", sandbox(1))]);
}

#[tokio::test]
async fn a_death_is_reported_once_after_its_cause() {
    let launcher = launcher(InstanceSettings::default(), 1);
    let mut notices = launcher.instances.notices();
    Instances::start(&launcher, &spec(1, 1), FilesState::New).await.unwrap();
    let live = launcher.instances.live(&target(1)).unwrap();
    live.running.has_event.store(true, Ordering::SeqCst);
    live.die();
    let notice = |what| Notice { sandbox: sandbox(1), instance: instance(1), what };
    let expected = [notice(NoticeKind::OutOfMemory), notice(NoticeKind::Died)];
    for expected in expected {
        let told = next(&mut notices).await;
        assert_eq!(
            (told.sandbox, told.instance, told.what),
            (expected.sandbox, expected.instance, expected.what)
        );
    }
    Instances::report_events(&*launcher);
    // Ending the dead instance reports nothing.
    Instances::destroy(&*launcher, &target(1)).await.unwrap();
    launcher.instances.settle().await;
    assert!(matches!(notices.try_recv(), Err(broadcast::error::TryRecvError::Empty)));
}

#[tokio::test]
async fn an_end_that_the_server_causes_is_not_reported() {
    let launcher = launcher(InstanceSettings::default(), 2);
    let mut notices = launcher.instances.notices();
    for number in [1, 2] {
        Instances::start(&launcher, &spec(number, number), FilesState::New).await.unwrap();
    }
    let alive = launcher.instances.live(&target(2)).unwrap();
    Instances::halt(&*launcher, &target(1)).await.unwrap();
    // The first notice is that of the other sandbox.
    alive.die();
    assert_eq!(next(&mut notices).await.sandbox, sandbox(2));
}

#[tokio::test]
async fn a_call_for_an_earlier_instance_does_not_reach_the_live_one() {
    let launcher = launcher(InstanceSettings::default(), 1);
    Instances::start(&launcher, &spec(1, 1), FilesState::New).await.unwrap();
    let earlier = Target { sandbox: sandbox(1), instance: Some(instance(9)) };
    assert!(matches!(launcher.instances.live(&earlier), Err(ProviderError::Gone { .. })));
    Instances::halt(&*launcher, &earlier).await.unwrap();
    assert!(!launcher.instances.live(&target(1)).unwrap().is_dead().unwrap());
    // A halt of an unknown sandbox leaves no slot.
    Instances::halt(&*launcher, &target(7)).await.unwrap();
    assert_eq!(launcher.instances.slots().len(), 1);
}

#[tokio::test]
async fn a_removal_is_tried_until_it_succeeds() {
    let launcher = launcher(InstanceSettings::default(), 1);
    Instances::start(&launcher, &spec(1, 1), FilesState::New).await.unwrap();
    launcher.host.failures.store(2, Ordering::SeqCst);
    Instances::destroy(&*launcher, &target(1)).await.unwrap();
    launcher.instances.settle().await;
    // Two failures, the instance, and its files.
    assert_eq!(launcher.host.removals.load(Ordering::SeqCst), 4);
    assert_eq!(launcher.host.things(), Vec::<String>::new());
}

/// As in a move back to a provider that the sandbox has just left.
#[tokio::test]
async fn a_late_removal_does_not_reach_the_files_of_a_sandbox_that_was_made_again() {
    let launcher = launcher(InstanceSettings::default(), 2);
    Instances::start(&launcher, &spec(1, 1), FilesState::New).await.unwrap();
    // The reaper fails for a while.
    launcher.host.failures.store(4, Ordering::SeqCst);
    Instances::destroy(&*launcher, &target(1)).await.unwrap();
    Instances::start(&launcher, &spec(1, 2), FilesState::New).await.unwrap();
    launcher.instances.settle().await;
    let mut left = vec![instance(2).to_string(), format!("files of {}", sandbox(1))];
    left.sort();
    assert_eq!(launcher.host.things(), left);
}
