//! Who asks: the key as the SDKs send it, checked by the service. Nothing here decides what a key may do.

use atoll_budget::RequestBudget;
use atoll_model::Principal;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};

use crate::App;
use crate::error::ApiError;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The authenticated caller. First among the arguments of every handler, so that nothing else of a request is looked at
/// before its key.
pub(crate) struct Caller(pub(crate) Principal);

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let who = authenticate(app, &parts.headers).await?;
        RequestBudget::charge(&parts.extensions, app.service.account_of(&who));
        Ok(Self(who))
    }
}

/// Checks the key of a request and notes its id (never the key) in the request's span.
pub(crate) async fn authenticate(app: &App, headers: &HeaderMap) -> Result<Principal, ApiError> {
    let Some(key) = key(headers) else {
        return Err(ApiError::unauthenticated(
            "this needs a key in X-API-KEY (set E2B_API_KEY; `atoll env e2b --with-key` prints one)",
        ));
    };
    let principal = app.service.authenticate(key).await?;
    tracing::Span::current().record("key", principal.key.as_str());
    Ok(principal)
}

/// The SDKs send `X-API-KEY`; the vendor's command line `Authorization: Bearer`.
fn key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim).filter(|v| !v.is_empty());
    if let Some(key) = text(&X_API_KEY) {
        return Some(key);
    }
    let (scheme, key) = text(&header::AUTHORIZATION)?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_found_in_its_own_field_and_as_a_bearer() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(k, v)| (k.parse().unwrap(), HeaderValue::from_static(v)));
            pairs.collect::<HeaderMap>()
        };
        for (pairs, wanted) in [
            (&[("x-api-key", "e2b_1")][..], Some("e2b_1")),
            (&[("x-api-key", "e2b_1"), ("authorization", "Bearer other")], Some("e2b_1")),
            (&[("x-api-key", ""), ("authorization", "Bearer sk_1")], Some("sk_1")),
            (&[("authorization", "bearer  e2b_1 ")], Some("e2b_1")),
            (&[("authorization", "Basic dXNlcjo=")], None),
            (&[("authorization", "Bearer ")], None),
            (&[], None),
        ] {
            assert_eq!(key(&headers(pairs)), wanted, "{pairs:?}");
        }
    }
}
