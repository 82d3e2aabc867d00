//! Metrics of this process for `/metrics`: requests by route, streams, and the service's own gauges.
//!
//! There is one recorder per process, as the `metrics` crate requires. No label ever contains an id or a key: routes
//! are the templates, so the number of series is bounded.

use std::sync::OnceLock;

use atoll_front_kit::{REQUEST_SECONDS, REQUESTS_TOTAL};
use atoll_service::ServiceStats;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

const STREAMS: &str = "atoll_http_streams";

static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Installs the recorder, once. If another recorder is installed already, it is kept, and `/metrics` shows only the
/// service's own gauges.
pub(crate) fn install() {
    RECORDER.get_or_init(|| {
        // LIMIT: from a cached response to a create that waits for its whole deadline.
        let buckets = [
            0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0,
            5.0, 15.0, 60.0,
        ];
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full(REQUEST_SECONDS.to_owned()), &buckets)
            .expect("the buckets are not empty");
        let handle = builder.install_recorder().ok();
        metrics::describe_counter!(REQUESTS_TOTAL, "Requests answered, by method, route and status.");
        metrics::describe_histogram!(REQUEST_SECONDS, "Seconds from a request's head to its answer's head.");
        metrics::describe_gauge!(STREAMS, "Open event streams and terminals.");
        handle
    });
}

/// Counts an open stream or socket as long as it is held.
pub(crate) struct Open(&'static str);

impl Open {
    pub(crate) fn stream() -> Self {
        Self::new(STREAMS)
    }

    fn new(name: &'static str) -> Self {
        metrics::gauge!(name).increment(1.0);
        Self(name)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!(self.0).decrement(1.0);
    }
}

/// Moves recorded times into their buckets; called regularly so that they do not accumulate.
pub fn upkeep() {
    if let Some(Some(recorder)) = RECORDER.get() {
        recorder.run_upkeep();
    }
}

/// The page, Prometheus text format.
pub(crate) fn render(stats: &ServiceStats) -> String {
    let mut page = match RECORDER.get() {
        Some(Some(recorder)) => recorder.render(),
        Some(None) | None => String::new(),
    };
    page.push_str("# TYPE atoll_sandboxes gauge\n");
    for (phase, count) in &stats.by_phase {
        page.push_str(&format!("atoll_sandboxes{{phase=\"{phase}\"}} {count}\n"));
    }
    for (name, kind, value) in [
        ("atoll_creates_under_way", "gauge", stats.creates_under_way),
        ("atoll_creates_queued", "gauge", stats.creates_queued),
        ("atoll_creates_total", "counter", stats.created_total),
        ("atoll_creates_from_pool_total", "counter", stats.from_pool_total),
        ("atoll_creates_failed_total", "counter", stats.failed_total),
        ("atoll_node_memory_free_mib", "gauge", stats.node_memory_free_mib),
        ("atoll_node_memory_total_mib", "gauge", stats.node_memory_total_mib),
        ("atoll_node_disk_free_mib", "gauge", stats.node_disk_free_mib),
        ("atoll_memory_limits_mib", "gauge", stats.memory_limits_mib),
        ("atoll_sandboxes_max", "gauge", stats.live_max),
        ("atoll_held_tenants_bytes", "gauge", stats.held_tenants_bytes),
        ("atoll_held_strangers_bytes", "gauge", stats.held_strangers_bytes),
    ] {
        page.push_str(&format!("# TYPE {name} {kind}\n{name} {value}\n"));
    }
    page
}
