//! What happens at the service by itself: lifetimes that end, objects that are gone or paused, objects that no sandbox needs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_model::SandboxId;
use atoll_provider::Target;
use atoll_remote::{CallError, ObjectState};
use futures::StreamExt;

use crate::E2bShared;
use crate::api::ServiceState;
use crate::lifecycle::{E2bObject, E2bSlot};

/// LIMIT: calls of the watch at a time.
const AT_ONCE: usize = 8;
/// How soon the watch looks for lifetimes that have to be extended.
const TICK_MAX: Duration = Duration::from_secs(5);

type WatchedSandbox = (SandboxId, Arc<E2bSlot>, E2bObject);

/// Runs until the provider is dropped, or another one with newer settings watches the same sandboxes.
pub(crate) async fn watch(shared: Arc<E2bShared>) {
    let tick = shared.timing.watch_every.min(TICK_MAX).min(shared.settings.extend_every() / 4);
    let mut tick = tokio::time::interval(tick.max(Duration::from_millis(50)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut list = tokio::time::interval(shared.timing.watch_every);
    list.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shared.is_current() {
        tokio::select! {
            _ = tick.tick() => shared.extend_lifetimes().await,
            _ = list.tick() => {
                if let Err(error) = shared.compare().await {
                    tracing::debug!(provider = shared.name, %error, "the sandboxes of the service could not be listed");
                }
            }
        }
    }
}

impl E2bShared {
    /// Whether no provider with newer settings has taken its place. What it sees with old settings says nothing about the sandboxes.
    fn is_current(&self) -> bool {
        self.table.is_watched_by(self.watch.load(Ordering::SeqCst))
    }

    /// Extends the lifetime of every running object that is due.
    async fn extend_lifetimes(&self) {
        let every = self.settings.extend_every();
        let is_due = |(_, _, object): &WatchedSandbox| {
            object.state == ObjectState::Running && object.kept_at.elapsed() >= every
        };
        let due = self.table.objects().into_iter().filter(is_due);
        let extensions = due.map(|watched| self.extend(watched));
        futures::stream::iter(extensions).buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    async fn extend(&self, (sandbox, slot, object): WatchedSandbox) {
        // A change sets the lifetime itself.
        let Some(_turn) = slot.try_turn() else { return };
        match self.api.extend(&object.id).await {
            Ok(Some(())) => {
                slot.update(&object.instance, |object| object.kept_at = tokio::time::Instant::now())
            }
            Ok(None) => self.look_at(&sandbox, &slot, &object).await,
            Err(error) => {
                tracing::warn!(%sandbox, provider = self.name, %error, "the lifetime of a sandbox could not be extended");
            }
        }
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
        let is_wrong = |(_, _, object): &WatchedSandbox| match (object.state, states.get(object.id.as_str()))
        {
            (_, None) => true,
            (ObjectState::Running, Some(ServiceState::Paused)) => true,
            (ObjectState::Running | ObjectState::Paused | ObjectState::Halted, Some(_)) => false,
        };
        let wrong = before.into_iter().filter(is_wrong).map(|(sandbox, slot, object)| async move {
            if let Some(_turn) = slot.try_turn() {
                self.look_at(&sandbox, &slot, &object).await;
            }
        });
        futures::stream::iter(wrong).buffer_unordered(AT_ONCE).collect::<()>().await;
        let labelled: Vec<_> = listed.into_iter().map(|found| (found.id, found.sandbox)).collect();
        for id in self.table.expired_strays(&labelled, self.timing.grace) {
            tracing::info!(provider = self.name, object = id, "an object that no sandbox needs is removed");
            if let Err(error) = self.api.kill(&id).await {
                tracing::warn!(provider = self.name, object = id, %error, "an object that no sandbox needs could not be removed");
            }
        }
        Ok(())
    }

    /// Finds out what became of an object that is not as it should be. The caller has the turn, so nobody changes it meanwhile.
    async fn look_at(&self, sandbox: &SandboxId, slot: &E2bSlot, seen: &E2bObject) {
        let is_same = |now: &E2bObject| now.id == seen.id && now.state == seen.state;
        if !slot.object().as_ref().is_some_and(is_same) {
            return;
        }
        match self.api.state(&seen.id).await {
            Ok(None) if self.is_current() => self.table.report_death(sandbox, &seen.id),
            Ok(None) => {}
            // Its lifetime ended, or somebody else paused it: it has to run until this server says otherwise.
            Ok(Some(ServiceState::Paused)) if seen.state == ObjectState::Running => {
                let target = Target { sandbox: sandbox.clone(), instance: Some(seen.instance.clone()) };
                if let Err(error) = self.resume(&target, slot).await {
                    tracing::warn!(%sandbox, provider = self.name, %error, "a sandbox that the service paused could not be resumed");
                }
            }
            Ok(Some(_)) => {}
            Err(error) => {
                tracing::debug!(%sandbox, provider = self.name, %error, "a sandbox could not be looked at")
            }
        }
    }

    /// Finds out at once whether an object that did not answer is still there, and reports it if not.
    pub(crate) async fn is_there(&self, sandbox: &SandboxId, id: &str) -> bool {
        match self.api.state(id).await {
            Ok(None) if self.is_current() => {
                self.table.report_death(sandbox, id);
                false
            }
            Ok(None) => false,
            Ok(Some(_)) | Err(_) => true,
        }
    }
}
