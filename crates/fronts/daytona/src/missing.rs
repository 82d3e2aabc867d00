//! Calls of the SDKs that this server does not support, each with its reason. They are listed in
//! `docs/fronts/daytona.md`.
//!
//! The key is checked first, so that a caller with a wrong key learns that.

use atoll_front_kit::{ApiError, Caller};
use axum::Router;
use axum::routing::{any, get, post};

use crate::DaytonaApp;
use crate::error::not_here;

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/sandbox/{id}/ssh-access", post(async |_: Caller| ssh()).delete(async |_: Caller| ssh()))
        .route("/sandbox/ssh-access/validate", get(async |_: Caller| ssh()))
        .route("/sandbox/{id}/backup", post(async |_: Caller| backup()))
        .route("/sandbox/{id}/telemetry/logs", get(async |_: Caller| telemetry()))
        .route("/sandbox/{id}/telemetry/traces", get(async |_: Caller| telemetry()))
        .route("/docker-registry", any(async |_: Caller| registries()))
        .route("/docker-registry/{*rest}", any(async |_: Caller| registries()))
        .route("/webhooks/{*rest}", any(async |_: Caller| webhooks()))
        .route("/workspace", any(async |_: Caller| workspaces()))
        .route("/workspace/{*rest}", any(async |_: Caller| workspaces()))
}

fn ssh() -> ApiError {
    not_here("SSH access", "there is no SSH gateway; use a PTY, or `atoll sh`")
}

fn backup() -> ApiError {
    not_here("a separate backup", "archiving keeps the files; snapshot() keeps a copy")
}

fn telemetry() -> ApiError {
    not_here("telemetry other than metrics", "sandboxes export no telemetry; see `atoll logs`")
}

fn registries() -> ApiError {
    not_here("storing registry credentials", "pull with credentials: `atoll template pull --username`")
}

fn webhooks() -> ApiError {
    not_here("a webhook", "follow events instead: `atoll events -f`, or the socket")
}

/// COMPAT(daytona): the first SDKs called sandboxes workspaces.
fn workspaces() -> ApiError {
    not_here(
        "/workspace, the API of SDKs from before sandboxes had their name,",
        "update the SDK: Python `daytona` 0.226.1 (`pip install -U daytona`), TypeScript `@daytonaio/sdk` 0.218.0",
    )
}
