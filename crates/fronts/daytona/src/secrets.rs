//! Secrets of the organisation: stored encrypted, described, and never returned.
//!
//! A sandbox with a secret sees a placeholder in a variable; the egress proxy replaces the placeholder by the value in
//! headers of requests to the hosts of the secret.

use std::collections::BTreeMap;

use atoll_front_kit::paging::page_after;
use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, Query, created, ok, rfc3339_millis};
use atoll_model::{Code, Lease};
use atoll_service::{NewSecret, SecretAbout, SecretChange, SecretRecord};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use crate::DaytonaApp;

const PAGE_SIZE: usize = 100;
const PAGE_SIZE_MAX: usize = 200;

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/secret", post(create).get(all))
        .route("/secret/paginated", get(paginated))
        .route("/secret/{id}", get(find).patch(change).delete(remove))
}

/// Secrets for a sandbox as the SDKs write them: a list of maps from a variable to the name of a secret.
pub(crate) fn attached(list: Vec<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>, ApiError> {
    let mut all = BTreeMap::new();
    for (variable, secret) in list.into_iter().flatten() {
        if all.contains_key(&variable) {
            return Err(ApiError::invalid(format!("secrets: the variable {variable} is named twice")));
        }
        all.insert(variable, secret);
    }
    Ok(all)
}

/// A secret of a sandbox. The value stays outside of it.
#[derive(Debug, Serialize)]
pub(crate) struct InSandbox {
    env: String,
    placeholder: String,
    hosts: Vec<String>,
}

/// The secrets of a sandbox.
pub(crate) async fn of_sandbox(
    app: &DaytonaApp,
    who: &atoll_model::Principal,
    lease: &Lease,
) -> Result<Vec<InSandbox>, ApiError> {
    if lease.secrets.is_empty() {
        return Ok(Vec::new());
    }
    let known = app.service.access().list_secrets(who).await?;
    let hosts = |name: &str| known.iter().find(|record| record.name == name).map(|it| it.about.hosts.clone());
    let shown = lease.secrets.iter().map(|(variable, secret)| InSandbox {
        env: variable.clone(),
        placeholder: secret.placeholder.clone(),
        hosts: hosts(&secret.name).unwrap_or_default(),
    });
    Ok(shown.collect())
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SecretResponse {
    id: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    placeholder: String,
    hosts: Vec<String>,
    created_at: String,
    updated_at: String,
}

impl SecretResponse {
    fn of(app: &DaytonaApp, record: SecretRecord) -> Self {
        Self {
            placeholder: app.service.access().placeholder_of(&record.id),
            id: record.id.to_string(),
            name: record.name,
            description: record.about.description,
            hosts: record.about.hosts,
            created_at: rfc3339_millis(record.created_at_ms),
            updated_at: rfc3339_millis(record.changed_at_ms),
        }
    }
}

#[derive(Deserialize)]
struct CreateSecretRequest {
    name: String,
    value: String,
    description: Option<String>,
    hosts: Option<Vec<String>>,
}

async fn create(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Json(body): Json<CreateSecretRequest>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    let about = SecretAbout {
        description: body.description,
        hosts: body.hosts.unwrap_or_default(),
        ..SecretAbout::default()
    };
    let made = app
        .service
        .access()
        .create_secret(&who, NewSecret { name: body.name, value: body.value, about })
        .await?;
    Ok(created(SecretResponse::of(&app, made)))
}

async fn all(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
) -> Result<JsonResponse<Vec<SecretResponse>>, ApiError> {
    let all = app.service.access().list_secrets(&who).await?;
    Ok(ok(all.into_iter().map(|one| SecretResponse::of(&app, one)).collect()))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SecretListQuery {
    cursor: Option<String>,
    limit: Option<usize>,
    name: Option<String>,
    sort: Option<String>,
    order: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Paged {
    items: Vec<SecretResponse>,
    total: usize,
    next_cursor: Option<String>,
}

/// A tenant has a hundred secrets at most, so all are read; the cursor is the id of the last one shown.
async fn paginated(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Query(query): Query<SecretListQuery>,
) -> Result<JsonResponse<Paged>, ApiError> {
    let size = query.limit.unwrap_or(PAGE_SIZE).min(PAGE_SIZE_MAX);
    if size == 0 {
        return Err(ApiError::invalid("limit: must be at least 1"));
    }
    let mut all = app.service.access().list_secrets(&who).await?;
    if let Some(part) = query.name.as_deref().map(str::to_lowercase) {
        all.retain(|secret| secret.name.to_lowercase().starts_with(&part));
    }
    match query.sort.as_deref().unwrap_or("createdAt") {
        "name" => all.sort_by(|a, b| a.name.cmp(&b.name)),
        "createdAt" => all.sort_by(|a, b| (a.created_at_ms, &a.name).cmp(&(b.created_at_ms, &b.name))),
        "updatedAt" => all.sort_by(|a, b| (a.changed_at_ms, &a.name).cmp(&(b.changed_at_ms, &b.name))),
        _ => return Err(ApiError::invalid("sort: must be name, createdAt or updatedAt")),
    }
    match query.order.as_deref() {
        Some("asc") => {}
        None | Some("desc") => all.reverse(),
        Some(_) => return Err(ApiError::invalid("order: must be asc or desc")),
    }
    let total = all.len();
    if let Some(last) = query.cursor.filter(|cursor| !cursor.is_empty()) {
        let at = all.iter().position(|secret| secret.id.as_str() == last);
        let at = at.ok_or_else(|| ApiError::invalid("cursor: is not a cursor of this list"))?;
        all.drain(..=at);
    }
    let (items, next_cursor) = page_after(all, size, |secret| secret.id.to_string());
    Ok(ok(Paged {
        items: items.into_iter().map(|one| SecretResponse::of(&app, one)).collect(),
        total,
        next_cursor,
    }))
}

async fn find(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    Ok(ok(SecretResponse::of(&app, app.service.access().get_secret(&who, &id).await?)))
}

#[derive(Deserialize)]
struct ChangeBody {
    value: Option<String>,
    description: Option<String>,
    hosts: Option<Vec<String>>,
}

async fn change(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ChangeBody>,
) -> Result<JsonResponse<SecretResponse>, ApiError> {
    let before = app.service.access().get_secret(&who, &id).await?;
    let about = (body.description.is_some() || body.hosts.is_some()).then(|| SecretAbout {
        description: body.description.or(before.about.description.clone()),
        hosts: body.hosts.unwrap_or_else(|| before.about.hosts.clone()),
        ..before.about.clone()
    });
    let change = SecretChange { value: body.value, about };
    Ok(ok(SecretResponse::of(&app, app.service.access().update_secret(&who, &id, change).await?)))
}

async fn remove(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.access().delete_secret(&who, &id).await.map_err(|error| match error.code {
        Code::SecretInUse => ApiError::from(error).with_status(StatusCode::CONFLICT),
        _ => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}
