//! What is not here yet: a desktop inside the sandbox. Named in `docs/fronts/daytona.md`.

use axum::Router;
use axum::routing::any;

use super::inside::Inside;
use crate::App;
use crate::error::ApiError;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/computeruse/{*call}", any(desktop))
}

async fn desktop(_inside: Inside) -> ApiError {
    ApiError::not_here("computer use", "sandboxes have no desktop yet").of_daemon()
}
