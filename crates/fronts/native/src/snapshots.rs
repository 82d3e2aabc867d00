//! Snapshots: the state of a sandbox at one moment, stored under a name. Take, list, verify, remove.

use std::num::NonZeroU32;

use atoll_client::snapshots::{Snapshot, SnapshotBody, SnapshotPage, SnapshotsQuery};
use atoll_front_kit::{ApiError, Caller, JsonResponse, OptionalStrictJson, Path, Query, ok, rfc3339_millis};
use atoll_service::{NewSnapshot, SnapshotFilter};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create))
        .routes(routes!(list))
        .routes(routes!(get, delete))
        .routes(routes!(verify))
}

impl FromCore<atoll_model::Snapshot> for Snapshot {
    fn from_core(snapshot: atoll_model::Snapshot) -> Self {
        Self {
            id: snapshot.id.into(),
            name: snapshot.name,
            tenant_wide: snapshot.tenant_wide,
            sandbox_name: snapshot.sandbox_name,
            tenant: snapshot.tenant.into(),
            node: snapshot.node.into(),
            sandbox: snapshot.sandbox.into(),
            provider: snapshot.provider,
            state: snapshot.state.into(),
            memory: snapshot.memory,
            template: snapshot.template,
            template_version: snapshot.template_version,
            env_names: snapshot.env.into_keys().collect(),
            user: snapshot.user,
            workdir: snapshot.workdir,
            command: snapshot.command,
            cpu: f64::from(snapshot.limits.cpu_milli) / 1_000.0,
            memory_mib: snapshot.limits.memory_mib,
            disk_mib: snapshot.limits.disk_mib,
            pids: snapshot.limits.pids,
            network: snapshot.network.into(),
            bytes: snapshot.bytes,
            stood_still_us: snapshot.stood_still_us,
            created_at: rfc3339_millis(snapshot.created_at.wall_ms),
        }
    }
}

/// Takes a snapshot of a running, paused or stopped sandbox. The sandbox is frozen while it is copied.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/snapshots", tag = "snapshots",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body(content = SnapshotBody), responses((status = 201, body = Snapshot, description = "Taken")))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    OptionalStrictJson(body): OptionalStrictJson<SnapshotBody>,
) -> Result<Response, ApiError> {
    let ask = NewSnapshot {
        name: body.name,
        tenant_wide: body.tenant_wide,
        memory: body.memory,
        ..NewSnapshot::default()
    };
    let taken = app.service.sandboxes().snapshot(&who, &ident, ask).await?;
    let location = HeaderValue::from_str(&format!("/v1/snapshots/{}", taken.id));
    let mut response = JsonResponse(StatusCode::CREATED, Snapshot::from_core(taken)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Lists snapshots, newest first.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(SnapshotsQuery),
    responses((status = 200, body = SnapshotPage)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<SnapshotsQuery>,
) -> Result<JsonResponse<SnapshotPage>, ApiError> {
    let filter = SnapshotFilter {
        sandbox: query.sandbox,
        name: query.name,
        limit: query.limit.map_or(0, NonZeroU32::get),
        cursor: query.cursor,
    };
    let page = app.service.sandboxes().snapshots(&who, filter).await?;
    let items = page.items.into_iter().map(Snapshot::from_core).collect();
    Ok(ok(SnapshotPage { items, next_cursor: page.next_cursor }))
}

/// Shows a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", tag = "snapshots",
    params(("snapshot" = String, Path, description = "Id, unique prefix of an id, name, or `SANDBOX:NAME`")),
    responses((status = 200, body = Snapshot)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(snapshot): Path<String>,
) -> Result<JsonResponse<Snapshot>, ApiError> {
    Ok(ok(app.service.sandboxes().get_snapshot(&who, &snapshot).await?.into_api()))
}

/// Removes a snapshot. Sandboxes that were created from it do not change.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", tag = "snapshots",
    params(("snapshot" = String, Path, description = "Id, unique prefix of an id, name, or `SANDBOX:NAME`")),
    responses((status = 204)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(who): Caller,
    Path(snapshot): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().delete_snapshot(&who, &snapshot).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a whole snapshot and checks that it is unchanged; the error is `damaged` if it is not.
#[utoipa::path(post, path = "/v1/snapshots/{snapshot}/verify", tag = "snapshots",
    params(("snapshot" = String, Path, description = "Id, unique prefix of an id, name, or `SANDBOX:NAME`")),
    responses((status = 200, body = Snapshot, description = "The snapshot is intact")))]
pub(crate) async fn verify(
    State(app): State<App>,
    Caller(who): Caller,
    Path(snapshot): Path<String>,
) -> Result<JsonResponse<Snapshot>, ApiError> {
    Ok(ok(app.service.sandboxes().verify_snapshot(&who, &snapshot).await?.into_api()))
}
