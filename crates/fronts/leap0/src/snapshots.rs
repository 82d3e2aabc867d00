//! Snapshots: take, list, restore as new sandboxes, delete. A snapshot includes processes if this server can copy them.

use atoll_front_kit::paging::{READ_AT_ONCE, read_all};
use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, Query, created, ok, rfc3339};
use atoll_model::{CreateSandbox, Origin, Snapshot as Kept, Wake};
use atoll_service::{NewSnapshot, SnapshotFilter};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::policy::{PolicyBody, PolicyShown};
use crate::sandboxes::{Paging, SandboxResponse, in_order, lifetime, on_timeout, page_of, pause_timers};

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/v1/sandbox/{id}/snapshot/create", post(create))
        .route("/v1/snapshots", get(list))
        .route("/v1/snapshot/restore", post(restore))
        .route("/v1/snapshot/{id}", delete(remove))
}

#[derive(Debug, Serialize)]
struct SnapshotResponse {
    id: String,
    /// The id if it has no name.
    name: String,
    template_id: String,
    vcpu: u32,
    /// MiB, under the names that the SDKs for Python and JavaScript read.
    memory: u32,
    memory_mib: u32,
    disk: u32,
    disk_mib: u32,
    /// The first state of a sandbox made from it.
    state: &'static str,
    network_policy: PolicyShown,
    created_at: String,
}

impl From<Kept> for SnapshotResponse {
    fn from(kept: Kept) -> Self {
        Self {
            name: kept.tenant_wide_name().unwrap_or(kept.id.as_str()).to_owned(),
            id: String::from(kept.id),
            template_id: kept.template,
            vcpu: kept.limits.cpu_milli.div_ceil(1_000),
            memory: kept.limits.memory_mib,
            memory_mib: kept.limits.memory_mib,
            disk: kept.limits.disk_mib,
            disk_mib: kept.limits.disk_mib,
            state: if kept.memory { "running" } else { "starting" },
            network_policy: PolicyShown::from(&kept.network),
            created_at: rfc3339(kept.created_at.wall_ms),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateSnapshotRequest {
    name: Option<String>,
    kill_sandbox_after: Option<bool>,
}

async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<CreateSnapshotRequest>,
) -> Result<JsonResponse<SnapshotResponse>, ApiError> {
    let name = body.name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let memory = app.service.capabilities_of(&app.service.sandboxes().get(&who, &id).await?).checkpoints;
    let kept = app
        .service
        .sandboxes()
        .snapshot(&who, &id, NewSnapshot { name, tenant_wide: true, memory, ..NewSnapshot::default() })
        .await?;
    if body.kill_sandbox_after == Some(true) {
        app.service.sandboxes().delete(&who, &id, true).await?;
    }
    Ok(created(kept.into()))
}

#[derive(Debug, Default, Deserialize)]
struct SnapshotListQuery {
    query: Option<String>,
    sort: Option<String>,
    #[serde(rename = "order-by")]
    order_by: Option<String>,
    page: Option<usize>,
    #[serde(rename = "page-size")]
    page_size: Option<usize>,
}

#[derive(Debug, Serialize)]
struct SnapshotPage {
    items: Vec<SnapshotResponse>,
    total_items: usize,
}

async fn list(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Query(query): Query<SnapshotListQuery>,
) -> Result<JsonResponse<SnapshotPage>, ApiError> {
    let SnapshotListQuery { query, sort, order_by, page, page_size } = query;
    let paging = Paging { sort, order_by, page, page_size };
    let mut all = read_all(
        |_| true,
        |cursor| {
            let filter = SnapshotFilter { limit: READ_AT_ONCE, cursor, ..SnapshotFilter::default() };
            app.service.sandboxes().snapshots(&who, filter)
        },
    )
    .await?;
    if let Some(part) = query.filter(|part| !part.is_empty()) {
        all.retain(|kept| {
            kept.id.as_str().contains(&part) || kept.name.as_ref().is_some_and(|n| n.contains(&part))
        });
    }
    let by_time = |a: &Kept, b: &Kept| a.created_at.wall_ms.cmp(&b.created_at.wall_ms).then(a.id.cmp(&b.id));
    match paging.sort.as_deref().unwrap_or("created_at") {
        "created_at" => in_order(&mut all, &paging, by_time)?,
        "template_id" => {
            in_order(&mut all, &paging, |a, b| a.template.cmp(&b.template).then_with(|| by_time(a, b)))?;
        }
        _ => return Err(ApiError::field("sort", "must be created_at or template_id")),
    }
    let total_items = all.len();
    let items = page_of(all, &paging)?.into_iter().map(SnapshotResponse::from).collect();
    Ok(ok(SnapshotPage { items, total_items }))
}

#[derive(Debug, Deserialize)]
struct RestoreBody {
    snapshot_name: String,
    auto_pause: Option<bool>,
    timeout: Option<u64>,
    timeout_min: Option<u64>,
    network_policy: Option<PolicyBody>,
}

/// Creates a sandbox with a new id. By default it has the snapshot's policy.
async fn restore(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Json(body): Json<RestoreBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let kept = app.service.sandboxes().get_snapshot(&who, body.snapshot_name.trim()).await?;
    let spec = CreateSandbox {
        from: Origin::Snapshot { snapshot: kept.id.into(), memory: kept.memory },
        network: body.network_policy.map(PolicyBody::into_policy).transpose()?,
        timeout_s: Some(lifetime(body.timeout, body.timeout_min)),
        on_timeout: on_timeout(body.auto_pause.unwrap_or(false)),
        wake: Wake::Any,
        timers: pause_timers(app.service.capabilities().checkpoints),
        ..CreateSandbox::default()
    };
    let (lease, _) = app.service.sandboxes().create(&who, spec, true).await?;
    Ok(created(SandboxResponse::with_policy(lease)))
}

async fn remove(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().delete_snapshot(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
