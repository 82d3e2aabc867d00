//! Whether the server is there.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::App;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/health", get(health))
}

/// Whoever can ask this has reached it.
async fn health() -> StatusCode {
    StatusCode::OK
}
