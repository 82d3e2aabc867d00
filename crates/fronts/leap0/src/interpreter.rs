//! The code interpreter on a sandbox's own host: `https://ID.DOMAIN/execute` and its like.
//!
//! It is found only where the sandbox stands for the vendor's interpreter template and the caller may see it; every other
//! request goes on to whatever the sandbox serves.

use atoll_model::SandboxId;
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Extension, Router};

use crate::App;
use crate::auth::{Caller, authenticate};
use crate::error::ApiError;

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/healthz", get(not_yet))
        .route("/contexts", get(not_yet).post(not_yet))
        .route("/contexts/{context}", get(not_yet).delete(not_yet))
        .route("/execute", post(not_yet))
        .route("/execute/async", post(not_yet))
}

/// Whether a request to a sandbox's own host is for its interpreter.
pub(crate) async fn is_meant(app: &App, sandbox: &SandboxId, path: &str, headers: &HeaderMap) -> bool {
    if !is_call(path) {
        return false;
    }
    // Who has no key, or a wrong one, hears of it from the proxy.
    let Ok(who) = authenticate(app, headers).await else { return false };
    let found = app.service.get(&who, sandbox.as_str()).await;
    found.is_ok_and(|lease| crate::templates::interprets(&lease))
}

fn is_call(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    match path.strip_prefix("/contexts/") {
        Some(context) => !context.is_empty() && !context.contains('/'),
        None => matches!(path, "/healthz" | "/contexts" | "/execute" | "/execute/async"),
    }
}

async fn not_yet(_: Caller, Extension(_sandbox): Extension<SandboxId>) -> ApiError {
    ApiError::not_here("the code interpreter", "the toolbox has none yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_interpreters_own_paths_are_taken() {
        for path in ["/healthz", "/contexts", "/contexts/", "/contexts/a", "/execute", "/execute/async"] {
            assert!(is_call(path), "{path}");
        }
        for path in ["/", "/contexts/a/b", "/executes", "/execute/sync", "/api/execute", "//execute"] {
            assert!(!is_call(path), "{path}");
        }
    }
}
