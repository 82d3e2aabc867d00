//! Calls of the SDK that this server does not support, each with its reason. They are listed in `docs/fronts/leap0.md`.
//!
//! The key is checked first, so that a caller with a wrong key learns that.

use atoll_front_kit::{ApiError, Caller};
use axum::Router;
use axum::routing::any;

use crate::Leap0App;
use crate::error::not_here;

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new().route("/v1/sandbox/{id}/ssh/{*rest}", any(async |_: Caller| ssh()))
}

fn ssh() -> ApiError {
    not_here("SSH access", "there is no SSH gateway; use a PTY, or `atoll sh`")
}
