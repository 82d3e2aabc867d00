//! Information about a sandbox: folders, version, ports, resource usage.

use atoll_front_kit::{ApiError, JsonResponse, Path, ok, rfc3339_millis};
use axum::Router;
use axum::routing::{get, post};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::inside::Inside;
use super::refusal::{bad, of_process};
use crate::DaytonaApp;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/user-home-dir", get(home))
        .route("/project-dir", get(work))
        .route("/work-dir", get(work))
        .route("/version", get(version))
        .route("/init", post(init))
        .route("/port", get(ports))
        .route("/port/{port}/in-use", get(in_use))
        .route("/system/metrics", get(metrics))
}

#[derive(Debug, Serialize)]
struct Folder {
    dir: String,
}

async fn home(inside: Inside) -> Result<JsonResponse<Folder>, ApiError> {
    Ok(ok(Folder { dir: inside.home().await? }))
}

async fn work(inside: Inside) -> Result<JsonResponse<Folder>, ApiError> {
    Ok(ok(Folder { dir: inside.work_dir().await? }))
}

async fn version(_inside: Inside) -> JsonResponse<Value> {
    ok(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// COMPAT(daytona): the vendor's control plane initializes its daemon with this call; Atoll does not need it.
async fn init(_inside: Inside) -> JsonResponse<Value> {
    ok(json!({ "message": "ok" }))
}

async fn ports(inside: Inside) -> Result<JsonResponse<Value>, ApiError> {
    let ports = inside.toolbox.listening_ports().await.map_err(of_process)?;
    Ok(ok(json!({ "ports": ports })))
}

async fn in_use(
    inside: Inside,
    Path((_, port)): Path<(String, String)>,
) -> Result<JsonResponse<Value>, ApiError> {
    let port: u16 = port.parse().map_err(|_| bad("port must be between 1 and 65535"))?;
    let ports = inside.toolbox.listening_ports().await.map_err(of_process)?;
    Ok(ok(json!({ "isInUse": ports.contains(&port) })))
}

#[expect(clippy::disallowed_methods, reason = "the time that a measurement shows")]
async fn metrics(inside: Inside) -> Result<JsonResponse<Value>, ApiError> {
    let used = inside.toolbox.usage().await.map_err(of_process)?;
    let now = Timestamp::now();
    Ok(ok(json!({
        "cpuCount": used.cpu_count,
        "cpuUsedPct": used.cpu_used_pct,
        "memTotal": used.mem_total,
        "memUsed": used.mem_used,
        "memCache": used.mem_cache,
        "diskTotal": used.disk_total,
        "diskUsed": used.disk_used,
        "diskFree": used.disk_total.saturating_sub(used.disk_used),
        "timestamp": rfc3339_millis(now.as_millisecond()),
        "timestampUnix": now.as_second(),
    })))
}
