//! The account of the caller: the organisation, the user, keys, the one region with its one runner, and the settings
//! that SDKs read at start. A tenant is the organisation; the holder of one of its keys is its user.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok, rfc3339_millis};
use atoll_model::{Code, Principal, Scope};
use atoll_service::NewKey;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::DaytonaApp;
use crate::naming;
use crate::origin::Origin;
use crate::sandboxes::{CLASS, REGION};

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/config", get(config))
        .route("/health", get(health))
        .route("/health/ready", get(health))
        .route("/users/me", get(me))
        .route("/organizations", get(organizations))
        .route("/organizations/{id}", get(organization))
        .route("/organizations/{id}/usage", get(usage))
        .route("/organizations/{id}/available-sandbox-classes", get(classes))
        .route("/regions", get(regions))
        .route("/shared-regions", get(regions))
        .route("/regions/{id}", get(region))
        .route("/runners", get(runners))
        .route("/api-keys", get(keys).post(new_key))
        .route("/api-keys/current", get(current_key))
        .route("/api-keys/{name}", get(key).delete(remove_key))
}

/// No key is required: clients read the configuration before they have one.
async fn config(origin: Origin, State(app): State<DaytonaApp>) -> JsonResponse<Value> {
    let hosts = (app.options.hosts)();
    ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "oidc": { "issuer": "", "clientId": "", "audience": "", "provider": "" },
        "linkedAccountsEnabled": false,
        "announcements": {},
        "proxyTemplateUrl": hosts.url(origin.is_tls(), "{{PORT}}-{{sandboxId}}"),
        "proxyToolboxUrl": origin.toolbox(),
        "defaultSnapshot": naming::DEFAULT,
        "dashboardUrl": origin.bare(),
        "maxAutoArchiveInterval": 43_200,
        // COMPAT(daytona): the vendor's spelling.
        "maintananceMode": false,
        "environment": "local",
    }))
}

async fn health(State(app): State<DaytonaApp>) -> Result<JsonResponse<Value>, ApiError> {
    let health = app.service.health().await;
    match health.ok {
        true => Ok(ok(json!({ "status": "ok" }))),
        false => Err(ApiError::new(Code::NoCapacity, health.problems.join("; "))),
    }
}

async fn me(Caller(who): Caller) -> JsonResponse<Value> {
    ok(json!({
        "id": who.tenant.to_string(),
        "name": who.tenant.to_string(),
        "email": "",
        "publicKeys": [],
        "createdAt": rfc3339_millis(0),
    }))
}

fn organization_of(who: &Principal) -> Value {
    json!({
        "id": who.tenant.to_string(),
        "name": who.tenant.to_string(),
        "createdBy": who.tenant.to_string(),
        "personal": true,
        "createdAt": rfc3339_millis(0),
        "updatedAt": rfc3339_millis(0),
        "suspended": false,
        "suspendedAt": rfc3339_millis(0),
        "suspensionReason": "",
        "suspendedUntil": rfc3339_millis(0),
        "suspensionCleanupGracePeriodHours": 0,
        "maxCpuPerSandbox": 0,
        "maxMemoryPerSandbox": 0,
        "maxDiskPerSandbox": 0,
        "sandboxLimitedNetworkEgress": false,
        "defaultRegionId": REGION,
        "authenticatedRateLimit": null,
        "sandboxCreateRateLimit": null,
        "sandboxLifecycleRateLimit": null,
    })
}

async fn organizations(Caller(who): Caller) -> JsonResponse<Value> {
    ok(json!([organization_of(&who)]))
}

async fn organization(Caller(who): Caller, Path(id): Path<String>) -> Result<JsonResponse<Value>, ApiError> {
    own(&who, &id)?;
    Ok(ok(organization_of(&who)))
}

fn own(who: &Principal, id: &str) -> Result<(), ApiError> {
    if who.tenant.as_str() == id {
        return Ok(());
    }
    Err(ApiError::new(Code::TenantNotFound, "Organization not found"))
}

async fn usage(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<Value>, ApiError> {
    own(&who, &id)?;
    let (usage, quota) = app.service.access().tenant_usage(&who, &id).await?;
    Ok(ok(json!({
        "regionUsage": [{
            "regionId": REGION,
            "totalCpuQuota": quota.cpu_milli.map(|milli| milli / 1_000),
            "currentCpuUsage": usage.cpu_milli.div_ceil(1_000),
            "totalMemoryQuota": quota.memory_mib.map(|mib| mib / 1_024),
            "currentMemoryUsage": usage.memory_mib.div_ceil(1_024),
        }],
    })))
}

async fn classes(Caller(_): Caller) -> JsonResponse<[&'static str; 1]> {
    ok([CLASS])
}

fn region_shown(origin: &Origin) -> Value {
    json!({
        "id": REGION,
        "name": REGION,
        "organizationId": null,
        "regionType": "shared",
        "createdAt": rfc3339_millis(0),
        "updatedAt": rfc3339_millis(0),
        "proxyUrl": origin.toolbox(),
        "sshGatewayUrl": null,
        "snapshotManagerUrl": null,
    })
}

async fn regions(Caller(_): Caller, origin: Origin) -> JsonResponse<Value> {
    ok(json!([region_shown(&origin)]))
}

async fn region(
    Caller(_): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<Value>, ApiError> {
    match id == REGION {
        true => Ok(ok(region_shown(&origin))),
        false => Err(ApiError::new(Code::RouteNotFound, format!("Region {id:?} not found"))),
    }
}

/// The load of the runner is not shown: it would reveal the activity of other tenants.
async fn runners(Caller(_): Caller) -> JsonResponse<Value> {
    ok(json!([{
        "id": REGION,
        "name": REGION,
        "region": REGION,
        "state": "ready",
        "class": "small",
        "sandboxClass": CLASS,
        "unschedulable": false,
        "version": env!("CARGO_PKG_VERSION"),
        "createdAt": rfc3339_millis(0),
        "updatedAt": rfc3339_millis(0),
    }]))
}

fn key_shown(key: &atoll_service::KeyRecord) -> Value {
    let name = key.name.clone().unwrap_or_else(|| key.id.to_string());
    json!({
        "name": name,
        "value": format!("dtn_{}", "*".repeat(8)),
        "createdAt": rfc3339_millis(key.created_at_ms),
        "permissions": [],
        "lastUsedAt": key.last_used_at_ms.map(rfc3339_millis),
        "expiresAt": null,
        "userId": key.tenant.to_string(),
    })
}

async fn keys(State(app): State<DaytonaApp>, Caller(who): Caller) -> Result<JsonResponse<Value>, ApiError> {
    let keys = app.service.access().list_keys(&who).await?;
    let own = keys.iter().filter(|key| key.tenant == who.tenant);
    Ok(ok(Value::Array(own.map(key_shown).collect())))
}

async fn current_key(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
) -> Result<JsonResponse<Value>, ApiError> {
    let keys = app.service.access().list_keys(&who).await;
    let known = keys.ok().and_then(|keys| keys.into_iter().find(|key| key.id == who.key));
    // A key without the right to list keys is still described.
    Ok(ok(known.as_ref().map_or_else(
        || json!({ "name": who.key.to_string(), "value": "dtn_********", "createdAt": rfc3339_millis(0), "permissions": [],
                   "lastUsedAt": null, "expiresAt": null, "userId": who.tenant.to_string() }),
        key_shown,
    )))
}

#[derive(Debug, Deserialize)]
struct NewKeyBody {
    name: String,
}

async fn new_key(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Json(body): Json<NewKeyBody>,
) -> Result<JsonResponse<Value>, ApiError> {
    let new = NewKey { tenant: None, scope: Scope::User, name: Some(body.name.clone()) };
    let made = app.service.access().create_key(&who, new).await?;
    let digits = made.secret.rsplit('_').next().unwrap_or_default();
    Ok(created(json!({
        "name": body.name,
        "value": format!("dtn_{digits}"),
        "createdAt": rfc3339_millis(made.key.created_at_ms),
        "permissions": [],
        "expiresAt": null,
    })))
}

async fn named_key(
    app: &DaytonaApp,
    who: &Principal,
    name: &str,
) -> Result<atoll_service::KeyRecord, ApiError> {
    let keys = app.service.access().list_keys(who).await?;
    let is_meant = |key: &atoll_service::KeyRecord| {
        key.tenant == who.tenant && (key.name.as_deref() == Some(name) || key.id.as_str() == name)
    };
    let missing = || ApiError::new(Code::KeyNotFound, "API key not found");
    keys.into_iter().find(is_meant).ok_or_else(missing)
}

async fn key(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<JsonResponse<Value>, ApiError> {
    Ok(ok(key_shown(&named_key(&app, &who, &name).await?)))
}

async fn remove_key(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let key = named_key(&app, &who, &name).await?;
    app.service.access().delete_key(&who, &key.id).await?;
    Ok(StatusCode::NO_CONTENT)
}
