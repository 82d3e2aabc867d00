//! The health of the server.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::E2bApp;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new().route("/health", get(health))
}

/// A caller that receives the response has reached the server.
async fn health() -> StatusCode {
    StatusCode::OK
}
