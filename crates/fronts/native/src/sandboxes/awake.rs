//! Why a sandbox is awake, holds that keep it awake, and a longer lifetime.

use atoll_client::sandboxes::{Awake, ExtendBody, HoldBody, NextTimer, Sandbox};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(awake)).routes(routes!(hold, release)).routes(routes!(extend))
}

impl FromCore<atoll_service::Awake> for Awake {
    fn from_core(awake: atoll_service::Awake) -> Self {
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

/// Returns why a sandbox is awake, its last activity, and the next timer. Never wakes it.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/awake", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Awake)))]
pub(crate) async fn awake(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Awake>, ApiError> {
    Ok(ok(app.service.sandboxes().awake(&who, &ident).await?.into_api()))
}

/// Prevents idle timers from acting on a sandbox for some time. A new hold replaces the old one.
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
    Ok(ok(app.service.sandboxes().hold(&who, &ident, ask).await?.into_api()))
}

/// Ends the hold of a sandbox, if there is one.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/hold", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn release(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().release(&who, &ident).await?.into_api()))
}

/// Extends the lifetime of a sandbox to at least this long from now. Never shortens it; an update of `timeout_s`
/// can.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/extend", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = ExtendBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn extend(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<ExtendBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().extend(&who, &ident, body.seconds).await?.into_api()))
}
