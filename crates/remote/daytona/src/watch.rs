//! What happens at the service by itself: objects that are gone or stopped, objects that no sandbox needs. The service is told that
//! running objects are in use, because it stops those that seem idle to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_model::SandboxId;
use atoll_remote::{CallError, ObjectState};
use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior};

use crate::DaytonaShared;
use crate::api::ServiceState;
use crate::lifecycle::{DaytonaObject, DaytonaSlot};

/// LIMIT: calls of the watch at a time.
const AT_ONCE: usize = 8;
/// How soon the watch looks for objects that are due for a sign of life.
const TICK: Duration = Duration::from_secs(5);

type Watched = (SandboxId, Arc<DaytonaSlot>, DaytonaObject);

/// Runs until the provider is dropped, or another one with newer settings watches the same sandboxes.
pub(crate) async fn watch(shared: Arc<DaytonaShared>) {
    let every = shared.timing.watch_every;
    let (mut tick, mut list) = (tokio::time::interval(every.min(TICK)), tokio::time::interval(every));
    for interval in [&mut tick, &mut list] {
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    while shared.is_current() {
        tokio::select! {
            _ = tick.tick() => shared.give_signs_of_life().await,
            _ = list.tick() => {
                if let Err(error) = shared.compare().await {
                    tracing::debug!(provider = shared.name, %error, "the sandboxes of the service could not be listed");
                }
            }
        }
    }
}

impl DaytonaShared {
    /// Whether no provider with newer settings has taken its place. What it sees with old settings says nothing about the sandboxes.
    fn is_current(&self) -> bool {
        self.table.is_watched_by(self.watch.load(Ordering::SeqCst))
    }

    async fn give_signs_of_life(&self) {
        let every = self.settings.sign_every();
        let is_due = |object: &DaytonaObject| {
            object.state == ObjectState::Running && object.kept_at.elapsed() >= every
        };
        let due = self.table.objects().into_iter().filter(|(_, _, object)| is_due(object));
        let signs = due.map(|(sandbox, slot, object)| async move {
            // A change is activity itself.
            let Some(_turn) = slot.try_turn() else { return };
            match self.api.sign_of_life(&object.id).await {
                Ok(Some(())) => slot.update(&object.instance, |object| object.kept_at = Instant::now()),
                Ok(None) => self.look_at(&sandbox, &slot, &object).await,
                Err(error) => {
                    tracing::warn!(%sandbox, provider = self.name, %error, "the service could not be told that a sandbox is in use");
                }
            }
        });
        futures::stream::iter(signs).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// Compares the objects of this server with the table.
    async fn compare(&self) -> Result<(), CallError> {
        let before = self.table.objects();
        let listed = self.api.owned(None).await?;
        if !self.is_current() {
            return Ok(());
        }
        let states: HashMap<&str, ServiceState> =
            listed.iter().map(|found| (found.id.as_str(), found.state)).collect();
        let is_wrong = |(_, _, object): &Watched| match states.get(object.id.as_str()) {
            None => true,
            Some(ServiceState::Stopped | ServiceState::Failed) => object.state == ObjectState::Running,
            Some(_) => false,
        };
        let wrong = before.into_iter().filter(is_wrong).map(|(sandbox, slot, object)| async move {
            if let Some(_turn) = slot.try_turn() {
                self.look_at(&sandbox, &slot, &object).await;
            }
        });
        futures::stream::iter(wrong).buffer_unordered(AT_ONCE).collect::<()>().await;
        let labelled: Vec<_> = listed.into_iter().map(|found| (found.id, found.sandbox)).collect();
        for id in self.table.expired_strays(&labelled, self.timing.grace) {
            self.remove_stray(id).await;
        }
        Ok(())
    }

    /// Finds out what became of an object that is not as it should be. The caller has the turn, so nobody changes it meanwhile.
    async fn look_at(&self, sandbox: &SandboxId, slot: &DaytonaSlot, seen: &DaytonaObject) {
        let now = slot.object();
        if now.is_some_and(|now| now.id == seen.id && now.state == seen.state) {
            self.is_running(sandbox, &seen.id).await;
        }
    }

    /// Finds out whether an object runs, and reports it if not. An object that cannot be asked about counts as running.
    pub(crate) async fn is_running(&self, sandbox: &SandboxId, id: &str) -> bool {
        let state = match self.api.find(id).await {
            Ok(found) => found.map(|found| found.state),
            Err(error) => {
                tracing::debug!(%sandbox, provider = self.name, %error, "a sandbox could not be looked at");
                return true;
            }
        };
        match state {
            Some(ServiceState::Started | ServiceState::Starting) => true,
            _ if !self.is_current() => false,
            Some(_) => {
                self.table.report_stop(sandbox, id);
                false
            }
            None => {
                self.table.report_death(sandbox, id);
                false
            }
        }
    }
}
