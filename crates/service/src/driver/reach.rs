//! Enforces the network policy of a live sandbox: at the provider, and with the certificate authority in the sandbox.

use std::time::Duration;

use atoll_model::{EventKind, Intent, Lease, MemoryLocation, Phase};
use atoll_provider::{Capability, ProviderError, Target};
use atoll_store::NewEvent;

use super::update::APPLY;
use super::{Driver, DriverMessage};
use crate::ServiceError;
use crate::company::Inside;

/// How long until the policy is tried again after a failure.
const AGAIN: Duration = Duration::from_secs(5);

impl Driver {
    /// Passes the current policy of all layers and the lease to the provider. If the instance cannot be informed at the
    /// moment, the effect that makes or thaws it does so later.
    pub(super) async fn on_refresh(&mut self) -> Result<(), ServiceError> {
        let live = match self.lease.phase {
            Phase::Running => true,
            Phase::Paused => self.lease.held == Some(MemoryLocation::Live),
            // The current effect may have read the policy before the change.
            Phase::Creating | Phase::Starting | Phase::Pausing | Phase::Resuming | Phase::Restoring => {
                self.refresh_due = true;
                return Ok(());
            }
            Phase::Stopping
            | Phase::Stopped
            | Phase::Archiving
            | Phase::Archived
            | Phase::Failed
            | Phase::Deleting
            | Phase::Deleted => false,
        };
        self.refresh_due = false;
        // A provider that enforces no policy has none to change.
        if !live || !self.provider.capabilities().has(Capability::Egress) {
            return Ok(());
        }
        let target = Target { sandbox: self.lease.id.clone(), instance: self.lease.instance.clone() };
        let late = ProviderError::Late { what: "the change".to_owned(), after: APPLY };
        let set = tokio::time::timeout(APPLY, self.set_network(&target, &self.lease, &self.lease)).await;
        let set = set.unwrap_or(Err(late.into()));
        if set.is_err() {
            self.refresh_due = true;
            self.try_refresh_later();
        }
        set
    }

    /// Informs followers of the sandbox that a layer above its policy changed.
    pub(super) async fn tell_refreshed(&self) {
        let what = EventKind::Updated { fields: vec!["network".to_owned()] };
        let event = NewEvent {
            at: self.inner.clock.now(),
            instance: self.lease.instance.clone(),
            what,
            by: self.by.clone(),
        };
        let (tenant, id) = (self.lease.tenant.clone(), self.lease.id.clone());
        if let Err(error) = self.inner.store.record(tenant, id, event).await {
            tracing::warn!(sandbox = %self.lease.id, %error, "an event could not be written");
        }
    }

    /// A policy that the operator no longer allows is not narrowed silently: the start is refused.
    pub(super) fn refuse_forbidden_reach(&self, intent: Intent) -> Result<(), ServiceError> {
        if intent != Intent::Run || !self.lease.phase.needs_boot() {
            return Ok(());
        }
        let floor = crate::egress::floor(&self.inner, &self.lease.tenant);
        let allowed = atoll_model::policy::egress::check(&self.lease.network, floor);
        allowed.map_err(|bad| {
            let error = ServiceError::from(bad);
            let hint = error.hint.clone().map(|hint| format!("; {hint}")).unwrap_or_default();
            error.hint(format!("give it another network policy and start it again{hint}"))
        })
    }

    pub(super) async fn refresh_if_due(&mut self) {
        if self.refresh_due
            && let Err(error) = self.on_refresh().await
        {
            tracing::warn!(sandbox = %self.lease.id, %error, cause = ?error.cause, "its network policy is not in force yet; this is retried");
        }
    }

    /// A narrowed policy must not be lost because the provider failed once.
    fn try_refresh_later(&self) {
        let Some(handle) = self.inner.registry.get(&self.lease.id) else { return };
        let closing = self.inner.closing.clone();
        self.inner.spawn(async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = tokio::time::sleep(AGAIN) => {
                    let _ = handle.mailbox.send(DriverMessage::Refresh { reply: None }.into()).await;
                }
            }
        });
    }

    /// Enforces the policy of a lease at a live instance. The certificate authority is installed first: a request that
    /// is changed before that would fail. A frozen instance gets it when it is thawed.
    pub(super) async fn set_network(
        &self,
        target: &Target,
        old: &Lease,
        lease: &Lease,
    ) -> Result<(), ServiceError> {
        let egress = crate::egress::compiled(&self.inner, lease).await?;
        let provider = &self.provider;
        let (had, has) = (old.is_intercepted(), lease.is_intercepted());
        if let Some(agent) =
            self.agent.as_ref().filter(|_| self.lease.phase == Phase::Running && (had || has))
        {
            let authority = provider.authority(&egress);
            let inside = Inside::of(&self.inner.config.company, &**provider, authority.as_deref());
            crate::agent::trust(agent, lease, inside).await;
        }
        provider.set_network(target, egress).await?;
        Ok(())
    }
}
