//! What comes in: JSON bodies, query strings, path parameters. Every refusal names the field.
//!
//! Nothing is read beyond its cap, and no body is waited for longer than its deadline. Fields that nobody knows are
//! ignored: a newer SDK may send more than this one.

use std::time::Duration;

use atoll_budget::{BodyError, BodyLimits, RequestBudget, read_whole};
use atoll_model::Code;
use atoll_service::ServiceError;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// LIMIT: of every body that is read whole; the largest are scripts for a toolbox.
pub(crate) const BODY_MAX: usize = 10 << 20;
/// LIMIT: 10 MiB in 30 s is a modem; whoever is slower is holding a connection.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// A JSON object; no body at all counts as an empty one.
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let budget = request.extensions().get::<RequestBudget>().cloned();
        let bytes = collect(request.into_body(), budget.as_ref()).await?;
        parse(&bytes).map(Self)
    }
}

/// Reads a body to its end, up to the cap. It is counted in the request's budget.
pub(crate) async fn collect(body: Body, budget: Option<&RequestBudget>) -> Result<Bytes, ApiError> {
    let limits = BodyLimits { bytes: BODY_MAX, within: BODY_WITHIN };
    read_whole(body, limits, budget).await.map_err(|error| match error {
        BodyError::TooLarge(_) => ApiError::new(Code::PayloadTooLarge, error.to_string()),
        BodyError::Broken(_) => ApiError::invalid(error.to_string()),
        BodyError::TooSlow(_) => {
            ApiError::invalid(error.to_string()).with_status(StatusCode::REQUEST_TIMEOUT)
        }
        BodyError::Exhausted(exhausted) => ServiceError::from(exhausted).into(),
    })
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    // Left alone, serde would take an array for an object, field by field in their order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("the body must be a JSON object"));
    }
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize::<_, T>(&mut from);
    let fault = match parsed {
        Ok(value) => return from.end().map(|()| value).map_err(|e| ApiError::invalid(e.to_string())),
        Err(fault) => fault,
    };
    let (path, error) = (fault.path().to_string(), fault.inner().to_string());
    // A missing field is named in the text only, between backticks.
    let missing = error.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let field = match (path.as_str(), missing) {
        ("." | "?", Some(name)) => name.to_owned(),
        ("." | "?", None) => return Err(ApiError::invalid(format!("the body is not valid: {error}"))),
        (path, Some(name)) => format!("{path}.{name}"),
        (path, None) => path.to_owned(),
    };
    let error = if missing.is_some() { "is required".to_owned() } else { error };
    Err(ApiError::invalid(format!("{field}: {error}")))
}

/// A number without a fraction. Guides and programs in Python write `2.0` too.
pub(crate) fn whole<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let Some(number) = <Option<f64> as serde::Deserialize>::deserialize(from)? else { return Ok(None) };
    if number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number) {
        return Err(serde::de::Error::custom(format!("{number} is not a whole number of 0 or more")));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    Ok(Some(number as u32))
}

/// Parameters of the query string.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Sample {
        port: u16,
        #[serde(default)]
        list: Vec<u8>,
    }

    #[test]
    fn a_wrong_field_is_named_and_an_unknown_one_ignored() {
        assert_eq!(parse::<Sample>(b"{\"port\":1,\"new\":true}").unwrap(), Sample { port: 1, list: vec![] });
        let field = |text: &str| {
            let message = parse::<Sample>(text.as_bytes()).unwrap_err().message;
            message.split(':').next().unwrap_or_default().to_owned()
        };
        assert_eq!(field("{}"), "port");
        assert_eq!(field(""), "port");
        assert_eq!(field("{\"port\":-1}"), "port");
        assert_eq!(field("{\"port\":1,\"list\":[1,300]}"), "list[1]");
        for bad in ["[1]", "null", "{", "{\"port\":1} x", "\u{feff}{}"] {
            assert_eq!(parse::<Sample>(bad.as_bytes()).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn whole_numbers_may_have_a_point() {
        #[derive(Debug, Deserialize)]
        struct Size {
            #[serde(default, deserialize_with = "whole")]
            cpu: Option<u32>,
        }
        let cpu = |text: &str| parse::<Size>(text.as_bytes()).map(|size| size.cpu);
        for (text, means) in [("{}", None), (r#"{"cpu":null}"#, None), (r#"{"cpu":2}"#, Some(2))] {
            assert_eq!(cpu(text).unwrap(), means, "{text}");
        }
        assert_eq!(cpu(r#"{"cpu":2.0}"#).unwrap(), Some(2));
        assert_eq!(cpu(r#"{"cpu":4294967295}"#).unwrap(), Some(u32::MAX));
        for text in [
            r#"{"cpu":1.5}"#,
            r#"{"cpu":-1}"#,
            r#"{"cpu":-1.0}"#,
            r#"{"cpu":4294967296}"#,
            r#"{"cpu":1e300}"#,
            r#"{"cpu":"2"}"#,
        ] {
            let refused = cpu(text).unwrap_err();
            assert!(
                refused.status.as_u16() == 400 && refused.message.starts_with("cpu: "),
                "{text} {refused:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_body_beyond_the_cap_is_refused() {
        let large = Body::from(vec![b' '; BODY_MAX + 1]);
        assert_eq!(collect(large, None).await.unwrap_err().code, Code::PayloadTooLarge);
        assert_eq!(collect(Body::from("x"), None).await.unwrap(), "x");
    }
}
