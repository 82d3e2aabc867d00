//! The resource usage of a sandbox over time, as series with Daytona's names.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, ok, rfc3339_millis};
use atoll_service::ResourceSample;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::routing::get;
use jiff::Timestamp;
use serde::Serialize;

use crate::DaytonaApp;
use crate::sandboxes::lease;

/// A series: its name and its value in a sample.
type Named = (&'static str, fn(&ResourceSample) -> f64);

const SERIES: [Named; 7] = [
    ("daytona.sandbox.cpu.utilization", |s| s.cpu_pct),
    ("daytona.sandbox.cpu.limit", |s| f64::from(s.limits.cpu_milli) / 1_000.0),
    ("daytona.sandbox.memory.usage", |s| bytes(s.memory_bytes)),
    ("daytona.sandbox.memory.limit", |s| bytes(u64::from(s.limits.memory_mib) << 20)),
    ("daytona.sandbox.memory.cache", |s| bytes(s.cache_bytes)),
    ("daytona.sandbox.filesystem.usage", |s| bytes(s.disk_bytes.unwrap_or(0))),
    ("daytona.sandbox.filesystem.total", |s| bytes(u64::from(s.limits.disk_mib) << 20)),
];

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new().route("/sandbox/{id}/telemetry/metrics", get(metrics))
}

#[derive(Debug, Serialize)]
struct Telemetry {
    series: Vec<Series>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    metric_name: &'static str,
    data_points: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Point {
    timestamp: String,
    value: f64,
}

async fn metrics(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<JsonResponse<Telemetry>, ApiError> {
    let asked = MetricsQuery::parse(query.as_deref().unwrap_or_default())?;
    let lease = lease(&app, &who, &id).await?;
    let mut samples =
        app.service.sandboxes().metrics_history(&who, lease.id.as_str(), Some(asked.from), 0).await?;
    samples.retain(|sample| (asked.from..=asked.to).contains(&sample.at_ms));
    let wanted =
        SERIES.iter().filter(|(name, _)| asked.names.is_empty() || asked.names.iter().any(|n| n == name));
    let series = wanted.map(|(metric_name, value)| Series {
        metric_name,
        data_points: samples
            .iter()
            .map(|sample| Point { timestamp: rfc3339_millis(sample.at_ms), value: value(sample) })
            .collect(),
    });
    Ok(ok(Telemetry { series: series.collect() }))
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people; whole below 2^53")]
const fn bytes(value: u64) -> f64 {
    value as f64
}

#[derive(Debug)]
struct MetricsQuery {
    from: i64,
    to: i64,
    names: Vec<String>,
}

impl MetricsQuery {
    fn parse(query: &str) -> Result<Self, ApiError> {
        let (mut from, mut to, mut names) = (None, None, Vec::new());
        let moment = |name: &str, value: &str| {
            let at: Result<Timestamp, _> = value.parse();
            at.map(Timestamp::as_millisecond).map_err(|_| {
                ApiError::invalid(format!("{name}: must be a time such as 2026-01-31T12:00:00Z"))
            })
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match name.trim_end_matches("[]") {
                "from" => from = Some(moment("from", &value)?),
                "to" => to = Some(moment("to", &value)?),
                "metricNames" => names.extend(value.split(',').map(str::to_owned)),
                _ => {}
            }
        }
        match (from, to) {
            (Some(from), Some(to)) => Ok(Self { from, to, names }),
            _ => Err(ApiError::invalid("from and to are needed")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_needed() {
        assert!(MetricsQuery::parse("from=2026-01-01T00:00:00Z").is_err());
        assert!(MetricsQuery::parse("from=x&to=2026-01-01T00:00:00Z").is_err());
        let asked =
            MetricsQuery::parse("from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metricNames=a,b").unwrap();
        assert_eq!((asked.to - asked.from, asked.names.len()), (86_400_000, 2));
    }
}
