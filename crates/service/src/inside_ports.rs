//! A port inside sandboxes that this server answers, as if a program in the sandbox listened there.
//!
//! ```text
//! sandbox boots ─► provider.listen(port) ─► accept ─► at most so many at once ─► InsidePort::serve
//!                     └ a program inside has the port already: it keeps it
//! ```
//!
//! A connection belongs to the instance in whose network namespace it was accepted, so a caller needs no credential and can
//! name no other sandbox. A connection never wakes its sandbox. The tasks of an instance end with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use atoll_model::{InstanceId, Lease, SandboxId};
use atoll_provider::{ByteStream, InsideListener, Provider, ProviderError, Target};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Sandboxes;
use crate::sandboxes::SandboxesState;

/// LIMIT: connections at once from one sandbox; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// LIMIT: connections at once from all sandboxes; further ones are closed.
const CONNECTIONS_OF_ALL: usize = 1_024;

/// Answers a port inside sandboxes.
pub trait InsidePort: Send + Sync + 'static {
    /// The port.
    fn port(&self) -> u16;

    /// Whether it is answered in this sandbox.
    fn wants(&self, lease: &Lease) -> bool;

    /// Serves one connection. Every byte of it is untrusted.
    fn serve(&self, caller: InsideCaller, connection: Box<dyn ByteStream>) -> BoxFuture<'static, ()>;
}

/// A program in a sandbox. Only an accepted connection makes one.
#[derive(Debug, Clone)]
pub struct InsideCaller {
    pub(crate) sandbox: SandboxId,
    pub(crate) instance: InstanceId,
}

impl InsideCaller {
    /// The sandbox in which it runs.
    #[must_use]
    pub const fn sandbox(&self) -> &SandboxId {
        &self.sandbox
    }
}

/// Which instances have the port.
pub(crate) struct InsidePorts {
    answerer: OnceLock<Arc<dyn InsidePort>>,
    open: Mutex<HashMap<SandboxId, InstanceId>>,
    places: Arc<Semaphore>,
}

impl Default for InsidePorts {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(CONNECTIONS_OF_ALL));
        Self { answerer: OnceLock::new(), open: Mutex::default(), places }
    }
}

impl InsidePorts {
    /// Whether the instance had no listener until now.
    fn begin(&self, caller: &InsideCaller) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(caller.sandbox.clone(), caller.instance.clone()).as_ref() != Some(&caller.instance)
    }

    fn end(&self, caller: &InsideCaller) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&caller.sandbox) == Some(&caller.instance) {
            open.remove(&caller.sandbox);
        }
    }
}

impl Sandboxes {
    /// Answers a port inside sandboxes from now on, those that run already included. A server has one such port; a second
    /// call changes nothing.
    pub async fn answer_inside(&self, port: Arc<dyn InsidePort>) {
        if self.inner.inside_ports.answerer.set(port).is_err() {
            return;
        }
        for handle in self.handles() {
            let lease = handle.lease();
            if let (Some(instance), Ok(provider)) = (&lease.instance, self.inner.providers.of(&lease)) {
                open(&self.inner, &provider, &lease, instance).await;
            }
        }
    }
}

/// Listens inside an instance that runs, where that is wanted. A failure leaves the port closed and the sandbox as it is.
pub(crate) async fn open(
    inner: &Arc<SandboxesState>,
    provider: &Arc<dyn Provider>,
    lease: &Lease,
    instance: &InstanceId,
) {
    let Some(answerer) = inner.inside_ports.answerer.get().filter(|answerer| answerer.wants(lease)) else {
        return;
    };
    let caller = InsideCaller { sandbox: lease.id.clone(), instance: instance.clone() };
    if !inner.inside_ports.begin(&caller) {
        return;
    }
    let target = Target { sandbox: lease.id.clone(), instance: Some(instance.clone()) };
    let port = answerer.port();
    match provider.listen(&target, port).await {
        Ok(Some(listener)) => {
            let (own, answerer) = (Arc::clone(inner), Arc::clone(answerer));
            inner.spawn(async move {
                let accepting = accept(&own, &*answerer, &caller, listener);
                tokio::select! { () = own.closing.cancelled() => {}, () = accepting => {} }
                own.inside_ports.end(&caller);
            });
            return;
        }
        Ok(None) => tracing::debug!(sandbox = %lease.id, port, "a program inside has the port"),
        Err(error @ (ProviderError::Unsupported { .. } | ProviderError::MissingCapability { .. })) => {
            tracing::debug!(sandbox = %lease.id, port, %error, "the port inside is not answered");
        }
        Err(error) => tracing::warn!(sandbox = %lease.id, port, %error, "the port inside is not answered"),
    }
    inner.inside_ports.end(&caller);
}

/// Serves connections until the instance ends. Those that are open then end with it.
async fn accept(
    inner: &SandboxesState,
    answerer: &dyn InsidePort,
    caller: &InsideCaller,
    mut listener: Box<dyn InsideListener>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if connections.len() < CONNECTIONS => accepted,
        };
        let Some(connection) = accepted else { return };
        // Without a place the connection is closed at once.
        let Ok(place) = Arc::clone(&inner.inside_ports.places).try_acquire_owned() else {
            tracing::debug!(sandbox = %caller.sandbox, "too many connections from inside sandboxes");
            continue;
        };
        let serving = answerer.serve(caller.clone(), connection);
        connections.spawn(async move {
            serving.await;
            drop(place);
        });
    }
}
