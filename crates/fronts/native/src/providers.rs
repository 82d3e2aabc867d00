//! The providers of this server and their settings.

use atoll_client::health::HealthStatus;
use atoll_client::providers::{Provider, ProviderList, ProviderSettings, ProviderTest};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok};
use atoll_service::{ProviderRecord, ProviderSettingsRecord};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(settings, set_settings, remove_settings))
        .routes(routes!(test))
}

impl FromCore<ProviderRecord> for Provider {
    fn from_core(record: ProviderRecord) -> Self {
        Self {
            name: record.name,
            kind: record.kind,
            isolation: record.isolation.map(Into::into),
            capabilities: record.capabilities.iter().map(ToString::to_string).collect(),
            health: if record.problem.is_none() { HealthStatus::Ok } else { HealthStatus::Degraded },
            problem: record.problem,
            cost: record.cost.to_owned(),
            best_for: record.best_for.to_owned(),
            default: record.is_default,
        }
    }
}

impl FromCore<ProviderSettingsRecord> for ProviderSettings {
    fn from_core(record: ProviderSettingsRecord) -> Self {
        let ProviderSettingsRecord { name, settings, sources, problem } = record;
        Self { name, settings, sources, problem }
    }
}

/// Lists the providers of this server: where sandboxes can live, and what each can do. A user key sees those that its
/// tenant may use.
#[utoipa::path(get, path = "/v1/providers", tag = "server", responses((status = 200, body = ProviderList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<ProviderList>, ApiError> {
    let records = app.service.providers(&who).await;
    Ok(ok(ProviderList { items: records.into_iter().map(Provider::from_core).collect() }))
}

/// Returns the settings of a provider without its secrets. Needs an admin key.
#[utoipa::path(get, path = "/v1/providers/{name}/settings", tag = "server",
    params(("name" = String, Path, description = "Name of the provider")),
    responses((status = 200, body = ProviderSettings)))]
pub(crate) async fn settings(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<ProviderSettings>, ApiError> {
    Ok(ok(app.service.provider_settings(&who, &name).await?.into_api()))
}

/// Replaces the settings of a provider, or adds a provider. Secrets that are left out are kept; an empty text removes
/// one. Needs an admin key.
#[utoipa::path(put, path = "/v1/providers/{name}/settings", tag = "server",
    params(("name" = String, Path, description = "Name of the provider")), request_body = Object,
    responses((status = 200, body = ProviderSettings)))]
pub(crate) async fn set_settings(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<serde_json::Value>,
) -> Result<JsonResponse<ProviderSettings>, ApiError> {
    Ok(ok(app.service.set_provider_settings(&who, &name, &body).await?.into_api()))
}

/// Removes the settings of a provider. Its sandboxes go on; it takes no new ones. Needs an admin key.
#[utoipa::path(delete, path = "/v1/providers/{name}/settings", tag = "server",
    params(("name" = String, Path, description = "Name of the provider")), responses((status = 204)))]
pub(crate) async fn remove_settings(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.remove_provider_settings(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Tests the settings of a provider: opens it and asks it for a sign of life. Needs an admin key.
#[utoipa::path(post, path = "/v1/providers/{name}/test", tag = "server",
    params(("name" = String, Path, description = "Name of the provider")),
    responses((status = 200, body = ProviderTest)))]
pub(crate) async fn test(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<ProviderTest>, ApiError> {
    let found = app.service.test_provider(&who, &name).await?;
    Ok(ok(ProviderTest { ok: found.problem.is_none(), problem: found.problem, hint: found.hint }))
}
