//! The health and the version of the server. Both are public.

use atoll_client::health::{Health, HealthStatus, Version};
use atoll_front_kit::{JsonResponse, ok};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(version))
}

/// Reports whether the server is healthy.
#[utoipa::path(get, path = "/health", tag = "server", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health, description = "The server has a problem")))]
pub(crate) async fn health(State(app): State<App>) -> JsonResponse<Health> {
    let health = app.service.health().await;
    let (code, status) = if health.ok {
        (StatusCode::OK, HealthStatus::Ok)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, HealthStatus::Degraded)
    };
    JsonResponse(
        code,
        Health { status, version: env!("CARGO_PKG_VERSION").to_owned(), problems: health.problems },
    )
}

/// Returns the version of the server.
#[utoipa::path(get, path = "/v1/version", tag = "server", security(()), responses((status = 200, body = Version)))]
pub(crate) async fn version() -> JsonResponse<Version> {
    ok(Version { version: env!("CARGO_PKG_VERSION").to_owned(), api: "v1".to_owned() })
}
