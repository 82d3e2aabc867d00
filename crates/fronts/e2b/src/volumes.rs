//! Volumes in E2B's form: by key, with a token for their files; access to the files by that token is in [`content`].

mod content;

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok};
use atoll_model::Volume as Kept;
use atoll_service::NewVolume;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::{Deserialize, Serialize};

use crate::E2bApp;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/volumes", get(list).post(create))
        .route("/volumes/{id}", get(show).delete(remove))
        .merge(content::routes())
}

#[derive(Debug, Deserialize)]
struct CreateVolumeRequest {
    name: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct VolumeResponse {
    #[serde(rename = "volumeID")]
    volume_id: String,
    name: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct WithToken {
    #[serde(flatten)]
    volume: VolumeResponse,
    token: String,
}

impl From<Kept> for VolumeResponse {
    fn from(kept: Kept) -> Self {
        Self { volume_id: kept.id.into(), name: kept.name }
    }
}

fn with_token(app: &E2bApp, kept: Kept) -> WithToken {
    WithToken { token: app.service.volumes().token(&kept), volume: kept.into() }
}

async fn create(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Json(body): Json<CreateVolumeRequest>,
) -> Result<JsonResponse<WithToken>, ApiError> {
    let new = NewVolume { name: body.name, ..NewVolume::default() };
    let made = app.service.volumes().create(&who, new).await?;
    Ok(created(with_token(&app, made.volume)))
}

/// The volumes of the caller, as in E2B's API; a key that can see more sees it through the native API.
async fn list(
    State(app): State<E2bApp>,
    Caller(who): Caller,
) -> Result<JsonResponse<Vec<VolumeResponse>>, ApiError> {
    let all = app.service.volumes().list(&who).await?;
    let own = all.into_iter().map(|record| record.volume).filter(|volume| volume.tenant == who.tenant);
    Ok(ok(own.map(VolumeResponse::from).collect()))
}

async fn show(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<WithToken>, ApiError> {
    let found = app.service.volumes().get(&who, &id).await?;
    Ok(ok(with_token(&app, found.volume)))
}

async fn remove(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.volumes().remove(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
