//! Tenants: create, list, quota, usage. All calls need an admin key, except a tenant's own usage.

use atoll_client::network::NetworkPolicy;
use atoll_client::tenants::{
    Quota, Tenant, TenantBody, TenantChange, TenantList, TenantProviders, Usage, UsageAnswer, cores,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_service::TenantRecord;
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromApi, FromCore, IntoApi, IntoCore};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(update))
        .routes(routes!(usage))
        .routes(routes!(set_network, clear_network))
        .routes(routes!(set_providers, clear_providers))
}

// LIMIT: far above any node, far below where thousandths lose precision.
const CORES_MAX: f64 = 1e9;

impl FromApi<Quota> for atoll_model::Quota {
    fn from_api(quota: Quota) -> Result<Self, ApiError> {
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

impl FromCore<TenantRecord> for Tenant {
    fn from_core(record: TenantRecord) -> Self {
        Self {
            id: record.id.into(),
            name: record.name,
            quota: record.quota.into(),
            network: record.network.map(Into::into),
            providers: record.providers,
            created_at: rfc3339_millis(record.created_at_ms),
        }
    }
}

/// Lists tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", responses((status = 200, body = TenantList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
) -> Result<JsonResponse<TenantList>, ApiError> {
    let tenants = app.service.access().list_tenants(&who).await?;
    Ok(ok(TenantList { items: tenants.into_iter().map(Tenant::from_core).collect() }))
}

/// Creates a tenant.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", request_body = TenantBody,
    responses((status = 201, body = Tenant)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    StrictJson(body): StrictJson<TenantBody>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    let tenant = app.service.access().create_tenant(&who, &body.name, body.quota.into_core()?).await?;
    Ok(JsonResponse(StatusCode::CREATED, tenant.into_api()))
}

/// Changes a tenant's quota. Running sandboxes are not affected.
#[utoipa::path(patch, path = "/v1/tenants/{name}", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), request_body = TenantChange,
    responses((status = 200, body = Tenant)))]
pub(crate) async fn update(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<TenantChange>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.access().set_quota(&who, &name, body.quota.into_core()?).await?.into_api()))
}

/// Returns the current use and the quota of a tenant.
#[utoipa::path(get, path = "/v1/tenants/{name}/usage", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), responses((status = 200, body = UsageAnswer)))]
pub(crate) async fn usage(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<UsageAnswer>, ApiError> {
    let (usage, quota) = app.service.access().tenant_usage(&who, &name).await?;
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

/// Sets a network policy that narrows all sandboxes of the tenant, also running ones. It cannot have transforms or
/// `learn`.
#[utoipa::path(put, path = "/v1/tenants/{name}/network", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), request_body = NetworkPolicy,
    responses((status = 200, body = Tenant)))]
pub(crate) async fn set_network(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(policy): StrictJson<NetworkPolicy>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.access().set_tenant_network(&who, &name, Some(policy.into())).await?.into_api()))
}

/// Removes the network policy of the tenant, so that only the sandboxes' own policies apply.
#[utoipa::path(delete, path = "/v1/tenants/{name}/network", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), responses((status = 200, body = Tenant)))]
pub(crate) async fn clear_network(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.access().set_tenant_network(&who, &name, None).await?.into_api()))
}

/// Sets the providers that a tenant may use for new sandboxes and volumes. Existing ones stay.
#[utoipa::path(put, path = "/v1/tenants/{name}/providers", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), request_body = TenantProviders,
    responses((status = 200, body = Tenant)))]
pub(crate) async fn set_providers(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
    StrictJson(body): StrictJson<TenantProviders>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.set_tenant_providers(&who, &name, Some(body.providers)).await?.into_api()))
}

/// Removes the list: the tenant may use providers of the kinds `container` and `microvm`, and the server's default.
#[utoipa::path(delete, path = "/v1/tenants/{name}/providers", tag = "tenants",
    params(("name" = String, Path, description = "Name or id")), responses((status = 200, body = Tenant)))]
pub(crate) async fn clear_providers(
    State(app): State<App>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<Tenant>, ApiError> {
    Ok(ok(app.service.set_tenant_providers(&who, &name, None).await?.into_api()))
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
