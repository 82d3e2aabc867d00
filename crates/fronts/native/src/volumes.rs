//! Volumes: create, list, show, change, copy, remove. Their files without a sandbox are in [`files`].

use atoll_client::volumes::{CopyVolumeBody, UpdateVolumeBody, Volume, VolumeBody, VolumeList};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_service::{NewVolume, UpdateVolume, VolumeRecord};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

mod files;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, update, remove))
        .routes(routes!(copy))
        .merge(files::routes())
}

impl FromCore<VolumeRecord> for Volume {
    fn from_core(record: VolumeRecord) -> Self {
        let volume = record.volume;
        Self {
            id: volume.id.into(),
            name: volume.name,
            tenant: volume.tenant.into(),
            node: volume.node.into(),
            provider: volume.provider,
            size_mib: volume.size_mib,
            used_bytes: record.used_bytes,
            folder: volume.folder,
            read_only: volume.read_only,
            parent: volume.parent.map(Into::into),
            state: volume.state.into(),
            mounted_by: record.mounted_by,
            created_at: rfc3339_millis(volume.created_at.wall_ms),
        }
    }
}

/// Creates a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = VolumeBody,
    responses((status = 201, body = Volume, description = "Made")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<VolumeBody>,
) -> Result<Response, ApiError> {
    let VolumeBody { name, provider, size_mib, folder, read_only } = body;
    let new = NewVolume { name, provider, size_mib, folder, read_only };
    Ok(made(app.service.volumes().create(&who, new).await?))
}

fn made(record: VolumeRecord) -> Response {
    let location = HeaderValue::from_str(&format!("/v1/volumes/{}", record.volume.id));
    let mut response = JsonResponse(StatusCode::CREATED, Volume::from_core(record)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Lists volumes by name.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", responses((status = 200, body = VolumeList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<VolumeList>, ApiError> {
    let volumes = app.service.volumes().list(&who).await?;
    Ok(ok(VolumeList { items: volumes.into_iter().map(Volume::from_core).collect() }))
}

/// Shows a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes",
    params(("volume" = String, Path, description = "Name, id, or unique prefix of an id")),
    responses((status = 200, body = Volume)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
) -> Result<JsonResponse<Volume>, ApiError> {
    Ok(ok(app.service.volumes().get(&who, &volume).await?.into_api()))
}

/// Changes a volume, also while it is mounted.
#[utoipa::path(patch, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    request_body = UpdateVolumeBody, responses((status = 200, body = Volume)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    StrictJson(body): StrictJson<UpdateVolumeBody>,
) -> Result<JsonResponse<Volume>, ApiError> {
    let change = UpdateVolume { size_mib: body.size_mib, read_only: body.read_only };
    Ok(ok(app.service.volumes().update(&who, &volume, change).await?.into_api()))
}

/// Removes a volume with its files; `volume_in_use` while a sandbox mounts it. A folder of the host stays where it is.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.volumes().remove(&who, &volume).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates a volume with the current files of another volume; fast for any size.
#[utoipa::path(post, path = "/v1/volumes/{volume}/copy", tag = "volumes", params(("volume" = String, Path)),
    request_body = CopyVolumeBody, responses((status = 201, body = Volume, description = "Made")))]
pub(crate) async fn copy(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    StrictJson(body): StrictJson<CopyVolumeBody>,
) -> Result<Response, ApiError> {
    Ok(made(app.service.volumes().copy(&who, &volume, &body.name).await?))
}
