//! Copies of a sandbox, and the lineage of sandboxes.

use atoll_client::sandboxes::{ForkBody, Forked, Lineage, Sandbox};
use atoll_front_kit::{ApiError, Caller, JsonResponse, OptionalStrictJson, Path, ok};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(fork)).routes(routes!(lineage))
}

/// Creates copies of a sandbox: its files, and its processes if requested and possible. Creates all copies or none.
///
/// Each copy has its own id, host name, machine id, addresses, tokens and entropy. Variables in `private_env` are
/// not inherited.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/fork", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body(content = ForkBody), responses((status = 201, body = Forked, description = "All copies run")))]
pub(crate) async fn fork(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    OptionalStrictJson(body): OptionalStrictJson<ForkBody>,
) -> Result<JsonResponse<Forked>, ApiError> {
    let ForkBody { count, memory, labels, timeout_s } = body;
    let ask = atoll_service::Fork { count, memory, labels, timeout_s, ..atoll_service::Fork::default() };
    let forked = app.service.sandboxes().fork(&who, &ident, ask).await?;
    let sandboxes = forked.sandboxes.into_iter().map(Sandbox::from_core).collect();
    let answer = Forked { sandboxes, memory: forked.memory, memory_refused: forked.memory_refused };
    Ok(JsonResponse(StatusCode::CREATED, answer))
}

/// Returns the sandbox or snapshot that a sandbox was created from, and the sandboxes created from it.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/lineage", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Lineage)))]
pub(crate) async fn lineage(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Lineage>, ApiError> {
    let found = app.service.sandboxes().lineage(&who, &ident).await?;
    Ok(ok(Lineage {
        parent: found.parent.map(Into::into),
        snapshot: found.snapshot.map(Into::into),
        children: found.children.into_iter().map(Into::into).collect(),
    }))
}
