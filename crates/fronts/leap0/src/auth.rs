//! Who asks: the key as the SDK sends it, checked by the service. Nothing here decides what a key may do.

use atoll_budget::RequestBudget;
use atoll_model::Principal;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};

use crate::App;
use crate::error::ApiError;

const LEAP0_AUTHORIZATION: HeaderName = HeaderName::from_static("leap0-authorization");

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
        return Err(ApiError::unauthenticated("this needs a key: send Authorization: Bearer KEY"));
    };
    let principal = app.service.authenticate(key).await?;
    tracing::Span::current().record("key", principal.key.as_str());
    Ok(principal)
}

/// `leap0-authorization` wins: whoever sends it has another use for the other header.
pub(crate) fn key(headers: &HeaderMap) -> Option<&str> {
    [LEAP0_AUTHORIZATION, header::AUTHORIZATION].iter().find_map(|name| {
        let text = headers.get(name)?.to_str().ok()?.trim();
        let key = match text.split_once(' ') {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
            Some(_) => return None,
            None => text,
        };
        (!key.is_empty() && !key.eq_ignore_ascii_case("bearer")).then_some(key)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_found_bare_by_scheme_and_in_the_vendors_own_header() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs
                .iter()
                .map(|(k, v)| (k.parse().unwrap(), HeaderValue::from_static(v)))
                .collect::<HeaderMap>()
        };
        for (pairs, wanted) in [
            (&[("authorization", "Bearer atl_1")][..], Some("atl_1")),
            (&[("authorization", "bearer   atl_1 ")], Some("atl_1")),
            (&[("authorization", "atl_1")], Some("atl_1")),
            (&[("leap0-authorization", "atl_1")], Some("atl_1")),
            (&[("leap0-authorization", "Bearer atl_1"), ("authorization", "Bearer other")], Some("atl_1")),
            (&[("authorization", "Basic Zm9v")], None),
            (&[("authorization", "Bearer ")], None),
            (&[("authorization", " ")], None),
            (&[], None),
        ] {
            assert_eq!(key(&headers(pairs)), wanted, "{pairs:?}");
        }
    }
}
