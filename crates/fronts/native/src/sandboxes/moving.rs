//! The move of a sandbox to another provider.

use atoll_client::moving::{LeftBehind, MoveReport, MoveSandboxBody, Moving};
use atoll_client::sandboxes::{Sandbox, WaitQuery};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, StrictJson, ok, rfc3339_millis};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(move_sandbox))
}

/// Moves a sandbox to another provider. It keeps its id, name, labels, environment, thread, timers and previews.
///
/// A running sandbox is stopped, copied and started there; its processes end. Its home and its working directory are copied,
/// or everything that differs from the template where both providers can do that. `last_move` of the answer lists what stayed
/// behind. The old copy is removed only when the new one was read back and is the same. After any error the sandbox is where it
/// was. With `wait=0` the answer comes at once; `moving` shows the progress.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/move", tag = "sandboxes", operation_id = "move",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    request_body = MoveSandboxBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn move_sandbox(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
    StrictJson(body): StrictJson<MoveSandboxBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    let MoveSandboxBody { provider, template } = body;
    let request = atoll_service::MoveRequest { provider, template };
    Ok(ok(app.service.sandboxes().move_to(&who, &ident, request, query.wait()).await?.into_api()))
}

impl FromCore<atoll_model::SandboxMove> for Moving {
    fn from_core(moving: atoll_model::SandboxMove) -> Self {
        Self {
            from: moving.from,
            to: moving.to,
            template: moving.template,
            stage: moving.stage.into(),
            step: moving.progress.step.into(),
            entries: moving.progress.entries,
            bytes: moving.progress.bytes,
            started_at: rfc3339_millis(moving.started_at.wall_ms),
        }
    }
}

impl FromCore<atoll_model::MoveReport> for MoveReport {
    fn from_core(report: atoll_model::MoveReport) -> Self {
        Self {
            from: report.from,
            to: report.to,
            ended_at: rfc3339_millis(report.ended_at.wall_ms),
            failure: report.failure,
            carried: report.carried.into(),
            entries: report.entries,
            bytes: report.bytes,
            left_behind: report.left_behind.into_iter().map(LeftBehind::from).collect(),
        }
    }
}
