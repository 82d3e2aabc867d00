//! Transfers the content of files; no file is held in memory as a whole.

use std::sync::Arc;
use std::time::Duration;

use atoll_front_kit::multipart::{BadForm, Boundary, Form};
use atoll_front_kit::{ApiError, Caller, Json, Path, Query};
use atoll_service::WriteFile;
use atoll_toolbox::FilePart;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryFutureExt, TryStreamExt};
use serde::Deserialize;

use super::multipart::part_head;
use super::{from_workdir, mode, root_files};
use crate::Leap0App;

/// LIMIT: a client that sends nothing for a minute in the middle of an upload is disconnected or malicious.
const CHUNK_WITHIN: Duration = Duration::from_secs(60);
/// LIMIT: files in one request; each is opened once before the first is sent.
const FILES_MAX: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct WriteQuery {
    path: String,
    permissions: Option<String>,
}

pub(super) async fn write_file(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let len = request.headers().get(header::CONTENT_LENGTH);
    let len = len.and_then(|len| len.to_str().ok()?.parse().ok());
    let mode = mode("permissions", query.permissions.as_deref())?;
    let path = from_workdir(&app, &who, &id, query.path).await?;
    let file = WriteFile { path, mode, user: None, len, as_root: true };
    let content = request.into_body().into_data_stream().map(|chunk| chunk.map_err(std::io::Error::other));
    app.service.sandboxes().write_file(&who, &id, file, in_time(content.boxed())).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Each part is named by the absolute path of its file. They are written in their order; the first failure ends the
/// request.
pub(super) async fn write_files(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let form = Form::open(Some(kind), request.into_body());
    let mut form =
        form.ok_or_else(|| ApiError::invalid("the body must be multipart/form-data with a boundary"))?;
    while let Some(part) = form.next().await.map_err(bad_form)? {
        let Some(path) = part.name.clone() else {
            return Err(ApiError::invalid("every part must be named by the path of its file"));
        };
        let path = from_workdir(&app, &who, &id, path).await?;
        let file = WriteFile { path, as_root: true, ..WriteFile::default() };
        app.service.sandboxes().write_file(&who, &id, file, part.into_stream()).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

fn bad_form(error: BadForm) -> ApiError {
    match error {
        BadForm::Stalled => ApiError::invalid("the upload stalled").with_status(StatusCode::REQUEST_TIMEOUT),
        _ => ApiError::invalid("the parts of the body cannot be read").caused_by(error),
    }
}

/// Content that ends with an error if the client stalls.
fn in_time(
    content: BoxStream<'static, std::io::Result<Bytes>>,
) -> BoxStream<'static, std::io::Result<Bytes>> {
    let next = |state: Option<BoxStream<'static, std::io::Result<Bytes>>>| async move {
        let mut content = state?;
        match tokio::time::timeout(CHUNK_WITHIN, content.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some(content))),
            Ok(Some(Err(error))) => Some((Err(error), None)),
            Err(_) => Some((Err(std::io::Error::from(std::io::ErrorKind::TimedOut)), None)),
        }
    };
    stream::unfold(Some(content), next).boxed()
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadBody {
    path: String,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    head: Option<u64>,
    #[serde(default)]
    tail: Option<u64>,
}

impl ReadBody {
    /// Lines or bytes; the SDK refuses both at once, and so does this front.
    fn part(&self) -> Result<FilePart, ApiError> {
        match (self.head, self.tail, self.offset, self.limit) {
            (None, None, None, None) => Ok(FilePart::Whole),
            (Some(lines), None, None, None) => Ok(FilePart::Head(lines)),
            (None, Some(lines), None, None) => Ok(FilePart::Tail(lines)),
            (None, None, offset, limit) => Ok(FilePart::Bytes { offset: offset.unwrap_or(0), limit }),
            (Some(_), Some(_), ..) => Err(ApiError::field("head", "excludes tail")),
            (Some(_), None, ..) => Err(ApiError::field("head", "excludes offset and limit")),
            (None, Some(_), ..) => Err(ApiError::field("tail", "excludes offset and limit")),
        }
    }
}

pub(super) async fn read_file(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ReadBody>,
) -> Result<Response, ApiError> {
    let part = body.part()?;
    let awake = root_files(&app, &who, &id).await?;
    let file = awake.toolbox.files().read(&awake.path(&body.path), part).await?;
    let len = file.len;
    // The sandbox does not count as idle until the last byte is sent.
    let content = file.into_stream().map(move |chunk| {
        let _awake = &awake.sandbox;
        chunk.map_err(std::io::Error::other)
    });
    let mut response = answer(content, HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    Ok(response)
}

#[derive(Debug, Deserialize)]
pub(super) struct ReadFilesBody {
    paths: Vec<String>,
}

/// All files are opened once before the response begins, so that a missing one is an error and not a partial response. A
/// download under way takes memory in the sandbox, so each begins when the one before it has ended.
pub(super) async fn read_files(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ReadFilesBody>,
) -> Result<Response, ApiError> {
    if body.paths.is_empty() || body.paths.len() > FILES_MAX {
        return Err(ApiError::field("paths", format!("must have 1 to {FILES_MAX} paths")));
    }
    let awake = root_files(&app, &who, &id).await?;
    for path in &body.paths {
        let nothing = FilePart::Bytes { offset: 0, limit: Some(0) };
        awake.toolbox.files().read(&awake.path(path), nothing).await?;
    }
    let boundary = Boundary::random()?;
    let kind = HeaderValue::from_str(&boundary.content_type())
        .map_err(|cause| ApiError::new(atoll_model::Code::Internal, "no boundary").caused_by(cause))?;
    let last = boundary.last();
    let awake = Arc::new(awake);
    let parts = stream::iter(body.paths).flat_map(move |path| {
        let head = Ok(part_head(&boundary, &path));
        let awake = Arc::clone(&awake);
        // The sandbox does not count as idle until the last byte is sent.
        let content = async move {
            let file = awake.toolbox.files().read(&awake.path(&path), FilePart::Whole).await;
            let file = file.map_err(std::io::Error::other)?;
            Ok(file.into_stream().map_err(std::io::Error::other).inspect(move |_| {
                let _awake = &awake;
            }))
        };
        stream::iter([head]).chain(content.try_flatten_stream()).chain(stream::iter([Ok(Boundary::PART_END)]))
    });
    let content = parts.chain(stream::iter([Ok(last)]));
    Ok(answer(content, kind))
}

fn answer(
    content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    kind: HeaderValue,
) -> Response {
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_bytes_exclude_each_other() {
        let part =
            |text: &str| atoll_front_kit::parse_json_or_empty::<ReadBody>(text.as_bytes()).unwrap().part();
        assert_eq!(part(r#"{"path":"/a"}"#).unwrap(), FilePart::Whole);
        assert_eq!(part(r#"{"path":"/a","head":3}"#).unwrap(), FilePart::Head(3));
        assert_eq!(part(r#"{"path":"/a","tail":3}"#).unwrap(), FilePart::Tail(3));
        assert_eq!(
            part(r#"{"path":"/a","limit":3}"#).unwrap(),
            FilePart::Bytes { offset: 0, limit: Some(3) }
        );
        assert_eq!(part(r#"{"path":"/a","offset":3}"#).unwrap(), FilePart::Bytes { offset: 3, limit: None });
        for bad in [r#""head":1,"tail":1"#, r#""head":1,"limit":1"#, r#""tail":1,"offset":1"#] {
            assert!(part(&format!("{{\"path\":\"/a\",{bad}}}")).is_err(), "{bad}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_stalls_ends() {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"a"))]);
        let mut content = in_time(first.chain(stream::pending()).boxed());
        assert_eq!(content.next().await.unwrap().unwrap(), "a");
        assert!(content.next().await.unwrap().is_err());
        assert!(content.next().await.is_none());
    }
}
