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

use atoll_model::{InstanceId, Lease, SandboxId, TenantId};
use atoll_provider::{ByteStream, InsideListener, Provider, ProviderError, Target};
use futures::future::BoxFuture;
use tokio::task::JoinSet;

use crate::Sandboxes;
use crate::sandboxes::SandboxesState;

/// LIMIT: connections at once from one sandbox; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// LIMIT: connections at once from all sandboxes; further ones are closed. A tenant has at most as many as are free then: half of
/// all while it is alone, and never the last one.
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
    places: Arc<Mutex<Places>>,
}

impl Default for InsidePorts {
    fn default() -> Self {
        let places = Places { free: CONNECTIONS_OF_ALL, taken: HashMap::new() };
        Self { answerer: OnceLock::new(), open: Mutex::default(), places: Arc::new(Mutex::new(places)) }
    }
}

/// How many connections there may still be, and how many each tenant has.
struct Places {
    free: usize,
    taken: HashMap<TenantId, usize>,
}

/// A connection's place, until it is dropped.
struct Place {
    of: TenantId,
    places: Arc<Mutex<Places>>,
}

impl Place {
    fn take(places: &Arc<Mutex<Places>>, of: &TenantId) -> Option<Self> {
        let mut all = places.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.taken.get(of).copied().unwrap_or_default();
        if own >= all.free {
            return None;
        }
        all.free -= 1;
        all.taken.insert(of.clone(), own + 1);
        Some(Self { of: of.clone(), places: Arc::clone(places) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        all.free += 1;
        let own = all.taken.remove(&self.of).unwrap_or_default();
        if own > 1 {
            all.taken.insert(self.of.clone(), own - 1);
        }
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
            let (own, answerer, tenant) = (Arc::clone(inner), Arc::clone(answerer), lease.tenant.clone());
            inner.spawn(async move {
                let accepting = accept(&own, &*answerer, &caller, &tenant, listener);
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
    tenant: &TenantId,
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
        let Some(place) = Place::take(&inner.inside_ports.places, tenant) else {
            tracing::debug!(sandbox = %caller.sandbox, %tenant, "too many connections from inside sandboxes");
            continue;
        };
        let serving = answerer.serve(caller.clone(), connection);
        connections.spawn(async move {
            serving.await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_places_to_the_others() {
        let places = InsidePorts::default().places;
        let take_all = |tenant: u8| {
            let tenant = TenantId::from_entropy([tenant; 20]);
            std::iter::from_fn(|| Place::take(&places, &tenant)).collect::<Vec<_>>()
        };
        let first = take_all(1);
        let second = take_all(2);
        let third = take_all(3);
        assert_eq!((first.len(), second.len(), third.len()), (512, 256, 128));
        assert!(take_all(1).is_empty() && take_all(2).is_empty());
        drop(first);
        assert_eq!(take_all(1).len(), 320, "half of the 640 that the two others leave");
        drop((second, third));
        assert_eq!(take_all(2).len(), 512);
        assert!(places.lock().expect("not poisoned").taken.is_empty());
    }
}
