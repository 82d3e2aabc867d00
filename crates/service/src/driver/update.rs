//! Changes to a sandbox that keep its phase: labels, environment, lifetime, timers, limits, network policy.
//!
//! The store is changed first (it checks the quota), the provider second; if the provider refuses, its changes are
//! undone and the lease is written back. After a crash in between, adoption enforces limits and policy again.

use std::time::Duration;

use atoll_model::lifecycle::{PhaseSet, Verb};
use atoll_model::policy::deadlines::Due;
use atoll_model::{Code, EventKind, Lease, Limits, MemoryLocation, Phase, Timestamp, UpdateSandbox};
use atoll_provider::{ProviderError, Target};
use atoll_store::{Admit, InstanceChange, NewEvent};

use super::steps::ChangedLease;
use super::{Driver, Edit};
use crate::ServiceError;
use crate::company::Inside;
use crate::create::timeout_at;
use crate::deadlines::check_possible;

/// LIMIT: each is a single write to a cgroup, a quota or a rule set.
pub(super) const APPLY: Duration = Duration::from_secs(10);

impl Driver {
    /// An update of settings, or with [`Verb::Resize`] a change of limits as that of a machine.
    pub(super) async fn on_update(
        &mut self,
        verb: Verb,
        change: &UpdateSandbox,
        expect: Option<PhaseSet>,
    ) -> Result<(), ServiceError> {
        self.guard(verb, expect)?;
        if verb == Verb::Resize {
            atoll_model::policy::resize::grown(&self.lease, &change.limits)?;
        }
        let changed = self.changed(change).await?;
        self.write_changed(changed).await
    }

    /// Writes settings, then puts them in force.
    pub(super) async fn write_changed(&mut self, changed: ChangedLease) -> Result<(), ServiceError> {
        if changed.fields.is_empty() {
            return Ok(());
        }
        self.show_resizing(changed.lease.limits != self.lease.limits);
        let outcome = self.apply_changed(changed).await;
        self.show_resizing(false);
        outcome
    }

    async fn apply_changed(&mut self, changed: ChangedLease) -> Result<(), ServiceError> {
        let ChangedLease { lease: next, fields } = changed;
        let before = self.lease.clone();
        let tells_agent = next.env != before.env || next.secrets != before.secrets;
        let touches_instance = next.limits != before.limits || next.network != before.network || tells_agent;
        // A frozen agent cannot receive settings.
        if tells_agent && before.phase == Phase::Paused {
            let what = if next.env == before.env { "secrets" } else { "env" };
            return Err(crate::error::refused_as(&before, Verb::Update, what));
        }
        // An instance that is on its way to another phase cannot be told.
        self.guard(Verb::Update, touches_instance.then_some(PhaseSet::RESTING))?;
        if before.phase == Phase::Archived && next.limits.disk_mib < before.limits.disk_mib {
            let message =
                format!("sandbox {} is archived; its disk limit cannot be lowered meanwhile", before.id);
            return Err(ServiceError::new(Code::PhaseConflict, message)
                .hint("its files may not fit when they come back: restore it first"));
        }
        if next.limits.cpu_milli > before.limits.cpu_milli {
            self.inner.admission.check_cores(self.provider.as_ref(), &next.limits).await?;
        }
        let more_mib = next.limits.disk_mib.saturating_sub(before.limits.disk_mib);
        if more_mib > 0 {
            let (provider, tenant) = (self.provider.as_ref(), &self.lease.tenant);
            self.inner.admission.admit_growth(provider, tenant, more_mib.into()).await?;
        }
        let admit = if grows(&before.limits, &next.limits) { Admit::Resize } else { Admit::Nothing };
        let what = EventKind::Updated { fields };
        let event = NewEvent {
            at: self.inner.clock.now(),
            instance: before.instance.clone(),
            what,
            by: self.by.clone(),
        };
        self.write(next, InstanceChange::Keep, admit, vec![event], false).await?;
        if let Err(failure) = self.put_in_force(&before, &self.lease).await {
            // A part of it may be enforced.
            if let Err(error) = self.put_in_force(&self.lease, &before).await {
                tracing::warn!(sandbox = %self.id(), %error, cause = ?error.cause, "a refused change was not undone");
            }
            let back = Lease {
                limits: before.limits,
                network: before.network.clone(),
                env: before.env.clone(),
                private_env: before.private_env.clone(),
                secrets: before.secrets.clone(),
                ..self.lease.clone()
            };
            if let Err(error) = self.write(back, InstanceChange::Keep, Admit::Nothing, vec![], true).await {
                tracing::error!(sandbox = %self.id(), %error, "a refused change could not be taken back");
            }
            return Err(failure);
        }
        if self.lease.holds_compute() {
            self.inner.admission.count(&self.lease);
        }
        if self.lease.limits.disk_mib > before.limits.disk_mib {
            // Files that were too large for an archive may fit now.
            self.activity.forget_attempts(Due::Archive);
            self.schedule();
        }
        Ok(())
    }

    /// Writes a change that affects the lease alone.
    pub(super) async fn on_edit(&mut self, edit: Edit) -> Result<(), ServiceError> {
        let now = self.inner.clock.now();
        let mut next = self.lease.clone();
        let fields = edit(&mut next, &now)?;
        if fields.is_empty() {
            return Ok(());
        }
        let what = EventKind::Updated { fields: fields.into_iter().map(str::to_owned).collect() };
        let event = NewEvent { at: now, instance: self.lease.instance.clone(), what, by: self.by.clone() };
        Ok(self.write(next, InstanceChange::Keep, Admit::Nothing, vec![event], false).await?)
    }

    pub(super) async fn changed(&self, change: &UpdateSandbox) -> Result<ChangedLease, ServiceError> {
        let mut next = self.lease.clone();
        if let Some(labels) = &change.labels {
            next.labels.clone_from(labels);
        }
        if let Some(env) = &change.env {
            next.env.clone_from(env);
            next.private_env.retain(|name| env.contains_key(name));
        }
        next.limits = change.limits.resolve(self.lease.limits)?;
        next.network = change.network.clone().unwrap_or(next.network);
        if let Some(timeout_s) = change.timeout_s {
            // A lifetime that ends now does not determine the next one.
            next.timeout_s = if timeout_s == Some(0) { next.timeout_s } else { timeout_s };
            next.timeout_at = timeout_s.map(|s| timeout_at(&self.inner.clock.now(), s));
        }
        let lengthened =
            change.timeout_at_least_s.is_some_and(|s| lengthen(&mut next, &self.inner.clock.now(), s));
        next.on_timeout = change.on_timeout.unwrap_or(next.on_timeout);
        next.timeout_counts = change.timeout_counts.unwrap_or(next.timeout_counts);
        next.timers = change.timers.resolve(next.timers)?;
        next.on_exit = change.on_exit.unwrap_or(next.on_exit);
        next.follows_provider_exit &= change.on_exit.is_none();
        next.wake = change.wake.unwrap_or(next.wake);
        next.public = change.public.unwrap_or(next.public);
        next.mask_host = change.mask_host.clone().unwrap_or(next.mask_host);
        next.https_ports = change.https_ports.clone().unwrap_or(next.https_ports);
        if let Some(annotations) = &change.annotations {
            next.annotations.clone_from(annotations);
        }
        if let Some(secrets) = &change.secrets {
            next.secrets = crate::egress::attached(&self.inner, &next.tenant, secrets).await?;
        }
        let old = &self.lease;
        let fields = [
            ("labels", next.labels != old.labels),
            ("env", next.env != old.env),
            ("secrets", next.secrets != old.secrets),
            ("limits", next.limits != old.limits),
            ("network", next.network != old.network),
            ("timeout_s", change.timeout_s.is_some() || lengthened),
            ("on_timeout", next.on_timeout != old.on_timeout),
            ("timeout_counts", next.timeout_counts != old.timeout_counts),
            ("timers", next.timers != old.timers),
            (
                "on_exit",
                (next.on_exit, next.follows_provider_exit) != (old.on_exit, old.follows_provider_exit),
            ),
            ("wake", next.wake != old.wake),
            ("mask_host", next.mask_host != old.mask_host),
            ("https_ports", next.https_ports != old.https_ports),
            ("public", next.public != old.public),
            ("annotations", next.annotations != old.annotations),
        ];
        let fields: Vec<_> =
            fields.iter().filter(|(_, is)| *is).map(|(name, _)| (*name).to_owned()).collect();
        check_possible(self.provider.as_ref(), &next)?;
        Ok(ChangedLease { lease: next, fields })
    }

    /// A live instance gets its limits and policy now. A sandbox with only files gets them when it boots; its disk is
    /// checked now.
    async fn put_in_force(&self, old: &Lease, new: &Lease) -> Result<(), ServiceError> {
        let (live, files) = match self.lease.phase {
            Phase::Running => (true, false),
            Phase::Paused => {
                (self.lease.held == Some(MemoryLocation::Live), self.lease.held == Some(MemoryLocation::Disk))
            }
            Phase::Stopped => (false, true),
            _ => (false, false),
        };
        let instance = self.lease.instance.clone().filter(|_| live);
        let target = Target { sandbox: self.lease.id.clone(), instance };
        let provider = &self.provider;
        let resizes =
            if files { new.limits.disk_mib != old.limits.disk_mib } else { new.limits != old.limits };
        let apply = async {
            if (live || files) && resizes {
                match provider.resize(&target, &new.limits).await {
                    // There may be no files yet.
                    Err(ProviderError::Gone { .. } | ProviderError::Unsupported { .. }) if files => {}
                    resized => resized?,
                }
            }
            let other_secrets = new.secrets != old.secrets;
            if live && (new.network != old.network || other_secrets) {
                self.set_network(&target, old, new).await?;
            }
            let tells_agent = self.lease.phase == Phase::Running && (new.env != old.env || other_secrets);
            if let Some(agent) = self.agent.as_ref().filter(|_| tells_agent) {
                let egress = crate::egress::compiled(&self.inner, new).await?;
                let authority = provider.authority(&egress).filter(|_| new.is_intercepted());
                let inside = Inside::of(&self.inner.config.company, &**provider, authority.as_deref());
                crate::agent::resettle(agent, new, inside).await?;
            }
            if let Some(agent) =
                self.agent.as_ref().filter(|_| self.lease.phase == Phase::Running && new.limits != old.limits)
            {
                crate::agent::tell_limits(agent, new).await;
            }
            Ok::<(), ServiceError>(())
        };
        let late = ProviderError::Late { what: "the change".to_owned(), after: APPLY };
        tokio::time::timeout(APPLY, apply).await.unwrap_or(Err(late.into()))
    }
}

/// Whether the lifetime ended earlier than `seconds` from now; then it ends at that time.
fn lengthen(lease: &mut Lease, now: &Timestamp, seconds: u64) -> bool {
    let until = timeout_at(now, seconds);
    let ends_before = lease.timeout_at.as_ref().is_some_and(|at| at.ms_after(&until) < 0);
    if ends_before {
        (lease.timeout_s, lease.timeout_at) = (Some(seconds), Some(until));
    }
    ends_before
}

const fn grows(old: &Limits, new: &Limits) -> bool {
    new.cpu_milli > old.cpu_milli || new.memory_mib > old.memory_mib || new.disk_mib > old.disk_mib
}
