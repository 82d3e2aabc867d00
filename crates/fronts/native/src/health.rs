//! Whether the server works, and which one it is. Public.

use atoll_front_kit::{JsonResponse, ok};
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(version))
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Ok,
    Degraded,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Health {
    status: Status,
    version: String,
    /// What does not work.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    problems: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Version {
    /// Of the server.
    version: String,
    /// Of the API.
    api: String,
}

/// Whether the server can work.
#[utoipa::path(get, path = "/health", tag = "server", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health, description = "Something is broken")))]
pub(crate) async fn health(State(app): State<App>) -> JsonResponse<Health> {
    let health = app.service.health().await;
    let (code, status) = if health.ok {
        (StatusCode::OK, Status::Ok)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Status::Degraded)
    };
    JsonResponse(
        code,
        Health { status, version: env!("CARGO_PKG_VERSION").to_owned(), problems: health.problems },
    )
}

/// Which server this is.
#[utoipa::path(get, path = "/v1/version", tag = "server", security(()), responses((status = 200, body = Version)))]
pub(crate) async fn version() -> JsonResponse<Version> {
    ok(Version { version: env!("CARGO_PKG_VERSION").to_owned(), api: "v1".to_owned() })
}
