//! The resource usage of sandboxes: samples of one between two times, and the newest sample of many.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339};
use atoll_model::Principal;
use atoll_service::ResourceSample;
use axum::Router;
use axum::extract::State as Given;
use axum::routing::get;
use serde::{Deserialize, Serialize};

use crate::E2bApp;
use crate::sandboxes::find;
use crate::states::{SandboxState, state};

/// LIMIT: that of E2B, for sandboxes in one request.
const MANY_MAX: usize = 100;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new().route("/sandboxes/{id}/metrics", get(one)).route("/sandboxes/metrics", get(many))
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metric {
    timestamp: String,
    timestamp_unix: i64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl From<&ResourceSample> for Metric {
    fn from(sample: &ResourceSample) -> Self {
        let bytes = |mib: u32| u64::from(mib) << 20;
        Self {
            timestamp: rfc3339(sample.at_ms),
            timestamp_unix: sample.at_ms.div_euclid(1_000),
            cpu_count: sample.limits.cpu_milli.div_ceil(1_000),
            cpu_used_pct: (sample.cpu_pct * 100.0).round() / 100.0,
            mem_used: sample.memory_bytes,
            mem_total: bytes(sample.limits.memory_mib),
            mem_cache: sample.cache_bytes,
            disk_used: sample.disk_bytes.unwrap_or(0),
            disk_total: bytes(sample.limits.disk_mib),
        }
    }
}

/// Unix seconds.
#[derive(Debug, Default, Deserialize)]
struct Range {
    start: Option<i64>,
    end: Option<i64>,
}

impl Range {
    fn holds(&self, at_ms: i64) -> bool {
        let at_s = at_ms.div_euclid(1_000);
        self.start.is_none_or(|start| start <= at_s) && self.end.is_none_or(|end| at_s <= end)
    }
}

/// The stored samples, and the current usage if now is in the range: so a new sandbox has a sample at once.
async fn one(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(range): Query<Range>,
) -> Result<JsonResponse<Vec<Metric>>, ApiError> {
    if let (Some(start), Some(end)) = (range.start, range.end)
        && start > end
    {
        return Err(ApiError::field("start", "must not be later than end"));
    }
    let lease = find(&app, &who, &id).await?;
    let since = range.start.map(|s| s.saturating_mul(1_000));
    let mut samples = app.service.sandboxes().metrics_history(&who, lease.id.as_str(), since, 0).await?;
    samples.retain(|sample| range.holds(sample.at_ms));
    if state(lease.phase) == Some(SandboxState::Running) && range.holds(app.service.now_ms()) {
        samples.extend(app.service.sandboxes().metrics_now(&who, lease.id.as_str()).await.ok());
    }
    Ok(ok(samples.iter().map(Metric::from).collect()))
}

#[derive(Debug, Deserialize)]
struct Many {
    sandbox_ids: String,
}

#[derive(Debug, Serialize)]
struct ManyShown {
    sandboxes: BTreeMap<String, Metric>,
}

/// The newest sample of each sandbox; missing sandboxes and those that are asleep are left out.
async fn many(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Query(many): Query<Many>,
) -> Result<JsonResponse<ManyShown>, ApiError> {
    let ids: Vec<&str> = many.sandbox_ids.split(',').map(str::trim).filter(|id| !id.is_empty()).collect();
    if ids.len() > MANY_MAX {
        return Err(ApiError::field("sandbox_ids", "names more than 100"));
    }
    let mut sandboxes = BTreeMap::new();
    for id in ids {
        if let Some(metric) = newest(&app, &who, id).await {
            sandboxes.insert(id.to_owned(), metric);
        }
    }
    Ok(ok(ManyShown { sandboxes }))
}

async fn newest(app: &E2bApp, who: &Principal, id: &str) -> Option<Metric> {
    let lease = find(app, who, id).await.ok()?;
    let sample = app.service.sandboxes().metrics_now(who, lease.id.as_str()).await.ok()?;
    Some(Metric::from(&sample))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::Limits;
    use serde_json::json;

    #[test]
    fn a_sample_is_shown_in_bytes_with_its_limits() {
        let limits = Limits { cpu_milli: 2_000, memory_mib: 1, disk_mib: 2, ..Limits::default() };
        let sample = ResourceSample {
            at_ms: 1_800_000_000_999,
            cpu_us: 5,
            cpu_pct: 12.345_6,
            memory_bytes: 3,
            cache_bytes: 4,
            pids: 1,
            disk_bytes: Some(5),
            sent_kbps: None,
            received_kbps: None,
            received_bytes: None,
            sent_bytes: None,
            limits,
        };
        assert_eq!(
            serde_json::to_value(Metric::from(&sample)).unwrap(),
            json!({
                "timestamp": "2027-01-15T08:00:00.999Z", "timestampUnix": 1_800_000_000_i64, "cpuCount": 2,
                "cpuUsedPct": 12.35, "memUsed": 3, "memTotal": 1_048_576, "memCache": 4, "diskUsed": 5,
                "diskTotal": 2_097_152,
            })
        );
    }

    #[test]
    fn a_range_holds_both_of_its_ends() {
        let range = Range { start: Some(10), end: Some(11) };
        assert!(range.holds(10_000) && range.holds(11_999));
        assert!(!range.holds(9_999) && !range.holds(12_000));
        assert!(Range::default().holds(i64::MIN));
    }
}
