//! Who asks: the key from the header, checked by the service. Nothing here decides what a key may do.

use atoll_budget::RequestBudget;
use atoll_model::{Code, Principal};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use crate::App;
use crate::error::ApiError;

/// The authenticated caller. First among the arguments of every handler that is not public, so that nothing else of
/// a request is looked at before its key.
pub(crate) struct Caller(pub(crate) Principal);

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let caller = authenticate(app, header_key(&parts.headers)).await?;
        RequestBudget::charge(&parts.extensions, app.service.account_of(&caller.0));
        Ok(caller)
    }
}

/// Checks a key that was found somewhere and notes its id (never the key) in the request's span.
pub(crate) async fn authenticate(app: &App, key: Option<&str>) -> Result<Caller, ApiError> {
    let Some(key) = key else {
        return Err(ApiError::new(Code::Unauthenticated, "this needs a key")
            .hint("send Authorization: Bearer KEY or X-API-Key: KEY; make one with `atoll key create`"));
    };
    let principal = app.service.authenticate(key).await?;
    tracing::Span::current().record("key", principal.key.as_str());
    Ok(Caller(principal))
}

/// The key in `Authorization: Bearer` or `X-API-Key`; the former wins.
pub(crate) fn header_key(headers: &HeaderMap) -> Option<&str> {
    let plain = || headers.get("x-api-key")?.to_str().ok().map(str::trim);
    bearer(headers).or_else(plain).filter(|key| !key.is_empty())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (k.parse().expect("name"), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn a_key_is_found_in_either_header() {
        assert_eq!(header_key(&headers(&[("authorization", "Bearer atl_1")])), Some("atl_1"));
        assert_eq!(header_key(&headers(&[("authorization", "bearer  atl_1 ")])), Some("atl_1"));
        assert_eq!(header_key(&headers(&[("x-api-key", "e2b_1")])), Some("e2b_1"));
        assert_eq!(header_key(&headers(&[("authorization", "Basic Zm9v"), ("x-api-key", "k")])), Some("k"));
        assert_eq!(header_key(&headers(&[("authorization", "Bearer")])), None);
        assert_eq!(header_key(&headers(&[("x-api-key", " ")])), None);
        assert_eq!(header_key(&headers(&[])), None);
    }
}
