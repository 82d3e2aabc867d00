//! Mounts: volumes of the tenant, in the form of Leap0's bucket mounts.
//!
//! The SDK supports mounts of object storage only. A mount with the endpoint `atoll://volumes` is one of a volume:
//! `bucket` is its name or id, `prefix` a folder in it. Every other endpoint is object storage, which this server does
//! not mount.

use atoll_front_kit::{ApiError, Caller};
use atoll_model::{Lease, MountAsk, Principal};
use axum::Router;
use axum::routing::{patch, post};
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::error::not_here;

const TYPE: &str = "object-storage";
const VOLUMES: &str = "atoll://volumes";

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new().route("/v1/sandbox/{id}/mounts", post(async |_: Caller| live())).route(
        "/v1/sandbox/{id}/mounts/{mount}",
        patch(async |_: Caller| live()).delete(async |_: Caller| live()),
    )
}

/// There is no `Debug`, because it may contain keys of object storage.
#[derive(Deserialize)]
pub(crate) struct MountBody {
    #[serde(rename = "type")]
    kind: Option<String>,
    bucket: String,
    mount_path: String,
    endpoint: String,
    prefix: Option<String>,
    read_only: Option<bool>,
}

impl std::fmt::Debug for MountBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountBody").field("mount_path", &self.mount_path).finish_non_exhaustive()
    }
}

impl MountBody {
    pub(crate) fn into_ask(self) -> Result<MountAsk, ApiError> {
        if self.kind.as_deref().is_some_and(|kind| kind != TYPE) {
            return Err(ApiError::field("mounts.type", format!("must be {TYPE}")));
        }
        if self.endpoint.trim_end_matches('/') != VOLUMES {
            return Err(object_storage());
        }
        Ok(MountAsk {
            volume: self.bucket,
            path: self.mount_path,
            sub_path: self.prefix.map(|prefix| prefix.trim_end_matches('/').to_owned()),
            read_only: self.read_only.unwrap_or(false),
        })
    }
}

fn object_storage() -> ApiError {
    not_here(
        "a mount of object storage",
        "use a volume: `atoll volume create NAME`, then endpoint \"atoll://volumes\" and bucket \"NAME\"",
    )
}

fn live() -> ApiError {
    not_here(
        "changing the mounts of a sandbox",
        "set them when you create the sandbox, with endpoint \"atoll://volumes\" for volumes",
    )
}

/// A mount as Leap0 describes it.
#[derive(Debug, Serialize)]
pub(crate) struct MountShown {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The name of the volume; its id if the volume was deleted.
    bucket: String,
    mount_path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    read_only: bool,
}

/// The mounts of a sandbox.
pub(crate) async fn shown(
    app: &Leap0App,
    who: &Principal,
    lease: &Lease,
) -> Result<Vec<MountShown>, ApiError> {
    let mut all = Vec::with_capacity(lease.mounts.len());
    for (at, mount) in lease.mounts.iter().enumerate() {
        let volume = app.service.volumes().get(who, mount.volume.as_str()).await;
        all.push(MountShown {
            id: format!("mnt-{at}"),
            kind: TYPE,
            bucket: volume.map_or_else(|_| mount.volume.to_string(), |found| found.volume.name),
            mount_path: mount.path.clone(),
            prefix: mount.sub_path.as_ref().map(|folder| format!("{folder}/")),
            read_only: mount.read_only,
        });
    }
    Ok(all)
}
