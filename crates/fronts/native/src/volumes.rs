//! Volumes: create, list, show, change, copy, remove. Their files without a sandbox are in [`files`].

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_service::{NewVolume, UpdateVolume, VolumeRecord};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

mod files;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, update, remove))
        .routes(routes!(copy))
        .merge(files::routes())
}

/// Files that outlive sandboxes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Volume {
    id: String,
    /// Unique among the tenant's volumes.
    name: String,
    /// The tenant's id.
    tenant: String,
    /// How much it may hold; null: a folder of the host, which Atoll does not limit.
    size_mib: Option<u32>,
    /// How much it holds, where that is known.
    used_bytes: Option<u64>,
    /// The folder of the host that it is.
    folder: Option<String>,
    /// Nobody may write, whatever a mount says.
    read_only: bool,
    /// The volume that it was copied from.
    parent: Option<String>,
    state: VolumeState,
    /// How many sandboxes that are not deleted mount it.
    mounted_by: u32,
    #[schema(format = DateTime)]
    created_at: String,
}

/// How far a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VolumeState {
    Making,
    Ready,
    Deleting,
}

impl From<atoll_model::VolumeState> for VolumeState {
    fn from(state: atoll_model::VolumeState) -> Self {
        match state {
            atoll_model::VolumeState::Making => Self::Making,
            atoll_model::VolumeState::Ready => Self::Ready,
            atoll_model::VolumeState::Deleting => Self::Deleting,
        }
    }
}

impl From<VolumeRecord> for Volume {
    fn from(record: VolumeRecord) -> Self {
        let volume = record.volume;
        Self {
            id: volume.id.into(),
            name: volume.name,
            tenant: volume.tenant.into(),
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

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct VolumeList {
    /// By name.
    items: Vec<Volume>,
}

/// The volume to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeBody {
    /// Unique among the tenant's volumes: letters, digits, `-`, `_`, `.`.
    #[schema(example = "data")]
    name: String,
    /// How much it may hold; absent: the server's default.
    #[schema(example = 10240)]
    size_mib: Option<u32>,
    /// A folder of the host instead, below a root that the operator allowed (`atoll serve --volume-root`). Needs an admin key.
    folder: Option<String>,
    /// Nobody may write, whatever a mount says.
    #[serde(default)]
    #[schema(required = false)]
    read_only: bool,
}

/// Makes a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = VolumeBody,
    responses((status = 201, body = Volume, description = "Made")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<VolumeBody>,
) -> Result<Response, ApiError> {
    let VolumeBody { name, size_mib, folder, read_only } = body;
    let new = NewVolume { name, size_mib, folder, read_only };
    Ok(made(app.service.create_volume(&who, new).await?))
}

fn made(record: VolumeRecord) -> Response {
    let location = HeaderValue::from_str(&format!("/v1/volumes/{}", record.volume.id));
    let mut response = JsonResponse(StatusCode::CREATED, Volume::from(record)).into_response();
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
    let volumes = app.service.list_volumes(&who).await?;
    Ok(ok(VolumeList { items: volumes.into_iter().map(Volume::from).collect() }))
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
    Ok(ok(app.service.get_volume(&who, &volume).await?.into()))
}

/// What to change; what is absent stays.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UpdateVolumeBody {
    /// How much it may hold; not less than it holds.
    size_mib: Option<u32>,
    /// Nobody may write; holds from the next start of a sandbox on.
    read_only: Option<bool>,
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
    Ok(ok(app.service.update_volume(&who, &volume, change).await?.into()))
}

/// Removes a volume with its files; `volume_in_use` while a sandbox mounts it. A folder of the host stays where it is.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes", params(("volume" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.remove_volume(&who, &volume).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The copy to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyVolumeBody {
    /// Of the new one.
    name: String,
}

/// Makes a volume with the files of another as they are now, whatever their size.
#[utoipa::path(post, path = "/v1/volumes/{volume}/copy", tag = "volumes", params(("volume" = String, Path)),
    request_body = CopyVolumeBody, responses((status = 201, body = Volume, description = "Made")))]
pub(crate) async fn copy(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    StrictJson(body): StrictJson<CopyVolumeBody>,
) -> Result<Response, ApiError> {
    Ok(made(app.service.copy_volume(&who, &volume, &body.name).await?))
}
