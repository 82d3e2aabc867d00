//! The providers of this server.

use atoll_front_kit::{ApiError, Caller, JsonResponse, ok};
use atoll_service::ProviderRecord;
use atoll_wire::health::HealthStatus;
use atoll_wire::providers::{Provider, ProviderList};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

impl FromCore<ProviderRecord> for Provider {
    fn from_core(record: ProviderRecord) -> Self {
        let description = record.description;
        Self {
            name: record.name.to_owned(),
            kind: record.kind.to_owned(),
            isolation: description.isolation.into(),
            capabilities: record.capabilities.iter().map(ToString::to_string).collect(),
            health: if record.problem.is_none() { HealthStatus::Ok } else { HealthStatus::Degraded },
            problem: record.problem,
            cost: description.cost.to_owned(),
            best_for: description.best_for.to_owned(),
            default: record.is_default,
        }
    }
}

/// Lists the providers of this server: where sandboxes can live, and what each can do.
#[utoipa::path(get, path = "/v1/providers", tag = "server", responses((status = 200, body = ProviderList)))]
pub(crate) async fn list(
    State(app): State<App>,
    _caller: Caller,
) -> Result<JsonResponse<ProviderList>, ApiError> {
    let records = app.service.providers().await;
    Ok(ok(ProviderList { items: records.into_iter().map(Provider::from_core).collect() }))
}
