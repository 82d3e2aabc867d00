//! Request parsing: bodies, query strings and path parameters. Every error names its field.
//!
//! No body is read beyond its limit or waited for longer than [`BODY_DEADLINE`]; its bytes count in the request's budget.

use std::time::Duration;

use atoll_budget::{BodyError, BodyLimits, RequestBudget, read_whole};
use atoll_model::Code;
use atoll_service::ServiceError;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use url::form_urlencoded;

use crate::ApiError;
use crate::value_error::ValueError;

/// LIMIT: the largest bodies that vendors' SDKs send as a whole are scripts and file contents.
pub const BODY_BYTES: usize = 10 << 20;
/// LIMIT: a create with full labels and environment is under 512 KiB.
const STRICT_JSON_BYTES: usize = 1 << 20;
/// LIMIT: 10 MiB in 30 s is a modem; a slower client only holds a connection.
const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// A JSON object of any content type; no body counts as an empty object. Unknown fields are ignored unless the type
/// denies them.
pub struct Json<T, const MAX_BYTES: usize = BODY_BYTES>(pub T);

/// A JSON object that is required and must be declared as `application/json`.
pub struct StrictJson<T, const MAX_BYTES: usize = STRICT_JSON_BYTES>(pub T);

/// The same, but a request may also have no body and no content type.
pub struct OptionalStrictJson<T>(pub T);

impl<S: Sync, T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<S> for Json<T, MAX_BYTES> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        parse_json_or_empty(&read_request(request, MAX_BYTES).await?).map(Self)
    }
}

impl<S: Sync, T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<S> for StrictJson<T, MAX_BYTES> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        parse_json(&read_request(request, MAX_BYTES).await?).map(Self)
    }
}

impl<S: Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalStrictJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let has_type = request.headers().contains_key(header::CONTENT_TYPE);
        let is_json = require_json(request.headers());
        let bytes = read_request(request, STRICT_JSON_BYTES).await?;
        if bytes.is_empty() && !has_type {
            return Ok(Self(T::default()));
        }
        is_json?;
        parse_json(&bytes).map(Self)
    }
}

async fn read_request(request: Request, max_bytes: usize) -> Result<Bytes, ApiError> {
    let budget = RequestBudget::of(request.extensions()).cloned();
    read_body(request.into_body(), max_bytes, budget.as_ref()).await
}

/// Reads a body to its end. Refuses it as soon as it is known to be too large or too slow.
pub async fn read_body(
    body: Body,
    max_bytes: usize,
    budget: Option<&RequestBudget>,
) -> Result<Bytes, ApiError> {
    let limits = BodyLimits { bytes: max_bytes, within: BODY_DEADLINE };
    read_whole(body, limits, budget).await.map_err(|error| {
        let message = error.to_string();
        match error {
            BodyError::TooLarge(_) => ApiError::new(Code::PayloadTooLarge, message),
            BodyError::TooSlow(_) => ApiError::invalid(message).with_status(StatusCode::REQUEST_TIMEOUT),
            BodyError::Broken(cause) => ApiError::invalid(message).caused_by(cause),
            BodyError::Exhausted(exhausted) => ServiceError::from(exhausted).into(),
        }
    })
}

fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json") {
        return Ok(());
    }
    let sent = if essence.is_empty() { "nothing".to_owned() } else { format!("{essence:?}") };
    Err(ApiError::invalid(format!("the body must be application/json, not {sent}"))
        .hint("send the header Content-Type: application/json")
        .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// Parses a JSON object; no bytes count as an empty object.
pub fn parse_json_or_empty<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    parse_json(if bytes.trim_ascii().is_empty() { b"{}" } else { bytes })
}

/// Parses a JSON object.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // serde accepts an array for an object, field by field in their order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("the body must be a JSON object"));
    }
    // Tracking the path has a cost for every field, so it is done only for a body that is known to be invalid.
    serde_json::from_slice(bytes).map_err(|error| {
        let mut from = serde_json::Deserializer::from_slice(bytes);
        let path = serde_path_to_error::deserialize::<_, T>(&mut from).err();
        let path = path.map(|error| error.path().to_string());
        invalid_value("the body is not valid", path.as_deref(), &error.to_string())
    })
}

/// The error of a deserializer at `path`.
fn invalid_value(whole: &str, path: Option<&str>, error: &str) -> ApiError {
    // serde names a missing field in the text only.
    let missing = error.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match (path.filter(|path| !matches!(*path, "." | "?")), missing) {
        (None, None) => ValueError::of(error).without_field(whole),
        (None, Some(name)) => ApiError::field(name, "is required"),
        (Some(path), Some(name)) => ApiError::field(format!("{path}.{name}"), "is required"),
        (Some(path), None) => ValueError::of(error).with_field(path),
    }
}

/// Parameters of the query string.
pub struct Query<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parse_query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

fn parse_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    require_utf8(query)?;
    let from = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    serde_path_to_error::deserialize(from).map_err(|error| {
        let path = error.path().to_string();
        invalid_value("the query is not valid", Some(&path), &error.into_inner().to_string())
    })
}

/// The decoder replaces invalid bytes by replacement characters, and a path would then name another file.
fn require_utf8(query: &str) -> Result<(), ApiError> {
    let digit = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let (mut decoded, mut rest) = (Vec::with_capacity(query.len()), query.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match (*first, digit(tail.first()), digit(tail.get(1))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                rest = &tail[2..];
            }
            (byte, _, _) => decoded.push(byte),
        }
    }
    match std::str::from_utf8(&decoded) {
        Ok(_) => Ok(()),
        Err(_) => Err(ApiError::invalid("the query contains bytes that are not UTF-8")),
    }
}

/// Parameters of the path.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Path::<T>::from_request_parts(parts, state)
            .await
            .map(|path| Self(path.0))
            .map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// For serde: distinguishes an absent field (`None`) from a null one (`Some(None)`).
pub fn double_option<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures::stream;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        size: u32,
        #[serde(default)]
        list: Vec<u8>,
        #[serde(default, deserialize_with = "double_option")]
        until: Option<Option<u32>>,
    }

    #[test]
    fn a_wrong_field_is_named() {
        let wrong = |text: &str| parse_json::<Sample>(text.as_bytes()).unwrap_err();
        let error = wrong("{\n  \"size\": -1}");
        assert_eq!(error.field_name(), Some("size"));
        assert_eq!(error.message, "size: must be a whole number from 0, not -1");
        assert_eq!(wrong("{}").message, "size: is required");
        assert_eq!(wrong("{\"size\":1,\"list\":[1,300]}").field_name(), Some("list[1]"));
        let unknown = wrong("{\"size\":1,\"sise\":2}");
        assert_eq!(
            (unknown.field_name(), unknown.hint.as_deref()),
            (Some("sise"), Some("did you mean size?"))
        );
        let after = wrong("{\"size\":1}\n x").message;
        assert!(after.contains("trailing characters") && after.contains("line 2"), "{after}");
        assert!(wrong(" {").message.contains("EOF"));
        for other in ["", "[1]", "1", "null", "\u{feff}{\"size\":1}"] {
            let error = wrong(other);
            assert!(error.message.contains("object") && error.status() == StatusCode::BAD_REQUEST, "{other}");
        }
    }

    #[test]
    fn no_body_is_an_empty_object_where_that_is_allowed() {
        #[derive(Debug, Deserialize)]
        struct Lenient {
            port: Option<u16>,
        }
        assert_eq!(parse_json_or_empty::<Lenient>(b" ").unwrap().port, None);
        assert_eq!(parse_json_or_empty::<Lenient>(b"{\"port\":1,\"new\":true}").unwrap().port, Some(1));
        assert_eq!(parse_json_or_empty::<Sample>(b"").unwrap_err().message, "size: is required");
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Page {
            limit: Option<u8>,
        }
        assert_eq!(parse_query::<Page>("limit=3").unwrap().limit, Some(3));
        let error = parse_query::<Page>("limit=x").unwrap_err();
        assert_eq!(error.field_name(), Some("limit"));
        assert!(error.message.starts_with("limit: "), "{error:?}");
        assert!(parse_query::<Page>("limits=1").unwrap_err().message.contains("limits"));
    }

    #[test]
    fn a_query_that_is_not_utf8_is_refused() {
        for fine in ["", "path=/a%20b", "path=n%C3%A4me", "path=100%", "path=%zz", "a=1&b=2"] {
            assert!(require_utf8(fine).is_ok(), "{fine}");
        }
        for bent in ["path=%FF", "path=%C3", "path=%c0%af", "a=1&path=/x%80"] {
            assert_eq!(require_utf8(bent).unwrap_err().code, Code::InvalidRequest, "{bent}");
        }
    }

    #[test]
    fn null_and_absent_are_two_things() {
        assert_eq!(parse_json::<Sample>(b"{\"size\":1}").unwrap().until, None);
        assert_eq!(parse_json::<Sample>(b"{\"size\":1,\"until\":null}").unwrap().until, Some(None));
        assert_eq!(parse_json::<Sample>(b"{\"size\":1,\"until\":3}").unwrap().until, Some(Some(3)));
    }

    #[tokio::test]
    async fn a_body_is_refused_at_its_limit_and_joined_below_it() {
        let chunks = |n: usize| {
            Body::from_stream(stream::iter(
                (0..n).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"abcd"))),
            ))
        };
        assert_eq!(read_body(chunks(2), 8, None).await.unwrap(), "abcdabcd");
        assert_eq!(read_body(chunks(3), 8, None).await.unwrap_err().code, Code::PayloadTooLarge);
        let declared = Body::from("123456789");
        assert_eq!(read_body(declared, 8, None).await.unwrap_err().code, Code::PayloadTooLarge);
        assert_eq!(read_body(Body::empty(), 8, None).await.unwrap(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_given_up() {
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read_body(never, 8, None).await.unwrap_err().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
