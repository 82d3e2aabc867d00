//! Files: read, write, stat, list, make, move, remove, watch.
//!
//! Content is streamed in both directions and never held in memory: the memory of a transfer does not depend on the
//! size of the file.

use atoll_client::exec::StreamError;
use atoll_client::files::{
    ArchiveWritten, Entry, EntryKind, EntryList, FileChange, ListQuery, MkdirBody, MoveBody, PathQuery,
    WatchQuery, WriteQuery,
};
use atoll_front_kit::{
    ApiError, Caller, JsonResponse, Path, Query, StrictJson, ok, rfc3339_millis, upload_stream,
};
use atoll_model::Code;
use atoll_service::{ChangeKind, WriteFile};
use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};
use crate::sse;
use crate::text::text_of;

mod search;
pub(crate) mod transfer;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(read, write, remove))
        .routes(routes!(stat))
        .routes(routes!(list))
        .routes(routes!(make_dir))
        .routes(routes!(move_path))
        .routes(routes!(watch))
        .routes(routes!(read_archive, write_archive))
        .merge(search::routes())
}

impl FromCore<atoll_service::EntryKind> for EntryKind {
    fn from_core(kind: atoll_service::EntryKind) -> Self {
        match kind {
            atoll_service::EntryKind::File => Self::File,
            atoll_service::EntryKind::Directory => Self::Directory,
            atoll_service::EntryKind::Symlink => Self::Symlink,
            atoll_service::EntryKind::Other => Self::Other,
        }
    }
}

impl FromCore<atoll_service::Entry> for Entry {
    fn from_core(entry: atoll_service::Entry) -> Self {
        let (name, name_base64) = text_of(entry.name);
        let (path, path_base64) = text_of(entry.path);
        Self {
            name,
            path,
            kind: entry.kind.into_api(),
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            owner: entry.owner,
            group: entry.group,
            modified_at: rfc3339_millis(entry.modified_at_ms),
            symlink_target: entry.symlink_target.map(|target| text_of(target).0),
            name_base64,
            path_base64,
        }
    }
}

fn file_to_write(query: WriteQuery, len: Option<u64>) -> Result<WriteFile, ApiError> {
    let mode = query.mode.as_deref().map(octal).transpose()?;
    Ok(WriteFile { path: query.path, mode, user: query.user, len, as_root: false })
}

pub(crate) fn octal(text: &str) -> Result<u32, ApiError> {
    let digits = !text.is_empty() && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    digits.then(|| u32::from_str_radix(text, 8).ok()).flatten().filter(|mode| *mode <= 0o7777).ok_or_else(
        || ApiError::invalid(format!("mode must be octal permission bits such as 644, not {text:?}")),
    )
}

/// Reads a file. A single `Range` is supported.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/files", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), PathQuery,
        ("Range" = Option<String>, Header, example = "bytes=0-1023")),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, content_type = "application/octet-stream", body = Vec<u8>, description = "The range")))]
pub(crate) async fn read(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<PathQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let range = transfer::range(&headers);
    match app.service.sandboxes().read_file(&who, &ident, &query.path, range).await {
        Ok(file) => Ok(transfer::download(&query.path, range, file)),
        Err(error) if range.is_some() && error.code == Code::InvalidArgument => {
            // HTTP wants to know whether it was the range, and how large the file is.
            let entry = app.service.sandboxes().stat(&who, &ident, &query.path).await?;
            Ok(transfer::outside(range, &entry).ok_or(error)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes a whole file, which appears when every byte has arrived. Missing parent directories are created.
#[utoipa::path(put, path = "/v1/sandboxes/{ident}/files", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Entry)))]
pub(crate) async fn write(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WriteQuery>,
    body: Body,
) -> Result<JsonResponse<Entry>, ApiError> {
    let file = file_to_write(query, body.size_hint().exact())?;
    let (content, fault) = upload_stream(body);
    let written = app.service.sandboxes().write_file(&who, &ident, file, content).await;
    Ok(ok(written.map_err(|error| fault.or(error))?.into_api()))
}

/// Removes a file, or a directory recursively.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/files", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), PathQuery),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().remove_path(&who, &ident, &query.path).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the entry at a path. Links are not followed.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/files/stat", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), PathQuery),
    responses((status = 200, body = Entry)))]
pub(crate) async fn stat(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<JsonResponse<Entry>, ApiError> {
    Ok(ok(app.service.sandboxes().stat(&who, &ident, &query.path).await?.into_api()))
}

/// Lists a directory.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/files/list", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ListQuery),
    responses((status = 200, body = EntryList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<JsonResponse<EntryList>, ApiError> {
    let depth = query.depth.unwrap_or(1);
    let (entries, truncated) = app.service.sandboxes().list_dir(&who, &ident, &query.path, depth).await?;
    Ok(ok(EntryList { items: entries.into_iter().map(Entry::from_core).collect(), truncated }))
}

/// Creates a directory and its parents.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/files/mkdir", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = MkdirBody, responses((status = 201, body = Entry)))]
pub(crate) async fn make_dir(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<MkdirBody>,
) -> Result<JsonResponse<Entry>, ApiError> {
    Ok(JsonResponse(
        StatusCode::CREATED,
        app.service.sandboxes().make_dir(&who, &ident, &body.path).await?.into_api(),
    ))
}

/// Moves or renames; a file at the destination is replaced.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/files/move", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = MoveBody, responses((status = 200, body = Entry)))]
pub(crate) async fn move_path(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<MoveBody>,
) -> Result<JsonResponse<Entry>, ApiError> {
    Ok(ok(app.service.sandboxes().move_path(&who, &ident, &body.from, &body.to).await?.into_api()))
}

/// Reads a file or a directory as a tar archive. Links are kept as links; sockets and devices are left out.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/files/archive", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), PathQuery),
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>)))]
pub(crate) async fn read_archive(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<PathQuery>,
) -> Result<Response, ApiError> {
    let tar = app.service.sandboxes().read_archive(&who, &ident, &query.path).await?;
    let tar = tar.map(|chunk| chunk.map_err(|error| std::io::Error::other(error.message)));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::from_stream(tar)).into_response())
}

/// Unpacks a tar archive below a directory, which is created if missing. Links are kept as links, and all entries
/// belong to the sandbox's user. After an error, entries that were already written stay.
#[utoipa::path(put, path = "/v1/sandboxes/{ident}/files/archive", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), PathQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = ArchiveWritten)))]
pub(crate) async fn write_archive(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<PathQuery>,
    body: Body,
) -> Result<JsonResponse<ArchiveWritten>, ApiError> {
    let (content, fault) = upload_stream(body);
    let written = app.service.sandboxes().write_archive(&who, &ident, &query.path, content).await;
    let written = written.map_err(|error| fault.or(error))?;
    Ok(ok(ArchiveWritten { entries: written.entries, bytes: written.bytes }))
}

/// Watches a directory.
///
/// Events: `create`, `write`, `remove`, `rename` and `chmod` `{name}`, relative to the directory; `overflow` if
/// changes were lost and the directory must be listed again; at the end `error {code, message}` if the watch
/// failed. The watch is active when the response headers arrive.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/files/watch", tag = "files",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WatchQuery),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn watch(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, ApiError> {
    let recursive = query.recursive.unwrap_or_default().0;
    let changes = app.service.sandboxes().watch(&who, &ident, &query.path, recursive).await?;
    let events = changes.filter_map(|change| async move {
        let change = match change {
            Ok(change) => change,
            Err(error) => return Some(sse::event("error", &StreamError::from_core(error))),
        };
        let kind = change_name(change.kind)?;
        let (name, name_base64) = text_of(change.name);
        Some(sse::event(kind, &FileChange { name, name_base64 }))
    });
    Ok(sse::respond(&app, events))
}

/// `None` for a keep-alive.
const fn change_name(kind: ChangeKind) -> Option<&'static str> {
    match kind {
        ChangeKind::Create => Some("create"),
        ChangeKind::Write => Some("write"),
        ChangeKind::Remove => Some("remove"),
        ChangeKind::Rename => Some("rename"),
        ChangeKind::Chmod => Some("chmod"),
        ChangeKind::Overflow => Some("overflow"),
        ChangeKind::KeepAlive => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(octal("644").ok(), Some(0o644));
        assert_eq!(octal("0755").ok(), Some(0o755));
        for bad in ["", "8", "+644", "-1", "77777", "0o644", "rw"] {
            assert!(octal(bad).is_err(), "{bad}");
        }
    }
}
