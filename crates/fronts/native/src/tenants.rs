//! Tenants: create, list, quota, usage. All need an admin key, except one's own usage.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_service::TenantRecord;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::network::{Network, NetworkPolicy};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(update))
        .routes(routes!(usage))
        .routes(routes!(set_network, clear_network))
}

/// The most a tenant may hold at once; null or absent is no limit.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quota {
    /// Sandboxes that are not deleted.
    sandboxes: Option<u32>,
    /// Cores of sandboxes that run or are about to.
    cpu: Option<f64>,
    /// Memory of sandboxes that run or are about to.
    memory_mib: Option<u64>,
    /// Disk of sandboxes that are not deleted.
    disk_mib: Option<u64>,
    /// Volumes.
    volumes: Option<u32>,
    /// What volumes may hold together.
    volume_mib: Option<u64>,
}

// LIMIT: far above any node, far below where thousandths lose precision.
const CORES_MAX: f64 = 1e9;

impl TryFrom<Quota> for atoll_model::Quota {
    type Error = ApiError;

    fn try_from(quota: Quota) -> Result<Self, ApiError> {
        let cpu_milli = quota.cpu.map(milli).transpose()?;
        let Quota { sandboxes, memory_mib, disk_mib, volumes, volume_mib, .. } = quota;
        Ok(Self { sandboxes, cpu_milli, memory_mib, disk_mib, volumes, volume_mib })
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just before")]
fn milli(cores: f64) -> Result<u64, ApiError> {
    if !(0.0..=CORES_MAX).contains(&cores) {
        return Err(ApiError::invalid(format!("quota.cpu must be between 0 and {CORES_MAX}, not {cores}")));
    }
    Ok((cores * 1_000.0).round() as u64)
}

#[expect(clippy::cast_precision_loss, reason = "for people; exact far beyond any node")]
fn cores(milli: u64) -> f64 {
    milli as f64 / 1_000.0
}

impl From<atoll_model::Quota> for Quota {
    fn from(quota: atoll_model::Quota) -> Self {
        Self {
            sandboxes: quota.sandboxes,
            cpu: quota.cpu_milli.map(cores),
            memory_mib: quota.memory_mib,
            disk_mib: quota.disk_mib,
            volumes: quota.volumes,
            volume_mib: quota.volume_mib,
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Tenant {
    id: String,
    name: String,
    quota: Quota,
    /// Narrows what its sandboxes may reach; null: nothing does.
    network: Option<Network>,
    #[schema(format = DateTime)]
    created_at: String,
}

impl From<TenantRecord> for Tenant {
    fn from(record: TenantRecord) -> Self {
        Self {
            id: record.id.into(),
            name: record.name,
            quota: record.quota.into(),
            network: record.network.map(Into::into),
            created_at: rfc3339_millis(record.created_at_ms),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TenantList {
    items: Vec<Tenant>,
}

/// The tenant to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantBody {
    name: String,
    #[serde(default)]
    #[schema(required = false)]
    quota: Quota,
}

/// What to change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantChange {
    /// Replaces the whole quota.
    quota: Quota,
}

/// What a tenant holds now, and what it may.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct UsageAnswer {
    usage: Usage,
    quota: Quota,
}

/// What a tenant holds now, counted as its quota counts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Usage {
    sandboxes: u32,
    cpu: f64,
    memory_mib: u64,
    disk_mib: u64,
    volumes: u32,
    volume_mib: u64,
}

/// Lists tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", responses((status = 200, body = TenantList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<TenantList>, ApiError> {
    let tenants = app.service.list_tenants(&who).await?;
    Ok(ok(TenantList { items: tenants.into_iter().map(Tenant::from).collect() }))
}

/// Makes a tenant.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", request_body = TenantBody,
    responses((status = 201, body = Tenant)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<TenantBody>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    let tenant = app.service.create_tenant(&who, &body.name, body.quota.try_into()?).await?;
    Ok(JsonResponse(StatusCode::CREATED, tenant.into()))
}

/// Changes a tenant's quota. What runs goes on.
#[utoipa::path(patch, path = "/v1/tenants/{name}", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), request_body = TenantChange,
    responses((status = 200, body = Tenant)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<TenantChange>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.set_quota(&who, &name, body.quota.try_into()?).await?.into()))
}

/// What a tenant holds now, and what it may.
#[utoipa::path(get, path = "/v1/tenants/{name}/usage", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), responses((status = 200, body = UsageAnswer)))]
pub(crate) async fn usage(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<UsageAnswer>, ApiError> {
    let (usage, quota) = app.service.tenant_usage(&who, &name).await?;
    let usage = Usage {
        sandboxes: usage.sandboxes,
        cpu: cores(usage.cpu_milli),
        memory_mib: usage.memory_mib,
        disk_mib: usage.disk_mib,
        volumes: usage.volumes,
        volume_mib: usage.volume_mib,
    };
    Ok(ok(UsageAnswer { usage, quota: quota.into() }))
}

/// Narrows what the tenant's sandboxes may reach, also those that run. Takes no transforms and no `learn`.
#[utoipa::path(put, path = "/v1/tenants/{name}/network", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), request_body = NetworkPolicy,
    responses((status = 200, body = Tenant)))]
pub(crate) async fn set_network(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(policy): StrictJson<NetworkPolicy>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.set_tenant_network(&who, &name, Some(policy.into())).await?.into()))
}

/// Lets the tenant's sandboxes reach again what they ask for themselves.
#[utoipa::path(delete, path = "/v1/tenants/{name}/network", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), responses((status = 200, body = Tenant)))]
pub(crate) async fn clear_network(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.set_tenant_network(&who, &name, None).await?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_that_are_no_number_of_cores_are_refused() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(milli(bad).is_err(), "{bad}");
        }
        assert_eq!(milli(1.5).ok(), Some(1_500));
    }
}
