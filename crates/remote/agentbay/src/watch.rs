//! What happens at the service by itself: idle times that end, sessions that are gone or paused, sessions that no sandbox needs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_model::SandboxId;
use atoll_provider::Target;
use atoll_remote::{CallError, ObjectState};
use futures::StreamExt;
use tokio::time::{Instant, MissedTickBehavior};

use crate::api::SessionState;
use crate::{AgentbayShared, SessionObject, SessionSlot};

/// LIMIT: calls of the watch at a time.
const WATCH_CALLS: usize = 8;
/// The longest time between two looks for sessions that have to be kept alive.
const REFRESH_LOOK: Duration = Duration::from_secs(5);

/// Runs until the provider is dropped, or another one with newer settings watches the same sandboxes.
pub(crate) async fn watch(shared: Arc<AgentbayShared>) {
    let every = |period: Duration| {
        let mut ticks = tokio::time::interval(period.max(Duration::from_millis(50)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    };
    let refresh_every = shared.settings.refresh_every();
    let mut refresh = every(refresh_every.map_or(REFRESH_LOOK, |every| (every / 4).min(REFRESH_LOOK)));
    let mut list = every(shared.timing.watch_every);
    while shared.is_watching() {
        tokio::select! {
            _ = refresh.tick() => {
                if let Some(period) = refresh_every {
                    shared.refresh_due(period).await;
                }
            }
            _ = list.tick() => {
                if let Err(error) = shared.compare().await {
                    tracing::debug!(provider = shared.name, %error, "the sessions of the service could not be listed");
                }
            }
        }
    }
}

impl AgentbayShared {
    /// Whether no provider with newer settings has taken its place. What it sees with old settings says nothing about the sandboxes.
    fn is_watching(&self) -> bool {
        self.table.is_watched_by(self.watch.load(Ordering::SeqCst))
    }

    /// Reports that a session is gone, unless this provider looks with old settings.
    pub(crate) fn report_gone(&self, sandbox: &SandboxId, id: &str) {
        if self.is_watching() {
            self.table.report_death(sandbox, id);
        }
    }

    /// Keeps every running session alive whose idle time is a third over.
    async fn refresh_due(&self, period: Duration) {
        let objects = self.table.objects().into_iter();
        let due = objects.filter(|(_, _, object)| {
            object.state == ObjectState::Running && object.kept_at.elapsed() >= period
        });
        let calls = due.map(|(sandbox, slot, object)| async move {
            // A change begins the idle time anew by itself.
            let Some(_turn) = slot.try_turn() else { return };
            match self.api.refresh(&object.id).await {
                Ok(Some(())) => slot.update(&object.instance, |object| object.kept_at = Instant::now()),
                Ok(None) => self.inspect(&sandbox, &slot, &object).await,
                Err(error) => {
                    tracing::warn!(%sandbox, provider = self.name, %error, "a session could not be kept alive");
                }
            }
        });
        futures::stream::iter(calls).buffer_unordered(WATCH_CALLS).collect::<()>().await;
    }

    /// Compares the sessions of this server with the table.
    async fn compare(&self) -> Result<(), CallError> {
        let expected = self.table.objects();
        let sessions = self.sessions_of(None).await?;
        if !self.is_watching() {
            return Ok(());
        }
        let states: HashMap<&str, SessionState> =
            sessions.iter().map(|session| (session.id.as_str(), session.state)).collect();
        let inspections = expected.into_iter().filter_map(|(sandbox, slot, object)| {
            let is_as_expected = match states.get(object.id.as_str()) {
                None => false,
                Some(SessionState::Paused | SessionState::Pausing) => object.state == ObjectState::Paused,
                Some(SessionState::Running | SessionState::Resuming) => true,
            };
            let inspection = async move {
                if let Some(_turn) = slot.try_turn() {
                    self.inspect(&sandbox, &slot, &object).await;
                }
            };
            (!is_as_expected).then_some(inspection)
        });
        futures::stream::iter(inspections).buffer_unordered(WATCH_CALLS).collect::<()>().await;
        let labelled: Vec<_> = sessions.into_iter().map(|session| (session.id, session.sandbox)).collect();
        for id in self.table.expired_strays(&labelled, self.timing.grace) {
            let removed = self.delete(&id).await;
            let problem = removed.err().map(|error| error.to_string());
            tracing::info!(
                provider = self.name,
                session = id,
                problem,
                "a session that no sandbox needs is removed"
            );
        }
        Ok(())
    }

    /// Finds out what became of a session that is not as it should be. The caller has the turn, so nobody changes it meanwhile.
    async fn inspect(&self, sandbox: &SandboxId, slot: &SessionSlot, seen: &SessionObject) {
        let now = slot.object();
        if now.is_none_or(|now| now.id != seen.id || now.state != seen.state) {
            return;
        }
        let found = match self.api.state(&seen.id).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%sandbox, provider = self.name, %error, "a session could not be looked at");
                return;
            }
        };
        match found {
            None => self.report_gone(sandbox, &seen.id),
            // Somebody else paused it: it has to run until this server says otherwise.
            Some(SessionState::Paused | SessionState::Pausing) if seen.state == ObjectState::Running => {
                let target = Target { sandbox: sandbox.clone(), instance: Some(seen.instance.clone()) };
                if let Err(error) = self.set_state(&target, slot, ObjectState::Running).await {
                    tracing::warn!(%sandbox, provider = self.name, %error, "a session that was paused at the service could not be resumed");
                }
            }
            Some(_) => {}
        }
    }
}
