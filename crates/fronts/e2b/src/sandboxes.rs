//! Sandboxes: create, get, list, kill, and their lifetime. Pausing and resuming is in [`asleep`].

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok};
use atoll_model::{Code, CreateSandbox, Lease, Principal, SandboxId, UpdateSandbox};
use axum::Router;
use axum::extract::State as Given;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use serde::Deserialize;

use crate::E2bApp;
use crate::domain::Domain;
use crate::error::not_here;
use crate::states::{SandboxState, state, state_of};

mod asleep;
mod list;
mod request;
mod response;

pub(crate) use list::{page_size, paged};
use request::CreateSandboxRequest;
pub(crate) use request::{Version, VolumeMount};
pub(crate) use response::SandboxResponse;
#[cfg(test)]
pub(crate) use response::tests::lease as sample_lease;
use response::{Detail, Listed};

/// LIMIT: that of E2B, for a refresh.
const REFRESH_MAX_S: u64 = 3_600;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/sandboxes", post(create_v1).get(list::first))
        .route("/v2/sandboxes", post(create_v2).get(list::second))
        .route("/sandboxes/{id}", get(detail).delete(kill))
        .route("/sandboxes/{id}/timeout", post(set_timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .merge(asleep::routes())
}

async fn create_v1(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    domain: Domain,
    headers: HeaderMap,
    Json(body): Json<CreateSandboxRequest>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    create(&app, &who, domain, &headers, body, Version::One).await
}

async fn create_v2(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    domain: Domain,
    headers: HeaderMap,
    Json(body): Json<CreateSandboxRequest>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    create(&app, &who, domain, &headers, body, Version::Two).await
}

/// Responds when the sandbox runs, so that the caller can use the id at once.
async fn create(
    app: &E2bApp,
    who: &Principal,
    Domain(domain): Domain,
    headers: &HeaderMap,
    mut body: CreateSandboxRequest,
    version: Version,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let key = request::idempotency_key(headers)?;
    let word = crate::templates::word(app, who, &body.template_id).await?;
    if let Some(network) = body.network.take() {
        body.network = Some(network.resolved(app, who).await?);
    }
    let spec = CreateSandbox {
        default_limits: app.options.default_size,
        ..body.into_spec(word.clone(), version, key, app.service.capabilities().checkpoints)?
    };
    let (lease, _) = app.service.sandboxes().create(who, spec, true).await.map_err(|error| {
        let vendors = crate::templates::vendors_own(&word).filter(|_| error.code == Code::TemplateNotFound);
        vendors.unwrap_or_else(|| error.into())
    })?;
    Ok(created(SandboxResponse::new(&app.service, &lease, domain)))
}

async fn detail(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Domain(domain): Domain,
    Path(id): Path<String>,
) -> Result<JsonResponse<Detail>, ApiError> {
    let lease = find(&app, &who, &id).await?;
    Ok(ok(Detail::new(&app.service, &lease, domain)))
}

/// COMPAT(e2b): the second call reports that the sandbox does not exist.
async fn kill(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let lease = find(&app, &who, &id).await?;
    app.service.sandboxes().delete(&who, lease.id.as_str(), true).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct TimeoutBody {
    timeout: u64,
}

/// Sets the lifetime from now on, longer or shorter; it never ends the sandbox at once.
async fn set_timeout(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<TimeoutBody>,
) -> Result<StatusCode, ApiError> {
    let change = UpdateSandbox { timeout_s: Some(Some(body.timeout)), ..UpdateSandbox::default() };
    change_lifetime(&app, &who, &id, change).await
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RefreshBody {
    duration: Option<u64>,
}

/// Extends the lifetime to at least this long from now on.
async fn refresh(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<RefreshBody>,
) -> Result<StatusCode, ApiError> {
    let duration = body.duration.unwrap_or(Version::One.lifetime());
    if duration > REFRESH_MAX_S {
        return Err(ApiError::field("duration", "must be between 0 and 3600"));
    }
    let change = UpdateSandbox { timeout_at_least_s: Some(duration), ..UpdateSandbox::default() };
    change_lifetime(&app, &who, &id, change).await
}

/// A sandbox by its whole id. COMPAT(e2b): names and prefixes of ids are not accepted; the part after a dash was a
/// client id in older SDKs.
pub(crate) async fn find(app: &E2bApp, who: &Principal, ident: &str) -> Result<Lease, ApiError> {
    let id = ident.split('-').next().unwrap_or_default();
    let Ok(id) = id.parse::<SandboxId>() else { return Err(not_found(ident)) };
    let lease = app.service.sandboxes().get(who, id.as_str()).await.map_err(|error| match error.code {
        Code::SandboxNotFound => not_found(ident),
        _ => error.into(),
    })?;
    match state_of(&lease) {
        Some(_) => Ok(lease),
        None => Err(not_found(ident)),
    }
}

/// Changes the lifetime of a running sandbox. COMPAT(e2b): a paused one has none, and is not found.
async fn change_lifetime(
    app: &E2bApp,
    who: &Principal,
    ident: &str,
    change: UpdateSandbox,
) -> Result<StatusCode, ApiError> {
    let lease = find(app, who, ident).await?;
    let running = SandboxState::Running.phases();
    let changed = app.service.sandboxes().update_in(who, lease.id.as_str(), change, running).await;
    changed.map_err(|error| match &error.refused {
        Some(refused) if state(refused.lease.phase) == Some(SandboxState::Paused) => ApiError::new(
            Code::SandboxNotFound,
            format!("sandbox {} is paused and has no timeout (connect to it first)", lease.id),
        ),
        _ => error.into(),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

/// The source of a sandbox to show: the name of a template or the id of a snapshot. Another word is returned unchanged;
/// no sandbox has such a source.
async fn origin(app: &E2bApp, who: &Principal, id: &str) -> Result<String, ApiError> {
    let word = crate::templates::word(app, who, id).await?;
    match app.service.templates().get(who, &word).await {
        Ok(found) => return Ok(found.name),
        Err(error) if error.code == Code::TemplateNotFound => {}
        Err(error) => return Err(error.into()),
    }
    match app.service.sandboxes().get_snapshot(who, &word).await {
        Ok(found) => Ok(found.id.to_string()),
        Err(error) if error.code == Code::SnapshotNotFound => Ok(word),
        Err(error) => Err(error.into()),
    }
}

fn not_found(ident: &str) -> ApiError {
    let shown: String = ident.chars().take(64).filter(|c| !c.is_control()).collect();
    ApiError::new(Code::SandboxNotFound, crate::states::no_sandbox(&shown))
}

/// Tokens that the vendor signs for other services.
pub(crate) fn no_iam() -> ApiError {
    not_here("iam (workload identity)", "its tokens are signed by the vendor's own issuer")
}
