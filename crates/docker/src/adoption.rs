//! Adoption: what became of the containers of this server while it was down. They are found by their labels.

use std::time::{Duration, Instant};

use atoll_provider::{AGENT_PORT, Adopted, AdoptionOutcome, InstanceActivity, KnownSandbox, ProviderError};

use crate::Shared;
use crate::daemon::FoundContainer;

/// LIMIT: a running agent takes connections within milliseconds.
const AGENT_WITHIN: Duration = Duration::from_secs(5);
/// LIMIT: a daemon notices the end of a container within this time.
const END_WITHIN: Duration = Duration::from_secs(1);
const END_POLL: Duration = Duration::from_millis(20);

impl Shared {
    pub(crate) async fn adopt(&self, known: Vec<KnownSandbox>) -> Result<Vec<Adopted>, ProviderError> {
        let _nothing_else = self.adoption.write().await;
        let owned = self.daemon.owned().await?;
        for stray in owned.iter().filter(|found| !known.iter().any(|known| known.sandbox == found.sandbox)) {
            if let Err(error) = self.destroy(&stray.sandbox).await {
                // The next start tries it again; the other containers are adopted all the same.
                tracing::warn!(sandbox = %stray.sandbox, %error, "a container that no sandbox needs could not be removed");
            }
        }
        let mut adopted = Vec::new();
        for known in &known {
            let found = owned.iter().find(|found| found.sandbox == known.sandbox);
            let fate = match found {
                Some(found) => self.adopt_one(known, found).await?,
                None => AdoptionOutcome::Gone,
            };
            if let Some((instance, _)) = &known.instance {
                adopted.push(Adopted { instance: instance.clone(), fate, facts: None });
            }
        }
        Ok(adopted)
    }

    async fn adopt_one(
        &self,
        known: &KnownSandbox,
        found: &FoundContainer,
    ) -> Result<AdoptionOutcome, ProviderError> {
        let is_known = known.instance.as_ref().is_some_and(|(instance, _)| *instance == found.instance);
        let activity = match found.activity {
            Some(activity) if is_known && self.take_up(found).await?.is_some() => activity,
            Some(_) | None => {
                let slot = self.slots.of(&found.sandbox);
                self.end(found, &slot).await?;
                return Ok(AdoptionOutcome::Gone);
            }
        };
        match (activity, known.paused) {
            (InstanceActivity::Running, _) if self.ends_now(found).await? => Ok(AdoptionOutcome::Gone),
            (InstanceActivity::Running, _) => Ok(AdoptionOutcome::Alive),
            (InstanceActivity::Paused, true) => Ok(AdoptionOutcome::Frozen),
            (InstanceActivity::Paused, false) => {
                self.daemon.unpause(&found.id).await?;
                Ok(AdoptionOutcome::Alive)
            }
        }
    }

    /// Whether a container that the daemon shows as running has ended meanwhile. On this machine its first process was
    /// looked at; on another one its agent has to take a connection.
    async fn ends_now(&self, found: &FoundContainer) -> Result<bool, ProviderError> {
        let slot = self.slots.of(&found.sandbox);
        let Some(live) = slot.live().filter(|_| self.settings.is_remote()) else { return Ok(false) };
        if self.connect(&live, AGENT_PORT, AGENT_WITHIN).await.is_ok() {
            return Ok(false);
        }
        let begun = Instant::now();
        while begun.elapsed() < END_WITHIN {
            let again = self.find(&found.sandbox).await?;
            if again.is_none_or(|again| again.activity.is_none()) {
                slot.end(&found.instance);
                return Ok(true);
            }
            tokio::time::sleep(END_POLL).await;
        }
        Ok(false)
    }
}
