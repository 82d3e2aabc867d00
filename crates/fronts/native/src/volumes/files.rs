//! The files of a volume, without a sandbox: read, write, list, make, move, change, remove. Owners are those that sandboxes see.

use atoll_client::files::EntryKind;
use atoll_client::volume_files::{
    EntriesQuery, FolderBody, MoveEntryBody, OwnerBody, VolumeEntry, VolumeEntryList, VolumePathQuery,
    VolumeWriteQuery,
};
use atoll_front_kit::{
    ApiError, Caller, JsonResponse, Path, Query, StrictJson, ok, rfc3339_millis, upload_reader,
};
use atoll_service::{VolumeEntryKind, VolumeOwner, WriteRules};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use tokio_util::io::ReaderStream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};
use crate::files::octal;
use crate::files::transfer::disposition;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(read_file, write_file, remove_file))
        .routes(routes!(entries, change))
        .routes(routes!(make_folder))
        .routes(routes!(move_entry))
}

impl FromCore<atoll_service::VolumeEntry> for VolumeEntry {
    fn from_core(entry: atoll_service::VolumeEntry) -> Self {
        let name = entry.path.rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            name,
            path: entry.path,
            kind: match entry.kind {
                VolumeEntryKind::File => EntryKind::File,
                VolumeEntryKind::Folder => EntryKind::Directory,
                VolumeEntryKind::Link => EntryKind::Symlink,
                VolumeEntryKind::Other => EntryKind::Other,
            },
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            uid: entry.uid,
            gid: entry.gid,
            accessed_at: rfc3339_millis(entry.accessed_ms),
            modified_at: rfc3339_millis(entry.modified_ms),
            changed_at: rfc3339_millis(entry.changed_ms),
            symlink_target: entry.target,
        }
    }
}

fn owner(uid: Option<u32>, gid: Option<u32>, mode: Option<&str>) -> Result<VolumeOwner, ApiError> {
    Ok(VolumeOwner { uid, gid, mode: mode.map(octal).transpose()? })
}

// LIMIT: pieces large enough that a system call per piece does not show.
const PIECE: usize = 256 * 1_024;

/// Reads a file of a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}/files", tag = "volumes",
    params(("volume" = String, Path), VolumePathQuery),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>)))]
pub(crate) async fn read_file(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    Query(query): Query<VolumePathQuery>,
) -> Result<Response, ApiError> {
    let (entry, content) = app.service.volumes().open(&who, &volume).await?.read(&query.path).await?;
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(content, PIECE)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.size));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&query.path));
    Ok(response)
}

/// Writes a whole file of a volume, which appears when every byte has arrived. Missing parent directories are
/// created.
#[utoipa::path(put, path = "/v1/volumes/{volume}/files", tag = "volumes",
    params(("volume" = String, Path), VolumeWriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = VolumeEntry)))]
pub(crate) async fn write_file(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    Query(query): Query<VolumeWriteQuery>,
    body: Body,
) -> Result<JsonResponse<VolumeEntry>, ApiError> {
    let owner = owner(query.uid, query.gid, query.mode.as_deref())?;
    let (content, fault) = upload_reader(body);
    let rules = WriteRules { replace: true, parents: true };
    let open = app.service.volumes().open(&who, &volume).await?;
    let written = open.write(&query.path, owner, rules, content).await;
    Ok(ok(written.map_err(|error| fault.or(error))?.into_api()))
}

/// Removes a file of a volume, or a directory recursively.
#[utoipa::path(delete, path = "/v1/volumes/{volume}/files", tag = "volumes",
    params(("volume" = String, Path), VolumePathQuery), responses((status = 204, description = "Gone")))]
pub(crate) async fn remove_file(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    Query(query): Query<VolumePathQuery>,
) -> Result<StatusCode, ApiError> {
    app.service.volumes().open(&who, &volume).await?.remove(&query.path).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a directory of a volume; with `depth=0` returns the entry itself.
#[utoipa::path(get, path = "/v1/volumes/{volume}/entries", tag = "volumes",
    params(("volume" = String, Path), EntriesQuery), responses((status = 200, body = VolumeEntryList)))]
pub(crate) async fn entries(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    Query(query): Query<EntriesQuery>,
) -> Result<JsonResponse<VolumeEntryList>, ApiError> {
    let path = query.path.as_deref().unwrap_or("/");
    let open = app.service.volumes().open(&who, &volume).await?;
    let (entries, truncated) = match query.depth.unwrap_or(1) {
        0 => (vec![open.stat(path).await?], false),
        depth => open.list(path, depth).await?,
    };
    Ok(ok(VolumeEntryList { items: entries.into_iter().map(VolumeEntry::from_core).collect(), truncated }))
}

/// Changes owner and permissions of an entry.
#[utoipa::path(patch, path = "/v1/volumes/{volume}/entries", tag = "volumes",
    params(("volume" = String, Path), VolumePathQuery), request_body = OwnerBody,
    responses((status = 200, body = VolumeEntry)))]
pub(crate) async fn change(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    Query(query): Query<VolumePathQuery>,
    StrictJson(body): StrictJson<OwnerBody>,
) -> Result<JsonResponse<VolumeEntry>, ApiError> {
    let owner = owner(body.uid, body.gid, body.mode.as_deref())?;
    Ok(ok(app.service.volumes().open(&who, &volume).await?.change(&query.path, owner).await?.into_api()))
}

/// Creates a directory of a volume and its parents.
#[utoipa::path(post, path = "/v1/volumes/{volume}/folders", tag = "volumes", params(("volume" = String, Path)),
    request_body = FolderBody, responses((status = 201, body = VolumeEntry)))]
pub(crate) async fn make_folder(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    StrictJson(body): StrictJson<FolderBody>,
) -> Result<JsonResponse<VolumeEntry>, ApiError> {
    let owner = owner(body.uid, body.gid, body.mode.as_deref())?;
    let made = app.service.volumes().open(&who, &volume).await?.make_folder(&body.path, owner, true).await?;
    Ok(JsonResponse(StatusCode::CREATED, made.into_api()))
}

/// Moves or renames an entry; a file at the destination is replaced.
#[utoipa::path(post, path = "/v1/volumes/{volume}/move", tag = "volumes", params(("volume" = String, Path)),
    request_body = MoveEntryBody, responses((status = 200, body = VolumeEntry)))]
pub(crate) async fn move_entry(
    State(app): State<App>,
    Caller(who): Caller,
    Path(volume): Path<String>,
    StrictJson(body): StrictJson<MoveEntryBody>,
) -> Result<JsonResponse<VolumeEntry>, ApiError> {
    Ok(ok(app.service.volumes().open(&who, &volume).await?.rename(&body.from, &body.to).await?.into_api()))
}
