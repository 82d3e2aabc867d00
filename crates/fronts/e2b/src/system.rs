//! Whether the server is there.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::E2bApp;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new().route("/health", get(health))
}

/// Whoever can ask this has reached it.
async fn health() -> StatusCode {
    StatusCode::OK
}
