//! API keys: create (the secret is shown once), list, delete, and hand to a browser by an invite.

use atoll_client::keys::{CreatedKey, CurrentKey, Invite, Key, KeyBody, KeyList, RedeemedKey, Scope};
use atoll_front_kit::{ApiError, Caller, FrontState, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_model::KeyId;
use atoll_service::{KeyRecord, NewKey};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(current))
        .routes(routes!(delete))
        .routes(routes!(invite))
        .routes(routes!(redeem))
}

impl FromCore<KeyRecord> for Key {
    fn from_core(record: KeyRecord) -> Self {
        Self {
            id: record.id.into(),
            tenant: record.tenant.into(),
            scope: record.scope.into(),
            name: record.name,
            created_by: record.created_by.map(Into::into),
            created_at: rfc3339_millis(record.created_at_ms),
            last_used_at: record.last_used_at_ms.map(rfc3339_millis),
        }
    }
}

impl FromCore<atoll_service::CreatedKey> for CreatedKey {
    fn from_core(created: atoll_service::CreatedKey) -> Self {
        Self { record: created.key.into_api(), secret: created.secret }
    }
}

/// Lists keys, without their secrets.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses((status = 200, body = KeyList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<KeyList>, ApiError> {
    let keys = app.service.access().list_keys(&who).await?;
    Ok(ok(KeyList { items: keys.into_iter().map(Key::from_core).collect() }))
}

/// Returns the key of this request and its tenant.
#[utoipa::path(get, path = "/v1/keys/current", tag = "keys", responses((status = 200, body = CurrentKey)))]
pub(crate) async fn current(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<CurrentKey>, ApiError> {
    let (key, tenant) = app.service.access().current_key(&who).await?;
    Ok(ok(CurrentKey { record: key.into_api(), tenant_name: tenant.name }))
}

/// Creates a key and returns its secret, which is shown only once. Keys that a user key creates are bounded in number and end
/// with it.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = KeyBody,
    responses((status = 201, body = CreatedKey)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<KeyBody>,
) -> Result<Response, ApiError> {
    let scope = body.scope.unwrap_or(Scope::User).into();
    let new = NewKey { tenant: body.tenant, scope, name: body.name };
    let created = app.service.access().create_key(&who, new).await?;
    Ok(unstored(StatusCode::CREATED, CreatedKey::from_core(created)))
}

/// An answer with a secret, which no cache may keep.
pub(crate) fn unstored(status: StatusCode, body: impl Serialize) -> Response {
    let mut response = JsonResponse(status, body).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Creates a code that hands the key of this request to a browser. It works once, within a minute.
#[utoipa::path(post, path = "/v1/keys/invites", tag = "keys", responses((status = 201, body = Invite)))]
pub(crate) async fn invite(
    State(app): State<App>,
    Caller(who): Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let key = App::key(&headers).ok_or_else(App::missing_key)?;
    let made = app.service.access().create_invite(&who, key)?;
    let body = Invite { code: made.code, expires_at: rfc3339_millis(made.expires_at_ms) };
    Ok(unstored(StatusCode::CREATED, body))
}

/// Returns the key of an invite, whose code is sent in place of a key.
#[utoipa::path(post, path = "/v1/keys/invites/redeem", tag = "keys", responses((status = 200, body = RedeemedKey)))]
pub(crate) async fn redeem(State(app): State<App>, headers: HeaderMap) -> Result<Response, ApiError> {
    let code = App::key(&headers).ok_or_else(App::missing_key)?;
    let secret = app.service.access().redeem_invite(code).await?;
    Ok(unstored(StatusCode::OK, RedeemedKey { secret }))
}

/// Deletes a key and the keys that were created with it; they stop working at once.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let id: KeyId = id.parse().map_err(|bad: atoll_model::BadId| ApiError::invalid(bad.to_string()))?;
    app.service.access().delete_key(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
