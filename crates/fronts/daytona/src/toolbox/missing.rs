//! Unsupported calls: a desktop inside the sandbox. They are listed in `docs/fronts/daytona.md`.

use atoll_front_kit::ApiError;
use axum::Router;
use axum::routing::any;

use super::inside::Inside;
use crate::DaytonaApp;
use crate::error::not_here;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new().route("/computeruse/{*call}", any(desktop))
}

async fn desktop(_inside: Inside) -> ApiError {
    not_here("computer use", "sandboxes have no desktop yet").from_sandbox()
}
