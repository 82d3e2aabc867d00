//! Secrets: a value is stored and inserted into requests outside of sandboxes; no call returns one.

use std::collections::BTreeMap;

use atoll_front_kit::paging::page_after;
use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok, rfc3339};
use atoll_model::Principal;
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

/// COMPAT(e2b): names do not depend on upper and lower case. Those that are made here have no capitals; those that are made in
/// another way keep theirs, and are found in any.
async fn create(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Json(body): Json<CreateSecretRequest>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    let known = names(&app, &who).await?;
    // A name that is taken is refused by the core, in the capitals that it has there.
    let taken = position(known.iter().map(String::as_str), &body.name).map(|at| known[at].clone());
    let name = taken.unwrap_or_else(|| body.name.to_lowercase());
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
    Ok(ok(kept(&app, &who, &id).await?.into()))
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
    let kept = kept(&app, &who, &id).await?;
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
    let kept = kept(&app, &who, &id).await?;
    app.service.access().delete_secret(&who, kept.id.as_str()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A secret by its id, or by its name in any capitals.
async fn kept(app: &E2bApp, who: &Principal, word: &str) -> Result<SecretRecord, ApiError> {
    let access = app.service.access();
    if let Some(id) = word.strip_prefix(ID_PREFIX) {
        return Ok(access.get_secret(who, id).await?);
    }
    let mut all = access.list_secrets(who).await?;
    match position(all.iter().map(|secret| secret.name.as_str()), word) {
        Some(at) => Ok(all.swap_remove(at)),
        None => Ok(access.get_secret(who, word).await?),
    }
}

/// The names of the caller's secrets.
pub(crate) async fn names(app: &E2bApp, who: &Principal) -> Result<Vec<String>, ApiError> {
    let all = app.service.access().list_secrets(who).await?;
    Ok(all.into_iter().map(|secret| secret.name).collect())
}

/// Which of the names is meant: the same one, else one that differs in capitals only.
pub(crate) fn position<'a>(names: impl Iterator<Item = &'a str> + Clone, word: &str) -> Option<usize> {
    let lower = word.to_lowercase();
    names
        .clone()
        .position(|name| name == word)
        .or_else(|| names.clone().position(|name| name.to_lowercase() == lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_any_capitals_and_first_in_its_own() {
        let find = |word| position(["my-key", "API_KEY", "Api_Key"].into_iter(), word);
        assert_eq!((find("My-Key"), find("API_KEY"), find("Api_Key")), (Some(0), Some(1), Some(2)));
        assert_eq!((find("api_key"), find("other")), (Some(1), None));
    }
}
