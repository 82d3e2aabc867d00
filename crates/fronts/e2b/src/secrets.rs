//! Secrets: a value is stored and inserted into requests outside of sandboxes; no call returns one.

use std::collections::BTreeMap;

use atoll_front_kit::paging::page_after;
use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok, rfc3339};
use atoll_service::{NewSecret, SecretAbout, SecretChange, SecretRecord};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use crate::E2bApp;
use crate::sandboxes::{page_size, paged};

/// The prefix of secret ids in E2B's API; no name may begin with it.
const ID_PREFIX: &str = "sec_";

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/secrets", get(list).post(create))
        .route("/secrets/{id}", get(find).post(update).delete(remove))
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SecretResponse {
    #[serde(rename = "secretID")]
    secret_id: String,
    name: String,
    current_version: u64,
    metadata: BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
}

impl From<SecretRecord> for SecretResponse {
    fn from(kept: SecretRecord) -> Self {
        Self {
            secret_id: format!("{ID_PREFIX}{}", kept.id),
            name: kept.name,
            current_version: kept.version.into(),
            metadata: kept.about.metadata,
            created_at: rfc3339(kept.created_at_ms),
            updated_at: rfc3339(kept.changed_at_ms),
        }
    }
}

#[derive(Deserialize)]
struct CreateSecretRequest {
    name: String,
    value: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

/// COMPAT(e2b): names do not depend on upper and lower case.
async fn create(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Json(body): Json<CreateSecretRequest>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    let name = body.name.to_lowercase();
    if name.starts_with(ID_PREFIX) {
        return Err(ApiError::field("name", "must not begin with sec_, as ids do"));
    }
    let about = SecretAbout { metadata: body.metadata.unwrap_or_default(), ..SecretAbout::default() };
    let made = app.service.access().create_secret(&who, NewSecret { name, value: body.value, about }).await?;
    Ok(created(made.into()))
}

/// There are few secrets, and they are sorted by name: a page begins after the last name of the previous one.
async fn list(State(app): State<E2bApp>, Caller(who): Caller, uri: Uri) -> Result<Response, ApiError> {
    let (mut limit, mut after) = (100, String::new());
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        match name.as_ref() {
            "limit" => limit = page_size(&value)?,
            "nextToken" => after = value.into_owned(),
            _ => {}
        }
    }
    let mut all = app.service.access().list_secrets(&who).await?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.retain(|secret| secret.name > after);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (items, next) = page_after(all, limit, |last| last.name.clone());
    Ok(paged(items.into_iter().map(SecretResponse::from).collect(), next))
}

async fn find(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    let kept = app.service.access().get_secret(&who, &ident(&id)).await?;
    Ok(ok(kept.into()))
}

#[derive(Deserialize)]
struct UpdateBody {
    value: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

async fn update(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<UpdateBody>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    let kept = app.service.access().get_secret(&who, &ident(&id)).await?;
    let about = body.metadata.map(|metadata| SecretAbout { metadata, ..kept.about });
    let change = SecretChange { value: Some(body.value), about };
    let changed = app.service.access().update_secret(&who, kept.id.as_str(), change).await?;
    Ok(ok(changed.into()))
}

async fn remove(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.access().delete_secret(&who, &ident(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An id or a name as the core knows it.
fn ident(word: &str) -> String {
    word.strip_prefix(ID_PREFIX).map_or_else(|| word.to_lowercase(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_loses_its_prefix_and_a_name_its_capitals() {
        assert_eq!(ident("sec_abc"), "abc");
        assert_eq!(ident("My-Key"), "my-key");
    }
}
