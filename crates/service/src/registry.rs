//! The drivers of sandboxes. It contains handles only; the driver has the state of a sandbox.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use atoll_agentapi::{AgentClient, SetupLocks};
use atoll_model::{BuildId, Lease, SandboxId};
use tokio::sync::{Notify, mpsc, watch};

use crate::ServiceError;
use crate::access::TokenCache;
use crate::activity::Activity;
use crate::driver::Mail;

/// LIMIT: operations and notices that wait for one sandbox; beyond that a quick refusal is better for the caller.
pub(crate) const MAILBOX: usize = 256;

/// The current state of a sandbox, as its driver last wrote it.
#[derive(Clone)]
pub(crate) struct DriverState {
    pub(crate) lease: Arc<Lease>,
    /// The agent of the running instance.
    pub(crate) agent: Option<AgentClient>,
    /// Why the last effect failed, for callers that wait for it.
    pub(crate) failure: Option<ServiceError>,
}

/// The connection to a sandbox's driver.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) mailbox: mpsc::Sender<Mail>,
    pub(crate) state: watch::Receiver<DriverState>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) tokens: Arc<TokenCache>,
    pub(crate) setup_locks: SetupLocks,
}

impl Handle {
    pub(crate) fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.state.borrow().lease)
    }
}

/// The handles of all sandboxes that are not deleted.
#[derive(Default)]
pub(crate) struct Registry {
    handles: RwLock<HashMap<SandboxId, Handle>>,
    /// Told when there is a new one.
    added: Notify,
}

impl Registry {
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Handle> {
        self.handles.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn put(&self, id: SandboxId, handle: Handle) {
        self.handles.write().unwrap_or_else(PoisonError::into_inner).insert(id, handle);
        self.added.notify_waiters();
    }

    /// Waits for the handle of a sandbox that is about to get one.
    pub(crate) async fn until_added(&self, id: &SandboxId) -> Handle {
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            // From here on no notification is missed.
            added.as_mut().enable();
            if let Some(handle) = self.get(id) {
                return handle;
            }
            added.await;
        }
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.handles.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The sandbox that waits for this build.
    pub(crate) fn waiting_for(&self, build: &BuildId) -> Option<Arc<Lease>> {
        let waits = |lease: &Arc<Lease>| lease.waits_for_image() && lease.image_build.as_ref() == Some(build);
        self.all().iter().map(Handle::lease).find(waits)
    }

    pub(crate) fn all(&self) -> Vec<Handle> {
        self.handles.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
