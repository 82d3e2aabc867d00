//! What keeps a sandbox awake: why it is, promises that it stays so, and a longer life.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Sandbox;
use super::words::AwakeReason;
use crate::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(awake)).routes(routes!(hold, release)).routes(routes!(extend))
}

/// Whether something works in a sandbox, and what happens to it next.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Awake {
    /// Every reason to stay awake; none where it is idle or does not run.
    because: Vec<AwakeReason>,
    /// When something last worked in it.
    #[schema(format = DateTime)]
    active_at: Option<String>,
    /// Nothing works in it; so it is with one that does not run.
    idle: bool,
    /// The timer that acts next, should nothing happen until then.
    next: Option<NextTimer>,
}

/// A timer that will act.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NextTimer {
    #[schema(format = DateTime)]
    at: String,
    /// What it will do: `pause`, `stop`, `checkpoint`, `archive` or `delete`.
    #[schema(example = "pause")]
    what: String,
}

impl From<atoll_service::Awake> for Awake {
    fn from(awake: atoll_service::Awake) -> Self {
        Self {
            because: awake.because.into_iter().map(Into::into).collect(),
            active_at: awake.active_at_ms.map(rfc3339_millis),
            idle: awake.idle,
            next: awake
                .next
                .map(|next| NextTimer { at: rfc3339_millis(next.at_ms), what: next.what.to_owned() }),
        }
    }
}

/// Why a sandbox is awake, since when, and when the next timer acts. Never wakes it.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/awake", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Awake)))]
pub(crate) async fn awake(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Awake>, ApiError> {
    Ok(ok(app.service.awake(&who, &ident).await?.into()))
}

/// How long to stay awake.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldBody {
    /// Seconds from now, at most a day.
    #[schema(example = 600, minimum = 1, maximum = 86400)]
    for_s: u64,
    /// For people.
    #[serde(default)]
    #[schema(required = false)]
    reason: Option<String>,
}

/// Keeps a sandbox awake for a while, whatever its idle timers say. The last hold counts.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/hold", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = HoldBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn hold(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<HoldBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    let ask = atoll_service::HoldAsk { for_s: body.for_s, reason: body.reason };
    Ok(ok(app.service.hold(&who, &ident, ask).await?.into()))
}

/// Ends a hold; without one nothing changes.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/hold", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn release(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.release(&who, &ident).await?.into()))
}

/// How long it lives at least.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendBody {
    /// Seconds from now.
    #[schema(example = 3600, minimum = 1)]
    seconds: u64,
}

/// Lets a sandbox live for at least so long from now. Never shortens its life; an update of `timeout_s` may.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/extend", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = ExtendBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn extend(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<ExtendBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.extend(&who, &ident, body.seconds).await?.into()))
}
