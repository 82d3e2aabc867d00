//! Where contexts of builds are put: as much of S3 as the SDKs use, for one kind of object, `ORGANISATION/HASH/context.tar`.
//!
//! ```text
//! GET /api/object-storage/push-access ─► a session: short, of one tenant
//! GET  /s3/BUCKET/?list-type=2&prefix=      is it there?          HEAD the same of one object
//! PUT  /s3/BUCKET/KEY                        one piece             POST ?uploads, PUT ?partNumber&uploadId, POST ?uploadId
//! ```
//!
//! Whoever shows the session's token may put objects of its tenant for as long as it lives; signatures are not looked at,
//! since the token is as secret as they are. Objects go to disk as they come, are bounded, and are forgotten a day after
//! they were last used. Never: gives an object out again, except to a build of its tenant.

mod chunks;
mod context;
mod objects;
mod sessions;
mod xml;

use std::path::PathBuf;
use std::sync::Arc;

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, ok};
use atoll_model::{Code, TenantId};
use atoll_service::{Service, ServiceError};
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde::{Deserialize, Serialize};

use crate::DaytonaApp;
use crate::origin::Origin;
use objects::{ObjectKey, Objects};
use sessions::Sessions;

const BUCKET: &str = "contexts";
const REGION: &str = "local";
/// The field in which every request shows its session.
const TOKEN: &str = "x-amz-security-token";

/// Sessions and objects. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Storage {
    sessions: Arc<Sessions>,
    objects: Objects,
}

impl Storage {
    /// Below a folder of its own; an object holds this much at most.
    ///
    /// The service says whether there is room; without one there always is.
    pub(crate) fn new(folder: PathBuf, bytes_max: u64, service: Option<Service>) -> Self {
        Self { sessions: Arc::default(), objects: Objects::new(folder, bytes_max, service) }
    }
}

/// The tenant whose session a request shows, while the key that opened the session exists.
async fn tenant_of(app: &DaytonaApp, headers: &HeaderMap, query: &S3Query) -> Result<TenantId, Refused> {
    let shown = headers.get(TOKEN).and_then(|token| token.to_str().ok()).or(query.token.as_deref());
    let session = shown.and_then(|token| app.storage.sessions.find(token)).ok_or(Refused::Denied)?;
    match app.service.key_exists(&session.tenant, &session.key).await {
        Ok(true) => Ok(session.tenant),
        Ok(false) => Err(Refused::Denied),
        Err(_) => Err(Refused::Broken),
    }
}

/// Routes of the main API.
pub(crate) fn api_routes() -> Router<DaytonaApp> {
    Router::new().route("/object-storage/push-access", get(push_access))
}

/// Routes below `/s3`.
pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/s3/{bucket}", get(list))
        .route("/s3/{bucket}/", get(list))
        .route("/s3/{bucket}/{*key}", put(write).post(parts).head(head).delete(abort))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PushAccess {
    access_key: String,
    secret: String,
    session_token: String,
    storage_url: String,
    organization_id: String,
    bucket: &'static str,
    region: &'static str,
}

async fn push_access(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
) -> Result<JsonResponse<PushAccess>, ApiError> {
    app.storage.objects.sweep().await;
    let failed = || ApiError::new(Code::NoCapacity, "no session could be made; try again");
    let session = app.storage.sessions.open(&who).ok_or_else(failed)?;
    Ok(ok(PushAccess {
        access_key: session.access_key,
        secret: session.secret,
        session_token: session.token,
        storage_url: origin.storage(),
        organization_id: who.tenant.to_string(),
        bucket: BUCKET,
        region: REGION,
    }))
}

/// The parameters of S3 requests; other ones are ignored.
#[derive(Debug, Default, Deserialize)]
struct S3Query {
    prefix: Option<String>,
    uploads: Option<String>,
    #[serde(rename = "partNumber")]
    part: Option<u32>,
    #[serde(rename = "uploadId")]
    upload: Option<String>,
    #[serde(rename = "X-Amz-Security-Token")]
    token: Option<String>,
}

/// A refusal in the terms of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Denied,
    NoBucket,
    NoKey,
    NoUpload,
    BadKey,
    BadPart,
    BadBody,
    TooLarge,
    TooMuch,
    Quota,
    Full,
    Broken,
}

impl From<ServiceError> for Refused {
    fn from(error: ServiceError) -> Self {
        match error.code {
            Code::QuotaExceeded => Self::Quota,
            Code::NoCapacity => Self::Full,
            _ => Self::Broken,
        }
    }
}

impl Refused {
    const fn said(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Denied => (StatusCode::FORBIDDEN, "AccessDenied", "the session is unknown or has expired"),
            Self::NoBucket => (StatusCode::NOT_FOUND, "NoSuchBucket", "there is one bucket: contexts"),
            Self::NoKey => (StatusCode::NOT_FOUND, "NoSuchKey", "there is no such object"),
            Self::NoUpload => (StatusCode::NOT_FOUND, "NoSuchUpload", "there is no such upload"),
            Self::BadKey => {
                (StatusCode::BAD_REQUEST, "InvalidArgument", "a key is ORGANISATION/HASH/context.tar")
            }
            Self::BadPart => (StatusCode::BAD_REQUEST, "InvalidPart", "a part is missing or has no number"),
            Self::BadBody => {
                (StatusCode::BAD_REQUEST, "IncompleteBody", "the body ended early or is malformed")
            }
            Self::TooLarge => {
                (StatusCode::BAD_REQUEST, "EntityTooLarge", "the context is larger than allowed")
            }
            Self::TooMuch => {
                (StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "this organisation stores too many objects")
            }
            Self::Quota => {
                (StatusCode::FORBIDDEN, "QuotaExceeded", "the disk quota of this organisation is used up")
            }
            Self::Full => (
                StatusCode::INSUFFICIENT_STORAGE,
                "InsufficientStorage",
                "the server's disk has no space for this; try again later",
            ),
            Self::Broken => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "it could not be written"),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, code, message) = self.said();
        xml::answer(status, xml::error(code, message))
    }
}

async fn list(
    State(app): State<DaytonaApp>,
    Path(bucket): Path<String>,
    Query(query): Query<S3Query>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let tenant = tenant_of(&app, &headers, &query).await?;
    of_bucket(&bucket)?;
    let prefix = query.prefix.unwrap_or_default();
    // Nothing but whether one object is there can be asked.
    let key = ObjectKey::of_prefix(&prefix, &tenant)?;
    let size = app.storage.objects.size(&key).await;
    Ok(xml::answer(StatusCode::OK, xml::list(BUCKET, &prefix, &key.text(), size)))
}

async fn head(
    State(app): State<DaytonaApp>,
    Path((bucket, key)): Path<(String, String)>,
    Query(query): Query<S3Query>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let tenant = tenant_of(&app, &headers, &query).await?;
    of_bucket(&bucket)?;
    let key = ObjectKey::parse(&key, &tenant)?;
    let size = app.storage.objects.size(&key).await.ok_or(Refused::NoKey)?;
    let mut response = StatusCode::OK.into_response();
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    response.headers_mut().insert(header::ETAG, etag(&key.text()));
    response
        .headers_mut()
        .insert(header::LAST_MODIFIED, HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"));
    Ok(response)
}

/// A whole object, or a part of one.
async fn write(
    State(app): State<DaytonaApp>,
    Path((bucket, key)): Path<(String, String)>,
    Query(query): Query<S3Query>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refused> {
    let tenant = tenant_of(&app, &headers, &query).await?;
    of_bucket(&bucket)?;
    let key = ObjectKey::parse(&key, &tenant)?;
    let body = chunks::plain(&headers, body);
    let written = match (query.upload, query.part) {
        (Some(upload), Some(part)) => app.storage.objects.write_part(&key, &upload, part, body).await?,
        (None, None) => app.storage.objects.write(&key, body).await?,
        _ => return Err(Refused::BadPart),
    };
    let mut response = StatusCode::OK.into_response();
    response.headers_mut().insert(header::ETAG, etag(&written));
    Ok(response)
}

/// Begins a multipart upload, or completes it.
async fn parts(
    State(app): State<DaytonaApp>,
    Path((bucket, key)): Path<(String, String)>,
    Query(query): Query<S3Query>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let tenant = tenant_of(&app, &headers, &query).await?;
    of_bucket(&bucket)?;
    let key = ObjectKey::parse(&key, &tenant)?;
    match (query.uploads, query.upload) {
        (Some(_), None) => {
            let upload = app.storage.objects.begin(&key).await?;
            Ok(xml::answer(StatusCode::OK, xml::begun(BUCKET, &key.text(), &upload)))
        }
        (None, Some(upload)) => {
            app.storage.objects.finish(&key, &upload).await?;
            Ok(xml::answer(StatusCode::OK, xml::finished(BUCKET, &key.text())))
        }
        _ => Err(Refused::NoUpload),
    }
}

async fn abort(
    State(app): State<DaytonaApp>,
    Path((bucket, key)): Path<(String, String)>,
    Query(query): Query<S3Query>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let tenant = tenant_of(&app, &headers, &query).await?;
    of_bucket(&bucket)?;
    let key = ObjectKey::parse(&key, &tenant)?;
    let upload = query.upload.ok_or(Refused::NoUpload)?;
    app.storage.objects.abort(&key, &upload).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn of_bucket(bucket: &str) -> Result<(), Refused> {
    if bucket == BUCKET { Ok(()) } else { Err(Refused::NoBucket) }
}

/// Any text that is the same for the same thing will do.
fn etag(text: &str) -> HeaderValue {
    let plain: String = text.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    HeaderValue::from_str(&format!("\"{plain}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"x\""))
}
