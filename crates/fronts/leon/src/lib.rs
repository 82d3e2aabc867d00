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

use atoll_front_kit::{ApiError, Front, FrontState, Mount, RequestInfo, error_body};
use atoll_service::Service;
use axum::Router;
use axum::response::Response;
use axum::routing::{delete, get, post};
use serde::Serialize;

use crate::session::SessionVerb;

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
        use SessionVerb::{Destroy, Pause, Resume};
        let act = session::act;
        Router::new()
            .route("/sessions", get(session::list))
            .route("/sessions/{id}", delete(move |app, who, id, query| act(app, who, id, query, Destroy)))
            .route("/sessions/{id}/pause", post(move |app, who, id, query| act(app, who, id, query, Pause)))
            .route("/sessions/{id}/resume", post(move |app, who, id, query| act(app, who, id, query, Resume)))
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

    fn missing_key() -> ApiError {
        ApiError::unauthenticated("this request needs a key")
            .hint("send Authorization: Bearer KEY or X-API-Key: KEY")
    }
}
