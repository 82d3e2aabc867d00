//! Runs one command in a shell to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_front_kit::{ApiError, Caller, Json, JsonObject, Path, stream_json};
use atoll_service::Exec;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;

use crate::Leap0App;
use crate::filesystem::from_workdir;

/// COMPAT(leap0): the vendor's default.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new().route("/v1/sandbox/{id}/process/execute", post(execute))
}

#[derive(Debug, Deserialize)]
struct ExecuteRequest {
    command: String,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    /// Seconds.
    timeout: Option<f64>,
}

async fn execute(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<ExecuteRequest>,
) -> Result<Response, ApiError> {
    let cwd = match body.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(from_workdir(&app, &who, &id, cwd).await?),
        None => None,
    };
    let timeout = body.timeout.map_or(Ok(TIMEOUT), Duration::try_from_secs_f64);
    let exec = Exec {
        argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), body.command],
        cwd,
        env: body.envs.unwrap_or_default(),
        timeout: Some(timeout.map_err(|_| ApiError::field("timeout", "is not a number of seconds"))?),
        keep_tail: true,
        ..Exec::default()
    };
    let done = app.service.sandboxes().exec(&who, &id, exec).await?;
    let (stdout, stderr) = (done.stdout.with_notice(), done.stderr.with_notice());
    // COMPAT(leap0): the JavaScript SDK 0.1.0 reads `result`, both streams in one text.
    let result: Vec<_> = stdout.iter().chain(&stderr).cloned().collect();
    // The exit code is 124 after a timeout.
    let answer = JsonObject::new().field("exit_code", &done.exit_code).texts("result", result);
    Ok(stream_json(answer.texts("stdout", stdout).texts("stderr", stderr)))
}
