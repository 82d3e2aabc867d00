//! Snapshots, which are templates in E2B's API, and forks. A snapshot includes processes if this server can copy them,
//! unless the caller does not want that.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created};
use atoll_model::Snapshot as Kept;
use atoll_service::{Fork, NewSnapshot, SnapshotFilter};
use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use crate::E2bApp;
use crate::domain::Domain;
use crate::sandboxes::{SandboxResponse, Version, find, page_size, paged};

/// The tag of every snapshot: each has one version.
const TAG: &str = "default";
/// LIMIT: that of E2B.
const FORKS_MAX: u32 = 20;

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/sandboxes/{id}/snapshots", post(create))
        .route("/sandboxes/{id}/fork", post(fork))
        .route("/snapshots", get(list))
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct SnapshotResponse {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl From<Kept> for SnapshotResponse {
    fn from(kept: Kept) -> Self {
        // A name that belongs to a sandbox is no name of the team.
        let names: Vec<String> = kept.tenant_wide_name().iter().map(|name| format!("{name}:{TAG}")).collect();
        Self { snapshot_id: names.first().cloned().unwrap_or_else(|| format!("{}:{TAG}", kept.id)), names }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateSnapshotRequest {
    name: Option<String>,
    memory: Option<bool>,
}

/// COMPAT(e2b): a name that is taken moves to the newer snapshot.
async fn create(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<CreateSnapshotRequest>,
) -> Result<JsonResponse<SnapshotResponse>, ApiError> {
    let lease = find(&app, &who, &id).await?;
    let memory = body.memory.unwrap_or(true) && app.service.capabilities_of(&lease).checkpoints;
    let name = body.name.as_deref().map(plain_name).filter(|name| !name.is_empty()).map(str::to_owned);
    let new = NewSnapshot { name, tenant_wide: true, memory, replace: true, expect: None };
    let kept = app.service.sandboxes().snapshot(&who, lease.id.as_str(), new).await?;
    Ok(created(kept.into()))
}

/// A name without the namespace before it and the tag after it.
fn plain_name(word: &str) -> &str {
    let word = word.trim();
    let word = word.rsplit_once('/').map_or(word, |(_, name)| name);
    word.split_once(':').map_or(word, |(name, _)| name)
}

async fn list(State(app): State<E2bApp>, Caller(who): Caller, uri: Uri) -> Result<Response, ApiError> {
    let mut filter = SnapshotFilter { limit: 100, ..SnapshotFilter::default() };
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let text = Some(value.to_string()).filter(|text| !text.is_empty());
        match name.as_ref() {
            "sandboxID" => filter.sandbox = text,
            "name" => filter.name = text.map(|text| plain_name(&text).to_owned()),
            "limit" => filter.limit = page_size(&value)?,
            "nextToken" => filter.cursor = text,
            _ => {}
        }
    }
    let page = app.service.sandboxes().snapshots(&who, filter).await?;
    let items = page.items.into_iter().map(SnapshotResponse::from).collect::<Vec<_>>();
    Ok(paged(items, page.next_cursor))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ForkBody {
    timeout: Option<u64>,
    count: Option<u32>,
}

/// COMPAT(e2b): there each fork can fail by itself; here all are made or none, and then the whole request fails.
#[derive(Debug, Serialize)]
struct ForkResult {
    sandbox: SandboxResponse,
}

async fn fork(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Domain(domain): Domain,
    Path(id): Path<String>,
    Json(body): Json<ForkBody>,
) -> Result<JsonResponse<Vec<ForkResult>>, ApiError> {
    let count = body.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(ApiError::field("count", "must be between 1 and 20"));
    }
    let lease = find(&app, &who, &id).await?;
    let asked = Fork {
        count,
        memory: app.service.capabilities_of(&lease).checkpoints,
        timeout_s: Some(body.timeout.unwrap_or(Version::One.lifetime())),
        ..Fork::default()
    };
    let made = app.service.sandboxes().fork(&who, lease.id.as_str(), asked).await?;
    let shown = made.sandboxes.iter().map(|lease| SandboxResponse::new(&app.service, lease, domain.clone()));
    Ok(created(shown.map(|sandbox| ForkResult { sandbox }).collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_with_and_without_what_stands_around_it() {
        for word in ["snap", "team/snap", "snap:default", "team/snap:v2", " snap "] {
            assert_eq!(plain_name(word), "snap", "{word}");
        }
    }

    #[test]
    fn a_snapshot_is_named_by_its_name_or_else_its_id() {
        let shown = |name: Option<&str>| {
            let kept = serde_json::json!({
                "id": "ssssssssssssssssssss", "tenant": "tttttttttttttttttttt", "sandbox": "aaaaaaaaaaaaaaaaaaaa",
                "name": name, "provider": "container", "transient": false, "state": "ready", "memory": true, "template": "debian",
                "template_version": "1", "env": {}, "user": "user", "workdir": "/", "command": null,
                "limits": { "cpu_milli": 1000, "memory_mib": 512, "disk_mib": 2048, "pids": 512 }, "bytes": 0,
                "seal": "", "stood_still_us": 0, "created_at": { "wall_ms": 1, "boot_id": "b", "boot_ms": 1 },
            });
            SnapshotResponse::from(serde_json::from_value::<Kept>(kept).unwrap())
        };
        assert_eq!(
            serde_json::to_value(shown(Some("my"))).unwrap(),
            serde_json::json!({ "snapshotID": "my:default", "names": ["my:default"] })
        );
        assert_eq!(
            shown(None),
            SnapshotResponse { snapshot_id: "ssssssssssssssssssss:default".to_owned(), names: vec![] }
        );
    }
}
