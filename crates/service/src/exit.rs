//! The end of what sandboxes are bound to: a thread of conversation, or the server itself. Each sandbox is paused,
//! deleted or left running as its lease says.
//!
//! ```text
//! end of the server: marks in the store ──► pauses, deletes ──► next start: what is marked and not done is done first
//! ```
//! A server that is killed marks nothing. A sandbox that is late at the end of its thread stays as it is.

use std::time::Duration;

use atoll_model::{Code, Lease, MemoryLocation, OnExit, Phase, Principal, Reason, TenantId, check_thread};
use futures::StreamExt;

use crate::ServiceError;
use crate::base::visible;
use crate::driver::{Action, DriverMessage, Edit};
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{Sandboxes, ask, printable};
use crate::service::Service;

/// LIMIT: a pause takes a millisecond and a delete a few; more at once only wait for each other.
const AT_ONCE: usize = 32;

impl Service {
    /// How many sandboxes an orderly end of the server pauses or deletes.
    #[must_use]
    pub fn bound_to_server(&self) -> usize {
        self.sandboxes().handles().iter().filter(|handle| action(&handle.lease()).is_some()).count()
    }

    /// Ends the server in good order: sandboxes that are bound to it are paused or deleted, within `limit` for all
    /// together. Called before [`Service::shutdown`].
    pub async fn exit(&self, limit: Duration) {
        let bound: Vec<Handle> = self.sandboxes().handles();
        let bound: Vec<_> =
            bound.into_iter().filter(|handle| handle.lease().on_exit != OnExit::Keep).collect();
        if bound.is_empty() {
            return;
        }
        tracing::info!(
            sandboxes = bound.len(),
            "sandboxes that are bound to this server are being paused or deleted"
        );
        if let Err(error) = self.base().store.begin_exits().await {
            tracing::warn!(%error, "if this takes too long, the next start cannot finish it");
        }
        self.base().failpoint.reach("exit.marked").await;
        let leaving = futures::stream::iter(&bound).for_each_concurrent(AT_ONCE, |handle| async move {
            if let Err(error) = leave(handle).await {
                tracing::warn!(sandbox = %handle.lease().id, %error, cause = ?error.cause, "the sandbox keeps running without its server");
            }
        });
        if tokio::time::timeout(limit, leaving).await.is_err() {
            let late: Vec<_> = bound.iter().filter(|handle| !has_left(&handle.state.borrow())).collect();
            tracing::warn!(
                late = late.len(),
                ?limit,
                "some sandboxes were not paused or deleted in time; the next start finishes that"
            );
        }
    }
}

impl Sandboxes {
    /// Gives a changed `on_exit` of a provider to its sandboxes whose requests named none.
    pub(crate) async fn set_on_exit_of(&self, provider: &str, on_exit: OnExit) {
        let is_old = |lease: &Lease| {
            lease.provider == provider && lease.follows_provider_exit && lease.on_exit != on_exit
        };
        for handle in self.handles().into_iter().filter(|handle| is_old(&handle.lease())) {
            let edit: Edit = Box::new(move |lease, _| {
                if !lease.follows_provider_exit || lease.on_exit == on_exit {
                    return Ok(Vec::new());
                }
                lease.on_exit = on_exit;
                Ok(vec!["on_exit"])
            });
            if let Err(error) = ask(&handle, |reply| DriverMessage::Edit { edit, reply }).await {
                tracing::warn!(sandbox = %handle.lease().id, %error, "a changed on_exit of the provider was not given to a sandbox");
            }
        }
    }

    /// Whose threads of this name are meant: those of the key's own tenant if it has any.
    pub(crate) async fn thread_scope<'a>(
        &self,
        who: &'a Principal,
        thread: &str,
    ) -> Result<Option<&'a TenantId>, ServiceError> {
        let own = Some(&who.tenant);
        let has_own = !self.inner.store.find_thread(own, thread).await?.is_empty();
        Ok(if has_own { own } else { visible(who) })
    }

    /// Ends a thread: its sandboxes are paused or deleted, as each lease says. Returns these sandboxes. A thread that has none
    /// left is forgotten with its provider.
    pub async fn end_thread(&self, who: &Principal, thread: &str) -> Result<Vec<Lease>, ServiceError> {
        check_thread(thread)?;
        let scope = self.thread_scope(who, thread).await?;
        let bound = self.inner.store.of_thread(scope, thread).await?;
        if bound.iter().any(|lease| lease.tenant != bound[0].tenant) {
            let message = format!("several tenants have a thread {}", printable(thread));
            return Err(ServiceError::new(Code::Ambiguous, message).hint("use a key of its tenant"));
        }
        let left: Vec<_> = futures::stream::iter(bound)
            .map(|lease| async move {
                let Some(handle) = self.inner.registry.get(&lease.id) else {
                    if lease.on_exit != OnExit::Keep {
                        self.inner.need_here(&format!("sandbox {}", lease.id), &lease.node)?;
                    }
                    return Ok(lease);
                };
                let limit = self.inner.config.create_wait;
                match tokio::time::timeout(limit, leave(&handle)).await {
                    Ok(left) => left.map(|()| handle.lease().as_ref().clone()),
                    Err(_) => {
                        let message = format!("sandbox {} did not end in time and keeps running", lease.id);
                        Err(ServiceError::new(Code::DeadlineExceeded, message))
                    }
                }
            })
            .buffered(AT_ONCE)
            .collect()
            .await;
        // All are tried before a failure is reported.
        let left = left.into_iter().collect::<Result<_, ServiceError>>()?;
        self.inner.store.remove_unused_threads(scope, thread).await?;
        Ok(left)
    }
}

/// What has to be done with a sandbox at the end of its server or thread.
pub(crate) fn action(lease: &Lease) -> Option<Action> {
    match (lease.on_exit, lease.phase) {
        (OnExit::Keep, _) | (_, Phase::Deleting | Phase::Deleted) => None,
        (OnExit::Destroy, _) => Some(Action::Delete),
        (OnExit::Pause, Phase::Running | Phase::Resuming | Phase::Pausing) => {
            Some(Action::Pause(MemoryLocation::Live))
        }
        // It does not run: there is no memory to keep.
        (OnExit::Pause, _) => None,
    }
}

/// Does what the lease says and waits for its end.
async fn leave(handle: &Handle) -> Result<(), ServiceError> {
    let Some(action) = action(&handle.lease()) else { return Ok(()) };
    ask(handle, |reply| DriverMessage::verb(action, Reason::Exit, reply)).await?;
    let mut state = handle.state.clone();
    // A driver that ended has deleted its sandbox.
    let _ = state.wait_for(has_left).await;
    let DriverState { lease, failure, .. } = handle.state.borrow().clone();
    match failure {
        Some(failure) if lease.phase == Phase::Running => Err(failure),
        _ => Ok(()),
    }
}

fn has_left(state: &DriverState) -> bool {
    match (state.lease.on_exit, state.lease.phase) {
        (OnExit::Destroy, phase) => phase == Phase::Deleted,
        (OnExit::Keep, _) => true,
        (OnExit::Pause, Phase::Running) => state.failure.is_some(),
        // One that cannot be paused is stopped.
        (
            OnExit::Pause,
            Phase::Pausing | Phase::Stopping | Phase::Resuming | Phase::Creating | Phase::Starting,
        ) => false,
        (OnExit::Pause, _) => true,
    }
}
