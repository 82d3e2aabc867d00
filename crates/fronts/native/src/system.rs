//! What takes space on the disk of the server, and what can go.

use std::time::Duration;

use atoll_client::system::{
    DiskItem, DiskPart, DiskTotals, DiskUse, PruneEntry, PruneReport, PruneRequest, TenantDisk,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, StrictJson, ok};
use atoll_service::{DiskItemKind, Prune};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

/// What a prune takes unless the request says otherwise.
const OLDER_THAN_S: u64 = 7 * 24 * 3_600;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(disk)).routes(routes!(prune))
}

/// Shows what takes space: for a user key what its tenant has, for an admin key everything. Walks over the data folder; it can take seconds.
#[utoipa::path(get, path = "/v1/system/disk", tag = "server", responses((status = 200, body = DiskUse)))]
pub(crate) async fn disk(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<DiskUse>, ApiError> {
    let found = app.service.disk_use(&who).await?;
    let items = found.items.into_iter().map(|item| DiskItem {
        kind: word(item.kind).to_owned(),
        id: item.id,
        name: item.name,
        tenant: item.tenant.map(|tenant| tenant.to_string()),
        state: item.state.map(str::to_owned),
        bytes: item.bytes,
        shared_bytes: item.shared_bytes,
    });
    let tenants = found.tenants.into_iter().map(|tenant| {
        let bytes = |kind: DiskItemKind| tenant.bytes.get(&kind).copied().unwrap_or(0);
        TenantDisk {
            sandbox_bytes: bytes(DiskItemKind::Sandbox),
            memory_bytes: bytes(DiskItemKind::Memory),
            snapshot_bytes: bytes(DiskItemKind::Snapshot),
            volume_bytes: bytes(DiskItemKind::Volume),
            template_bytes: bytes(DiskItemKind::Template),
            archive_bytes: bytes(DiskItemKind::Archive),
            tenant: tenant.tenant,
            name: tenant.name,
        }
    });
    Ok(ok(DiskUse {
        disk: found.disk.map(|disk| DiskTotals {
            free_bytes: disk.free_bytes,
            reserve_bytes: disk.reserve_bytes,
            pool_bytes: disk.pool.map(|(bytes, _)| bytes),
            pool_free_bytes: disk.pool.map(|(_, free)| free),
        }),
        parts: found
            .parts
            .into_iter()
            .map(|part| DiskPart { name: part.name.to_owned(), bytes: part.bytes })
            .collect(),
        items: items.collect(),
        tenants: tenants.collect(),
    }))
}

const fn word(kind: DiskItemKind) -> &'static str {
    match kind {
        DiskItemKind::Sandbox => "sandbox",
        DiskItemKind::Memory => "memory",
        DiskItemKind::Snapshot => "snapshot",
        DiskItemKind::Volume => "volume",
        DiskItemKind::Template => "template",
        DiskItemKind::Archive => "archive",
    }
}

/// Removes what nothing needs, or lists it: unused templates of the catalogue and layers of images, the build cache, records of ended
/// builds, downloads, old logs, and failed sandboxes that never ran. Never a named snapshot, a volume, or a sandbox that can be
/// started. Needs an admin key.
#[utoipa::path(post, path = "/v1/system/prune", tag = "server", request_body = PruneRequest, responses((status = 200, body = PruneReport)))]
pub(crate) async fn prune(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<PruneRequest>,
) -> Result<JsonResponse<PruneReport>, ApiError> {
    let older_than = Duration::from_secs(body.older_than_s.unwrap_or(OLDER_THAN_S));
    let pruned = app.service.prune(&who, Prune { apply: body.apply, older_than }).await?;
    let entries = |all: Vec<atoll_service::PruneEntry>| {
        all.into_iter()
            .map(|one| PruneEntry {
                kind: one.kind.to_owned(),
                name: one.name,
                bytes: one.bytes,
                why: one.why,
            })
            .collect()
    };
    Ok(ok(PruneReport { applied: body.apply, removed: entries(pruned.removed), kept: entries(pruned.kept) }))
}
