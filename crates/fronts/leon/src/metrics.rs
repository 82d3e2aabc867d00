//! The resource use of a session.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok};
use atoll_model::{Code, Limits};
use atoll_service::ResourceSample;
use axum::extract::State;
use serde::Serialize;

use crate::Leon;
use crate::session::{ProviderQuery, found};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;

#[derive(Debug, Serialize)]
pub(crate) struct SessionMetrics {
    session_id: String,
    metrics: UsageFigures,
    web_url: Option<String>,
}

/// What was not measured is null: everything but the limits while the sandbox does not run, the rates of the network until there
/// are two samples, and what its provider does not measure.
#[derive(Debug, PartialEq, Serialize)]
struct UsageFigures {
    cpu_percent: Option<f64>,
    memory_used_mb: Option<f64>,
    memory_total_mb: f64,
    disk_used_gb: Option<f64>,
    disk_total_gb: f64,
    network_rx_kbps: Option<f64>,
    network_tx_kbps: Option<f64>,
}

impl UsageFigures {
    fn of(limits: Limits, sample: Option<&ResourceSample>) -> Self {
        Self {
            cpu_percent: sample.map(|sample| rounded(sample.cpu_pct)),
            memory_used_mb: sample.map(|sample| scaled(sample.memory_bytes, MIB)),
            memory_total_mb: f64::from(limits.memory_mib),
            disk_used_gb: sample.and_then(|sample| sample.disk_bytes).map(|used| scaled(used, GIB)),
            disk_total_gb: rounded(f64::from(limits.disk_mib) / 1_024.0),
            network_rx_kbps: sample.and_then(|sample| sample.received_kbps).map(rounded),
            network_tx_kbps: sample.and_then(|sample| sample.sent_kbps).map(rounded),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn scaled(bytes: u64, unit: f64) -> f64 {
    rounded(bytes as f64 / unit)
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

pub(crate) async fn metrics(
    State(app): State<Leon>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<ProviderQuery>,
) -> Result<JsonResponse<SessionMetrics>, ApiError> {
    let lease = found(&app, &who, &id, &query).await?;
    let sample = match app.service.sandboxes().metrics_now(&who, lease.id.as_str()).await {
        Ok(sample) => Some(sample),
        // It does not run.
        Err(error) if error.code == Code::PhaseConflict => None,
        Err(error) => return Err(error.into()),
    };
    Ok(ok(SessionMetrics {
        session_id: lease.id.to_string(),
        metrics: UsageFigures::of(lease.limits, sample.as_ref()),
        web_url: app.page.as_ref().map(|page| format!("{page}/#/sandboxes/{}", lease.id)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_null() {
        let limits = Limits { memory_mib: 512, disk_mib: 1_536, ..Limits::default() };
        let none = UsageFigures::of(limits, None);
        assert_eq!((none.memory_total_mb, none.disk_total_gb), (512.0, 1.5));
        assert_eq!((none.cpu_percent, none.memory_used_mb, none.disk_used_gb), (None, None, None));
        let sample = ResourceSample {
            at_ms: 0,
            cpu_us: 0,
            cpu_pct: 12.345_67,
            memory_bytes: 3 << 20,
            cache_bytes: 0,
            pids: 1,
            disk_bytes: Some(1 << 29),
            sent_kbps: None,
            received_kbps: None,
            received_bytes: None,
            sent_bytes: None,
            limits,
        };
        let first = UsageFigures::of(limits, Some(&sample));
        assert_eq!(
            (first.cpu_percent, first.memory_used_mb, first.disk_used_gb),
            (Some(12.346), Some(3.0), Some(0.5))
        );
        assert_eq!((first.network_rx_kbps, first.network_tx_kbps), (None, None));
        let rates = ResourceSample { sent_kbps: Some(8.0), received_kbps: Some(16.0), ..sample };
        let second = UsageFigures::of(limits, Some(&rates));
        assert_eq!((second.network_tx_kbps, second.network_rx_kbps), (Some(8.0), Some(16.0)));
    }
}
