//! Room on this node. What is promised is counted exactly, under one lock; what the machine has is looked at once a
//! second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::placement::{self, NoRoom, Node};
use atoll_model::{Limits, SandboxId};
use atoll_provider::{Provider, ProviderError};
use tokio::time::Instant;

/// How long a look at the machine holds.
const FRESH: Duration = Duration::from_secs(1);
/// What each sandbox admitted since that look is thought to take, as `placement` reserves it.
const TAKEN_MIB: u64 = 8;

/// Counts what is promised.
pub(crate) struct Admission {
    live_max: u64,
    overcommit: f64,
    held: Mutex<Held>,
    seen: Mutex<Option<(Instant, Node)>>,
}

#[derive(Default)]
struct Held {
    memory_mib: HashMap<SandboxId, u32>,
    sum_mib: u64,
    since_look: u64,
}

/// Why a sandbox was not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("the node cannot be looked at")]
    Node(#[from] ProviderError),
}

impl Admission {
    pub(crate) fn new(live_max: u64, overcommit: f64) -> Self {
        Self { live_max, overcommit, held: Mutex::default(), seen: Mutex::default() }
    }

    /// Promises room for a sandbox. A second promise for the same one replaces the first.
    pub(crate) async fn reserve(
        &self,
        provider: &dyn Provider,
        id: &SandboxId,
        limits: &Limits,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.memory_mib.get(id).copied();
        let node = Node {
            memory_free_mib: machine.memory_free_mib.saturating_sub(held.since_look * TAKEN_MIB),
            live: held.memory_mib.len() as u64 - u64::from(own.is_some()),
            memory_limits_mib: held.sum_mib - u64::from(own.unwrap_or(0)),
            live_max: self.live_max,
            overcommit: self.overcommit,
            ..machine
        };
        placement::admit(&node, limits)?;
        held.put(id, limits.memory_mib);
        held.since_look += 1;
        Ok(())
    }

    /// Counts one that lives already or has new limits, whether there is room or not.
    pub(crate) fn count(&self, id: &SandboxId, limits: &Limits) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).put(id, limits.memory_mib);
    }

    /// Takes a promise back. Idempotent.
    pub(crate) fn release(&self, id: &SandboxId) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take(id);
    }

    /// What was last seen of the machine, with what is promised filled in.
    pub(crate) fn last(&self) -> Option<Node> {
        let node =
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, node)| *node)?;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, memory_limits_mib) = (held.memory_mib.len() as u64, held.sum_mib);
        Some(Node { live, memory_limits_mib, live_max: self.live_max, overcommit: self.overcommit, ..node })
    }

    /// Looks at the machine, at most once a second.
    pub(crate) async fn look(&self, provider: &dyn Provider) -> Result<Node, ProviderError> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, node)) = seen
            && at.elapsed() < FRESH
        {
            return Ok(node);
        }
        let node = provider.node().await?;
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), node));
        self.held.lock().unwrap_or_else(PoisonError::into_inner).since_look = 0;
        Ok(node)
    }
}

impl Held {
    fn put(&mut self, id: &SandboxId, memory_mib: u32) {
        let before = self.memory_mib.insert(id.clone(), memory_mib).unwrap_or(0);
        self.sum_mib = self.sum_mib + u64::from(memory_mib) - u64::from(before);
    }

    fn take(&mut self, id: &SandboxId) {
        self.sum_mib -= u64::from(self.memory_mib.remove(id).unwrap_or(0));
    }
}
