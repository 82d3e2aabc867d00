//! API keys: create (the secret is shown once), list, delete.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_model::KeyId;
use atoll_service::{KeyRecord, NewKey};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(delete))
}

/// What a key may do: everything, or the things of its own tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    Admin,
    User,
}

impl From<atoll_model::Scope> for Scope {
    fn from(scope: atoll_model::Scope) -> Self {
        match scope {
            atoll_model::Scope::Admin => Self::Admin,
            atoll_model::Scope::User => Self::User,
        }
    }
}

impl From<Scope> for atoll_model::Scope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Admin => Self::Admin,
            Scope::User => Self::User,
        }
    }
}

/// A key without its secret.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Key {
    id: String,
    /// The tenant's id.
    tenant: String,
    scope: Scope,
    name: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    last_used_at: Option<String>,
}

impl From<KeyRecord> for Key {
    fn from(record: KeyRecord) -> Self {
        Self {
            id: record.id.into(),
            tenant: record.tenant.into(),
            scope: record.scope.into(),
            name: record.name,
            created_at: rfc3339_millis(record.created_at_ms),
            last_used_at: record.last_used_at_ms.map(rfc3339_millis),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyList {
    items: Vec<Key>,
}

/// A fresh key; the only time that its secret is shown.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct CreatedKey {
    #[serde(flatten)]
    record: Key,
    /// The key to send. It cannot be shown again.
    #[schema(example = "atl_…")]
    secret: String,
}

/// The key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody {
    /// Name or id of its tenant; the caller's own where absent.
    tenant: Option<String>,
    /// `user` where absent.
    scope: Option<Scope>,
    name: Option<String>,
}

/// Lists keys, without their secrets.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = KeyList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<KeyList>, ApiError> {
    let keys = app.service.list_keys(&who).await?;
    Ok(ok(KeyList { items: keys.into_iter().map(Key::from).collect() }))
}

/// Makes a key and shows its secret, this once.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = KeyBody,
    responses((status = 201, body = CreatedKey)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<KeyBody>,
) -> Result<Response, ApiError> {
    let scope = body.scope.unwrap_or(Scope::User).into();
    let new = NewKey { tenant: body.tenant, scope, name: body.name };
    let created = app.service.create_key(&who, new).await?;
    let body = CreatedKey { record: created.key.into(), secret: created.secret };
    let mut response = JsonResponse(StatusCode::CREATED, body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Deletes a key; it stops working at once.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let id: KeyId = id.parse().map_err(|bad: atoll_model::BadId| ApiError::invalid(bad.to_string()))?;
    app.service.delete_key(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
