//! What the SDK can call and this server cannot do yet: each with its reason, and named in `docs/fronts/leap0.md`.
//!
//! The key is checked first, so that a wrong one hears of that.

use axum::Router;
use axum::routing::{any, patch, post};

use crate::App;
use crate::auth::Caller;
use crate::error::ApiError;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/sandbox/{id}/mounts", post(async |_: Caller| mounts()))
        .route(
            "/v1/sandbox/{id}/mounts/{mount}",
            patch(async |_: Caller| mounts()).delete(async |_: Caller| mounts()),
        )
        .route("/v1/sandbox/{id}/ssh/{*rest}", any(async |_: Caller| ssh()))
        .route("/v1/sandbox/{id}/lsp/{op}", post(async |_: Caller| lsp()))
}

pub(crate) fn mounts() -> ApiError {
    ApiError::not_here("a mount of object storage", "volumes come with a later version")
}

pub(crate) fn desktop() -> ApiError {
    ApiError::not_here("the desktop template", "there is no template with a display yet")
}

fn ssh() -> ApiError {
    ApiError::not_here("SSH access", "there is no SSH gateway; use a PTY, or `atoll shell`")
}

fn lsp() -> ApiError {
    ApiError::not_here("a language server", "no template brings one yet")
}
