//! The only way to a running sandbox. A paused or stopped sandbox is woken for the caller, if its lease allows that.
//! The caller is authorised first; many callers wake it once; how many wait and for how long is limited.
//!
//! ```text
//! authorise ──► busy (no timer acts on it now) ──► runs? ──► agent
//!                                                    │ no
//!                          on its way ◄── wake: any ─┴─ explicit ──► asleep
//!                               │ wait, bounded
//!                               └──► agent, or wake_failed with the cause
//! ```

use std::sync::Arc;

use atoll_model::lifecycle::Verb;
use atoll_model::{
    Code, InstanceId, Intent, Lease, OnTimeout, Phase, Principal, Reason, UpdateSandbox, Wake,
};
use tokio::time::Instant;

use crate::ServiceError;
use crate::activity::ActivityKind;
use crate::driver::{Action, DriverMessage};
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{Sandboxes, SandboxesState, ask};
use crate::session::SandboxSession;

/// How a sandbox shall be made to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WakeRequest {
    /// How long it lives from now on.
    pub timeout: WakeTimeout,
    /// What happens when its lifetime is over; `None`: as before.
    pub on_timeout: Option<OnTimeout>,
    /// What becomes of the memory of a paused sandbox.
    pub memory: WakeMemory,
}

/// The lifetime of a sandbox that is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WakeTimeout {
    /// As its lease says.
    #[default]
    Keep,
    /// This many seconds from now.
    Set(u64),
    /// This many seconds from now, but for a sandbox that runs already never less than it has.
    AtLeast(u64),
}

/// The memory of a paused sandbox that is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WakeMemory {
    /// Its processes continue.
    #[default]
    Keep,
    /// Its processes end, and it boots from its files. A sandbox that runs already keeps running.
    Drop,
}

/// A sandbox that was asked to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Woken {
    /// The sandbox.
    pub lease: Lease,
    /// The phase in which the request found it.
    pub found: Phase,
}

impl WakeRequest {
    /// What it changes of the lease of a sandbox in this phase.
    pub(crate) fn change(&self, phase: Phase) -> Option<UpdateSandbox> {
        let (timeout_s, timeout_at_least_s) = match self.timeout {
            WakeTimeout::Keep => (None, None),
            WakeTimeout::AtLeast(seconds) if phase.is_waking() || phase == Phase::Running => {
                (None, Some(seconds))
            }
            WakeTimeout::AtLeast(seconds) | WakeTimeout::Set(seconds) => (Some(Some(seconds)), None),
        };
        let on_timeout = self.on_timeout;
        let change = UpdateSandbox { timeout_s, timeout_at_least_s, on_timeout, ..UpdateSandbox::default() };
        (self.timeout != WakeTimeout::Keep || on_timeout.is_some()).then_some(change)
    }

    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        // The two that differ in how the lifetime is named.
        for phase in [Phase::Running, Phase::Stopped] {
            if let Some(change) = self.change(phase) {
                change.check()?;
            }
        }
        Ok(())
    }
}

impl Sandboxes {
    /// A session of a sandbox, which is woken for it.
    pub async fn session(&self, who: &Principal, ident: &str) -> Result<SandboxSession, ServiceError> {
        self.awake_session(who, ident, ActivityKind::Request).await
    }

    /// A session of a running sandbox; a paused one is not woken.
    pub(crate) async fn session_if_running(
        &self,
        who: &Principal,
        ident: &str,
    ) -> Result<SandboxSession, ServiceError> {
        let handle = self.driven(who, ident).await?;
        let busy = handle.activity.begin(ActivityKind::Request);
        match find(&handle) {
            WakeState::Awake(lease) => Ok(self.session_with(lease, handle, busy)),
            WakeState::Never => Err(crate::error::phase_conflict(&handle.lease(), "logs")),
            WakeState::Coming | WakeState::Sleeping => {
                let lease = handle.lease();
                let message =
                    format!("sandbox {} is {}, so its logs cannot be read", lease.id, lease.phase.as_str());
                Err(ServiceError::new(Code::Asleep, message)
                    .hint("resume it first; reading logs does not wake a sandbox"))
            }
        }
    }

    /// Fails unless the agent of a running sandbox answers. One that boots is waited for; one that does not run passes, and
    /// the verb that follows refuses it.
    pub async fn check_health(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let handle = self.driven(who, ident).await?;
        self.until_booted(&handle).await?;
        let busy = handle.activity.begin(ActivityKind::Request);
        let WakeState::Awake(lease) = find(&handle) else { return Ok(()) };
        let id = lease.id.clone();
        self.session_with(lease, handle, busy).health().await.map_err(|cause| {
            let message = format!("sandbox {id} does not answer and keeps running");
            ServiceError::new(Code::SandboxUnavailable, message).caused_by(cause)
        })
    }

    pub(crate) async fn awake_session(
        &self,
        who: &Principal,
        ident: &str,
        kind: ActivityKind,
    ) -> Result<SandboxSession, ServiceError> {
        self.session_by(self.driven(who, ident).await?, kind).await
    }

    /// The same for a caller that was admitted already.
    pub(crate) async fn session_by(
        &self,
        handle: Handle,
        kind: ActivityKind,
    ) -> Result<SandboxSession, ServiceError> {
        let busy = handle.activity.begin(kind);
        let lease = awake(&self.inner, &handle).await?;
        Ok(self.session_with(lease, handle, busy))
    }

    /// The same for a caller in the sandbox itself: only while its instance runs, and without a wake.
    pub(crate) fn session_of(
        &self,
        handle: Handle,
        kind: ActivityKind,
        instance: &InstanceId,
    ) -> Result<SandboxSession, ServiceError> {
        let busy = handle.activity.begin(kind);
        match find(&handle) {
            WakeState::Awake(lease) if lease.instance.as_ref() == Some(instance) => {
                Ok(self.session_with(lease, handle, busy))
            }
            WakeState::Awake(_) | WakeState::Coming | WakeState::Sleeping | WakeState::Never => {
                Err(asleep(&handle.lease()))
            }
        }
    }
}

/// The state that a request finds.
enum WakeState {
    Awake(Arc<Lease>),
    /// It is about to run, or the driver must be asked to run it.
    Coming,
    Sleeping,
    Never,
}

/// The lease of a sandbox that runs, or that is woken for this. The caller is busy with it already.
pub(crate) async fn awake(inner: &SandboxesState, handle: &Handle) -> Result<Arc<Lease>, ServiceError> {
    match find(handle) {
        WakeState::Awake(lease) => return Ok(lease),
        WakeState::Never => return Err(crate::error::phase_conflict(&handle.lease(), "commands and files")),
        WakeState::Coming | WakeState::Sleeping => {}
    }
    let Ok(_place) = handle.activity.waiters.try_acquire() else {
        metrics::counter!("atoll_wakes_total", "outcome" => "refused").increment(1);
        let message = format!("too many requests wait for sandbox {} to wake", handle.lease().id);
        return Err(ServiceError::new(Code::WakeFailed, message).retry_after(1));
    };
    let limit = inner.config.wake_wait;
    let woken = tokio::time::timeout(limit, wake(handle)).await.unwrap_or_else(|_| {
        let message = format!(
            "sandbox {} did not wake within {} s; the wake continues",
            handle.lease().id,
            limit.as_secs()
        );
        Err(ServiceError::new(Code::WakeFailed, message).retry_after(5))
    });
    let outcome = if woken.is_ok() { "ok" } else { "failed" };
    metrics::counter!("atoll_wakes_total", "outcome" => outcome).increment(1);
    woken
}

async fn wake(handle: &Handle) -> Result<Arc<Lease>, ServiceError> {
    let begun = Instant::now();
    let mut watched = handle.state.clone();
    let mut asked = false;
    loop {
        // The wait below sees every change from here on.
        watched.mark_unchanged();
        match find(handle) {
            WakeState::Awake(lease) => {
                metrics::histogram!("atoll_wake_seconds").record(begun.elapsed().as_secs_f64());
                return Ok(lease);
            }
            WakeState::Never => return Err(failed(handle)),
            WakeState::Coming => {}
            WakeState::Sleeping if asked => return Err(failed(handle)),
            WakeState::Sleeping => {
                let lease = handle.lease();
                if lease.wake == Wake::Explicit {
                    return Err(asleep(&lease));
                }
                // One request asks the driver; concurrent requests share the result.
                asked = true;
                let Ok(turn) = handle.activity.wake_turn.try_acquire() else {
                    let _ = handle.activity.wake_turn.acquire().await;
                    continue;
                };
                let run = Action::Run(Verb::Wake, WakeRequest::default());
                let mail = |reply| DriverMessage::verb(run, Reason::Woken, reply);
                ask(handle, mail).await.map_err(|cause| not_woken(&lease, &cause))?;
                drop(turn);
                continue;
            }
        }
        if watched.changed().await.is_err() {
            return Err(ServiceError::new(Code::WakeFailed, "the server is shutting down").retry_after(2));
        }
    }
}

fn find(handle: &Handle) -> WakeState {
    // In this order: the mark is removed only after the phase is published.
    let falls_asleep = handle.activity.is_falling_asleep();
    let DriverState { lease, agent, failure } = handle.state.borrow().clone();
    let runs_next = lease.intent == Intent::Run && failure.is_none();
    match lease.phase {
        Phase::Running if falls_asleep => WakeState::Sleeping,
        Phase::Running => match agent {
            Some(_) => WakeState::Awake(lease),
            None => WakeState::Never,
        },
        Phase::Starting | Phase::Resuming => WakeState::Coming,
        Phase::Pausing
        | Phase::Paused
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Archiving
        | Phase::Archived
        | Phase::Restoring => {
            if runs_next {
                WakeState::Coming
            } else {
                WakeState::Sleeping
            }
        }
        Phase::Creating | Phase::Deleting | Phase::Deleted | Phase::Failed => WakeState::Never,
    }
}

fn asleep(lease: &Lease) -> ServiceError {
    let message = format!(
        "sandbox {} is {}, and only start and resume wake it (wake: explicit)",
        lease.id,
        lease.phase.as_str()
    );
    ServiceError::new(Code::Asleep, message).hint("resume it first, or update it with wake: any")
}

/// The sandbox did not wake.
fn failed(handle: &Handle) -> ServiceError {
    let DriverState { lease, failure, .. } = handle.state.borrow().clone();
    match failure {
        Some(cause) => not_woken(&lease, &cause),
        None => {
            let message = format!("sandbox {} is {} again", lease.id, lease.phase.as_str());
            ServiceError::new(Code::WakeFailed, message).retry_after(1)
        }
    }
}

fn not_woken(lease: &Lease, cause: &ServiceError) -> ServiceError {
    let message = format!("sandbox {} could not be woken: {}", lease.id, cause.message);
    let error = ServiceError::new(Code::WakeFailed, message)
        .retry_after(cause.retry_after_s.unwrap_or(5))
        .caused_by(cause.clone());
    match &cause.hint {
        Some(hint) => error.hint(hint.clone()),
        None => error,
    }
}
