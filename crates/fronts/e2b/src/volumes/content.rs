//! The files of a volume, for a caller with the token of that volume. Paths begin at its root.

use atoll_front_kit::{ApiError, Json, JsonResponse, Path, Query, created, ok, rfc3339, upload_reader};
use atoll_service::{OpenVolume, VolumeEntry, VolumeEntryKind, VolumeOwner, WriteRules};
use axum::Router;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tokio_util::io::ReaderStream;

use crate::E2bApp;

/// LIMIT: pieces are large enough to make the cost of system calls negligible.
const PIECE: usize = 256 << 10;

pub(super) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/volumecontent/{volume}/dir", get(list).post(make_folder))
        .route("/volumecontent/{volume}/path", get(stat).patch(change).delete(remove))
        .route("/volumecontent/{volume}/file", get(read).put(write))
}

/// Somebody who showed the token of the volume in the path. First among the arguments of every handler.
struct Opened(OpenVolume);

impl FromRequestParts<E2bApp> for Opened {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &E2bApp) -> Result<Self, ApiError> {
        let Path(volume): Path<String> = Path::from_request_parts(parts, app).await?;
        let said = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = said
            .and_then(|said| said.split_once(' '))
            .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()));
        let token =
            token.ok_or_else(|| ApiError::unauthenticated("this request needs the token of the volume"))?;
        let grant = app.service.access().admit_volume(&volume, token)?;
        Ok(Self(app.service.volumes().open_granted(&grant).await?))
    }
}

#[derive(Debug, Deserialize)]
struct PathQuery {
    path: String,
    depth: Option<u32>,
}

/// The attributes of a new entry. Modes are decimal.
#[derive(Debug, Deserialize)]
struct NewQuery {
    path: String,
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
    force: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnerBody {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Stat {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    atime: String,
    mtime: String,
    ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<VolumeEntry> for Stat {
    fn from(entry: VolumeEntry) -> Self {
        let name = entry.path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/");
        Self {
            name: name.to_owned(),
            kind: match entry.kind {
                VolumeEntryKind::File => "file",
                VolumeEntryKind::Folder => "directory",
                VolumeEntryKind::Link => "symlink",
                VolumeEntryKind::Other => "unknown",
            },
            size: entry.size,
            mode: entry.mode & 0o7777,
            uid: entry.uid,
            gid: entry.gid,
            atime: rfc3339(entry.accessed_ms),
            mtime: rfc3339(entry.modified_ms),
            ctime: rfc3339(entry.changed_ms),
            target: entry.target,
            path: entry.path,
        }
    }
}

impl NewQuery {
    fn owner(&self) -> VolumeOwner {
        VolumeOwner { uid: self.uid, gid: self.gid, mode: self.mode }
    }
}

/// Relative paths begin at the root too.
fn rooted(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

async fn list(
    Opened(volume): Opened,
    Query(query): Query<PathQuery>,
) -> Result<JsonResponse<Vec<Stat>>, ApiError> {
    let entries = volume.list_all(&rooted(&query.path), query.depth.unwrap_or(1)).await?;
    Ok(ok(entries.into_iter().map(Stat::from).collect()))
}

/// With `force`, missing parents are made too, and an existing folder is no error.
async fn make_folder(
    Opened(volume): Opened,
    Query(query): Query<NewQuery>,
) -> Result<JsonResponse<Stat>, ApiError> {
    let (path, owner, force) = (rooted(&query.path), query.owner(), query.force.unwrap_or_default());
    Ok(created(volume.make_folder(&path, owner, force).await?.into()))
}

async fn stat(
    Opened(volume): Opened,
    Query(query): Query<PathQuery>,
) -> Result<JsonResponse<Stat>, ApiError> {
    Ok(ok(volume.stat(&rooted(&query.path)).await?.into()))
}

async fn change(
    Opened(volume): Opened,
    Query(query): Query<PathQuery>,
    Json(body): Json<OwnerBody>,
) -> Result<JsonResponse<Stat>, ApiError> {
    let owner = VolumeOwner { uid: body.uid, gid: body.gid, mode: body.mode };
    Ok(ok(volume.change(&rooted(&query.path), owner).await?.into()))
}

async fn remove(Opened(volume): Opened, Query(query): Query<PathQuery>) -> Result<StatusCode, ApiError> {
    volume.remove(&rooted(&query.path)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn read(Opened(volume): Opened, Query(query): Query<PathQuery>) -> Result<Response, ApiError> {
    let (entry, content) = volume.read(&rooted(&query.path)).await?;
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(content, PIECE)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.size));
    Ok(response)
}

/// `force` decides whether an existing file is overwritten; the default is to overwrite, as the SDKs document. `force`
/// also makes missing parents.
async fn write(
    Opened(volume): Opened,
    Query(query): Query<NewQuery>,
    body: Body,
) -> Result<JsonResponse<Stat>, ApiError> {
    let (path, owner) = (rooted(&query.path), query.owner());
    let rules = WriteRules { replace: query.force.unwrap_or(true), parents: query.force.unwrap_or_default() };
    let (content, fault) = upload_reader(body);
    let written = volume.write(&path, owner, rules, content).await;
    Ok(created(written.map_err(|error| fault.or(error))?.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_shown_with_all_that_the_sdks_read() {
        let entry = VolumeEntry {
            path: "/reports/a.csv".to_owned(),
            kind: VolumeEntryKind::File,
            size: 5,
            mode: 0o100_644,
            uid: 1_000,
            gid: 1_001,
            accessed_ms: 1_000,
            modified_ms: 2_000,
            changed_ms: 3_500,
            target: None,
        };
        let wanted = serde_json::json!({
            "name": "a.csv", "type": "file", "path": "/reports/a.csv", "size": 5, "mode": 420, "uid": 1000, "gid": 1001,
            "atime": "1970-01-01T00:00:01Z", "mtime": "1970-01-01T00:00:02Z", "ctime": "1970-01-01T00:00:03.5Z",
        });
        assert_eq!(serde_json::to_value(Stat::from(entry.clone())).unwrap(), wanted);
        let link = VolumeEntry {
            path: "/".to_owned(),
            kind: VolumeEntryKind::Link,
            target: Some("a".to_owned()),
            ..entry
        };
        let shown = serde_json::to_value(Stat::from(link)).unwrap();
        assert_eq!(
            (&shown["type"], &shown["target"], &shown["name"]),
            (&"symlink".into(), &"a".into(), &"/".into())
        );
        assert_eq!((rooted("a"), rooted("/a"), rooted("")), ("/a".into(), "/a".into(), "/".into()));
    }
}
