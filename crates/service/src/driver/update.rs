//! Changes to a sandbox that keep its phase: labels, lifetime, limits, network policy.
//!
//! The store comes first (it checks the quota), the provider second; when the provider refuses, the lease is written
//! back. A crash in between is healed at adoption, which puts limits and policy in force again.

use std::time::Duration;

use atoll_model::{Code, EventKind, Lease, Limits, Phase, UpdateSandbox};
use atoll_provider::{ProviderError, Target};
use atoll_store::{Admit, InstanceChange, NewEvent};

use super::{Driver, Edit};
use crate::ServiceError;

/// LIMIT: these are single writes to a cgroup, a quota or a rule set.
const APPLY: Duration = Duration::from_secs(10);

impl Driver {
    pub(super) async fn on_update(&mut self, change: &UpdateSandbox) -> Result<(), ServiceError> {
        let (next, fields) = self.changed(change)?;
        if fields.is_empty() {
            return Ok(());
        }
        let before = self.lease.clone();
        let touches_instance = next.limits != before.limits || next.network != before.network;
        self.refuse_in_passing(touches_instance)?;
        let admit = if grows(&before.limits, &next.limits) { Admit::Resize } else { Admit::Nothing };
        let what = EventKind::Updated { fields };
        let event = NewEvent { at: self.inner.clock.now(), instance: before.instance.clone(), what };
        self.write(next, InstanceChange::Keep, admit, vec![event], false).await?;
        if let Err(failure) = self.put_in_force(&before).await {
            let back = Lease { limits: before.limits, network: before.network, ..self.lease.clone() };
            if let Err(error) = self.write(back, InstanceChange::Keep, Admit::Nothing, vec![], true).await {
                tracing::error!(sandbox = %self.id(), %error, "a refused change could not be taken back");
            }
            return Err(failure);
        }
        if self.lease.holds_compute() {
            self.inner.admission.count(&self.lease.id, &self.lease.limits);
        }
        Ok(())
    }

    /// Writes a change that touches the lease alone.
    pub(super) async fn on_edit(&mut self, edit: Edit) -> Result<(), ServiceError> {
        let now = self.inner.clock.now();
        let mut next = self.lease.clone();
        let fields = edit(&mut next, &now)?;
        if fields.is_empty() {
            return Ok(());
        }
        let what = EventKind::Updated { fields: fields.into_iter().map(str::to_owned).collect() };
        let event = NewEvent { at: now, instance: self.lease.instance.clone(), what };
        Ok(self.write(next, InstanceChange::Keep, Admit::Nothing, vec![event], false).await?)
    }

    fn changed(&self, change: &UpdateSandbox) -> Result<(Lease, Vec<String>), ServiceError> {
        let mut next = self.lease.clone();
        if let Some(labels) = &change.labels {
            next.labels.clone_from(labels);
        }
        next.limits = change
            .limits
            .resolve(self.lease.limits)
            .map_err(|bad| ServiceError::new(Code::InvalidRequest, bad.to_string()))?;
        next.network = change.network.unwrap_or(next.network);
        if let Some(timeout_s) = change.timeout_s {
            next.timeout_s = timeout_s;
            let ms = |s: u64| i64::try_from(s.saturating_mul(1_000)).unwrap_or(i64::MAX);
            next.timeout_at = timeout_s.map(|s| self.inner.clock.now().plus_ms(ms(s)));
        }
        let old = &self.lease;
        let fields = [
            ("labels", next.labels != old.labels),
            ("limits", next.limits != old.limits),
            ("network", next.network != old.network),
            ("timeout_s", change.timeout_s.is_some()),
        ];
        Ok((next, fields.iter().filter(|(_, is)| *is).map(|(name, _)| (*name).to_owned()).collect()))
    }

    fn refuse_in_passing(&self, touches_instance: bool) -> Result<(), ServiceError> {
        match self.lease.phase {
            Phase::Deleting | Phase::Deleted => Err(crate::error::phase_conflict(&self.lease, "update")),
            Phase::Creating
            | Phase::Starting
            | Phase::Pausing
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Archiving
            | Phase::Restoring
                if touches_instance =>
            {
                Err(crate::error::phase_conflict(&self.lease, "update"))
            }
            Phase::Creating
            | Phase::Starting
            | Phase::Pausing
            | Phase::Paused
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring
            | Phase::Running
            | Phase::Stopped
            | Phase::Failed => Ok(()),
        }
    }

    /// A sandbox that does not run gets its limits and policy when it boots.
    async fn put_in_force(&self, before: &Lease) -> Result<(), ServiceError> {
        if self.lease.phase != Phase::Running {
            return Ok(());
        }
        let target = Target { sandbox: self.lease.id.clone(), instance: self.lease.instance.clone() };
        let provider = &self.inner.provider;
        let apply = async {
            if self.lease.limits != before.limits {
                provider.resize(&target, &self.lease.limits).await?;
            }
            if self.lease.network != before.network {
                provider.set_network(&target, self.lease.network).await?;
            }
            Ok::<(), ProviderError>(())
        };
        let late = ProviderError::Late { what: "the change".to_owned(), after: APPLY };
        Ok(tokio::time::timeout(APPLY, apply).await.unwrap_or(Err(late))?)
    }
}

const fn grows(old: &Limits, new: &Limits) -> bool {
    new.cpu_milli > old.cpu_milli || new.memory_mib > old.memory_mib || new.disk_mib > old.disk_mib
}
