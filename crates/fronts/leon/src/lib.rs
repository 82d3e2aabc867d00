//! The sessions front: Leon's calls for sandboxes of conversations, translated into Atoll's operations.
//!
//! ```text
//! GET    /api/sandbox/sessions                all sandboxes of all providers that the key can see
//! POST   /api/sandbox/sessions/{id}/pause     also /resume; DELETE without a verb
//! GET    /api/sandbox/sessions/{id}/metrics
//! ```
//!
//! A session is a sandbox. `{id}` is its id, its thread, or the beginning of its id; `?provider=` restricts the search.
//! `docs/sessions.md` describes the answers.
//!
//! This crate contains no rules of its own, and never accesses the store or a provider.

mod metrics;
mod session;

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo, bearer, error_body};
use atoll_service::Service;
use axum::Router;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{delete, get, post};
use serde::Serialize;

/// The front. Cloning is cheap.
#[derive(Clone)]
pub struct Leon {
    service: Service,
    /// The address of the web page, without a slash at its end; `None`: this server has no page.
    page: Option<String>,
}

impl Leon {
    /// Creates the front over a service. `page` is the address of the web page.
    #[must_use]
    pub fn new(service: Service, page: Option<String>) -> Self {
        Self { service, page }
    }
}

impl Front for Leon {
    fn mount(&self) -> Mount {
        Mount::prefix("leon", "/api/sandbox").trim_slashes()
    }

    fn routes(&self) -> Router {
        Router::new()
            .route("/sessions", get(session::list))
            .route("/sessions/{id}", delete(session::destroy))
            .route("/sessions/{id}/pause", post(session::pause))
            .route("/sessions/{id}/resume", post(session::resume))
            .route("/sessions/{id}/metrics", get(metrics::metrics))
            .with_state(self.clone())
    }

    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
        let status = error.status();
        let detail = error.sentence(|core| Some(core.to_owned()));
        let body = LeonError { detail, code: error.code.as_str(), request_id: &request.id };
        let mut response = error_body(status, &body);
        error.write_retry_after(status, response.headers_mut());
        response
    }
}

/// A refused request.
#[derive(Serialize)]
struct LeonError<'a> {
    /// What happened and what to try, for people.
    detail: String,
    code: &'static str,
    request_id: &'a str,
}

impl FrontState for Leon {
    fn service(&self) -> &Service {
        &self.service
    }

    /// The key in `Authorization: Bearer` or `X-API-Key`, as in the native API.
    fn key(headers: &HeaderMap) -> Option<&str> {
        let plain = || headers.get("x-api-key")?.to_str().ok().map(str::trim);
        bearer(headers).or_else(plain).filter(|key| !key.is_empty())
    }

    fn missing_key() -> ApiError {
        ApiError::unauthenticated("this request needs a key")
            .hint("send Authorization: Bearer KEY or X-API-Key: KEY")
    }
}
