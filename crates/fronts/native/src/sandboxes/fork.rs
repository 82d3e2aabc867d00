//! Sandboxes made from a live one, and who came from whom.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Caller, JsonResponse, OptionalStrictJson, Path, ok};
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Sandbox;
use crate::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(fork)).routes(routes!(lineage))
}

/// How many, and what they get. May be absent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ForkBody {
    /// How many to make, at most 100.
    #[schema(example = 1, minimum = 1, maximum = 100)]
    count: u32,
    /// Their processes too, where that can be had; the answer says whether it could.
    memory: bool,
    /// Instead of the labels of the source.
    labels: Option<BTreeMap<String, String>>,
    /// Instead of the lifetime of the source.
    timeout_s: Option<u64>,
}

impl Default for ForkBody {
    fn default() -> Self {
        Self { count: 1, memory: false, labels: None, timeout_s: None }
    }
}

/// What was made, and what of the wish was granted.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Forked {
    sandboxes: Vec<Sandbox>,
    /// Whether they have the processes of the source.
    memory: bool,
    /// Why not, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false)]
    memory_refused: Option<String>,
}

/// Makes sandboxes from a live one: its files, and its processes where asked for and possible. All or none.
///
/// Each has its own id, host name, machine id, addresses, tokens and entropy; names in `private_env` are not inherited.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/fork", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body(content = ForkBody), responses((status = 201, body = Forked, description = "All of them run")))]
pub(crate) async fn fork(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    OptionalStrictJson(body): OptionalStrictJson<ForkBody>,
) -> Result<JsonResponse<Forked>, ApiError> {
    let ForkBody { count, memory, labels, timeout_s } = body;
    let ask = atoll_service::Fork { count, memory, labels, timeout_s, name: None };
    let forked = app.service.fork(&who, &ident, ask).await?;
    let sandboxes = forked.sandboxes.into_iter().map(Sandbox::from).collect();
    let answer = Forked { sandboxes, memory: forked.memory, memory_refused: forked.memory_refused };
    Ok(JsonResponse(StatusCode::CREATED, answer))
}

/// Where a sandbox comes from and what came from it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Lineage {
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from; it may be gone by now.
    parent: Option<String>,
    /// The snapshot that it was made from.
    snapshot: Option<String>,
    /// The sandboxes that were made from it.
    children: Vec<String>,
}

/// Where a sandbox comes from and what came from it.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/lineage", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Lineage)))]
pub(crate) async fn lineage(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Lineage>, ApiError> {
    let found = app.service.lineage(&who, &ident).await?;
    Ok(ok(Lineage {
        parent: found.parent.map(Into::into),
        snapshot: found.snapshot.map(Into::into),
        children: found.children.into_iter().map(Into::into).collect(),
    }))
}
