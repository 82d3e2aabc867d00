//! Uploads of build contexts: the part of S3 that the SDKs use, for one kind of object,
//! `ORGANISATION/HASH/context.tar`.
//!
//! ```text
//! GET /api/object-storage/push-access ─► credentials of one tenant, for an hour
//! GET  /s3/BUCKET/?list-type=2&prefix=      whether it exists     HEAD the same for one object
//! PUT  /s3/BUCKET/KEY                        one piece             POST ?uploads, PUT ?partNumber&uploadId, POST ?uploadId
//! ```
//!
//! Objects, parts, credentials and bounds belong to the service's store of uploads; this is its S3 wire. The session token of a
//! request decides; signatures are not checked, since the token is as secret as they are. No request reads an object.

mod chunks;
mod key;
mod xml;

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, ok, upload_stream};
use atoll_model::Code;
use atoll_service::{BuildContext, ServiceError, TenantUploads, UploadError};
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde::{Deserialize, Serialize};
use tokio_util::io::StreamReader;

use crate::DaytonaApp;
use crate::origin::Origin;
use key::ObjectKey;

const BUCKET: &str = "contexts";
const REGION: &str = "local";
/// The field in which every request shows its session token.
const TOKEN: &str = "x-amz-security-token";

/// The uploads of the tenant whose session token a request shows.
async fn uploads(
    app: &DaytonaApp,
    bucket: &str,
    headers: &HeaderMap,
    query: &S3Query,
) -> Result<TenantUploads, Refused> {
    let shown = headers.get(TOKEN).and_then(|token| token.to_str().ok()).or(query.token.as_deref());
    let uploads = app.service.builds().admit_storage(shown.ok_or(Refused::Denied)?).await?;
    if bucket == BUCKET { Ok(uploads) } else { Err(Refused::NoBucket) }
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
    let access = app.service.builds().storage_access(&who);
    Ok(ok(PushAccess {
        access_key: access.access_key,
        secret: access.secret,
        session_token: access.token,
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
            Code::Forbidden => Self::Denied,
            // More would fit after a while.
            Code::QuotaExceeded if error.retry_after_s.is_some() => Self::TooMuch,
            Code::QuotaExceeded => Self::Quota,
            Code::NoCapacity => Self::Full,
            Code::PayloadTooLarge => Self::TooLarge,
            Code::InvalidRequest | Code::DeadlineExceeded => Self::BadBody,
            _ => Self::Broken,
        }
    }
}

impl From<UploadError> for Refused {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::NoSuchUpload => Self::NoUpload,
            UploadError::InvalidPart => Self::BadPart,
            UploadError::Refused(error) => error.into(),
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
            Self::TooMuch => (
                StatusCode::SERVICE_UNAVAILABLE,
                "SlowDown",
                "this organisation has too many unfinished uploads",
            ),
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
    let uploads = uploads(&app, &bucket, &headers, &query).await?;
    let prefix = query.prefix.unwrap_or_default();
    // Nothing but whether one object is there can be asked.
    let key = ObjectKey::of_prefix(&prefix, uploads.tenant())?;
    let size = uploads.size(key.hash()).await;
    Ok(xml::answer(StatusCode::OK, xml::list(BUCKET, &prefix, &key.text(), size)))
}

async fn head(
    State(app): State<DaytonaApp>,
    Path((bucket, key)): Path<(String, String)>,
    Query(query): Query<S3Query>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let uploads = uploads(&app, &bucket, &headers, &query).await?;
    let key = ObjectKey::parse(&key, uploads.tenant())?;
    let size = uploads.size(key.hash()).await.ok_or(Refused::NoKey)?;
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
    let uploads = uploads(&app, &bucket, &headers, &query).await?;
    let key = ObjectKey::parse(&key, uploads.tenant())?;
    let (stream, _) = upload_stream(body);
    let body: BuildContext = Box::new(StreamReader::new(chunks::plain(&headers, stream)));
    let written = match (query.upload, query.part) {
        (Some(upload), Some(part)) => {
            let size = uploads.put_part(key.hash(), &upload, part, body).await?;
            format!("p{part}b{size}")
        }
        (None, None) => {
            uploads.put(key.hash(), body).await?;
            key.hash().as_str().to_owned()
        }
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
    let uploads = uploads(&app, &bucket, &headers, &query).await?;
    let key = ObjectKey::parse(&key, uploads.tenant())?;
    match (query.uploads, query.upload) {
        (Some(_), None) => {
            let upload = uploads.begin(key.hash()).await?;
            Ok(xml::answer(StatusCode::OK, xml::begun(BUCKET, &key.text(), &upload)))
        }
        (None, Some(upload)) => {
            uploads.finish(key.hash(), &upload).await?;
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
    let uploads = uploads(&app, &bucket, &headers, &query).await?;
    let key = ObjectKey::parse(&key, uploads.tenant())?;
    let upload = query.upload.ok_or(Refused::NoUpload)?;
    uploads.abort(key.hash(), &upload).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Any text that is equal for equal content is sufficient.
fn etag(text: &str) -> HeaderValue {
    let plain: String = text.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    HeaderValue::from_str(&format!("\"{plain}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"x\""))
}
