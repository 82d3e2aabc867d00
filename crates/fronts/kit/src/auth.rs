//! Authentication: the service checks the key of a request, and throttles wrong keys. Only the service decides what a
//! key may do.

use atoll_budget::RequestBudget;
use atoll_model::{Code, Principal};
use atoll_service::Service;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use crate::ApiError;

/// The state of a front's routes, as far as authentication needs it.
pub trait FrontState: Send + Sync {
    /// Replaces the core's hint for a key that is not valid.
    const WRONG_KEY_HINT: Option<&'static str> = None;

    /// The service behind the front.
    fn service(&self) -> &Service;

    /// The key of a request, wherever the front's clients put it: by default in `Authorization: Bearer` or `X-API-Key`; the former
    /// has precedence.
    fn key(headers: &HeaderMap) -> Option<&str> {
        let plain = || headers.get("x-api-key")?.to_str().ok().map(str::trim);
        bearer(headers).or_else(plain).filter(|key| !key.is_empty())
    }

    /// The answer to a request without a key.
    fn missing_key() -> ApiError;
}

/// The authenticated caller. It is the first argument of every handler that is not public, so that the key is checked
/// before anything else of a request.
pub struct Caller(pub Principal);

impl<S: FrontState> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let caller = authenticate(state, &parts.headers).await?;
        RequestBudget::charge(&parts.extensions, state.service().account_of(&caller));
        Ok(Self(caller))
    }
}

/// Checks the key of a request.
pub async fn authenticate<S: FrontState>(state: &S, headers: &HeaderMap) -> Result<Principal, ApiError> {
    authenticate_key(state, S::key(headers)).await
}

/// Checks a key from another place, as the first message of a socket. Its id (never the key) is recorded in the
/// request's span.
pub async fn authenticate_key<S: FrontState>(state: &S, key: Option<&str>) -> Result<Principal, ApiError> {
    let access = state.service().access();
    let principal = match key {
        Some(key) => access.authenticate(key).await,
        // A caller at the Unix socket is known without a key.
        None => access.authenticate_peer().await.ok_or_else(S::missing_key)?,
    };
    let principal = principal.map_err(|error| match (error.code, S::WRONG_KEY_HINT) {
        (Code::Unauthenticated, Some(hint)) => ApiError::from(error).hint(hint),
        _ => error.into(),
    })?;
    tracing::Span::current().record("key", principal.key.as_str());
    Ok(principal)
}

/// The key in `Authorization: Bearer KEY`.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_behind_its_scheme() {
        for (text, wanted) in [
            ("Bearer dtn_1", Some("dtn_1")),
            ("bearer   dtn_1 ", Some("dtn_1")),
            ("dtn_1", None),
            ("Basic Zm9v", None),
            ("Bearer ", None),
            ("Bearer", None),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(text))]);
            assert_eq!(bearer(&headers), wanted, "{text}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    struct PlainFront;

    impl FrontState for PlainFront {
        fn service(&self) -> &Service {
            unreachable!("only its keys are asked for")
        }

        fn missing_key() -> ApiError {
            ApiError::unauthenticated("no key")
        }
    }

    #[test]
    fn a_key_is_found_in_either_header() {
        let key = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(k, v)| (k.parse().expect("name"), HeaderValue::from_static(v)));
            PlainFront::key(&pairs.collect()).map(str::to_owned)
        };
        assert_eq!(key(&[("authorization", "Bearer atl_1")]).as_deref(), Some("atl_1"));
        assert_eq!(key(&[("authorization", "bearer  atl_1 ")]).as_deref(), Some("atl_1"));
        assert_eq!(key(&[("x-api-key", "e2b_1")]).as_deref(), Some("e2b_1"));
        assert_eq!(key(&[("authorization", "Basic Zm9v"), ("x-api-key", "k")]).as_deref(), Some("k"));
        assert_eq!(key(&[("authorization", "Bearer")]), None);
        assert_eq!(key(&[("x-api-key", " ")]), None);
        assert_eq!(key(&[]), None);
    }
}
