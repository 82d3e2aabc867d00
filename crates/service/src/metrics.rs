//! The resource usage of sandboxes: read now, or sampled by one task into a bounded history.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::{InstanceId, Lease, MemoryLocation, Phase, Principal, SandboxId};
use atoll_provider::{InstanceUsage, NetworkBytes, ProviderError, Target};
use atoll_store::ResourceSample;

use crate::ServiceError;
use crate::sandboxes::{Sandboxes, SandboxesState};

/// LIMIT: samples in a response.
const HISTORY_MAX: u32 = 1_000;
/// LIMIT: a provider answers from counters; one that hangs must not stop the others from being sampled.
const LOOK: Duration = Duration::from_secs(2);

/// Counters at the last sample, per sandbox, to compute the usage since.
#[derive(Default)]
pub(crate) struct CpuMemory(Mutex<HashMap<SandboxId, CpuSample>>);

#[derive(Clone)]
struct CpuSample {
    instance: Option<InstanceId>,
    boot_ms: i64,
    cpu_us: u64,
    network: Option<NetworkBytes>,
    rates: Rates,
}

/// The usage between two samples.
#[derive(Clone, Copy, Default)]
struct Rates {
    cpu_pct: f64,
    /// `None`: there is only one sample, or the provider does not measure it.
    sent_kbps: Option<f64>,
    received_kbps: Option<f64>,
}

/// Two samples within this time measure the clock rather than the sandbox.
const APART_MS: i64 = 200;

impl CpuMemory {
    #[expect(clippy::cast_precision_loss, reason = "a percentage and a rate")]
    fn rates(&self, lease: &Lease, boot_ms: i64, usage: &InstanceUsage) -> Rates {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.get(&lease.id).filter(|before| before.instance == lease.instance).cloned();
        let rates = match before {
            None => Rates::default(),
            Some(before) if boot_ms - before.boot_ms < APART_MS => return before.rates,
            Some(before) => {
                let passed_ms = (boot_ms - before.boot_ms) as f64;
                let busy_ms = usage.cpu_us.saturating_sub(before.cpu_us) as f64 / 1_000.0;
                // Bits per millisecond are kilobits per second.
                let kbps = |of: fn(&NetworkBytes) -> u64| {
                    let bytes = of(&usage.network?).saturating_sub(of(&before.network?));
                    Some(bytes as f64 * 8.0 / passed_ms)
                };
                Rates {
                    cpu_pct: busy_ms * 100.0 / passed_ms,
                    sent_kbps: kbps(|network| network.sent),
                    received_kbps: kbps(|network| network.received),
                }
            }
        };
        let InstanceUsage { cpu_us, network, .. } = *usage;
        let instance = lease.instance.clone();
        seen.insert(lease.id.clone(), CpuSample { instance, boot_ms, cpu_us, network, rates });
        rates
    }

    fn keep_only(&self, live: &[Arc<Lease>]) {
        let live: std::collections::HashSet<_> = live.iter().map(|lease| &lease.id).collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| live.contains(id));
    }
}

impl Sandboxes {
    /// The current usage of a running or frozen sandbox. Never wakes it.
    pub async fn metrics_now(&self, who: &Principal, ident: &str) -> Result<ResourceSample, ServiceError> {
        let handle = self.driven(who, ident).await?;
        let lease = handle.lease();
        // Counters of a frozen sandbox are read without touching it.
        let stands_still = lease.phase == Phase::Paused && lease.held == Some(MemoryLocation::Live);
        if lease.phase != Phase::Running && !stands_still {
            return Err(crate::error::phase_conflict(&lease, "metrics"));
        }
        look(&self.inner, &lease).await
    }

    /// The newest samples since a time, oldest first.
    pub async fn metrics_history(
        &self,
        who: &Principal,
        ident: &str,
        since_ms: Option<i64>,
        limit: u32,
    ) -> Result<Vec<ResourceSample>, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        let limit = if limit == 0 { HISTORY_MAX } else { limit.min(HISTORY_MAX) };
        Ok(self.inner.store.samples(&lease.id, since_ms.unwrap_or(i64::MIN), limit).await?)
    }
}

async fn look(inner: &SandboxesState, lease: &Lease) -> Result<ResourceSample, ServiceError> {
    let target = Target { sandbox: lease.id.clone(), instance: lease.instance.clone() };
    let late = ProviderError::Late { what: "the read of its counters".to_owned(), after: LOOK };
    let provider = inner.providers.of(lease)?;
    let usage = tokio::time::timeout(LOOK, provider.usage(&target)).await.unwrap_or(Err(late))?;
    let now = inner.clock.now();
    let Rates { cpu_pct, sent_kbps, received_kbps } = inner.cpu.rates(lease, now.boot_ms, &usage);
    Ok(ResourceSample {
        at_ms: now.wall_ms,
        cpu_us: usage.cpu_us,
        cpu_pct,
        memory_bytes: usage.memory_bytes,
        cache_bytes: usage.cache_bytes,
        pids: usage.pids,
        disk_bytes: usage.disk_bytes,
        sent_kbps,
        received_kbps,
        received_bytes: usage.network.map(|network| network.received),
        sent_bytes: usage.network.map(|network| network.sent),
        limits: lease.limits,
    })
}

/// Starts the one task that samples all.
pub(crate) fn start_sampler(inner: &Arc<SandboxesState>) {
    let every = inner.config.sample_every;
    if every.is_zero() {
        return;
    }
    let own = Arc::clone(inner);
    inner.spawn(async move {
        loop {
            tokio::select! {
                () = own.closing.cancelled() => return,
                () = tokio::time::sleep(every) => sample_all(&own).await,
            }
        }
    });
}

async fn sample_all(inner: &SandboxesState) {
    let live: Vec<_> = inner.registry.all().iter().map(crate::registry::Handle::lease).collect();
    inner.cpu.keep_only(&live);
    let mut samples = Vec::new();
    for lease in live.iter().filter(|lease| lease.phase == Phase::Running) {
        match look(inner, lease).await {
            Ok(sample) => samples.push((lease.id.clone(), sample)),
            // It may have ended a moment ago; its driver knows or will be notified.
            Err(error) => tracing::debug!(sandbox = %lease.id, %error, "not sampled"),
        }
    }
    if let Err(error) = inner.store.put_samples(samples, inner.config.samples_kept).await {
        tracing::warn!(%error, "samples were not written");
    }
    for provider in inner.providers.all() {
        if let Err(error) = inner.admission.look(provider.as_ref()).await {
            tracing::warn!(provider = provider.name(), %error, "the state of the node could not be read");
        }
    }
}
