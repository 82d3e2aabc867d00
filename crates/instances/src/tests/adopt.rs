//! Adoption: a second launcher on the same host, as after a restart of the server.

use atoll_model::SnapshotId;
use atoll_provider::{Adopted, AdoptionOutcome, KnownSandbox};
use serde_json::Value;

use super::*;
use crate::AdoptionLauncher;

impl AdoptionLauncher for FakeLauncher {
    async fn before_adoption(&self, _known: &[KnownSandbox]) {}

    async fn hold_again(
        &self,
        _known: &KnownSandbox,
        _live: &Arc<FakeInstance>,
    ) -> Result<Option<Value>, ProviderError> {
        Ok(None)
    }

    fn find(
        &self,
        _known: &KnownSandbox,
        instance: &InstanceId,
        _facts: &Value,
    ) -> Option<(FakeInstance, Option<Value>)> {
        let running = self.host.running.lock().unwrap().get(instance.as_str()).cloned()?;
        let found = FakeInstance::new(instance.as_str(), running);
        (!found.is_dead().unwrap()).then_some((found, None))
    }

    fn outcome(&self, _known: &KnownSandbox, live: Option<&FakeInstance>) -> AdoptionOutcome {
        live.map_or(AdoptionOutcome::Gone, |_| AdoptionOutcome::Alive)
    }

    async fn sweep(
        &self,
        known: &[KnownSandbox],
        surviving: &[Arc<FakeInstance>],
    ) -> Result<(), ProviderError> {
        let mut kept: BTreeSet<String> = surviving.iter().map(|live| live.name.clone()).collect();
        kept.extend(known.iter().map(|known| format!("files of {}", known.sandbox)));
        self.instances.for_each_ready(|ready| {
            kept.insert(ready.instance.name.clone());
        });
        let strangers = self.host.things().into_iter().filter(|name| !kept.contains(name)).collect();
        self.instances.reaper().take(strangers);
        Ok(())
    }

    fn recognise(&self, _live: &FakeInstance) {}

    async fn apply_again(&self, _known: &KnownSandbox, _live: &Arc<FakeInstance>) {}

    async fn after_adoption(
        &self,
        _known: &[KnownSandbox],
        _adopted: &[Adopted],
        _snapshots: &[SnapshotId],
    ) -> Result<(), ProviderError> {
        Ok(())
    }
}

fn known(of: u8, number: u8) -> KnownSandbox {
    KnownSandbox {
        sandbox: sandbox(of),
        instance: Some((instance(number), Value::Null)),
        storage: Storage::Disk,
        limits: Limits::default(),
        network: Arc::new(Egress::closed()),
        paused: false,
    }
}

fn outcomes(adopted: &[Adopted]) -> Vec<AdoptionOutcome> {
    adopted.iter().map(|adopted| adopted.fate).collect()
}

/// A host on which an earlier server has left sandboxes 1, 2 and 3; the instance of 2 is dead.
async fn left_by_an_earlier_server() -> Arc<Host> {
    let earlier = launcher(InstanceSettings::default(), 3);
    for number in 1..=3 {
        Instances::start(&earlier, &spec(number, number), FilesState::New).await.unwrap();
    }
    earlier.instances.live(&target(2)).unwrap().die();
    Arc::clone(&earlier.host)
}

#[tokio::test]
async fn known_instances_are_taken_up_and_the_rest_is_removed() {
    let host = left_by_an_earlier_server().await;
    let settings = InstanceSettings { needs_adoption: true, ..InstanceSettings::default() };
    let launcher = on_host(&host, settings, 1);
    let early = Instances::start(&launcher, &spec(4, 4), FilesState::New).await;
    assert!(matches!(early, Err(ProviderError::Unsupported { .. })), "{early:?}");
    let adopted = Instances::adopt(&launcher, vec![known(1, 1), known(2, 2)], Vec::new()).await.unwrap();
    assert_eq!(outcomes(&adopted), [AdoptionOutcome::Alive, AdoptionOutcome::Gone]);
    launcher.instances.settle().await;
    let files = |of| format!("files of {}", sandbox(of));
    let mut left = vec![instance(1).to_string(), files(1), files(2)];
    left.sort();
    assert_eq!(host.things(), left);
    let mut notices = launcher.instances.notices();
    launcher.instances.live(&target(1)).unwrap().die();
    let told = next(&mut notices).await;
    assert_eq!((told.sandbox, told.what), (sandbox(1), NoticeKind::Died));
    Instances::start(&launcher, &spec(4, 4), FilesState::New).await.unwrap();
}

#[tokio::test]
async fn a_second_adoption_ends_what_became_unknown_and_watches_nothing_twice() {
    let launcher = launcher(InstanceSettings::default(), 2);
    let mut notices = launcher.instances.notices();
    for number in [1, 2] {
        Instances::start(&launcher, &spec(number, number), FilesState::New).await.unwrap();
    }
    let adopted = Instances::adopt(&launcher, vec![known(1, 1)], Vec::new()).await.unwrap();
    assert_eq!(outcomes(&adopted), [AdoptionOutcome::Alive]);
    launcher.instances.settle().await;
    assert!(launcher.instances.live(&target(2)).is_err());
    launcher.instances.live(&target(1)).unwrap().die();
    assert_eq!(next(&mut notices).await.what, NoticeKind::Died);
    Instances::halt(&*launcher, &target(1)).await.unwrap();
    launcher.instances.settle().await;
    assert!(matches!(notices.try_recv(), Err(broadcast::error::TryRecvError::Empty)));
}

#[tokio::test]
async fn an_adoption_waits_for_the_start_under_way() {
    let launcher = launcher(InstanceSettings::default(), 0);
    let starting = start(&launcher, spec(1, 1), FilesState::New);
    launching(&launcher, &[sandbox(1)]).await;
    let adopting = tokio::spawn({
        let launcher = Arc::clone(&launcher);
        async move { Instances::adopt(&launcher, vec![known(1, 1)], Vec::new()).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!adopting.is_finished(), "the sweep would remove a half-made instance");
    launcher.permits.add_permits(1);
    starting.await.unwrap().unwrap();
    assert_eq!(outcomes(&adopting.await.unwrap().unwrap()), [AdoptionOutcome::Alive]);
    assert!(launcher.host.things().contains(&instance(1).to_string()));
}
