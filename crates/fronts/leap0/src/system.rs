//! The home folder of a sandbox's user, and the working directory of its commands.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, lossy_text, ok};
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Serialize;

use atoll_service::Exec;

use crate::Leap0App;

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/v1/sandbox/{id}/system/user-home-dir", get(home))
        .route("/v1/sandbox/{id}/system/workdir", get(workdir))
}

#[derive(Debug, Serialize)]
struct Home {
    user_home_dir: String,
}

/// From the sandbox's own environment: the template's entry in passwd may have been changed since.
async fn home(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<Home>, ApiError> {
    let argv = ["/bin/sh", "-c", "printf %s \"$HOME\""].map(str::to_owned).to_vec();
    let exec = Exec { argv, timeout: Some(crate::process::TIMEOUT), ..Exec::default() };
    let said = app.service.sandboxes().exec(&who, &id, exec).await?;
    let named = lossy_text(&said.stdout.head);
    Ok(ok(Home { user_home_dir: if named.is_empty() { "/".to_owned() } else { named } }))
}

#[derive(Debug, Serialize)]
struct Workdir {
    workdir: String,
}

async fn workdir(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<Workdir>, ApiError> {
    let lease = app.service.sandboxes().get(&who, &id).await?;
    Ok(ok(Workdir { workdir: lease.workdir }))
}
