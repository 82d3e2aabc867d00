//! Adoption: what became of the sessions of this server while it was down. They are found by their labels.

use std::collections::HashMap;

use atoll_model::SandboxId;
use atoll_provider::{
    Adopted, AdoptionOutcome, InstanceActivity, KnownSandbox, OwnedSandbox, ProviderError, Target,
};
use atoll_remote::{CallError, ObjectState};
use futures::StreamExt;

use crate::AgentbayShared;
use crate::api::{OwnedSession, SessionState};
use crate::lifecycle::new_object;

/// LIMIT: sandboxes that are taken up at a time.
const ADOPT_AT_ONCE: usize = 16;

fn not_listed(error: CallError) -> ProviderError {
    error.into_provider("listing the sandboxes of this server")
}

impl AgentbayShared {
    pub(crate) async fn owned_sandboxes(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let mut sandboxes: HashMap<SandboxId, OwnedSandbox> = HashMap::new();
        for session in self.sessions_of(None).await.map_err(not_listed)? {
            let activity = match session.state {
                SessionState::Running | SessionState::Resuming => InstanceActivity::Running,
                SessionState::Paused | SessionState::Pausing => InstanceActivity::Paused,
            };
            let instance = Some((session.instance, activity));
            let owned = OwnedSandbox { sandbox: session.sandbox.clone(), instance };
            sandboxes.entry(session.sandbox).or_insert(owned);
        }
        Ok(sandboxes.into_values().collect())
    }

    pub(crate) async fn adopt(&self, known: Vec<KnownSandbox>) -> Result<Vec<Adopted>, ProviderError> {
        let _no_changes = self.table.adopting().await;
        let mut unclaimed = self.sessions_of(None).await.map_err(not_listed)?;
        // The session that the facts name comes first; then the order is that of the ids.
        unclaimed.sort_by(|one, other| one.id.cmp(&other.id));
        let claims: Vec<_> = known
            .into_iter()
            .map(|known| {
                let session = claim(&mut unclaimed, &known);
                self.adopt_one(known, session)
            })
            .collect();
        let fates: Vec<_> = futures::stream::iter(claims).buffered(ADOPT_AT_ONCE).collect().await;
        let removals = unclaimed.into_iter().map(|stray| async move {
            if let Err(error) = self.delete(&stray.id).await {
                // The watch tries it again after the grace time.
                tracing::warn!(sandbox = %stray.sandbox, provider = self.name, %error, "a session that no sandbox needs could not be removed");
            }
        });
        futures::stream::iter(removals).buffer_unordered(ADOPT_AT_ONCE).collect::<()>().await;
        let fates = fates.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.table.set_adopted();
        Ok(fates.into_iter().flatten().collect())
    }

    async fn adopt_one(
        &self,
        known: KnownSandbox,
        session: Option<OwnedSession>,
    ) -> Result<Option<Adopted>, ProviderError> {
        let fate = match session {
            Some(session) => self.claim_session(&known, session).await?,
            None => {
                self.table.of(&known.sandbox).clear();
                AdoptionOutcome::Gone
            }
        };
        Ok(known.instance.map(|(instance, _)| Adopted { instance, fate, facts: None }))
    }

    async fn claim_session(
        &self,
        known: &KnownSandbox,
        session: OwnedSession,
    ) -> Result<AdoptionOutcome, ProviderError> {
        let slot = self.table.of(&known.sandbox);
        let is_wanted = known.instance.as_ref().is_some_and(|(wanted, _)| *wanted == session.instance);
        if !is_wanted {
            // A sandbox that is stopped has no session.
            self.delete(&session.id).await?;
            slot.clear();
            return Ok(AdoptionOutcome::Gone);
        }
        let Some(state) = self.settled(&session.id, session.state).await? else {
            slot.clear();
            return Ok(AdoptionOutcome::Gone);
        };
        let fresh = new_object(&session.instance, state, session.id.clone());
        // What is remembered of it stays.
        let before = slot.object().filter(|before| before.id == session.id);
        let access = before.and_then(|before| before.access).or_else(|| fresh.access.clone());
        slot.set(crate::SessionObject { access, ..fresh });
        match state {
            ObjectState::Paused if known.paused => Ok(AdoptionOutcome::Frozen),
            ObjectState::Paused => {
                // The server died during a resume, or somebody else paused it.
                let target = Target { sandbox: known.sandbox.clone(), instance: Some(session.instance) };
                self.set_state(&target, &slot, ObjectState::Running).await?;
                Ok(AdoptionOutcome::Alive)
            }
            ObjectState::Running | ObjectState::Halted => Ok(AdoptionOutcome::Alive),
        }
    }
}

/// Takes the session of a sandbox out of those that were found: the one that the facts name, else the first.
fn claim(sessions: &mut Vec<OwnedSession>, known: &KnownSandbox) -> Option<OwnedSession> {
    let is_of = |session: &OwnedSession| session.sandbox == known.sandbox;
    let named = known.instance.as_ref().and_then(|(_, facts)| facts["object"].as_str());
    let by_name = sessions.iter().position(|session| is_of(session) && Some(session.id.as_str()) == named);
    let place = by_name.or_else(|| sessions.iter().position(is_of))?;
    Some(sessions.remove(place))
}
