//! The health of the server, and values for the metrics page.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_model::Phase;

use crate::service::Service;
use crate::{Health, ServiceStats};

/// LIMIT: a health check that takes longer counts as failed.
const WAIT: Duration = Duration::from_secs(2);

impl Service {
    /// Checks whether the store and the providers respond.
    pub async fn health(&self) -> Health {
        let mut problems = Vec::new();
        if self.base().closing.is_cancelled() {
            problems.push("the server is shutting down".to_owned());
        }
        if !matches!(tokio::time::timeout(WAIT, self.base().store.ping()).await, Ok(Ok(()))) {
            problems.push("the store does not answer".to_owned());
        }
        let open = self.base().providers.all();
        let providers = open.iter().map(|provider| self.problem_of(provider));
        problems.extend(futures::future::join_all(providers).await.into_iter().flatten());
        Health { ok: problems.is_empty(), problems }
    }

    /// The current values; those of the machine are as last read.
    #[must_use]
    pub fn stats(&self) -> ServiceStats {
        let (base, inner) = (self.base(), &self.sandboxes().inner);
        let mut by_phase: BTreeMap<&'static str, u64> = Phase::ALL
            .iter()
            .filter(|phase| **phase != Phase::Deleted)
            .map(|phase| (phase.as_str(), 0))
            .collect();
        for handle in self.sandboxes().handles() {
            *by_phase.entry(handle.lease().phase.as_str()).or_default() += 1;
        }
        let node = base.admission.last(base.providers.default().name());
        let free = inner.creates.available_permits();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (held_tenants, held_strangers) = base.budget.held();
        ServiceStats {
            held_tenants_bytes: held_tenants,
            held_strangers_bytes: held_strangers,
            by_phase,
            creates_under_way: base.config.creates_at_once.saturating_sub(free) as u64,
            creates_queued: inner.queue.len() as u64,
            created_total: count(&inner.counters.created),
            from_pool_total: count(&inner.counters.from_pool),
            failed_total: count(&inner.counters.failed),
            late_effects_total: count(&inner.counters.late_effects),
            node_memory_free_mib: node.map_or(0, |node| node.memory_free_mib),
            node_memory_total_mib: node.map_or(0, |node| node.memory_total_mib),
            node_disk_free_mib: node.map_or(0, |node| node.disk_free_mib),
            memory_limits_mib: node.map_or(0, |node| node.memory_limits_mib),
            live_max: base.config.live_max,
        }
    }
}
