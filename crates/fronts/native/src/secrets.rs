//! Secrets of a tenant, for headers that the egress proxy inserts into requests. They are written and never read: no
//! response contains a value.

use atoll_client::secrets::{Secret, SecretBody, SecretChange, SecretList};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_service::{NewSecret, SecretRecord};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(rotate, delete))
}

impl FromCore<SecretRecord> for Secret {
    fn from_core(record: SecretRecord) -> Self {
        Self {
            name: record.name,
            created_at: rfc3339_millis(record.created_at_ms),
            rotated_at: record.rotated_at_ms.map(rfc3339_millis),
            used_by: record.used_by,
        }
    }
}

/// Lists secrets, without their values.
#[utoipa::path(get, path = "/v1/secrets", tag = "network", operation_id = "list_secrets",
    responses((status = 200, body = SecretList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<SecretList>, ApiError> {
    let secrets = app.service.access().list_secrets(&who).await?;
    Ok(ok(SecretList { items: secrets.into_iter().map(Secret::from_core).collect() }))
}

/// Creates a secret. Policies refer to it as `{secret:NAME}`.
#[utoipa::path(post, path = "/v1/secrets", tag = "network", operation_id = "create_secret", request_body = SecretBody,
    responses((status = 201, body = Secret, description = "Kept")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<SecretBody>,
) -> Result<JsonResponse<Secret>, ApiError> {
    let new = NewSecret { name: body.name, value: body.value, about: Default::default() };
    Ok(JsonResponse(StatusCode::CREATED, app.service.access().create_secret(&who, new).await?.into_api()))
}

/// Replaces the value of a secret. Sandboxes use the new value at once.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "network", operation_id = "rotate_secret",
    params(("name" = String, Path)), request_body = SecretChange, responses((status = 200, body = Secret)))]
pub(crate) async fn rotate(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<SecretChange>,
) -> Result<JsonResponse<Secret>, ApiError> {
    Ok(ok(app.service.access().rotate_secret(&who, &name, body.value).await?.into_api()))
}

/// Deletes a secret that no sandbox uses.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "network", operation_id = "delete_secret",
    params(("name" = String, Path)), responses((status = 204, description = "Gone")))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.access().delete_secret(&who, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
