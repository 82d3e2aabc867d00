//! Content of files, streamed: several in one form each way, and single files by signed links.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_front_kit::multipart::{BadForm, Boundary, Form, Part};
use atoll_front_kit::{ApiError, Json, JsonResponse, ok};
use atoll_toolbox::{EntryKind, FileBody, FilePart, ToolboxError};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::inside::Inside;
use super::multipart::{bad_form, part_head};
use super::refusal::{bad, of_file};
use super::signed;
use crate::DaytonaApp;
use crate::error::{DaytonaError, text};

/// LIMIT: files of one call.
const FILES_MAX: usize = 10_000;
/// LIMIT: bytes of the name of a field; the SDKs use `files[N].path`.
const FIELD_MAX: usize = 256;
/// LIMIT: bytes of a path: more than the kernel accepts.
const PATH_MAX: usize = 8 << 10;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/files/bulk-upload", post(bulk_upload))
        .route("/files/bulk-download", post(bulk_download))
        .route("/files/download", get(download))
        .route("/files/upload-v2", post(upload))
        .route("/files/upload", post(upload))
}

#[derive(Debug, Serialize)]
struct Uploaded {
    path: String,
    bytes: u64,
}

/// `files[N].path` is the destination of `files[N].file`; all paths may be sent first.
async fn bulk_upload(inside: Inside, request: Request) -> Result<Response, ApiError> {
    let mut form = open_form(request)?;
    let mut paths: HashMap<String, String> = HashMap::new();
    let (mut files, mut errors) = (Vec::new(), Vec::new());
    while let Some(part) = form.next().await.map_err(bad_form)? {
        let name = named(&part)?;
        if let Some(index) = name.strip_suffix(".path") {
            paths.insert(index.to_owned(), path_of(part).await?);
        } else if let Some(index) = name.strip_suffix(".file") {
            let Some(path) = paths.remove(index).or_else(|| part.filename.clone()) else {
                errors.push(format!("{index}: the path is missing"));
                continue;
            };
            match write(&inside, &path, part).await {
                Ok(bytes) => files.push(Uploaded { path, bytes }),
                Err(error) => errors.push(format!("{path}: {}", text(&error))),
            }
        }
        if files.len() + errors.len() + paths.len() > FILES_MAX {
            return Err(bad(format!("at most {FILES_MAX} files are accepted in one call")));
        }
    }
    for (index, path) in paths {
        errors.push(format!("{path}: {index} has no file"));
    }
    if files.is_empty() && errors.is_empty() {
        errors.push("the form contains no file".to_owned());
    }
    let status = if errors.is_empty() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    Ok(JsonResponse(status, json!({ "files": files, "errors": errors })).into_response())
}

fn open_form(request: Request) -> Result<Form, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).cloned();
    let form = Form::open(kind.as_ref().and_then(|kind| kind.to_str().ok()), request.into_body());
    form.ok_or_else(|| bad("the body must be multipart/form-data with a boundary"))
}

fn named(part: &Part) -> Result<String, ApiError> {
    let name = part.name.clone().ok_or_else(|| bad_form(BadForm::Head))?;
    match name.len() {
        ..=FIELD_MAX => Ok(name),
        _ => Err(bad(format!("the name of a field is longer than {FIELD_MAX} bytes"))),
    }
}

async fn path_of(mut part: Part) -> Result<String, ApiError> {
    let mut text = Vec::new();
    while let Some(piece) = part.chunk().await.map_err(bad_form)? {
        text.extend_from_slice(&piece);
        if text.len() > PATH_MAX {
            return Err(bad("a path is too long"));
        }
    }
    String::from_utf8(text).map_err(|_| bad("a path is not UTF-8"))
}

/// Streams a part to a file; returns the number of bytes.
async fn write(inside: &Inside, path: &str, part: Part) -> Result<u64, ApiError> {
    let to = inside.path(path)?;
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    let content = part.into_stream().inspect(move |piece| {
        let bytes = piece.as_ref().map_or(0, Bytes::len);
        count.fetch_add(bytes as u64, Ordering::Relaxed);
    });
    inside.toolbox.files().write_stream(&to, None, content.boxed()).await.map_err(of_file)?;
    Ok(counted.load(Ordering::Relaxed))
}

#[derive(Debug, Deserialize)]
struct DownloadBody {
    paths: Vec<String>,
}

/// One part per path, opened when it is sent: for a file that cannot be read the part contains the reason. A read that
/// fails in the middle ends the response without its last boundary, so that a client cannot take it for complete.
async fn bulk_download(inside: Inside, Json(body): Json<DownloadBody>) -> Result<Response, ApiError> {
    if body.paths.is_empty() || body.paths.len() > FILES_MAX {
        return Err(bad(format!("paths must name 1 to {FILES_MAX} files")));
    }
    let boundary = Boundary::random()?;
    let kind = boundary.content_type();
    let last = boundary.last();
    let inside = Arc::new(inside);
    let parts = stream::iter(body.paths)
        .then(move |path| part(Arc::clone(&inside), boundary.clone(), path))
        .flatten()
        .chain(stream::once(async move { Ok(last) }));
    Ok(streamed(parts, &kind))
}

async fn part(
    inside: Arc<Inside>,
    boundary: Boundary,
    path: String,
) -> BoxStream<'static, std::io::Result<Bytes>> {
    let end = stream::once(async { Ok(Boundary::PART_END) });
    match open(&inside, &path).await {
        Ok(file) => {
            let head = part_head(&boundary, "file", &path, "application/octet-stream", file.len);
            let content = file.into_stream().map(move |piece| {
                // The sandbox does not count as idle until the last byte is sent.
                let _busy = &inside.sandbox;
                piece.map_err(std::io::Error::other)
            });
            stream::once(async move { Ok(head) }).chain(content).chain(end).boxed()
        }
        Err(error) => {
            let error = error.from_sandbox();
            let error = DaytonaError::new(&error, &Method::POST, "/files/bulk-download");
            let body = Bytes::from(serde_json::to_vec(&error).expect("texts and numbers always serialise"));
            let head = part_head(&boundary, "error", &path, "application/json", body.len() as u64);
            stream::iter([Ok(head), Ok(body)]).chain(end).boxed()
        }
    }
}

async fn open(inside: &Inside, path: &str) -> Result<FileBody, ApiError> {
    let path = inside.path(path)?;
    let files = inside.toolbox.files();
    match files.read(&path, FilePart::Whole).await {
        Ok(file) => Ok(file),
        Err(error) => {
            let is_folder = files.stat(&path).await.is_ok_and(|entry| entry.kind == EntryKind::Directory);
            Err(match is_folder {
                true => of_file(ToolboxError::Invalid(format!("{path:?} is a directory"))),
                false => of_file(error),
            })
        }
    }
}

fn streamed(content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static, kind: &str) -> Response {
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_str(kind).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// One file, by a key or a signed link.
async fn download(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = signed::inside(&mut parts, &app).await?;
    let path = path_in(&parts.uri)?;
    let file = open(&inside, &path).await?;
    let len = file.len;
    let content = file.into_stream().map(move |piece| {
        let _busy = &inside.sandbox;
        piece.map_err(std::io::Error::other)
    });
    let mut response = streamed(content, "application/octet-stream");
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    name_of(response.headers_mut(), &path);
    Ok(response)
}

/// The file name for a browser.
fn name_of(headers: &mut HeaderMap, path: &str) {
    let name = path.rsplit('/').next().unwrap_or_default();
    let name: String =
        name.chars().map(|c| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '_' }).collect();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
}

/// One file in the field `file`, by a key or a signed link.
async fn upload(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let inside = signed::inside(&mut parts, &app).await?;
    let path = path_in(&parts.uri)?;
    let mut form = open_form(Request::from_parts(parts, body))?;
    loop {
        match form.next().await.map_err(bad_form)? {
            None => return Err(bad("the form has no field \"file\"")),
            Some(part) if named(&part)? == "file" => {
                write(&inside, &path, part).await?;
                break;
            }
            Some(_) => {}
        }
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    Ok(ok(json!({ "name": name, "path": path, "type": "file" })).into_response())
}

fn path_in(uri: &axum::http::Uri) -> Result<String, ApiError> {
    let query = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let mut paths = query.into_iter().filter(|(name, _)| name == "path").map(|(_, value)| value.into_owned());
    match (paths.next(), paths.next()) {
        (Some(path), None) if !path.is_empty() => Ok(path),
        (_, Some(_)) => Err(bad("path is given twice")),
        _ => Err(bad("path is required")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_named_once() {
        let named = |query: &str| path_in(&format!("/x?{query}").parse().unwrap_or_default()).ok();
        assert_eq!(named("path=%2Fa%20b").as_deref(), Some("/a b"));
        for query in ["", "path=", "path=/a&path=/b", "path=/a&p%61th=/a"] {
            assert_eq!(named(query), None, "{query}");
        }
    }

    #[test]
    fn a_name_for_a_disk_has_nothing_odd() {
        let mut headers = HeaderMap::new();
        name_of(&mut headers, "/a/b \"ü\r\n.txt");
        assert_eq!(headers[header::CONTENT_DISPOSITION], "attachment; filename=\"b_____.txt\"");
    }
}
