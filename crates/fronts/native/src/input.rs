//! What comes in: JSON bodies, query strings, path parameters. Every refusal names the field and is an envelope.
//!
//! Nothing is read beyond its cap, and no body is waited for longer than its deadline.

use std::fmt;
use std::time::Duration;

use atoll_budget::{BodyError, BodyLimits, RequestBudget, read_whole};
use atoll_model::Code;
use atoll_service::ServiceError;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde::de::{self, DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;

// LIMIT: a create with full labels and environment is under 512 KiB; exec carries stdin.
pub(crate) const JSON_MAX: usize = 1 << 20;
pub(crate) const EXEC_MAX: usize = 8 << 20;
// LIMIT: 8 MiB in 30 s is a modem; whoever is slower is holding a connection.
const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// A JSON body of at most `CAP` bytes. Types deny unknown fields themselves.
pub(crate) struct Json<T, const CAP: usize = JSON_MAX>(pub(crate) T);

/// A JSON body that may be absent altogether: no bytes and no type.
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned, const CAP: usize> FromRequest<S> for Json<T, CAP> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        let budget = request.extensions().get::<RequestBudget>().cloned();
        let bytes = collect(request.into_body(), CAP, budget.as_ref()).await?;
        parse_json(&bytes).map(Self)
    }
}

impl<S: Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let named = request.headers().contains_key(header::CONTENT_TYPE);
        let is_json = require_json(request.headers());
        let budget = request.extensions().get::<RequestBudget>().cloned();
        let bytes = collect(request.into_body(), JSON_MAX, budget.as_ref()).await?;
        if bytes.is_empty() && !named {
            return Ok(Self(T::default()));
        }
        is_json?;
        parse_json(&bytes).map(Self)
    }
}

/// Reads a body to its end, refusing it as soon as it is known to be too large or too slow. It is counted in the request's
/// budget.
pub(crate) async fn collect(
    body: Body,
    cap: usize,
    budget: Option<&RequestBudget>,
) -> Result<Bytes, ApiError> {
    let limits = BodyLimits { bytes: cap, within: BODY_DEADLINE };
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
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json") {
        return Ok(());
    }
    Err(ApiError::invalid(format!("the body must be application/json, not {}", shown(essence)))
        .hint("send the header Content-Type: application/json")
        .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

fn shown(text: &str) -> String {
    if text.is_empty() { "nothing".to_owned() } else { format!("{text:?}") }
}

pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    // Left alone, serde would take an array for an object, field by field in their order.
    if bytes.trim_ascii_start().first().is_none_or(|first| *first != b'{') {
        return Err(ApiError::invalid("the body must be a JSON object"));
    }
    // Knowing the path of a fault costs at every field, so it is looked for only when there is one.
    serde_json::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

fn explain<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let path =
        serde_path_to_error::deserialize::<_, T>(&mut from).err().map(|error| error.path().to_string());
    ApiError::invalid(match path.as_deref() {
        None | Some("." | "?") => format!("the body is not valid: {error}"),
        Some(field) => format!("{field} is not valid: {error}"),
    })
}

/// Parameters of the query string. Types deny unknown ones themselves.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        require_utf8(parts.uri.query().unwrap_or_default())?;
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|query| Self(query.0))
            .map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// Parameters of the path.
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Path::<T>::from_request_parts(parts, state)
            .await
            .map(|path| Self(path.0))
            .map_err(|rejection| ApiError::invalid(rejection.body_text()))
    }
}

/// The decoder below would put replacement characters, and a path would name another file than the one that was meant.
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
        Err(_) => Err(ApiError::invalid("the query holds bytes that are not UTF-8")),
    }
}

/// A switch in the query string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[schema(value_type = String, pattern = "^(0|1|true|false)$", example = "1")]
pub(crate) struct Flag(pub(crate) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Flag;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("1, 0, true or false")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Flag, E> {
                match text {
                    "1" | "true" => Ok(Flag(true)),
                    "0" | "false" => Ok(Flag(false)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_str(Visitor)
    }
}

/// Tells an absent field (`None`) from one that is null (`Some(None)`).
pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures::stream;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        size: u32,
        #[serde(default, deserialize_with = "present")]
        until: Option<Option<u32>>,
    }

    #[test]
    fn a_wrong_field_is_named_with_its_position() {
        let error = parse_json::<Sample>(b"{\n  \"size\": -1}").unwrap_err();
        assert!(
            error.message.starts_with("size is not valid") && error.message.contains("line 2"),
            "{error:?}"
        );
        let error = parse_json::<Sample>(b"{\"size\":1,\"sise\":2}").unwrap_err();
        assert!(error.message.contains("`sise`"), "{error:?}");
        let error = parse_json::<Sample>(b"{\"size\":1} x").unwrap_err();
        assert!(error.message.contains("trailing characters"), "{error:?}");
        assert!(parse_json::<Sample>(b" {").unwrap_err().message.contains("EOF"));
        for other in ["", "[1]", "1", "null", "\u{feff}{\"size\":1}"] {
            assert!(
                parse_json::<Sample>(other.as_bytes()).unwrap_err().message.contains("object"),
                "{other}"
            );
        }
    }

    #[test]
    fn a_query_that_is_not_utf8_is_refused_instead_of_bent() {
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
    async fn a_body_is_refused_at_its_cap_and_joined_below_it() {
        let chunks = |n: usize| {
            Body::from_stream(stream::iter(
                (0..n).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"abcd"))),
            ))
        };
        assert_eq!(collect(chunks(2), 8, None).await.unwrap(), "abcdabcd");
        assert_eq!(collect(chunks(3), 8, None).await.unwrap_err().code, Code::PayloadTooLarge);
        assert_eq!(collect(Body::from("123456789"), 8, None).await.unwrap_err().code, Code::PayloadTooLarge);
        assert_eq!(collect(Body::empty(), 8, None).await.unwrap(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_given_up() {
        let never = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(collect(never, 8, None).await.unwrap_err().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
