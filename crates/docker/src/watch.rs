//! Deaths of containers and lack of memory in them. The daemon's events tell both at once. A pidfd tells each death too,
//! so none is lost while the daemon restarts or the stream breaks off.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::{Notice, NoticeKind, ProviderError};
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures::StreamExt;

use crate::{Shared, daemon};

/// How often the pidfds of all containers are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often a daemon on another machine is asked which containers run: an event may be lost with its connection.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// The first and the longest wait before the next connection to a daemon that does not answer.
const RECONNECT_AFTER: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Runs until the provider is dropped.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let (first, longest) = RECONNECT_AFTER;
    let mut wait = first;
    loop {
        match shared.listen().await {
            Ok(()) => wait = first,
            Err(error) => {
                tracing::debug!(provider = shared.name, %error, "no events from the Docker daemon");
                wait = (wait * 2).min(longest);
            }
        }
        let mut check = tokio::time::interval(CHECK_EVERY);
        let checking = async {
            loop {
                check.tick().await;
                shared.report_deaths();
            }
        };
        let _ = tokio::time::timeout(wait, checking).await;
    }
}

impl Shared {
    /// Reads events until the stream ends. An error says that there was no event.
    async fn listen(&self) -> Result<(), ProviderError> {
        let docker = self.daemon.docker()?;
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("label", vec![self.daemon.owner_filter()]),
        ]);
        let options = EventsOptionsBuilder::default().filters(&filters).build();
        let mut events = pin!(docker.events(Some(options)));
        let mut check = tokio::time::interval(CHECK_EVERY);
        let mut list = tokio::time::interval(LIST_EVERY);
        let mut heard = false;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        heard = true;
                        self.on_event(&event);
                    }
                    Some(Err(error)) if !heard => {
                        let (what, why) = ("reading events".to_owned(), error.to_string());
                        return Err(ProviderError::Transient { what, why });
                    }
                    Some(Err(_)) | None => return Ok(()),
                },
                _ = check.tick() => self.report_deaths(),
                _ = list.tick(), if self.settings.is_remote() => self.report_missing().await,
            }
        }
    }

    /// Reports containers of a daemon on another machine that no longer run.
    async fn report_missing(&self) {
        let live = self.slots.live();
        let Ok(owned) = self.daemon.owned().await else { return };
        let runs = |instance: &InstanceId| {
            owned.iter().any(|found| found.instance == *instance && found.activity.is_some())
        };
        for (sandbox, ended) in live.iter().filter(|(_, live)| !runs(&live.instance)) {
            self.report_death(sandbox, &ended.instance);
        }
    }

    fn on_event(&self, event: &EventMessage) {
        let attributes = event.actor.as_ref().and_then(|actor| actor.attributes.as_ref());
        let Some(attributes) = attributes else { return };
        let name = attributes.get("name").map(String::as_str).unwrap_or_default();
        let Some((sandbox, instance)) = daemon::identity(attributes, name) else { return };
        match event.action.as_deref() {
            Some("die") => self.report_death(&sandbox, &instance),
            Some("oom") => {
                let live = self.slots.existing(&sandbox).and_then(|slot| slot.live());
                if live.is_some_and(|live| live.instance == instance) {
                    self.report(sandbox, instance, NoticeKind::OutOfMemory);
                }
            }
            Some(_) | None => {}
        }
    }

    /// Reports every container whose first process has ended.
    fn report_deaths(&self) {
        for (sandbox, live) in self.slots.live() {
            if live.is_dead() {
                self.report_death(&sandbox, &live.instance);
            }
        }
    }

    /// Reports a death once, unless this server caused it.
    fn report_death(&self, sandbox: &SandboxId, instance: &InstanceId) {
        let slot = self.slots.existing(sandbox);
        if slot.is_some_and(|slot| slot.end_live(instance)) {
            self.report(sandbox.clone(), instance.clone(), NoticeKind::Died);
        }
    }

    fn report(&self, sandbox: SandboxId, instance: InstanceId, what: NoticeKind) {
        // Without a listener the notice is dropped.
        let _ = self.notices.send(Notice { sandbox, instance, what });
    }
}
