//! Who asks: the key as the SDKs send it, checked by the service. Nothing here decides what a key may do.

use atoll_budget::RequestBudget;
use atoll_model::{Code, Principal};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use crate::App;
use crate::error::ApiError;

/// What whoever uses an SDK can do about it.
const HINT: &str = "set DAYTONA_API_KEY; `atoll env daytona --with-key` prints one";

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
    let Some(key) = bearer(headers) else {
        return Err(ApiError::unauthenticated(format!(
            "this needs a key: send Authorization: Bearer KEY ({HINT})"
        )));
    };
    with_key(app, key).await
}

/// The same where the key came another way, as in the first packet of the socket.
pub(crate) async fn with_key(app: &App, key: &str) -> Result<Principal, ApiError> {
    let principal = app.service.authenticate(key).await.map_err(|error| match error.code {
        Code::Unauthenticated => {
            let message = format!("{} ({HINT})", error.message);
            ApiError::from(error).with_message(message)
        }
        _ => error.into(),
    })?;
    tracing::Span::current().record("key", principal.key.as_str());
    Ok(principal)
}

/// The key behind `Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, key) = text.split_once(' ')?;
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
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(text))]);
            assert_eq!(bearer(&headers), wanted, "{text}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
