//! How a driver begins for an existing sandbox: after a restart of the server, or after its own panic.

use std::sync::Arc;

use atoll_agentapi::AgentClient;
use atoll_model::lifecycle::Event;
use atoll_model::{Code, InstanceId, Intent, Lease, MemoryLocation, Phase, Reason};
use atoll_provider::Provider;
use atoll_store::{Admit, InstanceChange, InstanceRow};

use super::Driver;
use super::effects::Work;
use super::steps::Transition;
use crate::ServiceError;
use crate::random::entropy;
use crate::sandboxes::SandboxesState;
use crate::snapshots::Seed;

/// Drives a sandbox that the store knows already; `first` is done before anything else.
pub(crate) fn resume(inner: &Arc<SandboxesState>, known: AdoptedSandbox, first: Resumption) {
    let AdoptedSandbox { provider, lease, row, agent, seed, exits } = known;
    let (mut driver, handle, mailbox) = Driver::new(inner, &provider, lease, row, agent);
    driver.seed = seed;
    inner.registry.put(driver.lease.id.clone(), handle);
    inner.spawn(async move {
        driver.take_up(first).await;
        if exits {
            driver.finish_exit().await;
        }
        driver.supervise(mailbox).await;
    });
}

/// A sandbox as the store and the provider know it.
pub(crate) struct AdoptedSandbox {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) lease: Lease,
    pub(crate) row: Option<InstanceRow>,
    pub(crate) agent: Option<AgentClient>,
    pub(crate) seed: Option<Arc<Seed>>,
    /// Whether the orderly end of the last server had not paused or deleted it yet.
    pub(crate) exits: bool,
}

/// What a sandbox needs after a restart of the server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Resumption {
    /// Nothing: it is at rest, or runs and is watched.
    Nothing,
    /// Its creation or start was interrupted: do it again as another instance.
    Again,
    /// It was being stopped.
    Halt,
    /// It was being deleted.
    Destroy,
    /// It was running and its instance no longer exists.
    Lost,
    /// It is at rest in an intermediate phase: a restart, an archive or a wake was interrupted.
    GoOn,
    /// It was being paused, or it is not certain whether it is frozen.
    Freeze,
    /// It is paused, and its memory is not where the lease says.
    Held(MemoryLocation),
    /// It was being resumed: continue.
    Resume,
    /// Its restore had progressed so far that the instance exists.
    Restored(serde_json::Value),
    /// Its files were being uploaded to object storage.
    Archive,
    /// Its files were being downloaded, or rolled back to a snapshot.
    Restore,
    /// It was being copied to another provider: it stays where it is.
    AbortMove,
    /// Its fork was not complete.
    Unmake,
}

impl Driver {
    async fn take_up(&mut self, first: Resumption) {
        self.tidy_after_restart();
        self.remove_other();
        match first {
            // The installation of a certificate authority may have been interrupted.
            Resumption::Nothing if self.lease.is_intercepted() => {
                self.refresh_due = true;
                self.refresh_if_due().await;
            }
            Resumption::Nothing => {}
            Resumption::Again => self.begin_again().await,
            Resumption::Halt => self.launch(Work::Halt { instance: self.lease.instance.clone() }),
            Resumption::Destroy => self.launch(Work::Destroy),
            Resumption::Lost => self.note(Transition::internal(Event::Died, Reason::LostWhileDown)).await,
            Resumption::GoOn if self.lease.phase == Phase::Stopped => self.after_stop().await,
            Resumption::GoOn => self.go_on().await,
            Resumption::Freeze => {
                let disk =
                    self.lease.phase == Phase::Pausing && self.lease.held == Some(MemoryLocation::Disk);
                self.launch(Work::Freeze { disk });
            }
            Resumption::Held(held) => {
                let rest =
                    Transition { held: Some(held), ..Transition::internal(Event::Paused, Reason::Completed) };
                self.note(rest).await;
            }
            Resumption::Resume if self.lease.held == Some(MemoryLocation::Disk) => {
                self.launch(Work::Restore { made: None });
            }
            Resumption::Resume => self.launch(Work::Resume),
            Resumption::Restored(facts) => self.launch(Work::Restore { made: Some(facts) }),
            Resumption::Archive => self.launch(Work::Archive),
            Resumption::Restore if self.lease.rollback_to.is_some() => self.launch(Work::Rollback),
            Resumption::Restore => self.launch(Work::Unarchive),
            Resumption::AbortMove => self.begin_copy().await,
            Resumption::Unmake => {
                let unmake = Transition::asked(Event::Delete, Intent::Delete, Reason::LostWhileDown);
                self.note(unmake).await;
            }
        }
    }

    /// Pauses or deletes it before any request is handled. The mark is removed once that is recorded; if it is refused, the
    /// sandbox stays as it is, as at the end of a server.
    async fn finish_exit(&mut self) {
        if let Some(action) = crate::exit::action(&self.lease)
            && let Err(error) = self.on_request(&action, Reason::Exit, None).await
        {
            tracing::warn!(sandbox = %self.lease.id, %error, "the sandbox was not paused or deleted after the end of its server");
        }
        if let Err(error) = self.inner.store.end_exits(vec![self.lease.id.clone()]).await {
            tracing::warn!(sandbox = %self.lease.id, %error, "the mark of an orderly end could not be removed");
        }
    }

    /// Removes objects of a restore that were not removed before the server ended.
    fn tidy_after_restart(&mut self) {
        if !self.lease.phase.may_use_archive() {
            self.tidy_objects();
        }
    }

    /// The phase stays; only the instance is another one, so that a late result of the first attempt cannot be mistaken
    /// for one of the second.
    async fn begin_again(&mut self) {
        let work = if self.lease.phase == Phase::Creating { Work::Create } else { Work::Boot };
        let Ok(random) = entropy() else { return };
        let mut next = self.lease.clone();
        next.instance = Some(InstanceId::from_entropy(random));
        next.phase_at = self.inner.clock.now();
        match self.write(next, InstanceChange::Drop, Admit::Nothing, vec![], true).await {
            Ok(()) => self.launch(work),
            Err(error) => {
                tracing::error!(sandbox = %self.lease.id, %error, "an interrupted create could not be continued")
            }
        }
    }

    pub(super) async fn recover(&mut self) {
        self.resizing = false;
        self.reload().await;
        self.remove_other();
        let reason = Reason::Provider { message: "an internal error; see the log".to_owned() };
        match self.lease.phase {
            Phase::Restoring if self.lease.rollback_to.is_some() => self.launch(Work::Rollback),
            Phase::Restoring | Phase::Stopped if self.lease.is_being_copied() => {
                self.launch(Work::AbortMove);
            }
            // The panic was between the end of a move and the start.
            Phase::Stopped if self.lease.starts_after_move() => self.end_of_stop().await,
            // Nothing of it was under way.
            Phase::Creating if self.lease.waits_for_place() => {}
            Phase::Creating
            | Phase::Starting
            | Phase::Stopping
            | Phase::Pausing
            | Phase::Resuming
            | Phase::Archiving
            | Phase::Restoring => {
                self.failure = Some(ServiceError::new(Code::Internal, "the sandbox's driver failed"));
                self.note(Transition::internal(Event::Failed, reason)).await;
            }
            Phase::Deleting => self.launch(Work::Destroy),
            Phase::Running
            | Phase::Paused
            | Phase::Stopped
            | Phase::Archived
            | Phase::Failed
            | Phase::Deleted => {}
        }
    }
}
