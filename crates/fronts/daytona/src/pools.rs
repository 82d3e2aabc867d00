//! Warm pools: instances that are started ahead of time. In Atoll each template has the number of its warm instances,
//! so a pool is a setting of the organisation's own template. The pools of the server belong to the operator (`atoll
//! serve --pool`).

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok, rfc3339_millis};
use atoll_model::{Code, Principal, StartSettings};
use atoll_service::{TemplateRecord, UpdateTemplate};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, patch};
use serde::{Deserialize, Serialize};

use crate::DaytonaApp;
use crate::error::unsupported_field;
use crate::naming;
use crate::sandboxes::{CPU, DISK_GIB, MEMORY_GIB, REGION, gib};

/// LIMIT: instances of one pool; the server has another bound over all pools.
const SIZE_MAX: u32 = 64;

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/warm-pools", get(list).post(create))
        .route("/warm-pools/{id}", patch(resize).delete(remove))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WarmPool {
    id: String,
    organization_id: String,
    snapshot: String,
    target: String,
    pool: u32,
    current_size: u32,
    cpu: u32,
    mem: u32,
    disk: u32,
    os_user: String,
    env: std::collections::BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
}

impl WarmPool {
    fn of(app: &DaytonaApp, template: &TemplateRecord) -> Self {
        let limits = template.settings.limits;
        let in_gib = |mib: Option<i64>, otherwise: u32| {
            mib.and_then(|mib| u32::try_from(mib).ok()).map_or(otherwise, gib)
        };
        let name = naming::name(&template.name);
        let at = rfc3339_millis(template.created_at_ms);
        let pool = template.settings.pool.unwrap_or(0);
        Self {
            id: name.clone(),
            organization_id: template.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
            snapshot: name,
            target: REGION.to_owned(),
            pool,
            current_size: app.service.templates().ready_instances(&template.name, &template.version),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "below 512 where it was set"
            )]
            cpu: limits.cpu.map_or(CPU, |cpu| cpu.ceil() as u32),
            mem: in_gib(limits.memory_mib, MEMORY_GIB),
            disk: in_gib(limits.disk_mib, DISK_GIB),
            os_user: template.user.clone(),
            env: template.settings.env.clone(),
            created_at: at.clone(),
            updated_at: at,
        }
    }
}

#[derive(Debug, Deserialize)]
struct CreatePoolRequest {
    snapshot: String,
    pool: i64,
}

#[derive(Debug, Deserialize)]
struct SizeBody {
    pool: i64,
}

/// The organisation's own template of this name.
async fn own(app: &DaytonaApp, who: &Principal, name: &str) -> Result<TemplateRecord, ApiError> {
    let missing = || ApiError::new(Code::SnapshotNotFound, format!("Snapshot {name:?} not found"));
    let found = naming::template(app, who, name).await?.ok_or_else(missing)?;
    match &found.tenant {
        Some(tenant) if *tenant == who.tenant => Ok(found),
        Some(_) => Err(missing()),
        None => Err(unsupported_field("snapshot", "the operator sets the pool size of general snapshots")),
    }
}

async fn set(app: &DaytonaApp, who: &Principal, name: &str, pool: u32) -> Result<TemplateRecord, ApiError> {
    let settings = Some(StartSettings { pool: Some(pool), ..StartSettings::default() });
    let change = UpdateTemplate { settings, ..UpdateTemplate::default() };
    Ok(app.service.templates().update(who, &naming::word(name)?, change).await?)
}

fn size(asked: i64) -> Result<u32, ApiError> {
    match u32::try_from(asked) {
        Ok(size) if (1..=SIZE_MAX).contains(&size) => Ok(size),
        _ => Err(ApiError::invalid(format!("pool: must be between 1 and {SIZE_MAX}"))),
    }
}

async fn create(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Json(body): Json<CreatePoolRequest>,
) -> Result<JsonResponse<WarmPool>, ApiError> {
    let pool = size(body.pool)?;
    let found = own(&app, &who, &body.snapshot).await?;
    if found.settings.pool.unwrap_or(0) > 0 {
        let message = format!("Snapshot {} has a warm pool already", body.snapshot);
        return Err(ApiError::new(Code::AlreadyExists, message));
    }
    let made = set(&app, &who, &body.snapshot, pool).await?;
    Ok(created(WarmPool::of(&app, &made)))
}

async fn list(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
) -> Result<JsonResponse<Vec<WarmPool>>, ApiError> {
    let all = app.service.templates().list(&who).await?;
    let mine = all.iter().filter(|template| template.tenant.as_ref() == Some(&who.tenant));
    let pools = mine.filter(|template| template.settings.pool.unwrap_or(0) > 0);
    Ok(ok(pools.map(|template| WarmPool::of(&app, template)).collect()))
}

async fn existing(app: &DaytonaApp, who: &Principal, id: &str) -> Result<TemplateRecord, ApiError> {
    let found = own(app, who, id).await;
    match found {
        Ok(found) if found.settings.pool.unwrap_or(0) > 0 => Ok(found),
        Ok(_) | Err(ApiError { code: Code::SnapshotNotFound | Code::Unsupported, .. }) => {
            Err(ApiError::new(Code::TemplateNotFound, format!("Warm pool {id:?} not found")))
        }
        Err(error) => Err(error),
    }
}

async fn resize(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<SizeBody>,
) -> Result<JsonResponse<WarmPool>, ApiError> {
    let pool = size(body.pool)?;
    existing(&app, &who, &id).await?;
    let changed = set(&app, &who, &id, pool).await?;
    Ok(ok(WarmPool::of(&app, &changed)))
}

async fn remove(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    existing(&app, &who, &id).await?;
    set(&app, &who, &id, 0).await?;
    Ok(StatusCode::NO_CONTENT)
}
