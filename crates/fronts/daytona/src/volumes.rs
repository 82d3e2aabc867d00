//! Volumes: create, list, find by name, delete.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, ok, rfc3339_millis};
use atoll_model::{Code, VolumeState};
use atoll_service::{NewVolume, VolumeRecord};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::{Deserialize, Serialize};

use crate::DaytonaApp;

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/volumes", get(list).post(create))
        .route("/volumes/{id}", get(find).delete(remove))
        .route("/volumes/by-name/{name}", get(by_name))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VolumeResponse {
    id: String,
    name: String,
    organization_id: String,
    state: &'static str,
    created_at: String,
    updated_at: String,
    last_used_at: Option<String>,
    error_reason: Option<String>,
}

impl From<VolumeRecord> for VolumeResponse {
    fn from(record: VolumeRecord) -> Self {
        let volume = record.volume;
        let at = rfc3339_millis(volume.created_at.wall_ms);
        Self {
            id: volume.id.into(),
            name: volume.name,
            organization_id: volume.tenant.to_string(),
            state: match volume.state {
                VolumeState::Making => "creating",
                VolumeState::Ready => "ready",
                VolumeState::Deleting => "deleting",
            },
            created_at: at.clone(),
            updated_at: at,
            last_used_at: None,
            error_reason: None,
        }
    }
}

#[derive(Debug, Deserialize)]
struct CreateVolumeRequest {
    name: String,
}

/// COMPAT(daytona): a name that is taken makes the request bad.
async fn create(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Json(body): Json<CreateVolumeRequest>,
) -> Result<JsonResponse<VolumeResponse>, ApiError> {
    let new = NewVolume { name: body.name.clone(), ..NewVolume::default() };
    let made = app.service.volumes().create(&who, new).await.map_err(|error| match error.code {
        Code::NameTaken => ApiError::from(error)
            .with_message(format!("Volume with name {:?} already exists", body.name))
            .with_status(StatusCode::BAD_REQUEST),
        _ => error.into(),
    })?;
    Ok(ok(made.into()))
}

async fn list(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
) -> Result<JsonResponse<Vec<VolumeResponse>>, ApiError> {
    let all = app.service.volumes().list(&who).await?;
    Ok(ok(all.into_iter().map(VolumeResponse::from).collect()))
}

async fn find(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<VolumeResponse>, ApiError> {
    Ok(ok(exactly(&app, &who, &id).await?.into()))
}

/// COMPAT(daytona): an unknown name is 404, which makes the SDK's `get(create=True)` create it.
async fn by_name(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<VolumeResponse>, ApiError> {
    let found = exactly(&app, &who, &name).await?;
    if found.volume.name != name {
        return Err(missing(&name));
    }
    Ok(ok(found.into()))
}

async fn remove(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let found = exactly(&app, &who, &id).await?;
    app.service.volumes().remove(&who, found.volume.id.as_str()).await?;
    Ok(StatusCode::OK)
}

/// Finds a volume by its whole id or name, never by a prefix.
async fn exactly(
    app: &DaytonaApp,
    who: &atoll_model::Principal,
    ident: &str,
) -> Result<VolumeRecord, ApiError> {
    let found = app.service.volumes().get(who, ident).await.map_err(|error| match error.code {
        Code::VolumeNotFound | Code::InvalidRequest => missing(ident),
        _ => error.into(),
    })?;
    match found.volume.id.as_str() == ident || found.volume.name == ident {
        true => Ok(found),
        false => Err(missing(ident)),
    }
}

fn missing(ident: &str) -> ApiError {
    let ident: String = ident.chars().take(128).collect();
    ApiError::new(Code::VolumeNotFound, format!("Volume {ident} not found"))
}
