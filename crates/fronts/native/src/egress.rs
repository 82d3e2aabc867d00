//! The connection attempts of a sandbox and the decisions: read, followed, and converted to the smallest policy that
//! allows them.

use atoll_client::egress::{Egress, EgressList, LogQuery};
use atoll_client::network::NetworkPolicy;
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339_millis};
use atoll_model::EgressRecord;
use atoll_service::EgressQuery;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use jiff::Timestamp;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromApi, FromCore, IntoApi, IntoCore};
use crate::sse;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(log)).routes(routes!(learned))
}

impl FromCore<EgressRecord> for Egress {
    fn from_core(record: EgressRecord) -> Self {
        Self {
            at: rfc3339_millis(record.at_ms),
            what: record.what.into(),
            verdict: record.verdict.into(),
            rule: record.rule,
            name: record.name,
            address: record.address.map(|address| address.to_string()),
            port: record.port,
            protocol: record.protocol,
            sent: record.sent,
            received: record.received,
        }
    }
}

// LIMIT: a few MiB of JSON; the log of a sandbox holds some ten thousand records.
const RECORDS_MAX: u32 = 10_000;
const RECORDS: u32 = 100;

impl FromApi<LogQuery> for EgressQuery {
    fn from_api(query: LogQuery) -> Result<Self, ApiError> {
        if query.limit == Some(0) {
            return Err(ApiError::invalid("limit must be a positive number"));
        }
        let since_ms = query.since.as_deref().map(moment).transpose()?;
        let limit = query.limit.unwrap_or(RECORDS).min(RECORDS_MAX);
        Ok(Self { limit, since_ms, verdict: query.verdict.map(Into::into) })
    }
}

fn moment(text: &str) -> Result<i64, ApiError> {
    text.parse::<Timestamp>().map(Timestamp::as_millisecond).map_err(|_| {
        let shown: String = text.chars().take(64).collect();
        ApiError::invalid(format!("since {shown:?} is not a time")).hint("write it like 2026-01-02T03:04:05Z")
    })
}

/// Returns the connection attempts of a sandbox and the decisions. Never wakes it.
///
/// With `follow=1` each server-sent event has one of the objects below as data and its `what` as name.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/egress", tag = "network",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), LogQuery),
    responses((status = 200, content((EgressList = "application/json"), (String = "text/event-stream")))))]
pub(crate) async fn log(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Response, ApiError> {
    let follow = query.follow.unwrap_or_default().0;
    let query = query.into_core()?;
    if follow {
        let records = app.service.sandboxes().follow_egress(&who, &ident, query).await?;
        return Ok(sse::respond(&app, records.map(|record| frame(&record.into_api()))));
    }
    let records = app.service.sandboxes().egress_log(&who, &ident, query).await?;
    Ok(ok(EgressList { items: records.into_iter().map(Egress::from_core).collect() }).into_response())
}

fn frame(record: &Egress) -> axum::response::sse::Event {
    sse::event(record.what.as_str(), record)
}

/// Returns the smallest policy that allows all recorded connections, for use as `network` in `PATCH …`.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/egress/policy", tag = "network",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = NetworkPolicy)))]
pub(crate) async fn learned(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<NetworkPolicy>, ApiError> {
    Ok(ok(app.service.sandboxes().learned(&who, &ident).await?.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::{EgressVerdict, EgressWhat};

    fn query() -> LogQuery {
        LogQuery { limit: None, since: None, verdict: None, follow: None }
    }

    #[test]
    fn a_query_is_bounded_and_a_moment_is_read_as_it_is_shown() {
        let plain = EgressQuery::from_api(query()).unwrap();
        assert_eq!((plain.limit, plain.since_ms, plain.verdict), (100, None, None));
        let large = EgressQuery::from_api(LogQuery { limit: Some(u32::MAX), ..query() }).unwrap();
        assert_eq!(large.limit, RECORDS_MAX);
        let since = rfc3339_millis(1_780_000_000_123);
        let later = EgressQuery::from_api(LogQuery { since: Some(since), ..query() }).unwrap();
        assert_eq!(later.since_ms, Some(1_780_000_000_123));
    }

    #[test]
    fn a_query_that_makes_no_sense_is_refused_by_name() {
        let none = EgressQuery::from_api(LogQuery { limit: Some(0), ..query() }).unwrap_err();
        assert!(none.message.starts_with("limit"), "{none:?}");
        for since in ["", "yesterday", "12:00", "99999-01-01T00:00:00Z"] {
            let error =
                EgressQuery::from_api(LogQuery { since: Some(since.to_owned()), ..query() }).unwrap_err();
            assert!(error.message.starts_with("since") && error.hint.is_some(), "{error:?}");
        }
    }

    #[test]
    fn a_record_is_shown_with_every_field() {
        let record = EgressRecord {
            at_ms: 0,
            what: EgressWhat::Tls,
            verdict: EgressVerdict::Refused,
            rule: "sni differs".to_owned(),
            name: Some("a.example.com".to_owned()),
            address: Some("203.0.113.7".parse().unwrap()),
            port: Some(443),
            protocol: None,
            sent: 1,
            received: 2,
        };
        assert_eq!(
            serde_json::to_value(Egress::from_core(record)).unwrap(),
            serde_json::json!({ "at": "1970-01-01T00:00:00.000Z", "what": "tls", "verdict": "refused",
                "rule": "sni differs", "name": "a.example.com", "address": "203.0.113.7", "port": 443,
                "protocol": null, "sent": 1, "received": 2 })
        );
    }
}
